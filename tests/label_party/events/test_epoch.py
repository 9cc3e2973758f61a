"""Which rows and columns are an epoch's: a column may have several roles, and is read once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from labelveil.common.randomizers.message.strata import Strata
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.label_party.events import open as opening
from labelveil.label_party.events.columns import NONE, Column
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.events.open import open_events
from labelveil.label_party.events.steps import Sizes
from labelveil.label_party.sources.tables import KEY, PLACE, USER, column_name, label_column
from tests.label_party.conftest import Party

TABLE = pl.DataFrame(
    {
        "order": ["a", "b", "c", "d"],
        "shopper": ["u", None, "u", "v"],
        "paid": [1.5, 2.0, None, 4.0],
        "day": ["2024-05-01", "2024-05-02", "2024-05-01", "2024-05-01"],
    }
)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_of_several_roles_is_read_once_and_serves_all(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"orders.{suffix}"
    TABLE.write_csv(source) if suffix == "csv" else TABLE.write_parquet(source)
    others = Column("shopper"), Column("paid")
    rows = Rows(
        *(source, "order", ("paid", "paid"), "shopper", ("day", "2024-05-01"), others),
        stratum=Column("day"),
        roles=("shopper", "day", "order"),
    )
    assert rows.naming == ["order", "shopper", "day"]
    assert rows.columns == ["order", "shopper", "day", "paid"]
    rows.check()
    found, odd = rows.read()
    assert found[KEY].to_list() == ["a", "c", "d"]
    for index in (0, 1):
        assert found[label_column(index)].to_list() == [1.5, None, 4.0]
    assert found[USER].to_list() == found[column_name("shopper")].to_list() == ["u", "u", "v"]
    assert found[column_name("day")].to_list() == ["2024-05-01"] * 3
    first = 2 if suffix == "csv" else 1  # a heading is a line, too
    assert found[PLACE].to_list() == [first, first + 2, first + 3]
    assert not [*odd]
    assert rows.days() == ["2024-05-01", "2024-05-02"]


TODAY, LATER = "2024-05-01", "2024-05-02"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_without_a_date_is_of_no_day(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"orders.{suffix}"
    table = pl.DataFrame({"order": ["a", "b", "c", "d"], "day": [TODAY, None, "soon", LATER]})
    table.write_csv(source) if suffix == "csv" else table.write_parquet(source)
    for day, key in ((TODAY, "a"), (LATER, "d")):
        found, odd = Rows(source, "order", day=("day", day)).read()
        assert found[KEY].to_list() == [key]
        (line,) = odd
        assert "no date" in str(line)


SHADES, KINDS, TOWNS = ["pale", "dark"], ["a", "b", "c"], ["Bonn", "Kiel", "Ulm"]
EVENTS = [
    # whose, of which day, kind and town in the population; day, label, shade, town of a row
    ("u", TODAY, "a", "Kiel", TODAY, 1.0, "dark", "Ulm"),
    ("u", TODAY, "b", "Kiel", TODAY, 5.0, "pale", "Ulm"),
    ("u", TODAY, "b", "Bonn", TODAY, 9.0, "dark", "Ulm"),
    ("v", TODAY, "a", "Kiel", LATER, 7.0, "dark", "Ulm"),
    ("v", TODAY, "x", None, TODAY, 4.0, "odd", "Ulm"),
    ("v", LATER, "a", "Bonn", TODAY, 6.0, "dark", "Ulm"),
    ("w", TODAY, "b", "Bonn", TODAY, 2.0, "pale", "Ulm"),
    (None, TODAY, "a", "Bonn", TODAY, 8.0, "dark", "Ulm"),
]


@pytest.mark.parametrize("part_rows", [None, 2, 3, 5])
def test_an_epochs_events_are_those_of_its_population_with_all_that_is_said_of_them(
    party: Party, part_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, and on disk in parts; two events of a user keep what labels say of them."""
    keys = [f"k{n}" for n in range(len(EVENTS))]
    who, day, kind, town, *said = (list(column) for column in zip(*EVENTS, strict=True))
    party.write_population({"key": keys, "who": who, "day": day, "kind": kind, "town": town})
    party.write_labels(
        {"key": keys, **dict(zip(("day", "label", "shade", "town"), said, strict=True))}
    )
    (party.folder / "towns.txt").write_text("\n".join(TOWNS))
    if part_rows is not None:
        monkeypatch.setattr(opening, "_CSV_IN_MEMORY_BYTES", 0)
        sizes = Sizes(slice_rows=3, bucket_rows=2, part_rows=part_rows)
        monkeypatch.setattr(opening, "Sizes", lambda: sizes)
    config = party.config(
        data__date="day",
        data__epoch=TODAY,
        privacy__unit="user",
        privacy__user="who",
        privacy__max_records_per_user=2,
        strata__column="town",
        strata__values="towns.txt",
        randomizer__name="auto",
    )
    columns = [Column("kind", pl.Series(KINDS), public=True), Column("shade", pl.Series(SHADES))]
    secret = read_secret(party.folder / "join.key")
    number = {hash_keys(pl.Series([key]), secret): n for n, key in enumerate(keys)}
    with open_events(config, columns, Column("town", pl.Series(TOWNS)), quiet=True) as events:
        parts = [*events.keys_and_labels()]
        raw = b"".join(each.tobytes() for each, _ in parts)
        found = [number[raw[at : at + 16]] for at in range(0, len(raw), 16)]
        codes = [events.codes(column.name).tolist() for column in columns]
        labels = events.labels(0)
        assert events.strata(3).tolist() == [3, 3, 0, 1]
        strata = Strata(("Kiel", "others"), (3, 4), np.array([1, 0, 1, 1]))
        (share,) = events.explained(strata)
        assert events.in_memory is (part_rows is None)
        if part_rows is not None:
            assert [len(each) for each, _ in parts] == [part_rows] * (7 // part_rows) + [
                *([7 % part_rows] if 7 % part_rows else [])
            ]
        assert (events.tally.over_limit, events.tally.left_out) == (2, 1)
    assert sorted(found) == [0, 1, 2, 3, 4, 6, 7]
    seen, expected = Counter[str | None](), []
    for n in found:
        seen[who[n]] += 1
        kept = who[n] is not None and seen[who[n]] <= 2
        there = kept and EVENTS[n][4] == TODAY
        shade = EVENTS[n][6]
        expected.append(
            (
                EVENTS[n][5] if there else 0.0,
                (KINDS.index(kind[n]) if kind[n] in KINDS else 3) if kept else NONE,
                (SHADES.index(shade) if shade in SHADES else 2) if there else NONE,
            )
        )
    assert [*zip(labels.tolist(), *codes, strict=True)] == expected
    of_town = [
        labels[[town[n] == "Kiel" for n in found]],
        labels[[town[n] != "Kiel" for n in found]],
    ]
    within = sum(each.size * each.var() for each in of_town)
    assert share == pytest.approx(1 - within / (7 * labels.var()))
