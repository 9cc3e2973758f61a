"""Radial noise in d dimensions, rounded to a grid without any float error.

Two laws: density ∝ exp(-‖b‖/s), and the normal law. The noise is an ideal real vector whose binary
digits are drawn only as far as they are needed. In the first its norm is a sum of d exponentials
(Gamma with shape d and scale s), its direction a vector of normal variables divided by its length;
in the second those normal variables are all. Every step is computed as an interval, rounded
outwards, that certainly holds the ideal value; where an interval leaves open which grid point is
nearest, more digits are drawn. What comes out is therefore the nearest grid point to ``centre + b``
exactly: post-processing of the ideal mechanism, with its guarantee, and not a floating-point
imitation of it (Mironov 2012 shows what such imitations leak).

Source of the law: Chaudhuri, Monteleoni, Sarwate, *Differentially Private Empirical Risk
Minimization*, JMLR 2011, Algorithms 1 and 2; of the normal variables: Marsaglia and Bray's polar
method (1964).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.common.entropy import WordSource
from labelveil.common.noncopyable import NonCopyable

Interval = tuple[Decimal, Decimal]
Digits = tuple[int, int]
"""(n, m): a uniform number known to lie in n/2^m … (n+1)/2^m."""

_WORDS = 2
_BITS = 64
_REFINEMENTS = 1 << 8
"""Each decides all but 2^-64 of the cases that are left, on grids not finer than the words."""


def radial_laplace(
    centre: Floats, scale: Fraction, exponent: int, source: WordSource
) -> NDArray[np.object_]:
    """Add noise b of density ∝ exp(-‖b‖/s) to a (d,) vector; round to multiples of ``2**exponent``.

    A vector of L2 sensitivity Δ is released with ε-DP by the scale s = Δ/ε: the triangle inequality
    bounds the density's log ratio by Δ/s. Any exponent keeps the guarantee. Returns (d,) Python
    integers: multiples of the pitch.
    """
    return _rounded(centre, scale, exponent, source, radial=True)


def gaussian_vector(
    centre: Floats, deviation: Fraction, exponent: int, source: WordSource
) -> NDArray[np.object_]:
    """Add independent N(0, σ²) to each coordinate and round to multiples of ``2**exponent``.

    Post-processing of the continuous Gaussian mechanism, so that a vector of L2 sensitivity Δ has
    its guarantee: :func:`labelveil.common.guarantees.gaussian.gaussian_delta`. Returns as
    :func:`radial_laplace`.
    """
    return _rounded(centre, deviation, exponent, source, radial=False)


def _rounded(
    centre: Floats, scale: Fraction, exponent: int, source: WordSource, *, radial: bool
) -> NDArray[np.object_]:
    if scale <= 0:
        raise ValueError(f"scale={float(scale)} must be > 0")
    if centre.ndim != 1 or not centre.size or not np.all(np.isfinite(centre)):
        raise ValueError("centre must be a vector of at least one finite number")
    noise = _IdealVector(centre.size, source, radial=radial)
    pitch = Fraction(2) ** exponent
    start = [Fraction(value) / pitch for value in centre.tolist()]
    for _ in range(_REFINEMENTS):
        nearest = noise.nearest(start, scale / pitch)
        if nearest is not None:
            return np.array([*nearest, None], dtype=object)[:-1]
        noise.refine()
    raise ArithmeticError(f"noise was still undecided after {_REFINEMENTS} further words a number")


class _IdealVector(NonCopyable):
    """Unit-scale noise, known as far as its digits were drawn; without norms it is normal."""

    def __init__(self, size: int, source: WordSource, *, radial: bool) -> None:
        super().__init__()
        self.size = size
        self.source = source
        self.norms = [self._uniform() for _ in range(size if radial else 0)]
        self.pairs = [self._pair() for _ in range((size + 1) // 2)]
        self.signs = [1 - 2 * int(word & np.uint64(1)) for word in source.take(size)]

    def refine(self) -> None:
        """Draw one more word for every number."""
        self.norms = [self._extend(digits) for digits in self.norms]
        self.pairs = [(self._extend(a), self._extend(b)) for a, b in self.pairs]

    def nearest(self, start: Sequence[Fraction], spread: Fraction) -> list[int] | None:
        """Nearest integers to ``start + spread · noise``; None if the digits leave any open."""
        bits = min(m for _, m in (*self.norms, *(digits for digits, _ in self.pairs)))
        reach = max(math.floor(abs(value)).bit_length() for value in (*start, spread))
        arithmetic = _Outwards(math.ceil((bits + reach) * math.log10(2)) + 20)
        nearest = []
        magnitudes = self._magnitudes(arithmetic, spread)
        for value, sign, (low, high) in zip(start, self.signs, magnitudes, strict=True):
            first, last = round(value + sign * Fraction(low)), round(value + sign * Fraction(high))
            if first != last:
                return None
            nearest.append(first)
        return nearest

    def _magnitudes(self, arithmetic: _Outwards, spread: Fraction) -> list[Interval]:
        """Bounds of the coordinates without their signs."""
        normals = [g for pair in self.pairs for g in arithmetic.normals(*pair)][: self.size]
        size = arithmetic.ratio(spread, spread)
        if not self.norms:
            return [arithmetic.times(g, size) for g in normals]
        exponentials = [
            arithmetic.minus_log(Fraction(n, 1 << m), Fraction(n + 1, 1 << m))
            for n, m in self.norms
        ]
        norm = arithmetic.times(size, arithmetic.total(exponentials))
        length = arithmetic.root(arithmetic.total([arithmetic.times(g, g) for g in normals]))
        return [arithmetic.over(arithmetic.times(g, norm), length) for g in normals]

    def _uniform(self) -> Digits:
        digits = (0, 0)
        while digits[0] == 0:  # so that the logarithm below is bounded
            for _ in range(_WORDS):
                digits = self._extend(digits)
        return digits

    def _pair(self) -> tuple[Digits, Digits]:
        """A uniform point of the quarter disc."""
        while True:
            a, b = self._uniform(), self._uniform()
            while True:
                while a[1] != b[1]:
                    a, b = (self._extend(a), b) if a[1] < b[1] else (a, self._extend(b))
                # decided by the far or the near corner of the square that the digits so far
                # leave; more digits are drawn only where the circle cuts it
                whole = 1 << (2 * a[1])
                if (a[0] + 1) ** 2 + (b[0] + 1) ** 2 <= whole:
                    return a, b
                if a[0] ** 2 + b[0] ** 2 >= whole:
                    break
                a, b = self._extend(a), self._extend(b)

    def _extend(self, digits: Digits) -> Digits:
        n, m = digits
        return (n << _BITS) | int(self.source.take(1)[0]), m + _BITS


class _Outwards:
    """Interval arithmetic on positive numbers: lower ends round down, upper ends up."""

    def __init__(self, digits: int) -> None:
        wide = {"Emax": 10**15, "Emin": -(10**15), "traps": []}
        self.down = Context(prec=digits, rounding=ROUND_FLOOR, **wide)  # type: ignore[arg-type]
        self.up = Context(prec=digits, rounding=ROUND_CEILING, **wide)  # type: ignore[arg-type]

    def ratio(self, low: Fraction, high: Fraction) -> Interval:
        return (
            self.down.divide(Decimal(low.numerator), Decimal(low.denominator)),
            self.up.divide(Decimal(high.numerator), Decimal(high.denominator)),
        )

    def times(self, a: Interval, b: Interval) -> Interval:
        return self.down.multiply(a[0], b[0]), self.up.multiply(a[1], b[1])

    def over(self, a: Interval, b: Interval) -> Interval:
        return self.down.divide(a[0], b[1]), self.up.divide(a[1], b[0])

    def total(self, parts: Sequence[Interval]) -> Interval:
        low, high = Decimal(0), Decimal(0)
        for part in parts:
            low, high = self.down.add(low, part[0]), self.up.add(high, part[1])
        return low, high

    def root(self, a: Interval) -> Interval:
        # sqrt and ln round to nearest whatever the context says: one digit outwards
        low = self.down.next_minus(self.down.sqrt(a[0]))
        return max(low, Decimal(0)), self.up.next_plus(self.up.sqrt(a[1]))

    def minus_log(self, low: Fraction, high: Fraction) -> Interval:
        """-ln of a number in low … high <= 1."""
        least = self.up.next_plus(self.up.ln(self.ratio(high, high)[1]))
        most = self.down.next_minus(self.down.ln(self.ratio(low, low)[0]))
        return max(least.copy_negate(), Decimal(0)), most.copy_negate()

    def normals(self, a: Digits, b: Digits) -> tuple[Interval, Interval]:
        """Magnitudes of two normal variables from a point (v, w) of the disc: v √(-2 ln S / S)."""
        (n1, m), (n2, _) = a, b
        low = Fraction(n1 * n1 + n2 * n2, 1 << (2 * m))
        high = Fraction((n1 + 1) ** 2 + (n2 + 1) ** 2, 1 << (2 * m))
        log = self.minus_log(low, high)
        # -2 ln S / S falls as S grows
        factor = self.root(self.over(self.total([log, log]), self.ratio(low, high)))
        first = self.times(self.ratio(Fraction(n1, 1 << m), Fraction(n1 + 1, 1 << m)), factor)
        second = self.times(self.ratio(Fraction(n2, 1 << m), Fraction(n2 + 1, 1 << m)), factor)
        return first, second
