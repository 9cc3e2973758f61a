"""Labels at hand, randomized as a release would: the labels party's part in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Floats, Indices, Integers, finite, holds_integers, with_nan
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import Codes, FiniteChannel
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.known_labels import KnownLabels
from labelveil.common.randomizers.message.message import Message, Released
from labelveil.common.randomizers.message.plan import MessagePlan, plan_message
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.strata import count_cells
from labelveil.common.randomizers.message.terms import Division, LabelTerms


@dataclass(frozen=True, repr=False, eq=False)
class PrivateEvents:
    """Randomized events, and all that is public about them."""

    codes: Codes
    """(n,) uint16 what was sent for each event."""
    message: Message
    """What is public about them."""

    def __repr__(self) -> str:
        of = ", ".join(self.names)
        return f"<{self.codes.size:,} events, randomized: {of}; {self.guarantee}>"

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
        return np.bincount(self.codes, minlength=self.message.codebooks.outputs)

    def __getitem__(self, name: str) -> PrivateLabels:
        """One label alone, for a model of it."""
        if name not in self.names:
            raise ConfigError(f"label={name!r} must be one of {', '.join(self.names)}")
        return PrivateLabels(self, name)


@dataclass(frozen=True, repr=False, eq=False)
class PrivateLabels:
    """One label of randomized events: the only one, or one of several."""

    events: PrivateEvents
    """With all their labels."""
    name: str
    """The label's."""

    def __repr__(self) -> str:
        return f"<{self.events.codes.size:,} labels, randomized: {self.guarantee}>"

    def __array__(self, *form: Any, **options: Any) -> NDArray[Any]:
        """They are no numbers: ``DataError`` says what to give to whoever cuts arrays in parts."""
        raise DataError(
            "randomized labels are codes, which mean nothing without their channel: name it first,"
            " as in lv.LabelDPRegressor(private), and give private.codes as y"
        )

    @property
    def codes(self) -> Codes:
        """(n,) uint16 what the channel of this label, and maybe of others, sent."""
        sent = self.events.message.codebooks.codes_of(self.name)
        return sent[self.events.codes].astype(np.uint16)

    @property
    def channel(self) -> FiniteChannel:
        """From the grid's points, or cells of labels sent together, to what is sent.

        Raises
        ------
        ConfigError
            With strata, each of which has a channel of its own.
        """
        (book, *others) = self.events.message.codebooks.books
        if others:
            raise ConfigError(
                f"events in {len(others) + 1} strata have a channel each; see"
                " .events.message.codebooks.books"
            )
        return book.channels[book.column_of(self.name)]

    @property
    def prior(self) -> Floats:
        """(k,) what the label's distribution over its grid is estimated to be."""
        return self.events.message.marginal(self.name)[1]

    @property
    def randomizer(self) -> str:
        """What sent it, maybe with others."""
        column = self.events.message.codebooks.books[0].column_of(self.name)
        return self.events.message.randomizers[column][0]

    @property
    def loss(self) -> str:
        """What a model is to be judged by."""
        return self.events.message.terms[self.events.names.index(self.name)].loss

    @property
    def guarantee(self) -> PureDP:
        """Of the whole message."""
        return self.events.guarantee


def randomize(
    labels: ArrayLike,
    plan: MessagePlan,
    entropy: Entropy | None = None,
    strata: Indices | None = None,
    released: Released | None = None,
) -> PrivateEvents:
    """Randomize (n, m) labels, of events in (n,) strata, as a plan says.

    They are counted, unless what channels are built from is ``released`` already. The noise is the
    operating system's, under a key that nobody keeps, unless ``entropy`` is given.
    """
    values, entropy = np.asarray(labels, dtype=np.float64), entropy or system_entropy()
    counts = [
        count_cells(group.round(values, entropy), len(group.cells), strata, plan.stratum_count)
        for group in plan.groups
    ]
    message = plan.build(released or plan.release(counts, entropy))
    books = message.codebooks
    codes = books.randomize(values, strata, entropy)
    counted = np.bincount(codes, minlength=books.outputs)
    return PrivateEvents(codes, message.decode(counted))


