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
from scipy.stats import binom, norm

from labelveil.audit import power
from labelveil.audit.attacks.one_run import (
    Mechanism,
    OneRun,
    Outputs,
    View,
    bound_guesses,
    draw_secrets,
    views_of,
)
from labelveil.audit.verdict import GATE, Bounds, Power
from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.noise import uniform_below

MOST_LABELS = 400  # labels that are piloted; of more, a random sample
PILOT_RUNS = 150_000  # pilot runs of each label at least, where ``MOST_PILOT`` allows

MOST_PILOT = 20_000_000

_PAIRS, _RARE = 2, 1  # suspects of either kind that are tested
_KEPT = 6  # suspects of either kind whose labels are run again
_RARE_SHARE = 0.02  # outputs that every label gives less often are rare ones


@dataclass(frozen=True, eq=False)
class Suspect:
    """An event, a set of codes of a view, and the two worlds that it may tell apart.

    The worlds are label indices, ``likely`` of the world where the event is likelier. A higher
    score is worse; scores are comparable within one kind of suspects.
    """

    view: View
    members: Booleans
    likely: Integers
    unlikely: Integers
    score: float


@dataclass(frozen=True, eq=False)
class EveryLabel(Bounds):
    """What the search found, all tests together."""

    tested: tuple[tuple[Suspect, OneRun], ...]
    """Every suspect that was tested, and what fresh runs of it showed, worst first."""
    piloted: Integers  # indices of the labels that were piloted
    pilot: int  # runs, all labels together
    power: tuple[Power, ...]  # the smallest faults that would have been found


class Counts:
    """How often each code of each view was seen under each label."""

    def __init__(self, views: list[View], labels: int) -> None:
        self.views = views
        self.runs = np.zeros(labels, dtype=np.int64)
        self.tables = [np.zeros((labels, view.size), dtype=np.int64) for view in views]

    def add(self, indices: Integers, outputs: Outputs) -> None:
        """Count outputs of the labels with the given indices, (n,) each."""
        self.runs += np.bincount(indices, minlength=self.runs.size)
        for view, table in zip(self.views, self.tables, strict=True):
            cells = indices * view.size + view.encode(outputs)
            table += np.bincount(cells, minlength=table.size).reshape(table.shape)


