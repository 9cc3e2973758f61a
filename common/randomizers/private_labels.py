"""Labels at hand, randomized as a release would: the labels party's part in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Floats, Integers
from common.entropy import Entropy, system_entropy
from common.errors import ConfigError
from common.exact.channel import Codes, FiniteChannel
from common.guarantees import PureDP
from common.randomizers.grid import Grid
from common.randomizers.message import Message, MessagePlan
from common.randomizers.plan import plan_message
from common.randomizers.terms import Division, LabelTerms


@dataclass(frozen=True)
class PrivateEvents:
    """Randomized events, and all that is public about them.

    Attributes
    ----------
    codes
        (n,) uint16 what was sent for each event.
    message
        Priors and randomizers.
    terms
        What is public about each label.
    """

    codes: Codes
    message: Message
    terms: tuple[LabelTerms, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the labels."""
        return self.message.names

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message, for all labels of an event together."""
        return self.message.guarantee

    @property
    def counts(self) -> Integers:
        """(d,) how many codes there are of each."""
        return np.bincount(self.codes, minlength=self.message.codebook.outputs)

    def __getitem__(self, name: str) -> PrivateLabels:
        """One label alone, for a model of it."""
        if name not in self.names:
            raise ConfigError(f"label={name!r} must be one of {', '.join(self.names)}")
        return PrivateLabels(self, name)


@dataclass(frozen=True)
class PrivateLabels:
    """One label of randomized events: the only one, or one of several.

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
        return self.events.message.codebook.split(self.events.codes)[:, self._column]

    @property
    def channel(self) -> FiniteChannel:
        """From the grid's points, or cells of labels sent together, to what is sent."""
        return self.events.message.channels[self._column][1].channel

    @property
    def prior(self) -> Floats:
        """(k,) what the label's distribution over its grid is estimated to be."""
        place = self.events.names.index(self.name)
        histograms = self.events.message.histograms
        group, histogram = next(each for each in histograms if place in each[0].labels)
        return group.cells.marginal(histogram.probabilities, group.labels.index(place))

    @property
    def randomizer(self) -> str:
        """What sent it, maybe with others."""
        return self.events.message.channels[self._column][1].name

    @property
    def loss(self) -> str:
        """What a model is to be judged by."""
        return self.events.terms[self.events.names.index(self.name)].loss

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message."""
        return self.events.guarantee

    @property
    def _column(self) -> int:
        return self.events.message.codebook.for_label(self.name).column


def randomize(labels: ArrayLike, plan: MessagePlan, entropy: Entropy) -> PrivateEvents:
    """Randomize (n, m) labels as :func:`common.randomizers.message.plan_message` planned it."""
    values = np.asarray(labels, dtype=np.float64)
    counts = [
        np.bincount(group.round(values, entropy), minlength=len(group.cells))
        for group in plan.groups
    ]
    message = plan.build(plan.release_priors(counts, entropy))
    book = message.codebook
    codes = book.randomize(values, entropy)
    columns = zip(book.split(codes).T, book.radices, strict=True)
    message = message.decode([np.bincount(column, minlength=d) for column, d in columns])
    return PrivateEvents(codes, message, plan.terms)


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
    column = np.asarray(labels, dtype=np.float64).reshape(-1, 1)
    grid = None if values is None else Grid(np.asarray(values, dtype=np.float64))
    terms = LabelTerms(
        "label", lower, upper, grid, loss, values=values is not None, randomizer=randomizer
    )
    return _randomized(column, [terms], epsilon, "auto")["label"]


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
    return _randomized(columns, terms, epsilon, division)


def _randomized(
    labels: Floats, terms: Sequence[LabelTerms], epsilon: float, division: Division
) -> PrivateEvents:
    """Randomize (n, m) labels with noise of the operating system's."""
    plan = plan_message(terms, len(labels), epsilon, division=division)
    entropy = system_entropy()
    try:
        return randomize(labels, plan, entropy)
    finally:
        entropy.destroy()
