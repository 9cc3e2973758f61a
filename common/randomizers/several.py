"""One budget for all labels of an event: what one message of one or several labels is made of.

- *split*: every label its own prior and channel, as if it were sent alone, with a share of ε that
  public facts decide;
- *joint*: one prior over the cells of small grids, and one channel designed for all labels;
- *auto*: one prior over cells is paid for, and from that alone it is decided whether one channel or
  one a label, on the same grids, is predicted to serve better. Where labels need more than 400
  cells together, it is split.

With one label all three are the two-step procedure of :mod:`common.randomizers.two_step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from typing import Any, Literal

import numpy as np

from common.arrays import Floats, Integers
from common.entropy import Entropy
from common.errors import ConfigError
from common.guarantees import PureDP, Unit
from common.randomizers.base import Randomizer, build_randomizer
from common.randomizers.cells import Cells, Codebook, Group, stream
from common.randomizers.design.allocation import allocate
from common.randomizers.design.joint import Targets, build_joint_design
from common.randomizers.design.optimal_design import POINTS
from common.randomizers.design.room import fitting, most_knots
from common.randomizers.grid import Grid
from common.randomizers.prior import PRIOR_STREAM, NoisyPrior, decoded_prior, private_prior
from common.randomizers.two_step import (
    PRIOR_SHARE,
    Recipe,
    round_down,
    split_budget,
)

Division = Literal["auto", "split", "joint"]
Count = Callable[[Sequence[Group]], list[Integers]]
"""How many events lie in each cell of each group: the only look at labels before the codes."""
Pay = Callable[[Sequence[tuple[Group, Fraction]]], list[NoisyPrior]]
"""Pays for histograms of groups of labels, each with the ε that it may spend."""
Channels = tuple[tuple[Group, Randomizer], ...]

MOST_CELLS = 400
MOST_LABELS = 8
_FEWEST_CELLS = 144
_FEWEST_POINTS = 8
_NEAR_ZERO = 50.0


@dataclass(frozen=True)
class LabelTerms:
    """What is public about one label before anything is read.

    Attributes
    ----------
    name
        For people.
    lower, upper
        Bounds.
    grid
        Its points, where they were chosen; None to choose them from bounds, events and ε.
    loss, weight
        How predictions of it are judged, and how much that counts beside other labels, > 0.
    values
        Whether the grid's points are all the labels there are.
    randomizer, options
        As in :func:`common.randomizers.build_randomizer`, of a label that is sent alone.
    """

    name: str
    lower: float
    upper: float
    grid: Grid | None = None
    loss: str = "squared"
    weight: float = 1.0
    values: bool = False
    randomizer: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def own_grid(self, rows: int, epsilon: float) -> Grid:
        """Its points if it is sent alone."""
        return self.grid or Grid.default(self.lower, self.upper, rows, epsilon)

    def coarse_grid(self, most: int) -> Grid:
        """At most so many points: each integer, or finer near 0 where amounts and counts lie."""
        span, whole = self.upper - self.lower, self.lower == int(self.lower)
        whole = whole and span == int(span)
        if whole and span < most:
            return Grid.from_step(self.lower, self.upper, 1.0)
        if self.lower != 0:
            return Grid.from_count(self.lower, self.upper, most)
        points = Grid.from_log(0.0, self.upper, most, self.upper / _NEAR_ZERO).points
        return Grid(np.unique(np.round(points)) if whole else points)

    def recipe(self, group: int, prior_share: float | Fraction) -> Recipe:
        """How it is randomized with a channel of its own."""
        return Recipe(
            self.randomizer, self.loss, self.options, group, prior_share, values=self.values
        )


@dataclass(frozen=True)
class Several:
    """What a message of one or several labels is made of, before its codes are drawn.

    Attributes
    ----------
    names
        Of the labels.
    priors
        Histograms over groups of labels; None for one that the codes will tell.
    channels
        Randomizers over groups of labels.
    records
        Records of one privacy unit.
    """

    names: tuple[str, ...]
    priors: tuple[tuple[Group, NoisyPrior | None], ...]
    channels: Channels
    records: int = 1

    @property
    def codebook(self) -> Codebook:
        """What codes mean."""
        groups, randomizers = zip(*self.channels, strict=True)
        return Codebook(self.names, groups, tuple(one.channel for one in randomizers))

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message, from its integers: neighbours differ in all labels of a unit."""
        unit = Unit.RECORD if self.records == 1 else Unit.USER
        parts = [prior.guarantee for _, prior in self.priors if prior and prior.decoded is None]
        parts += [
            PureDP.of_channel(one.channel, unit).scale(self.records) for _, one in self.channels
        ]
        return reduce(PureDP.compose, parts)

    def decode(self, counts: Sequence[Integers]) -> Several:
        """Fill in the histograms that codes tell.

        Parameters
        ----------
        counts
            (d,) for each channel: how many codes there are of each.
        """
        told = {
            group: decoded_prior(randomizer.channel, codes, self.records)
            for (group, randomizer), codes in zip(self.channels, counts, strict=True)
            if (group, None) in self.priors
        }
        return replace(self, priors=tuple((g, prior or told[g]) for g, prior in self.priors))


