"""Ask the labels party how much a model is better than a constant, which it may or may not tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, get_args

import grpc
import numpy as np
import polars as pl

from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import ReleaseError
from labelveil.common.exact.rational import parse_rational
from labelveil.common.mechanisms.paired_gain import LossName, NoisyAnswers, PairedGain, half_width
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.manifest import Manifest, manifest_digest, manifest_in
from labelveil.common.release.rows import keys_column, open_rows
from labelveil.common.wire import evaluation_pb2 as pb2
from labelveil.common.wire import evaluation_pb2_grpc as pb2_grpc
from labelveil.feature_party.client.channel import error_details, open_channel
from labelveil.feature_party.client.release_client import ReleaseClient
from labelveil.feature_party.config.labels_party import LabelsPartySection

_CHUNK_ROWS = 1 << 17
_ROWS_AT_ONCE = 1 << 20
_REFUSED = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)

T = TypeVar("T")


@dataclass(frozen=True)
class Terms:
    """What an answer will cost and be worth, known before it is asked for."""

    epsilon: float  # of all answers together
    answers: int
    answers_left: int
    constant_loss: float  # the released prior's own, of its constant; a gain is compared with it
    reach: float  # how far off the answer may be, with 95% probability, in units of the loss
    error: float  # its standard error, in the same
    tolerance: float  # largest ``reach`` that the labels party answers with
    largest: float  # the most that one event's difference counts for

    def check(self, known: float) -> None:
        """Refuse a question, before it costs, whose answer cannot tell anything.

        It may be off by no more than our own estimate, ``known`` of the constant's loss, and than
        the labels party tolerates.
        """
        share, most = self.reach / self.constant_loss, self.tolerance / self.constant_loss
        if share > min(known, most):
            because = (
                f"the privatized labels alone tell it within {known:.2g}"
                if known < most
                else f"[evaluation] tolerance allows {most:.2g}"
            )
            raise ReleaseError(
                f"an answer about these predictions could be off by {share:.2g} of the constant's"
                f" loss and {because}; nothing was asked. Hold out more events, or agree on a"
                " larger [evaluation] epsilon or fewer answers"
            )

    @property
    def sentence(self) -> str:
        return (
            f"asking the labels party: the answer will have a standard error of"
            f" {self.error / self.constant_loss:.1%} of the constant's loss; {self.answers_left} of"
            f" {self.answers} answers left, which cost ε = {self.epsilon:g} together"
        )


@dataclass(frozen=True)
class Verdict:
    """What the labels party answered."""

    loss: LossName
    # gain, low, high: how much the model's mean loss is below the constant's, in units of the loss,
    # and where that lies with 95% probability, as far as the answer's noise goes
    gain: float
    low: float
    high: float
    answers_left: int
    terms: Terms

    @property
    def sentence(self) -> str:
        whole = self.terms.constant_loss
        gain, low, high = (f"{end / whole:.3g}" for end in (self.gain, self.low, self.high))
        return (
            f"labels party, from true labels: the {self.loss} error is {gain} (95%: {low} … {high})"
            f" of the constant's {whole:.6g} below it; {self.answers_left} answers left"
        )

    def to_json(self) -> dict[str, Any]:
        """Under the names of ``metrics.json``."""
        return {
            "asked_loss": self.loss,
            "asked_gain": self.gain,
            "asked_gain_low": self.low,
            "asked_gain_high": self.high,
            "asked_constant_loss": self.terms.constant_loss,
            "asked_standard_error": self.terms.error,
            "asked_epsilon": self.terms.epsilon,
            "asked_answers_left": self.answers_left,
            "asked_largest_loss": self.terms.largest,
        }


def released_rows(folder: Path, held_out: pl.Series, rows: Integers, secret: bytes) -> Integers:
    """(h,) rows in a release of held-out events, given by their keys.

    Where we submitted the population our rows are its rows: ``rows``, the events' numbers among all
    matched ones.
    """
    manifest = manifest_in(folder)
    if manifest.content.key_bytes == 0:
        return rows
    ours = keys_column(hash_keys(held_out, secret)).to_frame("key")
    theirs = open_rows(folder, manifest)
    known = []
    for start, stop in block_ranges(manifest.population.rows, _ROWS_AT_ONCE):
        part = keys_column(theirs.read(start, stop)[0]).to_frame()
        known.append(part.with_row_index("row", start).join(ours, on="key", how="semi"))
    matched = ours.join(pl.concat(known), on="key", how="left", maintain_order="left")["row"]
    return matched.cast(pl.Int64).to_numpy()


def topics(labels: Collection[str]) -> dict[str, tuple[str, LossName]]:
    """Which label and loss one may ask about, by how it is written: LABEL:LOSS, or LABEL for its
    squared loss; LOSS where there is one label."""
    pairs: list[tuple[str, LossName]] = list(product(labels, get_args(LossName)))
    if len(labels) == 1:
        return {loss: (label, loss) for label, loss in pairs}
    written = {f"{label}:{loss}": (label, loss) for label, loss in pairs}
    return written | {label: (label, "squared") for label in labels}


@dataclass
class Questions:
    """Asks a labels party about a model of the release with this manifest.

    The question is about one of the release's labels; the only one goes by no name.
    """

    settings: LabelsPartySection
    manifest_bytes: bytes
    loss: LossName
    label: str

    def terms(self, points: Floats) -> Terms:
        """Ask for the terms of a question about (h,) predictions, which is free.

        ``ConnectionFailed`` if the labels party cannot be reached, or refuses us; ``ReleaseError``
        if it offers no evaluation.
        """
        manifest = self._manifest
        request = pb2.DescribeEvaluationRequest(**self._names)
        offer = self._call(lambda stub, timeout: stub.DescribeEvaluation(request, timeout=timeout))
        released = manifest.message.marginal(self.label or manifest.label.name)
        gain = PairedGain.of_prior(*released, self.loss, offer.largest_loss)
        group = manifest.privacy.records_per_unit
        answers = NoisyAnswers(parse_rational(offer.epsilon), offer.answers, group)
        scale = answers.unsure(gain, gain.span(points), points.size)
        return Terms(
            epsilon=float(answers.epsilon),
            answers=offer.answers,
            answers_left=offer.answers_left,
            constant_loss=gain.constant_loss,
            reach=half_width(scale),
            error=math.sqrt(2) * scale,
            tolerance=offer.tolerance * gain.constant_loss,
            largest=gain.bound,
        )

    def ask(self, rows: Integers, points: Floats, terms: Terms) -> Verdict:
        """Ask about (h,) predictions in label units; the same question again is free.

        The model must not have seen the (h,) rows of the release that they are for.
        ``ConnectionFailed`` if the labels party cannot be reached, or refuses us; ``ReleaseError``
        if it offers no evaluation, or its answers are used up.
        """
        order = np.argsort(rows)
        rows, points = rows[order], points[order]
        header = pb2.EvaluationHeader(**self._names)

        def messages() -> Iterator[pb2.EvaluatePredictionsRequest]:
            yield pb2.EvaluatePredictionsRequest(header=header)
            for start, stop in block_ranges(self._manifest.population.rows, _CHUNK_ROWS):
                low, high = np.searchsorted(rows, [start, stop])
                part = np.full(stop - start, np.nan, dtype="<f8")
                part[rows[low:high] - start] = points[low:high]
                yield pb2.EvaluatePredictionsRequest(predictions=part.tobytes())

        # the labels party reads its labels before its first answer
        answer = self._call(
            lambda stub, timeout: stub.EvaluatePredictions(messages(), timeout=10 * timeout)
        )
        reach = half_width(answer.noise_scale)
        ends = answer.loss - reach, answer.loss + reach
        return Verdict(self.loss, answer.loss, *ends, answer.answers_left, terms)

    @cached_property
    def _manifest(self) -> Manifest:
        return Manifest.from_bytes(self.manifest_bytes)

    @property
    def _names(self) -> dict[str, Any]:
        return {
            "data_set": self._manifest.data_set,
            "epoch": self._manifest.epoch,
            "manifest_sha256": bytes.fromhex(manifest_digest(self.manifest_bytes)),
            "loss_name": f"{self.loss} gain",
            "label": self.label,
        }

    def _call(self, call: Callable[[pb2_grpc.EvaluationServiceStub, float], T]) -> T:
        settings = self.settings
        with open_channel(settings) as channel:
            stub = pb2_grpc.EvaluationServiceStub(channel)

            def once() -> T:
                try:
                    return call(stub, settings.timeout)
                except grpc.RpcError as error:
                    if error.code() not in _REFUSED:
                        raise
                    said = error_details(error)
                    reason = f" (reason {said.reason})" if said else ""
                    raise ReleaseError(
                        f"the labels party at {settings.address} gives no answer:"
                        f" {error.details()}{reason}; evaluate without --ask, or agree on"
                        " [evaluation] with it"
                    ) from error

            return ReleaseClient(settings).repeat(once, "evaluate")
