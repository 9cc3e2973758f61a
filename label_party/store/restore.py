"""``label-party restore``: a working store from a backup, without spending anything twice.

A backup knows nothing of what was released after it was taken. Started carelessly, its ledger would
let the same budget be spent again, and an epoch be built a second time with other noise. So
releases that are still on a disk are counted as spent, with their digests, and served as they are
(:mod:`labelveil.label_party.store.recovery`); those that are gone the operator names, or says that
there are none, and the ledger records by whom and when. Which events a lost release was about is
not known: it counts against all of its account's, and another account buys only if it says why it
is separate, as for events that are shared. deploy/RUNBOOK.md has the procedure.

What is whole is taken, and nothing damaged stands in its way: the ledger says what was spent, and
vouches for every release. What is not whole stays spent, and is named. Without a backup the ledger
is made of what lies in the store.

Evaluations are closed, in the ledger: how many answers were given since the backup is not known, so
what was answered stays, and no more is.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelveil.common.config.names import NAME_PATTERN
from labelveil.common.errors import ConfigError, PrivacyError, ReleaseError, listed
from labelveil.common.exact.rational import decimal_value
from labelveil.common.files import PRIVATE, sha256_of, sync
from labelveil.common.formats import BACKUP
from labelveil.common.guarantees import Guarantee, PureDP, guarantee_from_json
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store import seal
from labelveil.label_party.store.backup import DIGESTS_FILE, FORMAT, INDEX_FILE, why_damaged
from labelveil.label_party.store.disk import translating_errors
from labelveil.label_party.store.entries import LABELS, Purchase
from labelveil.label_party.store.ledger import Ledger, ledger_errors
from labelveil.label_party.store.recovery import recover
from labelveil.label_party.store.release_store import (
    CHARGE_FILE,
    COVERED,
    LEDGER_FILE,
    POPULATIONS,
    Store,
)

_TABLES = ("damaged", "files")
"""What :data:`DIGESTS_FILE` says."""

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_MEMBER = re.compile(
    rf"ledger\.sqlite|covered/[0-9a-f]{{64}}|(releases|outcomes|populations)(/{_PART}){{3,4}}"
)


@dataclass(frozen=True, eq=False)
class Restored:
    """What was restored."""

    made_at: str  # when the backup was taken, UTC; empty without one
    releases: int  # releases and other outcomes whose bytes are at hand
    counted: list[str]  # those of them that the backup did not know
    withdrawn: list[str]  # releases that are served no more, as far as is known
    damaged: dict[str, str]  # what stays spent although it is not whole, and why


@dataclass(frozen=True, eq=False)
class _Extracted:
    """What a backup has, below a folder that is laid out as a store."""

    store: Store
    made_at: str = ""
    # by its name in a store: what the backup says that it lacks, or what is damaged in it
    damaged: dict[str, str] = field(default_factory=dict)


def parse_lost(config: LabelPartyConfig, text: str) -> Purchase:
    """Read ``EPOCH``, ``EPOCH=SPENT`` or ``EPOCH:PURPOSE=SPENT``: what was sold, and is gone.

    ``SPENT`` is a pure ε, or a guarantee of any kind as the commands print it with ``--json``. It
    is counted against all epochs of the account, for it is not known which events it was about.
    """
    which, amount, spent = text.partition("=")
    epoch, other, purpose = which.partition(":")
    charge = config.privacy.charge
    guarantee: Guarantee = charge
    try:
        if spent.lstrip().startswith("{"):
            guarantee = guarantee_from_json(json.loads(spent))
        elif amount:
            epsilon = decimal_value(float(spent))
            if epsilon <= 0:
                raise ValueError(text)
            guarantee = PureDP(charge.adjacency, charge.unit, epsilon)
        if not re.fullmatch(NAME_PATTERN, epoch) or (other and not (purpose and amount)):
            raise ValueError(text)
        guarantee.same_neighbours(charge)
    except PrivacyError as error:
        raise ConfigError(f"lost={text!r}: {error}; set --lost") from error
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"lost={text!r} must be EPOCH, EPOCH=SPENT or EPOCH:PURPOSE=SPENT, with an epsilon"
            ' above 0 or a guarantee such as {"kind": "zcdp", …} for SPENT; set --lost'
        ) from error
    return Purchase(
        config.data.data_set,
        epoch,
        purpose or LABELS,
        guarantee,
        config.account,
        records_per_unit=config.privacy.group,
    )


def restore(
    store: Store, path: Path | None, lost: list[Purchase], account: str, *, nothing_since: bool
) -> Restored:
    """Make a store from a backup, or its ledger from what lies there.

    ``lost`` is what was released after the backup and is gone; ``nothing_since`` the operator's
    word that nothing was, for ``account``. ``LabelveilError`` if nothing was stated, the store has
    a ledger, or the backup has none that is whole, or another store's; the ledger appears only when
    everything else is in its place, and until then the restore may be run again.
    """
    if nothing_since == bool(lost):
        raise ConfigError(
            "a backup does not know what was released after it was taken, and would let it be"
            " spent again; say either --nothing-since or --lost EPOCH for each release since"
        )
    if path is None and not store.folders():
        raise ConfigError(
            f"{store.directory} has nothing to make a ledger of; name what label-party backup wrote"
        )
    store.create()
    with store.building():
        log = store.ledger_path.with_name(f"{LEDGER_FILE}-wal")
        if store.has_ledger() or (log.exists() and log.stat().st_size):
            raise ConfigError(
                f"{store.ledger_path} exists already, or its log does; move it away (with its -key,"
                " -wal and -shm files) to restore here, and leave the other files where they are"
            )
        with _extracted(store, path) as backup:
            place = backup.store.ledger_path
            statement = {
                "nothing_since": nothing_since,
                "lost": [f"{entry.epoch} {entry.purpose}" for entry in lost],
            }
            if path is not None:
                with ledger_errors(place):
                    seal.adopt(place)  # the index has its digest
            with Ledger(place) as ledger:
                if path is not None and nothing_since:
                    _check_account(path, ledger, account)
                _place_folders(store, backup, ledger)
                ledger.record_restore(backup.made_at, statement)
                for entry in lost:  # what says no more what it cost is as lost as what is gone
                    if _unreadable(store, entry):
                        ledger.count(entry)
                counted = recover(store, ledger).counted
                for entry in lost:  # what was found is not lost, and stays as it was counted
                    ledger.count(entry)
                withdrawn = ledger.withdrawals()
                damaged = _damaged_in(store, ledger, backup)
                at_hand = [entry for entry in ledger.charges() if not entry.lost]
                names = [f"{at.data_set}/{at.epoch}" for at in at_hand if at.id in withdrawn]
            with translating_errors(store.directory):
                seal.key_path(place).replace(seal.key_path(store.ledger_path))
                for left in place.parent.glob(f"{LEDGER_FILE}-*"):
                    left.unlink()  # empty: closing the ledger moved everything into its file
                place.replace(store.ledger_path)
                sync(store.directory)
    releases = sum(_name(store, entry) not in damaged for entry in at_hand)
    return Restored(backup.made_at, releases, counted, names, damaged)


def _check_account(path: Path, ledger: Ledger, account: str) -> None:
    """Refuse another store's backup, by which an account would have spent nothing."""
    known = sorted({charge.account for charge in ledger.charges()})
    if known and account not in known:
        raise ConfigError(
            f"{path} knows nothing that account {account!r} spent, only account"
            f"{'s' * (len(known) > 1)} {listed(known)}; name a backup of its store, or with"
            " --config a configuration of what this one is of"
        )


