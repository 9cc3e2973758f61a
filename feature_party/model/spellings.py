"""Dates, numbers and categories as they are written, and columns that only name or number rows."""

from __future__ import annotations

import re

import polars as pl

MISSING = "\x00missing"
"""Vocabulary entry of an absent value; no text of a file can be equal to it by accident."""
COMMA = "1.234,5"
"""The spelling of numbers with a decimal comma."""
_DATES = (
    (r"\d{4}-\d{1,2}-\d{1,2}", ("%Y-%m-%d",)),
    (r"\d{4}/\d{1,2}/\d{1,2}", ("%Y/%m/%d",)),
    (r"\d{1,2}\.\d{1,2}\.\d{4}", ("%d.%m.%Y",)),
    (r"\d{1,2}\.\d{1,2}\.\d{2}", ("%d.%m.%y",)),
    (r"\d{1,2}/\d{1,2}/\d{4}", ("%d/%m/%Y", "%m/%d/%Y")),
    (r"\d{1,2}/\d{1,2}/\d{2}", ("%d/%m/%y", "%m/%d/%y")),
    (r"\d{1,2}-\d{1,2}-\d{4}", ("%d-%m-%Y", "%m-%d-%Y")),
    (r"\d{1,2} \p{L}{3} \d{4}", ("%d %b %Y",)),
    (r"\p{L}{3} \d{1,2}, \d{4}", ("%b %d, %Y",)),
)
"""Shapes of dates and how each is read; where two readings serve all values, the first is taken."""
_SHAPES = {spelling: shape for shape, spellings in _DATES for spelling in spellings}
_CLOCK = r"[ T](\d{1,2}):(\d{2})(?::(\d{2}))?"
_WITH_CLOCK = " %H:%M"
_NUMBER = r"^\s*[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?\s*$"
_ENOUGH = 0.99
"""Share of the values that a spelling must read."""
_FEW = 100
_ID_NAME = re.compile(r"(?:^|[_\s-])(?:id|ids|code|recode|zip|zipcode|sku|uuid)$|[a-z](?:ID|Id)$")


def spelling_of(texts: pl.Series) -> str:
    """How a column of texts spells dates or numbers; an empty one if it holds neither."""
    values = texts.alias("").drop_nulls().unique(maintain_order=True)
    if not values.len():
        return ""
    for shape, spellings in _DATES:
        if _share(values.str.contains(rf"^\s*{shape}(?:{_CLOCK}.*)?\s*$")) >= _ENOUGH:
            read = {each: _share(read_dates(values, each).is_not_null()) for each in spellings}
            best = max(spellings, key=lambda each: read[each])
            if read[best] >= _ENOUGH:
                return best + _WITH_CLOCK if values.str.contains(_CLOCK).any() else best
    commas = values.str.contains(",").any() and _share(values.str.contains(_NUMBER)) >= _ENOUGH
    return COMMA if commas else ""


def _share(readable: pl.Series) -> float:
    return float(readable.to_numpy().mean())


def read_dates(texts: pl.Series, spelling: str) -> pl.Series:
    """Dates, or moments if the spelling has a clock; null where a text is neither."""
    date, texts = spelling.removesuffix(_WITH_CLOCK), texts.alias("")
    days = texts.str.extract(rf"^\s*({_SHAPES[date]})").str.to_date(date, strict=False)
    if date == spelling:
        return days
    parts = (texts.str.extract(_CLOCK, part).cast(pl.Int64).fill_null(0) for part in (1, 2, 3))
    hours, minutes, seconds = parts
    clock = (3600 * hours + 60 * minutes + seconds) * 1_000_000
    return days.cast(pl.Datetime("us")) + clock.cast(pl.Duration("us"))


def read_commas(texts: pl.Series) -> pl.Series:
    """Texts with decimal commas as texts with decimal points."""
    return (
        texts.alias("")
        .str.strip_chars()
        .str.replace_all(".", "", literal=True)
        .str.replace(",", ".")
    )


def named_as_id(name: str) -> bool:
    """Whether a column's name says that its numbers are names."""
    return _ID_NAME.search(name) is not None


def numbers_rows(values: pl.Series) -> bool:
    """Whether whole numbers only number the rows: no two alike, and few left out."""
    values = values.alias("")
    if not values.dtype.is_integer() or values.len() < _FEW or values.null_count():
        return False
    low, high = int(values.min()), int(values.max())  # type: ignore[arg-type]
    return high - low < 2 * values.len() and values.n_unique() == values.len()


def canonical_text(series: pl.Series) -> pl.Series:
    """Canonical text of each value: 17850 from CSV and 17850.0 from Parquet are one category."""
    series = series.alias("")  # a Series' methods take its name ^…$ for a pattern of columns
    if series.dtype.is_float():
        frame = pl.DataFrame({"x": series})
        whole = pl.col("x").is_finite() & (pl.col("x") == pl.col("x").floor())
        whole &= pl.col("x").abs() < 2**53
        text = (
            pl.when(whole)
            .then(pl.col("x").cast(pl.Int64, strict=False).cast(pl.String))
            .otherwise(pl.col("x").fill_nan(None).cast(pl.String))
        )
        series = frame.select(text).to_series()
    elif series.dtype != pl.String:
        series = series.cast(pl.String)
    return series.fill_null(MISSING)
