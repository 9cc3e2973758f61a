"""What the ledger holds, entry by entry."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, Self

from common.guarantees import Guarantee, guarantee_from_json
from label_party.store.budget import Composition

State = Literal["reserved", "committed"]


LABELS = "labels"
"""Purpose of the charge of a label release."""


EVALUATION = "evaluation against true labels"
"""Purpose of the charge of a session of answers, whose bytes stay on the labels party's disk."""


@dataclass(frozen=True)
class Charge:
    """One entry: what was spent, by whom, when, for what.

    Attributes
    ----------
    account
        What pays for it: by default the data set's name.
    composition
        ``additive``, or ``disjoint`` if no record occurs in another epoch's charge.
    request
        What the release was asked to be, as JSON values.
    manifest_sha256
        Hexadecimal digest that names the release; None while reserved.
    """

    id: int
    account: str
    data_set: str
    epoch: str
    purpose: str
    composition: Composition
    state: State
    guarantee: Guarantee
    request: dict[str, Any]
    who: str
    software: str
    reserved_at: str
    committed_at: str | None
    manifest_sha256: str | None
    rows: int | None

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        """Read a row of the tables ``charges`` and ``releases``, joined."""
        return cls(
            id=row["id"],
            account=row["account"],
            data_set=row["data_set"],
            epoch=row["epoch"],
            purpose=row["purpose"],
            composition=row["composition"],
            state=row["state"],
            guarantee=read_guarantee(row["guarantee"]),
            request=json.loads(row["request"]),
            who=row["who"],
            software=row["software"],
            reserved_at=row["reserved_at"],
            committed_at=row["committed_at"],
            manifest_sha256=row["manifest_sha256"],
            rows=row["rows"],
        )

    @property
    def lost(self) -> bool:
        """Whether this was released once, and its bytes are gone: spent, never built again."""
        return self.state == "committed" and self.manifest_sha256 is None


@lru_cache(maxsize=1024)
def read_guarantee(text: str) -> Guarantee:
    """Read a guarantee as the ledger keeps it; all epochs' are often the same few."""
    return guarantee_from_json(json.loads(text))


@dataclass(frozen=True)
class Cap:
    """What an account may spend, from when on, and why it was raised; the first has no reason."""

    guarantee: Guarantee
    reason: str
    set_at: str
    set_by: str


@dataclass(frozen=True)
class Covered:
    """The events of a charge: a file of fingerprints, named by its digest."""

    sha256: str
    events: int


@dataclass(frozen=True)
class Facts:
    """A charge as it lies beside the bytes that it paid for, for a ledger that does not know it.

    Attributes
    ----------
    sha256, rows
        The bytes' digest, and rows if they have any; empty if they are lost, or not written yet.
    """

    account: str
    data_set: str
    epoch: str
    purpose: str
    composition: Composition
    guarantee: Guarantee
    request: dict[str, Any]
    covered: Covered | None = None
    sha256: str = ""
    rows: int = 0

    def to_bytes(self) -> bytes:
        """JSON, with a digest of itself: a flipped byte could make a charge smaller."""
        covered = None if self.covered is None else asdict(self.covered)
        told = vars(self) | {"guarantee": self.guarantee.to_json(), "covered": covered}
        return _json(told | {"check": _check(told)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read it back, or what earlier versions wrote.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it is damaged.
        """
        told = {"account": "", **json.loads(data)}
        if told["account"] and told.pop("check") != _check(told):
            raise ValueError("it does not match its own digest")
        covered = told.get("covered")
        told["covered"] = None if covered is None else Covered(**covered)
        return cls(**told | {"guarantee": guarantee_from_json(told["guarantee"])})


def _json(told: dict[str, Any]) -> bytes:
    return json.dumps(told, sort_keys=True, ensure_ascii=False).encode()


def _check(told: dict[str, Any]) -> str:
    return hashlib.sha256(_json(told)).hexdigest()


@dataclass(frozen=True)
class Separation:
    """Somebody's word that an account's events are not another's, although they share some."""

    account: str
    other: str
    events: int
    reason: str
    said_at: str
    said_by: str


@dataclass(frozen=True)
class Restore:
    """One restoration from a backup, with what its operator stated."""

    backup_made_at: str
    statement: dict[str, Any]
    restored_at: str
    restored_by: str
