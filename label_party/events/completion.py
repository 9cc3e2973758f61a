"""Complete the population: exactly one of every label for each event that both parties know.

The features party sees how many rows a release has and in which order. Neither may depend on a
label, so an event without a label gets the configured missing value before anything random
happens, an event that only the labels party knows is left out, and rows are ordered by their hashed
keys; where the features party submitted the population, they are in its order instead.

Further columns (:mod:`labelveil.label_party.events.columns`) are completed by the same rules. These
functions are of one range of keys; :mod:`labelveil.label_party.events.steps` takes the ranges
together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import polars.selectors as cs

from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.common.engine.shuffle import Columns, Keys, first_of_each, match_keys, sort_keys
from labelveil.common.errors import DataError
from labelveil.common.release.blocks import KEY_BYTES
from labelveil.common.release.event_keys import hash_keys
from labelveil.label_party.events.columns import NONE, one_per_event
from labelveil.label_party.events.tally import Duplicates, LabelTally, Tally
from labelveil.label_party.sources.anomalies import SHOWN, Anomalies, anomaly
from labelveil.label_party.sources.tables import KEY, LABEL, PLACE, USER, label_column

SEVERAL = "further rows of an event, which so has the missing value; see [data] duplicates"
STRANGERS = "rows of another user than their event's first row, which do not count"

NOBODY = b""
"""In place of the hashed user of an event that names none."""

_SLICE = 1 << 16


@dataclass(frozen=True)
class Rules:
    """What an event's labels are, given its rows."""

    missing: tuple[float, ...]  # (m,) of each label: its value for an event without one
    domains: tuple[tuple[float, float], ...]  # (m,) labels outside them are counted
    duplicates: Duplicates  # what an event's label is if it has several rows


def complete_part(
    rows: Columns, listed: Keys | None, rules: Rules
) -> tuple[Columns, Integers, Tally]:
    """Give every event of one range of keys its labels; a function of its arguments alone.

    ``rows`` are the (r,) rows of labels in this range, in file order: hashed keys, (r, m) labels,
    NaN where there is none, places where the operator finds each, and codes of further columns.
    Where the labels' own keys are the population and users count, also hashed users: an event is
    its first row's user's; the rows of anybody else do not count, or their labels would change what
    is released of somebody who does not pay for them. ``listed`` are the (n,) hashed keys of the
    population in this range, in its order; None for the labels' own.

    Returns of each event, its (n,) keys ascending, the (n, m) labels, without NaN and not yet
    clipped, and further codes; where it lies among the population's rows, or, where the labels' own
    keys are the population, the first row that has its key; and what was found. The rest is of use
    only if :func:`check_population` lets that pass.
    """
    users, places = rows.get(USER), rows[PLACE]
    others = [name for name in rows if name not in (KEY, LABEL, PLACE, USER)]
    by_key = sort_keys(rows[KEY])
    ordered = rows[KEY][by_key]
    starts = np.flatnonzero(first_of_each(ordered))
    each = np.diff(np.r_[starts, ordered.size])
    order = by_key[starts] if listed is None else sort_keys(listed)
    keys = ordered[starts] if listed is None else listed[order]
    odd = Anomalies()
    # whose event it is, its first row says: another user's row would be released and not paid for
    if users is not None and each.max(initial=0) > 1:
        mine = users[by_key] == np.repeat(users[by_key[starts]], each)
        odd += _odd_rows(STRANGERS, places[by_key[~mine]])
        by_key, each = by_key[mine], np.add.reduceat(mine.astype(np.int64), starts)
    repeated = 0 if listed is None else int(np.count_nonzero(keys[1:] == keys[:-1]))
    tally = Tally(
        keys.size,
        left_out=int(starts.size),
        repeated=repeated,
        label_rows=int(ordered.size),
        most_rows=int(each.max(initial=0)),
    )
    # a population that names an event twice is refused by whoever reads the tally: no labels needed
    if repeated or not keys.size:
        columns = {name: np.full(keys.size, NONE) for name in others}
        return columns | {KEY: keys, LABEL: np.tile(rules.missing, (keys.size, 1))}, order, tally
    # ascending keys are found in one walk; rows of one key stay in file order
    where, there = match_keys(keys, ordered[starts])
    several = there & (each > 1)
    merged = int(np.count_nonzero(several))
    # which rows are odd an operator is shown by place; the first of several is not one of them
    if merged and rules.duplicates == "missing":
        further = np.repeat(several, each)
        further[np.cumsum(each) - each] = False
        odd += _odd_rows(SEVERAL, places[by_key[further]])
    # rows that give an event its label: of listed keys, and not of several that cancel each other
    known = np.repeat(there & ~several if rules.duplicates == "missing" else there, each)
    at, by_key = np.repeat(where, each)[known], by_key[known]
    last = rules.duplicates == "last" or not merged
    labels, tallies = _labels_of(at, rows[LABEL], by_key, keys.size, rules, last=last)
    columns = {name: one_per_event(at, rows[name][by_key], keys.size, last=last) for name in others}
    left_out = int(np.count_nonzero(~there))
    tally = replace(tally, left_out=left_out, merged=merged, labels=tallies, odd=odd)
    return columns | {KEY: keys, LABEL: labels}, order, tally


