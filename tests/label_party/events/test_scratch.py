"""What a purchase writes beside the store: rows that it still needs, and nothing of the dead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.engine.shuffle import KEY_TYPE
from labelveil.common.errors import DataError
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events import open as opening
from labelveil.label_party.events.columns import Column
from labelveil.label_party.events.epoch import rows_of_values
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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("memory", [True, False])
def test_a_source_without_a_row_is_what_it_is(
    party: Party, memory: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No labels are all missing; no population is none, and not the labels' own keys."""
    if not memory:
        for bound in ("_IN_MEMORY_ROWS", "_CSV_IN_MEMORY_BYTES"):
            monkeypatch.setattr(opening, bound, -1)

    def emptied(name: str) -> None:
        rows = pl.read_csv(party.folder / name).clear()
        getattr(rows, f"write_{kind}")(party.folder / name)

    labels = (party.folder / "labels.csv").read_bytes()
    emptied("labels.csv")
    with open_events(party.config(), quiet=True) as events:
        assert (events.in_memory, events.rows, {*events.labels(0)}) == (memory, EVENTS, {0.0})
    with (
        pytest.raises(DataError, match="the population has no events"),
        open_events(configured(party, "labels alone"), quiet=True),
    ):
        pass
    (party.folder / "labels.csv").write_bytes(labels)
    emptied("population.csv")
    with (
        pytest.raises(DataError, match="the population has no events"),
        open_events(party.config(), quiet=True),
    ):
        pass


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


BY_DAY = {"data__date": "day", "data__epoch": "2024-05-01"} | SOURCES["users"]
CSV: dict[str, tuple[dict[str, Any], str, str, dict[str, float], str]] = {
    "each in a dialect of its own": (
        {"data__labels_separator": ";", "data__labels_encoding": "cp1252"}
        | {"data__labels_decimal": ",", "data__population_separator": "|"},
        'key;label;note\né;1,5;x\nb;"2,25";"a;b"\nc;3,0;and;more\nd;"4\n',
        'note|key\n"a|b"|é\nx|b\nx|c\nx|d\nx|e\n',
        {"é": 1.5, "b": 2.25, "c": 0.0, "d": 0.0, "e": 0.0},
        "more or fewer cells than the header', count=1, places=(4,)",
    ),
    "days and users in front": (
        BY_DAY,
        'who,key,day,label\nu,a,2024-05-01,"1\n"v",b,2024-05-01,2\nw,c,2024-05-02,3\n',
        "",
        {"a": 0.0, "b": 2.0},
        "quotes that do not balance', count=1, places=(2,)",
    ),
}


def of_a_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    for memory in (True, False):
        monkeypatch.setattr(opening, "_CSV_IN_MEMORY_BYTES", memory << 24)
        yield memory


@pytest.mark.parametrize("written", CSV)
def test_csv_says_the_same_in_memory_and_on_disk(
    party: Party, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, labels, population, expected, said = CSV[written]
    (party.folder / "labels.csv").write_text(labels, settings.get("data__labels_encoding"))
    (party.folder / "population.csv").write_text(population, "utf-8")
    data = {} if population else {"population": None}
    config = party.config(**settings)
    config = config.model_copy(update={"data": config.data.model_copy(update=data)})
    secret = read_secret(party.folder / "join.key")
    tallies = []
    for memory in of_a_size(monkeypatch):
        with open_events(config, quiet=True) as events:
            assert events.in_memory is memory
            ((keys, found),) = events.keys_and_labels()
            tallies.append(str(events.tally))
        assert dict(zip(keys.tolist(), found[:, 0].tolist(), strict=True)) == {
            hash_keys(pl.Series([key]), secret).rstrip(b"\0"): label
            for key, label in expected.items()
        }
    assert tallies[0] == tallies[1]
    assert said in tallies[0]


@pytest.mark.parametrize("behind", ["who", "day", "kind"])
def test_csv_whose_labels_could_break_whose_row_it_is_is_refused_of_any_size(
    party: Party, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its strata, too, whether or not they are read."""
    front = [name for name in ("key", "who", "day", "kind") if name != behind]
    (party.folder / "labels.csv").write_text(",".join([*front, "label", behind]))
    (party.folder / "kinds.txt").write_text("a\nb\n")
    strata = {"strata__column": "kind", "strata__values": "kinds.txt", "randomizer__name": "auto"}
    config = party.config(**BY_DAY, **strata)
    config = config.model_copy(update={"data": config.data.model_copy(update={"population": None})})
    refused = pytest.raises(DataError, match=f"could break its column '{behind}'; write key, ")
    for _ in of_a_size(monkeypatch):
        with refused, open_events(config, quiet=True):
            pass
    with refused:
        rows_of_values(config, Column("kind", pl.Series(["a", "b"])))
