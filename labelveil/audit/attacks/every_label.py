"""Every label against every other: pilot all of them, then spend the runs where it looks worst.

1. *Pilot.* Each label is randomized equally often, in random order; each way of looking at an
   output (:func:`views_of`) gives a table of counts, one row a label.
2. *Suspects.* Two kinds are ranked: an event by which two labels are told apart (scored by the
   bound that the final runs would give if the counts were the truth), and a rare output of one
   label against all others together (scored by its p-value). Labels of the best suspects are run
   again, and all suspects are ranked once more.
3. *Test.* Each of the few that are left gets fresh runs. Every run's world is a secret bit, the
   event is a guess, and the share of right guesses bounds ε; the level is divided by their number.

No run of the first two steps is counted in the third, so that the bound needs no other correction.
Several labels may stand for one world: if each label is ε-close to each other one, so are mixtures.

Source: Karnin, Koren, Somekh, *Almost Optimal Exploration in Multi-Armed Bandits*, ICML 2013, for
halving; Steinke, Nasr, Jagielski, NeurIPS 2023, for the test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from common.arrays import Booleans, Floats, Integers
from common.entropy import system_entropy
from common.exact.noise import uniform_below
from labelveil.audit.attacks.two_worlds import Observations, View, views_of
from labelveil.audit.bounds import one_run_bound
from labelveil.audit.power import (
    FOUND,
    least,
    rarest_event,
    rarest_seen,
    right_guess_p_values,
    selection_margin,
    smallest_excess,
)
from labelveil.audit.verdict import GATE, SHOWN, Power

Randomize = Callable[[Floats], Observations]
"""(n,) labels to (n,) outputs, with fresh noise."""

MOST_LABELS = 400
"""Labels that are piloted; of more, a random sample."""

PILOT_RUNS = 150_000
"""Pilot runs of each label at least, where ``MOST_PILOT`` allows."""

MOST_PILOT = 20_000_000

_PAIRS, _RARE = 2, 1
"""Suspects of either kind that are tested."""

_KEPT_PAIRS, _KEPT_RARE = 6, 6
_RARE_SHARE = 0.02
"""Outputs that every label gives less often are rare ones."""


@dataclass(frozen=True)
class Effort:
    """How many runs each step gets, all labels together.

    Attributes
    ----------
    pilot, again
        Of the pilot, and of the second look at the worst labels.
    pair, rare
        Of the test of each suspect of either kind.
    """

    pilot: int
    again: int
    pair: int
    rare: int

    @classmethod
    def of(cls, runs: int, labels: int) -> Effort:
        """Divide about 5 · ``runs``; more labels lengthen the pilot alone."""
        pilot = max(runs, min(labels * (PILOT_RUNS * runs // 1_000_000), 20 * runs, MOST_PILOT))
        return cls(pilot, runs, runs, 3 * runs // 2)

    @property
    def total(self) -> int:
        return self.pilot + self.again + _PAIRS * self.pair + _RARE * self.rare


@dataclass(frozen=True)
class Suspect:
    """An event and the two worlds that it may tell apart.

    Attributes
    ----------
    view, members
        The event: a set of codes of a view.
    likely, unlikely
        Label indices that stand for the world where it is likelier, and for the other.
    score
        Higher is worse; comparable within one kind.
    """

    view: View
    members: Booleans
    likely: Integers
    unlikely: Integers
    score: float


@dataclass(frozen=True)
class Tested:
    """A suspect, and what fresh runs of it showed: ``right`` of ``guesses`` guesses."""

    suspect: Suspect
    right: int
    guesses: int
    bound: float
    shown: float


@dataclass(frozen=True)
class EveryLabel:
    """What the search found.

    Attributes
    ----------
    bound, shown
        Lower bounds of ε at confidence 1 - ``GATE`` and at 95%, all tests together.
    tested
        Every suspect that was tested, worst first.
    looked_at
        Indices of the labels that were piloted.
    effort
        Runs that were spent.
    power
        The smallest faults that would have been found.
    """

    bound: float
    shown: float
    tested: tuple[Tested, ...]
    looked_at: Integers
    effort: Effort
    power: tuple[Power, ...]


class Counts:
    """How often each code of each view was seen under each label."""

    def __init__(self, views: list[View], labels: int) -> None:
        self.views = views
        self.runs = np.zeros(labels, dtype=np.int64)
        self.tables = [np.zeros((labels, view.size), dtype=np.int64) for view in views]

    def add(self, indices: Integers, observations: Observations) -> None:
        """Count outputs of the labels with the given indices, (n,) each."""
        self.runs += np.bincount(indices, minlength=self.runs.size)
        for view, table in zip(self.views, self.tables, strict=True):
            cells = indices * view.size + view.encode(observations)
            table += np.bincount(cells, minlength=table.size).reshape(table.shape)


def every_label(
    randomize: Randomize, labels: Floats, epsilon: float, runs: int, alpha: float = GATE
) -> EveryLabel:
    """Search for the label, the pair and the output that say most, and bound ε with them.

    Parameters
    ----------
    randomize
        The mechanism.
    labels
        (k,) labels, k >= 2.
    epsilon
        The claim; it steers the search and has no part in the bound.
    runs
        Effort; see :class:`Effort`.
    alpha
        Of ``bound``.
    """
    looked_at = _sample_of(labels.size)
    known = labels[looked_at]
    effort = Effort.of(runs, known.size)

    def draw(indices: Integers) -> Observations:
        return randomize(known[indices])

    order = _shuffled(np.resize(np.arange(known.size), effort.pilot))
    first = draw(order)
    counts = Counts(views_of(first), known.size)
    counts.add(order, first)
    worst = _worst_labels(counts, effort, epsilon, alpha)
    order = _shuffled(np.resize(worst, effort.again))
    counts.add(order, draw(order))
    chosen = [(s, effort.pair) for s in pair_suspects(counts, effort.pair, alpha)[:_PAIRS]]
    chosen += [(s, effort.rare) for s in rare_suspects(counts, epsilon)[:_RARE]]
    level = alpha / len(chosen), SHOWN / len(chosen)
    tested = sorted((_test(draw, *one, *level) for one in chosen), key=lambda t: -t.bound)
    power = _power(counts, worst, effort, epsilon, alpha)
    shown = max(one.shown for one in tested)
    return EveryLabel(tested[0].bound, shown, tuple(tested), looked_at, effort, power)


def pair_suspects(counts: Counts, runs: int, alpha: float = GATE) -> list[Suspect]:
    """Events by which one label is told from another, worst first; no two of one pair.

    Parameters
    ----------
    runs
        Of the test that they are scored for.
    """
    found: dict[tuple[int, int], Suspect] = {}
    for view, table in zip(counts.views, counts.tables, strict=True):
        rates = (table + 0.5) / (counts.runs[:, None] + 1)
        for one, other in _pairs(rates, runs, alpha):
            members, score = _best_event(rates[one], rates[other], runs, alpha)
            if (one, other) not in found or score > found[one, other].score:
                worlds = np.array([one]), np.array([other])
                found[one, other] = Suspect(view, members, *worlds, score)
    return sorted(found.values(), key=lambda suspect: -suspect.score)


def rare_suspects(counts: Counts, epsilon: float) -> list[Suspect]:
    """Rare outputs of one label against all others, and of all others against one, worst first."""
    found: list[Suspect] = []
    everyone = np.arange(counts.runs.size)
    rest = counts.runs.sum() - counts.runs
    for view, table in zip(counts.views, counts.tables, strict=True):
        others = table.sum(axis=0) - table
        rare = np.flatnonzero(np.max(table / counts.runs[:, None], axis=0) < _RARE_SHARE)
        if not rare.size:
            continue
        for here, there, weight in (
            (table, others, counts.runs / rest),
            (others, table, rest / counts.runs),
        ):
            odds = math.exp(epsilon) * weight[:, None]
            right, total = here[:, rare].astype(float), (here + there)[:, rare].astype(float)
            scores = -np.log(
                np.maximum(right_guess_p_values(right, total, odds / (1 + odds)), 1e-300)
            )
            for at in np.argsort(-scores, axis=None)[:_KEPT_RARE].tolist():
                label, column = divmod(at, rare.size)
                members = np.zeros(view.size, dtype=np.bool_)
                members[rare[column]] = True
                worlds = (everyone[label : label + 1], np.delete(everyone, label))
                if here is others:
                    worlds = worlds[::-1]
                found.append(Suspect(view, members, *worlds, float(scores.flat[at])))
    return sorted(found, key=lambda suspect: -suspect.score)


def _pairs(rates: Floats, runs: int, alpha: float) -> list[tuple[int, int]]:
    """Pairs that a single output tells apart best, the label that gives it more often first."""
    least = rates.argmin(axis=0)
    columns = np.arange(rates.shape[1])
    scores = _bounds(rates, rates[least, columns][None, :], runs, alpha)
    order = np.argsort(-scores, axis=None)[: 16 * _KEPT_PAIRS]
    rows, cells = np.unravel_index(order, scores.shape)
    pairs = zip(rows.tolist(), least[cells].tolist(), strict=True)
    ends = [(0, rates.shape[0] - 1), (rates.shape[0] - 1, 0)]
    return list(dict.fromkeys([pair for pair in pairs if pair[0] != pair[1]] + ends))


def _best_event(
    likely: Floats, unlikely: Floats, runs: int, alpha: float
) -> tuple[Booleans, float]:
    """The set of codes, taken in the order of their ratios, with the largest expected bound."""
    order = np.argsort(-likely / unlikely, kind="stable")
    bounds = _bounds(np.cumsum(likely[order]), np.cumsum(unlikely[order]), runs, alpha)
    size = int(bounds.argmax()) + 1
    members = np.zeros(likely.size, dtype=np.bool_)
    members[order[:size]] = True
    return members, float(bounds[size - 1])


def _bounds(likely: Floats, unlikely: Floats, runs: int, alpha: float) -> Floats:
    """Entry by entry, the bound that an event of these probabilities gives for expected counts."""
    right, wrong = runs / 2 * likely, runs / 2 * np.broadcast_to(unlikely, likely.shape)
    share = betaincinv(right, wrong + 1, alpha)
    return np.asarray(np.log(np.maximum(share, 1e-12)) - np.log1p(-np.minimum(share, 1 - 1e-12)))


def _worst_labels(counts: Counts, effort: Effort, epsilon: float, alpha: float) -> Integers:
    """Labels of the worst suspects, which are looked at again."""
    pairs = pair_suspects(counts, effort.pair, alpha)[:_KEPT_PAIRS]
    rare = rare_suspects(counts, epsilon)[:_KEPT_RARE]
    sides = [side for s in (*pairs, *rare) for side in (s.likely, s.unlikely)]
    single = [side for side in sides if side.size == 1] if counts.runs.size > 2 else sides
    return np.unique(np.concatenate(single))


def _test(
    draw: Callable[[Integers], Observations],
    suspect: Suspect,
    runs: int,
    alpha: float,
    shown: float,
) -> Tested:
    """Guess each run's world by whether the event occurred; no event, no guess."""
    source = system_entropy().source("worlds")
    secret = uniform_below(2, runs, source) == 1
    standing = [
        side[uniform_below(side.size, runs, source)] for side in (suspect.unlikely, suspect.likely)
    ]
    outputs = draw(np.where(secret, standing[1], standing[0]))
    guessed = suspect.members[suspect.view.encode(outputs)]
    right, guesses = int(np.count_nonzero(guessed & secret)), int(np.count_nonzero(guessed))
    bounds = [one_run_bound(right, guesses, level) if guesses else 0.0 for level in (alpha, shown)]
    return Tested(suspect, right, guesses, *bounds)


