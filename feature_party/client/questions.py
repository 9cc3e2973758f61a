"""Ask the labels party for a model's loss on true labels, which it may or may not offer."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import polars as pl

from common.arrays import Floats, Integers
from common.errors import DataError, ReleaseError
from common.release.blocks import block_ranges
from common.release.event_keys import hash_keys
from common.release.folder import LABELS_FILE, read_manifest
from common.release.manifest import Manifest, manifest_digest
from common.release.table import keys_column
from common.wire import evaluation_pb2 as pb2
from common.wire import evaluation_pb2_grpc as pb2_grpc
from feature_party.client.channel import explain, open_channel, retryable
from feature_party.client.release_client import RetryPolicy
from feature_party.config import LabelsPartySection

_CHUNK_ROWS = 1 << 17


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


def released_rows(folder: Path, held_out: pl.Series, rows: Integers, secret: bytes) -> Integers:
    """(h,) row in a release of some events.

    Parameters
    ----------
    folder
        The release's directory.
    held_out
        (h,) the events' keys.
    rows
        (h,) their numbers among all matched events, which count where we submitted the population:
        our rows are its rows then.
    secret
        The shared key secret.
    """
    manifest = Manifest.from_bytes(read_manifest(folder))
    if manifest.content.key_bytes == 0:
        return rows
    ours = keys_column(hash_keys(held_out, secret, manifest.population.function)).to_frame("key")
    theirs = pl.scan_parquet(folder / LABELS_FILE).select("key").with_row_index("row")
    found = theirs.join(ours.lazy(), on="key", how="semi").collect(engine="streaming")
    matched = ours.join(found, on="key", how="left", maintain_order="left")["row"]
    return matched.cast(pl.Int64).to_numpy()


def ask(
    settings: LabelsPartySection,
    manifest_bytes: bytes,
    rows: Integers,
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
    manifest_bytes
        The manifest of the release that the model was trained on.
    rows
        (h,) rows of the release that predictions are for; the model must not have seen them.
    points
        (h,) predictions in label units.
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
    manifest = Manifest.from_bytes(manifest_bytes)
    order = np.argsort(rows)
    rows, points = rows[order], points[order]
    header = pb2.EvaluationHeader(
        data_set=manifest.data_set,
        epoch=manifest.epoch,
        manifest_sha256=bytes.fromhex(manifest_digest(manifest_bytes)),
        loss_name=loss,
        estimate=estimate,
    )

    def messages() -> Iterator[pb2.EvaluatePredictionsRequest]:
        yield pb2.EvaluatePredictionsRequest(header=header)
        for start, stop in block_ranges(manifest.population.rows, _CHUNK_ROWS):
            low, high = np.searchsorted(rows, [start, stop])
            part = np.full(stop - start, np.nan, dtype="<f8")
            part[rows[low:high] - start] = points[low:high]
            yield pb2.EvaluatePredictionsRequest(predictions=part.tobytes())

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