def randomize_labels(
    labels: ArrayLike,
    *,
    lower: float,
    upper: float,
    epsilon: float,
    values: ArrayLike | None = None,
    randomizer: str = "auto",
    loss: str = "squared",
    strata: ArrayLike | None = None,
    question: Question | None = None,
    prior: Mapping[float, float] | None = None,
    correct_prior: bool = False,
) -> PrivateLabels:
    """Randomize labels as a release does: for a notebook that holds labels and features.

    Parameters
    ----------
    labels
        (n,) finite numbers; those outside the bounds are clipped. Missing labels (NaN, infinity,
        nulls, masked entries) have to be filled in or left out first. An array of integers or
        booleans is one of whole numbers, and 0 … 1 then says no or yes; floats may lie anywhere
        between the bounds (a count that pandas holds as floats: ``labels.astype(int)``). The type
        is public.
    lower, upper
        Public bounds, chosen without looking at the labels.
    epsilon
        What codes and prior together may reveal about one label, 0 < epsilon <= 40.
    values
        All labels there are, ascending from ``lower`` to ``upper``, where they are classes.
    randomizer, loss
        As in :func:`labelveil.common.randomizers.build_randomizer`.
    strata
        (n,) public classes of the events, such as their campaigns, chosen without looking at the
        labels: each that is large enough is sent by a channel that fits its own labels.
    question
        What a model that learned from other events' labels asks of these, of
        :meth:`labelveil.LabelDPRegressor.ask`: no histogram is then paid for.
    prior
        Weights >= 0 by label value, from public knowledge alone, never from these labels: nothing
        is then spent on a histogram, and a wrong prior costs accuracy, not privacy. Values between
        the grid's points are split between these. Two labels, or a few classes, need none.
    correct_prior
        Whether a histogram is paid for all the same; the prior is then one of the laws that may
        explain it.

    Raises
    ------
    ConfigError, PrivacyError, DataError
        For bounds, an ε or labels that cannot be.
    """
    column = _column(labels, "labels").reshape(-1, 1)
    grid = None if values is None else Grid(np.asarray(values, dtype=np.float64))
    terms = LabelTerms(
        "label",
        lower,
        upper,
        grid,
        loss,
        values=values is not None,
        whole=holds_integers(labels),
        randomizer=randomizer,
    )
    if correct_prior and prior is None:
        raise ConfigError("correct_prior=True has no prior to correct; give prior, or leave it out")
    if question is None:
        known = None if prior is None else KnownLabels.from_weights(prior)
        return _randomized(column, [terms], epsilon, "auto", strata, known, correct_prior)["label"]
    if strata is not None:
        raise ConfigError("a question says what strata the events are in; leave strata out")
    if prior is not None:
        raise ConfigError("a question says what is expected of the labels; leave prior out")
    return _answered(column, terms, epsilon, question)["label"]


def randomize_events(
    labels: Mapping[str, ArrayLike],
    bounds: Mapping[str, tuple[float, float]],
    *,
    epsilon: float,
    weights: Mapping[str, float] | None = None,
    division: Division = "auto",
    strata: ArrayLike | None = None,
) -> PrivateEvents:
    """Randomize several labels of each event in one message, as a release does.

    ::

        private = lv.randomize_events(table, {"returned": (0, 1), "amount": (0, 400)}, epsilon=1)
        models = {name: lv.LabelDPRegressor().fit(X, private[name]) for name in private.names}

    Parameters
    ----------
    labels
        A table, or anything that gives (n,) numbers by a label's name; those of integers or
        booleans are whole numbers, as in :func:`randomize_labels`.
    bounds
        Public bounds of each label, by its name, chosen without looking at the labels.
    epsilon
        What the message may reveal about all labels of one event together, 0 < epsilon <= 40.
    weights
        What each label's error counts for; the default is 1.
    division
        ``split`` gives each label a share of ε, ``joint`` sends all by one channel, and ``auto``
        takes what is predicted to serve better.
    strata
        As in :func:`randomize_labels`.

    Raises
    ------
    ConfigError, PrivacyError, DataError
        For bounds, an ε or labels that cannot be.
    """
    for name in bounds:
        if name not in labels:
            raise DataError(f"there is no label {name!r:.60}; bounds name columns of the labels")
    worth = weights or {}
    terms = [
        LabelTerms(name, *ends, weight=worth.get(name, 1.0), whole=holds_integers(labels[name]))
        for name, ends in bounds.items()
    ]
    columns = np.column_stack([_column(labels[name], f"label {name!r:.60}") for name in bounds])
    return _randomized(columns, terms, epsilon, division, strata)


def _column(labels: ArrayLike, name: str) -> Floats:
    """(n,) labels as float64; ``DataError`` if they are no column of numbers, or there are none."""
    numbers = finite(labels, name)
    if not numbers.size:
        raise DataError(f"{name} of shape (0,) must be one column of at least one number")
    return numbers


def _answered(
    labels: Floats, terms: LabelTerms, epsilon: float, question: Question
) -> PrivateEvents:
    """Randomize (n, 1) labels by the channels that fit what is asked."""
    if question.strata.size != len(labels):
        raise ConfigError(
            f"the question is about {question.strata.size:,} events, and there are"
            f" {len(labels):,} labels; ask about the same events"
        )
    plan = question.plan(terms, epsilon)
    (share,) = plan.channels
    return randomize(
        labels, plan, None, question.strata.astype(np.int64), question.released(share.group)
    )


def _randomized(
    labels: Floats,
    terms: Sequence[LabelTerms],
    epsilon: float,
    division: Division,
    strata: ArrayLike | None,
    prior: KnownLabels | None = None,
    corrected: bool = False,
) -> PrivateEvents:
    """Randomize (n, m) labels, told apart by public classes if there are any."""
    plan, of_event = plan_message(terms, len(labels), epsilon, division=division), None
    if strata is not None:
        values, value_of = np.unique(np.asarray(with_nan(strata)).astype(str), return_inverse=True)
        plan = plan.by_stratum(values.tolist(), np.bincount(value_of, minlength=values.size + 1))
        of_event = None if plan.strata is None else plan.strata.of_value[value_of]
    if prior is not None:
        priors = {group: prior.over(group) for group in plan.groups}
        plan = plan.knowing(priors, corrected=corrected)
    return randomize(labels, plan, None, of_event)