def _name(store: Store, charge: Purchase) -> str:
    return store.folder(*charge.name).relative_to(store.directory).as_posix()


def _unreadable(store: Store, entry: Purchase) -> bool:
    """Whether there is a directory of this name that does not say what it cost."""
    path = store.folder(*entry.name)
    if not path.exists():
        return False
    try:
        store.read_charge(path)
    except ReleaseError:
        return True
    return False


@contextmanager
def _extracted(store: Store, path: Path | None) -> Iterator[_Extracted]:
    """Unpack into the store's own file system, and leave out what is damaged.

    The folder is there, if only empty, until all is restored: no ledger begins beside it.
    """
    folder = store.restoring

    def empty() -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a restore that died, too
        folder.mkdir(mode=0o700)
        sync(store.directory)

    with translating_errors(folder):
        empty()
    try:
        yield _Extracted(Store(folder)) if path is None else _extract(path, folder)
    except BaseException:
        with suppress(OSError):
            empty()
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _extract(path: Path, folder: Path) -> _Extracted:
    """Unpack a backup as far as it can be read; its ledger must be whole."""
    found: dict[str, str] = {}
    about: dict[str, dict[str, Any]] = {}
    try:
        # a damaged heading hides its file, and not those behind it
        with tarfile.open(path, mode="r:", ignore_zeros=True) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise _damaged(path)
                if member.name in (INDEX_FILE, DIGESTS_FILE):
                    stated = dict(json.loads(content.read()))
                    tables = {name: dict(stated.get(name, {})) for name in _TABLES}
                    about[member.name] = stated | tables
                    _check_format(path, about.get(INDEX_FILE, {}))
                    continue
                if not _MEMBER.fullmatch(member.name) or member.name in found:
                    raise _damaged(path)
                target = folder / member.name
                with translating_errors(target):
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    target.touch(PRIVATE)
                    with target.open("wb") as file:
                        shutil.copyfileobj(content, file)
                        sync(file)
                    found[member.name] = sha256_of(target)
    except OSError as error:
        raise ReleaseError(f"{path} cannot be read: {error.strerror}") from error
    except (tarfile.TarError, ValueError, TypeError, EOFError, RecursionError):
        pass  # cut off, or damaged here: what came before may do
    for left in folder.rglob("*"):  # half of a file
        if left.is_file() and left.relative_to(folder).as_posix() not in found:
            left.unlink()
    index, last = about.get(INDEX_FILE, {}), about.get(DIGESTS_FILE, {})
    if index.get("format") != FORMAT or found.get(LEDGER_FILE, "") != index.get("ledger"):
        raise _damaged(path)
    damaged, digests = (dict(last.get(name, {})) for name in _TABLES)
    for name in digests.keys() | found.keys():
        if name != LEDGER_FILE and found.get(name) != digests.get(name, found.get(name)):
            damaged[name] = f"{name} is damaged in {path}"
            if name in found:  # of another name nobody knows where it leads
                (folder / name).unlink()
    if not last:  # nothing vouches for these
        lost = [name for name in found if name.startswith(f"{POPULATIONS}/")]
        damaged |= {name: f"{path} has no digest of {name}" for name in lost}
        shutil.rmtree(folder / POPULATIONS, ignore_errors=True)
    return _Extracted(Store(folder), str(index.get("created", "")), damaged)


