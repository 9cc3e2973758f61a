"""What the ledger holds, entry by entry."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal, Self

from labelveil.common.formats import TERMS
from labelveil.common.guarantees import Guarantee, guarantee_from_json

Composition = Literal["additive", "disjoint"]
State = Literal["reserved", "committed"]


LABELS = "labels"
"""Purpose of the charge of a label release."""


EVALUATION = "evaluation against true labels"
"""Purpose of the charge of a session of answers, which is made of labels and never leaves."""


@dataclass(frozen=True)
class Covered:
    """The events of a charge: a file of fingerprints, and what it can be compared with."""

    sha256: str  # of the file, which it names
    events: int
    # secret_check of the secret that they were fingerprinted under, and of the one that keys were
    # hashed under, in hexadecimal
    secret: str
    join: str
    named: bool  # whether events' names are among them; not if keys were submitted, as hashes


@dataclass(frozen=True)
class Purchase:
    """What was sold, to the last term, and which bytes it bought."""

    data_set: str
    epoch: str
    # what the bytes are; with data set and epoch their name, under which nothing else is sold
    purpose: str
    guarantee: Guarantee  # what is spent at most, and for which neighbours
    account: str = ""  # what pays for it: by default the data set's name
    composition: Composition = "additive"  # disjoint: no record occurs in another epoch's charge
    records_per_unit: int = 1  # for how many records of one privacy unit the guarantee holds
    answers: int = 0  # of a session, how many answers share the guarantee; otherwise 0
    # every other term, as JSON values: the mechanism, its parameters and limits, which labels
    request: dict[str, Any] = field(hash=False, default_factory=dict)
    covered: Covered | None = None  # the events that it is about; None if that is not known
    # SHA-256 of what it bought, in hexadecimal; empty while there are no bytes, or none any more
    digest: str = ""
    rows: int = 0  # of what it bought, if that has any

    def __post_init__(self) -> None:
        object.__setattr__(self, "account", self.account or self.data_set)

    @property
    def name(self) -> tuple[str, str, str]:
        """What it is the only one of: data set, epoch and purpose."""
        return self.data_set, self.epoch, self.purpose

    def differences(self, order: Purchase) -> list[str]:
        """Say by which terms another purchase of this name would be another thing.

        Terms that only one of two versions knows tell nothing: nobody has changed them.
        """
        sold, wanted = self._terms(), order._terms()
        names = sorted(sold.keys() | wanted.keys())
        if self.terms_format != order.terms_format:
            names = sorted((sold.keys() & wanted.keys()) - {"format"})
        return [
            f"{name} was {sold.get(name, 'none'):.80} and is {wanted.get(name, 'none'):.80} now"
            for name in names
            if sold.get(name) != wanted.get(name)
        ]

    @property
    def terms_format(self) -> str:
        """The format of the terms."""
        return str(self.request.get("format", f"{TERMS.name}/1"))

    def _terms(self) -> dict[str, str]:
        return dict(
            _flat(
                {
                    "guarantee": self.guarantee.to_json(),
                    "records_per_unit": self.records_per_unit,
                    "answers": self.answers,
                    **self.request,
                }
            )
        )

    def to_bytes(self) -> bytes:
        """JSON, with a digest of itself: a flipped byte could make a charge smaller."""
        covered = None if self.covered is None else asdict(self.covered)
        data = vars(self) | {"guarantee": self.guarantee.to_json(), "covered": covered}
        return _json(data | {"check": _check(data)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read it back; ``ValueError``, ``KeyError`` or ``TypeError`` if it is damaged."""
        values = json.loads(data)
        if values.pop("check") != _check(values):
            raise ValueError("it does not match its own digest")
        covered = values.pop("covered")
        values["covered"] = None if covered is None else Covered(**covered)
        return cls(**values | {"guarantee": guarantee_from_json(values["guarantee"])})


@dataclass(frozen=True, kw_only=True)
class Charge(Purchase):
    """A purchase in the ledger: by whom, and when."""

    id: int  # ascends in the order of commits, whatever the clock says
    state: State
    # whether it was sold under another ledger, and this one has been shown, or told, that it was
    counted: bool
    who: str
    software: str
    reserved_at: str
    committed_at: str | None

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        values = dict(row)
        covered = values.pop("covered")
        return cls(
            **values
            | {
                "guarantee": read_guarantee(row["guarantee"]),
                "request": json.loads(row["request"]),
                "counted": bool(row["counted"]),
                "covered": None if covered is None else Covered(**json.loads(covered)),
            }
        )

    @property
    def lost(self) -> bool:
        """Whether this was released once, and its bytes are gone: spent, never built again."""
        return self.state == "committed" and not self.digest


@dataclass(frozen=True)
class Withdrawal:
    """That a release is served no more, why, and who said so when."""

    reason: str
    withdrawn_at: str
    withdrawn_by: str


@dataclass(frozen=True)
class CommittedRelease:
    """Which bytes the charge of a release bought, and where they lie."""

    id: int
    data_set: str
    epoch: str
    digest: str  # empty if they are lost
    withdrawn: str | None  # why it is served no more; None if it is served

    @property
    def name(self) -> tuple[str, str, str]:
        return self.data_set, self.epoch, LABELS


@lru_cache(maxsize=1024)
def read_guarantee(text: str) -> Guarantee:
    """Read a guarantee as the ledger keeps it; all epochs' are often the same few."""
    return guarantee_from_json(json.loads(text))


@dataclass(frozen=True)
class Answer:
    """An answer of a session, as everybody who asks this question gets it."""

    number: int  # its number in its session, from 1 on
    question: str  # SHA-256 of all that is asked, in hexadecimal
    value: float  # in units of the loss, as is the scale of its noise
    noise_scale: float


@dataclass(frozen=True)
class Cap:
    """What an account may spend, from when on, and why it was raised; the first has no reason."""

    guarantee: Guarantee
    reason: str
    set_at: str
    set_by: str


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
    statement: dict[str, Any] = field(hash=False)
    restored_at: str
    restored_by: str


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        elif isinstance(value, list | tuple) and any(isinstance(part, dict) for part in value):
            yield from _flat(
                {str(index): part for index, part in enumerate(value)}, f"{above}{key}."
            )
        else:
            yield above + key, json.dumps(value)


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, ensure_ascii=False).encode()


def _check(values: dict[str, Any]) -> str:
    return hashlib.sha256(_json(values)).hexdigest()
