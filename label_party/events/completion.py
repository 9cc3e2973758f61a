"""Complete the population: exactly one of every label for each event that both parties know.

The features party sees how many rows a release has and in which order. Neither may depend on a
label, so an event without a label gets the configured missing value before anything random
happens, an event that only the labels party knows is left out, and rows are ordered by their hashed
keys; where the features party submitted the population, they are in its order instead.

Further columns (:mod:`label_party.events.columns`) are completed by the same rules.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from common.arrays import Booleans, Floats, Integers
from common.engine.shuffle import Keys, ascending, distinct, match_keys, sort_keys
from common.entropy import Entropy
from common.errors import DataError
from common.randomizers.cells import Codebook, Group
from common.release.blocks import KEY_BYTES, block_ranges
from common.release.event_keys import hash_keys
from label_party.events.columns import NONE, Column, one_per_event
from label_party.events.fingerprints import fingerprints_of
from label_party.events.row_ranges import RowWriter, count_rows, randomize_rows
from label_party.events.tally import Duplicates, LabelTally, Tally
from label_party.sources.tables import KEY, USER, label_column, other
from label_party.store.fingerprints import Prints, fingerprint_hashed

Positions = Integers
Progress = Callable[[int], None]
Domain = tuple[float, float]

NOBODY = b""
"""In place of the hashed user of an event that names none."""

EVERYTHING: Domain = (-math.inf, math.inf)

_SLICE = 1 << 16
_SORTED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Completed:
    """Every label of every event.

    Attributes
    ----------
    keys
        (n,) 16-byte hashed keys: strictly ascending, or in the order submitted.
    labels
        (n, m) float64 without NaN, not yet clipped.
    tally
        What was done to get there.
    submitted
        Whether the features party submitted the keys, and so need not be sent them.
    named
        The rows that named the events, with their keys as they were read: the population's, or the
        labels' where these are the population; None if it was submitted.
    codes
        Of each further column, (n,) int64: the category's place in the public list, one after its
        end for a category that it lacks, and :data:`NONE` where the event has none.
    """

    keys: Keys
    labels: Floats
    tally: Tally
    submitted: bool = False
    codes: dict[str, Integers] = field(default_factory=dict)
    named: pl.DataFrame | None = None

    def fingerprints(self, secret: bytes) -> Iterator[Prints]:
        """Yield the fingerprints of the events, and of their users, ascending, each once."""
        prints = [fingerprint_hashed(self.keys, secret)]
        if self.named is not None:
            prints.append(fingerprints_of(self.named, secret))
        yield distinct(np.concatenate(prints))

    @property
    def rows(self) -> int:
        return len(self.labels)

    def parts(self) -> Iterator[tuple[Keys, Floats]]:
        """Yield (n,) keys and (n, m) labels, a part at a time."""
        yield self.keys, self.labels

    def count(self, groups: Sequence[Group], entropy: Entropy) -> list[Integers]:
        """Return the histogram of each group of labels."""
        return count_rows(self.labels, 0, groups, entropy)

    def randomize(
        self,
        codebook: Codebook,
        entropy: Entropy,
        writer: RowWriter,
        block_rows: int,
        progress: Progress,
    ) -> tuple[list[str], str]:
        """Write all rows; return their blocks' digests, and the digest of all keys."""
        blocks: list[str] = []
        population = hashlib.sha256()
        for start, stop in block_ranges(self.rows, block_rows):
            keys = self.keys[start:stop]
            population.update(keys.tobytes())
            done = randomize_rows(
                self.labels[start:stop],
                None if self.submitted else keys,
                start,
                codebook,
                entropy,
                block_rows,
            )
            writer.write_rows(done.keys, done.codes)
            blocks += done.blocks
            progress(stop - start)
        return blocks, population.hexdigest()


