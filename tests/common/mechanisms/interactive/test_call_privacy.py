"""Measured privacy of held outcomes, one-shot selection, streams and the wrapper, by exact laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from common.entropy import seeded_entropy
from common.errors import BudgetError
from common.guarantees import ApproximateDP
from common.mechanisms.interactive import ChangeStream, HeldOutcome, Session, Terms, one_shot_top_k
from common.mechanisms.interactive.targets import boundary, not_prior, run_twice
from tests.common.mechanisms.interactive import laws
from tests.common.mechanisms.interactive.laws import Law

EPSILON = Fraction(4, 5)
GROW = math.exp(float(EPSILON))


def ternary() -> list[tuple[np.ndarray, np.ndarray]]:
    """Neighbouring laws of three outcomes with all losses ±ε, and one with a rare outcome."""
    return [pair for seed in (3, 4) for pair in laws.neighbours(float(EPSILON), 3, 4, seed)]


def measured(
    draws: int, play: Callable[[tuple[int, ...]], Any], stated: Callable[[float], ApproximateDP]
) -> str | None:
    """The violation by what ``play`` shows of independent secret outcomes, under neighbours."""
    chances = [law for pair in ternary() for law in pair]
    found: list[Law] = [{} for _ in chances]
    for secret in product(range(3), repeat=draws):
        shown = play(secret)
        for law, chance in zip(found, chances, strict=True):
            law[shown] = law.get(shown, 0.0) + math.prod(chance[list(secret)].tolist())
    return laws.violation(list(zip(found[::2], found[1::2], strict=True)), stated)


def test_held_outcomes_keep_what_is_stated() -> None:
    terms = Terms(not_prior(2 * EPSILON), 2)

    def play(secret: tuple[int, ...]) -> Any:
        session: Session[Any] = Session(None, terms, seeded_entropy(0))
        shown = []
        try:
            for value in secret:
                held = HeldOutcome(session, lambda d, r, v=value: v, EPSILON)
                for kinds in ({2}, {0}, {1}):
                    answer = held.ask(lambda v, kinds=kinds: v in kinds)
                    shown.append(answer)
                    if answer is not None:
                        break
        except BudgetError:
            pass
        return tuple(shown)

    assert measured(4, play, terms.guarantee) is None
    free = lambda delta: ApproximateDP.of(EPSILON, delta)  # noqa: E731
    assert measured(4, play, free) is not None


@pytest.mark.parametrize("gap", [None, 0])
def test_one_shot_selection_keeps_what_is_stated(gap: int | None) -> None:
    terms = Terms(not_prior(2 * EPSILON), 2)

    def play(secret: tuple[int, ...]) -> Any:
        session: Session[Any] = Session(None, terms, seeded_entropy(0))
        runs = [lambda d, r, v=value: (v, None) for value in secret]
        return tuple((c.index, c.score) for c in one_shot_top_k(session, runs, EPSILON, 2, gap))

    assert measured(4, play, terms.guarantee) is None
    assert measured(4, play, lambda delta: ApproximateDP.of(EPSILON / 2, delta)) is not None


def test_streams_keep_what_is_stated() -> None:
    terms = Terms(not_prior(EPSILON), 2)

    def play(secret: tuple[int, ...]) -> Any:
        stream = ChangeStream(Session(None, terms, seeded_entropy(0)), EPSILON, 0)
        shown = []
        try:
            for value in secret:
                stream.step(lambda d, r, v=value: v)
                shown.append(stream.last)
        except BudgetError:
            pass
        return tuple(shown)

    assert measured(6, play, terms.guarantee) is None


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("kind", ["boundary", "twice"])
def test_sessions_of_wrapped_calls_keep_what_is_stated(kind: str, hits: int) -> None:
    target = boundary(EPSILON) if kind == "boundary" else run_twice(EPSILON)
    wrap = laws.wrapped if kind == "boundary" else laws.twice
    hit = [0] if kind == "boundary" else [i for i in range(9) if i // 3 != i % 3]
    terms = Terms(target, hits)

    def law(chance: np.ndarray) -> Law:
        """Misses are distinguished, hits are too; the session ends with its last hit."""
        row = wrap(chance)
        found: Law = {}
        states: dict[tuple[int, ...], tuple[float, int]] = {(): (1.0, 0)}
        for _ in range(5 if kind == "boundary" else 3):
            after: dict[tuple[int, ...], tuple[float, int]] = {}
            for shown, (mass, seen) in states.items():
                for outcome, p in enumerate(row.tolist()):
                    more = seen + (outcome in hit)
                    (found if more == hits else after)[*shown, outcome] = (  # type: ignore[index]
                        mass * p if more == hits else (mass * p, more)
                    )
            states = after
        return {**found, **{shown: mass for shown, (mass, _) in states.items()}}

    pairs = [(law(one), law(other)) for one, other in ternary()]
    assert laws.violation(pairs, terms.guarantee) is None
    assert laws.violation(pairs, lambda d: ApproximateDP.of(EPSILON / 2, d)) is not None
