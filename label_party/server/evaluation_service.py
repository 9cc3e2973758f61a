"""The gRPC service of evaluations: a stream of predictions in, one answer out.

Statuses and texts are functions of the request, the public population and what was answered before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from labelveil.common.errors import BudgetError, LabelveilError
from labelveil.common.wire import evaluation_pb2 as wire
from labelveil.label_party.monitoring.calls import Call
from labelveil.label_party.queries.evaluation import Evaluation, Unsure
from labelveil.label_party.server.calls import Rpc
from labelveil.label_party.server.catalog import reading
from labelveil.label_party.server.refusal import finding, invalid, refused, unavailable
from labelveil.label_party.server.release_service import LabelReleaseService
from labelveil.label_party.store.disk import StoreBusy, StoreError
from labelveil.label_party.store.entries import Answer
from labelveil.label_party.store.ledger import LedgerError
from labelveil.label_party.store.release_store import StoredRelease

_DOUBLE_BYTES = 8


@dataclass(frozen=True)
class EvaluationService:
    """Takes questions from entitled clients."""

    releases: LabelReleaseService  # knows clients and releases, and limits both services together
    evaluation: Evaluation

    async def DescribeEvaluation(self, rpc: Rpc) -> None:
        self.releases.check_entitled(rpc.client, self.evaluation.data_set)
        release, label = await self._find(rpc, await rpc.request())
        with _refusing():
            await rpc.write(await rpc.run(self._description, release, label))

    async def EvaluatePredictions(self, rpc: Rpc) -> None:
        self.releases.check_entitled(rpc.client, self.evaluation.data_set)
        with self.releases.streams.hold(rpc.client):
            header = (await rpc.request()).header
            release, label = await self._find(rpc, header)
            messages = rpc.messages(self.releases.stall_seconds)
            data = await _received(messages, release.rows, rpc.record)
            predictions = await rpc.run(predictions_of, data, release.rows)
            with finding():  # they may have taken long
                at = release.heading
                await rpc.run(self.releases.catalog.check_served, at.data_set, at.epoch)
            with _refusing():
                answer = await rpc.run(self.evaluation.ask, release, label, predictions)
        rpc.record.facts["answers_left"] = self.evaluation.mechanism.most - answer.number
        await rpc.write(await rpc.run(self._response, release, label, answer))

    async def _find(
        self, rpc: Rpc, request: wire.EvaluationHeader | wire.DescribeEvaluationRequest
    ) -> tuple[StoredRelease, str]:
        """The release and the label that a request names, if questions about them are taken."""
        release = await self.releases.find(rpc, request.data_set, request.epoch)
        if request.manifest_sha256.hex() != release.digest:
            raise refused("manifest_sha256 is not this release's", "another_release")
        return release, await rpc.run(self._label, release, request)

    def _label(
        self,
        release: StoredRelease,
        request: wire.EvaluationHeader | wire.DescribeEvaluationRequest,
    ) -> str:
        with finding(), reading("the release"):
            names, offered = (
                release.manifest.names,
                self.evaluation.offers(release, request.loss_name),
            )
        if not offered:
            raise refused("no evaluation of this release by this loss is offered", "not_offered")
        label = request.label or names[0]
        if label not in names or (len(names) > 1 and not request.label):
            raise invalid(f"label must be one of {', '.join(names)}")
        return label

    def _description(self, release: StoredRelease, label: str) -> wire.DescribeEvaluationResponse:
        evaluation = self.evaluation
        return wire.DescribeEvaluationResponse(
            epsilon=str(evaluation.mechanism.epsilon),
            answers=evaluation.mechanism.most,
            answers_left=evaluation.answers_left(release),
            largest_loss=evaluation.gain(release, label).bound,
            tolerance=evaluation.settings.tolerance,
        )

    def _response(
        self, release: StoredRelease, label: str, answer: Answer
    ) -> wire.EvaluatePredictionsResponse:
        evaluation = self.evaluation
        return wire.EvaluatePredictionsResponse(
            loss=answer.value,
            answers_left=evaluation.mechanism.most - answer.number,
            largest_loss=evaluation.gain(release, label).bound,
            noise_scale=answer.noise_scale,
        )


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn errors into statuses and texts that say nothing about labels."""
    try:
        yield
    except StoreBusy as error:
        raise unavailable("the labels are in use") from error
    except Unsure as error:  # a function of the question and the released prior
        raise refused(str(error), "unsure") from error
    except BudgetError as error:
        raise refused("the budget for evaluations is used up", "used_up") from error
    except (StoreError, LedgerError) as error:
        raise unavailable("the answer cannot be written now") from error
    except LabelveilError as error:
        raise refused("no evaluation can be given now", "not_available") from error


async def _received(
    messages: AsyncIterator[wire.EvaluatePredictionsRequest], rows: int, record: Call
) -> bytearray:
    """The bytes of a stream without its header, of at most n rows."""
    data = bytearray()
    async for message in messages:
        if message.WhichOneof("part") != "predictions":
            raise invalid("the header must be the first message, and no other")
        data += message.predictions
        record.moved(0, len(message.predictions))
        if len(data) > rows * _DOUBLE_BYTES:
            raise invalid(f"more predictions than the release's {rows} rows")
    return data


def predictions_of(data: bytearray, rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """(rows,) predictions."""
    if len(data) != rows * _DOUBLE_BYTES:
        raise invalid(f"{len(data)} bytes are not {rows} predictions of 8 bytes")
    predictions = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if np.isnan(predictions).all():
        raise invalid("all rows are left out")
    return predictions