def _check_format(path: Path, index: dict[str, Any]) -> None:
    """Say of a backup of another version what it is, before anything of it is found strange."""
    stated, spent = index.get("format"), "nothing was restored"
    if BACKUP.number_of(stated) is not None:
        BACKUP.check(
            stated,
            f"{path}",
            ReleaseError,
            update=f"{spent}; the labels party must update labelveil",
            made_by=index.get("software"),
            older=f"{spent}; use the version that made it",
        )


def _damaged(path: Path) -> ReleaseError:
    return ReleaseError(
        f"{path} is not a backup with a whole ledger; nothing was restored; use another, or the"
        " file that label-party backup wrote"
    )


def _place_folders(store: Store, backup: _Extracted, ledger: Ledger) -> None:
    """Move what is whole to its place, unless what is there is whole, too.

    ``ReleaseError`` before anything is moved if something else was sold under a name.
    """
    folder, withdrawn = backup.store.directory, ledger.withdrawals()
    placed = []
    for charge in ledger.charges():
        source, target = (of.folder(*charge.name) for of in (backup.store, store))
        gone = charge.id in withdrawn
        if not source.exists() or why_damaged(backup.store, charge, withdrawn=gone):
            continue
        if target.exists():
            if gone or not why_damaged(store, charge):
                placed += _better_charge(store, source, target)
                continue
            _check_name(store, target)
        placed.append((source, target))
    for digest in sorted({events.sha256 for _, events in ledger.coverage()}):
        source, target = backup.store.covered / digest, store.covered / digest
        if source.is_file() and sha256_of(source) == digest:
            placed.append((source, target))
    for source in sorted(folder.glob(f"{POPULATIONS}/*/*")):
        target = store.directory / source.relative_to(folder)
        if not target.exists():
            placed.append((source, target))
    for source, target in placed:
        with translating_errors(target):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(source)
            if target.is_dir():
                shutil.rmtree(target)  # of the same name, and damaged
            source.replace(target)
            for above in target.parents:
                sync(above)
                if above == store.directory:
                    break


def _better_charge(store: Store, source: Path, target: Path) -> list[tuple[Path, Path]]:
    """The file that says what was paid for a directory, where it is whole but for that."""
    try:
        store.read_charge(target)
    except ReleaseError:
        return [(source / CHARGE_FILE, target / CHARGE_FILE)]
    return []


def _check_name(store: Store, path: Path) -> None:
    """Refuse to take the place of what another ledger sold: it is whole, and not ours."""
    try:
        other = store.read_charge(path)
    except ReleaseError:
        return
    if not why_damaged(store, other):
        raise ReleaseError(
            f"{path} is whole, and not what the backup has under its name; move it away if the"
            " backup is right; nothing was restored"
        )


def _damaged_in(store: Store, ledger: Ledger, backup: _Extracted) -> dict[str, str]:
    """What a ledger paid for and is not whole here, and what else a backup lacks."""
    withdrawn = ledger.withdrawals()
    damaged = {
        _name(store, charge): reason
        for charge in ledger.charges()
        if not charge.lost
        and (reason := why_damaged(store, charge, withdrawn=charge.id in withdrawn))
    }
    for _, events in ledger.coverage():
        if not (store.covered / events.sha256).is_file():
            damaged[f"{COVERED}/{events.sha256}"] = f"{store.covered / events.sha256} is gone"
    for name, reason in backup.damaged.items():
        if not (store.directory / name).exists() and not any(
            name.startswith(f"{known}/") or name == known for known in damaged
        ):
            damaged[name] = reason
    return damaged
