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

from common.arrays import Booleans, Floats, Integers
from common.entropy import Entropy
from common.mechanisms.thresholdout import RESOLUTION, Thresholdout
from common.program.audit.attacks.rows_apart import largest_sum
from common.program.audit.power import rarest_seen
from common.program.audit.verdict import GATE, Check, Power, verdict_of

NAME = "answer against answer"


@dataclass(frozen=True)
class Asked:
    """The same questions, put to many sessions that know the same labels.

    Attributes
    ----------
    mechanism
        That answers, with its public parameters; the estimate that comes with a question is 0.
    values
        For each of q questions, (m,) integers 0 … RESOLUTION: the records that it is about.
    names
        (q,) of the questions' noise.
    keys
        (n,) of the sessions.
    answers
        (n, q) as they were sent, in 0 … 1 but for their noise.
    from_labels
        (n, q) whether they come from the labels, and so have noise of their own.
    """

    mechanism: Thresholdout
    values: Sequence[Integers]
    names: Sequence[str]
    keys: Sequence[bytes]
    answers: Floats
    from_labels: Booleans

    @property
    def noise(self) -> Integers:
        """(n, q) what was added to the true sums."""
        units = np.array([RESOLUTION * value.size for value in self.values])
        sums: Integers = np.rint(self.answers * units).astype(np.int64)
        return sums - np.array([int(value.sum()) for value in self.values], dtype=np.int64)


def answers_checks(asked: Asked) -> list[Check]:
    """Exact reuse, correlation, and known answers."""
    return [_reuse_check(asked), _correlation_check(asked), _known_answers_check(asked)]


def _reuse_check(asked: Asked) -> Check:
    """No two answers have the same noise, whatever their questions and sessions.

    An answer hits the noise of one of n others with probability at most n times the largest of the
    discrete Laplace law, (1 - e^(-1/σ)) / (1 + e^(-1/σ)) = tanh(1/2σ).
    """
    noise = asked.noise[asked.from_labels]
    again = noise.size - np.unique(noise).size
    chance = min(noise.size * math.tanh(1 / (2 * float(asked.mechanism.scale))), 1.0)
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
    noise = np.where(asked.from_labels, asked.noise, 0)
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
        verdict=verdict_of(not found.found),
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
    for key, answers, from_labels in zip(asked.keys, asked.answers, asked.from_labels, strict=True):
        entropy, used = Entropy(key, secure=False), 0
        for values, name, sent, own in zip(
            asked.values, asked.names, answers, from_labels, strict=True
        ):
            known = asked.mechanism.answer(values, 0.0, used=used, question=name, entropy=entropy)
            wrong += known.from_holdout != own or not math.isclose(known.value, sent, abs_tol=1e-12)
            used += int(own)
    again = len(asked.names) - len(set(asked.names))
    return Check(
        name=f"{NAME}: known answers",
        question="Has every question noise of its own, as the session's key says?",
        verdict=verdict_of(wrong == 0 and again == 0),
        claim="The noise of an answer is the stream of the session's key that the question names.",
        tried=f"The keys of {len(asked.keys):,} sessions were handed over; threshold, comparison"
        " and answer were made again from them.",
        found=f"{wrong:,} of {asked.answers.size:,} answers differ; {again} of {len(asked.names)}"
        " questions share a name.",
        confidence=1.0,
    )
