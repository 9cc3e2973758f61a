"""Files that appear whole, and directories of Parquet files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.errors import DataError
from common.files import appearing, directory_files


def test_a_directory_has_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no Parquet files; name a file"):
        directory_files(tmp_path)
    for name in ("b.parquet", "a.pq", "_SUCCESS", ".hidden.parquet", "c.csv", "A.PARQUET"):
        (tmp_path / name).touch()
    found = [path.name for path in directory_files(tmp_path)]
    assert found == ["A.PARQUET", "a.pq", "b.parquet"]


def test_a_link_stays_a_link_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    with appearing(link) as out:
        out.write(b"whole")
        assert not file.exists()
    assert link.is_symlink()
    assert file.read_bytes() == b"whole"


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with appearing(pipe) as out:
            out.write(b"bytes")
        assert os.read(reader, 10) == b"bytes"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_directory_is_named_where_a_file_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as failed, appearing(tmp_path):
        pass
    assert str(failed.value.filename) == str(tmp_path)


def test_a_full_disk_names_the_file() -> None:
    with (
        pytest.raises(OSError, match="No space left") as failed,
        appearing(Path("/dev/full")) as file,
    ):
        file.write(b"bytes")
    assert failed.value.filename == "/dev/full"
