"""From a table of (user, item) to counts of distinct users, each user counted at most once an item.

Without a bound on the items of a user this is what the selectors expect: all counts move by at most
1, in one direction. A bound of c items a user is for mechanisms that pay per item (sums of noisy
counts); which c items remain is drawn again for each user and looks at nobody else's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from common.arrays import Integers
from common.entropy import Entropy
from common.errors import DataError


@dataclass(frozen=True)
class ItemCounts:
    """Distinct users of each item."""

    items: pl.Series  # (m,) the candidates, ascending
    counts: Integers  # (m,) distinct users, after bounding
    most_items: int | None  # the bound on the items of one user; None if there is none


def count_users(
    table: pl.DataFrame,
    user: str,
    item: str,
    *,
    candidates: pl.Series | None = None,
    most_items: int | None = None,
    entropy: Entropy | None = None,
) -> ItemCounts:
    """Count distinct users of each item.

    Parameters
    ----------
    table
        One row an event; rows with a missing user or item count for nothing.
    candidates
        The public list of items; others are left out and absent ones count 0. Without it the
        candidates are the items that occur, and then only a selector that never shows a
        candidate of a single user is private: the stability-based ones and the limited domain.
    most_items
        Keep at most that many items of each user; entropy draws which.

    Raises
    ------
    DataError
        If a column is missing, there is nothing to count, or a candidate is named twice.
    """
    for column in (user, item):
        if column not in table.columns:
            raise DataError(f"column {column!r} is missing; there are {', '.join(table.columns)}")
    pairs = table.select(user=pl.col(user), item=pl.col(item)).drop_nulls().unique()
    if candidates is not None:
        if candidates.n_unique() != len(candidates):
            raise DataError("a candidate is named twice in the public list; name each once")
        pairs = pairs.filter(pl.col("item").is_in(candidates.cast(pairs["item"].dtype).implode()))
    if most_items is not None:
        if most_items < 1:
            raise DataError(f"most_items={most_items} must be at least 1")
        if entropy is None:
            raise DataError("bounding the items of a user draws which remain; pass an entropy")
        words = pl.Series(entropy.words("bounded-items", 0, pairs.height))
        pairs = pairs.sort("user", "item").with_columns(word=words)
        pairs = pairs.filter(pl.col("word").rank("ordinal").over("user") <= most_items)
    counted = pairs.group_by("item").len("count").sort("item")
    if candidates is not None:
        listed = pl.DataFrame({"item": candidates.cast(pairs["item"].dtype)}).sort("item")
        counted = listed.join(counted, on="item", how="left", maintain_order="left")
    if counted.is_empty():
        raise DataError(f"no row has both a {user!r} and an {item!r}; there is nothing to count")
    counts = counted["count"].fill_null(0).to_numpy().astype(np.int64)
    return ItemCounts(counted["item"], counts, most_items)
