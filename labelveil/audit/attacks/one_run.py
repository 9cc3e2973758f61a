"""The one-run audit: every record carries a secret of its own, and one output is enough.

Each of m labels is drawn uniformly among k values and randomized. A guess that looks at a record's
output is right with probability at most e^ε / (e^ε + k - 1), so the number of right guesses bounds
ε from below. It sees what the outputs say about their own labels; it is blind to a histogram
released beside them.

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
from labelveil.audit.verdict import GATE, SHOWN

Secrets = Integers

PILOT = 0.1
"""Share of the records from which the guess is learnt; they are not counted."""

LEAST = 0.1
"""Share of the pilot's records that must be guessed, so that a few lucky ones do not decide."""


@dataclass(frozen=True)
class OneRun:
    """The bound that one run gave.

    Attributes
    ----------
    bound, shown
        Lower bounds of ε at confidence 1 - ``GATE`` and at 95%.
    correct, guesses, records
        Right guesses, guesses made, and records with a secret (pilot included).
    values
        Number k of values of a secret.
    """

    bound: float
    shown: float
    correct: int
    guesses: int
    records: int
    values: int


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


def learn_guesser(
    observations: Observations, secrets: Secrets, values: int, guessed: int, alpha: float = GATE
) -> Guesser:
    """Learn from pilot records which outputs to act on, for the largest bound.

    Parameters
    ----------
    observations, secrets
        Of the pilot records.
    values
        Number k of values of a secret.
    guessed
        Number of records that will be counted.
    alpha
        Of the bound that is maximised.
    """
    best, best_bound = None, -1.0
    scale = guessed / max(secrets.size, 1)
    for view in views_of(observations):
        codes = view.encode(observations)
        table = np.bincount(codes * values + secrets, minlength=view.size * values)
        table = table.reshape(view.size, values)
        total, right = table.sum(axis=1), table.max(axis=1)
        order = np.argsort(-(right + 0.5) / (total + values / 2), kind="stable")
        order = order[total[order] > 0]
        hits, made = np.cumsum(right[order]), np.cumsum(total[order])
        for count in sorted({max(1, round(order.size * s)) for s in np.linspace(0, 1, 40)}):
            bound = one_run_bound(
                float(hits[count - 1] * scale), float(made[count - 1] * scale), alpha, values
            )
            if bound > best_bound and made[count - 1] >= LEAST * secrets.size:
                guess = np.full(view.size, -1, dtype=np.int64)
                guess[order[:count]] = table[order[:count]].argmax(axis=1)
                best, best_bound = Guesser(view, guess), bound
    return present(best)


def one_run(
    observations: Observations,
    secrets: Secrets,
    values: int = 2,
    *,
    pilot: float = PILOT,
    alpha: float = GATE,
) -> OneRun:
    """Bound ε from one run's outputs and the secrets behind them.

    Parameters
    ----------
    observations
        (m,) outputs, one a record.
    secrets
        (m,) uniform independent integers below ``values``.
    values
        Number k of values of a secret.
    pilot
        Share of the records that the guess is learnt from.
    alpha
        Of ``bound``.
    """
    start = max(1, round(pilot * secrets.size))
    guesser = learn_guesser(
        observations[:start], secrets[:start], values, secrets.size - start, alpha
    )
    found = score(guesser(observations[start:]), secrets[start:], values, alpha)
    return OneRun(found.bound, found.shown, found.correct, found.guesses, int(secrets.size), values)


def score(guesses: Secrets, secrets: Secrets, values: int = 2, alpha: float = GATE) -> OneRun:
    """Bound ε from guesses (-1: none) that were fixed without looking at these records' secrets."""
    made = guesses >= 0
    correct = int(np.count_nonzero(guesses[made] == secrets[made]))
    count = int(np.count_nonzero(made))
    bounds = [
        one_run_bound(correct, count, level, values) if count else 0.0 for level in (alpha, SHOWN)
    ]
    return OneRun(bounds[0], bounds[1], correct, count, int(secrets.size), values)
