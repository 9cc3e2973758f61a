"""Canaries that came back in a release, beside what is known of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from common.arrays import Floats, Integers
from common.errors import ReleaseError
from common.release.event_keys import hash_keys, read_secret
from common.release.manifest import Manifest
from common.release.rows import keys_column
from labelveil.audit.attacks.rows_apart import Rows
from labelveil.audit.certificate.run import Evidence
from labelveil.audit.planted.plant import Planted

BLOCKS = 16  # of the events in the order of either side, looked at by themselves


@dataclass(frozen=True)
class Returned:
    """Canaries that came back, in the order of the release's rows."""

    planted: Planted
    manifest: Manifest
    labels: Floats
    """(k, m) labels of each secret as the rules make them, in the manifest's order: several rows by
    the planned rule, what the release counts missing ones as, and, where there are users, the same
    for events above their limit."""
    secrets: Integers
    codes: Integers  # (m,) of the canaries that came back
    places: Integers  # (m,) of each among those that were planted
    missing: int  # canaries that did not
    others: int  # events that are no canaries

    @cached_property
    def rows(self) -> Rows:
        """Their codes beside the stated laws."""
        return Rows.by_laws(self.codes, self.secrets, self.laws)

    @cached_property
    def laws(self) -> Floats:
        """(k, d) stated probabilities of each secret's codes."""
        return self.manifest.codebook.laws(self.labels)

    @cached_property
    def orders(self) -> dict[str, Integers]:
        """The rows in every order that a party may know."""
        keys = self.planted.keys.to_numpy()[self.places].astype(str)
        ends = np.array([key[::-1] for key in keys])
        return {
            "of the release": np.arange(self.codes.size),
            "of the population": np.argsort(self.places, kind="stable"),
            "of the keys": np.argsort(keys, kind="stable"),
            "of the keys' ends": np.argsort(ends, kind="stable"),
        }

    @cached_property
    def groups(self) -> dict[str, Integers]:
        """(m,) which part of the events each row is in, by all that is known of them."""
        parts: dict[str, Integers] = {}
        for name, order in self.orders.items():
            parts[f"block in the order {name}"] = np.empty_like(order)
            parts[f"block in the order {name}"][order] = (
                BLOCKS * np.arange(order.size) // order.size
            )
        return parts

    @cached_property
    def words(self) -> tuple[Floats, Floats]:
        """(m,) the middle of the words that each code stands for, less 1/2, and its variance."""
        middles = self.laws.cumsum(axis=1) - self.laws / 2 - 0.5
        spread = (self.laws * middles**2).sum(axis=1)
        return middles[self.secrets, self.codes], spread[self.secrets]


def match(planted: Planted, evidence: Evidence, secret: Path) -> Returned:
    """Find the canaries among a release's rows; a submitted population has them in its order."""
    manifest, rows = evidence.manifest, evidence.labels
    hashed = hash_keys(planted.keys, read_secret(secret))
    canaries = pl.DataFrame({"key": keys_column(hashed), "secret": planted.secrets})
    canaries = canaries.with_row_index("place")
    if manifest.content.key_bytes:
        joined = rows.select("key", "code").join(
            canaries, on="key", how="inner", maintain_order="left"
        )
    else:
        whole = hashlib.sha256(hashed).hexdigest() == manifest.population.digest
        joined = canaries.with_columns(rows["code"]) if whole else canaries.clear()
    if not joined.height:
        raise ReleaseError(
            "no canary is in the release; check --secret, and that this data set got the canaries"
        )
    columns = [name for name, *_ in planted.planting.columns]
    named = [label.name for label in manifest.labels]
    if sorted(columns) != sorted(named):
        raise ReleaseError(
            f"labels {', '.join(columns)} were planted, and the release has {', '.join(named)}"
        )
    labels = planted.labels[:, [columns.index(name) for name in named]]
    missing = np.array([label.missing for label in manifest.labels])
    if planted.planting.duplicates == "missing":
        labels[-2] = missing
    labels[-1] = missing
    places, secrets = (joined[name].to_numpy().astype(np.int64) for name in ("place", "secret"))
    if limit := planted.planting.users:  # the first of each user, in the order of the rows
        order = np.argsort(users := planted.users[places], kind="stable")
        first = np.searchsorted(users[order], users[order])
        secrets[order[np.arange(order.size) - first >= limit]] = len(labels)
        labels = np.vstack([labels, missing])
    return Returned(
        planted,
        manifest,
        labels,
        secrets,
        joined["code"].to_numpy().astype(np.int64),
        places,
        planted.secrets.size - joined.height,
        rows.height - joined.height,
    )
