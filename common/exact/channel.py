"""Finite channels with integer weights: exact ε, exact sampling.

A randomizer with finitely many outputs is a matrix of integers whose rows sum to 2**64. Row ``y``
is sampled by comparing one uniform 64-bit word with the row's cumulative weights, so its
probabilities are *exactly* weight / 2**64, and its privacy

    max over outputs z, inputs y and y' of  W[y, z] / W[y', z]

is a rational number, not an estimate. Requested parameters are always rounded towards more privacy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.arrays import Floats, Integers
from common.entropy import Words
from common.errors import PrivacyError
from common.exact.rational import exp_lower_bound as exp_lower_bound
from common.exact.rational import log_upper_bound as log_upper_bound

Codes = NDArray[np.uint16]
ArrayT = TypeVar("ArrayT", bound=NDArray[Any])

TOTAL = 1 << 64
"""What every row of integer weights sums to."""

MAX_OUTPUTS = 1 << 16
"""The most outputs a channel may have: codes are at most two bytes wide."""

_WEIGHT = re.compile(r"[0-9]{1,20}")
_CHUNK = 1 << 15
_MAX_TABLE = 1 << 23
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
        self.rows = tuple(tuple(map(int, row)) for row in rows)
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

    @cached_property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """(k, d) Python integers; every row sums to 2**64."""
        return tuple(self.rows[r] for r in self.row_of.tolist())

    @cached_property
    def row_probabilities(self) -> Floats:
        """(r, d) float64 probabilities of the distinct rows."""
        return _frozen(np.array(self.rows, dtype=np.float64) / TOTAL)

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
    def is_terse(self) -> bool:
        """Whether every row is that of some input, and no two rows are alike."""
        used = len(set(self.row_of.tolist()))
        return used == len(self.rows) == len(set(self.rows))

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

        Raises
        ------
        ValueError
            If an index is outside 0 … k - 1 (a negative one would silently count from the end).
        """
        if indices.shape != words.shape:
            raise ValueError(f"{indices.size} indices need as many words, not {words.size}")
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < self.inputs.size:
            raise ValueError(f"an index is outside 0 … {self.inputs.size - 1}")
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
    def from_json(cls, data: Mapping[str, object]) -> FiniteChannel:
        """Rebuild a channel from :meth:`to_json`, trusting nothing.

        Raises
        ------
        PrivacyError
            If a field is missing or has another type, or the channel is not a valid one.
        """
        try:
            inputs, outputs, index, rows = (
                data[name] for name in ("inputs", "outputs", "row_of", "rows")
            )
        except (KeyError, TypeError) as error:
            raise PrivacyError(f"this is not a channel: {error!r}") from error
        if not (_is_list_of(inputs, int, float) and _is_list_of(outputs, int, float)):
            raise PrivacyError("this is not a channel: inputs and outputs must be lists of numbers")
        if not _is_list_of(index, int):
            raise PrivacyError("this is not a channel: row_of must be a list of integers")
        if not (_is_list_of(rows, list) and rows):
            raise PrivacyError("this is not a channel: rows must be a list of lists")
        if not all(isinstance(w, str) and _WEIGHT.fullmatch(w) for row in rows for w in row):
            raise PrivacyError("this is not a channel: weights must be decimal strings")
        try:
            return cls(inputs, outputs, [[int(w) for w in row] for row in rows], index)
        except OverflowError as error:
            raise PrivacyError("this is not a channel: a number is out of range") from error

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
        r, d = len(rows), len(rows[0])
        bits = min(12, max(6, (d - 1).bit_length() + 5), max(6, (_MAX_TABLE // r).bit_length() - 1))
        self._bits = bits
        self._shift = np.uint64(64 - bits)
        # threshold j is the first word that belongs to an output above j; d - 1 of them a row
        below = np.array([row[:-1] for row in rows], dtype=np.uint64).reshape(r, d - 1)
        self._thresholds = np.cumsum(below, axis=1, dtype=np.uint64)
        first = np.arange(1 << bits, dtype=np.uint64) << self._shift
        last = first + np.uint64((1 << (64 - bits)) - 1)
        self._table = np.concatenate([_guide(row, first, last) for row in self._thresholds])

    def fill(self, rows: Integers, words: Words, out: Codes) -> None:
        cells = (words >> self._shift).astype(np.int64)
        cells += rows << self._bits
        self._table.take(cells, out=out)
        open_ = np.flatnonzero(out == _AMBIGUOUS)
        if open_.size:
            out[open_] = self._search(rows[open_], words[open_])

    def _search(self, rows: Integers, words: Words) -> Codes:
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


def _guide(thresholds: Words, first: Words, last: Words) -> Codes:
    """Per cell of words first … last: the output of all of them, or the ambiguity mark."""
    low = np.searchsorted(thresholds, first, side="right")
    high = np.searchsorted(thresholds, last, side="right")
    return np.where(low == high, low, _AMBIGUOUS).astype(np.uint16)


def randomized_response_rows(outputs: int, epsilon: float | Fraction) -> list[list[int]]:
    """Integer rows of randomized response: row j says j with the large weight, the rest alike.

    The small weight is the least integer whose ratio does not exceed e^ε. Where ε is so small
    that this makes it the larger one, all rows are alike and the output says nothing.

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
    if keep < lie:
        share, over = divmod(TOTAL, outputs)
        return [[share + (z < over) for z in range(outputs)]] * outputs
    return [[keep if z == j else lie for z in range(outputs)] for j in range(outputs)]


def _worst_ratio(rows: Sequence[Sequence[int]]) -> Fraction:
    return max(Fraction(max(column), min(column)) for column in zip(*rows, strict=True))


def _is_list_of(value: object, *types: type) -> TypeGuard[list[Any]]:
    """Whether a JSON value is a list of exactly these types (``bool`` is not ``int`` here)."""
    return isinstance(value, list) and all(type(item) in types for item in value)


def _frozen(array: ArrayT) -> ArrayT:
    array = array.copy()
    array.setflags(write=False)
    return array