def _labels_of(
    at: Integers, values: Floats, chosen: Integers, size: int, rules: Rules, *, last: bool
) -> tuple[Floats, tuple[LabelTally, ...]]:
    """(n, m) labels of n events, and what was found of each label: from (r, m) values, of which
    (c,) ``chosen`` rows belong to the events at (c,) places."""
    labels, tallies = np.empty((size, len(rules.missing))), []
    for index, (missing, domain) in enumerate(zip(rules.missing, rules.domains, strict=True)):
        # a label at a time: rows of several chosen at once take more than twice as long
        label = _one_per_key(at, values[chosen, index], size, rules.duplicates, last)
        unlabelled = np.isnan(label)
        label[unlabelled] = missing
        labels[:, index] = label
        outside = (label < domain[0]) | (label > domain[1])
        counts = int(np.count_nonzero(unlabelled)), int(np.count_nonzero(outside))
        tallies.append(LabelTally(*counts, float(label.min()), float(label.max())))
    return labels, tuple(tallies)


def _odd_rows(reason: str, places: Integers) -> Anomalies:
    return anomaly("", reason, np.sort(places)[:SHOWN].tolist(), places.size)


def check_population(tally: Tally) -> None:
    """Refuse a population that is none, which its own rows say and no label does.

    ``DataError`` if there is no event, or the population lists one twice.
    """
    if tally.repeated:
        row, repeat = ("row", "repeats") if tally.repeated == 1 else ("rows", "repeat")
        raise DataError(
            f"{tally.repeated:,} {row} of the population {repeat} a key that occurred before; every"
            " event must be listed once, so remove the repetitions"
        )
    if not tally.rows:
        raise DataError("the population has no events; a release needs at least one")


def beyond_limit(users: Keys, limit: int) -> Booleans:
    """Mark all but the first ``limit`` events of each of (n,) hashed users, in row order, and all
    without a user.
    """
    order = sort_keys(users)
    ordered = users[order]
    starts = np.flatnonzero(first_of_each(ordered))
    rank = np.arange(ordered.size) - np.repeat(starts, np.diff(np.r_[starts, ordered.size]))
    beyond = np.zeros(ordered.size, dtype=np.bool_)
    beyond[order] = (rank >= limit) | (ordered == NOBODY)
    return beyond


def hash_column(keys: pl.Series, secret: bytes) -> Keys:
    """Hash a column of n keys or users: (n,) 16-byte strings, :data:`NOBODY` where null."""
    # fixed-width byte strings compare as their 16 bytes do: padding only matters between widths
    hashed = np.full(len(keys), NOBODY, dtype=f"S{KEY_BYTES}")
    if keys.null_count():
        hashed[keys.is_not_null().to_numpy()] = hash_column(keys.drop_nulls(), secret)
        return hashed
    for start in range(0, len(keys), _SLICE):
        part = keys.slice(start, _SLICE)
        hashed[start : start + len(part)] = np.frombuffer(
            hash_keys(part, secret), dtype=hashed.dtype
        )
    return hashed


def label_values(rows: pl.DataFrame, labels: int) -> Floats:
    """(n, m) values of m labels, NaN where there is none."""
    columns = [label_column(index) for index in range(labels)]
    return rows.select(cs.by_name(*columns).fill_null(float("nan"))).to_numpy()


def _one_per_key(
    at: Integers, values: Floats, rows: int, duplicates: Duplicates, last: bool
) -> Floats:
    """Place labels at their rows, NaN elsewhere."""
    present = ~np.isnan(values)
    at, values = at[present], values[present]
    out = np.full(rows, np.nan)
    if last or duplicates == "missing":
        out[at] = values  # assignment in file order: the last one stays
        return out
    counts = np.bincount(at, minlength=rows)
    sums = np.bincount(at, weights=values, minlength=rows)
    labelled = counts > 0
    out[labelled] = sums[labelled] / (counts[labelled] if duplicates == "mean" else 1)
    return out
