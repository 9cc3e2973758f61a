"""Feature files larger than memory, a batch of rows at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq

from common.csv_files import SUFFIXES, first_line, refuse_packed, scan_csv, unreadable
from common.errors import DataError, listed
from common.files import PARQUET_SUFFIXES, directory_files, writing
from common.parquet_files import ParquetTable
from feature_party.schema import NOTHING, Found, Stated, find_schema, undecided

if TYPE_CHECKING:
    import pandas as pd

BATCH_ROWS = 1 << 16
SOURCE = "labels_party"
"""Column with the name of the labels party that an event's label is of, where they are several."""
_BUFFER_BYTES = 1 << 20

_BYTES_A_VALUE = 150
"""What a value takes while a network is trained in memory: as it came, in up to 33 inputs, and
copies on the way."""
_BYTES_A_LABEL = 120
"""What a row of a release takes while it is matched: its key twice, and the tables it is in."""


@dataclass(frozen=True)
class FeatureFile:
    """A features table that can be read in batches, again and again."""

    paths: Sequence[Path]  # parquet files, in the order of the rows
    typed: bool = True  # whether the types of columns say something: not of what was CSV

    @property
    def rows(self) -> int:
        return sum(int(pq.ParquetFile(path).metadata.num_rows) for path in self.paths)

    def find_schema(self, stated: Stated = NOTHING, without: str | None = None) -> Found:
        """What its columns mean, but for that of the key.

        All rows are read, of those columns alone whose type does not say it. ``ConfigError`` if a
        column that is named does not exist; ``DataError`` as
        :func:`feature_party.schema.find_schema`, or if a file cannot be read.
        """
        empty = self._without_rows(without)
        stated.check(empty.columns)
        names = undecided(empty, stated)
        batches = self.batches(names) if names else ()
        return find_schema(chain([empty], batches), self.rows, stated, typed=self.typed)

    def found_in_cells(self, without: str | None = None) -> dict[str, str]:
        """What was found from cells, rather than types: a line of a configuration by column."""
        empty = self._without_rows(without)
        schema = self.find_schema(without=without).schema
        return {name: str(schema[name]) for name in undecided(empty)}

    def _without_rows(self, column: str | None) -> pl.DataFrame:
        """Its columns, but for one, and no row."""
        empty = pl.scan_parquet(list(self.paths), glob=False).head(0).collect()
        return empty.select(cs.by_name(*(name for name in empty.columns if name != column)))

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[pl.DataFrame]:
        """Yield batches of at most ``rows`` rows, in the files' order."""
        for path in self.paths:
            try:
                for batch in record_batches(path, columns, rows):
                    # Polars gives a column without a name one, and Arrow takes s.x for s, too
                    places = [str(place) for place in range(batch.num_columns)]
                    table = pl.DataFrame(pa.Table.from_batches([batch]).rename_columns(places))
                    table.columns = batch.schema.names
                    yield table.select(cs.by_name(*columns))
            except (pa.ArrowException, OSError) as error:
                raise unreadable(path, error) from error


def record_batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a Parquet file in batches of at most ``rows`` rows.

    ``OSError`` or ``pa.ArrowException`` if it cannot be read.
    """
    # by default everything that was read is kept until the file is closed
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    # pyarrow finds no column by an empty name, which pandas gives an index
    wanted = None if "" in columns else list(columns)
    for batch in file.iter_batches(rows, columns=wanted):
        yield batch.select(list(columns))


@contextmanager
def feature_file(
    path: Path, columns: Sequence[str], folder: Path | None = None
) -> Iterator[FeatureFile]:
    """A features table to read in batches: Parquet as it is, all else converted in a stream first.

    ``path`` may also be a directory of Parquet files; what is converted are CSV, and files that are
    not alike. ``columns`` are those that will be read. The converted file lies in ``folder``, by
    default the system's for temporary files, until the context ends.
    """
    if (plain := plain_files(path)) is not None:
        yield FeatureFile(plain)
        return
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        converted = Path(temporary) / "features.parquet"
        try:
            with writing(converted):
                scan_table(path).select(cs.by_name(*columns)).sink_parquet(converted)
        except pl.exceptions.PolarsError as error:
            raise unreadable(path, error) from error
        yield FeatureFile([converted], typed=is_parquet(path))


def is_streamed(path: Path, key: str, shards: str, released: int) -> bool:
    """Whether the features are streamed through shards instead of read into memory.

    ``shards`` is ``auto``, ``never`` or a folder, as in ``[training]``; ``released`` are the rows
    of the releases that they are matched with.
    """
    check_key(scan_table(path), key)
    return shards != "never" and (shards != "auto" or _too_large(path, key, released))


def _too_large(path: Path, key: str, released: int) -> bool:
    """Whether joining and training in memory would take most of this machine's."""
    frame = scan_table(path)
    values = frame.collect_schema().len() * int(frame.select(pl.len()).collect().item())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return values * _BYTES_A_VALUE + released * _BYTES_A_LABEL > 0.6 * memory


