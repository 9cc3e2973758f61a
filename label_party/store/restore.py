"""``label-party restore``: a working store from a backup, without spending anything twice.

A backup knows nothing of what was released after it was taken. Started carelessly, its ledger would
let the same budget be spent again, and an epoch be built a second time with other noise. So
releases that are still on a disk are counted as spent, with their digests, and served as they are
(:mod:`label_party.store.recovery`); those that are gone the operator names, or says that there are
none, and the ledger records by whom and when. Which events a lost release was about is not known:
it counts against all of its account's, and another account buys only if it says why it is separate,
as for events that are shared. deploy/RUNBOOK.md has the procedure.

Evaluations are closed, in the ledger: how many answers were given since the backup is not known, so
what was answered stays, and no more is.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.names import NAME_PATTERN
from common.errors import ConfigError, PrivacyError, ReleaseError
from common.exact.rational import decimal_value
from common.files import sha256_of, sync
from common.guarantees import Guarantee, PureDP, guarantee_from_json
from common.release.folder import SIGNATURE_FILE
from label_party.config.sections import LabelPartyConfig
from label_party.store import seal
from label_party.store.backup import FORMAT, INDEX_FILE
from label_party.store.disk import translating_errors
from label_party.store.entries import EVALUATION, LABELS, Purchase
from label_party.store.ledger import Ledger
from label_party.store.pay_once import read_outcome
from label_party.store.recovery import recover
from label_party.store.release_store import COVERED, LEDGER_FILE, Store, is_release

_RESTORING = ".restoring"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_MEMBER = re.compile(
    rf"ledger\.sqlite|covered/[0-9a-f]{{64}}|(releases|outcomes|populations)(/{_PART}){{3,4}}"
)


@dataclass(frozen=True, eq=False)
class Restored:
    """What was restored."""

    made_at: str  # when the backup was taken, UTC
    releases: int  # releases and other outcomes whose bytes are at hand
    counted: list[str]  # those of them that the backup did not know


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


def restore(store: Store, path: Path, lost: list[Purchase], *, nothing_since: bool) -> Restored:
    """Make a store from a backup.

    ``lost`` is what was released after the backup and is gone; ``nothing_since`` the operator's
    word that nothing was. ``LabelveilError`` if nothing was stated, the store has a ledger, or the
    backup is damaged; a ledger appears only when everything else is in its place.
    """
    if nothing_since == bool(lost):
        raise ConfigError(
            "a backup does not know what was released after it was taken, and would let it be"
            " spent again; say either --nothing-since or --lost EPOCH for each release since"
        )
    store.create()
    with store.building():
        if store.ledger_path.exists():
            raise ConfigError(
                f"{store.ledger_path} exists already; move it away (with its -key, -wal and -shm"
                " files) to restore here, and leave the other files where they are"
            )
        with _extracted(store, path) as (folder, index):
            _place_folders(store, folder)
            statement = {
                "nothing_since": nothing_since,
                "lost": [f"{entry.epoch} {entry.purpose}" for entry in lost],
            }
            seal.adopt(folder / LEDGER_FILE)  # the index has its digest
            with Ledger(folder / LEDGER_FILE) as ledger:
                ledger.record_restore(str(index["created"]), statement)
                counted = recover(store, ledger).counted
                for entry in lost:  # what was found is not lost, and stays as it was counted
                    ledger.count(entry)
                releases = _verify(store, ledger)
            with translating_errors(store.directory):
                seal.key_path(folder / LEDGER_FILE).replace(seal.key_path(store.ledger_path))
                for left in folder.glob(f"{LEDGER_FILE}-*"):
                    left.unlink()  # empty: closing the ledger moved everything into its file
                (folder / LEDGER_FILE).rename(store.ledger_path)
                sync(store.directory)
    return Restored(str(index["created"]), releases, counted)


@contextmanager
def _extracted(store: Store, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Unpack into the store's own file system, and verify every byte."""
    folder = store.directory / _RESTORING
    with translating_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)  # of a restore that died
        folder.mkdir(mode=0o700)
    try:
        yield folder, _extract(path, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _extract(path: Path, folder: Path) -> dict[str, Any]:
    digests: dict[str, str] = {}
    index: dict[str, Any] = {}
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise _damaged(path)
                if member.name == INDEX_FILE:
                    index = json.loads(content.read())
                    continue
                if not _MEMBER.fullmatch(member.name) or member.name in digests:
                    raise _damaged(path)
                target = folder / member.name
                with translating_errors(target):
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with target.open("xb") as file:
                        shutil.copyfileobj(content, file)
                        sync(file)
                    digests[member.name] = sha256_of(target)
    except OSError as error:
        raise ReleaseError(f"{path} cannot be read: {error.strerror}") from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise _damaged(path) from error
    whole = index.get("format") == FORMAT and index.get("files") == digests
    if not whole or LEDGER_FILE not in digests:
        raise _damaged(path)
    return index


def _damaged(path: Path) -> ReleaseError:
    return ReleaseError(
        f"{path} is not a whole backup; nothing was restored; use another, or the file that"
        " label-party backup wrote"
    )


def _place_folders(store: Store, folder: Path) -> None:
    """Move directories to their names; those that are there already must be the same."""
    with translating_errors(store.covered):
        store.covered.mkdir(mode=0o700, exist_ok=True)
        for source in folder.glob(f"{COVERED}/*"):
            source.replace(store.covered / source.name)  # its name is its digest
        sync(store.covered)
    kinds = ("releases/*/*", "outcomes/*/*/*", "populations/*/*")
    for source in sorted(path for kind in kinds for path in folder.glob(kind)):
        target = store.directory / source.relative_to(folder)
        with translating_errors(target):
            if target.exists():
                for file in source.iterdir():
                    there = target / file.name
                    if file.name == SIGNATURE_FILE:  # it may be signed again with a new key
                        continue
                    if not there.is_file() or sha256_of(there) != sha256_of(file):
                        raise ReleaseError(
                            f"{there} differs from the backup's; move its directory away if the"
                            " backup is right"
                        )
                continue
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(source)
            source.rename(target)
            for above in target.parents:
                sync(above)
                if above == store.directory:
                    break


def _verify(store: Store, ledger: Ledger) -> int:
    """Open everything that the ledger has paid for, and verify its digest."""
    at_hand = [entry for entry in ledger.charges() if not entry.lost]
    for entry in at_hand:
        if is_release(entry):
            store.open_release(entry)
        elif entry.purpose != EVALUATION:
            read_outcome(store, entry)
    return len(at_hand)
