"""What a purchase writes beside the store: rows that it still needs, and nothing of the dead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.shuffle import KEY_TYPE
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events import open as opening
from labelveil.label_party.events.open import open_events
from labelveil.label_party.events.submitted import Populations, Submitted
from labelveil.label_party.store.disk import clean, scratch
from labelveil.label_party.store.fingerprints import fingerprint, fingerprint_hashed
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import CLIENT, EVENTS, Party

KEYS = [f"event-{i}" for i in range(EVENTS)]
SOURCES: dict[str, dict[str, Any]] = {
    "population": {},
    "labels alone": {},
    "submitted": {"data__population": "submitted"},
    "users": {
        "privacy__unit": "user",
        "privacy__user": "who",
        "privacy__max_records_per_user": 2,
    },
}

# beside a copy of what was read, which may change meanwhile
STAY = dict.fromkeys(SOURCES, "completed") | {"submitted": "placed", "users": "limited"}


def configured(party: Party, source: str, *, alone: bool = False) -> LabelPartyConfig:
    config = party.config(**SOURCES[source])
    if alone or source == "labels alone":  # whose keys are the population
        data = config.data.model_copy(update={"population": None})
        config = config.model_copy(update={"data": data})
    return config


def submit(party: Party, keys: list[str]) -> None:
    secret, populations = read_secret(party.folder / "join.key"), Populations(Store(party.store))
    with populations.upload() as (upload, question), populations.exchanging("labels", "1"):
        upload.append(hash_keys(pl.Series(keys), secret))
        upload.seal()
        facts = Submitted(
            len(keys), upload.sha256, secret_check(secret).hex(), CLIENT, "2024-06-01T00:00:00Z"
        )
        populations.store("labels", "1", upload, question, facts)


def kept(folder: Path) -> set[str]:
    """Names of what lies in scratch folders, without numbers."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.name.partition(".")[0].partition("-")[0] for path in files if path.stat().st_size}


@pytest.mark.parametrize("source", SOURCES)
def test_of_the_rows_that_are_exchanged_only_the_completed_ones_stay(
    party: Party, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("_IN_MEMORY_ROWS", "_CSV_IN_MEMORY_BYTES"):
        monkeypatch.setattr(opening, bound, 0)
    party.write_population({"key": KEYS, "who": [f"user-{i % 40}" for i in range(EVENTS)]})
    if source == "submitted":
        Store(party.store).create()
        submit(party, KEYS)
    config = configured(party, source)
    store = Store(party.store)
    with open_events(config, quiet=True) as events:
        assert not events.in_memory
        assert events.named is (source != "submitted")
        assert kept(store.scratch) == {"copied", STAY[source]}
        if source == "users":  # whose they are is of no more use: a key and a label each
            files = [path for path in store.scratch.rglob("limited*") if path.is_file()]
            assert sum(path.stat().st_size for path in files) < EVENTS * (16 + 8) + 99
        assert len(events.labels(0)) == events.rows
    assert not [*store.scratch.rglob("*")]


def test_what_dead_processes_left_is_removed_and_nothing_of_the_living(party: Party) -> None:
    store = Store(party.store)
    store.create()
    with scratch(store.scratch) as living:
        (living / "rows").write_bytes(b"of the living")
        dead = store.scratch / "0123456789abcdef"
        dead.mkdir()
        (dead / "rows").write_bytes(b"of the dead")
        dead.with_suffix(".lock").touch()
        clean(store.scratch)
        assert not dead.exists()
        assert not dead.with_suffix(".lock").exists()
        assert (living / "rows").read_bytes() == b"of the living"
        dead.mkdir()
        dead.with_suffix(".lock").touch()
        with open_events(party.config(), quiet=True):
            assert not dead.exists()
            assert living.exists()
    assert not living.exists()


@pytest.mark.parametrize("memory", [True, False])
def test_fingerprints_are_of_events_and_of_the_users_of_their_first_rows(
    party: Party, memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of nobody: what everybody has in common would make all events seem paid for."""
    rows = [
        ("a", "u", 1),
        ("b", None, 2),
        ("c", "v", 3),
        ("a", "w", 4),
        ("d", "v", 5),
        ("e", None, 6),
    ]
    keys, users, labels = zip(*rows, strict=True)
    party.write_labels({"key": keys, "who": users, "label": labels})
    if not memory:
        for bound in ("_IN_MEMORY_ROWS", "_CSV_IN_MEMORY_BYTES"):
            monkeypatch.setattr(opening, bound, 0)
    config = configured(party, "users", alone=True)
    secret = bytes(range(32))
    hashed = hash_keys(pl.Series(list("abcde")), read_secret(party.folder / "join.key"))
    expected = [
        *fingerprint(pl.Series(list("abcde")), secret),
        *fingerprint_hashed(np.frombuffer(hashed, KEY_TYPE), secret),
        *fingerprint(pl.Series(["u", "v"]), secret, mark="\0"),
    ]
    with open_events(config, quiet=True) as events:
        assert events.in_memory is memory
        found = np.concatenate([*events.fingerprints(secret)])
    assert found.tolist() == sorted(expected)


@pytest.mark.parametrize("there", [False, True])
def test_a_store_is_left_as_it_was(
    party: Party, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Made for what does not fit into memory, and gone again; a folder that was there stays."""
    monkeypatch.setattr(opening, "_CSV_IN_MEMORY_BYTES", 0)
    if there:
        party.store.mkdir()
    config = configured(party, "population")
    with open_events(config, quiet=True) as events:
        assert events.rows == EVENTS
        assert [*party.store.iterdir()]
    assert party.store.exists() is there


def test_odd_lines_are_told_of_alike_in_memory_and_on_disk(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (party.folder / "labels.csv").open("ab") as file:
        file.write(b'event-1,2,and more,cells\nevent-2\n"event-3,4\n\xff\xfe,7\n')
    found = []
    for most in (1 << 24, 0):
        monkeypatch.setattr(opening, "_CSV_IN_MEMORY_BYTES", most)
        with open_events(configured(party, "population"), quiet=True) as events:
            found.append(str(events.tally.odd))
    assert found[0] == found[1]
    assert "more or fewer cells than the header', count=2" in found[0]
