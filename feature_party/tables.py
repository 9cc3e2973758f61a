"""Feature files larger than memory, a batch of rows at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq

from labelveil.common.csv_files import SUFFIXES, first_line, refuse_packed, scan_csv, unreadable
from labelveil.common.errors import DataError, listed
from labelveil.common.files import PARQUET_SUFFIXES, appearing, directory_files, refuse_pipe
from labelveil.common.forks import check_threads
from labelveil.common.parquet_files import PERIODS, ParquetTable, periods
from labelveil.common.release.event_keys import key_text
from labelveil.feature_party.schema import NOTHING, Found, Stated
from labelveil.feature_party.schema_search import SchemaSearch, undecided

if TYPE_CHECKING:
    import pandas as pd

BATCH_ROWS = 1 << 16
SOURCE = "labels_party"
"""Column with the name of the labels party that an event's label is of, where they are several."""
_BUFFER_BYTES = 1 << 20
_Types: TypeAlias = dict[str, pl.DataType]

_BYTES_A_VALUE = 150
"""What a value takes while a network is trained in memory: as it came, in up to 33 inputs, and
copies on the way."""
_BYTES_A_LABEL = 120
"""What a row of a release takes while it is matched: its key twice, and the tables it is in."""


@dataclass(frozen=True)
class FeatureFile:
    """A features table that can be read in batches, again and again."""

    path: Path  # a file, or a folder of Parquet files
    copy_of: Path | None = None  # what errors about its cells name instead

    @cached_property
    def files(self) -> list[Path] | None:
        """Parquet files that are read as they are; None of CSV, and of files that are not alike."""
        return plain_files(self.path)

    @cached_property
    def frame(self) -> pl.LazyFrame:
        return scan_table(self.path)

    @cached_property
    def rows(self) -> int:
        if self.files is not None:
            return sum(map(rows_of, self.files))
        try:
            rows = int(self.frame.select(pl.len()).collect().item())
            if not rows:  # a row of which a quotation mark is not closed is counted as none
                self.frame.collect()
            return rows
        except pl.exceptions.PolarsError as error:
            raise unreadable(self.path, error) from error

    def find_schema(self, stated: Stated = NOTHING, without: str | None = None) -> Found:
        """What its columns mean, but for that of the key.

        All rows are read of CSV; of Parquet columns whose type does not say it, until no further
        cell could. ``ConfigError`` if a column that is named does not exist; ``DataError`` as
        :func:`labelveil.feature_party.schema_search.find_schema`, or if a file cannot be read.
        """
        empty, search = self._begun(stated, without)
        names = undecided(empty, stated)
        for batch in self.batches(names) if names else ():
            search.add(batch)
            if search.is_settled and is_parquet(self.path):
                break
        return search.found()

    def found_in_cells(self, without: str | None) -> dict[str, str]:
        """What was found from cells, rather than types: a line of a configuration by column."""
        schema = self.find_schema(without=without).schema
        empty, _ = self._begun(NOTHING, without)
        return {name: str(schema[name]) for name in undecided(empty)}

    def to_parquet(self, out: Path, stated: Stated = NOTHING, without: str | None = None) -> Found:
        """Write all rows to one Parquet file, and find the schema on the way.

        Columns of numbers in text are written as numbers, if those say all that the cells do.
        """
        if is_parquet(self.path):  # has its types; of what nobody reads Polars writes what it reads
            try:
                with appearing(out, durable=True) as file:
                    self.frame.sink_parquet(file)
            except pl.exceptions.PolarsError as error:
                raise unreadable(self.path, error) from error
            return FeatureFile(out, copy_of=self.path).find_schema(stated, without)
        empty, search = self._begun(stated, without)
        with appearing(out, durable=True) as file:
            types = self._write(file, empty.columns, search.add)
            found = search.found()
            wanted = dict(search.as_numbers(empty, found.schema).schema)
            if any(each != wanted for each in types):  # a later cell said more than the first ones
                file.seek(0)
                file.truncate()
                read = partial(search.as_numbers, schema=found.schema)
                self._write(file, empty.columns, read)
        return found

    def _write(
        self, file: BinaryIO, columns: Sequence[str], read: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> list[_Types]:
        """Write rows, some columns as they are read, until a type changes; all types they had."""
        types: list[_Types] = []
        writer: pq.ParquetWriter | None = None
        with ExitStack() as closing:
            for batch in self.batches(self.frame.collect_schema().names()):
                known = read(batch.select(cs.by_name(*columns)))
                types.append(dict(known.schema))
                if types[-1] != types[0]:
                    continue
                for column in known:
                    batch.replace_column(batch.get_column_index(column.name), column)
                table = batch.to_arrow()
                if writer is None:
                    texts = [each.name for each in batch if not each.dtype.is_numeric()]
                    plain = {"compression": "lz4", "use_dictionary": texts}
                    writer = pq.ParquetWriter(file, table.schema, write_statistics=False, **plain)
                    closing.enter_context(writer)
                writer.write_table(table)
        return types

    def _begun(self, stated: Stated, without: str | None) -> tuple[pl.DataFrame, SchemaSearch]:
        """Its columns, but for one, without a row; and a search for what they mean."""
        empty = self.frame.head(0).collect()
        empty = empty.select(cs.by_name(*(name for name in empty.columns if name != without)))
        stated.check(empty.columns)
        path = self.copy_of or self.path
        search = SchemaSearch(self.rows, stated, typed=is_parquet(self.path), path=path)
        search.add(empty)
        return empty, search

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS) -> Iterator[pl.DataFrame]:
        """Yield batches of at most ``rows`` rows, in the files' order."""
        if self.files is None:
            wanted = cs.by_name(*columns)
            # of some columns alone Polars would not see that a line has too many cells
            frame = self.frame.select(wanted) if is_parquet(self.path) else self.frame
            try:
                for batch in frame.collect_batches(chunk_size=rows, maintain_order=True):
                    yield batch.select(wanted)
            except pl.exceptions.PolarsError as error:
                raise unreadable(self.path, error) from error
            return
        for path in self.files:
            try:
                for batch in record_batches(path, columns, rows):
                    # Polars gives a column without a name one, and Arrow takes s.x for s, too
                    places = [str(place) for place in range(batch.num_columns)]
                    table = pl.DataFrame(pa.Table.from_batches([batch]).rename_columns(places))
                    table.columns = batch.schema.names
                    yield table.select(cs.by_name(*columns))
            except (pa.ArrowException, OSError) as error:
                raise unreadable(path, error) from error