def _power(
    counts: Counts, worst: Integers, effort: Effort, epsilon: float, alpha: float
) -> tuple[Power, ...]:
    """What would have been found, each half of the 5% for not choosing and for not refuting."""
    level, missed = alpha / (_PAIRS + _RARE), (1 - FOUND) / 2
    labels = counts.runs.size
    # only labels that the first look suspects are looked at again
    seen = float(effort.pilot / labels + (effort.again / labels if worst.size == labels else 0))
    cells = sum(table.size for table in counts.tables)
    commonest = float((counts.tables[0] / counts.runs[:, None]).max(axis=1).min())

    def chosen(probability: float) -> float:
        """Excess of ε that stands out of all other candidates."""
        rarer = probability * math.exp(-epsilon)
        spread = math.sqrt((1 - probability) / probability + (1 - rarer) / rarer)
        return selection_margin(cells, missed) * spread / math.sqrt(seen)

    refuted = smallest_excess(commonest, effort.pair, epsilon, level, FOUND + missed)
    odds = math.exp(epsilon) / (labels - 1)
    needed = max(math.ceil(math.log(missed / (2 * cells)) / math.log(odds / (1 + odds))), 1)
    alone = max(
        rarest_seen(seen, needed, FOUND + missed),
        rarest_event(math.inf, effort.rare, epsilon, level, FOUND + missed),
    )
    likelier = max(
        least(lambda probability: chosen(probability) <= 1, 1e-9, 1.0),
        rarest_event(1.0, effort.pair, epsilon, level, FOUND + missed),
    )
    excess = max(chosen(commonest), refuted)
    return (
        Power("excess of ε at any one label, in its likeliest output", excess),
        Power("probability of an output that one label alone can give", alone),
        Power("probability of an event e times likelier than ε allows", likelier),
    )


def _sample_of(labels: int) -> Integers:
    """All labels, or a random sample of ``MOST_LABELS`` with the outermost two."""
    if labels <= MOST_LABELS:
        return np.arange(labels)
    inner = _shuffled(np.arange(1, labels - 1))[: MOST_LABELS - 2]
    return np.sort(np.concatenate([[0, labels - 1], inner]))


def _shuffled(values: Integers) -> Integers:
    return values[np.argsort(system_entropy().words("order", 0, values.size))]
