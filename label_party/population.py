"""Complete the population: exactly one label for every event that both parties know.

The features party sees how many rows a release has and in which order. Neither may depend on a
label, so an event without a label gets the configured missing value before anything random
happens, an event that only the labels party knows is left out, and rows are ordered by their hashed
keys; where the features party submitted the population, they are in its order instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import DataError
from common.keys import hash_keys
from common.release import KEY_BYTES
from label_party.sources import KEY, LABEL, USER

Keys = NDArray[np.bytes_]
Floats = NDArray[np.float64]
Positions = NDArray[np.int64]
Duplicates = Literal["refuse", "sum", "mean", "last"]
Progress = Callable[[int], None]

_SLICE = 1 << 16
_SORTED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Tally:
    """What completing did. For the labels party's eyes: every number but ``rows`` tells of labels.

    Attributes
    ----------
    rows
        Events in the population.
    unlabelled
        Events that got the missing value because they had no label.
    left_out
        Labelled keys outside the population.
    merged
        Keys with several labels, made one by the configured rule.
    over_limit
        Events that got the missing value because their user has too many.
    """

    rows: int
    unlabelled: int
    left_out: int
    merged: int
    over_limit: int


@dataclass(frozen=True)
class Completed:
    """One label for every event.

    Attributes
    ----------
    keys
        (n,) 16-byte hashed keys: strictly ascending, or in the order submitted.
    labels
        (n,) float64 without NaN, not yet clipped.
    tally
        What was done to get there.
    submitted
        Whether the features party submitted the keys, and so need not be sent them.
    """

    keys: Keys
    labels: Floats
    tally: Tally
    submitted: bool = False


def complete(
    labels: pl.DataFrame,
    population: pl.DataFrame | Keys | None,
    secret: bytes,
    *,
    missing: float,
    duplicates: Duplicates = "refuse",
    max_records_per_user: int | None = None,
    progress: Progress = lambda rows: None,
) -> Completed:
    """Give every event of the population one label.

    Parameters
    ----------
    labels
        Columns ``key``, ``label``; and ``user`` if users count and there is no population.
    population
        Column ``key``; and ``user`` if users count. None: the labels' own keys. An array: hashed
        keys that the features party submitted, whose order the result keeps.
    secret
        Shared secret that keys are hashed under.
    missing
        Label of an event without one.
    duplicates
        What to do with several labels of one key.
    max_records_per_user
        How many events of one user keep their labels; None if the unit is a record.
    progress
        Called with the number of keys hashed since the last call.

    Raises
    ------
    DataError
        If there is no event, or a key occurs twice where it may not.
    """
    label_keys = _hashed(labels[KEY], secret, progress)
    submitted = population if isinstance(population, np.ndarray) else None
    users: pl.Series | None = None
    order: Positions | None = None
    if population is None:
        keys, first = np.unique(label_keys, return_index=True)
        users = _users_of_labels(labels, label_keys, keys, first)
    else:
        if isinstance(population, pl.DataFrame):
            listed = _hashed(population[KEY], secret, progress)
        else:
            # whether a release is refused must not tell the submitter which keys have labels
            _refuse_several(label_keys, duplicates)
            listed = population
        order = np.argsort(listed, kind="stable")
        keys = listed[order]
        repeated = int(np.count_nonzero(keys[1:] == keys[:-1]))
        if repeated:
            raise DataError(
                f"{repeated:,} rows of the population repeat a key that occurred before; every"
                " event must be listed once, so remove the repetitions"
            )
        if isinstance(population, pl.DataFrame) and USER in population.columns:
            users = population[USER].gather(order)
    if not keys.size:
        raise DataError("the population has no events; a release needs at least one")

    at = np.minimum(np.searchsorted(keys, label_keys), keys.size - 1)
    known = keys[at] == label_keys
    left_out = int(np.unique(label_keys[~known]).size)
    values = labels[LABEL].fill_null(float("nan")).to_numpy()[known]
    merged_values, merged = _one_per_key(at[known], values, keys.size, duplicates)

    unlabelled = np.isnan(merged_values)
    over = np.zeros(keys.size, dtype=np.bool_)
    if max_records_per_user is not None:
        if users is None:
            raise DataError("no user column was read; set [privacy] user")
        over = _beyond(users, max_records_per_user)
    completed = np.where(unlabelled | over, missing, merged_values)
    tally = Tally(
        rows=int(keys.size),
        unlabelled=int(np.count_nonzero(unlabelled)),
        left_out=left_out,
        merged=merged,
        over_limit=int(np.count_nonzero(over)),
    )
    if submitted is None or order is None:
        return Completed(keys, completed, tally)
    as_submitted = np.empty_like(completed)
    as_submitted[order] = completed
    return Completed(submitted, as_submitted, tally, submitted=True)


def count_repeated(keys: Keys) -> int:
    """Return how many of (n,) 16-byte keys occurred before.

    Sorting their first eight bytes as integers, a part of them at a time, finds all suspects many
    times faster than sorting the keys, and in bounded memory unless nearly all are alike.
    """
    heads = keys.view("<u8")[::2]
    parts = max(-(-heads.size // _SORTED_AT_ONCE), 1)
    repeated = 0
    for part in range(parts):
        slices = (heads[start : start + _SLICE] for start in range(0, heads.size, _SLICE))
        ordered = np.concatenate([some[some % parts == part] for some in slices])
        ordered.sort()
        twins = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if twins.size:
            suspects = keys[np.isin(heads, twins)]  # rare, or the submitter's doing
            repeated += int(suspects.size - np.unique(suspects).size)
    return repeated


def _hashed(keys: pl.Series, secret: bytes, progress: Progress) -> Keys:
    # fixed-width byte strings compare as their 16 bytes do: padding only matters between widths
    hashed = np.empty(len(keys), dtype=f"S{KEY_BYTES}")
    for start in range(0, len(keys), _SLICE):
        part = keys.slice(start, _SLICE)
        hashed[start : start + len(part)] = np.frombuffer(
            hash_keys(part, secret), dtype=hashed.dtype
        )
        progress(len(part))
    return hashed


def _users_of_labels(
    labels: pl.DataFrame, label_keys: Keys, keys: Keys, first: Positions
) -> pl.Series | None:
    """Users in row order where the labels' own keys are the population."""
    if USER not in labels.columns:
        return None
    users = labels[USER].gather(first)
    if keys.size < label_keys.size:
        row = np.searchsorted(keys, label_keys)
        conflicts = int((users.gather(row) != labels[USER]).sum())
        if conflicts:
            raise DataError(
                f"{conflicts:,} rows give a key another user than an earlier row does; an event"
                " belongs to one user"
            )
    return users


