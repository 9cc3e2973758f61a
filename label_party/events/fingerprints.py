"""Fingerprints of the events that were read, and of their users."""

from __future__ import annotations

import numpy as np
import polars as pl

from label_party.sources.tables import KEY, USER
from label_party.store.fingerprints import Prints, fingerprint


def fingerprints_of(rows: pl.DataFrame, secret: bytes) -> Prints:
    """Return the fingerprints of the keys of rows, and of their users where these were read.

    A user's is distinguished from that of an event by the NUL in front, which no key has. Rows that
    name no user add none.
    """
    prints = fingerprint(rows[KEY], secret)
    if USER in rows.columns:
        users = rows[USER].drop_nulls().unique()
        prints = np.concatenate([prints, fingerprint(users, secret, mark="\0")])
    return prints
