"""Questions about groups: of which events' labels a noisy sum is wanted, and how they are clipped.

Group g is asked for ``Σ w_i clip(y_i - o_i, -h_g, h_g)`` over its events i, or for the sum of the
squares of what is clipped: how far labels are from offsets. What a question says may come from
anybody and from anything but the labels that it asks about: from the columns, and from what earlier
rounds said of other events. All that has to be checked of it is its shape.

As bytes every number is at a place that follows from those before it, little endian:

    8, 8, 4 bytes      lower, upper: float64; steps of the lattice: unsigned
    4, 4, 4 bytes      G groups, L levels of offsets, the largest |weight| or 0: unsigned
    4 bytes            how many of the groups, the last ones, ask for squares: unsigned
    4 L bytes, 4 G     offsets and half-widths, in steps: unsigned
    4 n bytes          each event's group, 2**32 - 1 for none: unsigned
    n bytes            each event's level, if L > 1
    4 n bytes          each event's weight, if there is a largest one: signed
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Booleans, Indices, Integers, finite
from labelveil.common.errors import ConfigError
from labelveil.common.mechanisms.group_sums.lattice import Lattice
from labelveil.common.randomizers.grid import Grid

NO_GROUP = (1 << 32) - 1
"""The group of an event that is not asked about."""

MOST_LEVELS = 256
MOST_WEIGHT = 1 << 20

_HEADER = np.dtype(
    [("lower", "<f8"), ("upper", "<f8"), ("steps", "<u4")]
    + [(name, "<u4") for name in ("groups", "levels", "weight", "squares")]
)
_FORMS = {
    "offsets": "<u4",
    "half_widths": "<u4",
    "groups": "<u4",
    "levels": "u1",
    "weights": "<i4",
}
"""Types in which numbers are kept and written, in this order."""
_LARGEST_SUM = 1 << 62
_ROWS_AT_ONCE = 1 << 20

Wholes = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class GroupQuestion:
    """Which group each of n events is in, and what of its label is summed there.

    :meth:`on_grid` takes offsets and widths in units of the label.

    Raises
    ------
    ConfigError
        If it is no such thing; this depends on nothing but the question.
    """

    lattice: Lattice
    """Of the labels."""
    groups: Wholes
    """(n,) of the events: 0 … G - 1, or :data:`NO_GROUP`."""
    half_widths: Wholes
    """(G,) of what is not clipped, in steps of the lattice: 1 … its steps."""
    offsets: Wholes = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    """(L,) levels that are subtracted from labels, as places 0 … on the lattice; at most 256."""
    levels: Wholes | None = None
    """(n,) which of them is each event's; None if there is one."""
    weights: Wholes | None = None
    """(n,) by which what is left is multiplied: -2**20 … 2**20, not all 0; None for 1."""
    squares: int = 0
    """Number of groups, the last ones, that ask for squares of what is clipped, in steps²."""

    def __post_init__(self) -> None:
        rows, steps = self.groups.size, self.lattice.steps
        count, most = self.half_widths.size, min(self.groups.size, NO_GROUP)
        _check("groups", self.groups, "one whole number for each event", rows >= 1)
        if not 1 <= count <= most:
            raise ConfigError(f"{count:,} groups of {rows:,} events must be 1 … {most:,}")
        _within("half-widths", self.half_widths, 1, steps, "steps: nothing is left of a width of 0")
        _within("offsets", self.offsets, 0, steps, "steps, within the labels' bounds")
        if not 1 <= self.offsets.size <= MOST_LEVELS:
            raise ConfigError(f"{self.offsets.size:,} levels of offsets must be 1 … {MOST_LEVELS}")
        if (self.levels is None) != (self.offsets.size == 1):
            raise ConfigError("levels say which of several offsets is each event's, and only then")
        if self.levels is not None:
            _within("levels", self.levels, 0, self.offsets.size - 1, "one for each event", rows)
        if self.weights is not None:
            bound = MOST_WEIGHT
            _within("weights", self.weights, -bound, bound, "one for each event", rows)
            if not self.weights.any():
                raise ConfigError("weights must not all be 0: nothing would be asked")
        if not 0 <= self.squares <= count:
            raise ConfigError(f"squares are asked of {self.squares:,} groups, and of 0 … {count:,}")
        widest = int(self.half_widths.max())
        largest = rows * self.largest_weight * (widest**2 if self.squares else widest)
        if largest >= _LARGEST_SUM:
            raise ConfigError(
                f"sums of up to {largest:.2g} must be below 2**62; use smaller weights, or a"
                " coarser grid"
            )
        for part in self._parts():
            _check_groups(self.groups[part], count)
        # what was checked is kept: nobody else's array, which could change before labels are summed
        for name, form in _FORMS.items():
            if (numbers := getattr(self, name)) is not None:
                object.__setattr__(self, name, _frozen(numbers, form))

    @classmethod
    def on_grid(
        cls,
        grid: Grid | Lattice,
        groups: ArrayLike,
        half_widths: ArrayLike,
        offsets: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Ask in units of the label.

        Parameters
        ----------
        grid
            Public points on which labels are placed.
        groups
            (n,) whole numbers 0 … G - 1; a negative one is no group.
        half_widths
            (G,), or one for all: how far from its offset a label counts; whole steps of the grid.
        offsets
            (n,), or one for all: points of the grid, of at most 256 values.
        weights
            (n,) whole numbers.

        Raises
        ------
        ConfigError, DataError
            If one of these lies off the grid's lattice, or is no number.
        """
        lattice = grid if isinstance(grid, Lattice) else Lattice.from_grid(grid)
        given = np.asarray(groups)
        if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size:
            raise ConfigError("groups must be a column of whole numbers, one for each event")
        group = np.where(given < 0, NO_GROUP, given).astype(np.int64)
        named = group[group != NO_GROUP]
        count = int(named.max()) + 1 if named.size else 1
        widths = np.broadcast_to(finite(np.atleast_1d(half_widths), "half-widths"), (count,))
        steps = lattice.places(lattice.lower + widths, "half-width: the bound plus")
        points, levels = np.unique(
            lattice.places(finite(np.atleast_1d(offsets), "offsets"), "offset"),
            return_inverse=True,
        )
        one = points.size == 1
        wholes = None if weights is None else np.asarray(weights)
        return cls(lattice, group, steps, points, None if one else levels, wholes)

    def __repr__(self) -> str:
        return (
            f"<a question about {self.groups.size:,} events in {self.half_widths.size:,} groups,"
            f" {self.offsets.size} offset{'s' * (self.offsets.size != 1)}>"
        )

    def __len__(self) -> int:
        return int(self.groups.size)

    @property
    def largest_weight(self) -> int:
        """max |w|, at least 1."""
        if self.weights is None:
            return 1
        return int(max(abs(int(self.weights.min())), abs(int(self.weights.max()))))

    @property
    def spans(self) -> Integers:
        """(G,) how far one label can move its group's sum: ``min(2h, steps) max |w|`` steps, or
        ``h² max |w|`` steps² of squares.

        Clipping moves no two numbers apart, and labels are at most all steps apart; squares of what
        is clipped are 0 … h².
        """
        widths = self.half_widths.astype(np.int64)
        moves = np.minimum(2 * widths, self.lattice.steps)
        return np.where(self.squared, widths**2, moves) * self.largest_weight

    @property
    def squared(self) -> Booleans:
        """(G,) which groups ask for squares."""
        count = self.half_widths.size
        return np.arange(count) >= count - self.squares

    @property
    def bits(self) -> float:
        """The most that it tells of each event: see :func:`bits_of`."""
        weight = 0 if self.weights is None else self.largest_weight
        return bits_of(self.half_widths.size, self.offsets.size, weight)

    @cached_property
    def widths(self) -> list[tuple[int, bool, int]]:
        """Half-widths that there are, each with whether squares are asked for and how many groups
        have it: of sums, ascending, and then of squares."""
        found = []
        for squared, part in enumerate(self._sums_and_squares(self.half_widths)):
            counts = np.zeros(self.lattice.steps + 1, dtype=np.int64)
            for start in range(0, part.size, _ROWS_AT_ONCE):
                few = part[start : start + _ROWS_AT_ONCE]
                counts += np.bincount(few, minlength=counts.size)
            there = np.flatnonzero(counts)
            found += [(int(width), bool(squared), int(counts[width])) for width in there]
        return found

    @property
    def spans_of_widths(self) -> list[int]:
        """:attr:`spans` of the groups of each of :attr:`widths`."""
        weight, steps = self.largest_weight, self.lattice.steps
        return [
            weight * (width**2 if squares else min(2 * width, steps))
            for width, squares, _ in self.widths
        ]

    def of_width(self, values: Sequence[int]) -> Integers:
        """(G,) values of each group, of one for each of :attr:`widths`."""
        tables = np.zeros((2, self.lattice.steps + 1), dtype=np.int64)
        for (width, squares, _), value in zip(self.widths, values, strict=True):
            tables[int(squares), width] = value
        parts = zip(tables, self._sums_and_squares(self.half_widths), strict=True)
        return np.concatenate([table[part] for table, part in parts])

    def _sums_and_squares(self, of_groups: Wholes) -> tuple[Wholes, Wholes]:
        plain = self.half_widths.size - self.squares
        return of_groups[:plain], of_groups[plain:]

    @cached_property
    def sizes(self) -> Integers:
        """(G,) how many events are in each group."""
        sizes = np.zeros(self.half_widths.size, dtype=np.int64)
        for part in self._parts():
            group = self.groups[part]
            sizes += np.bincount(group[group != NO_GROUP], minlength=sizes.size)
        return sizes

    def sums(self, places: Indices, first: int = 0) -> Integers:
        """(G,) sums of labels as they are, in steps or steps²: secret, never to be shown.

        ``places`` are (m,) labels on the lattice, 0 … steps, of the events from number ``first``
        on, all of them by default; others are moved to its ends.

        Raises
        ------
        ValueError
            If there is not one place for each event.
        """
        stop = first + places.size
        if places.ndim != 1 or first < 0 or stop > len(self):
            raise ValueError(f"places of shape {places.shape} must be one for each event")
        sums = np.zeros(self.half_widths.size, dtype=np.int64)
        offsets, widths = (each.astype(np.int64) for each in (self.offsets, self.half_widths))
        for part in self._parts(first, stop):
            members = np.flatnonzero(self.groups[part] != NO_GROUP)
            group = self.groups[part][members].astype(np.int64)
            offset = offsets if self.levels is None else offsets[self.levels[part][members]]
            place = places[part.start - first : part.stop - first][members]
            # labels off the lattice first move to its ends, whatever the offset: the sensitivity
            # min(2h, steps) counts on it
            width, place = widths[group], np.clip(place, 0, self.lattice.steps)
            clipped = np.clip(place - offset, -width, width)
            if self.squares:
                squared = group >= self.half_widths.size - self.squares
                clipped = np.where(squared, clipped**2, clipped)
            if self.weights is not None:
                clipped *= self.weights[part][members]
            np.add.at(sums, group, clipped)
        return sums

    def encode(self) -> bytes:
        """Write it as bytes."""
        return b"".join(map(bytes, self._written()))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all that is asked."""
        hashed = hashlib.sha256()
        for piece in self._written():
            hashed.update(piece)
        return hashed.digest()

    @staticmethod
    def most_bytes(rows: int) -> int:
        """The most bytes that a question about n events has."""
        sizes = {"offsets": MOST_LEVELS}
        return _HEADER.itemsize + sum(
            sizes.get(name, rows) * np.dtype(form).itemsize for name, form in _FORMS.items()
        )

    @classmethod
    def decode(cls, data: bytes | memoryview, rows: int) -> Self:
        """Read a question about n events.

        Raises
        ------
        ConfigError
            If the bytes are no question about n events.
        """
        if len(data) < _HEADER.itemsize:
            raise ConfigError(f"{len(data)} bytes are too few for a question about groups")
        header = np.frombuffer(data, _HEADER, 1)[0]
        groups, levels, weight, squares = (
            int(header[name]) for name in ("groups", "levels", "weight", "squares")
        )
        if not (1 <= groups <= rows and 1 <= levels <= MOST_LEVELS and weight <= MOST_WEIGHT):
            raise ConfigError(
                f"{groups:,} groups must be 1 … {rows:,}, {levels:,} levels 1 … {MOST_LEVELS}, and"
                f" the largest weight {weight:,} at most {MOST_WEIGHT:,}"
            )
        sizes = {"offsets": levels, "half_widths": groups, "groups": rows}
        sizes |= {"levels": rows} if levels > 1 else {}
        sizes |= {"weights": rows} if weight else {}
        lengths = {name: n * np.dtype(_FORMS[name]).itemsize for name, n in sizes.items()}
        whole = _HEADER.itemsize + sum(lengths.values())
        if len(data) != whole:
            raise ConfigError(
                f"a question about {rows:,} events in {groups:,} groups with {levels} levels has"
                f" {whole:,} bytes, not {len(data):,}"
            )
        read: dict[str, Wholes] = {}
        at = _HEADER.itemsize
        for name, size in sizes.items():
            read[name] = np.frombuffer(data, _FORMS[name], size, at)
            at += lengths[name]
        question = cls(
            Lattice(float(header["lower"]), float(header["upper"]), int(header["steps"])),
            **read,
            squares=squares,
        )
        if weight and question.largest_weight != weight:
            raise ConfigError(
                f"the largest weight is {question.largest_weight:,}, not the {weight:,} stated"
            )
        return question

    def _written(self) -> Iterator[memoryview]:
        """Its bytes, one part after another."""
        header = np.zeros(1, dtype=_HEADER)
        for name in ("lower", "upper", "steps"):
            header[name] = getattr(self.lattice, name)
        header["groups"], header["levels"] = self.half_widths.size, self.offsets.size
        header["weight"] = 0 if self.weights is None else self.largest_weight
        header["squares"] = self.squares
        yield header.data.cast("B")
        for name in _FORMS:
            if (numbers := getattr(self, name)) is not None:
                yield numbers.data.cast("B")

    def _parts(self, first: int = 0, stop: int | None = None) -> Iterator[slice]:
        """Rows a million at a time: what is made of them is small."""
        last = self.groups.size if stop is None else stop
        for start in range(first, last, _ROWS_AT_ONCE):
            yield slice(start, min(start + _ROWS_AT_ONCE, last))


def bits_of(groups: int, levels: int, largest_weight: int) -> float:
    """The most that a question tells whoever answers it of each event, in bits: its group or none,
    its offset, and its weight, if weights are said (else their largest is 0)."""
    return math.log2((groups + 1) * levels * (2 * largest_weight + 1))


def _check(name: str, values: Wholes, what: str, holds: bool = True) -> None:
    if values.ndim != 1 or values.dtype.kind not in "iu" or not holds:
        raise ConfigError(f"{name} of shape {values.shape}, {values.dtype}, must be {what}")


def _within(
    name: str, values: Wholes, least: int, most: int, what: str, size: int | None = None
) -> None:
    """Refuse what is no vector of whole numbers within bounds."""
    _check(name, values, what, values.size == size if size is not None else values.size > 0)
    low, high = int(values.min()), int(values.max())
    if not least <= low <= high <= most:
        raise ConfigError(f"{name} from {low:,} to {high:,} must be {least:,} … {most:,} {what}")


def _frozen(values: Wholes, form: str) -> Wholes:
    """A copy that nobody changes; what is such a one already is taken as it is."""
    base: object = values.base
    owner = base.obj if isinstance(base, memoryview) else base
    if values.dtype == form and values.flags.c_contiguous and isinstance(owner, bytes):
        return values  # as np.frombuffer gives it
    copy = np.array(values, dtype=form, order="C")
    copy.setflags(write=False)
    return copy


def _check_groups(groups: Wholes, count: int) -> None:
    wrong = (groups != NO_GROUP) & ((groups < 0) | (groups >= count))
    if wrong.any():
        raise ConfigError(
            f"group {int(groups[wrong][0]):,} must be one of 0 … {count - 1:,}, which have a"
            f" half-width, or {NO_GROUP} for none"
        )
