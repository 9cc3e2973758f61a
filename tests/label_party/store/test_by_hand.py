"""What a small table says of purchases, of events that have paid, and of files of a store."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.common.errors import ConfigError, ReleaseError
from labelveil.common.guarantees import (
    Adjacency,
    PureDP,
    Unit,
    ZeroConcentratedDP,
)
from labelveil.label_party.store import fingerprints, schema
from labelveil.label_party.store.coverage import _compared, _incomparable, check
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import LABELS, Composition, Covered, Purchase
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.purchase import Order
from labelveil.label_party.store.release_store import Store, StoredRelease, outcome_name
from labelveil.label_party.store.restore import parse_lost
from tests.label_party.conftest import EVENTS, Party
from tests.label_party.store.ledgers import bought, pure

COVERED = Covered("aa" * 32, 10, "s", "j", True)


def test_events_are_compared_where_both_would_have_one_fingerprint() -> None:
    assert not _incomparable(COVERED, COVERED)
    assert _incomparable(COVERED, replace(COVERED, secret="t")) == (
        "the ledger that knew them is gone"
    )
    assert not _incomparable(COVERED, replace(COVERED, join="k"))  # both have names
    for one, other in ((True, False), (False, True), (False, False)):
        pair = replace(COVERED, named=one), replace(COVERED, named=other, join="k")
        assert _incomparable(*pair) == "keys were hashed under another join secret"
        assert not _incomparable(pair[0], replace(pair[1], join="j"))


def test_a_charge_is_compared_with_other_accounts_and_with_other_disjoint_epochs() -> None:
    def compared(
        epoch: str, kind: Composition, account: str = "d", asked: Composition = "disjoint"
    ) -> bool:
        charge: Any = replace(bought(1, epoch, kind), account=account)
        return _compared(charge, bought(1, "1", asked))

    assert compared("1", "additive", "other")
    assert compared("1", "disjoint", "other")
    assert compared("2", "disjoint")
    assert not compared("1", "disjoint")
    assert not compared("2", "additive")
    assert not compared("2", "disjoint", asked="additive")


SOLD = Purchase(
    "sales", "7", "top-k by a", pure("0.5"), "shop", "disjoint", 3, 2,
    {"format": "labelveil-terms/3", "k": 4, "labels": [{"name": "x", "edges": [1, 2]}],
     "by": {"c": 1}},
    COVERED, "cd" * 32, 12,
)  # fmt: skip


def test_events_that_an_account_paid_for_under_a_lost_secret_are_compared_with_nothing(
    tmp_path: Path,
) -> None:
    """They could not be found, and where their file is lost, too, nobody misses it."""

    def covered(*prints: int) -> Covered:
        path = tmp_path / "new"
        digest, count = fingerprints.write(path, [np.array(prints, dtype=np.uint64)])
        path.rename(tmp_path / digest)
        return Covered(digest, count, "secret", "join", True)

    lost = Covered("ab" * 32, 9, "another secret", "join", True)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for data_set, events in (("d", lost), ("d", covered(3, 11)), ("e", covered(3, 7, 11))):
            order = Purchase(data_set, f"{events.events}", LABELS, pure(1), covered=events)
            ledger.commit(ledger.reserve(order, pure(9)).id, "cd" * 32, 1)
        asked = Purchase("d", "new", LABELS, pure(1), covered=covered(1, 7, 13))
        check(tmp_path, ledger, asked, "other labels")
        (separation,) = ledger.separations()
    assert (separation.account, separation.other, separation.events) == ("d", "e", 3)


def test_a_purchase_is_read_back_whole_or_not_at_all() -> None:
    again = Purchase.from_bytes(SOLD.to_bytes())
    assert again == SOLD
    assert again.request == SOLD.request
    assert again.name == ("sales", "7", "top-k by a")
    values = json.loads(SOLD.to_bytes())
    for name, value in values.items():
        other = {**values, name: "ef" * 32 if isinstance(value, str) else 99}
        with pytest.raises((ValueError, TypeError, KeyError)):
            Purchase.from_bytes(json.dumps(other).encode())
    assert Purchase("d", "1", LABELS, pure(1)).account == "d"
    bare = Purchase("d", "1", LABELS, pure(1))
    assert Purchase.from_bytes(bare.to_bytes()) == bare


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"guarantee": pure(1)}, ['guarantee.epsilon was "1/2" and is "1" now']),
        ({"records_per_unit": 4}, ["records_per_unit was 3 and is 4 now"]),
        ({"answers": 0}, ["answers was 2 and is 0 now"]),
        ({"request": {**SOLD.request, "k": 5}}, ["k was 4 and is 5 now"]),
        ({"request": {**SOLD.request, "by": {"c": 2}}}, ["by.c was 1 and is 2 now"]),
        (
            {"request": {**SOLD.request, "labels": [{"name": "y", "edges": [1, 3]}]}},
            [
                "labels.0.edges was [1, 2] and is [1, 3] now",
                'labels.0.name was "x" and is "y" now',
            ],
        ),
        ({"request": {**SOLD.request, "new": 1}}, ["new was none and is 1 now"]),
        (
            {"request": {**SOLD.request, **dict.fromkeys("zyxwvutsrqp", 1)}},
            [f"{letter} was none and is 1 now" for letter in "pqrstuvwxyz"],
        ),
        ({"account": "other", "composition": "additive", "digest": "", "rows": 1}, []),
        # of another version what it did not ask is no difference, and what it did is one
        ({"request": {"format": "labelveil-terms/1", "k": 4, "new": 1}}, []),
        ({"request": {"format": "labelveil-terms/1", "k": 5}}, ["k was 4 and is 5 now"]),
        ({"request": {"k": 5}}, ["k was 4 and is 5 now"]),
    ],
)
def test_another_purchase_of_a_name_differs_by_its_terms(
    change: dict[str, Any], said: list[str]
) -> None:
    assert SOLD.differences(replace(SOLD, **change)) == said


@pytest.mark.parametrize(
    ("text", "epoch", "purpose", "epsilon"),
    [
        ("3", "3", LABELS, 1),
        ("3=0.25", "3", LABELS, Fraction(1, 4)),
        ("2024-06-01:top-k by a=0.5", "2024-06-01", "top-k by a", Fraction(1, 2)),
        ("3:a:b=2", "3", "a:b", 2),
    ],
)
def test_what_is_lost_is_read_as_it_is_stated(
    party: Party, text: str, epoch: str, purpose: str, epsilon: Any
) -> None:
    settings = {"privacy__account": "shop", "data__data_set": "sales"}
    lost = parse_lost(party.config(**settings), text)
    assert (lost.data_set, lost.epoch, lost.purpose) == ("sales", epoch, purpose)
    assert (lost.account, lost.records_per_unit) == ("shop", 1)
    assert lost.guarantee == PureDP.of(Fraction(epsilon))
    assert (lost.composition, lost.digest) == ("additive", "")


@pytest.mark.parametrize(
    "text",
    ["", "=1", "3=", "3=0", "3=-1", "3=nan", "3=inf", "3:=1", "3:x", "3:", "a b", "../3", "3={}"],
)
def test_what_is_lost_is_refused_if_it_does_not_say_so(party: Party, text: str) -> None:
    with pytest.raises(ConfigError, match="set --lost"):
        parse_lost(party.config(), text)


def test_what_is_lost_may_be_of_any_kind_and_of_this_unit(party: Party) -> None:
    rho = ZeroConcentratedDP.of(Fraction(1, 8))
    text = f"3:x= {json.dumps(rho.to_json())}"
    assert parse_lost(party.config(), text).guarantee == rho
    other = PureDP.of(1, unit=Unit.USER).to_json()
    with pytest.raises(ConfigError, match="set --lost"):
        parse_lost(party.config(), f"3={json.dumps(other)}")
    of_users = party.config(
        privacy__unit="user", privacy__user="who", privacy__max_records_per_user=3
    )
    lost = parse_lost(of_users, f"3={json.dumps(other)}")
    assert (lost.guarantee.unit, lost.records_per_unit) == (Unit.USER, 3)
    assert rho.adjacency == Adjacency.REPLACE_LABEL


def split(folder: Path, rows: int, name: str, width: int) -> None:
    data = (folder / f"{name}.bin").read_bytes()
    size = rows * width
    for part, start in enumerate(range(0, len(data), size)):
        path = folder / (f"{name}-{part:06}.bin" if part else f"{name}.bin")
        path.write_bytes(data[start : start + size])


def test_rows_are_read_across_parts_as_from_one(party: Party) -> None:
    assert party.release().code == 0
    (digest,) = (c["digest"] for c in json.loads(party.run("budget", "--json").out)[0]["charges"])
    folder = party.store / "releases" / "labels" / "1"
    keys, codes = ((folder / f"{name}.bin").read_bytes() for name in ("keys", "codes"))
    split(folder, 60, "keys", 16)
    split(folder, 60, "codes", 1)
    assert len(list(folder.glob("keys*.bin"))) == 4
    release = StoredRelease(folder, digest)
    assert (release.rows, release.row_bytes) == (EVENTS, 17)
    for start in (0, 1, 59, 60, 61, 119, 120, 180, 199, 200):
        for stop in (start, start + 1, 60, 61, 120, 121, 180, 181, 200):
            if start <= stop <= EVENTS:
                assert release.read(start, stop) == (
                    keys[16 * start : 16 * stop],
                    codes[start:stop],
                )
    whole = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    damages: list[dict[str, bytes]] = [
        {"codes-000003.bin": whole["codes-000003.bin"] + b"\0"},
        {"codes-000003.bin": whole["codes-000003.bin"][:-1]},
        {"keys-000003.bin": whole["keys-000003.bin"][:-1]},
        {"keys-000001.bin": whole["keys-000001.bin"] + b"\0" * 16},
        {"codes-000001.bin": b"", "keys-000001.bin": b""},
        {"codes.bin": b"", "keys.bin": b""},
        {"codes-000002.bin": whole["codes-000001.bin"][::-1]},
    ]
    for damage in damages:
        for name, data in (whole | damage).items():
            (folder / name).write_bytes(data)
        with pytest.raises(ReleaseError, match="its rows do not match its manifest"):
            StoredRelease(folder, digest)
    for name, data in whole.items():
        (folder / name).write_bytes(data)
    release = StoredRelease(folder, digest)
    assert release.signature == b""
    (folder / "manifest.sig").unlink(missing_ok=True)
    (folder / "codes-000001.bin").write_bytes(whole["codes-000001.bin"])  # the same, written anew
    assert release.read(0, 60)[1] == codes[:60]
    with pytest.raises(ReleaseError, match=r"codes-000001\.bin has changed since it was verified"):
        release.read(60, 61)
    with pytest.raises(ReleaseError, match="is not the release that the ledger committed"):
        StoredRelease(folder, "00" * 32)


def test_a_first_ledger_may_be_made_while_a_store_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    monkeypatch.setattr(Store, "folders", lambda self: [tmp_path])
    with pytest.raises(StoreError, match="is gone, but 1 of the releases"):
        store.check_ledger()

    def made(self: Store) -> list[Path]:
        store.ledger_path.write_bytes(b"x")
        return [tmp_path]

    monkeypatch.setattr(Store, "folders", made)
    store.check_ledger()


def test_a_store_is_its_owners_and_goes_if_nothing_is_in_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "above" / "store")
    assert not store.has_ledger()
    store.create()
    assert [
        (p.stat().st_mode & 0o777) for p in (store.directory, store.directory / "releases")
    ] == [
        0o700,
        0o700,
    ]
    store.ledger_path.write_bytes(b"")
    assert not store.has_ledger()
    store.ledger_path.write_bytes(b"x")
    assert store.has_ledger()
    store.ledger_path.unlink()
    store.ledger_path.symlink_to(store.ledger_path)  # what opening it refuses is there
    assert store.has_ledger()
    store.ledger_path.unlink()
    (store.directory / "releases" / "kept").mkdir()
    store.remove_if_empty()
    assert (store.directory / "releases" / "kept").is_dir()
    (store.directory / "releases" / "kept").rmdir()
    store.scratch.mkdir()
    store.remove_if_empty()
    assert not store.directory.exists()
    assert store.folder("a", "1", LABELS) == store.directory / "releases" / "a" / "1"
    other = store.directory / "outcomes" / "a" / "1" / outcome_name("x")
    assert store.folder("a", "1", "x") == other
    assert len(outcome_name("x")) == 16
    assert outcome_name("x") != outcome_name("y")


def test_the_overlap_of_many_files_is_that_of_sets_whatever_the_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    monkeypatch.setattr(fingerprints, "_SLICE", 7)
    for round_ in range(20):
        sets, files = [], []
        for number in range(4):
            values = np.unique(rng.integers(0, 80, rng.integers(0, 60))).astype(np.uint64)
            path = tmp_path / f"{round_}-{number}"
            digest, count = fingerprints.write(path, [values[:5], values[5:5], values[5:]])
            assert count == int(np.count_nonzero(values & np.uint64(1)))
            assert len(digest) == 64
            sets.append({*values.tolist()})
            files.append(path)
        shared = (sets[0] | sets[1]) & (sets[2] | sets[3])
        hashed = sum(value % 2 for value in shared)
        expected = max(hashed, len(shared) - hashed)
        assert fingerprints.overlap(files[:2], files[2:]) == expected


def test_a_ledger_says_when_it_was_last_charged_and_what_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.last_change() is None
        assert ledger.releases() == []
        first = ledger.reserve(bought("0.5"), pure(9))
        assert ledger.last_change() is not None
        ledger.commit(first.id, "aa" * 32, 7)
        ledger.commit(ledger.reserve(bought("0.5", "2"), pure(9)).id, "bb" * 32, 8)
        ledger.reserve(bought("0.5", "3"), pure(9))
        session = replace(bought("0.5", "2"), purpose="x")
        ledger.commit(ledger.reserve(session, pure(9)).id, "cc" * 32, 0)
        charge = ledger.find("d", "1", LABELS)
        assert charge is not None
        assert (charge.rows, charge.digest) == (7, "aa" * 32)
        ledger.withdraw(charge, "wrong")
        sold = [(x.epoch, x.digest[:2], x.withdrawn) for x in ledger.releases()]
        assert sold == [("1", "aa", "wrong"), ("2", "bb", None)]
        assert ledger.accounts() == ["d"]
        latest = ledger.committed("d")
        assert latest is not None
        assert latest.epoch == "2"
        assert [x.epoch for x in ledger.reservations()] == ["3"]
        assert len(ledger.identity()) == 16
        monkeypatch.setattr("getpass.getuser", lambda: {}["HOME"])  # a container's has no name
        assert ledger.withdraw(latest, "wrong")[0].withdrawn_by == f"uid {os.getuid()}"
        assert ledger.fingerprint_secret() == ledger.fingerprint_secret()
        assert len(ledger.fingerprint_secret()) == 32
        assert ledger.left("d", pure(9)) == pure(7)


def test_a_separation_keeps_its_first_reason_and_its_last_count(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.separate("a", "b", 0, "why")
        ledger.separate("a", "b", 5, "why")
        ledger.separate("b", "a", 7, "other")
        ledger.separate("a", "c", 1, "why")
        ledger.separate("a", "c", 0, "why")
        told = [(x.account, x.other, x.events, x.reason) for x in ledger.separations()]
    assert told == [("a", "b", 7, "why"), ("b", "a", 7, "other"), ("a", "c", 1, "why")]


def test_terms_of_an_order_say_which_events_these_are(party: Party) -> None:
    party.write_population({"key": ["a"], "who": ["b"]})
    plain = Order.configured(party.config(), "x", pure(1), {"k": 2}, answers=3)
    assert plain.request == {
        "user": None,
        "date": None,
        "duplicates": "missing",
        "population": None,
        "format": "labelveil-terms/3",
        "k": 2,
    }
    assert (plain.answers, plain.records_per_unit, plain.composition) == (3, 1, "additive")
    assert (plain.limit, plain.limit_is_stated, plain.separate_reason) == (pure(3), True, "")
    settings = {
        "data__date": "day",
        "data__duplicates": "sum",
        "privacy__epochs": "disjoint",
        "privacy__separate": "true",
        "privacy__separate_reason": "agreed",
        "privacy__account": "shop",
    }
    other = Order.configured(party.config(**settings), "x", pure(1), {})
    assert other.request["date"] == "day"
    assert other.request["duplicates"] == "sum"
    assert (other.composition, other.account) == ("disjoint", "shop")
    assert other.separate_reason == "agreed"
    users = {
        "privacy__unit": "user",
        "privacy__user": "who",
        "privacy__max_records_per_user": 4,
    }
    per_user = Order.configured(party.config(**users), "x", pure(1), {})
    assert (per_user.records_per_unit, per_user.request["user"]) == (4, "who")
    submitted = party.config(data__population="submitted")
    assert Order.configured(submitted, "x", pure(1), {}).request["population"] == "submitted"


def test_tables_of_an_older_number_get_what_they_lack_and_lose_nothing() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)

    def one(question: str) -> Any:
        return database.execute(question).fetchall()

    made = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    schema.make_tables(database)
    there, named = one(made), one("SELECT name FROM identity")
    assert len(there) == len(schema.SCHEMA) + 1  # SQLite's own, of numbers given out
    assert [len(name) for (name,) in named] == [16]
    assert one("PRAGMA user_version") == [(schema.VERSION,)]
    database.execute(
        "INSERT INTO caps (account, guarantee, reason, set_at, set_by, software)"
        " VALUES ('a', 'g', 'r', 't', 'b', 's')"
    )
    for statement in ("UPDATE caps SET reason = 'x'", "DELETE FROM caps"):
        with pytest.raises(sqlite3.IntegrityError, match=r"^a cap (is )?never"):
            database.execute(statement)

    database.execute("DROP TABLE separations")
    database.execute("DROP TRIGGER caps_last")
    schema.migrate(database)  # of the present number nothing is missing
    assert len(one(made)) == len(there) - 2
    database.execute(f"PRAGMA user_version = {schema.VERSION - 1}")
    schema.make_tables(database)
    assert one(made) == there
    assert one("PRAGMA user_version") == [(schema.VERSION,)]
    assert one("SELECT name FROM identity") == named
    assert one("SELECT reason FROM caps") == [("r",)]


def test_a_transaction_is_all_or_nothing() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute("CREATE TABLE t (n)")
    with schema.transaction(database):
        database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(KeyError), schema.transaction(database, "IMMEDIATE"):
        _ = {}[database.execute("INSERT INTO t VALUES (2)")]
    assert database.execute("SELECT n FROM t").fetchall() == [(1,)]
    assert not database.in_transaction
