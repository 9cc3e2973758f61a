"""The one-run audit: every record carries a secret bit of its own, and one output is enough.

Each of m labels is drawn uniformly among two and randomized. A guess that looks at a record's
output is right with probability at most e^ε / (e^ε + 1), so the number of right guesses bounds ε
from below. It sees what the outputs say about their own labels; it is blind to a histogram released
beside them.

Source: Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.arrays import Integers
from common.entropy import system_entropy
from common.errors import present
from common.exact.noise import uniform_below
from labelveil.audit.attacks.two_worlds import Observations, View, views_of
from labelveil.audit.bounds import one_run_bound
from labelveil.audit.verdict import GATE, Bounds, at_both_levels

Secrets = Integers

PILOT = 0.1
"""Share of the records from which the guess is learnt; they are not counted."""

LEAST = 0.1
"""Share of the pilot's records that must be guessed, so that a few lucky ones do not decide."""


@dataclass(frozen=True)
class OneRun(Bounds):
    """The bounds that one run gave, by so many right guesses."""

    correct: int
    guesses: int


@dataclass(frozen=True)
class Guesser:
    """What to guess for each code of a view; -1 where it is better not to guess."""

    view: View
    guess: Secrets

    def __call__(self, observations: Observations) -> Secrets:
        return self.guess[self.view.encode(observations)]


def draw_secrets(records: int, values: int) -> Secrets:
    """(records,) uniform integers below ``values``, from the operating system's entropy."""
    return uniform_below(values, records, system_entropy().source("secrets"))


def learn_guesser(observations: Observations, secrets: Secrets, counted: int) -> Guesser:
    """Learn from pilot records which outputs to act on, for the largest bound of ``counted``."""
    best, best_bound = None, -1.0
    scale = counted / max(secrets.size, 1)
    for view in views_of(observations):
        codes = view.encode(observations)
        table = np.bincount(2 * codes + secrets, minlength=2 * view.size).reshape(view.size, 2)
        total, right = table.sum(axis=1), table.max(axis=1)
        order = np.argsort(-(right + 0.5) / (total + 1), kind="stable")
        order = order[total[order] > 0]
        hits, made = np.cumsum(right[order]), np.cumsum(total[order])
        for size in sorted({max(1, round(order.size * s)) for s in np.linspace(0, 1, 40)}):
            bound = one_run_bound(hits[size - 1] * scale, made[size - 1] * scale, GATE)
            if bound > best_bound and made[size - 1] >= LEAST * secrets.size:
                guess = np.full(view.size, -1, dtype=np.int64)
                guess[order[:size]] = table[order[:size]].argmax(axis=1)
                best, best_bound = Guesser(view, guess), bound
    return present(best)


def one_run(observations: Observations, secrets: Secrets) -> OneRun:
    """Bound ε from one run's (m,) outputs and the uniform independent bits behind them."""
    start = max(1, round(PILOT * secrets.size))
    guesser = learn_guesser(observations[:start], secrets[:start], secrets.size - start)
    return score(guesser(observations[start:]), secrets[start:])


def score(guesses: Secrets, secrets: Secrets) -> OneRun:
    """Bound ε from guesses (-1: none) that were fixed without looking at these records' secrets."""
    made = guesses >= 0
    correct = int(np.count_nonzero(guesses[made] == secrets[made]))
    count = int(np.count_nonzero(made))
    bounds = at_both_levels(lambda alpha: one_run_bound(correct, count, alpha))
    return OneRun(*bounds, correct, count)
