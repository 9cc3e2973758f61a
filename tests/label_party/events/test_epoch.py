"""Which rows and columns are an epoch's: a column may have several roles, and is read once."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from labelveil.label_party.events.columns import Column
from labelveil.label_party.events.epoch import Rows
from labelveil.label_party.sources.tables import KEY, PLACE, USER, column_name, label_column

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
