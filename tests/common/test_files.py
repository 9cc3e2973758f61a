"""Files that appear whole, and directories of Parquet files."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path

import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.files import (
    appearing,
    append_durably,
    directory_files,
    exclusive,
    sync,
    widen_pipe,
)
from tests.imports import imported, modules, parsed


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


def test_a_line_that_is_written_in_part_is_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    append_durably(path, b"one")
    append_durably(path, b"two")
    assert path.read_bytes() == b"onetwo"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, limit[1]))  # as a disk with room for a byte
    try:
        with pytest.raises(OSError, match="No space left on device"):
            append_durably(path, b"four")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    busy = ConfigError("it is taken")
    for _ in range(2):  # whoever leaves, leaves it free
        with (
            exclusive(tmp_path / "lock", busy),
            pytest.raises(ConfigError, match="it is taken"),
            exclusive(tmp_path / "lock", busy),
        ):
            pytest.fail("two hold it")
    with pytest.raises(FileNotFoundError), exclusive(tmp_path / "no" / "lock", busy):
        pytest.fail("there is no such folder")


def test_bytes_reach_the_disk_on_macos_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, what: asked.append(what))
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x")
        sync(file)
        assert (tmp_path / "file").read_bytes() == b"x"
    sync(tmp_path)
    assert asked == [51, 51]


def test_a_pipe_is_as_wide_as_the_system_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading), os.fdopen(writing):
        widen_pipe(writing, 1 << 18)
        assert os.write(writing, bytes(1 << 19)) == 1 << 18
        widen_pipe(writing, 1 << 62)  # more than it allows
        monkeypatch.delattr(fcntl, "F_SETPIPE_SZ")
        widen_pipe(writing, 1 << 19)  # on another system


@pytest.mark.slow
def test_what_only_posix_knows_is_asked_here_alone() -> None:
    """So that another system is one module's work."""
    posix = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios"}
    asking = {name for name, path in modules().items() if posix & set(imported(parsed(path)))}
    assert asking == {"common.files"}
