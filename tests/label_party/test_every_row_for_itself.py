"""Every row speaks for itself: what stands in an event's rows changes that event's label only.

Data sets that differ in some events' rows go through every door of a labels party under replayed
keys. Where their labels come out the same, everything that anybody may see is the same byte by
byte: the store, the ledger row by row, a backup, the bytes and errors on the wire, whether commands
succeed. Where labels differ, everything is but these events' codes and noise's sums over them.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.release.blocks import decode_sums
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.question import encode_question
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events import open as reader
from labelveil.label_party.events import tasks
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.events.steps import Events
from labelveil.label_party.server.run import running
from labelveil.label_party.sources.csv_rows import Layout
from labelveil.label_party.store import purchase
from labelveil.label_party.store.coverage import cover
from labelveil.label_party.store.fingerprints import fingerprint_hashed
from tests.effort import effort, one_in
from tests.label_party import one_event
from tests.label_party.conftest import Party
from tests.label_party.every_door import (
    POPULATIONS,
    Connect,
    Seen,
    look,
    masked,
    noisy_counts,
    rows_of,
    store_files,
    unlist,
    watch,
)
from tests.label_party.one_event import (
    AT,
    COUNTRIES,
    DAYS,
    EVENTS,
    VICTIMS,
    Variant,
    nothing,
    together,
    write,
)
from tests.label_party.replayed import replayed

SOURCES = ("csv", "parquet", "sqlite")
QUICK = {("csv", "own"), ("parquet", "listed"), ("sqlite", "submitted")}
WAYS = [
    pytest.param(*way, marks=() if way in QUICK else pytest.mark.slow)
    for way in product(SOURCES, POPULATIONS)
]
DONE = ("release", "release again", "top-k", "table", "apart", "plan", "making a backup")
FIXED = {"randomizer__name": "randomized-response"}
"""A channel that is the same whatever the labels are."""


def unlabelled(source: str, population: str, key: str) -> Iterator[Variant]:
    """Variants in a format; where labels' own keys are the population, an event keeps its row."""
    some = [*one_event.unlabelled_texts(key)]
    some += one_event.unlabelled_lines(key) if source == "csv" else []
    some += one_event.unlabelled_values(key) if source == "sqlite" else []
    for variant in some:
        if population != "own" or (variant.rows and all(_names(row, key) for row in variant.rows)):
            yield variant


def labelled(source: str, population: str, key: str) -> Iterator[Variant]:
    some = [*one_event.labelled(key), *(one_event.labelled_lines(key) if source == "csv" else [])]
    for variant in some:
        if population != "own" or all(_names(row, key) for row in variant.rows):
            yield variant


def _names(row: object, key: str) -> bool:
    return row.startswith(f"{key},".encode()) if isinstance(row, bytes) else row[0] == key  # type: ignore[index]


ABSENT = Variant("absent", [])


def plain(keys: list[str] = VICTIMS) -> Variant:
    """Events without labels."""
    return Variant("plain", [row for key in keys for row in nothing(key).rows])


@pytest.mark.parametrize(("source", "population"), WAYS)
def test_events_without_a_usable_label_are_all_alike(
    party: Party, connect: Connect, source: str, population: str
) -> None:
    """Byte by byte, and many events at once: a chain of neighbours."""
    usual = look(party, connect, source, population, plain(), AT)
    every = together(partial(unlabelled, source, population))
    odd = look(party, connect, source, population, every, AT)
    assert usual.differences(odd) == []
    assert all(usual.things[f"{name}: exit code"] == 0 for name in DONE)


@pytest.mark.parametrize(("source", "population"), WAYS)
def test_a_label_changes_its_own_code_and_nothing_else(
    party: Party, connect: Connect, source: str, population: str
) -> None:
    every = together(partial(labelled, source, population))
    secret = read_secret(party.folder / "join.key")
    none = plain() if population == "own" else ABSENT
    worlds = [look(party, connect, source, population, some, AT, **FIXED) for some in (none, every)]
    at = rows_of(worlds[0], VICTIMS, secret, population)
    one, other = (masked(seen, at) for seen in worlds)
    assert one.differences(other) == []
    moved = np.abs(noisy_counts(worlds[0]) - noisy_counts(worlds[1])).sum()
    assert 0 < moved <= 2 * len(list(labelled(source, population, "")))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("population", POPULATIONS)
