"""The gRPC service of evaluations: a stream of predictions in, one answer out.

Statuses and texts are functions of the request, the public population and what was answered before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import grpc
import numpy as np

from common.errors import BudgetError, LabelveilError
from common.wire import evaluation_pb2 as wire
from common.wire import evaluation_pb2_grpc as stubs
from label_party.monitoring.calls import Call
from label_party.queries.evaluation import Answered, Evaluation
from label_party.server.handlers import unary
from label_party.server.refusal import Refusal, invalid
from label_party.server.release_service import LabelReleaseService
from label_party.store.disk import StoreBusy

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
                release = self._releases.find(client, header.data_set, header.epoch or None)
                call.facts |= {"data_set": header.data_set, "epoch": header.epoch}
                if header.manifest_sha256.hex() != release.digest:
                    raise _refused("manifest_sha256 is not this release's", "another_release")
                if not math.isfinite(header.estimate):
                    raise invalid("estimate must be a finite number")
                if not self._evaluation.offers(release, header.loss_name):
                    raise _refused(
                        "no evaluation of this release by this loss is offered", "not_offered"
                    )
                predictions = _predictions(request, release.rows, stream.progress)
            except grpc.RpcError as error:  # the client left, or stood still for too long
                raise Refusal(grpc.StatusCode.CANCELLED, "the question broke off") from error
            try:
                answer = self._evaluation.ask(release, predictions, header.estimate)
            except StoreBusy as error:
                raise Refusal(
                    grpc.StatusCode.UNAVAILABLE, "the labels are in use; try again later"
                ) from error
            except BudgetError as error:
                _log.warning("question refused", extra={**call.facts, "reason": str(error)})
                raise _refused("the budget for evaluations is used up", "used_up") from error
            except LabelveilError as error:
                _log.error("question not answered", extra={**call.facts, "reason": str(error)})
                raise _refused("no evaluation can be given now", "not_available") from error
        _log.info("evaluated", extra={**call.facts, "answers_left": answer.answers_left})
        return self._response(answer)

    def _response(self, answer: Answered) -> wire.EvaluatePredictionsResponse:
        evaluation = self._evaluation
        return wire.EvaluatePredictionsResponse(
            loss=answer.loss,
            source=wire.LOSS_SOURCE_TRUE_LABELS
            if answer.from_labels
            else wire.LOSS_SOURCE_ESTIMATE,
            answers_left=answer.answers_left,
            largest_loss=evaluation.largest_loss,
            tolerance=evaluation.settings.tolerance * evaluation.largest_loss,
            noise_scale=answer.noise_scale,
        )


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