def every_label(randomize: Mechanism, labels: Floats, epsilon: float, runs: int) -> EveryLabel:
    """Search for the label, the pair and the output that say most, and bound ε with them.

    There are (k,) labels, k >= 2. The second look at the worst labels and the test of each pair
    take ``runs`` each, that of a rare output half as many more, the pilot :func:`pilot_runs`.
    The claim ``epsilon`` steers the search and has no part in the bound.
    """
    piloted = np.arange(labels.size)
    if labels.size > MOST_LABELS:  # a random sample, with the outermost two
        inner = _shuffled(piloted[1:-1])[: MOST_LABELS - 2]
        piloted = np.sort(np.append(inner, [0, labels.size - 1]))
    pilot = pilot_runs(runs, piloted.size)

    def draw(indices: Integers) -> Outputs:
        return randomize(labels[piloted][indices])

    order = _shuffled(np.resize(np.arange(piloted.size), pilot))
    outputs = draw(order)
    counts = Counts(views_of(outputs), piloted.size)
    counts.add(order, outputs)
    suspects = pair_suspects(counts, runs)[:_KEPT] + rare_suspects(counts, epsilon)[:_KEPT]
    sides = [side for suspect in suspects for side in (suspect.likely, suspect.unlikely)]
    worst = [side for side in sides if side.size == 1] if piloted.size > 2 else sides
    order = _shuffled(np.resize(np.unique(np.concatenate(worst)), runs))
    counts.add(order, draw(order))
    chosen = [(suspect, runs) for suspect in pair_suspects(counts, runs)[:_PAIRS]]
    chosen += [(suspect, 3 * runs // 2) for suspect in rare_suspects(counts, epsilon)[:_RARE]]
    tests = [(suspect, _test(draw, suspect, size, len(chosen))) for suspect, size in chosen]
    tested = tuple(sorted(tests, key=lambda test: -test[1].bound))
    powers = _powers(counts, runs, epsilon)
    shown = max(result.shown for _, result in tested)
    return EveryLabel(tested[0][1].bound, shown, tested, piloted, pilot, powers)


def pilot_runs(runs: int, labels: int) -> int:
    """Of the first look, all labels together: more labels lengthen it alone."""
    return max(runs, min(labels * (PILOT_RUNS * runs // 1_000_000), 20 * runs, MOST_PILOT))


def all_runs(runs: int, labels: int) -> int:
    """Of the whole search."""
    return pilot_runs(runs, labels) + (1 + _PAIRS) * runs + _RARE * (3 * runs // 2)


def pair_suspects(counts: Counts, runs: int) -> list[Suspect]:
    """Events by which one label is told from another, worst first; no two of one pair.

    They are scored for a test of n ``runs``.
    """
    suspects: dict[tuple[int, int], Suspect] = {}
    for view, table in zip(counts.views, counts.tables, strict=True):
        rates = (table + 0.5) / (counts.runs[:, None] + 1)
        for pair in _pairs(rates, runs):
            likely, unlikely = rates[list(pair)]
            # the set of codes, in the order of their ratios, with the largest expected bound
            order = np.argsort(-likely / unlikely, kind="stable")
            bounds = _bounds(np.cumsum(likely[order]), np.cumsum(unlikely[order]), runs)
            size = int(bounds.argmax()) + 1
            if pair not in suspects or bounds[size - 1] > suspects[pair].score:
                members = np.zeros(likely.size, dtype=np.bool_)
                members[order[:size]] = True
                worlds = np.array(pair[:1]), np.array(pair[1:])
                suspects[pair] = Suspect(view, members, *worlds, float(bounds[size - 1]))
    return sorted(suspects.values(), key=lambda suspect: -suspect.score)


def rare_suspects(counts: Counts, epsilon: float) -> list[Suspect]:
    """Rare outputs of one label against all others, and of all others against one, worst first."""
    suspects: list[Suspect] = []
    everyone = np.arange(counts.runs.size)
    rest = counts.runs.sum() - counts.runs
    for view, table in zip(counts.views, counts.tables, strict=True):
        others = table.sum(axis=0) - table
        rare = np.flatnonzero(np.max(table / counts.runs[:, None], axis=0) < _RARE_SHARE)
        total = (table + others)[:, rare]
        for here, weight in ((table, counts.runs / rest), (others, rest / counts.runs)):
            # of the times that an output came a binomial number was of this label: under ε-DP
            # at odds of at most e^ε times those of the runs
            odds = math.exp(epsilon) * weight[:, None]
            p = binom.sf(here[:, rare] - 1, total, odds / (1 + odds))
            scores = -np.log(np.maximum(p, 1e-300))
            for at in np.argsort(-scores, axis=None)[:_KEPT].tolist():
                label, column = divmod(at, rare.size)
                members = np.zeros(view.size, dtype=np.bool_)
                members[rare[column]] = True
                worlds = everyone[label : label + 1], np.delete(everyone, label)
                if here is others:
                    worlds = worlds[::-1]
                suspects.append(Suspect(view, members, *worlds, float(scores.flat[at])))
    return sorted(suspects, key=lambda suspect: -suspect.score)


def _pairs(rates: Floats, runs: int) -> list[tuple[int, int]]:
    """Pairs that a single output tells apart best, the label that gives it more often first."""
    least_likely = rates.argmin(axis=0)
    columns = np.arange(rates.shape[1])
    scores = _bounds(rates, rates[least_likely, columns][None, :], runs)
    order = np.argsort(-scores, axis=None)[: 16 * _KEPT]
    rows, cells = np.unravel_index(order, scores.shape)
    pairs = zip(rows.tolist(), least_likely[cells].tolist(), strict=True)
    last = rates.shape[0] - 1
    return list(dict.fromkeys([*(p for p in pairs if p[0] != p[1]), (0, last), (last, 0)]))


def _bounds(likely: Floats, unlikely: Floats, runs: int) -> Floats:
    """Entry by entry, the bound that an event of these probabilities gives for expected counts."""
    right, wrong = runs / 2 * likely, runs / 2 * np.broadcast_to(unlikely, likely.shape)
    share = betaincinv(right, wrong + 1, GATE)
    return np.asarray(np.log(np.maximum(share, 1e-12)) - np.log1p(-np.minimum(share, 1 - 1e-12)))


def _test(draw: Callable[[Integers], Outputs], suspect: Suspect, runs: int, tests: int) -> OneRun:
    """Guess each run's world by whether the event occurred; no event, no guess.

    It is one of several tests, which share the level.
    """
    secret, source = draw_secrets(runs), system_entropy().source("worlds")
    unlikely, likely = (
        side[uniform_below(side.size, runs, source)] for side in (suspect.unlikely, suspect.likely)
    )
    outputs = draw(np.where(secret == 1, likely, unlikely))
    guesses = np.where(suspect.members[suspect.view.encode(outputs)], 1, -1)
    return bound_guesses(guesses, secret, tests)


def _powers(counts: Counts, runs: int, epsilon: float) -> tuple[Power, ...]:
    """What would have been found, each half of the 5% for not choosing and for not refuting."""
    level, missed = GATE / (_PAIRS + _RARE), (1 - power.FOUND) / 2
    labels = counts.runs.size
    # only labels that the first look suspects are looked at again
    seen = float(counts.runs.min())
    cells = sum(table.size for table in counts.tables)
    commonest = float((counts.tables[0] / counts.runs[:, None]).max(axis=1).min())
    # a suspect is itself underestimated with a half of ``missed``, any other overestimated with one
    margin = float(norm.isf(missed / 2) + norm.isf(missed / (2 * cells)))

    def chosen(probability: float) -> float:
        """Excess of ε that stands out of all other candidates."""
        rarer = probability * math.exp(-epsilon)
        spread = math.sqrt((1 - probability) / probability + (1 - rarer) / rarer)
        return margin * spread / math.sqrt(seen)

    refuted = power.smallest_excess(commonest, runs, epsilon, level, power.FOUND + missed)
    odds = math.exp(epsilon) / (labels - 1)
    needed = max(math.ceil(math.log(missed / (2 * cells)) / math.log(odds / (1 + odds))), 1)
    alone = max(
        power.rarest_seen(seen, needed, power.FOUND + missed),
        power.rarest_event(math.inf, 3 * runs // 2, epsilon, level, power.FOUND + missed),
    )
    likelier = max(
        power.least(lambda probability: chosen(probability) <= 1, 1e-9, 1.0),
        power.rarest_event(1.0, runs, epsilon, level, power.FOUND + missed),
    )
    return (
        Power(
            "excess of ε at any one label, in its likeliest output", max(chosen(commonest), refuted)
        ),
        Power("probability of an output that one label alone can give", alone),
        Power("probability of an event e times likelier than ε allows", likelier),
    )


def _shuffled(values: Integers) -> Integers:
    return values[np.argsort(system_entropy().words("order", 0, values.size))]
