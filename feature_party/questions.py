"""Ask the labels party for a model's loss on true labels, which it may or may not offer."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import DataError, ReleaseError
from common.keys import read_secret
from common.release import Release, manifest_digest
from common.wire import evaluation_pb2 as pb2
from common.wire import evaluation_pb2_grpc as pb2_grpc
from feature_party.client import RetryPolicy
from feature_party.config import FeaturePartyConfig, LabelsPartySection
from feature_party.learning.problem import Floats
from feature_party.spool import key_array
from feature_party.submission import hash_population
from feature_party.training import Prepared
from feature_party.transport import explain, open_channel, retryable

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Verdict:
    """What the labels party answered.

    Attributes
    ----------
    loss
        Mean loss per event, clipped as it says.
    from_labels
        Whether it comes from true labels; otherwise they do not contradict our own estimate.
    low, high
        If from true labels: where the mean lies with 95% probability, as far as noise goes. Else:
        about how far off our estimate may be.
    answers_left
        How many further answers may come from true labels.
    largest
        The most that one event counts for.
    """

    loss: float
    from_labels: bool
    low: float
    high: float
    answers_left: int
    largest: float


def release_rows(
    release: Release, prepared: Prepared, config: FeaturePartyConfig
) -> NDArray[np.int64]:
    """(m,) row in the release of every matched event."""
    joined = prepared.joined
    if release.manifest.content.key_bytes == 0:
        return joined.rows  # we submitted the population: our rows are its rows
    population = hash_population(joined.table[config.key], read_secret(config.secret_file))
    hashed = pl.Series(
        "key", pl.from_arrow(key_array(population.keys, population.rows)), dtype=pl.Binary
    )
    ours = pl.DataFrame({"key": hashed})
    theirs = release.labels.select("key").with_row_index("row")
    found = ours.join(theirs, on="key", how="left", maintain_order="left")["row"]
    return found.cast(pl.Int64).to_numpy()


def ask(
    settings: LabelsPartySection,
    release: Release,
    rows: NDArray[np.int64],
    points: Floats,
    loss: str,
    estimate: float,
    retry: RetryPolicy | None = None,
) -> Verdict:
    """Ask one question.

    Parameters
    ----------
    settings
        The labels party.
    release
        What the model was trained on.
    rows
        (m,) rows of the release that predictions are for; the model must not have seen them.
    points
        (m,) predictions in label units.
    loss
        ``squared`` or ``absolute``.
    estimate
        Our own estimate of its mean over these rows.

    Raises
    ------
    DataError
        If the estimate is not a number.
    ConnectionFailed
        If the labels party cannot be reached, or refuses us.
    ReleaseError
        If it offers no evaluation, or its answers are used up.
    """
    if not math.isfinite(estimate):
        raise DataError(f"estimate={estimate} must be a finite number")
    every = np.full(release.labels.height, np.nan)
    every[rows] = points
    data = every.astype("<f8").tobytes()
    manifest = release.manifest
    header = pb2.EvaluationHeader(
        data_set=manifest.data_set,
        epoch=manifest.epoch,
        manifest_sha256=bytes.fromhex(manifest_digest(release.manifest_bytes)),
        loss_name=loss,
        estimate=estimate,
    )

    def messages() -> Iterator[pb2.EvaluatePredictionsRequest]:
        yield pb2.EvaluatePredictionsRequest(header=header)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield pb2.EvaluatePredictionsRequest(predictions=data[start : start + _CHUNK_BYTES])

    retry = retry or RetryPolicy()
    with open_channel(settings) as channel:
        stub = pb2_grpc.EvaluationServiceStub(channel)
        failures = 0
        while True:
            try:
                # the labels party reads its labels before its first answer
                answer = stub.EvaluatePredictions(messages(), timeout=10 * settings.timeout)
                return _verdict(answer)
            except grpc.RpcError as error:
                failures += 1
                if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                    raise ReleaseError(
                        f"the labels party at {settings.address} gives no answer:"
                        f" {error.details()}; evaluate without --ask, or agree on [evaluation]"
                        " with it"
                    ) from error
                if failures >= retry.attempts or not retryable(error):
                    raise explain(error, settings, "evaluate") from error
                threading.Event().wait(retry.delay(failures))


def _verdict(answer: pb2.EvaluatePredictionsResponse) -> Verdict:
    from_labels = answer.source == pb2.LOSS_SOURCE_TRUE_LABELS
    # P[|noise| > x] <= exp(-x / scale)
    reach = answer.noise_scale * math.log(20) if from_labels else answer.tolerance
    return Verdict(
        loss=answer.loss,
        from_labels=from_labels,
        low=max(0.0, answer.loss - reach),
        high=min(answer.largest_loss, answer.loss + reach),
        answers_left=answer.answers_left,
        largest=answer.largest_loss,
    )
