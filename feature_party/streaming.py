"""Feature files larger than memory, a batch of rows at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.errors import ConfigError, DataError
from feature_party.join import Table, check_key, scan_table

BATCH_ROWS = 1 << 16

_BYTES_A_VALUE = 150
"""What a value takes while a network is trained in memory: as it came, in up to 33 inputs, and
copies on the way."""


@dataclass(frozen=True)
class FeatureFile:
    """A features file that can be read in batches, again and again.

    Attributes
    ----------
    path
        Parquet.
    """

    path: Path

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(pq.ParquetFile(self.path).metadata.num_rows)

    def taken(
        self, columns: Sequence[str], rows: NDArray[np.int64]
    ) -> Iterator[tuple[pl.DataFrame, slice]]:
        """Yield some rows, and the places in ``rows`` that they belong to.

        Parameters
        ----------
        columns
            What is read of them.
        rows
            (m,) row numbers, ascending; one may occur several times.
        """
        at = 0
        for batch in self.batches(columns):
            low, high = np.searchsorted(rows, [at, at + batch.height])
            if high > low:
                yield batch[rows[low:high] - at], slice(int(low), int(high))
            at += batch.height

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[pl.DataFrame]:
        """Yield batches of at most ``rows`` rows, in the file's order."""
        try:
            for batch in pq.ParquetFile(self.path).iter_batches(rows, columns=list(columns)):
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                yield frame
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path} cannot be read: {str(error).splitlines()[0]}") from error


@contextmanager
def feature_file(
    path: Path, key: str, columns: Sequence[str], folder: Path | None = None
) -> Iterator[FeatureFile]:
    """A features file to read in batches: Parquet as it is, CSV converted in a stream first.

    Parameters
    ----------
    path
        CSV or Parquet.
    key
        Its key column, which is text in a CSV file; empty for none.
    columns
        Columns that will be read.
    folder
        Existing folder for the converted file, which goes when the context ends; the default is
        the system's for temporary files.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        yield FeatureFile(path)
        return
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        converted = Path(temporary) / "features.parquet"
        try:
            scan_table(path, key).select(columns).sink_parquet(converted)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
        yield FeatureFile(converted)


def streamed_file(features: Table, key: str, shards: str) -> Path | None:
    """The features file, where it is to be streamed through shards instead of read into memory.

    Parameters
    ----------
    features, key
        Table and key column.
    shards
        ``[training] shards``: ``auto``, ``never`` or a folder.

    Raises
    ------
    ConfigError
        If a folder for shards is named and the features are no file.
    """
    if not isinstance(features, str | Path):
        if shards not in ("auto", "never"):
            raise ConfigError(
                f"[training] shards={shards!r} needs a features file, not a table in memory; pass"
                " its path, or set shards to never"
            )
        return None
    path = Path(features)
    check_key(scan_table(path, key), key)
    if shards == "never" or (shards == "auto" and not _too_large(path, key)):
        return None
    return path


def _too_large(path: Path, key: str) -> bool:
    """Whether training on a features file in memory would take most of this machine's."""
    frame = scan_table(path, key)
    values = frame.collect_schema().len() * int(frame.select(pl.len()).collect().item())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return values * _BYTES_A_VALUE > 0.6 * memory
