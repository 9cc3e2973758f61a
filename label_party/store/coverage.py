"""Whether the events of a purchase may be charged to its account: checked before anything is spent.

Two claims cost privacy if they are wrong, so they are not believed but compared, by fingerprints:

- *Disjoint epochs share no event.* Otherwise an event would lose the ε of both, and be charged one.
- *Different accounts share no event,* for the same reason. Anyone who knows why two labels of one
  event tell nothing about each other says so (``[privacy] separate``), and the ledger keeps why.

    <store>/covered/<sha256>      the fingerprints of one epoch's events, ascending

Of some charges *nobody can tell* whether their events are those of another: of one whose bytes were
lost; of one fingerprinted under the secret of a ledger that was lost; of submitted keys, where the
two were hashed under different join secrets. Its own account counts a lost one against all of its
events (:mod:`labelveil.label_party.store.recovery`) and refuses to call others disjoint; every
other account must share that one's budget, or say why it is separate. Nobody is told that they
differ.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from labelveil.common.errors import BudgetError, DataError
from labelveil.common.files import file_errors, sha256_of, sync
from labelveil.common.release.event_keys import secret_check
from labelveil.label_party.store.disk import translating_errors
from labelveil.label_party.store.entries import Charge, Covered, Purchase
from labelveil.label_party.store.fingerprints import Prints, overlap, write
from labelveil.label_party.store.ledger import Ledger


class Coverable(Protocol):
    """Events that a purchase is about."""

    @property
    def join_check(self) -> str:
        """``secret_check`` of the secret that their keys are hashed under, in hexadecimal."""
        ...

    @property
    def named(self) -> bool:
        """Whether their names are known, and not their hashed keys alone."""
        ...

    def fingerprints(self, secret: bytes) -> Iterable[Prints]:
        """Fingerprints of those that a release has, and of users that count, ascending."""
        ...


def cover(folder: Path, events: Coverable, secret: bytes) -> Covered:
    """Write the fingerprints of an epoch's events under the name of their digest."""
    with translating_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)
        partial = folder / ".partial"
        partial.unlink(missing_ok=True)
        digest, count = write(partial, events.fingerprints(secret))
        os.replace(partial, folder / digest)
        sync(folder)
    return Covered(digest, count, secret_check(secret).hex(), events.join_check, events.named)


def check(folder: Path, ledger: Ledger, purchase: Purchase, separate_reason: str) -> None:
    """Refuse a purchase whose events have paid elsewhere, against what was claimed of them.

    ``BudgetError``, one line with how many events, whose they are, and what to set.
    """
    account, covered = purchase.account, purchase.covered
    if covered is None:
        return
    shared: dict[str, int] = {covered.sha256: covered.events}
    apart: dict[str, set[Path]] = {}  # of each account what was compared with it, if anything
    compared = defaultdict[str, set[Path]](set)
    unknown = [(charge, "it was lost") for charge in ledger.charges() if charge.lost]
    for charge, other in ledger.coverage():
        if not _compared(charge, purchase):
            continue
        if why := _incomparable(covered, other):
            if charge.account == account:
                raise BudgetError(
                    f"which events epoch {charge.epoch!r} was about is unknown since {why}, so that"
                    f" nobody can tell whether epoch {purchase.epoch!r} has some of them, too; set"
                    ' [keys] secret_file back, or [privacy] epochs = "additive"'
                )
            unknown.append((charge, why))
            continue
        if other.sha256 not in shared:
            _verify(folder / other.sha256)
            files = [folder / covered.sha256], [folder / other.sha256]
            shared[other.sha256] = overlap(*files)
        count = shared[other.sha256]
        compared[charge.account].add(folder / other.sha256)
        if not count:
            continue
        if charge.account == account:
            raise BudgetError(
                f"{count:,} events of epoch {purchase.epoch!r} are events of epoch"
                f" {charge.epoch!r}, too, but epochs='disjoint' says that none is; set [privacy]"
                ' epochs = "additive", or give each epoch its own events'
            )
        if not separate_reason:
            raise BudgetError(
                f"{count:,} events of data set {purchase.data_set!r} have paid from account"
                f" {charge.account!r} (data set {charge.data_set!r}); {_remedy(charge)}"
            )
        apart[charge.account] = compared[charge.account]
    for charge, why in unknown:
        if charge.account == account:
            continue
        apart.setdefault(charge.account, set())
        if not separate_reason:
            raise BudgetError(
                f"which events {charge.purpose!r} of data set {charge.data_set!r}, epoch"
                f" {charge.epoch!r}, was about is unknown since {why}, and account"
                f" {charge.account!r} has paid for them; {_remedy(charge)}"
            )
    for other_account, theirs in apart.items():
        mine = {folder / covered.sha256} | {
            folder / ours.sha256
            for charge, ours in ledger.coverage()
            if charge.account == account and ours.secret == covered.secret
        }
        for path in mine if theirs else ():
            _verify(path)
        # of all epochs, of which those before may share events with what came to the other since
        count = overlap(sorted(mine), sorted(theirs)) if theirs else 0
        ledger.separate(account, other_account, count, separate_reason)


def _incomparable(one: Covered, other: Covered) -> str:
    """Why fingerprints would differ of the same event, too; empty where they would not."""
    if one.secret != other.secret:
        return "the ledger that knew them is gone"
    if one.join != other.join and not (one.named and other.named):
        return "keys were hashed under another join secret"
    return ""


def _verify(path: Path) -> None:
    """Refuse fingerprints that are not those that were written: an event could hide behind one."""
    remedy = "; nothing was spent; restore it from a backup"
    with file_errors(DataError, f"{path} cannot be read", remedy):
        if sha256_of(path) != path.name:
            raise DataError(f"{path} is damaged{remedy}")


def tidy(folder: Path, ledger: Ledger) -> None:
    """Remove files that no charge names."""
    named = {covered.sha256 for _, covered in ledger.coverage()}
    with translating_errors(folder):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in named:
                path.unlink()


def _remedy(charge: Charge) -> str:
    return (
        f'set [privacy] account = "{charge.account}" to share its budget, or separate = true with a'
        " separate_reason that the ledger keeps"
    )


def _compared(charge: Charge, purchase: Purchase) -> bool:
    if charge.account != purchase.account:
        return True
    disjoint = purchase.composition == charge.composition == "disjoint"
    return disjoint and charge.epoch != purchase.epoch