def rows_of(path: Path) -> int:
    """Rows of a Parquet file."""
    try:
        return int(pq.ParquetFile(path).metadata.num_rows)
    except (OSError, pa.ArrowException) as error:
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
    cells of its column (:mod:`labelveil.feature_party.schema_search`). ``DataError`` if the file is
    missing, of another kind, or cannot be read.
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
    refuse_pipe(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; name a CSV or Parquet file")
    return [path]


def collect_table(table: Table) -> pl.DataFrame:
    """Any accepted form of a table in memory.

    ``DataError`` if it cannot be read; ``RuntimeError`` where that would hang, after a fork.
    """
    check_threads()
    try:
        if isinstance(table, str | Path):
            table = scan_table(Path(table))
        if isinstance(table, pl.LazyFrame):
            table = table.collect()
        elif isinstance(table, pa.Table):
            described = (table.schema.metadata or {}).get(b"pandas", b"")
            for name, period in periods(described).items():
                if name in table.column_names:
                    raise _of_periods(name, period)
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
    for name, kind in zip(names, table.dtypes, strict=True):
        held = getattr(getattr(kind, "categories", None), "dtype", kind)
        if str(held).startswith("period["):
            raise _of_periods(name, held)
    table = _named_categories(table)
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


def _named_categories(table: pd.DataFrame) -> pd.DataFrame:
    """The same table, with categories that are whole numbers as text.

    Polars takes these for the numbers, and of pandas' types this one says that they are none.
    """
    for place, kind in enumerate(table.dtypes):
        categories = getattr(kind, "categories", None)
        if getattr(getattr(categories, "dtype", None), "kind", "") in {"i", "u"}:
            table = table.copy(deep=False)
            named = table.iloc[:, place].cat.rename_categories(str)
            table.isetitem(place, named.array)
    return table


def _of_periods(name: str, kind: object) -> DataError:
    return DataError(f"column {name!r:.60} has type {kind}, {PERIODS}")


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


def check_type_of_key(path: Path, key: str) -> None:
    """Raise ``DataError`` if a table's keys are no text, whole numbers or UUIDs.

    It says of a folder in which file they are of which type.
    """
    keys = scan_table(path).select(cs.by_name(key)).head(0).collect()[key]
    try:
        if keys.dtype != pl.Null:
            key_text(keys)
    except DataError as error:
        types = ParquetTable(path).types_of(key) if path.is_dir() else ""
        raise DataError(f"{error}; it is {types}" if types else str(error)) from error
