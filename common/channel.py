"""Finite channels with integer weights: exact ε, exact sampling.

A randomizer with finitely many outputs is a matrix of integers whose rows sum to 2**64. Row ``y``
is sampled by comparing one uniform 64-bit word with the row's cumulative weights, so its
probabilities are *exactly* weight / 2**64, and its privacy

    max over outputs z, inputs y and y' of  W[y, z] / W[y', z]

is a rational number, not an estimate. Requested parameters are always rounded towards more privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.entropy import Words
from common.errors import PrivacyError

Floats = NDArray[np.float64]
Codes = NDArray[np.uint16]
ArrayT = TypeVar("ArrayT", bound=NDArray[Any])

TOTAL = 1 << 64
"""What every row of integer weights sums to."""

MAX_OUTPUTS = 1 << 16
"""The most outputs a channel may have: codes are at most two bytes wide."""

_TAYLOR_TERMS = 120
_DECIMAL = Context(prec=60)
_CHUNK = 1 << 15
_AMBIGUOUS = np.uint16(0xFFFF)


class FiniteChannel:
    """A randomizer from finitely many labels to finitely many outputs, as exact integers.

    Labels often share a row (all labels of one bin, say), so rows are stored once.

    Parameters
    ----------
    inputs
        (k,) labels, strictly ascending.
    outputs
        (d,) values that the outputs stand for, ascending, 1 <= d < 65,536.
    rows
        (r, d) integers >= 0, each row summing to 2**64. No column may be zero for one row and
        positive for another: such a channel has no finite ε.
    row_of
        (k,) index of each input's row; the default is one row per input.

    Raises
    ------
    PrivacyError
        If the rows are not such a matrix.
    """

    def __init__(
        self,
        inputs: ArrayLike,
        outputs: ArrayLike,
        rows: Sequence[Sequence[int]],
        row_of: ArrayLike | None = None,
    ) -> None:
        self.inputs = _frozen(np.asarray(inputs, dtype=np.float64))
        self.outputs = _frozen(np.asarray(outputs, dtype=np.float64))
        self.rows = tuple(tuple(int(weight) for weight in row) for row in rows)
        index = np.arange(len(self.rows)) if row_of is None else np.asarray(row_of)
        self.row_of = _frozen(index.astype(np.int64))
        self._validate()

    def _validate(self) -> None:
        if self.inputs.ndim != 1 or not self.inputs.size:
            raise PrivacyError(f"inputs of shape {self.inputs.shape} must be a non-empty vector")
        if not np.all(np.isfinite(self.inputs)) or np.any(np.diff(self.inputs) <= 0):
            raise PrivacyError("inputs must be finite and strictly ascending")
        d = self.outputs.size
        if self.outputs.ndim != 1 or not 1 <= d < MAX_OUTPUTS:
            raise PrivacyError(f"{d} outputs must be between 1 and {MAX_OUTPUTS - 1}")
        if not np.all(np.isfinite(self.outputs)) or np.any(np.diff(self.outputs) < 0):
            raise PrivacyError("outputs must be finite and ascending")
        if self.row_of.shape != self.inputs.shape:
            raise PrivacyError(
                f"{self.row_of.size} row indices for {self.inputs.size} inputs; give one an input"
            )
        if self.row_of.min() < 0 or self.row_of.max() >= len(self.rows):
            raise PrivacyError(f"a row index lies outside 0 … {len(self.rows) - 1}")
        for i, row in enumerate(self.rows):
            if len(row) != d or min(row) < 0 or sum(row) != TOTAL:
                raise PrivacyError(
                    f"row {i} has {len(row)} weights summing to {sum(row)};"
                    f" {d} weights >= 0 must sum to 2**64"
                )
        for z, column in enumerate(zip(*self.rows, strict=True)):
            if min(column) == 0:
                raise PrivacyError(
                    f"output {z} has weight 0 for some label: its ε would be infinite (or, if it"
                    " is 0 for every label, the output is superfluous)"
                )

    @classmethod
    def from_probabilities(
        cls,
        inputs: ArrayLike,
        outputs: ArrayLike,
        probabilities: ArrayLike,
        epsilon: float,
        row_of: ArrayLike | None = None,
    ) -> FiniteChannel:
        """Round a float matrix to integer weights that certainly satisfy ε.

        Rounding and float error can push a ratio past e^ε, so the matrix is first mixed with its
        own column minima by the least of a few tiny amounts that passes the exact check.

        Parameters
        ----------
        inputs, outputs, row_of
            As in the constructor.
        probabilities
            (r, d) floats, rows summing to 1 up to float error, ε-DP up to float error.
        epsilon
            The bound that no ratio may pass.

        Raises
        ------
        PrivacyError
            If the matrix is not ε-DP to within 1e-6.
        """
        matrix = np.asarray(probabilities, dtype=np.float64)
        if matrix.ndim != 2 or not np.all(np.isfinite(matrix)) or matrix.min() < 0:
            raise PrivacyError("probabilities must be a matrix of finite numbers >= 0")
        sums = matrix.sum(axis=1)
        if np.any(np.abs(sums - 1) > 1e-6):
            raise PrivacyError(f"rows sum to {sums.min()} … {sums.max()}; each must sum to 1")
        limit = exp_lower_bound(epsilon)
        floor = matrix.min(axis=0)
        floor = floor / floor.sum() if floor.sum() > 0 else np.full(matrix.shape[1], 1.0)
        for shrink in (0.0, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5):
            mixed = (1 - shrink) * matrix / sums[:, None] + shrink * floor
            rows = [_integer_row(row) for row in mixed]
            if min(map(min, rows)) > 0 and _worst_ratio(rows) <= limit:
                return cls(inputs, outputs, rows, row_of)
        raise PrivacyError(
            f"the matrix has a probability ratio of {_worst_ratio(rows, strict=False)},"
            f" above e^{epsilon}; it is not {epsilon}-DP"
        )

    @cached_property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """(k, d) Python integers; every row sums to 2**64."""
        return tuple(self.rows[r] for r in self.row_of.tolist())

    @cached_property
    def row_probabilities(self) -> Floats:
        """(r, d) float64 probabilities of the distinct rows."""
        return _frozen(np.array([[w / TOTAL for w in row] for row in self.rows]))

    @cached_property
    def probabilities(self) -> Floats:
        """(k, d) float64 probabilities, from the integer weights."""
        return _frozen(self.row_probabilities[self.row_of])

    @cached_property
    def ratio(self) -> Fraction:
        """The largest ratio of two weights in one column: e^ε, exactly."""
        used = sorted(set(self.row_of.tolist()))
        return _worst_ratio([self.rows[r] for r in used])

    @cached_property
    def epsilon(self) -> float:
        """The exact ε of this channel as a float, at most one unit in the last place above ln."""
        return log_upper_bound(self.ratio)

    @property
    def code_bytes(self) -> int:
        """Bytes a code takes in a release: 1 up to 256 outputs, otherwise 2."""
        return 1 if self.outputs.size <= 256 else 2

    def satisfies(self, epsilon: float | Fraction) -> bool:
        """Whether the channel is certainly ε-DP, decided in rational arithmetic."""
        return self.ratio <= exp_lower_bound(epsilon)

    def sample(self, indices: NDArray[np.integer], words: Words) -> Codes:
        """Randomize input indices with one uniform word each.

        Parameters
        ----------
        indices
            (n,) indices into ``inputs``.
        words
            (n,) uint64, uniform and independent of everything.

        Returns
        -------
        (n,) uint16 output indices; entry ``i`` depends on ``indices[i]`` and ``words[i]`` alone.
        """
        if indices.shape != words.shape:
            raise ValueError(f"{indices.size} indices need as many words, not {words.size}")
        out = np.empty(indices.size, dtype=np.uint16)
        for start in range(0, indices.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            self._sampler.fill(self.row_of[indices[part]], words[part], out[part])
        return out

    @cached_property
    def _sampler(self) -> _Sampler:
        return _Sampler(self.rows)

    def to_json(self) -> dict[str, object]:
        """Return the channel as JSON values; weights as decimal strings, for they pass 2**53."""
        return {
            "inputs": self.inputs.tolist(),
            "outputs": self.outputs.tolist(),
            "row_of": self.row_of.tolist(),
            "rows": [[str(weight) for weight in row] for row in self.rows],
        }

    @classmethod
    def from_json(cls, data: dict[str, object]) -> FiniteChannel:
        """Rebuild a channel from :meth:`to_json`; everything is validated again."""
        try:
            rows = [[int(weight) for weight in row] for row in data["rows"]]  # type: ignore[attr-defined]
            return cls(data["inputs"], data["outputs"], rows, data["row_of"])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(f"this is not a channel: {error!r}") from error

    def __repr__(self) -> str:
        return (
            f"FiniteChannel({self.inputs.size} inputs, {self.outputs.size} outputs,"
            f" epsilon={self.epsilon:.6g})"
        )


class _Sampler:
    """Inverse-CDF sampling with a guide table: one lookup by a word's top bits, exact ties after.

    The top ``bits`` bits of a word select a cell of its row's table. The cell holds the output if
    the whole cell lies between two thresholds, and a mark otherwise; marked words (about
    d / 2**bits of all) are resolved by binary search over the row's exact cumulative weights.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        d = len(rows[0])
        bits = min(12, max(6, (d - 1).bit_length() + 5))
        self._bits = bits
        self._shift = np.uint64(64 - bits)
        cumulative = [_cumulative(row) for row in rows]
        # threshold j is the first word that belongs to an output above j; d - 1 of them a row
        self._thresholds = np.array([c[:-1] for c in cumulative], dtype=np.uint64).reshape(
            len(rows), d - 1
        )
        self._table = np.array([_guide(c, bits) for c in cumulative], dtype=np.uint16).ravel()

    def fill(self, rows: NDArray[np.int64], words: Words, out: Codes) -> None:
        cells = (words >> self._shift).astype(np.int64)
        cells += rows << self._bits
        self._table.take(cells, out=out)
        open_ = np.flatnonzero(out == _AMBIGUOUS)
        if open_.size:
            out[open_] = self._search(rows[open_], words[open_])

    def _search(self, rows: NDArray[np.int64], words: Words) -> Codes:
        """Count the thresholds at or below each word, by binary search inside its row."""
        low = np.zeros(words.size, dtype=np.int64)
        high = np.full(words.size, self._thresholds.shape[1], dtype=np.int64)
        for _ in range(int(self._thresholds.shape[1]).bit_length()):
            middle = (low + high) >> 1
            safe = np.minimum(middle, self._thresholds.shape[1] - 1)
            above = (self._thresholds[rows, safe] <= words) & (low < high)
            low = np.where(above, middle + 1, low)
            high = np.where(above, high, middle)
        return low.astype(np.uint16)


