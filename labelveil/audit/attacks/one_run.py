"""The one-run audit: every record carries a secret bit of its own, and one output is enough.

Each of m labels is drawn uniformly among two and randomized. A guess that looks at a record's
output is right with probability at most e^ε / (e^ε + 1), so the number of right guesses bounds ε
from below. It sees what the outputs say about their own labels; it is blind to a histogram released
beside them. Where each record is a run of its own (a timed call, a whole release), the secret is
which of two neighbouring worlds the run is in, and the same bound holds.

An output is looked at in several ways (:class:`View`): by itself where there are few distinct ones,
by its quantile, and by the lowest set bit of its float, which gives floating-point noise away
(Mironov, *On Significance of the Least Significant Bits for Differential Privacy*, CCS 2012). Which
outputs to act on is learnt from *pilot* records. Only the others are counted, which had no
part in that, so that the bound needs no correction.

Source: Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelveil.audit.power import detectable_epsilon, one_run_bound
from labelveil.audit.verdict import GATE, SHOWN, Bounds
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import not_none
from labelveil.common.exact.noise import uniform_below

Outputs = NDArray[Any]

Mechanism = Callable[[Floats], Outputs]
"""(n,) labels to (n,) outputs, with fresh noise at each call."""

MAX_DISTINCT = 1 << 12
QUANTILES = 64
REPEATED = 8  # values are looked at one by one where they occur at least so often on average

_BITS = 130

PILOT = 0.1  # share of the records from which the guess is learnt


@dataclass(frozen=True)
class View:
    """One way of looking at outputs: ``encode`` turns n of them into (n,) codes below ``size``."""

    name: str
    encode: Callable[[Outputs], Integers]
    size: int


def views_of(sample: Outputs) -> list[View]:
    """Views that fit the outputs from which a guess will be learnt."""
    views = []
    distinct = np.unique(bit_patterns(sample))
    # a value that is seen once says nothing about the runs to come
    if distinct.size <= min(MAX_DISTINCT, max(sample.size // REPEATED, 2)):

        def index(outputs: Outputs) -> Integers:
            patterns = bit_patterns(outputs)
            at = np.searchsorted(distinct, patterns)
            known = distinct[np.minimum(at, distinct.size - 1)] == patterns
            return np.where(known, at, distinct.size)

        views.append(View("output", index, distinct.size + 1))
    if distinct.size > QUANTILES or not views:
        edges = np.unique(np.quantile(sample.astype(np.float64), np.linspace(0, 1, QUANTILES + 1)))
        inner = edges[1:-1]
        views.append(
            View("quantile", lambda x: np.searchsorted(inner, x, side="right"), inner.size + 1)
        )
    if np.issubdtype(sample.dtype, np.floating):
        views.append(View("lowest set bit", lowest_set_bit, _BITS))
    return views


def bit_patterns(values: Outputs) -> Outputs:
    """What is sent: floats as their 64 bits, by which -0.0 is not 0.0 and one NaN not another."""
    if not np.issubdtype(values.dtype, np.floating):
        return values
    return np.ascontiguousarray(values, dtype=np.float64).view(np.int64)


def lowest_set_bit(values: Outputs) -> Integers:
    """Exponent of the lowest set bit of each float, as a code: 100 + exponent, held in 0 … 129.

    A float that was computed as label + noise is a multiple of a power of two that depends on the
    label: an output whose lowest bit lies below it excludes the label.
    """
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = whole & -whole
    zeros = np.where(whole > 0, np.log2(np.maximum(lowest, 1)).astype(np.int64), 60)
    return np.clip(exponent.astype(np.int64) - 53 + zeros + 100, 0, _BITS - 1)


@dataclass(frozen=True)
class OneRun(Bounds):
    """The bounds that a number of right guesses gives."""

    correct: int
    guesses: int
    tests: int  # of which this is one: they share the levels

    @classmethod
    def from_guesses(cls, correct: int, guesses: int, tests: int = 1) -> OneRun:
        """Bound ε at the gate's level and at that of people, each divided among n ``tests``."""
        bound, shown = (one_run_bound(correct, guesses, alpha / tests) for alpha in (GATE, SHOWN))
        return cls(bound, shown, correct, guesses, tests)

    def excess(self, claimed: float) -> float:
        """How far above the claim a true ε is refuted by as many guesses with 95%."""
        return detectable_epsilon(claimed, self.guesses, GATE / self.tests) - claimed


