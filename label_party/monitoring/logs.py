"""Structured logs on standard error: one line an event, fields as key=value or as JSON.

Events carry public facts only: names, row numbers, sizes, durations. Keys, labels, histograms and
secrets are never passed to a logger.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from labelveil.common.errors import printable

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str, form: str) -> None:
    """Send the labels party's log to standard error, as ``[server]`` log_level and log_format say.

    ``auto`` is text on a terminal, and JSON elsewhere.
    """
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was passed as ``extra``."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Time, level, event and fields, for people."""

    def format(self, record: logging.LogRecord) -> str:
        # nothing that a client or a name holds forges a line
        extra = "".join(f" {key}={value!r}" for key, value in fields(record).items())
        line = (
            f"{_time(record)} {record.levelname.lower():7} {printable(record.getMessage())}{extra}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
