"""Exact noise on sums of labels by group, its guarantee and its variance; and the noisy sums.

Replacing one event's label moves the sum of its own group alone, by at most Δ_g =
:attr:`GroupQuestion.spans` steps. With discrete Laplace noise of scale Δ_g/ε on every sum, of empty
groups too, the answer is ε-DP in each label, for any groups, offsets, widths and weights that are
no function of these labels: given what earlier rounds released of other events, they are constants
(adaptive parallel composition). Of two questions about one event the ε add up; a user with m
events, in whatever groups, costs m ε. No group need have a least size: noise covers one event.

Source: the Laplace mechanism of Dwork, McSherry, Nissim and Smith, *Calibrating Noise to
Sensitivity*, TCC 2006, with the discrete noise of Ghosh, Roughgarden and Sundararajan, *Universally
Utility-Maximizing Privacy Mechanisms*, STOC 2009.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Floats, Indices, Integers, finite
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import ConfigError, DataError, PrivacyError
from labelveil.common.exact.noise import discrete_laplace_each
from labelveil.common.exact.rational import decimal_value
from labelveil.common.guarantees import Adjacency, PureDP
from labelveil.common.guarantees.limits import within
from labelveil.common.mechanisms.group_sums.lattice import Lattice
from labelveil.common.mechanisms.group_sums.question import GroupQuestion
from labelveil.common.randomizers.base import ROUNDING_STREAM, check_epsilon
from labelveil.common.randomizers.message.terms import LabelTerms

_MOST_TERM = 1 << 48
_GRAIN = 1 << 12


@dataclass(frozen=True)
class NoisySums:
    """The answer to a question about groups at 0 < ε <= 40.

    ``PrivacyError`` if the scales of its noise are too large to be drawn.
    """

    question: GroupQuestion
    epsilon: Fraction
    """ε as a rational number: 1/10 where a person wrote 0.1."""

    def __post_init__(self) -> None:
        within("(0, 40]", epsilon=self.epsilon)
        numerators, denominator = self._terms
        if max(numerators) > _MOST_TERM:
            scale = float(Fraction(max(numerators), denominator))
            raise PrivacyError(
                f"noise of scale {scale:.3g} steps is too much to draw; use a coarser grid, smaller"
                " weights or a larger epsilon"
            )

    @cached_property
    def _terms(self) -> tuple[list[int], int]:
        """Numerators of the scales Δ/ε of these spans, and their denominator; only rounded up."""
        p, q = self.epsilon.numerator, self.epsilon.denominator
        spans = self.question.spans_of_widths
        if max(max(spans) * q, p) <= _MOST_TERM:
            return [span * q for span in spans], p
        return [math.ceil(Fraction(span * q * _GRAIN, p)) for span in spans], _GRAIN

    @property
    def scale_terms(self) -> tuple[Integers, int]:
        """(G,) numerators of the exact scales, and the denominator that they share."""
        numerators, denominator = self._terms
        return self.question.of_width(numerators), denominator

    @classmethod
    def for_label(cls, question: GroupQuestion, terms: LabelTerms, epsilon: Fraction) -> Self:
        """Answer about a label as it is configured.

        Raises
        ------
        ConfigError, PrivacyError
            If labels are of another range, or the points that were chosen for them are no points of
            the question's lattice.
        """
        lattice = question.lattice
        if (lattice.lower, lattice.upper) != (terms.lower, terms.upper):
            raise ConfigError(
                f"the question is about labels in {lattice.lower:g} … {lattice.upper:g}, not in"
                f" {terms.lower:g} … {terms.upper:g}; name the same bounds"
            )
        if terms.grid is not None and lattice.steps % (own := Lattice.from_grid(terms.grid)).steps:
            raise ConfigError(
                f"the question is about labels on {lattice.steps:,} steps, and they are on"
                f" {own.steps:,} of {own.step:g}; ask on these, or on each divided alike"
            )
        return cls(question, epsilon)

    @property
    def scales(self) -> Floats:
        """(G,) scales of the noise, in steps of the lattice, or steps² of squares."""
        numerators, denominator = self.scale_terms
        return numerators / denominator

    @property
    def widths(self) -> list[tuple[tuple[int, bool, int], Fraction]]:
        """The question's :attr:`~GroupQuestion.widths`, each with the scale of the noise on its
        sums: in steps, or steps² of squares."""
        numerators, denominator = self._terms
        scales = [Fraction(scale, denominator) for scale in numerators]
        return [*zip(self.question.widths, scales, strict=True)]

    @property
    def guarantee(self) -> PureDP:
        """Of all sums together, for each label: max Δ_g / scale_g, in integers."""
        numerators, denominator = self._terms
        pairs = zip(self.question.spans_of_widths, numerators, strict=True)
        worst = max(Fraction(span * denominator, scale) for span, scale in pairs)
        return PureDP.of(worst, Adjacency.REPLACE_LABEL)

    @property
    def variances(self) -> Floats:
        """(G,) exact variances of the noise: 2q/(1 - q)² with q = exp(-1/scale).

        The continuous law's 2 scale² is 8 % more at ε = 1 where one label moves a sum by a step.
        """
        return 1 / (2 * np.sinh(0.5 / self.scales) ** 2)

    @property
    def stream(self) -> str:
        """The noise's own: named by all that is asked and paid, so that two never share noise.

        Two groupings under one noise would give differences of sums exactly.
        """
        paid = f"{self.epsilon.numerator}/{self.epsilon.denominator} ".encode()
        return f"group sums {hashlib.sha256(paid + self.question.digest).hexdigest()}"

    def draw(self, places: Indices, entropy: Entropy) -> Integers:
        """(G,) noisy sums of (n,) labels on the lattice; entropy is one release's own.

        ``PrivacyError`` if this entropy has drawn this answer's noise before.
        """
        if places.size != len(self.question):
            raise ValueError(f"places of shape {places.shape} must be one for each event")
        return self.question.sums(places) + self.noise(entropy)

    def noise(self, entropy: Entropy) -> Integers:
        """(G,) noise of the answer, in steps; as of :meth:`draw`."""
        return discrete_laplace_each(*self.scale_terms, entropy.source(self.stream))


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
