"""Mean labels of groups of events, and by how much they differ from a control group's.

From codes: :mod:`labelveil.feature_party.evaluation.code_means`. From noisy sums
(:mod:`labelveil.common.mechanisms.group_sums`) a mean is its sum over the number of events.

Intervals of 95% hold for all groups together (Bonferroni). Those from codes are about all events
like these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from rich.table import Table
from scipy.special import ndtri

from labelveil.common.arrays import Indices
from labelveil.common.errors import ConfigError, DataError, printable
from labelveil.common.mechanisms.group_sums import NO_GROUP, PrivateSums
from labelveil.feature_party.evaluation.breakdown import groups_by, number
from labelveil.feature_party.evaluation.code_means import GroupCodes
from labelveil.feature_party.evaluation.intervals import Measured, noisy_half_width
from labelveil.feature_party.schema import ColumnMeaning

MOST = 1_000
"""Values of a column that are groups of their own: the commonest."""

_CHANCE = 0.05
"""That any of all intervals does not hold."""

Values = tuple[str, ...]


@dataclass(frozen=True)
class GroupMean:
    """A group's mean label."""

    values: Values
    """Of the columns that it is a group by."""
    events: int
    mean: Measured
    lift: Measured | None = None
    """Its mean less the control's, where there is one."""

    def to_json(self, by: Sequence[str]) -> dict[str, Any]:
        """As the commands print it."""
        lift = {} if self.lift is None else self.lift.to_json("lift")
        return {
            "group": dict(zip(by, self.values, strict=True)),
            "events": self.events,
            **self.mean.to_json("mean"),
            **lift,
        }


def grouped(
    columns: Mapping[str, pl.Series], meanings: Mapping[str, ColumnMeaning]
) -> list[tuple[Values, Indices]]:
    """Rows by the values of (n,) columns: by each pair of two columns' that there is, and so on.

    Numbers of more than twenty values are taken in five ranges; of other columns the thousand
    commonest values are groups, and what is left is ``others``.
    """
    found = [groups_by(cells, meanings[name], MOST, 1) for name, cells in columns.items()]
    rows = len(next(iter(columns.values())))
    code = np.zeros(rows, dtype=np.int64)
    for groups in found:
        own = np.zeros(rows, dtype=np.int64)
        for place, (_, members) in enumerate(groups):
            own[members] = place
        code = code * len(groups) + own
    order = np.argsort(code, kind="stable")
    present, first = np.unique(code[order], return_index=True)
    names = list(product(*([name for name, _ in groups] for groups in found)))
    parts = np.split(order, first[1:])
    return [(names[at], mine) for at, mine in zip(present.tolist(), parts, strict=True)]


def means_of_codes(
    groups: Sequence[tuple[Values, Indices]], codes: GroupCodes, control: str | None = None
) -> list[GroupMean]:
    """Means of groups of events by their codes; of groups without a code that tells means none.

    ``control`` is the value of the last column with which all others are compared.
    """
    found, errors = [], []
    for group, rows in groups:
        if told := int(codes.told[rows].sum()):
            mean, error = codes.mean(rows)
            found.append(_Estimate(group, told, mean))
            errors.append(error)

    def half_width(places: Sequence[int], chance: float) -> float:
        return -float(ndtri(chance / 2)) * math.hypot(*(errors[place] for place in places))

    return _with_intervals(found, half_width, codes.ends, control)


