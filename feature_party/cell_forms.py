"""How numbers and dates are written in text, and what they are then.

Each way has an example for its name, or the letters of strftime, as a configuration says it.
"""

from __future__ import annotations

import polars as pl

from labelveil.common.table_cells import BOOLEANS, stripped

DATES = {
    "%Y-%m-%d": r"\d{4}-\d{1,2}-\d{1,2}",
    "%Y/%m/%d": r"\d{4}/\d{1,2}/\d{1,2}",
    "%d.%m.%Y": r"\d{1,2}\.\d{1,2}\.\d{4}",
    "%d.%m.%y": r"\d{1,2}\.\d{1,2}\.\d{2}",
    "%d/%m/%Y": r"\d{1,2}/\d{1,2}/\d{4}",
    "%m/%d/%Y": r"\d{1,2}/\d{1,2}/\d{4}",
    "%d/%m/%y": r"\d{1,2}/\d{1,2}/\d{2}",
    "%m/%d/%y": r"\d{1,2}/\d{1,2}/\d{2}",
    "%d-%m-%Y": r"\d{1,2}-\d{1,2}-\d{4}",
    "%m-%d-%Y": r"\d{1,2}-\d{1,2}-\d{4}",
    "%d %b %Y": r"\d{1,2} \p{L}{3} \d{4}",
    "%b %d, %Y": r"\p{L}{3} \d{1,2}, \d{4}",
}
"""How dates are written, and what they look like then."""
CLOCK = r"[ T](\d{1,2}):(\d{2})(?::(\d{2}))?"
WITH_CLOCK = " %H:%M"
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9].*$"
"""Moments as programs write them."""
ISO = "%Y-%m-%d"
_SPACES, _QUOTES = " \u00a0\u202f", "'’"
POINT, COMMA = "1,234.5", "1.234,5"
PLAIN = "1234.5"
GROUPED = {POINT: (",", r"\."), COMMA: (r"\.", ","), "1 234.5": (f"[{_SPACES}]", r"\.")} | {
    "1 234,5": (f"[{_SPACES}]", ","),
    "1'234.5": (f"[{_QUOTES}]", r"\."),
}
"""How numbers are written that are not plain: what separates thousands, and decimals."""
NUMBERS = {PLAIN: r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"} | {
    form: rf"^[+-]?(?:[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|\d+)(?:{decimal}\d*)?$"
    for form, (thousands, decimal) in GROUPED.items()
}
SOMEHOW = {
    "numbers": "|".join(NUMBERS.values()),
    "dates": f"^(?:{'|'.join(DATES.values())})(?:{CLOCK}.*)?$",
}
"""What numbers and dates look like, however they are written."""
FLAGS = [*BOOLEANS.values()]


def as_programs_write(cells: pl.Series, moments: bool) -> tuple[pl.Series, pl.Series]:
    """(n,) texts without space around them, and their numbers, or their moments: null where one is
    none as programs write it, or is infinite.

    Texts without space, as most are, are not copied.
    """
    values = moments_of(cells) if moments else cells.cast(pl.Float64, strict=False)
    if values.null_count() > cells.null_count():
        cells = stripped(cells)
        values = moments_of(cells) if moments else cells.cast(pl.Float64, strict=False)
    return cells, values if moments else values.set(~values.is_finite(), None)


def moments_of(cells: pl.Series) -> pl.Series:
    """Moments as programs write them, with a point or a zone behind them or without; null of other
    texts."""
    exact = cells.set(~cells.str.contains(_MOMENT), None)
    if exact.null_count() == exact.len():
        return exact.cast(pl.Datetime("us"))
    form = f"%Y-%m-%d{exact.drop_nulls()[0][10]}%H:%M:%S"
    text = exact.str.slice(0, 19)
    return text.str.to_datetime(form, time_unit="us", strict=False, cache=False)


def dates_of(cells: pl.Series, form: str) -> pl.Series:
    """Dates, or moments if the form has a clock; null where a text is neither."""
    date = form.removesuffix(WITH_CLOCK)
    known = pl.repeat(None, cells.len(), dtype=pl.Datetime("us"), eager=True)
    if form == ISO + WITH_CLOCK:
        known = moments_of(cells)
        if known.null_count() == cells.null_count():
            return known  # in a tenth of the time
    days = cells.str.extract(rf"^({DATES[date]})(?:{CLOCK}.*)?$").str.to_date(date, strict=False)
    if date == form:
        return days
    parts = (cells.str.extract(CLOCK, part).cast(pl.Int64).fill_null(0) for part in (1, 2, 3))
    hours, minutes, seconds = parts
    clock = (3600 * hours + 60 * minutes + seconds) * 1_000_000
    moments = days.cast(pl.Datetime("us")) + clock.cast(pl.Duration("us"))
    return known.zip_with(known.is_not_null(), moments)


def nameless(column: pl.Series) -> pl.Series:
    """A Series' methods take a name ^…$ for a pattern of columns."""
    return column.alias("")
