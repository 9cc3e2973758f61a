"""Twins that need more than outputs to be caught: their words, their releases, their answers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from labelveil.audit.attacks import implementation, replay
from labelveil.audit.canaries.party import ONE_LABEL
from labelveil.audit.mechanism.exact import correlation, histogram_event, tapes_check
from labelveil.audit.verdict import Check
from labelveil.common.arrays import Integers, Words
from labelveil.common.entropy import Entropy, seeded_entropy, system_entropy
from labelveil.common.mechanisms.paired_gain import RESOLUTION, NoisyAnswers, PairedGain
from labelveil.common.randomizers import private_prior
from tests.label_party import answered, rehearsed
from tests.labelveil.audit.twins import samplers
from tests.labelveil.audit.twins.library import RESPONSE, Twin, twin

LABELS = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 2.0])


@twin
class UnchargedHistogram(Twin):
    """The histogram's ε₁ is left out of the claim."""

    caught_by = "two-step event"

    def audit(self) -> Check:
        event = histogram_event(0.5, 0.5, 400_000)
        return event.check(claim="ε = 1/2", tried="E*", claimed=0.5)


@twin
class BinsOfRawCounts(Twin):
    """The bins are built from the raw histogram."""

    caught_by = "replay: only the noisy histogram reaches the channel"
    slow = True

    def audit(self) -> Check:
        release = samplers.releaser(raw_bins=True)
        return replay.function_check(replay.replay(release, LABELS, 0, 1.0, 400))


@twin
class EmptyCellsStay(Twin):
    """Noise on the cells that hold a label, and on no other."""

    caught_by = "support: noise on every cell"

    def audit(self) -> Check:
        release, labels = samplers.releaser(skip_empty=True), np.array([0.0, 0.0, 1.0, 1.0])
        return replay.support_check(replay.replay(release, labels, 0, 1.0, 60))


@twin
class FreshNoiseForEachRequest(Twin):
    """A server that randomizes whenever it is asked."""

    caught_by = "byte equality"

    def audit(self) -> Check:
        return implementation.byte_equality_check(samplers.serving(system_entropy))


@twin
class MissingLabelDropsTheRow(Twin):
    """Only the events that have a label are sent."""

    caught_by = "id set"

    def audit(self) -> Check:
        labels: dict[str, float | None] = {f"k{i}": float(i) for i in range(9)}
        less = samplers.dropped_rows(labels | {"k4": None})
        return ONE_LABEL.checks(samplers.dropped_rows(labels), less)[0]


@twin
class RowsSortedByLabel(Twin):
    """The rows leave in the order of their labels."""

    caught_by = "row order"

    def audit(self) -> Check:
        words = seeded_entropy(3).words("labels", 0, 400)
        labels = {f"k{i:03}": float(w % np.uint64(5)) for i, w in enumerate(words)}
        rows = samplers.sorted_by_label(labels)
        return implementation.permutation_check(np.array([labels[key] for key in rows.events]))


@twin
class OneLabelMovesTheRows(Twin):
    """The same, seen by two data sets that differ in one label."""

    caught_by = "row order"

    def audit(self) -> Check:
        labels = {f"k{i:03}": float(i % 5) for i in range(400)}
        rows = samplers.sorted_by_label(labels), samplers.sorted_by_label(labels | {"k200": 4.0})
        return ONE_LABEL.checks(*rows)[1]


class TapesTwin(Twin):
    """A release whose prior and rows are run under one key."""

    caught_by = "two noises"

    def prior(self, entropy: Entropy) -> object:
        """Draw the histogram's noise."""
        return private_prior(np.ones(4, dtype=np.int64), 1.0, entropy)

    def rows(self, entropy: Entropy) -> object:
        """Draw the rows."""
        return RESPONSE(np.zeros(500, dtype=np.int64), entropy.words("labels", 0, 500))

    def audit(self) -> Check:
        parts = {"prior": self.prior, "rows": self.rows}
        return tapes_check(parts, system_entropy().key)