def _cumulative(row: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for weight in row:
        total += weight
        sums.append(total)
    return sums


def _guide(cumulative: Sequence[int], bits: int) -> list[int]:
    """For each cell of 2**(64 - bits) words: the output of all of them, or the ambiguity mark."""
    cell = 1 << (64 - bits)
    table, output = [], 0
    for index in range(1 << bits):
        first, last = index * cell, (index + 1) * cell - 1
        while cumulative[output] <= first:
            output += 1
        table.append(output if last < cumulative[output] else int(_AMBIGUOUS))
    return table


def randomized_response_rows(outputs: int, epsilon: float | Fraction) -> list[list[int]]:
    """Integer rows of randomized response: row j says j with the large weight, the rest alike.

    The small weight is rounded up, so that the ratio never exceeds e^ε.

    Parameters
    ----------
    outputs
        Number of outputs d >= 1.
    epsilon
        Privacy parameter > 0.

    Returns
    -------
    (d, d) Python integers, each row summing to 2**64.
    """
    if outputs < 1:
        raise PrivacyError(f"outputs={outputs} must be at least 1")
    grow = exp_lower_bound(epsilon)
    lie = math.ceil(TOTAL / (grow + outputs - 1))
    keep = TOTAL - (outputs - 1) * lie
    return [[keep if z == j else lie for z in range(outputs)] for j in range(outputs)]


def exp_lower_bound(epsilon: float | Fraction) -> Fraction:
    """Return a rational number just below e^ε (relative gap under 1e-40), for 0 <= ε <= 40.

    A truncated Taylor series: every term is positive, so leaving terms out and rounding terms down
    both stay below.
    """
    value = Fraction(epsilon)
    if not 0 <= value <= 40:
        raise PrivacyError(f"epsilon={float(value)} must lie in 0 … 40")
    term, total = Fraction(1), Fraction(1)
    scale = 1 << 192
    for j in range(1, _TAYLOR_TERMS):
        term = Fraction(math.floor(term * value / j * scale), scale)
        total += term
    return total


def log_upper_bound(ratio: Fraction) -> float:
    """Return the smallest float that is at least ln(ratio), for ratio >= 1."""
    if ratio < 1:
        raise ValueError(f"ratio={ratio} must be >= 1")
    quotient = _DECIMAL.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
    exact = _DECIMAL.ln(quotient) if quotient > 1 else Decimal(0)
    nearest = float(exact)
    return math.nextafter(nearest, math.inf) if Decimal(nearest) < exact else nearest


def _worst_ratio(rows: Sequence[Sequence[int]], *, strict: bool = True) -> Fraction:
    worst = Fraction(1)
    for column in zip(*rows, strict=True):
        if min(column) == 0:
            if strict:
                raise PrivacyError("a column is zero for one label and positive for another")
            continue
        worst = max(worst, Fraction(max(column), min(column)))
    return worst


def _integer_row(row: Floats) -> list[int]:
    """Round a row of probabilities to integers that sum to 2**64, mending the largest entry."""
    weights = [round(Fraction(float(p)) * TOTAL) for p in row]
    largest = max(range(len(weights)), key=weights.__getitem__)
    weights[largest] += TOTAL - sum(weights)
    return weights


def _frozen(array: ArrayT) -> ArrayT:
    array = array.copy()
    array.setflags(write=False)
    return array