Table: TypeAlias = "pl.DataFrame | pl.LazyFrame | pd.DataFrame | pa.Table | Path"
"""What the Python interface accepts as a table: in memory, lazy, or a file."""


def scan_table(path: Path) -> pl.LazyFrame:
    """Scan a table lazily: a CSV or Parquet file, or a directory of Parquet files.

    Every cell of a CSV file is text: what it means is the schema's to say, and is decided by all
    cells of its column (:mod:`feature_party.schema`). ``DataError`` if the file is missing,
    of another kind, or cannot be read.
    """
    table_files(path)
    try:
        if is_parquet(path):
            frame = ParquetTable(path).scan()
        elif path.suffix.lower() in SUFFIXES:
            frame = scan_csv(path, infer_schema=False)
        else:
            refuse_packed(path)
            raise DataError(f"{path} has the suffix {path.suffix!r}; use .csv, .tsv or .parquet")
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(path, error) from error
    return frame


def is_parquet(path: Path) -> bool:
    """Whether a table is one of Parquet, by its name, or a folder of such files."""
    return path.is_dir() or path.suffix.lower() in PARQUET_SUFFIXES


def plain_files(path: Path) -> list[Path] | None:
    """Parquet files that can be read one after the other, as they are; None if it takes more."""
    if not is_parquet(path):
        return None
    table_files(path)
    try:
        table = ParquetTable(path)
        return table.files if table.is_plain else None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(path, error) from error


def file_of(path: Path, source: str) -> Path:
    """The file of one labels party beside that of all; the same where there is just one."""
    return path.with_stem(f"{path.stem}-{source}") if source else path


def table_files(path: Path) -> list[Path]:
    """Return the files that a table lies in, in the order of its rows.

    ``DataError`` if there are none.
    """
    if path.is_dir():
        return directory_files(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; name a CSV or Parquet file")
    return [path]


def collect_table(table: Table) -> pl.DataFrame:
    """Any accepted form of a table in memory."""
    try:
        if isinstance(table, str | Path):
            table = scan_table(Path(table))
        if isinstance(table, pl.LazyFrame):
            table = table.collect()
        elif isinstance(table, pa.Table):
            table = pl.DataFrame(table)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"the table cannot be read: {first_line(error)}") from error
    frame = table if isinstance(table, pl.DataFrame) else _of_pandas(table)
    for name, kind in frame.schema.items():
        if kind == pl.Object:
            raise _unreadable_column(name, kind)
    return frame


def _of_pandas(table: pd.DataFrame) -> pl.DataFrame:
    """A table of pandas; ``DataError`` names the column that is not of one type, or the type."""
    if not hasattr(table, "iloc") or not hasattr(table, "columns"):
        raise DataError(
            f"a table of type {type(table).__name__} must be pandas', Polars' or Arrow's"
        )
    names = [str(name) for name in table.columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"the table has {names.count(twice)} columns {twice!r:.60}; name each once")
    try:
        return pl.from_pandas(table)
    except Exception:
        for place, name in enumerate(names):
            column = table.iloc[:, place]
            try:
                pl.from_pandas(column.rename("").to_frame())
            except Exception:
                # what Arrow says of it would show a value
                raise _unreadable_column(name, column.dtype) from None
        raise


def _unreadable_column(name: str, kind: object) -> DataError:
    return DataError(
        f"column {name!r:.60} of type {kind!s:.60} holds no numbers, texts, dates or categories of"
        " one type; make them so, such as with .astype(float) or .astype(str)"
    )


def check_key(frame: pl.LazyFrame, key: str) -> None:
    """Raise ``DataError`` unless the key column exists."""
    columns = frame.collect_schema().names()
    if key not in columns:
        raise DataError(
            f"the features have no key column {key!r}; set [data] key to one of: {listed(columns)}"
        )
