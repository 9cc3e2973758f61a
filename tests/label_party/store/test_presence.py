"""Presence is a label where the features party named the events: nobody learns it from the store.

The attacker is the thief of a backup who has, besides, the ledger's secret (it is in the ledger),
the join secret, all events' keys, and all rows of labels but one.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.shuffle import Keys
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.label_party.events import open as opening
from labelveil.label_party.events import steps, tasks
from labelveil.label_party.events.steps import Sizes
from labelveil.label_party.events.tasks import fingerprints_of
from labelveil.label_party.server.run import running
from labelveil.label_party.store import coverage
from labelveil.label_party.store.fingerprints import Prints, fingerprint, fingerprint_hashed
from tests.label_party.conftest import Client, Party

NAMES = [f"event-{i}" for i in range(1009)]
LABELLED = 613
SUBMITTED = {"data__population": "submitted"}


def release_submitted(
    party: Party, connect: Any, labelled: list[str], names: list[str] = NAMES, **settings: Any
) -> Any:
    """The message about a population that the features party submitted, on an earlier grid."""
    party.write_labels({"key": labelled, "label": [1.0] * len(labelled)})
    secret = read_secret(party.folder / "join.key")
    named = {"data_set": "labels", "epoch": "1"}
    named |= {key: settings[f"data__{key}"] for key in named if f"data__{key}" in settings}
    with running(party.config(**SUBMITTED, **settings)) as address:
        client: Client = connect(address)
        client.submit(hash_keys(pl.Series(names), secret), secret, **named)
    return party.release(**SUBMITTED, **settings)


def stolen(party: Party, to: Path) -> Path:
    """What a backup holds."""
    assert party.run("backup", "--to", str(to.with_suffix(".tar"))).code == 0
    with tarfile.open(to.with_suffix(".tar")) as archive:
        archive.extractall(to, filter="data")
    return to


def presence(party: Party, backup: Path) -> list[bool]:
    """The thief's guess of which events have a row, by all that is kept of events."""
    with sqlite3.connect(backup / "ledger.sqlite") as ledger:
        ((secret,),) = ledger.execute("SELECT value FROM secrets WHERE name = 'fingerprints'")
    kept = np.concatenate([np.fromfile(path, "<u8") for path in (backup / "covered").iterdir()])
    names = pl.Series(NAMES)
    hashed = np.frombuffer(hash_keys(names, read_secret(party.folder / "join.key")), dtype="S16")
    guesses = [fingerprint(names, secret), fingerprint_hashed(hashed, secret)]
    return [bool(np.isin(some, kept).any()) for some in zip(*guesses, strict=True)]


def advantage(guesses: list[bool], labelled: set[str]) -> float:
    """How much oftener an event with a row is taken for one than an event without."""
    guessed = {True: [0, 0], False: [0, 0]}
    for name, guess in zip(NAMES, guesses, strict=True):
        guessed[name in labelled][guess] += 1
    rates = [yes / (yes + no) for no, yes in guessed.values()]
    return abs(rates[0] - rates[1])


def of_label_rows(rows: pl.DataFrame) -> Any:
    """The twin: fingerprints of the rows of labels that there are."""

    def fingerprints(self: Any, secret: bytes) -> Iterator[Prints]:
        yield np.unique(fingerprints_of(rows, secret))

    return fingerprints


