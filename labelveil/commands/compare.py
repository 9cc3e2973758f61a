"""`labelveil compare`: randomizers × objectives × ε × runs on one data set."""

from __future__ import annotations

from common.config.answers import Json
from common.config.options import with_options
from labelveil.comparison import CompareSettings, run_comparison
from labelveil.comparison.tables import by_label


@with_options()
def compare(settings: CompareSettings, shown: Json) -> None:
    """Compare ways to randomize labels and to learn from them, by the models they give."""
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
    shown.answer({**figures, "folder": out}, *lines)
