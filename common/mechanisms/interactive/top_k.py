"""The best of many private candidates, with their scores, for the price of those that are shown.

Every candidate runs once. A bar is lowered from above all scores, and whatever it meets is shown:
each step is a question about held outcomes
(:mod:`common.mechanisms.interactive.conditional_release`), so a candidate that is shown costs one
hit of a 2ε-DP call and the others nothing (Lemma 2.6). Where the bar stops may depend on everything
that it has met, and on how long it met nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from common.entropy import WordSource
from common.errors import PrivacyError
from common.mechanisms.interactive.calls import Algorithm
from common.mechanisms.interactive.session import AnySession
from common.mechanisms.interactive.targets import not_prior

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Candidate(Generic[ValueT]):
    """A candidate that was shown: its place in the list of candidates, score and outcome."""

    index: int
    score: int
    value: ValueT


def one_shot_top_k(
    session: AnySession[Any],
    candidates: Sequence[Algorithm[tuple[int, ValueT]]],
    epsilon: Fraction,
    k: int,
    gap: int | None = None,
    stop: Callable[[Sequence[Candidate[ValueT]]], bool] | None = None,
    delta: Fraction = Fraction(0),
) -> list[Candidate[ValueT]]:
    """Run every candidate once and publish the best, best first.

    Parameters
    ----------
    session
        Its terms must admit calls of 2ε with ``q = 1/(e^{2ε} + 1)``. If it halts, fewer than k are
        published.
    candidates
        (ε, δ)-DP algorithms that return an integer score and an outcome. Every candidate runs, so
        all of them pay δ, shown or not.
    gap
        Stop where the next score is more than this below the last one shown. That the bar met
        nothing over such a distance is free.
    stop
        Called with what was shown so far; True stops there.

    Returns
    -------
    At most k candidates by descending score, ties by index.
    """
    if k < 1 or not candidates or (gap is not None and gap < 0):
        raise PrivacyError(f"k={k} must be at least 1, gap={gap} >= 0 and a candidate be named")

    def draw(data: Any, source: WordSource, room: int) -> list[Candidate[ValueT]]:
        runs = [Candidate(i, *run(data, source)) for i, run in enumerate(candidates)]
        runs.sort(key=lambda run: (-run.score, run.index))
        shown: list[Candidate[ValueT]] = []
        for run in runs[: min(k, room)]:
            if shown and gap is not None and shown[-1].score - run.score > gap:
                break
            shown.append(run)
            if stop is not None and stop(tuple(shown)):
                break
        return shown

    return list(session.reveal(not_prior(2 * epsilon, len(candidates) * delta), draw))
