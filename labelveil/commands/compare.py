"""`labelveil compare`: randomizers × objectives × ε × runs on one data set."""

from __future__ import annotations

from labelveil.common.config.answers import Json
from labelveil.common.config.options import with_options
from labelveil.common.console import warn
from labelveil.comparison import CompareSettings, run_comparison
from labelveil.comparison.tables import by_label

EXIT_PARTLY = 3
"""Some methods could not be run; the others' results are there."""


@with_options()
def compare(settings: CompareSettings, shown: Json) -> None:
    comparison = run_comparison(settings)
    out = comparison.folder
    lines = (
        ()
        if settings.quiet
        else ((out / "table.md").read_text("utf-8"), f"tables and plots: {out}")
    )
    cells = {
        label: [cell.to_json() for cell in each]
        for label, each in by_label(comparison.cells).items()
    }
    labels = [{"name": label, "cells": each} for label, each in cells.items()]
    figures = {"labels": labels} if settings.several else {"cells": cells.get("", [])}
    failures = comparison.failures
    shown.answer({**figures, "failures": failures, "folder": out}, *lines)
    for failure in failures:
        warn(failure)
    if not comparison.complete:
        raise SystemExit(EXIT_PARTLY)