def build_several(
    count: Count,
    terms: Sequence[LabelTerms],
    rows: int,
    epsilon: float,
    entropy: Entropy,
    *,
    division: Division = "auto",
    group: int = 1,
    prior_share: float | Fraction = PRIOR_SHARE,
) -> Several:
    """Pay for priors and build the channels that spend the rest.

    Parameters
    ----------
    count
        Called at most once.
    terms
        One a label, at most 8.
    rows
        Number of events.
    epsilon
        What one privacy unit may spend on the whole message, 0 < epsilon <= 40.
    entropy
        Source of the priors' noise.
    division
        See the module.
    group
        Records of one privacy unit.
    prior_share
        The largest share of ε that priors may take.

    Raises
    ------
    ConfigError
        Where labels are too many, or need too many cells or codes, for what is asked.
    """

    def pay(asked: Sequence[tuple[Group, Fraction]]) -> list[NoisyPrior]:
        found = []
        for each, (some, spent) in zip(count([one for one, _ in asked]), asked, strict=True):
            words, shape = stream(PRIOR_STREAM, some.labels[0]), some.cells.shape
            found.append(private_prior(each, spent, entropy, group=group, words=words, shape=shape))
        return found

    return from_priors(
        pay, terms, rows, epsilon, division=division, group=group, prior_share=prior_share
    )


def from_priors(
    pay: Pay,
    terms: Sequence[LabelTerms],
    rows: int,
    epsilon: float,
    *,
    division: Division = "auto",
    group: int = 1,
    prior_share: float | Fraction = PRIOR_SHARE,
) -> Several:
    """Build the channels from priors that somebody pays for; as :func:`build_several`.

    Parameters
    ----------
    pay
        Given groups of labels, each with the ε that its histogram may spend, the histograms.
        Called at most once.
    """
    check_terms(terms)
    grids = cell_grids(terms, rows, epsilon)
    if division == "joint" and grids is None:
        sizes = [len(one.grid or one.coarse_grid(_FEWEST_POINTS)) for one in terms]
        raise ConfigError(
            f"no channel for {len(terms)} labels at once: {' × '.join(map(str, sizes))} ="
            f" {math.prod(sizes):,} cells must be at most {MOST_CELLS} cells; set division ="
            " 'split', or coarser grids"
        )
    if len(terms) == 1 or grids is None or division == "split":
        return _split(pay, terms, rows, epsilon, group, prior_share)
    everything = Group(tuple(range(len(terms))), Cells(grids))
    budget = split_budget(epsilon, len(everything.cells), rows, largest_share=prior_share)
    (prior,) = pay([(everything, budget.prior)])
    each = round_down(budget.labels / group)
    channels = divide(terms, everything.cells, prior.probabilities, each, rows, division)
    return Several(_names(terms), ((everything, prior),), channels, group)


