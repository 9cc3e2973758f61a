r"""Rows of CSV, each read by itself, so that nothing in one row changes what another says.

A row is one physical line; ``\n`` or ``\r\n`` ends it, and no quote makes it longer. Its cells
stand between separators. One that begins with a quote ends at the first separator that an even
number of quotes precedes; its last character must be a quote, too, and within it two quotes are
one. Any other cell is taken as it stands, with quotes, a single ``\r`` and NUL. A cell that is
empty, or has text behind its closing quote, or bytes that are none in the file's encoding, is
missing.

A line whose quotes do not balance, that has more or fewer cells than the header, or that is longer
than ``LONGEST_LINE``, is broken: its cells are missing, for nobody knows which column they are of.

*Whose row a line is* (its key; where the labels' own keys are the population also user, date and
class) must not depend on what a label's cell holds. Columns that say so and stand in front of all
others end at the first separators of the line, whatever quotes there are: these bytes lie before
any secret one, and are taken of a broken line, too. So a cell of them holds no separator; one that
begins with a quote, and does not end with one, is missing. Where labels name the events, all of
these columns must stand in front, or the file is refused by its header. Where a population lists
them, the key may stand elsewhere: then a line names an event only if it has no separator within
quotes, for a cell in front of the key could otherwise move another one into its place. A file that
is public as a whole, as a population's is, is read by its quotes alone.

A line feed always begins another row. One in a cell makes two rows of what its writer took for one.

Polars splits what is regular, which is checked in one pass over the bytes; what is left is halved
until the lines that are not are few, and those are split here, a line at a time. Both give the same
cells (``tests/label_party/sources/test_csv_rows.py`` compares them line by line).
"""

from __future__ import annotations

import codecs
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import polars.selectors as cs

from labelveil.common.csv_files import Dialect, refuse_carriage_returns
from labelveil.common.errors import DataError
from labelveil.label_party.sources.anomalies import LINE, NOTHING, Anomalies, anomaly

LONGEST_LINE = 1 << 20
"""Bytes."""
_CHUNK_BYTES = 1 << 24
_BY_LINE_BYTES = 1 << 15
_UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
_OPEN, _WIDTH, _LONG, _BEHIND, _WITHIN = (
    "quotes that do not balance",
    "more or fewer cells than the header",
    f"longer than {LONGEST_LINE:,} bytes",
    "text behind the closing quote, or a separator within quotes in front of all labels",
    "a separator within quotes, where the key is not in the first column",
)

Holds = Literal["labels", "population", "both"]
"""What rows hold: labels of events that are listed elsewhere; the population; or labels whose own
keys are the population."""


@dataclass(frozen=True)
class Layout:
    """What the header and the configuration say of every line."""

    header: Sequence[str]  # names of all columns
    wanted: Sequence[str]  # names of those to read, each once
    # that say whose row it is, the key first; wanted or not
    naming: Sequence[str]
    dialect: Dialect
    holds: Holds = "labels"

    @property
    def places(self) -> list[int]:
        return [self.header.index(name) for name in self.wanted]

    @cached_property
    def certain(self) -> int:
        """How many cells at the left edge say whose row it is, whatever follows them."""
        others = (n for n, name in enumerate(self.header) if name not in self.naming)
        certain = next(others, len(self.header))
        return certain if self.naming and self.naming[0] in self.header[:certain] else 0

    @property
    def misplaced(self) -> list[str]:
        """Columns that say whose row it is, but which a label's cell could break."""
        if self.holds != "both":
            return []
        behind = self.header[self.certain :]
        return [name for name in self.naming if name in behind]


def header_of(first_line: bytes, dialect: Dialect, path: object) -> list[str]:
    """Return the names in a file's first line.

    ``DataError`` if it is no line of names in the configured encoding, or all lines at once.
    """
    if first_line[:2] in _UTF16:
        raise DataError(f"{path} is UTF-16; save it as UTF-8")
    line = first_line.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").removesuffix(b"\r")
    refuse_carriage_returns(path, line.decode("latin-1"))
    cells, balanced = split_line(line, dialect.separator.encode())
    names = [_text(cell, dialect.encoding) for cell in cells]
    if not balanced or len(line) > LONGEST_LINE or any(isinstance(n, _Bad) for n in names):
        raise DataError(
            f"{path}: its first line is no header in {dialect}; set [data] labels_encoding and"
            " labels_separator, or those of the population"
        )
    return [name if isinstance(name, str) else "" for name in names]


