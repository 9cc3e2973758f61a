"""Of a damaged or forged backup what is whole is restored, and nothing that was forged."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from labelveil.common.errors import ReleaseError, not_none
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.commands.backup import _fail_if_damaged
from labelveil.label_party.server.run import running
from labelveil.label_party.store.release_store import Store
from tests.label_party import fault_bodies
from tests.label_party.conftest import Party
from tests.label_party.store.backups import Connect, account_of, damage, lose_store, restore


def _truncate(data: bytes) -> bytes:
    return data[: data.index(b"backup.json")]


def _flip(data: bytes) -> bytes:
    at = data.index(b"SQLite format 3") + 5000
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _with(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b""
) -> Callable[[bytes], bytes]:
    """Add a member of some name to a backup; with content in place of the one that there is."""

    def spoil(data: bytes) -> bytes:
        out = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(data)) as old,
            tarfile.open(fileobj=out, mode="w") as new,
        ):
            for member in old:
                if not content or member.name != name:
                    new.addfile(member, old.extractfile(member))
            evil = tarfile.TarInfo(name)
            evil.type, evil.linkname, evil.size = kind, "../../evil", len(content)
            new.addfile(evil, io.BytesIO(content))
        return out.getvalue()

    return spoil


_MORE = (
    _with("releases/../../evil/x/y"),
    _with("releases/labels/1/x/../../../../../evil"),
    _with("evil"),
    _with("ledger.sqlite"),  # for a second time
    _with("releases/labels/1/codes.bin"),
    _with("releases/labels/1/more.bin", tarfile.SYMTYPE),
    _with("backup.json", content=b"[" * 10**5),  # deeper than a parser goes
)


@pytest.mark.parametrize("spoil", [_truncate, _flip, *_MORE, lambda data: b"no archive" * 99])
def test_a_backup_without_its_ledger_restores_nothing(
    party: Party, spoil: Callable[[bytes], bytes]
) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    path = party.folder / "b.tar"
    path.write_bytes(spoil(path.read_bytes()))
    assert "is not a backup with a whole ledger" in restore(party, "--nothing-since").error
    assert not Store(party.store).ledger_path.exists()
    assert not list(party.store.glob("releases/*/*"))
    assert not [*party.folder.rglob("evil"), *party.folder.parent.glob("evil")]


def test_of_a_forged_backup_nothing_is_restored(party: Party) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    path = party.folder / "b.tar"
    with tarfile.open(path) as archive:
        index = json.load(not_none(archive.extractfile("backup.json")))
    ledger = b"no database" * 400
    index["ledger"] = hashlib.sha256(ledger).hexdigest()
    forged = _with("backup.json", content=json.dumps(index).encode())(path.read_bytes())
    path.write_bytes(_with("ledger.sqlite", content=ledger)(forged))
    assert restore(party, "--nothing-since").error.startswith("error: ledger ")
    assert not Store(party.store).ledger_path.exists()


@pytest.mark.parametrize("said", [{"files": [1]}, {"damaged": 3}])
def test_of_a_backup_whose_digests_are_none_the_rest_is_restored(
    party: Party, said: dict[str, Any]
) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    shutil.rmtree(party.store)
    path = party.folder / "b.tar"
    path.write_bytes(_with("digests.json", content=json.dumps(said).encode())(path.read_bytes()))
    assert restore(party, "--nothing-since").code == 0
    assert account_of(party)["left"]["epsilon"] == "2"


def test_another_stores_backup_is_not_taken_for_an_account_that_spent_nothing(
    party: Party,
) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    lose_store(party)
    other = "--set=privacy.account=other"
    refused = restore(party, "--nothing-since", other).error
    assert "knows nothing that account 'other' spent, only account labels" in refused
    assert not Store(party.store).ledger_path.exists()
    assert not list(party.store.glob("releases/*"))
    assert restore(party, "--lost", "7", other).code == 0  # its first release, after the backup


def test_a_backup_names_what_is_damaged_and_its_restore_takes_the_rest(
    party: Party, connect: Connect
) -> None:
    for epoch in ("1", "2"):
        assert party.release(data__epoch=epoch).code == 0
    before = {
        path.name: path.read_bytes() for path in (party.store / "releases/labels/1").iterdir()
    }
    damage(party.store / "releases/labels/2/codes.bin")
    (covered,) = (party.store / "covered").iterdir()
    made = party.run("backup", "--to", "b.tar", "--json")
    assert made.code == 1
    assert "b.tar was written, but not whole: releases/labels/2 (" in made.err
    assert [*json.loads(made.out)["damaged"]] == ["releases/labels/2"]
    assert json.loads(made.out)["releases"] == 1
    with tarfile.open(party.folder / "b.tar") as archive:
        assert not any(name.startswith("releases/labels/2") for name in archive.getnames())
        (last,) = [archive.extractfile(name) for name in archive.getnames()[-1:]]
        assert last is not None
        assert [*json.load(last)["damaged"]] == ["releases/labels/2"]
    shutil.rmtree(party.store)
    restored = restore(party, "--nothing-since")
    assert restored.code == 1
    assert "these stay spent, but are not whole: releases/labels/2 (" in restored.err
    assert account_of(party)["left"]["epsilon"] == "1"
    folder = party.store / "releases/labels/1"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (party.store / "covered" / covered.name).exists()
    assert "cannot be read" in party.release(data__epoch="2").error  # never built again
    with running(party.config()) as address:
        client = connect(address)
        assert client.fetch(client.describe(epoch="1"))[1] == before["codes.bin"]
    # what cannot be put back is withdrawn, and the next backup is whole
    assert party.run("withdraw", "2", "--reason", "its disk failed", "--yes").code == 0
    assert party.run("backup", "--to", "c.tar").code == 0
    with running(party.config()) as address:
        assert Manifest.from_bytes(connect(address).describe().manifest).epoch == "1"


def test_all_that_a_backup_lacks_is_named(party: Party) -> None:
    """A release that is not whole, keys that another was asked for, and what a session cost."""
    fault_bodies.question(str(party.folder), "3")
    fault_bodies.submit(str(party.folder), "1")
    assert party.release(data__epoch="1", data__population='"submitted"').code == 0
    assert party.release(data__epoch="2", privacy__epsilon=0.25).code == 0
    (keys,) = (party.store / "populations/labels/1").glob("*.keys")
    damage(party.store / "releases/labels/2/codes.bin")
    damage(keys)
    (session,) = party.store.glob("**/outcome.bin")
    shutil.rmtree(session.parent)
    lacking = {"releases/labels/2", keys.relative_to(party.store).as_posix()}
    note = session.with_name("charge.json").relative_to(party.store).as_posix()
    covered = min((party.store / "covered").iterdir())
    covered.unlink()
    covered.mkdir()  # the disk cannot read it, and says why
    lacking.add(covered.relative_to(party.store).as_posix())
    made = party.run("backup", "--to", "b.tar", "--json")
    assert {*json.loads(made.out)["damaged"]} == lacking | {note}
    shutil.rmtree(party.store)
    said = restore(party, "--nothing-since").err
    assert all(name in said for name in lacking)
    assert note not in said  # it was in the ledger


def test_of_much_that_is_damaged_some_is_named() -> None:
    names = [f"releases/labels/{n}" for n in range(7)]
    for some, said in ((names[:5], "labels/4 (gone); mend"), (names, "labels/4 and 2 more (gone)")):
        with pytest.raises(ReleaseError, match=re.escape(said)):
            _fail_if_damaged(dict.fromkeys(some, "gone"), "lost", "mend")


def test_a_backup_takes_a_charge_from_the_ledger_where_the_note_of_it_is_damaged(
    party: Party,
) -> None:
    assert party.release().code == 0
    damage(party.store / "releases/labels/1/charge.json")
    assert "releases/labels/1/charge.json (" in party.run("backup", "--to", "b.tar").err
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert "--lost EPOCH" in party.run("restore", "--nothing-since").error
    for there in (True, False):
        if not there:
            shutil.rmtree(party.store)
        assert restore(party, "--nothing-since").code == 0
        for path in party.store.glob("ledger.sqlite*"):
            path.unlink()
        assert party.run("restore", "--nothing-since").code == 0
        assert account_of(party)["left"]["epsilon"] == "2"
        for path in party.store.glob("ledger.sqlite*"):
            path.unlink()


def test_a_backup_takes_no_note_of_another_purchase(party: Party) -> None:
    """Of its name, and of another ledger: the bytes that lie there are not what it was for."""
    other, note = (
        folder / "releases/labels/1/charge.json" for folder in (party.folder / "other", party.store)
    )
    assert party.release(store__directory='"other"').code == 0
    (party.folder / "label_party.toml.receipt").unlink()
    assert party.release().code == 0
    digest = json.loads(note.read_text())["digest"]
    note.write_text(other.read_text())
    assert "charge.json is of something else" in party.run("backup", "--to", "b.tar").err
    shutil.rmtree(party.store)
    assert restore(party, "--nothing-since").code == 0
    assert json.loads(note.read_text())["digest"] == digest


def _cut_off(data: bytes) -> bytes:
    """As by a disk that is full, in the second release."""
    return data[: data.index(b"releases/labels/2/manifest.json") + 700]


def _hide(data: bytes) -> bytes:
    """A heading is damaged, and its file with it."""
    at = data.index(b"releases/labels/2/codes.bin")
    return data[:at] + b"R" + data[at + 1 :]


def _flip_codes(data: bytes) -> bytes:
    at = data.index(b"releases/labels/2/codes.bin") + 512 + 10
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("spoil", [_cut_off, _hide, _flip_codes])
def test_of_a_damaged_backup_what_is_whole_is_restored(
    party: Party, spoil: Callable[[bytes], bytes]
) -> None:
    for epoch in ("1", "2"):
        assert party.release(data__epoch=epoch).code == 0
    codes = (party.store / "releases/labels/1/codes.bin").read_bytes()
    assert json.loads(party.run("backup", "--to", "b.tar", "--json").out)["releases"] == 2
    old = lose_store(party)
    path = party.folder / "b.tar"
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    done = restore(party, "--nothing-since")
    assert (done.code, done.err.count("\n")) == (1, 1), done
    assert "releases/labels/2" in done.err
    assert account_of(party)["left"]["epsilon"] == "1"
    assert (party.store / "releases/labels/1/codes.bin").read_bytes() == codes
    assert not (party.store / "releases/labels/2").exists()
    # the same release from elsewhere is what the ledger knows
    for name in ("releases/labels/2", "covered"):
        shutil.copytree(old / name, party.store / name, dirs_exist_ok=True)
    path.unlink()
    assert party.run("backup", "--to", "b.tar").code == 0


def test_of_a_backup_without_its_digests_only_what_its_ledger_knows_is_restored(
    party: Party,
) -> None:
    """A population has none there, and what says who has paid has its digest as its name."""
    fault_bodies.submit(str(party.folder), "1")
    assert party.release(data__population='"submitted"').code == 0
    (covered,) = (party.store / "covered").iterdir()
    assert party.run("backup", "--to", "b.tar").code == 0
    path = party.folder / "b.tar"
    whole = path.read_bytes()
    lose_store(party)
    for spoilt in (False, True):
        data = bytearray(whole[: whole.rindex(b"digests.json")])
        at = data.index(f"covered/{covered.name}".encode())
        data[at + 512 + 8] ^= spoilt
        path.write_bytes(data)
        done = restore(party, "--nothing-since")
        assert (done.code, covered.name in done.err, done.err.count("\n")) == (1, spoilt, 1), done
        assert spoilt or "b.tar has no digest of populations/labels/1/" in done.err
        assert list((party.store / "covered").glob("*")) == [covered] * (not spoilt)
        assert not list(party.store.glob("populations/*/*/*"))
        shutil.rmtree(party.store)


def test_half_a_file_of_a_backup_that_was_cut_off_is_no_file(party: Party) -> None:
    assert party.release().code == 0
    signature = party.store / "releases/labels/1/manifest.sig"
    signature.write_bytes(b"s" * 64)
    assert party.run("backup", "--to", "b.tar").code == 0
    path = party.folder / "b.tar"
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"s" * 64) + 20])
    lose_store(party)
    assert "releases/labels/1" not in restore(party, "--nothing-since").err
    assert (signature.parent / "codes.bin").exists()
    assert not signature.exists()


def test_a_population_is_put_back_whole_and_not_over_another(party: Party) -> None:
    fault_bodies.submit(str(party.folder), "1")
    assert party.release(data__population='"submitted"').code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    path = party.folder / "b.tar"
    whole = path.read_bytes()
    (keys,) = party.store.glob("populations/labels/1/*.keys")
    stated = keys.with_name("current.json")
    stated.write_bytes(b"another")
    for ledger in party.store.glob("ledger.sqlite*"):
        ledger.unlink()
    assert restore(party, "--nothing-since").code == 0
    assert (keys.exists(), stated.read_bytes()) == (True, b"another")
    lose_store(party)
    damaged = bytearray(whole)
    damaged[whole.index(f"labels/1/{keys.name}".encode()) + 512 + 8] ^= 1
    path.write_bytes(damaged)
    done = restore(party, "--nothing-since")
    assert (done.code, keys.name in done.err) == (1, True), done
    assert (keys.exists(), stated.exists()) == (False, True)


def test_a_backup_that_was_forged_removes_nothing_outside(party: Party) -> None:
    """What is said of files that are not in it leads nowhere."""
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    outside = party.folder / "join.key"
    out = io.BytesIO()
    with tarfile.open(party.folder / "b.tar") as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            content = old.extractfile(member)
            assert content is not None
            data = content.read()
            if member.name == "digests.json":
                names = (str(outside), "../../join.key", "releases/../../../join.key")
                forged = json.loads(data)
                forged["files"] |= dict.fromkeys(names, "0" * 64)
                data = json.dumps(forged).encode()
                member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    (party.folder / "b.tar").write_bytes(out.getvalue())
    shutil.rmtree(party.store)
    assert restore(party, "--nothing-since").code == 1
    assert outside.exists()
    assert account_of(party)["left"]["epsilon"] == "2"
