"""`audit.html`: what was claimed, what was tried and what was found, for a regulator to read."""

from labelveil.audit.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