def lines_of_file(path: Path) -> Iterator[bytes]:
    """Yield the first line, then the others, many whole lines at a time, in bounded memory.

    Empty lines at the end are left out. Of a line that is too long there is a beginning that is.
    """
    with path.open("rb") as file:
        yield file.readline(LONGEST_LINE + 2)
        while block := file.read(_CHUNK_BYTES):
            block += file.readline(LONGEST_LINE + 2)
            if not block.endswith(b"\n"):
                while (rest := file.readline(_CHUNK_BYTES)) and not rest.endswith(b"\n"):
                    pass  # a line that is too long, whatever follows
                block += b"\n"
            if not file.peek(1):
                block = block.rstrip(b"\r\n") + b"\n"
            if block != b"\n":
                yield block


def rows_of(
    lines: Iterable[bytes], layout: Layout, start: int = 2
) -> Iterator[tuple[pl.DataFrame, Anomalies]]:
    """Yield the cells of whole lines as text, null where missing, in the order of the lines.

    ``lines`` are parts of the file behind its header, each of whole lines, of which ``start`` is
    the number of the first. Yields frames with the wanted columns and :data:`LINE`, and what was
    odd about each.
    """
    for part in lines:
        read = list(_frames(part, layout, start))
        frame = pl.concat(frame for frame, _ in read)
        places = pl.int_range(start, start + frame.height, eager=True).alias(LINE)
        start += frame.height
        yield frame.with_columns(places), sum((odd for _, odd in read), NOTHING)


def split_line(line: bytes, separator: bytes) -> tuple[list[bytes], bool]:
    """Return a line's cells as they stand there, and whether the last one is closed.

    One that is not is left out.
    """
    cells, start, end, quoted, is_open = [], 0, -1, False, False
    for part in line.split(separator):
        begin, end = end + 1, end + 1 + len(part)
        if begin == start:
            quoted = part.startswith(b'"')
        is_open ^= quoted and bool(part.count(b'"') & 1)
        if not is_open:
            cells.append(line[start:end])
            start = end + 1
    return cells, not is_open


def _cells(line: bytes, layout: Layout, separator: bytes) -> tuple[list[bytes], str]:
    """Return the cells of a line that are taken, from the left, and why the others are not."""
    width, certain = len(layout.header), layout.certain
    front, rest = list[bytes](), [line]
    if certain and layout.holds != "population":
        cut = line.split(separator, certain)
        front, rest = cut[:certain], cut[certain:]
        if len(separator.join(front)) > LONGEST_LINE:  # by its own bytes, whatever follows
            front = []
    cells, closed = split_line(rest[0][:LONGEST_LINE], separator) if rest else ([], True)
    if len(line) > LONGEST_LINE:
        cells, reason = cells[: len(cells) - closed], _LONG
    elif not closed:
        reason = _OPEN
    elif len(front) + len(cells) != width:
        reason = _WIDTH
    elif layout.holds != "population" and not certain and line.count(separator) >= width:
        reason = _WITHIN
    else:
        return front + cells, ""
    return cells[:certain] if layout.holds == "population" else front, reason


@dataclass(frozen=True)
class _Bad:
    """Why a cell is missing."""

    reason: str


def _text(cell: bytes, encoding: str) -> str | _Bad | None:
    if cell.startswith(b'"'):
        if not cell.endswith(b'"') or len(cell) < 2:
            return _Bad(_BEHIND)
        cell = re.sub(rb'"(.?)', rb"\1", cell[1:-1], flags=re.DOTALL)
    elif not cell:
        return None
    try:
        return cell.decode(encoding)
    except UnicodeDecodeError:
        return _Bad(f"bytes that are no {encoding}")