def _one_per_key(
    at: Positions, values: Floats, rows: int, duplicates: Duplicates
) -> tuple[Floats, int]:
    """Place labels at their rows, NaN elsewhere, and count the rows that had several."""
    merged = int(np.count_nonzero(np.bincount(at, minlength=rows) > 1))
    if merged and duplicates == "refuse":
        raise _several(merged)
    present = ~np.isnan(values)
    at, values = at[present], values[present]
    out = np.full(rows, np.nan)
    if not merged or duplicates == "last":
        out[at] = values  # assignment in file order: the last one stays
        return out, merged
    counts = np.bincount(at, minlength=rows)
    sums = np.bincount(at, weights=values, minlength=rows)
    labelled = counts > 0
    out[labelled] = sums[labelled] / (counts[labelled] if duplicates == "mean" else 1)
    return out, merged


def _refuse_several(label_keys: Keys, duplicates: Duplicates) -> None:
    """Refuse keys with several labels, in the population or not."""
    if duplicates == "refuse" and count_repeated(label_keys):
        _, counts = np.unique(label_keys, return_counts=True)
        raise _several(int(np.count_nonzero(counts > 1)))


def _several(keys: int) -> DataError:
    return DataError(
        f"{keys:,} keys have more than one label row; remove the repetitions, or say how"
        ' they add up: [data] duplicates = "sum", "mean" or "last"'
    )


def _beyond(users: pl.Series, limit: int) -> NDArray[np.bool_]:
    """Mark all but the first ``limit`` events of each user, in the order of the hashed keys."""
    codes = users.cast(pl.Categorical).to_physical().to_numpy()
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(ordered.size) - np.repeat(starts, np.diff(np.r_[starts, ordered.size]))
    beyond = np.zeros(ordered.size, dtype=np.bool_)
    beyond[order] = rank >= limit
    return beyond