def divide(
    terms: Sequence[LabelTerms],
    cells: Cells,
    prior: Floats,
    epsilon: float,
    rows: int,
    division: Division = "auto",
) -> Channels:
    """Choose between one channel for all labels and one a label, from a released prior alone.

    Parameters
    ----------
    cells
        The product of the labels' grids.
    prior
        (k,) released or public weights of the cells.
    epsilon
        Of all labels of one event, for the channels.
    division
        ``joint`` leaves no choice.
    """
    losses, weights = [one.loss for one in terms], [one.weight for one in terms]
    joint = joint_channel(terms, cells, prior, epsilon, rows)
    if division == "joint":
        return joint
    own = own_channels(terms, cells, prior, epsilon, rows)
    targets = Targets.of(cells, prior, losses, weights, rows)
    return min(joint, own, key=lambda channels: lost(targets, cells, channels))


def joint_channel(
    terms: Sequence[LabelTerms], cells: Cells, prior: Floats, epsilon: float, rows: int
) -> Channels:
    """Design one channel for all labels; parameters as in :func:`divide`."""
    losses, weights = [one.loss for one in terms], [one.weight for one in terms]
    everything = Group(tuple(range(len(terms))), cells)
    return ((everything, build_joint_design(cells, prior, epsilon, losses, weights, rows)),)


def own_channels(
    terms: Sequence[LabelTerms], cells: Cells, prior: Floats, epsilon: float, rows: int
) -> Channels:
    """Build a channel for each label, ε divided among them; parameters as in :func:`divide`."""
    marginals = [cells.marginal(prior, j) for j in range(len(terms))]
    losses, weights = [one.loss for one in terms], [one.weight for one in terms]
    shares = allocate(cells.grids, marginals, losses, weights, epsilon, rows)

    def build(points: int) -> list[Randomizer]:
        return [
            build_randomizer(
                "auto",
                labels=grid.points,
                prior=marginals[j],
                epsilon=round_down(Fraction(epsilon) * shares[j]),
                loss=losses[j],
                rows=rows,
                **({"points": points} if len(grid) > 2 else {}),
            )
            for j, grid in enumerate(cells.grids)
        ]

    # never refused: at most five grids of three points or more make at most 400 cells
    knots = most_knots([2 if len(grid) == 2 else None for grid in cells.grids])
    groups = [Group((j,), Cells((grid,))) for j, grid in enumerate(cells.grids)]
    return tuple(zip(groups, fitting(build, knots), strict=True))


def lost(targets: Targets, cells: Cells, channels: Channels) -> float:
    """What channels are predicted to lose: :meth:`Targets.lost` of the codes of all of them."""
    return targets.lost(at_knots(targets, cells, channels))


def at_knots(targets: Targets, cells: Cells, channels: Channels) -> Floats:
    """(k, d) probabilities of the combined codes in the cells that are knots."""
    knots = targets.rounding.argmax(axis=0)
    indices = cells.indices(knots)
    parts = [one.channel.probabilities[group.number(indices)] for group, one in channels]
    return reduce(lambda a, b: (a[:, :, None] * b[:, None, :]).reshape(knots.size, -1), parts)


def cell_grids(terms: Sequence[LabelTerms], rows: int, epsilon: float) -> tuple[Grid, ...] | None:
    """Choose small grids with at most 400 cells in all, from public facts.

    As with one label's grid, the number of cells is such that Theorem 7's √(k/n) spends about a
    sixteenth of ε on the prior, within 144 … 400. Grids that were chosen stay.

    Returns
    -------
    One a label; None where they would have fewer than 8 points.
    """
    chosen = math.prod(len(one.grid) for one in terms if one.grid)
    free = sorted(
        (j for j, one in enumerate(terms) if not one.grid),
        key=lambda j: len(terms[j].coarse_grid(MOST_CELLS)),
    )
    affordable = min(max(rows * (epsilon / 16) ** 2, _FEWEST_CELLS), MOST_CELLS)
    for room in (affordable, MOST_CELLS):
        left, grids = room / chosen, {j: one.grid for j, one in enumerate(terms) if one.grid}
        for place, j in enumerate(free):
            most = int(left ** (1 / (len(free) - place)) + 1e-9)
            if most < 2:
                break
            grids[j] = terms[j].coarse_grid(most)
            left /= len(grids[j])
            if len(grids[j]) < min(_FEWEST_POINTS, len(terms[j].coarse_grid(MOST_CELLS))):
                break
        else:
            if left >= 1:
                return tuple(grids[j] for j in range(len(terms)))
    return None


