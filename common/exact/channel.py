"""Finite channels with integer weights: exact ε, exact sampling.

A randomizer with finitely many outputs is a matrix of integers whose rows sum to 2**64. Row ``y``
is sampled by comparing one uniform 64-bit word with the row's cumulative weights, so its
probabilities are *exactly* weight / 2**64, and its privacy

    max over outputs z, inputs y and y' of  W[y, z] / W[y', z]

is a rational number, not an estimate. Requested parameters are always rounded towards more privacy.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Booleans, Floats, Indices, Integers, Words
from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import exp_lower_bound, log_upper_bound

Codes = NDArray[np.uint16]
ArrayT = TypeVar("ArrayT", bound=NDArray[Any])

TOTAL = 1 << 64
"""What every row of integer weights sums to."""

MAX_OUTPUTS = 1 << 16
"""The most outputs a channel may have: codes are at most two bytes wide."""

BETWEEN = -1
"""The row of an input that has none of its own: a mixture of those of its neighbours that do."""

MAX_TABLE = 9_000_000
"""The most weights that a channel has for all inputs together: in memory, 72 MB."""

_SHARE_BITS = 48
_LIMB_BITS = 16
_LIMBS = range(4)
_MIXED_AT_ONCE = 1 << 20
_CHUNK = 1 << 15
_MOST_CELLS = 1 << 23
_AMBIGUOUS = np.uint16(0xFFFF)


class FiniteChannel:
    """A randomizer from finitely many labels to finitely many outputs, as exact integers.

    Labels often share a row (all labels of one bin, say), so rows are stored once. On a fine grid
    labels mostly are rounded at random to a few of its points first; such a label has no row of its
    own, and what it has follows from those of the two points by integer arithmetic
    (:func:`mixtures`).

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
        (k,) index of each input's row; the default is one row per input. :data:`BETWEEN` for an
        input, neither the first nor the last, whose row is a mixture of its neighbours'.

    Raises
    ------
    PrivacyError
        If the rows are not such a matrix.
    """

    def __init__(
        self,
        inputs: ArrayLike,
        outputs: ArrayLike,
        rows: Sequence[Sequence[int]] | Words,
        row_of: ArrayLike | None = None,
    ) -> None:
        self.inputs = _frozen(np.asarray(inputs, dtype=np.float64))
        self.outputs = _frozen(np.asarray(outputs, dtype=np.float64))
        self._check_labels()
        table = rows if isinstance(rows, np.ndarray) else self._as_words(rows)
        index = np.arange(len(table)) if row_of is None else np.asarray(row_of, dtype=np.int64)
        self._check_rows(table, index)
        table, index = _without_repeats(table, index)
        self.stated, self.stated_of = _frozen(table), _frozen(index)

    def _check_labels(self) -> None:
        if self.inputs.ndim != 1 or not self.inputs.size:
            raise PrivacyError(f"inputs of shape {self.inputs.shape} must be a non-empty vector")
        if not np.all(np.isfinite(self.inputs)) or np.any(self.inputs[1:] <= self.inputs[:-1]):
            raise PrivacyError("inputs must be finite and strictly ascending")
        if not math.isfinite(float(self.inputs[-1]) - float(self.inputs[0])):
            raise PrivacyError("inputs must have a finite range")
        d = self.outputs.size
        if self.outputs.ndim != 1 or not 1 <= d < MAX_OUTPUTS:
            raise PrivacyError(f"{d} outputs must be between 1 and {MAX_OUTPUTS - 1}")
        if not np.all(np.isfinite(self.outputs)) or np.any(self.outputs[1:] < self.outputs[:-1]):
            raise PrivacyError("outputs must be finite and ascending")
        if self.inputs.size * d > MAX_TABLE:
            raise PrivacyError(
                f"{self.inputs.size:,} inputs and {d:,} outputs make more than {MAX_TABLE:,}"
                " weights; use a coarser label grid"
            )

    def _as_words(self, rows: Sequence[Sequence[int]]) -> Words:
        """Write rows of Python integers as words; the only weight that is none, 2**64, as 0."""
        d = self.outputs.size
        for i, row in enumerate(rows):
            if len(row) != d or min(row) < 0 or sum(row) != TOTAL:
                raise PrivacyError(
                    f"row {i} has {len(row)} weights summing to {sum(row)};"
                    f" {d} weights >= 0 must sum to 2**64"
                )
        words = [[weight % TOTAL for weight in row] for row in rows]
        return np.array(words, dtype=np.uint64).reshape(-1, d)

    def _check_rows(self, table: Words, index: Indices) -> None:
        d = self.outputs.size
        if table.shape[1:] != (d,) or not np.all(_complete(table)):
            raise PrivacyError(f"rows of shape {table.shape}: {d} weights >= 0 must sum to 2**64")
        if index.shape != self.inputs.shape:
            raise PrivacyError(
                f"{index.size} row indices for {self.inputs.size} inputs; give one each"
            )
        if index.min() < BETWEEN or index.max() >= len(table):
            raise PrivacyError(f"a row index lies outside 0 … {len(table) - 1}")
        if BETWEEN in index[[0, -1]]:
            raise PrivacyError("the first and the last input need rows of their own")
        # a row without a single word sums to 0, not to 2**64; with one output that stands for all
        if d > 1 and not table.all():
            raise PrivacyError(
                f"output {int(table.min(axis=0).argmin())} has weight 0 for some label: its ε would"
                " be infinite (or, if it is 0 for every label, the output is superfluous)"
            )

    @cached_property
    def _every(self) -> tuple[Words, Indices]:
        """All rows, the mixtures too, and the row of each input."""
        mixed = np.flatnonzero(self.stated_of == BETWEEN)
        if not mixed.size:
            return self.stated, self.stated_of
        own = np.flatnonzero(self.stated_of != BETWEEN)
        above = np.searchsorted(own, mixed)
        before, after = own[above - 1], own[above]
        lower, upper = self.inputs[before], self.inputs[after]
        # one division and one product in double precision: alike on every machine
        share = np.floor((self.inputs[mixed] - lower) / (upper - lower) * 2.0**_SHARE_BITS)
        table = np.empty((len(self.stated) + mixed.size, self.outputs.size), dtype=np.uint64)
        table[: len(self.stated)] = self.stated
        step = max(_MIXED_AT_ONCE // self.outputs.size, 1)
        for start in range(0, mixed.size, step):
            part = slice(start, start + step)
            table[len(self.stated) :][part] = mixtures(
                self.stated[self.stated_of[before[part]]],
                self.stated[self.stated_of[after[part]]],
                share[part].astype(np.uint64),
            )
        row_of = self.stated_of.copy()
        row_of[mixed] = len(self.stated) + np.arange(mixed.size)
        return _frozen(table), _frozen(row_of)

    @property
    def row_of(self) -> Indices:
        """(k,) index of each input's row among all ``rows``."""
        return self._every[1]

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """(r, d) Python integers: the rows that were given, and then the mixtures."""
        if self.outputs.size == 1:
            return ((TOTAL,),) * len(self._every[0])
        return tuple(map(tuple, self._every[0].tolist()))

    @cached_property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """(k, d) Python integers; every row sums to 2**64."""
        return tuple(self.rows[r] for r in self.row_of.tolist())

    @cached_property
    def row_probabilities(self) -> Floats:
        """(r, d) float64 probabilities of all rows."""
        if self.outputs.size == 1:
            return _frozen(np.ones((len(self._every[0]), 1)))
        return _frozen(self._every[0].astype(np.float64) / TOTAL)

    @cached_property
    def probabilities(self) -> Floats:
        """(k, d) float64 probabilities, from the integer weights."""
        return _frozen(self.row_probabilities[self.row_of])

    @cached_property
    def ratio(self) -> Fraction:
        """The largest ratio of two weights in one column: e^ε, exactly.

        A mixture's weights lie between those that it is made of, and so change nothing.
        """
        if self.outputs.size == 1:
            return Fraction(1)
        most, least = self.stated.max(axis=0), self.stated.min(axis=0)
        # floats are off by less than a part in 2**50: those near the largest are compared exactly
        about = most.astype(np.float64) / least.astype(np.float64)
        near = np.flatnonzero(about >= about.max() * (1 - 2.0**-50))
        pairs = zip(most[near].tolist(), least[near].tolist(), strict=True)
        return max(Fraction(high, low) for high, low in pairs)

    @cached_property
    def epsilon(self) -> float:
        """The exact ε of this channel as a float, at most one unit in the last place above ln."""
        return log_upper_bound(self.ratio)

    @property
    def code_bytes(self) -> int:
        """Bytes a code takes in a release: 1 up to 256 outputs, otherwise 2."""
        return 1 if self.outputs.size <= 256 else 2

    def sample(self, indices: NDArray[np.integer], words: Words) -> Codes:
        """Randomize (n,) input indices with one uniform word each, independent of everything.

        Returns (n,) uint16 output indices; entry ``i`` depends on ``indices[i]`` and ``words[i]``
        alone.

        Raises
        ------
        ValueError
            If an index is outside 0 … k - 1 (a negative one would silently count from the end), or
            there are not as many words.
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
        return _Sampler(self._every[0])

    def to_json(self) -> dict[str, object]:
        """Return the channel, but for its inputs, as JSON values.

        A row is the base64 of its weights as little-endian 64-bit words; a channel's only output
        has 2**64, which is written 0.
        """
        return {
            "outputs": self.outputs.tolist(),
            "row_of": self.stated_of.tolist(),
            "rows": [b64encode(row.astype("<u8").tobytes()).decode() for row in self.stated],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], inputs: ArrayLike) -> FiniteChannel:
        """Rebuild a channel from :meth:`to_json`, trusting nothing.

        Raises
        ------
        PrivacyError
            If a field is missing or has another type, or the channel is not a valid one.
        """
        try:
            outputs, index, rows = (data[name] for name in ("outputs", "row_of", "rows"))
        except (KeyError, TypeError) as error:
            raise PrivacyError(f"this is not a channel: {error!r}") from error
        for name, value, kind, types in (
            ("outputs", outputs, "numbers", (int, float)),
            ("row_of", index, "integers", (int,)),
            ("rows", rows, "texts", (str,)),
        ):
            # exactly these types: ``bool`` is not ``int`` here
            if not (isinstance(value, list) and all(type(item) in types for item in value)):
                raise PrivacyError(f"this is not a channel: {name} must be a list of {kind}")
        try:
            words = [np.frombuffer(b64decode(row, validate=True), dtype="<u8") for row in rows]
        except ValueError as error:
            raise PrivacyError("this is not a channel: rows must be 64-bit words in base64") from (
                error
            )
        if {row.size for row in words} != {len(outputs)}:
            raise PrivacyError(
                f"this is not a channel: a row must have {len(outputs)} weights, one an output"
            )
        try:
            return cls(inputs, outputs, np.array(words, dtype=np.uint64), index)
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

    def __init__(self, rows: Words) -> None:
        r, d = rows.shape
        bits = min(
            12, max(6, (d - 1).bit_length() + 5), max(6, (_MOST_CELLS // r).bit_length() - 1)
        )
        self._bits = bits
        self._shift = np.uint64(64 - bits)
        # threshold j is the first word that belongs to an output above j; d - 1 of them a row
        self._thresholds = np.cumsum(rows[:, :-1], axis=1, dtype=np.uint64)
        # those on a cell's first word divide it from the one before, others are inside of theirs
        cell = (self._thresholds >> self._shift).astype(np.int64)
        inside = (self._thresholds & np.uint64((1 << (64 - bits)) - 1)) != 0
        lengths = np.diff(cell + inside, axis=1, prepend=0, append=1 << bits)
        outputs = np.broadcast_to(np.arange(d, dtype=np.uint16), rows.shape)
        self._table = np.repeat(outputs.reshape(-1), lengths.reshape(-1))
        row, place = np.nonzero(inside)
        self._table[(row << bits) + cell[row, place]] = _AMBIGUOUS

    def fill(self, rows: Integers, words: Words, out: Codes) -> None:
        cells = (words >> self._shift).astype(np.int64)
        cells += rows << self._bits
        self._table.take(cells, out=out)
        open_ = np.flatnonzero(out == _AMBIGUOUS)
        if open_.size:
            out[open_] = self._search(rows[open_], words[open_])

    def _search(self, rows: Integers, words: Words) -> Codes:
        """Count the thresholds at or below each word, by binary search inside its row."""
        count = self._thresholds.shape[1]
        low, high = np.zeros_like(rows), np.full_like(rows, count)
        for _ in range(count.bit_length()):
            middle = (low + high) >> 1
            below = self._thresholds[rows, np.minimum(middle, count - 1)] <= words
            below &= low < high
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        return low.astype(np.uint16)


def randomized_response_rows(outputs: int, epsilon: float | Fraction) -> list[list[int]]:
    """Integer rows of randomized response: row j says j with the large weight, the rest alike.

    The small weight is the least integer whose ratio does not exceed e^ε. Where ε is so small
    that this makes it the larger one, all rows are alike and the output says nothing.

    Raises
    ------
    PrivacyError
        If there is no output, or ε is outside 0 … 40.
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


