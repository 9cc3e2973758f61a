"""Match the events of a features table with those of a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.arrays import Integers
from common.errors import DataError
from common.release.rows import keys_column
from common.release.table import Release
from feature_party.client.submission import Population, hash_population
from feature_party.join.matches import MatchCounts, Party
from feature_party.join.tasks import with_source
from feature_party.tables import Table, check_key, collect_table, lazy_table


@dataclass(frozen=True)
class Joined:
    """Matched events, in the order of the features.

    Attributes
    ----------
    table
        (m, …) their features, key column included.
    codes
        (m,) unsigned privatized labels.
    matches
        Counts on both sides.
    rows
        (m,) row of each matched event in the features.
    """

    table: pl.DataFrame
    codes: NDArray[np.unsignedinteger[Any]]
    matches: MatchCounts
    rows: Integers


def join_release(release: Release, features: Table, key: str, secret: bytes) -> Joined:
    """Match features with privatized labels.

    Parameters
    ----------
    release
        A verified release.
    features
        One row an event.
    key
        Its key column. Where we submitted the population, the release has no keys, and the column
        must be what was submitted, in the same order.
    secret
        The shared secret that keys are hashed with.

    Raises
    ------
    DataError
        If keys are missing, occur twice, or match nothing.
    """
    frame = lazy_table(features, key)
    check_key(frame, key)
    table = collect_table(frame)
    population = hash_population(table[key], secret, release.manifest.population.function)
    if release.manifest.content.key_bytes == 0:
        return _join_by_order(release, table, key, population)
    right = release.labels.select("key", "code")
    both = _matched([population], [right], key)
    rows = both["row"].to_numpy()
    matched = table if both.height == table.height else table[rows]
    counts = MatchCounts(release.labels.height, table.height, both.height)
    return Joined(matched, both["code"].to_numpy().astype(np.uint16), counts, rows)


def join_releases(
    releases: Sequence[Release],
    starts: Sequence[int],
    features: Table,
    key: str,
    parties: Sequence[Party],
) -> Joined:
    """Match features with the labels of several releases; an event may be in more than one.

    Of several labels parties the table has a column that names each label's.

    Parameters
    ----------
    releases
        Verified releases, all with keys.
    starts
        First code of each among the codes of all.
    features, key
        As in :func:`join_release`.
    parties
        Whose each release is.

    Raises
    ------
    DataError
        If keys are missing, occur twice, match nothing, or were submitted.
    """
    for release in releases:
        if release.manifest.content.key_bytes == 0:
            raise DataError(
                f"epoch {release.manifest.epoch!r} of {release.manifest.data_set!r} covers a"
                " submitted population, whose rows have no keys to tell them apart from other"
                " releases'; train on it alone"
            )
    frame = lazy_table(features, key)
    check_key(frame, key)
    table = collect_table(frame)
    labels = [
        release.labels.select("key", pl.col("code").cast(pl.UInt32) + start)
        for release, start in zip(releases, starts, strict=False)
    ]
    hashings = [
        (party.secret, release.manifest.population.function)
        for party, release in zip(parties, releases, strict=True)
    ]
    hashed = {one: hash_population(table[key], *one) for one in set(hashings)}
    both = _matched([hashed[one] for one in hashings], labels, key)
    rows, codes = both["row"].to_numpy(), both["code"].to_numpy()
    names = [party.name for party in parties]
    found = np.histogram(codes, [*starts, np.inf])[0].tolist()
    released = [one.height for one in labels]
    counts = MatchCounts.by_release(table.height, released, found, names)
    return Joined(with_source(table[rows], codes, starts, names), codes, counts, rows)


def _matched(
    hashed: Sequence[Population], labels: Sequence[pl.DataFrame], key: str
) -> pl.DataFrame:
    """Rows of ours, hashed as each release's are, with their codes, in our order."""
    numbers = np.arange(hashed[0].rows)
    both = pl.concat(
        pl.DataFrame({"row": numbers, "key": keys_column(ours.keys)}).join(theirs, on="key")
        for ours, theirs in zip(hashed, labels, strict=True)
    ).sort("row", "code")
    if not both.height:
        released = sum(one.height for one in labels)
        raise DataError(
            f"none of the {numbers.size:,} events in the features is among the"
            f" {released:,} in the release; check the key column {key!r}, the"
            " epoch and that both parties use the same key secret"
        )
    return both


def _join_by_order(
    release: Release, table: pl.DataFrame, key: str, population: Population
) -> Joined:
    """Match row by row; sound if our keys, in our order, are those that the release covers."""
    rows = release.labels.height
    if population.digest.hex() != release.manifest.population.digest:
        raise DataError(
            f"the release covers {rows:,} submitted events, and column {key!r} of the features,"
            f" with {table.height:,} rows, is not the list that was submitted; use exactly the"
            " submitted events in their order, and the same [keys] secret_file"
        )
    matches = MatchCounts(rows, rows, rows)
    return Joined(table, release.codes, matches, np.arange(rows))
