"""Fetched against answer: is the noise of one answer of a session that of another?

If it is, the difference of two answers about nearly the same events is the label of the event
between them, without any noise. An auditor who knows all labels knows the noise of every answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from labelveil.audit.attacks.rows_apart import largest_sum
from labelveil.audit.power import rarest_seen
from labelveil.audit.verdict import GATE, Check, Power, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.mechanisms.paired_gain import RESOLUTION, NoisyAnswers, PairedGain

NAME = "answer against answer"


@dataclass(frozen=True)
class Asked:
    """The same questions, put to many sessions that know the same labels.

    Attributes
    ----------
    mechanism, gain
        What answers, and what answers are the mean of, with their public parameters.
    """

    mechanism: NoisyAnswers
    gain: PairedGain
    prediction: float  # the same for all events asked about
    labels: Sequence[Floats]  # for each of q questions, (m,) labels of the records that it is about
    names: Sequence[str]  # (q,) of the questions' noise
    keys: Sequence[bytes]  # (n,) of the sessions
    answers: Floats  # (n, q) as they were sent, in units of the loss

    def predictions(self, labels: Floats) -> Floats:
        """(m,) predictions of a question."""
        return np.full_like(labels, self.prediction)

    @property
    def scale(self) -> float:
        """σ of the noise on sums, in their units."""
        return float(self.mechanism.scale(self.gain.span(np.array([self.prediction]))))

    @property
    def noise(self) -> Integers:
        """(n, q) what was added to the true sums."""
        units = np.array([RESOLUTION * one.size for one in self.labels]) / self.gain.bound
        sums: Integers = np.rint(self.answers * units).astype(np.int64)
        true = [self.gain.differences(self.predictions(one), one).sum() for one in self.labels]
        return sums - np.array(true, dtype=np.int64)


def answers_checks(asked: Asked) -> list[Check]:
    """Exact reuse, correlation, and known answers."""
    return [_reuse_check(asked), _correlation_check(asked), _known_answers_check(asked)]


def _reuse_check(asked: Asked) -> Check:
    """No two answers have the same noise, whatever their questions and sessions.

    An answer hits the noise of one of n others with probability at most n times the largest of the
    discrete Laplace law, (1 - e^(-1/σ)) / (1 + e^(-1/σ)) = tanh(1/2σ).
    """
    noise = asked.noise
    again = noise.size - np.unique(noise).size
    chance = min(noise.size * math.tanh(1 / (2 * asked.scale)), 1.0)
    least = int(binom.isf(GATE, noise.size, chance)) + 1
    return Check(
        name=f"{NAME}: reuse",
        question="Does any answer repeat the noise of another?",
        verdict=verdict_of(again < least),
        claim="Every answer of an evaluation has noise of its own.",
        tried=f"{len(asked.names)} questions that differ in one event each were put to"
        f" {len(asked.keys):,} sessions about known labels, and the noise of {noise.size:,} answers"
        " was compared.",
        found=f"{again:,} repeat another's; {least:,} have a probability below {GATE:g}.",
        confidence=1 - GATE,
        power=(Power("share of answers that repeat another's", rarest_seen(noise.size, least)),),
    )


def _correlation_check(asked: Asked) -> Check:
    """The noise of one answer says nothing about that of another in the same session."""
    noise = asked.noise
    sign = np.sign(noise).astype(np.float64)
    large = np.where(np.abs(noise) > np.median(np.abs(noise)), 1.0, -1.0)
    found = largest_sum(
        sign,
        {"sign": sign, "size": large},
        lambda what, one, other: f"the sign of answer {one + 1} and the {what} of {other + 1}",
        skipped=lambda what, one, other: np.asarray(one == other),
    )
    return Check(
        name=f"{NAME}: correlation",
        question="Does the noise of one answer say anything about another's?",
        verdict=verdict_of(not found.exceeds),
        claim="The noises of two answers of a session are independent.",
        tried=f"Sign and size of the noise were compared over {len(asked.keys):,} sessions:"
        f" {found.sums:,} pairs.",
        found=f"The largest sum is {found.ratio:.2f} of what a right build passes once in a million"
        f" audits ({found.where}).",
        confidence=1 - GATE,
        # a sign is ±1, where the least share counts on terms of half that size
        power=(Power("share of sessions in which signs are shared", found.least_share / 2),),
    )


def _known_answers_check(asked: Asked) -> Check:
    """Answers are what a session's key says that they must be."""
    wrong = 0
    for key, answers in zip(asked.keys, asked.answers, strict=True):
        entropy = Entropy(key, secure=False)
        for labels, name, sent in zip(asked.labels, asked.names, answers, strict=True):
            points = asked.predictions(labels)
            known = asked.mechanism.draw(asked.gain, points, labels, question=name, entropy=entropy)
            wrong += not math.isclose(known, sent, rel_tol=1e-12)
    again = len(asked.names) - len(set(asked.names))
    return Check(
        name=f"{NAME}: known answers",
        question="Has every question noise of its own, as the session's key says?",
        verdict=verdict_of(wrong == 0 and again == 0),
        claim="The noise of an answer is the stream of the session's key that the question names.",
        tried=f"The keys of {len(asked.keys):,} sessions were handed over, and all answers made"
        " again from them.",
        found=f"{wrong:,} of {asked.answers.size:,} answers differ; {again} of {len(asked.names)}"
        " questions share a name.",
        confidence=1.0,
    )
