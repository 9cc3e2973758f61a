"""The two commands that a notebook wants, as functions, of files or of a table at hand."""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature, getdoc, signature
from pathlib import Path
from shutil import move, rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_type_hints

import numpy as np
import polars as pl

from labelveil.common.config.declare import Section, declared
from labelveil.common.config.load import checked
from labelveil.common.errors import DataError
from labelveil.common.files import writing
from labelveil.comparison import CompareSettings, Comparison, run_comparison
from labelveil.simulation import Outcome, Settings, run_simulation

if TYPE_CHECKING:
    from labelveil.feature_party.tables import Table

ParamsT = ParamSpec("ParamsT")
SectionT = TypeVar("SectionT")
ResultT = TypeVar("ResultT")

_DIGITS = 2


def write_events(table: Table, path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write a Polars, pandas or Arrow table as Parquet; complete a simulation's settings from it.

    Where they are not set, ``lower`` and ``upper`` are the smallest and the largest label, rounded
    outwards to two digits. ``DataError`` if there is no such label column, or its labels
    have no range; it names a column that cannot be read.
    """
    from labelveil.feature_party.tables import collect_table

    frame = collect_table(table)
    label = settings.get("label")
    labels = list(label) if isinstance(label, list | tuple) else [str(label)]
    frame = _with_numbers(frame, {str(name).rsplit(":", 2)[0] for name in labels})
    with writing(path):
        frame.write_parquet(path)
    complete = {"labels": path, "features": path, **settings}
    for place, label in enumerate(labels):
        if label not in frame.columns:
            if label.count(":") < 2:  # with its bounds, another checks it
                raise DataError(
                    f"label={label!r} must be one of the columns {', '.join(frame.columns)}"
                )
        elif len(labels) > 1:
            lower, upper = _bounds(frame[label])
            labels[place] = f"{label}:{lower!r}:{upper!r}"
        elif "lower" not in settings or "upper" not in settings:
            lower, upper = _bounds(frame[label])
            complete = {"lower": lower, "upper": upper, **complete}
    return {**complete, "label": labels}


def _with_numbers(frame: pl.DataFrame, labels: set[str]) -> pl.DataFrame:
    """The same table, with labels that are categories as the numbers that name these."""
    for name in labels & frame.schema.keys():
        column = frame[name].alias("")
        if column.dtype in (pl.Categorical, pl.Enum):
            numbers = column.cast(pl.String).cast(pl.Float64, strict=False)
            if numbers.null_count() == column.null_count():
                frame = frame.with_columns(numbers.alias(name))
    return frame


def _bounds(labels: pl.Series) -> tuple[float, float]:
    if not (labels.dtype.is_numeric() or labels.dtype == pl.Boolean):
        raise DataError(f"label column {labels.name!r} has type {labels.dtype}; labels are numbers")
    numbers = labels.alias("").drop_nulls().cast(pl.Float64).to_numpy()
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        raise DataError(f"label column {labels.name!r:.60} has no label; give one with labels")
    lower, upper = float(numbers.min()), float(numbers.max())
    if not lower < upper:
        raise DataError(f"all labels are {lower:g}; give lower and upper")
    step = 10.0 ** (math.floor(math.log10(upper - lower)) - _DIGITS + 1)
    return math.floor(lower / step) * step, math.ceil(upper / step) * step


def with_keywords(
    section: Callable[ParamsT, SectionT],
) -> Callable[[Callable[[SectionT], ResultT]], Callable[ParamsT, ResultT]]:
    """Have a function called with a section's settings, each a keyword, and given the section.

    ::

        @with_keywords(Settings)
        def simulate(settings: Settings) -> Outcome: ...

        simulate(epsilon=1, labels="sales.parquet", …)

    Editors and type checkers see the settings with their types; a wrong value is one line.
    """
    model = cast(type[Section], section)
    kinds, parameters = get_type_hints(model), signature(model).parameters.values()
    # the types alone: defaults are the section's
    shown = Signature([each.replace(annotation=kinds[each.name]) for each in parameters])

    def decorate(function: Callable[[SectionT], ResultT]) -> Callable[ParamsT, ResultT]:
        @wraps(function)
        def call(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
            values = shown.bind(*args, **kwargs).arguments
            return function(cast(SectionT, checked(model, values, keywords=True)))

        lines = (f"{option.key}\n    {option.description}" for option in declared(model))
        head = f"{getdoc(function)}\n\nParameters\n----------"
        call.__doc__ = "\n".join([head, *lines])
        call.__dict__["__signature__"] = shown.replace(
            return_annotation=signature(function, eval_str=True).return_annotation
        )
        return call

    return decorate


@with_keywords(Settings)
def _simulate(settings: Settings) -> Outcome:
    """Play both parties on this machine, and score the model.

    ``lv.simulate(table, label="amount", epsilon=1)`` is enough: of a pandas, Polars or Arrow table
    with labels and features it makes both parties' files. Bounds that are not given are then read
    off the labels and rounded outwards, which a simulation alone may do: in earnest they come from
    public knowledge.

    Without ``rounds`` it sends one message, or asks in rounds where that is likely to teach more,
    and says which. Returns metrics, the report's path and the release that was sent, or the sums,
    and shows itself in a notebook; everything else is in ``out``. Of a table without ``out`` the
    report alone is kept, until Python ends: the rest has true labels and keys. A refusal of either
    party is a `LabelveilError` with its own line.
    """
    return run_simulation(settings)


@wraps(_simulate)
def simulate(table: Table | None = None, /, **settings: Any) -> Outcome:
    if table is None:
        return _simulate(**settings)
    with TemporaryDirectory(prefix="labelveil-") as folder:
        path, run = Path(folder) / "events.parquet", Path(folder) / "run"
        outcome = _simulate(**{"out": run, **write_events(table, path, settings)})
        if "out" in settings:
            return outcome
        kept = Path(mkdtemp(prefix="labelveil-report-"))
        atexit.register(rmtree, kept, ignore_errors=True)
        for page in run.glob(f"{outcome.report.stem}*{outcome.report.suffix}"):
            move(page, kept / page.name)
        return replace(outcome, report=kept / outcome.report.name)


_keywords = signature(_simulate)
_table = Parameter("table", Parameter.POSITIONAL_ONLY, default=None)
simulate.__signature__ = _keywords.replace(  # type: ignore[attr-defined]
    parameters=[_table, *_keywords.parameters.values()]
)


@with_keywords(CompareSettings)
def compare(settings: CompareSettings) -> Comparison:
    """Compare ways to randomize labels and to learn from them, by the models they give.

    Returns every run's record and their means; tables and plots are in ``out``. Called again with
    the same ``out`` it takes up where it was.
    """
    return run_comparison(settings)