def test_every_variant_by_itself(
    party: Party, connect: Connect, source: str, population: str
) -> None:
    """First in the file, among others, and last, without a line's end."""

    @cache
    def usual(at: int) -> Seen:
        return look(party, connect, source, population, plain(VICTIMS[:1]), at, **FIXED)

    secret, places = read_secret(party.folder / "join.key"), cycle((0, AT, 10_000))
    alike = [*unlabelled(source, population, VICTIMS[0])]
    tried = list(zip([*alike, *labelled(source, population, VICTIMS[0])], places, strict=False))
    for variant, at in tried[:: effort(5, 1)]:
        one = usual(at)
        other = look(party, connect, source, population, variant, at, **FIXED)
        if variant in alike:
            assert one.differences(other) == [], variant.name
            continue
        where = rows_of(one, VICTIMS[:1], secret, population)
        assert masked(one, where).differences(masked(other, where)) == [], variant.name
        assert np.abs(noisy_counts(one) - noisy_counts(other)).sum() <= 2, variant.name


def summed(party: Party, connect: Connect, source: str, variant: Variant) -> dict[str, Any]:
    """All that is seen of a release of sums, a group for each event; its sums by themselves."""
    shutil.rmtree(party.store, ignore_errors=True)
    (party.folder / "label_party.toml.receipt").unlink(missing_ok=True)
    chosen = write(party, source, variant, AT) | {
        "data__population": "submitted",
        "rounds__questions": True,
        "randomizer__name": "auto",
        "domain__grid": "auto",
    }
    unlist(party)
    secret = read_secret(party.folder / "join.key")
    groups = np.arange(len(EVENTS))
    asked = GroupQuestion(Lattice(0.0, 10.0, 20), groups, np.full(groups.size, 20))
    with replayed():
        with running(party.config(**chosen)) as address:
            keys = hash_keys(pl.Series(EVENTS), secret)
            connect(address).submit(keys, secret, encode_question(asked))
        done = party.release(**chosen)
    assert done.code == 0, done
    seen = {name: what for name, what in store_files(party.store) if "restored" not in name}
    sums = seen.pop("store: releases/labels/1/codes.bin")[1]
    document = json.loads(seen.pop("store: releases/labels/1/manifest.json")[1])
    blocks, digest = document["content"].pop("blocks"), document["content"].pop("digest")
    assert len(blocks) == 1
    del digest, seen["store: releases/labels/1/charge.json"]  # of the sums, as the ledger's charge
    del seen["ledger: charges"], seen["ledger: seals"]
    return seen | {"manifest": document, "sums": decode_sums(sums)}


@pytest.mark.parametrize("source", ["csv", "sqlite"])
def test_rows_are_for_themselves_in_sums(party: Party, connect: Connect, source: str) -> None:
    """Events without a usable label have one sum, and each label moves its own group's alone."""
    usual = summed(party, connect, source, plain())
    odd = summed(party, connect, source, together(partial(unlabelled, source, "submitted")))
    told = summed(party, connect, source, together(partial(labelled, source, "submitted")))
    sums = [world.pop("sums") for world in (usual, odd, told)]
    assert usual == odd == told
    assert sums[0].tolist() == sums[1].tolist()
    moved = sums[2] - sums[0]
    victims = np.isin(EVENTS, VICTIMS)
    assert not moved[~victims].any()
    assert np.count_nonzero(moved[victims]) > 5
    assert 0 <= moved.min() <= moved.max() <= 20