@pytest.mark.parametrize("twin", [False, True])
def test_a_thief_of_a_backup_learns_nobodys_presence(
    party: Party, connect: Any, monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    labelled = [NAMES[i] for i in np.random.default_rng(4).permutation(len(NAMES))[:LABELLED]]
    if twin:
        rows = pl.DataFrame({"key": labelled})
        monkeypatch.setattr(steps.Events, "fingerprints", of_label_rows(rows))
    assert release_submitted(party, connect, labelled).code == 0
    found = advantage(presence(party, stolen(party, party.folder / "stolen")), set(labelled))
    # nothing of fingerprints is noisy: 0 is what they may tell, at any epsilon
    assert found == (1 if twin else 0)


def numbers(kept: Any) -> Iterator[int]:
    """Every whole number in JSON values."""
    if isinstance(kept, dict):
        kept = list(kept.values())
    if isinstance(kept, list):
        for one in kept:
            yield from numbers(one)
    elif isinstance(kept, int):
        yield kept


def kept_numbers(store: Path) -> Iterator[int]:
    """Every count that lies in a store, but for the message itself: in rows, texts and sizes."""
    with sqlite3.connect(store / "ledger.sqlite") as ledger:
        for (table,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            for row in ledger.execute(f"SELECT * FROM {table}"):
                yield from (value for value in row if isinstance(value, int))
                texts = [v for v in row if isinstance(v, str) and v.startswith(("{", "["))]
                for text in texts:
                    yield from numbers(json.loads(text))
    for path in store.rglob("*.json"):
        if path.name != "manifest.json":
            yield from numbers(json.loads(path.read_bytes()))
    for path in (store / "covered").iterdir():
        yield path.stat().st_size // 8


@pytest.mark.parametrize("population", ["submitted", "listed"])
def test_no_exact_count_of_label_rows_is_kept(party: Party, connect: Any, population: str) -> None:
    """All but one row are known, so that an exact count would be the last one's presence."""
    here, elsewhere = LABELLED - 36, [f"stranger-{i}" for i in range(36)]
    rows = [*NAMES[:here], *elsewhere, *NAMES[:53]]
    if population == "submitted":
        assert release_submitted(party, connect, rows).code == 0
        party.write_population({"key": NAMES})
        again = {"privacy__separate": True, "privacy__separate_reason": "of another column"}
        said = party.release(data__data_set="again", **again)
    else:
        party.write_population({"key": NAMES})
        party.write_labels({"key": rows, "label": [1.0] * len(rows)})
        said = party.release()
    assert said.code == 0, said
    exact = {LABELLED, here, 36, 53, here - 53, len(rows), len(NAMES) - here + 53}
    kept = set(kept_numbers(party.store)) | set(kept_numbers(stolen(party, party.folder / "b")))
    assert len(NAMES) in kept
    assert not exact & kept


def test_the_same_submitted_events_do_not_pay_from_two_accounts(party: Party, connect: Any) -> None:
    """Whoever has labels: half of the events have some the first time, none the second."""
    assert release_submitted(party, connect, NAMES[::2]).code == 0
    for labelled in (NAMES[1::2], ["stranger"]):
        again = release_submitted(party, connect, labelled, data__data_set="again")
        assert f"{len(NAMES):,} events of data set 'again' have paid from" in again.err
    party.write_population({"key": NAMES[1:]})
    listed = party.release(data__data_set="listed")
    assert f"{len(NAMES) - 1:,} events of data set 'listed' have paid" in listed.err


def new_join_secret(party: Party) -> None:
    (party.folder / "join.key").write_text("5" * 64 + "\n")


@pytest.mark.parametrize("twin", [False, True])
def test_events_under_two_join_secrets_are_not_said_to_differ(
    party: Party, connect: Any, monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    if twin:
        monkeypatch.setattr(coverage, "_incomparable", lambda one, other: "")
    assert release_submitted(party, connect, NAMES[:9]).code == 0
    new_join_secret(party)
    again = release_submitted(party, connect, NAMES[:9], data__data_set="again")
    assert (again.code == 0) is twin
    party.write_population({"key": NAMES})
    listed = party.release(data__data_set="listed")
    assert (listed.code == 0) is twin or "have paid" in listed.err  # of the twin's second one
    if not twin:
        for refused in (again, listed):
            assert "is unknown since keys were hashed under another join secret" in refused.err
        said = {"privacy__separate": True, "privacy__separate_reason": "of another column"}
        assert party.release(data__data_set="listed", **said).code == 0


def test_names_are_compared_under_any_join_secret(party: Party) -> None:
    assert party.release(privacy__epochs="disjoint").code == 0
    new_join_secret(party)
    for options in ({"data__epoch": "2"}, {"data__data_set": "other"}):
        refused = party.release(**options, privacy__epochs="disjoint")
        assert "200 events of" in refused.error
    party.write_population({"key": ["another-1", "another-2"]})
    assert party.release(data__epoch="2", privacy__epochs="disjoint").code == 0


def test_submitted_events_under_a_new_secret_pay_from_one_total(party: Party, connect: Any) -> None:
    """Nobody can tell whether they are the same: they are disjoint from none, and add up."""
    how = {"data__epoch": "2", "privacy__total_epsilon": 2.0}
    before = {"privacy__epochs": "disjoint", "privacy__total_epsilon": 2.0}
    assert release_submitted(party, connect, NAMES[:9], **before).code == 0
    new_join_secret(party)
    disjoint = release_submitted(party, connect, NAMES[:9], **how, privacy__epochs="disjoint")
    assert "keys were hashed under another join secret" in disjoint.err
    assert party.release(**SUBMITTED, **how, privacy__epochs="additive").code == 0
    third = release_submitted(party, connect, NAMES[:9], **(how | {"data__epoch": "3"}))
    assert "ε = 0 " in third.err  # of 2 is left


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("twin", [False, True])
def test_only_users_that_count_are_fingerprinted(
    party: Party, monkeypatch: pytest.MonkeyPatch, twin: bool, in_parts: bool
) -> None:
    """A second row names another user for an event that is not his."""
    if twin:
        monkeypatch.setattr(tasks.Slice, "names_users", False)
    if in_parts:
        monkeypatch.setattr(opening, "_IN_MEMORY_ROWS", 1)
        monkeypatch.setattr(opening, "_CSV_IN_MEMORY_BYTES", 1)
        small = Sizes(slice_rows=3, bucket_rows=4)
        monkeypatch.setattr(opening, "Sizes", lambda: small)
    settings = {
        "privacy__unit": "user", "privacy__user": "who", "privacy__max_records_per_user": 2,
    }  # fmt: skip
    text = (party.folder / "label_party.toml").read_text()
    text = text.replace('population = "population.csv"', "")
    (party.folder / "label_party.toml").write_text(text)
    owners = [f"owner-{i % 4}" for i in range(8)]
    rows = {"key": NAMES[:8], "who": owners, "label": [1.0] * 8}
    more = {"key": [*NAMES[:8], NAMES[0], NAMES[5]], "who": [*owners, "guest", None]}
    party.write_labels(more | {"label": [1.0] * 10})
    assert party.release(**settings).code == 0
    with sqlite3.connect(party.store / "ledger.sqlite") as ledger:
        ((secret,),) = ledger.execute("SELECT value FROM secrets WHERE name = 'fingerprints'")
    (path,) = (party.store / "covered").iterdir()
    kept = np.fromfile(path, "<u8")
    people = pl.Series([*sorted(set(owners)), "guest"])
    found = np.isin(fingerprint(people, secret, mark="\0"), kept)
    assert found.tolist() == [True] * 4 + [twin]
    assert np.isin(fingerprint(pl.Series(NAMES[:8]), secret), kept).all()
    assert kept.size == 8 + 8 + 4 + twin
    party.write_labels({"key": ["of a guest"], "who": ["guest"], "label": [1.0]})
    assert (party.release(data__data_set="again", **settings).code == 1) is twin
    party.write_labels(rows | {"key": [f"other-{i}" for i in range(8)]})
    refused = party.release(data__data_set="third", **settings)
    assert "4 events of data set 'third' have paid from account 'labels'" in refused.err


@pytest.mark.parametrize("twin", [False, True])
def test_what_coverage_refuses_does_not_depend_on_any_label(
    party: Party, connect: Any, monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:

    def release(labelled: list[str], names: list[str], **settings: Any) -> tuple[int, str]:
        if twin:
            rows = pl.DataFrame({"key": labelled})
            monkeypatch.setattr(steps.Events, "fingerprints", of_label_rows(rows))
        done = release_submitted(party, connect, labelled, names, **settings)
        return done.code, done.err.rpartition("error: ")[2]  # warnings are the operator's alone

    assert release(NAMES[:9], NAMES[:500])[0] == 0
    again = {"data__data_set": "again"}
    said = [
        release(labelled, NAMES[499:], **again) for labelled in (NAMES[:9], NAMES[9:], ["stranger"])
    ]
    assert (said[0] == said[1] == said[2]) is not twin
    if not twin:
        assert "1 events of data set 'again' have paid" in said[0][1]


def test_hashed_keys_and_names_are_told_apart() -> None:
    secret, hashed = bytes(32), np.frombuffer(bytes(range(64)), dtype="S16")
    keys: Keys = hashed.copy()
    assert (fingerprint_hashed(keys, secret) & np.uint64(1) == 1).all()
    assert (fingerprint(pl.Series(["a", "b"]), secret) & np.uint64(1) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_row_that_names_no_user_refuses_no_release(party: Party, own: bool) -> None:
    per_user = {
        "privacy__unit": "user", "privacy__user": "who", "privacy__max_records_per_user": 2,
    }  # fmt: skip
    rows = {"key": NAMES[:9], "who": ["u", "", None] * 3}
    party.write_population(rows)
    party.write_labels(rows | {"label": [1.0] * 9})
    if own:
        text = (party.folder / "label_party.toml").read_text()
        text = text.replace('population = "population.csv"', "")
        (party.folder / "label_party.toml").write_text(text)
    assert party.release(**per_user).code == 0
    again = party.release(data__data_set="again", **per_user)
    assert "9 events of data set 'again' have paid from account 'labels'" in again.err