def complete(
    labels: pl.DataFrame,
    population: pl.DataFrame | Keys | None,
    secret: bytes,
    *,
    missing: Sequence[float],
    domains: Sequence[Domain] | None = None,
    duplicates: Duplicates = "missing",
    max_records_per_user: int | None = None,
    columns: Sequence[Column] = (),
    progress: Progress = lambda rows: None,
) -> Completed:
    """Give every event of the population its m labels.

    Parameters
    ----------
    labels
        Columns ``key``, and each label's (:func:`label_column`); and ``user`` if users count and
        there is no population.
    population
        Column ``key``; and ``user`` if users count. None: the labels' own keys. An array: hashed
        keys that the features party submitted, whose order the result keeps.
    secret
        Shared secret that keys are hashed under.
    missing
        (m,) of each label: its value for an event without one.
    domains
        (m,) labels outside them are counted.
    duplicates
        What an event's label is if it has several rows.
    max_records_per_user
        How many events of one user keep their labels; None if the unit is a record.
    columns
        Further columns, each in the population's frame or else in that of the labels.
    progress
        Called with the number of keys hashed since the last call.

    Raises
    ------
    DataError
        As :func:`check_population`.
    """
    label_keys = hash_column(labels[KEY], secret, progress)
    submitted = population if isinstance(population, np.ndarray) else None
    listed: Keys | None = submitted
    if isinstance(population, pl.DataFrame):
        listed = hash_column(population[KEY], secret, progress)
    values = label_values(labels, len(missing))
    users = None
    if max_records_per_user is not None:
        with_users = labels if population is None else population
        if not isinstance(with_users, pl.DataFrame) or USER not in with_users.columns:
            raise DataError("no user column was read; set [privacy] user")
        users = hash_users(with_users[USER], secret)
    part = complete_part(
        label_keys,
        values,
        listed,
        missing=missing,
        domains=domains,
        duplicates=duplicates,
        users=users if population is None else None,
    )
    check_population(part.tally)
    over = np.zeros(part.keys.size, dtype=np.bool_)
    if users is not None and max_records_per_user is not None:
        over = beyond_limit(users[part.order], max_records_per_user)
    completed = np.where(over[:, None], missing, part.labels)
    codes = {
        column.name: np.where(
            over, NONE, _codes_of(column, part, label_keys, labels, population, users, duplicates)
        )
        for column in columns
    }
    named = labels if population is None else population
    tally = replace(part.tally, over_limit=int(np.count_nonzero(over)))
    if not isinstance(named, np.ndarray):
        return Completed(part.keys, completed, tally, False, codes, named)
    rows = np.empty_like(part.order)
    rows[part.order] = np.arange(rows.size)
    codes = {name: values[rows] for name, values in codes.items()}
    return Completed(named, completed[rows], tally, True, codes)


@dataclass(frozen=True)
class Part:
    """The completed events of one range of keys.

    Attributes
    ----------
    keys
        (n,) hashed keys, ascending.
    labels
        (n, m) float64 without NaN.
    order
        (n,) where each event lies among the population's rows, or, where the labels' own keys are
        the population, the first row of labels that has its key.
    tally
        What was found; the rest is of use only if :func:`check_population` lets it pass.
    """

    keys: Keys
    labels: Floats
    order: Positions
    tally: Tally