RULES: dict[str, dict[str, Any]] = {
    **{rule: {"data__duplicates": rule} for rule in ("last", "sum", "mean")},
    "a user's records": {
        "privacy__unit": "user",
        "privacy__user": "person",
        "privacy__max_records_per_user": 2,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_by_every_rule_rows_are_for_themselves(party: Party, connect: Connect, rule: str) -> None:
    settings = FIXED | RULES[rule]
    variants = [*unlabelled("csv", "listed", VICTIMS[0]), *labelled("csv", "listed", VICTIMS[0])]
    rows = [row for i, some in enumerate(variants) for row in _of(VICTIMS[i % 60], some).rows]
    worlds = [
        look(party, connect, "csv", "listed", some, AT, **settings)
        for some in (ABSENT, Variant(rule, rows))
    ]
    where = rows_of(worlds[0], VICTIMS, read_secret(party.folder / "join.key"), "listed")
    one, other = (masked(seen, where) for seen in worlds)
    assert one.differences(other) == []


def _of(key: str, variant: Variant) -> Variant:
    """A variant of another event."""
    name = VICTIMS[0].encode()
    rows = [
        row.replace(name, key.encode())
        if isinstance(row, bytes)
        else (str(row[0]).replace(VICTIMS[0], key), *row[1:])
        for row in variant.rows
    ]
    return Variant(variant.name, rows)


@pytest.mark.slow
@pytest.mark.parametrize("population", POPULATIONS)
def test_rows_are_for_themselves_on_the_disk_and_among_workers(
    party: Party, connect: Connect, population: str
) -> None:
    for source in SOURCES:
        every = together(partial(unlabelled, source, population))
        here = look(party, connect, source, population, plain(), AT, briefly=True)
        there = look(party, connect, source, population, every, AT, briefly=True, engine__workers=2)
        assert here.differences(there) == [], source


def test_a_watch_goes_on_whatever_stands_in_a_row(party: Party) -> None:
    usual = watch(party, plain(), AT)
    for variants in (unlabelled, labelled):
        odd = watch(party, together(partial(variants, "csv", "listed")), AT)
        assert odd.things["watch: exit code"] == 0
        assert [row[3] for row in odd.things["ledger: charges"]] == list(DAYS)
        if variants is unlabelled:
            assert usual.differences(odd) == []


PUBLIC: dict[str, dict[str, Any]] = {
    "person": {
        "privacy__unit": "user",
        "privacy__user": "person",
        "privacy__max_records_per_user": 3,
        "privacy__epsilon": 20,
    },
    "country": {
        "strata__column": "country",
        "strata__values": "countries.txt",
        "randomizer__name": "auto",
        "domain__grid": "auto",
        "privacy__epsilon": 8,
    },
    "day": {},
}
"""Columns of a file that names the events itself, and what makes them public."""


def by_tails(
    party: Party, connect: Connect, column: str, of: Sequence[bytes], more: Sequence[bytes] = ()
) -> Seen:
    """What is seen where lines have these tails; ``more`` stand behind them."""
    (party.folder / "countries.txt").write_text("\n".join(COUNTRIES))
    source = f"{one_event.FRONTS}{column}"
    lines = [*one_event.tails(source, of).rows, *more]
    if column == "country":  # strata have so many
        events = (f"more-{number}" for number in range(600))
        lines += [one_event.front(event, [column]) + b",7,tea," for event in events]
    variant = Variant("tails", lines)  # type: ignore[arg-type]
    if column == "day":
        return watch(party, variant, AT, source)
    briefly = column == "country"
    return look(party, connect, source, "own", variant, AT, briefly=briefly, **PUBLIC[column])


@pytest.mark.parametrize("column", PUBLIC)
def test_no_label_breaks_what_is_public_of_its_event(
    party: Party, connect: Connect, column: str
) -> None:
    """Users, classes, dates, which events have paid, and whether another account is refused."""
    usual = by_tails(party, connect, column, [b",,"])
    odd = by_tails(party, connect, column, list(one_event.TAILS.values()))
    assert usual.differences(odd) == []
    codes = {name: code for name, code in usual.things.items() if name.endswith("exit code")}
    refused = ["another account: exit code"] if column == "person" else []
    assert [name for name, code in codes.items() if code] == refused


def _a_line_has_its_key_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Layout, "certain", 1)
    patch.setattr(Layout, "misplaced", [])


def _quotes_alone(patch: pytest.MonkeyPatch) -> None:
    """As if the whole file were public."""
    made = Layout.__init__

    def init(layout: Layout, *given: Any, **named: Any) -> None:
        made(layout, *given, **named)
        object.__setattr__(layout, "holds", "population")

    patch.setattr(Layout, "__init__", init)
    patch.setattr(Layout, "certain", 0)


BREAKING = ["a cell more", "an open quote", "a cell less", "too long"]


@pytest.mark.parametrize("column", one_in(3, PUBLIC))
@pytest.mark.parametrize("twin", one_in(2, [_a_line_has_its_key_alone, _quotes_alone]))
def test_a_line_whose_public_part_a_label_breaks_is_caught(
    party: Party,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    twin: Callable[[pytest.MonkeyPatch], None],
) -> None:
    twin(monkeypatch)
    usual = by_tails(party, connect, column, [b",,"])
    broken = [one_event.TAILS[name] for name in BREAKING]
    found = usual.differences(by_tails(party, connect, column, broken))
    if column == "day":
        assert "store: releases/labels/2024-06-02/codes.bin" in found
    else:
        assert "wire: fetch" in found


@pytest.mark.parametrize("twin", one_in(2, [False, True]))
def test_rows_that_do_not_count_are_unknown(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch, twin: bool
) -> None:
    """Of an event's further rows, which name somebody else, and one who has no event."""
    if twin:
        monkeypatch.setattr(tasks.Slice, "names_users", False)
    more = [key.encode() + b",guest-%d,,," % i for i, key in enumerate(VICTIMS[:9])]
    usual = by_tails(party, connect, "person", [b",,"])
    other = by_tails(party, connect, "person", [b",,"], more)
    found = usual.differences(other)
    assert ("ledger: charges" in found) is twin
    assert (found == []) is not twin


def test_a_thief_of_a_backup_is_left_with_what_was_randomized(
    party: Party, connect: Connect
) -> None:
    """With all secrets, keys and other rows; of the last rows, only codes and noise tell.

    The rest of two backups is the same byte by byte, so that nothing can be gained from it.
    """
    rows = [row for key in VICTIMS for row in (one_event.cells(key, "9", "milk"),)]
    worlds = [
        look(party, connect, "csv", "submitted", some, AT, **FIXED)
        for some in (ABSENT, Variant("present", rows))
    ]
    where = [EVENTS.index(key) for key in VICTIMS]
    one, other = (masked(seen, where) for seen in worlds)
    assert any(name.startswith("backup: ") for name in one.things)
    assert any(name.startswith("backup's ledger: ") for name in one.things)
    assert one.differences(other) == []


Leak = Callable[[bytes], bytes]
"""What a reader makes of a whole file, instead of row by row."""


def _sniff(data: bytes) -> bytes:
    try:
        return data.decode().encode()
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace").encode()


def _guess_decimals(data: bytes) -> bytes:
    commas, points = (len(re.findall(rb'[",]\d' + m + rb'\d[",]', data)) for m in (b",", b"\\."))
    return re.sub(rb'"(\d),(\d)"', rb"\1.\2", data) if commas > points else data


def _across_lines(data: bytes) -> bytes:
    text = io.StringIO(newline="")
    rows = csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline=""))
    flat = ([cell.replace("\n", " ") for cell in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(flat)
    return text.getvalue().encode()


def _refuse(pattern: bytes) -> Leak:
    def refusing(data: bytes) -> bytes:
        if re.search(pattern, data, re.MULTILINE | re.DOTALL):
            raise DataError("rows.csv holds what it must not; correct it")
        return data

    return refusing


def _until(mark: bytes) -> Leak:
    return lambda data: data.partition(mark)[0]


VICTIM = VICTIMS[0].encode()
READERS: dict[str, tuple[str, Leak]] = {
    "an encoding that is guessed": ("undecodable note", _sniff),
    "decimal marks of a column": ("decimal comma", _guess_decimals),
    "quotes across lines": ("an open quote", _across_lines),
    "an end that is a mark": ("the file's own end", _until(b"\x1a")),
    "an end that is an empty line": ("an empty line", _until(b"\n\n")),
    "a refused repetition": ("twice", _refuse(b"^%s,.*^%s," % (VICTIM, VICTIM))),
    "a refused text": ("text", _refuse(b"^%s,abc" % VICTIM)),
    "a refused width": ("too few cells", _refuse(b"^%s,5$" % VICTIM)),
}


@pytest.mark.parametrize("twin", one_in(4, READERS))
def test_a_reader_that_looks_at_whole_columns_is_caught(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch, twin: str
) -> None:
    name, leak = READERS[twin]
    read_wholly(party, monkeypatch, leak)
    found = differences_by(party, connect, name)
    assert "release: exit code" in found if "refused" in twin else "wire: fetch" in found


def read_wholly(party: Party, monkeypatch: pytest.MonkeyPatch, leak: Leak) -> None:
    """Let labels be read from what a whole file is made into first."""
    read = Rows.read

    def leaking(rows: Rows, part: tuple[int, int] | None = None) -> Any:
        if str(rows.source) != "rows.csv":
            return read(rows, part)
        leaked = party.folder / "leaked.csv"
        leaked.write_bytes(leak(Path("rows.csv").read_bytes()))
        return read(replace(rows, source=leaked), part)

    monkeypatch.setattr(Rows, "read", leaking)


def _named(name: str) -> Variant:
    (one,) = (some for some in unlabelled("csv", "submitted", VICTIMS[0]) if some.name == name)
    return one


def differences_by(party: Party, connect: Connect, name: str, *, briefly: bool = True) -> list[str]:
    """What one event's rows of a kind change, compared with a row without a label."""
    settings = {"privacy__epsilon": 20}  # a code then says which label was read
    usual, other = (
        look(party, connect, "csv", "submitted", some, AT, briefly=briefly, **settings)
        for some in (plain(VICTIMS[:1]), _named(name))
    )
    return usual.differences(other)


def _label_rows() -> pl.Series:
    rows = pl.read_csv("rows.csv", infer_schema=False, encoding="utf8-lossy")
    return rows.filter(pl.col("key").is_in(EVENTS))["key"]


def _cover_label_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(folder: Path, events: Any, secret: bytes) -> Any:
        hashed = hash_keys(_label_rows(), read_secret(Path("join.key")))
        prints = [np.unique(fingerprint_hashed(np.frombuffer(hashed, "S16"), bytes(32)))]
        monkeypatch.setattr(Events, "fingerprints", lambda events, secret: prints)
        return cover(folder, events, secret)

    monkeypatch.setattr(purchase, "cover", leaking)


def _count_label_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    request = LabelPartyConfig.request
    leaking = lambda config: request(config) | {"of rows": len(_label_rows())}  # noqa: E731
    monkeypatch.setattr(LabelPartyConfig, "request", leaking)


def _ask_whether_all_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = reader.open_events  # which evaluations import when they first read

    def leaking(config: LabelPartyConfig, **named: Any) -> Any:
        if VICTIMS[0] not in _label_rows():
            raise DataError("an event has no row")
        return opened(config, **named)

    monkeypatch.setattr(reader, "open_events", leaking)


STORED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "fingerprints of label rows": (
        _cover_label_rows,
        {"ledger: charges", "backup's ledger: charges", "another account: error"},
    ),
    "a count of label rows": (_count_label_rows, {"ledger: charges", "backup's ledger: charges"}),
    "an answer that labels refuse": (_ask_whether_all_have_rows, {"wire: answer: five"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("twin", one_in(3, STORED, first=2))
def test_presence_that_is_kept_or_shown_is_caught(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch, twin: str
) -> None:
    leak, where = STORED[twin]
    leak(monkeypatch)
    assert where <= set(differences_by(party, connect, "absent", briefly=False))


@pytest.mark.slow
def test_a_watch_that_stops_is_caught(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    read_wholly(party, monkeypatch, READERS["a refused repetition"][1])
    seen = [watch(party, some, AT) for some in (plain(VICTIMS[:1]), _named("twice"))]
    assert "watch: error" in seen[0].differences(seen[1])