def means_of_sums(
    groups: Sequence[tuple[Values, Indices]], sums: PrivateSums, control: str | None = None
) -> list[GroupMean]:
    """Means of the labels of these very events, of which the sums clip none and weigh none.

    Sums are of groups within one of these, or of several together. Intervals are of the noise
    alone; groups that nothing was asked about are left out. ``ConfigError`` if sums say no means.
    """
    question, lattice = sums.question, sums.question.lattice
    if question.squares or question.weights is not None or not _whole(sums):
        raise ConfigError(
            "the sums are of weighed, squared or clipped labels, which tell no means; ask for those"
            " of lv.ask_means"
        )
    asked = question.groups != NO_GROUP
    mine = np.zeros(asked.size, dtype=np.int64)
    for place, (_, rows) in enumerate(groups):
        mine[rows] = place
    mine, inner = mine[asked], question.groups[asked].astype(np.int64)
    # a question's group may lie within one of these, never across two
    place_of = np.full(question.half_widths.size, -1)
    place_of[inner] = mine
    if (place_of[inner] != mine).any():
        raise ConfigError(
            "the sums are of groups that hold several values of these columns; name those that"
            " they were asked by"
        )
    level = 0 if question.levels is None else question.levels[asked]
    places = np.broadcast_to(question.offsets[level], mine.shape).astype(np.int64)
    sizes = np.bincount(mine, minlength=len(groups))
    # a sum is of labels less their offsets: the offsets, which are public, are added again
    totals = np.bincount(mine, lattice.points(places), minlength=len(groups))
    told = place_of >= 0
    np.add.at(totals, place_of[told], sums.values[told])
    scales = sums.deviations / math.sqrt(2)
    found, noise = [], []
    for place in np.flatnonzero(sizes).tolist():
        size = int(sizes[place])
        found.append(_Estimate(groups[place][0], size, float(totals[place] / size)))
        noise.append(scales[place_of == place] / size)

    def half_width(places: Sequence[int], chance: float) -> float:
        each = (scale for place in places for scale in noise[place])
        return noisy_half_width(0.0, *each, chance=chance)

    return _with_intervals(found, half_width, (lattice.lower, lattice.upper), control)


@dataclass(frozen=True)
class _Estimate:
    group: Values
    events: int
    mean: float


def _with_intervals(
    found: Sequence[_Estimate],
    half_width: Callable[[Sequence[int], float], float],
    ends: tuple[float, float],
    control: str | None,
) -> list[GroupMean]:
    """Means, and lifts from a control group, with intervals that hold for all of each together.

    ``half_width`` has that of one group's mean, or of the difference of two, with a chance to err.
    """
    pairs = _pairs([each.group for each in found], control)
    means = []
    for place, each in enumerate(found):
        lift = None
        if (other := pairs.get(place)) is not None:
            apart = half_width((place, other), _CHANCE / len(pairs))
            lift = _around(each.mean - found[other].mean, apart)
        mean = _around(each.mean, half_width((place,), _CHANCE / len(found)))
        means.append(GroupMean(each.group, each.events, mean.within(*ends), lift))
    return means


def _whole(sums: PrivateSums) -> bool:
    """Whether no label is clipped to a group's width."""
    question = sums.question
    furthest = np.maximum(question.offsets, question.lattice.steps - question.offsets.astype(int))
    asked = np.flatnonzero(question.groups != NO_GROUP)
    level = 0 if question.levels is None else question.levels[asked]
    reach = np.broadcast_to(furthest[level], asked.shape)
    return bool((question.half_widths[question.groups[asked]] >= reach).all())


def means_table(by: Sequence[str], means: Sequence[GroupMean]) -> Table:
    """Lay groups out for reading; names that are too long go on in another line, as a whole."""
    table = Table(box=None, pad_edge=False)
    for name in by:
        table.add_column(printable(name), overflow="fold")
    lifts = any(mean.lift is not None for mean in means)
    for name in ("events", "mean", "95%", *(("lift", "95%") if lifts else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for each in means:
        cells = [f"{each.events:,}", *_cells(each.mean)]
        if lifts:
            cells += ["", ""] if each.lift is None else _cells(each.lift)
        table.add_row(*map(printable, each.values), *cells)
    return table


def _cells(figure: Measured) -> list[str]:
    return [number(figure.value), f"{number(figure.low)} … {number(figure.high)}"]


def _around(value: float, half: float) -> Measured:
    return Measured(value, value - half, value + half)


def _pairs(groups: Sequence[Values], control: str | None) -> dict[int, int]:
    """Which group each is compared with: of the same values but the last, the control's."""
    if control is None:
        return {}
    places = {group: place for place, group in enumerate(groups)}
    known = sorted({group[-1] for group in groups})
    if control not in known:
        shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
        raise DataError(f"control {control!r} is none of the values {shown}")
    return {
        place: places[other]
        for place, group in enumerate(groups)
        if group[-1] != control and (other := (*group[:-1], control)) in places
    }