def complete_part(
    label_keys: Keys,
    values: Floats,
    listed: Keys | None,
    *,
    missing: Sequence[float],
    domains: Sequence[Domain] | None = None,
    duplicates: Duplicates,
    users: Keys | None = None,
) -> Part:
    """Give every event of one range of keys its labels; a function of its arguments alone.

    Parameters
    ----------
    label_keys
        (r,) hashed keys of the rows of labels in this range, in file order.
    values
        (r, m) their labels, NaN where there is none.
    listed
        (n,) hashed keys of the population in this range, in its order; None for the labels' own.
    missing, domains, duplicates
        As in :func:`complete`.
    users
        (r,) whom each row names, where the labels' own keys are the population. An event is its
        first row's user's; the rows of anybody else do not count, or their labels would change what
        is released of somebody who does not pay for them.
    """
    by_key = sort_keys(label_keys)
    ordered = label_keys[by_key]
    new = np.ones(ordered.size, dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(new)
    each = np.diff(np.r_[starts, ordered.size])
    order = by_key[starts] if listed is None else sort_keys(listed)
    keys = ordered[starts] if listed is None else listed[order]
    repeated = 0 if listed is None else int(np.count_nonzero(keys[1:] == keys[:-1]))
    strangers = 0
    if users is not None and each.max(initial=0) > 1:
        mine = users[by_key] == np.repeat(users[by_key[starts]], each)
        by_key, each = by_key[mine], np.add.reduceat(mine.astype(np.int64), starts)
        strangers = int(mine.size - by_key.size)
    tally = Tally(
        keys.size,
        left_out=int(starts.size),
        strangers=strangers,
        repeated=repeated,
        label_rows=int(ordered.size),
        most_rows=int(each.max(initial=0)),
    )
    if repeated or not keys.size:
        return Part(keys, np.tile(missing, (keys.size, 1)), order, tally)
    # ascending keys are found in one walk; rows of one key stay in file order
    found, there = match_keys(keys, ordered[starts])
    left_out = int(np.count_nonzero(~there))
    merged = int(np.count_nonzero(there & (each > 1)))
    counts = there & (each == 1) if duplicates == "missing" else there
    known = np.repeat(counts, each)
    at, values = np.repeat(found, each)[known], values[by_key[known]]
    labels, found_of_each = np.empty((keys.size, len(missing))), []
    for index, domain in enumerate(domains or [EVERYTHING] * len(missing)):
        one = _one_per_key(at, values[:, index], keys.size, duplicates if merged else "last")
        unlabelled = np.isnan(one)
        one[unlabelled] = missing[index]
        labels[:, index] = one
        outside = (one < domain[0]) | (one > domain[1])
        odd = int(np.count_nonzero(unlabelled)), int(np.count_nonzero(outside))
        found_of_each.append(LabelTally(*odd, float(one.min()), float(one.max())))
    tally = replace(tally, left_out=left_out, merged=merged, labels=tuple(found_of_each))
    return Part(keys, labels, order, tally)


def label_values(rows: pl.DataFrame, labels: int) -> Floats:
    """(n, m) values of so many labels, NaN where there is none."""
    columns = [label_column(index) for index in range(labels)]
    return rows.select(pl.col(columns).fill_null(float("nan"))).to_numpy()


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
        ordered = ascending(np.concatenate([some[some % parts == part] for some in slices]))
        twins = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if twins.size:
            suspects = keys[np.isin(heads, twins)]  # rare, or the submitter's doing
            repeated += int(suspects.size - np.unique(suspects).size)
    return repeated


def hash_column(
    keys: pl.Series,
    secret: bytes,
    progress: Progress = lambda rows: None,
) -> Keys:
    """Hash a column of n keys, (n,) 16-byte strings in its order."""
    # fixed-width byte strings compare as their 16 bytes do: padding only matters between widths
    hashed = np.empty(len(keys), dtype=f"S{KEY_BYTES}")
    for start in range(0, len(keys), _SLICE):
        part = keys.slice(start, _SLICE)
        hashed[start : start + len(part)] = np.frombuffer(
            hash_keys(part, secret), dtype=hashed.dtype
        )
        progress(len(part))
    return hashed


def hash_users(users: pl.Series, secret: bytes) -> Keys:
    """Hash a column of n users, (n,) 16-byte strings in its order; :data:`NOBODY` where null."""
    named = users.is_not_null().to_numpy()
    hashed = np.full(len(users), NOBODY, dtype=f"S{KEY_BYTES}")
    hashed[named] = hash_column(users.drop_nulls(), secret)
    return hashed


def check_population(tally: Tally) -> None:
    """Refuse a population that is none, which its own rows say and no label does.

    Raises
    ------
    DataError
        If there is no event, or the population lists one twice.
    """
    if tally.repeated:
        raise DataError(
            f"{tally.repeated:,} rows of the population repeat a key that occurred before; every"
            " event must be listed once, so remove the repetitions"
        )
    if not tally.rows:
        raise DataError("the population has no events; a release needs at least one")


def _one_per_key(at: Positions, values: Floats, rows: int, duplicates: Duplicates) -> Floats:
    """Place labels at their rows, NaN elsewhere."""
    present = ~np.isnan(values)
    at, values = at[present], values[present]
    out = np.full(rows, np.nan)
    if duplicates in ("last", "missing"):
        out[at] = values  # assignment in file order: the last one stays
        return out
    counts = np.bincount(at, minlength=rows)
    sums = np.bincount(at, weights=values, minlength=rows)
    labelled = counts > 0
    out[labelled] = sums[labelled] / (counts[labelled] if duplicates == "mean" else 1)
    return out


def _codes_of(
    column: Column,
    part: Part,
    label_keys: Keys,
    labels: pl.DataFrame,
    population: pl.DataFrame | Keys | None,
    users: Keys | None,
    duplicates: Duplicates,
) -> Integers:
    """(n,) codes of a column, one for each event."""
    name = other(column.name)
    if isinstance(population, pl.DataFrame) and name in population.columns:
        return column.codes(population[name])[part.order]
    at, known = match_keys(part.keys, label_keys)
    if population is None and users is not None:
        known &= users[part.order][at] == users
    codes = column.codes(labels[name])[known]
    return one_per_event(at[known], codes, part.keys.size, duplicates)


def beyond_limit(users: Keys, limit: int) -> Booleans:
    """Mark all but the first ``limit`` events of each user, and all of nobody.

    Parameters
    ----------
    users
        (n,) hashed users of all events, in row order.
    """
    order = np.argsort(users, kind="stable")
    ordered = users[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(ordered.size) - np.repeat(starts, np.diff(np.r_[starts, ordered.size]))
    beyond = np.zeros(ordered.size, dtype=np.bool_)
    beyond[order] = (rank >= limit) | (ordered == NOBODY)
    return beyond
