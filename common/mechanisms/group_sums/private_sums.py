"""Labels at hand, summed as a question asks: the labels party's part in one call."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Integers, finite
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import DataError
from labelveil.common.exact.rational import decimal_value
from labelveil.common.guarantees import PureDP
from labelveil.common.mechanisms.group_sums.noisy_sums import NoisySums
from labelveil.common.mechanisms.group_sums.question import GroupQuestion
from labelveil.common.randomizers.base import ROUNDING_STREAM, check_epsilon


@dataclass(frozen=True, eq=False, repr=False)
class PrivateSums:
    """What was asked of groups, what was answered, and all that is public about it."""

    noisy: NoisySums
    """The question, and its noise."""
    sums: Integers
    """(G,) of :meth:`NoisySums.draw`, in steps of the lattice, or steps² of squares."""

    def __repr__(self) -> str:
        asked = f"{len(self.question):,} events in {self.sums.size:,} groups"
        return f"<noisy sums of {asked}: {self.guarantee}>"

    @property
    def question(self) -> GroupQuestion:
        """What was asked."""
        return self.noisy.question

    @property
    def guarantee(self) -> PureDP:
        """Of all sums together, for each label."""
        return self.noisy.guarantee

    @property
    def values(self) -> Floats:
        """(G,) the sums of ``w clip(y - o, -h, h)`` in units of the label, or of its square."""
        return np.asarray(self._units * self.sums, dtype=np.float64)

    @property
    def deviations(self) -> Floats:
        """(G,) standard deviations of the noise in these values."""
        return self._units * np.sqrt(self.noisy.variances)

    @property
    def _units(self) -> Floats:
        """(G,) a step, or its square, in units of the label."""
        step = self.question.lattice.step
        return np.where(self.question.squared, step**2, step)


def group_sums(
    labels: ArrayLike, question: GroupQuestion, *, epsilon: float | Fraction
) -> PrivateSums:
    """Answer a question about groups: for a notebook that holds labels and features.

    ::

        question = lv.ask_groups(X, lower=0, upper=1000, epsilon=0.1)
        model = lv.LabelDPRegressor().fit(X, lv.group_sums(y, question, epsilon=0.1))

    An event that is asked about again, in a sum or by :func:`labelveil.randomize_labels`, has paid
    both ε.

    Parameters
    ----------
    labels
        (n,) finite numbers, of the question's events in its order; those outside its bounds are
        clipped, and those between two points of its lattice go to one of them at random. Missing
        labels have to be filled in with a constant first: left out, they would show.
    question
        What to sum, made without these labels.
    epsilon
        What all sums together may reveal about one label, 0 < epsilon <= 40: the decimal number
        that is written, or an exact fraction.

    Raises
    ------
    ConfigError, PrivacyError, DataError
        For labels, a question or an ε that cannot be.
    """
    values = finite(labels, "labels")
    if values.size != len(question):
        raise DataError(
            f"the question is about {len(question):,} events, and there are {values.size:,} labels;"
            " ask about the same events"
        )
    check_epsilon(epsilon)
    exact = epsilon if isinstance(epsilon, Fraction) else decimal_value(epsilon)
    noisy, entropy = NoisySums(question, exact), system_entropy()
    # which neighbour a label goes to is drawn for each by itself: no guarantee rests on it
    places = question.lattice.round(values, entropy.coins(ROUNDING_STREAM, 0, values.size))
    return PrivateSums(noisy, noisy.draw(places, entropy))
