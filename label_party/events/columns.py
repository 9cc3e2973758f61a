"""Further columns of an epoch's events: of each, an event has one category or none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.arrays import Integers
from labelveil.common.errors import DataError
from labelveil.common.release.cmac import CMAC

NONE = -1
"""Code of an event that has no category."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column that is wanted."""

    name: str  # what it is called in the file
    values: pl.Series | None = None  # the public list of its categories; None: any text is one
    # whether it is read from the population's file, where that has it. The labels' rows have it
    # otherwise: then events without such a row have no category.
    public: bool = False

    def codes(self, texts: pl.Series, secret: bytes) -> Integers:
        """(n,) codes, NONE for null.

        They are places in the list, one after its end for what it lacks; without a list 63 bits of
        a hash under a secret, so that all slices of a file agree without knowing each other.
        """
        if self.values is None:
            tags = CMAC(secret).column(texts.fill_null(""))
            codes = np.ascontiguousarray(tags[:, :8]).view("<i8")[:, 0] & np.int64(2**63 - 1)
            codes[texts.is_null().to_numpy()] = NONE
            return codes
        return np.where(texts.is_null().to_numpy(), NONE, self.places(texts))

    def places(self, texts: pl.Series) -> Integers:
        """(n,) places in the public list, and after its end for what it lacks."""
        values = self.values if self.values is not None else pl.Series(dtype=pl.String)
        places = texts.cast(pl.Enum(values), strict=False).to_physical().cast(pl.Int64)
        return places.fill_null(len(values)).to_numpy()


def one_per_event(at: Integers, codes: Integers, events: int, *, last: bool) -> Integers:
    """(events,) the category of each event, from those of its rows that have one.

    Takes the (r,) event and category of every row, in file order. Where the ``last`` of several
    rows does not count they are parts of one event, which has the category that they agree on, and
    none if they do not.
    """
    at, codes = at[codes != NONE], codes[codes != NONE]
    categories = np.full(events, NONE, dtype=np.int64)
    categories[at] = codes  # assignment in file order: the last one stays
    if not last:
        categories[at[categories[at] != codes]] = NONE
    return categories


def list_digest(values: Iterable[str]) -> str:
    """SHA-256 of a list's lines, by which a request says which list it is."""
    return hashlib.sha256("\n".join(values).encode()).hexdigest()


def read_category_list(path: Path, setting: str) -> pl.Series:
    """Read a public list of categories, one a line; ascending, with the ``setting`` that named it.

    ``DataError`` if it cannot be read, or is none of at least two, each once.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # or an editor's mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(f"{path} cannot be read: {reason}; set {setting}") from error
    names = [line.strip() for line in lines if line.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(
            f"{path} lists {len(names)} categories, {len(set(names))} of them different; list at"
            " least 2, each once"
        )
    return pl.Series("category", sorted(names))
