"""What cannot be written is named, whoever writes: a write to an open file says no name, and Polars
hides what the system said in a text of its own."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.common.files import appearing, file_errors, writing
from labelveil.common.streams import one_line
from labelveil.feature_party.tables import FeatureFile
from labelveil.label_party.sources.tables import copy_as_parquet

FRAME = pl.DataFrame({"key": [f"key-{i}" for i in range(50_000)], "x": np.arange(50_000.0)})
WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: path.write_bytes(b"1" * 100_000),
    "csv": FRAME.write_csv,
    "parquet": FRAME.write_parquet,
    "stream": lambda path: FRAME.lazy().sink_parquet(path),
}


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file on a disk that is full."""
    path = tmp_path / "full"
    path.symlink_to("/dev/full")
    return path


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as a quota would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_the_path_is_named_whoever_writes(full: Path, write: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match="No space left") as failed, writing(full):
        write(full)
    assert (failed.value.errno, failed.value.filename) == (errno.ENOSPC, str(full))
    assert str(one_line(failed.value)).startswith(f"{full}: No space left on device;")
    with (
        pytest.raises(DataError, match=r"^full cannot be written: No space left on device$"),
        file_errors(DataError, f"{full.name} cannot be written"),
    ):
        write(full)


def test_another_mistake_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError) as failed, writing(path):
        (tmp_path / "absent" / "other").write_bytes(b"")
    assert failed.value.filename == str(tmp_path / "absent" / "other")
    with pytest.raises(pl.exceptions.ColumnNotFoundError), writing(path):
        FRAME.select("absent")
    with pytest.raises(ZeroDivisionError), appearing(path):
        _ = 1 / 0


def test_a_copy_of_features_that_has_no_room_is_no_fault_of_theirs(tmp_path: Path) -> None:
    features = tmp_path / "features.csv"
    FRAME.write_csv(features)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with small_files(4096), pytest.raises(OSError, match="File too large") as failed:
        FeatureFile(features).to_parquet(scratch / "copy.parquet", without="key")
    assert failed.value.errno == errno.EFBIG
    assert str(failed.value.filename).startswith(str(scratch))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_copy_of_labels_that_has_no_room_is_no_fault_of_theirs(
    tmp_path: Path, suffix: str
) -> None:
    labels = tmp_path / f"labels.{suffix}"
    (FRAME.write_csv if suffix == "csv" else FRAME.write_parquet)(labels)
    with small_files(4096), pytest.raises(OSError, match="File too large") as failed:
        copy_as_parquet(labels, ["key", "x"], tmp_path / "copy", ["key"])
    assert failed.value.errno == errno.EFBIG
    assert str(failed.value.filename).startswith(str(tmp_path / "copy"))