@dataclass(frozen=True, eq=False)
class Guesser:
    """What to guess for each code of a view; -1 where it is better not to guess."""

    view: View
    guess: Integers
    expected: float  # bound at the gate that the pilot's counts promise
    known: float  # what these counts prove by themselves, at the level of people

    def __call__(self, outputs: Outputs) -> Integers:
        return self.guess[self.view.encode(outputs)]

    def __str__(self) -> str:
        return f"{self.view.name}, {np.count_nonzero(self.guess >= 0)} of {self.view.size} values"


def draw_secrets(records: int, values: int = 2) -> Integers:
    """(records,) uniform integers below ``values``, from the operating system's entropy."""
    return uniform_below(values, records, system_entropy().source("secrets"))


def uniform(count: int) -> Floats:
    """(count,) uniform numbers in [0, 1), from the same source."""
    return np.asarray(draw_secrets(count, 1 << 52) * 2.0**-52)


def learn_guesser(
    outputs: Outputs,
    secrets: Integers,
    counted: int,
    *,
    least: float = 0.1,
    views: Callable[[Outputs], list[View]] = views_of,
) -> Guesser:
    """Learn from pilot records which outputs to act on, for the largest bound of ``counted``.

    A share ``least`` of the pilot must be guessed, so that a few lucky records do not decide.
    """
    best: Guesser | None = None
    scale = counted / max(secrets.size, 1)
    for view in views(outputs):
        codes = view.encode(outputs)
        table = np.bincount(2 * codes + secrets, minlength=2 * view.size).reshape(view.size, 2)
        total, right = table.sum(axis=1), table.max(axis=1)
        # from the surest guess to the least, by the Krichevsky-Trofimov estimate
        order = np.argsort(-(right + 0.5) / (total + 1), kind="stable")
        order = order[total[order] > 0]
        hits, made = np.cumsum(right[order]), np.cumsum(total[order])
        for size in sorted({max(1, round(order.size * s)) for s in np.linspace(0, 1, 100)}):
            bound = one_run_bound(hits[size - 1] * scale, made[size - 1] * scale, GATE)
            if (best is None or bound > best.expected) and made[size - 1] >= least * secrets.size:
                guess = np.full(view.size, -1, dtype=np.int64)
                guess[order[:size]] = table[order[:size]].argmax(axis=1)
                known = one_run_bound(hits[size - 1], made[size - 1], SHOWN)
                best = Guesser(view, guess, bound, known)
    return not_none(best)


def one_run(outputs: Outputs, secrets: Integers, parts: int = 0) -> list[OneRun]:
    """Bound ε from one run's (m,) outputs and the uniform independent bits behind them.

    First of all records, then of n equal ``parts`` of them, which share a half of the level.
    """
    start = max(1, round(PILOT * secrets.size))
    guesser = learn_guesser(outputs[:start], secrets[:start], secrets.size - start)
    guesses, rest = guesser(outputs[start:]), secrets[start:]
    split = np.array_split(np.arange(rest.size), parts) if parts else []
    runs = [bound_guesses(guesses, rest, 1 + (parts > 0))]
    return runs + [bound_guesses(guesses[part], rest[part], 2 * parts) for part in split]


def rare_event(
    outputs: Outputs,
    secrets: Integers,
    views: Callable[[Outputs], list[View]] = views_of,
    tests: int = 1,
) -> tuple[OneRun, str]:
    """The same by an event that may be rare, and the event in words: one half of the records, every
    second one, chooses it. It is one of several ``tests``, which share the level.
    """
    pilot, counted = slice(0, None, 2), slice(1, None, 2)
    guesser = learn_guesser(
        outputs[pilot], secrets[pilot], secrets[counted].size, least=0.0, views=views
    )
    return bound_guesses(guesser(outputs[counted]), secrets[counted], tests), str(guesser)


def bound_guesses(guesses: Integers, secrets: Integers, tests: int = 1) -> OneRun:
    """Bound ε from guesses (-1: none) that were fixed without looking at these records' secrets."""
    made = guesses >= 0
    correct = int(np.count_nonzero(guesses[made] == secrets[made]))
    return OneRun.from_guesses(correct, int(np.count_nonzero(made)), tests)
