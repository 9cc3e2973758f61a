"""The report: one self-contained HTML page about a release, the model and its errors."""

from labelveil.feature_party.report.inputs import ReportInputs
from labelveil.feature_party.report.overview import write_labels_overview, write_overview
from labelveil.feature_party.report.page import write_report

__all__ = ["ReportInputs", "write_labels_overview", "write_overview", "write_report"]