def _frames(lines: bytes, layout: Layout, start: int) -> Iterator[tuple[pl.DataFrame, Anomalies]]:
    """Read whole lines: by Polars, by halves, or one after the other."""
    frame = regular_rows(lines, layout)
    middle = lines.find(b"\n", len(lines) // 2) + 1
    if frame is not None:
        yield frame, NOTHING
    elif len(lines) > _BY_LINE_BYTES and middle < len(lines):
        for half in (lines[:middle], lines[middle:]):
            for frame, odd in _frames(half, layout, start):
                yield frame, odd
                start += frame.height
    else:
        yield any_rows(lines, layout, start)


def regular_rows(lines: bytes, layout: Layout) -> pl.DataFrame | None:
    """Return the cells of whole lines, or None if that would take a look at each line."""
    dialect, width = layout.dialect, len(layout.header)
    if not _are_regular(lines, layout):
        return None
    if not lines.isascii():
        try:
            text = lines.decode(dialect.encoding)
        except UnicodeDecodeError:
            return None
        if dialect.encoding != "utf-8":
            lines = text.encode()
    if lines.startswith(codecs.BOM_UTF8):  # Polars would take it for the file's
        return None
    try:
        frame = (
            pl.scan_csv(
                lines,
                glob=False,
                has_header=False,
                separator=dialect.separator,
                infer_schema=False,
                schema={str(n): pl.String for n in range(width)},
            )
            .select(
                cs.by_name(str(n)).alias(name)
                for n, name in zip(layout.places, layout.wanted, strict=True)
            )
            .collect()
        )
    except pl.exceptions.PolarsError:
        return None
    data = np.frombuffer(lines, dtype=np.uint8)
    return frame if frame.height == np.count_nonzero(data == ord("\n")) else None


def _are_regular(lines: bytes, layout: Layout) -> bool:
    """Whether every line has the header's cells, closed within it, and none is too long.

    Nor has one a separator within quotes among the cells that say whose row it is, or, where
    these are not the first, anywhere.
    """
    separator, width = layout.dialect.separator, len(layout.header)
    windows = range(0, len(lines), LONGEST_LINE // 2)
    if any(lines.find(b"\n", start, start + LONGEST_LINE // 2) < 0 for start in windows):
        return False  # one might be
    if b"\r" in lines and lines.count(b"\r") != lines.count(b"\r\n"):
        return False  # Polars takes one from the end of any cell
    pattern = separator.encode() * (width - 1) + b"\n"
    marks = lines.translate(None, bytes(set(range(256)) - {*pattern, ord('"')}))
    # an even number of quotes between two separators: whether they begin the cell or not, it ends
    if marks.replace(b'""', b"") == pattern * marks.count(b"\n"):
        return True
    if b'"' not in marks:
        return False
    data = np.frombuffer(lines, dtype=np.uint8)
    at = np.flatnonzero((data == ord('"')) | (data == ord(separator)) | (data == ord("\n")))
    kinds = data[at]
    quote = kinds == ord('"')
    outside = ~quote & (np.bitwise_xor.accumulate(quote.view(np.uint8)) == 0)
    between = kinds[outside].tobytes()
    if between != pattern * int(np.count_nonzero(kinds == ord("\n"))):
        return False
    if layout.holds != "population":
        ends = kinds[~quote] == ord("\n")
        first_of_line = np.r_[0, np.flatnonzero(ends)[:-1] + 1]
        length = np.diff(np.r_[first_of_line, ends.size])
        rank = np.arange(ends.size) - np.repeat(first_of_line, length)
        if not outside[~quote][rank < (layout.certain or width)].all():
            return False
    # the first quote of a cell must begin it: elsewhere it would be text
    first = quote & np.r_[True, outside[:-1]]
    return bool((np.diff(at, prepend=-1)[first] == 1).all())


def any_rows(lines: bytes, layout: Layout, start: int) -> tuple[pl.DataFrame, Anomalies]:
    """Return the cells of whole lines, whatever stands there, and what is odd about them."""
    columns: list[list[str | None]] = [[] for _ in layout.wanted]
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    separator, encoding = layout.dialect.separator.encode(), layout.dialect.encoding
    wanted = list(zip(layout.wanted, layout.places, columns, strict=True))
    for number, ended in enumerate(lines[:-1].split(b"\n"), start):
        line = ended.removesuffix(b"\r")
        cells, reason = _cells(line, layout, separator)
        if reason and line:
            places["", reason].append(number)
        for name, place, column in wanted:
            text = _text(cells[place], encoding) if place < len(cells) else None
            if isinstance(text, _Bad):
                places[name, text.reason].append(number)
                text = None
            column.append(text)
    odd = NOTHING
    for (name, reason), numbers in places.items():
        odd += anomaly(name, reason, numbers, len(numbers))
    data = dict(zip(layout.wanted, columns, strict=True))
    return pl.DataFrame(data, schema=dict.fromkeys(layout.wanted, pl.String)), odd
