"""Objects in a store, as Polars scans them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import polars as pl

from labelveil.common.config.load import MOST_BYTES, parse_toml
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.files import PARQUET_SUFFIXES
from labelveil.label_party.sources.remote_source import RemoteSource, check_private

_CSV = (".csv", ".tsv")
_NO_SEPARATOR = "\x1c"
_LINES_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Remote(RemoteSource):
    """An object in a store; named by an address without credentials."""

    address: str
    credentials_file: Path | None = None

    # what is said of a storage option shows its value
    failures = (ValueError, TypeError)
    reason = (
        "it is not there, not readable with these credentials (from the environment or [data]"
        " credentials_file), or neither CSV nor Parquet"
    )

    def __str__(self) -> str:
        return self.address

    @property
    def suffix(self) -> str:
        """Of its name, in small letters."""
        return PurePosixPath(self.address).suffix.lower()

    def scan(self) -> pl.LazyFrame:
        if self.suffix in PARQUET_SUFFIXES:
            options = storage_options(self)
            return pl.scan_parquet(self.address, glob=False, storage_options=options)
        raise DataError(f"{self} must end in .parquet, .pq, .csv or .tsv, so that it can be read")

    def lines(self) -> Iterator[bytes] | None:
        return _lines(self) if self.suffix in _CSV else None


def _lines(source: Remote) -> Iterator[bytes]:
    """Lines of an object, as Polars reads them: as the first cell of two, that are put together.

    Polars makes U+FFFD of what is no UTF-8; it is made none again, so that such a cell is missing
    as in a file. The separator is one that no text has: of a line that has it twice the rest is
    lost, and nothing of any other.
    """
    lines = pl.scan_csv(
        source.address,
        glob=False,
        has_header=False,
        separator=_NO_SEPARATOR,
        quote_char=None,
        encoding="utf8-lossy",
        schema={"line": pl.String, "more": pl.String},
        truncate_ragged_lines=True,
        storage_options=storage_options(source),
    ).select(pl.concat_str("line", _NO_SEPARATOR + pl.col("more"), ignore_nulls=True))
    at_first = True
    for batch in lines.collect_batches(chunk_size=_LINES_AT_ONCE, maintain_order=True):
        text = "".join(f"{line}\n" for line in batch.to_series())
        data = text.encode().replace("\N{REPLACEMENT CHARACTER}".encode(), b"\xff")
        if at_first:
            cut = data.find(b"\n") + 1
            yield data[:cut]
            data, at_first = data[cut:], False
        if data:
            yield data


def storage_options(source: Remote) -> dict[str, str | int] | None:
    """Read an object store's credentials: a TOML file of Polars' storage options.

    None leaves them to the environment.
    """
    path = source.credentials_file
    if path is None:
        return None
    check_private(path)
    try:
        with path.open("rb") as file:
            options = parse_toml(file.read(MOST_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        options = {"": None}
    if not all(isinstance(value, str | int) for value in options.values()):
        # not "from error": it would show a line of the file
        raise ConfigError(
            f'credentials_file {path} must hold lines such as aws_access_key_id = "…", in TOML,'
            " every value a text or a whole number"
        ) from None
    return options
