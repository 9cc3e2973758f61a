"""Links: expected labels as functions of what is linear in features.

What decides an amount, or a number of visits, often does so by factors rather than by terms, and
labels vary more where more is expected of them. With a link ``f = g(z)`` that is steeper where it
is higher, both follow from a ridge for z that is as sure of itself everywhere: what is not known of
predictions is ``g'(z)`` times what is not known of z, and so are labels' deviations.

A cube is nearly an exponential function around the level. Far above it is less: of a row that lies
far from all others an exponential function would say anything.

Source: McCullagh and Nelder, *Generalized Linear Models*, 1989, section 2.2; powers as in Box and
Cox, *An Analysis of Transformations*, Journal of the Royal Statistical Society B, 1964.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np
from torch import Tensor

from labelveil.common.arrays import Floats

_LEAST = 0.4
"""Root of a prediction, as a share of the level's, below which it is a line of z: a cube is flat at
0, so that no slope would lead up from there."""

_LEAST_LEVEL = 0.02
"""As a share of the labels' range."""

ArrayT = TypeVar("ArrayT", Floats, Tensor)


class Link(Protocol):
    """How expected labels follow from (n,) numbers z that are linear in features."""

    @property
    def unit(self) -> float:
        """What z is measured in while it is learned."""

    @property
    def amplitude(self) -> float:
        """Deviation that is expected of it, in that unit."""

    def mean(self, z: ArrayT) -> ArrayT:
        """(n,) expected labels ``g(z)``, of arrays or of tensors."""

    def slope(self, z: Floats) -> Floats:
        """(n,) ``g'(z)``."""

    def inverse(self, labels: Floats) -> Floats:
        """(n,) the z that these labels are expected of."""

    def relative_deviation(self, z: Floats) -> Floats:
        """(n,) deviations of labels around what is expected, in terms of one deviation."""


@dataclass(frozen=True)
class Line:
    """Expected labels are z."""

    unit: float = 1.0
    """Range of the labels, where z is learned."""

    amplitude: ClassVar[float] = 0.25

    def mean(self, z: ArrayT) -> ArrayT:
        return z

    def slope(self, z: Floats) -> Floats:
        return np.ones_like(z)

    def inverse(self, labels: Floats) -> Floats:
        return labels

    def relative_deviation(self, z: Floats) -> Floats:
        return np.ones_like(z)


@dataclass(frozen=True)
class Cube:
    """Expected labels are ``lower + level (1 + z/3)³``: they differ by factors."""

    lower: float
    """What labels cannot be less than."""
    level: float
    """How far above it they lie on average, about; > 0."""

    unit: ClassVar[float] = 1.0
    amplitude: ClassVar[float] = 1.0

    @classmethod
    def around(cls, average: float, lower: float, upper: float) -> Self:
        """For labels with about this average, which may be NaN where nobody knows."""
        least = _LEAST_LEVEL * (upper - lower)
        return cls(lower, max(least, min(average, upper) - lower))

    def mean(self, z: ArrayT) -> ArrayT:
        root: ArrayT = 1 + z / 3
        high: ArrayT = root.clip(min=_LEAST)
        return self.lower + self.level * (high**3 + 3 * _LEAST**2 * (root - high))

    def slope(self, z: Floats) -> Floats:
        return np.asarray(self.level * self.relative_deviation(z))

    def inverse(self, labels: Floats) -> Floats:
        share = (labels - self.lower) / self.level
        least = _LEAST**3
        root = np.cbrt(np.maximum(share, least)) + np.minimum(share - least, 0) / (3 * _LEAST**2)
        return np.asarray(3 * (root - 1))

    def relative_deviation(self, z: Floats) -> Floats:
        return np.asarray(np.maximum(1 + z / 3, _LEAST) ** 2)
