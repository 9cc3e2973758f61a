"""Labels at hand, randomized as a release would: the labels party's part in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Floats, Integers
from common.entropy import Entropy, system_entropy
from common.errors import ConfigError
from common.exact.channel import Codes, FiniteChannel
from common.guarantees import PureDP
from common.randomizers.base import ROUNDING_STREAM
from common.randomizers.cells import Group
from common.randomizers.grid import Grid
from common.randomizers.several import Division, LabelTerms, Several, build_several
from common.randomizers.two_step import PRIOR_SHARE, Recipe, TwoStep, one_step, two_step


@dataclass(frozen=True)
class PrivateLabels:
    """Randomized labels, and all that is public about them.

    Attributes
    ----------
    codes
        (n,) uint16 index of what was sent for each label.
    made
        Prior and randomizer.
    """

    codes: Codes
    made: TwoStep

    @property
    def channel(self) -> FiniteChannel:
        """From the grid's points to what is sent."""
        return self.made.randomizer.channel

    @property
    def prior(self) -> Floats:
        """(k,) what the labels' distribution over the grid is estimated to be."""
        return self.made.prior.probabilities

    @property
    def loss(self) -> str:
        """What a model is to be judged by."""
        return self.made.randomizer.loss.name

    @property
    def guarantee(self) -> PureDP:
        """Of codes and prior together."""
        return self.made.guarantee


@dataclass(frozen=True)
class PrivateEvents:
    """Randomized events, and all that is public about them.

    Attributes
    ----------
    codes
        (n,) uint16 what was sent for each event.
    made
        Priors and randomizers.
    terms
        What is public about each label.
    """

    codes: Codes
    made: Several
    terms: tuple[LabelTerms, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the labels."""
        return self.made.names

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message, for all labels of an event together."""
        return self.made.guarantee

    def __getitem__(self, name: str) -> EventLabel:
        """One label alone, for a model of it."""
        if name not in self.names:
            raise ConfigError(f"label={name!r} must be one of {', '.join(self.names)}")
        return EventLabel(self, name)


@dataclass(frozen=True)
class EventLabel:
    """One label of randomized events.

    Attributes
    ----------
    events
        With all their labels.
    name
        The label's.
    """

    events: PrivateEvents
    name: str

    @property
    def codes(self) -> Codes:
        """(n,) uint16 what the channel of this label, and maybe of others, sent."""
        book = self.events.made.codebook
        return book.split(self.events.codes)[:, book.for_label(self.name).column]

    @property
    def randomizer(self) -> str:
        """What sent it, maybe with others."""
        made = self.events.made
        return made.channels[made.codebook.for_label(self.name).column][1].name

    @property
    def loss(self) -> str:
        """What a model is to be judged by."""
        return self.events.terms[self.events.names.index(self.name)].loss


def randomize(
    labels: ArrayLike, grid: Grid, epsilon: float, entropy: Entropy, recipe: Recipe
) -> PrivateLabels:
    """Randomize (n,) labels over a grid, and pay for a prior where the channel needs one."""
    values = np.asarray(labels, dtype=np.float64)
    rows, k = values.size, len(grid)
    indices = grid.round(values, entropy.words(ROUNDING_STREAM, 0, rows))
    if recipe.needs_prior(grid):
        made = two_step(np.bincount(indices, minlength=k), grid, epsilon, entropy, recipe)
        return PrivateLabels(made.randomizer.randomize_indices(indices, entropy), made)
    response = recipe.respond(grid, epsilon, rows)
    codes = response.randomize_indices(indices, entropy)
    return PrivateLabels(codes, one_step(response, np.bincount(codes, minlength=k), epsilon))


def randomize_labels(
    labels: ArrayLike,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    values: ArrayLike | None = None,
    randomizer: str = "auto",
    loss: str = "squared",
) -> PrivateLabels:
    """Randomize labels as a release does: for a notebook that holds labels and features.

    Parameters
    ----------
    labels
        (n,) numbers; those outside the bounds are clipped.
    lower, upper
        Public bounds, chosen without looking at the labels.
    epsilon
        What codes and prior together may reveal about one label, 0 < epsilon <= 40.
    values
        All labels there are, ascending from ``lower`` to ``upper``, where they are classes.
    randomizer, loss
        As in :func:`common.randomizers.build_randomizer`.

    Raises
    ------
    ConfigError, PrivacyError, DataError
        For bounds, an ε or labels that cannot be.
    """
    rows = np.asarray(labels).size
    grid = Grid.default(lower, upper, rows, epsilon)
    if values is not None:
        grid = Grid(np.asarray(values, dtype=np.float64))
    entropy = system_entropy()
    recipe = Recipe(randomizer, loss, values=values is not None)
    try:
        return randomize(labels, grid, epsilon, entropy, recipe)
    finally:
        entropy.destroy()


def randomize_several(
    labels: ArrayLike,
    terms: Sequence[LabelTerms],
    epsilon: float,
    entropy: Entropy,
    division: Division = "auto",
    group: int = 1,
    prior_share: float | Fraction = PRIOR_SHARE,
) -> PrivateEvents:
    """Randomize (n, m) labels as a release does; parameters as in :func:`build_several`."""
    values = np.asarray(labels, dtype=np.float64)

    def count(groups: Sequence[Group]) -> list[Integers]:
        return [np.bincount(g.round(values, entropy), minlength=len(g.cells)) for g in groups]

    made = build_several(
        count,
        terms,
        values.shape[0],
        epsilon,
        entropy,
        division=division,
        group=group,
        prior_share=prior_share,
    )
    book = made.codebook
    codes = book.randomize(values, entropy)
    columns = zip(book.split(codes).T, book.radices, strict=True)
    made = made.decode([np.bincount(c, minlength=d) for c, d in columns])
    return PrivateEvents(codes, made, tuple(terms))


def randomize_events(
    labels: Mapping[str, ArrayLike],
    bounds: Mapping[str, tuple[float, float]],
    *,
    epsilon: float,
    weights: Mapping[str, float] | None = None,
    division: Division = "auto",
) -> PrivateEvents:
    """Randomize several labels of each event in one message, as a release does.

    ::

        private = lv.randomize_events(table, {"returned": (0, 1), "amount": (0, 400)}, epsilon=1)
        models = {name: lv.LabelDPRegressor().fit(X, private[name]) for name in private.names}

    Parameters
    ----------
    labels
        A table, or anything that gives (n,) numbers by a label's name.
    bounds
        Public bounds of each label, by its name, chosen without looking at the labels.
    epsilon
        What the message may reveal about all labels of one event together, 0 < epsilon <= 40.
    weights
        What each label's error counts for; the default is 1.
    division
        ``split`` gives each label a share of ε, ``joint`` sends all by one channel, and ``auto``
        takes what is predicted to serve better.

    Raises
    ------
    ConfigError, PrivacyError, DataError
        For bounds, an ε or labels that cannot be.
    """
    worth = weights or {}
    terms = [LabelTerms(name, *ends, weight=worth.get(name, 1.0)) for name, ends in bounds.items()]
    columns = np.column_stack([np.asarray(labels[name], np.float64) for name in bounds])
    entropy = system_entropy()
    try:
        return randomize_several(columns, terms, epsilon, entropy, division)
    finally:
        entropy.destroy()