def mixtures(low: Words, high: Words, shares: Words) -> Words:
    """Mix pairs of rows, so that the result is exactly as private as they are.

    With C and C' the cumulative weights of two rows and the share s/2**48 of the second, those of
    the mixture are floor(((2**48 - s) C + s C') / 2**48). So it sums to 2**64, and each weight is
    that of the exact mixture rounded down or up: it lies between the two that it is made of, and
    can be the largest or the least of its column only where one of these is.

    ``low`` and ``high`` are (m, d) weights, each row summing to 2**64 modulo 2**64; ``shares`` are
    (m,) s, from 0 to 2**48.
    """
    # Limb by limb of 16 bits, since products of whole words would not fit one: two of a limb and a
    # share do, as the shares add up to 2**48.
    second = shares[:, None]
    first = np.uint64(1 << _SHARE_BITS) - second
    mask = np.uint64((1 << _LIMB_BITS) - 1)
    whole, rest = np.zeros_like(low), np.zeros_like(low)
    for limb in _LIMBS:
        lowest = np.uint64(_LIMB_BITS * limb)
        product = (low >> lowest & mask) * first + (high >> lowest & mask) * second
        beyond = np.uint64(_SHARE_BITS - _LIMB_BITS * limb)
        whole += product >> beyond
        rest += (product & (np.uint64(1) << beyond) - np.uint64(1)) << lowest
    whole += rest >> np.uint64(_SHARE_BITS)
    rest &= np.uint64((1 << _SHARE_BITS) - 1)
    # floors of cumulative sums: fractions carry over to the next weight, and none is lost
    carried = np.cumsum(rest, axis=1) >> np.uint64(_SHARE_BITS)
    whole += carried
    whole[:, 1:] -= carried[:, :-1]
    return whole


def _without_repeats(table: Words, index: Indices) -> tuple[Words, Indices]:
    """Leave out rows that no input has and repeated ones: they could say more than the channel."""
    used = np.unique(index[index != BETWEEN])
    _, first, alike = np.unique(table[used], axis=0, return_index=True, return_inverse=True)
    kept = np.sort(first)
    place = np.searchsorted(kept, first)[alike.reshape(-1)]
    new = index.copy()
    own = index != BETWEEN
    new[own] = place[np.searchsorted(used, index[own])]
    return table[used[kept]], new


def _complete(table: Words) -> Booleans:
    """(r,) whether each row of words sums to 2**64; that of one word is 0, which stands for 2**64.

    Two halves are added up, so that no sum of up to 65,535 words wraps around.
    """
    half = np.uint64(32)
    upper, lower = (table >> half).sum(axis=1), (table & np.uint64(0xFFFFFFFF)).sum(axis=1)
    total = 0 if table.shape[1] == 1 else 1 << 32
    return np.asarray((upper + (lower >> half) == total) & (lower & np.uint64(0xFFFFFFFF) == 0))


def _frozen(array: ArrayT) -> ArrayT:
    array = array.copy()
    array.setflags(write=False)
    return array
