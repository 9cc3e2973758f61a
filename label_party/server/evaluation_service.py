"""The gRPC service of evaluations: a stream of predictions in, one answer out.

Statuses and texts are functions of the request, the public population and what was answered before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import numpy as np

from common.errors import BudgetError, LabelveilError
from common.wire import evaluation_pb2 as wire
from common.wire import evaluation_pb2_grpc as stubs
from label_party.monitoring.calls import Call
from label_party.queries.evaluation import Evaluation, Unsure
from label_party.server.handlers import unary
from label_party.server.refusal import Refusal, invalid
from label_party.server.release_service import LabelReleaseService
from label_party.store.disk import StoreBusy
from label_party.store.entries import Answer
from label_party.store.release_store import StoredRelease

_log = logging.getLogger(__name__)

_DOUBLE_BYTES = 8


class EvaluationService(stubs.EvaluationServiceServicer):
    """Takes questions from entitled clients.

    Parameters
    ----------
    releases
        Knows clients and releases, and limits both services together.
    evaluation
        Answers.
    """

    def __init__(self, releases: LabelReleaseService, evaluation: Evaluation) -> None:
        self.telemetry = releases.telemetry
        self._releases = releases
        self._evaluation = evaluation

    @unary
    def DescribeEvaluation(
        self,
        request: wire.DescribeEvaluationRequest,
        context: grpc.ServicerContext,
        call: Call,
    ) -> wire.DescribeEvaluationResponse:
        client = self._releases.client(context, call)
        self._releases.check_entitled(client, self._evaluation.data_set)
        release, label = self._find(client, request, call)
        evaluation = self._evaluation
        with _refusing(call):
            return wire.DescribeEvaluationResponse(
                epsilon=str(evaluation.mechanism.epsilon),
                answers=evaluation.mechanism.most,
                answers_left=evaluation.answers_left(release),
                largest_loss=evaluation.gain(release, label).bound,
                tolerance=evaluation.settings.tolerance,
            )

    @unary
    def EvaluatePredictions(
        self,
        request: Iterator[wire.EvaluatePredictionsRequest],
        context: grpc.ServicerContext,
        call: Call,
    ) -> wire.EvaluatePredictionsResponse:
        client = self._releases.client(context, call)
        self._releases.check_entitled(client, self._evaluation.data_set)
        with self._releases.stream(context, client) as stream:
            try:
                header = next(request, wire.EvaluatePredictionsRequest()).header
                release, label = self._find(client, header, call)
                predictions = _predictions(request, release.rows, stream.progress)
            except grpc.RpcError as error:  # the client left, or stood still for too long
                raise Refusal(grpc.StatusCode.CANCELLED, "the question broke off") from error
            with _refusing(call):
                answer = self._evaluation.ask(release, label, predictions)
        left = self._evaluation.mechanism.most - answer.number
        _log.info("evaluated", extra={**call.facts, "answers_left": left})
        return self._response(release, label, answer)

    def _find(
        self,
        client: str,
        asked: wire.EvaluationHeader | wire.DescribeEvaluationRequest,
        call: Call,
    ) -> tuple[StoredRelease, str]:
        """The release and the label that a request names, if questions about them are taken."""
        release = self._releases.find(client, asked.data_set, asked.epoch or None)
        call.facts |= {"data_set": asked.data_set, "epoch": asked.epoch}
        if asked.manifest_sha256.hex() != release.digest:
            raise _refused("manifest_sha256 is not this release's", "another_release")
        if not self._evaluation.offers(release, asked.loss_name):
            raise _refused("no evaluation of this release by this loss is offered", "not_offered")
        names = release.manifest.names
        label = asked.label or names[0]
        if label not in names or (len(names) > 1 and not asked.label):
            raise invalid(f"label must be one of {', '.join(names)}")
        return release, label

    def _response(
        self, release: StoredRelease, label: str, answer: Answer
    ) -> wire.EvaluatePredictionsResponse:
        evaluation = self._evaluation
        return wire.EvaluatePredictionsResponse(
            loss=answer.value,
            answers_left=evaluation.mechanism.most - answer.number,
            largest_loss=evaluation.gain(release, label).bound,
            noise_scale=answer.noise_scale,
        )


@contextmanager
def _refusing(call: Call) -> Iterator[None]:
    """Turn errors into statuses and texts that say nothing about labels."""
    try:
        yield
    except StoreBusy as error:
        raise Refusal(
            grpc.StatusCode.UNAVAILABLE, "the labels are in use; try again later"
        ) from error
    except Unsure as error:  # a function of the question and the released prior
        raise _refused(str(error), "unsure") from error
    except BudgetError as error:
        _log.warning("question refused", extra={**call.facts, "reason": str(error)})
        raise _refused("the budget for evaluations is used up", "used_up") from error
    except LabelveilError as error:
        _log.error("question not answered", extra={**call.facts, "reason": str(error)})
        raise _refused("no evaluation can be given now", "not_available") from error


def _predictions(
    messages: Iterator[wire.EvaluatePredictionsRequest],
    rows: int,
    progress: Callable[[], object],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """(rows,) predictions of a stream without its header."""
    data = bytearray()
    for message in messages:
        if message.WhichOneof("part") != "predictions":
            raise invalid("the header must be the first message, and no other")
        data += message.predictions
        if len(data) > rows * _DOUBLE_BYTES:
            raise invalid(f"more predictions than the release's {rows} rows")
        progress()
    if len(data) != rows * _DOUBLE_BYTES:
        raise invalid(f"{len(data)} bytes are not {rows} predictions of 8 bytes")
    predictions = np.frombuffer(bytes(data), dtype="<f8").astype(np.float64)
    if np.isnan(predictions).all():
        raise invalid("all rows are left out")
    return predictions


def _refused(text: str, reason: str) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, text, reason)