def check_terms(terms: Sequence[LabelTerms]) -> None:
    """Raise ``ConfigError`` for labels that no message can carry."""
    names = _names(terms)
    if not 1 <= len(names) <= MOST_LABELS:
        raise ConfigError(f"{len(names)} labels must be 1 … {MOST_LABELS}; send several messages")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"label {name!r:.60} is there twice; name each label once")
    for one in terms:
        if not 0 < one.weight < math.inf:
            raise ConfigError(f"label {one.name!r:.60}: weight={one.weight:g} must be above 0")
        if len(names) > 1 and (one.randomizer != "auto" or one.options):
            raise ConfigError(
                f"label {one.name!r:.60} is one of {len(names)}, whose randomizers are chosen"
                f" together; leave {one.randomizer!r:.60} and its options out"
            )


def _names(terms: Sequence[LabelTerms]) -> tuple[str, ...]:
    return tuple(one.name for one in terms)


def shares_of_epsilon(
    terms: Sequence[LabelTerms], rows: int, epsilon: float
) -> tuple[Fraction, ...]:
    """Divide ε among labels that are sent as if alone, from public facts."""
    if len(terms) == 1:
        return (Fraction(1),)
    grids = [one.grid or one.coarse_grid(POINTS) for one in terms]
    even = [np.full(len(grid), 1 / len(grid)) for grid in grids]
    losses, weights = [one.loss for one in terms], [one.weight for one in terms]
    return allocate(grids, even, losses, weights, epsilon, rows)


def _split(
    pay: Pay,
    terms: Sequence[LabelTerms],
    rows: int,
    epsilon: float,
    group: int,
    prior_share: float | Fraction,
) -> Several:
    """Send every label as if it were alone, with its share of ε."""
    shares = shares_of_epsilon(terms, rows, epsilon)
    budgets = [round_down(Fraction(epsilon) * share) for share in shares]
    grids = [one.own_grid(rows, budget) for one, budget in zip(terms, budgets, strict=True)]
    groups = [Group((j,), Cells((grid,))) for j, grid in enumerate(grids)]
    recipes = [one.recipe(group, prior_share) for one in terms]
    needy = [j for j, recipe in enumerate(recipes) if recipe.needs_prior(grids[j])]
    knots = most_knots([None if j in needy else len(grid) for j, grid in enumerate(grids)])
    splits = [one.split(grids[j], budgets[j], rows) for j, one in enumerate(recipes)]
    paid = pay([(groups[j], splits[j].prior) for j in needy]) if needy else []
    priors: dict[int, NoisyPrior | None] = dict.fromkeys(range(len(terms)))
    priors |= dict(zip(needy, paid, strict=True))

    def build(points: int) -> list[Randomizer]:
        fewer = {"points": points} if points < POINTS else {}
        built = []
        for recipe, grid, budget, split, prior in zip(
            recipes, grids, budgets, splits, priors.values(), strict=True
        ):
            if prior is None:
                built.append(recipe.respond(grid, budget, rows))
            else:
                chosen = replace(recipe, options=recipe.options or fewer)
                built.append(chosen.build(prior, grid, split, rows))
        return built

    channels = tuple(zip(groups, fitting(build, knots), strict=True))
    every = tuple(zip(groups, priors.values(), strict=True))
    return Several(_names(terms), every, channels, group)