class Nameless(Entropy):
    """Another entropy's words, as if all its streams had one name."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Entropy) -> None:
        super().__init__(inner.key, secure=False)
        self._inner = inner

    def words(self, stream: str, start: int, count: int) -> Words:
        return self._inner.words("", start, count)


@twin
class PriorFromTheRowsStream(TapesTwin):
    """The prior's noise is drawn from the rows' stream."""

    def prior(self, entropy: Entropy) -> object:
        return private_prior(np.ones(4, dtype=np.int64), 1.0, entropy, words="labels")


@twin
class TruncatedStreamNames(TapesTwin):
    """Stream names are cut before the key is derived, until two of them are one."""

    def prior(self, entropy: Entropy) -> object:
        return super().prior(Nameless(entropy))

    def rows(self, entropy: Entropy) -> object:
        return super().rows(Nameless(entropy))


@twin
class RoundingFromTheRowsStream(TapesTwin):
    """A label between two grid points is rounded with the word that then randomizes it."""

    def rows(self, entropy: Entropy) -> object:
        return entropy.words("labels", 0, 500), super().rows(entropy)


@twin
class OneKeyForTwoEpochs(Twin):
    """Two epochs are released under one key, which is kept with the configuration."""

    caught_by = "two noises: keys"

    def audit(self) -> Check:
        key = system_entropy().key
        return rehearsed.keys_check({"epoch 1": key, "epoch 2": key})


@twin
class NoiseThatFollowsTheRows(Twin):
    """Histogram and rows share one uniform number, without sharing a word."""

    caught_by = "prior noise and rows"

    def audit(self) -> Check:
        words = system_entropy().words("labels", 0, 4096 * 3).reshape(4096, 3)
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        noise = np.rint(4 * np.log(uniform / (1 - uniform))).astype(np.int64)
        outputs = np.stack([RESPONSE(np.zeros(3, dtype=np.int64), row) for row in words])
        return correlation(noise, outputs).check("correlation", claim="", tried="4,096 releases.")


class AnswersTwin(Twin):
    """A hundred sessions, four questions each, that differ in one event."""

    caught_by = "reuse"

    def noise(self, right: Integers) -> Integers:
        """(n, q) the noise that it adds, from what it should add."""
        return right

    def key(self, drawn: bytes) -> bytes:
        """What it hands over as the key."""
        return drawn

    def audit(self) -> Check:
        bits = (seeded_entropy(5).words("labels", 0, 512) & np.uint64(1)).astype(np.int64)
        labels = {str(n): bits[n:].astype(np.float64) for n in range(4)}
        mechanism, gain = NoisyAnswers(Fraction(1), 4), PairedGain.of_ends(0.0, 1.0)
        keys = [system_entropy().key for _ in range(100)]

        def answer(key: bytes, name: str) -> float:
            points, entropy = np.zeros_like(labels[name]), Entropy(key)
            return mechanism.draw(gain, points, labels[name], question=name, entropy=entropy)

        values = np.array([[answer(key, name) for name in labels] for key in keys])
        asked, handed = [*labels.values()], [self.key(key) for key in keys]
        right = answered.Asked(mechanism, gain, 0.0, asked, [*labels], handed, values)
        units = np.array([about.size for about in asked]) * RESOLUTION / gain.bound
        sent = values + (self.noise(right.noise) - right.noise) / units
        checks = answered.answers_checks(replace(right, answers=sent))
        return next(check for check in checks if check.name.endswith(self.caught_by))


@twin
class OneNoiseForASession(AnswersTwin):
    """All answers of a session have the noise of its first."""

    def noise(self, right: Integers) -> Integers:
        return np.repeat(right[:, :1], 4, axis=1)


@twin
class AntitheticAnswers(AnswersTwin):
    """Every second answer has the noise of the one before it, turned round and widened."""

    caught_by = "correlation"

    def noise(self, right: Integers) -> Integers:
        right = right.copy()
        right[:, 1::2] = -right[:, ::2] * 3 // 2
        return right


@twin
class AnotherKeyThanSaid(AnswersTwin):
    """The key that is handed over draws no noise."""

    caught_by = "known answers"

    def key(self, drawn: bytes) -> bytes:
        return system_entropy().key
