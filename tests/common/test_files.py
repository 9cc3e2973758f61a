"""Directories of Parquet files."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from common.files import directory_files


def test_a_directory_has_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no Parquet files; name a file"):
        directory_files(tmp_path)
    for name in ("b.parquet", "a.pq", "_SUCCESS", ".hidden.parquet", "c.csv", "A.PARQUET"):
        (tmp_path / name).touch()
    found = [path.name for path in directory_files(tmp_path)]
    assert found == ["A.PARQUET", "a.pq", "b.parquet"]
