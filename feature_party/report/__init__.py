"""The report: one self-contained HTML page about a release, the model and its errors.

What draws pages is imported with the first of them: who trains alone need not wait for matplotlib.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelveil.feature_party.evaluation.scores import Scores
from labelveil.feature_party.report.inputs import ReportInputs

__all__ = [
    "ReportInputs",
    "prepare_report",
    "write_labels_overview",
    "write_overview",
    "write_report",
]


def prepare_report() -> None:
    """Import what draws pages, for who has to wait before there is one to draw."""
    importlib.import_module("labelveil.feature_party.report.page")


def write_report(path: Path, inputs: ReportInputs) -> None:
    """As :func:`labelveil.feature_party.report.page.write_report`."""
    from labelveil.feature_party.report import page

    page.write_report(path, inputs)


def write_overview(path: Path, scores: Scores, pages: Mapping[str, Path]) -> None:
    """As :func:`labelveil.feature_party.report.overview.write_overview`."""
    from labelveil.feature_party.report import overview

    overview.write_overview(path, scores, pages)


def write_labels_overview(
    path: Path, by_label: Mapping[str, Scores], pages: Mapping[str, Path]
) -> None:
    """As :func:`labelveil.feature_party.report.overview.write_labels_overview`."""
    from labelveil.feature_party.report import overview

    overview.write_labels_overview(path, by_label, pages)
