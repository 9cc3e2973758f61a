"""Structured logs on standard error: one line an event, fields as key=value or as JSON.

Events carry public facts only: names, row numbers, sizes, durations. Keys, labels, histograms and
secrets are never passed to a logger.

What native code prints goes the same way. gRPC's core writes its own log to file descriptor 2, past
Python and past the log's format. While :func:`captured` is active, that descriptor is a pipe: lines
of gRPC's log become log events of ours or are given to anyone who understands them, and everything
else passes through unchanged. Nothing else tells of handshakes that fail: gRPC has no hook for its
log in Python.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from labelveil.common.errors import printable
from labelveil.common.files import widen_pipe

_log = logging.getLogger(__name__)

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


# severity, date and time, thread, file:line] message
_LINE = re.compile(r"^([IWEF])\d{4} [\d:. ]+ +\d+ ([\w./-]+):\d+\] (.*)$")
_BEFORE = "WARNING: All log messages before absl::InitializeLog()"
_LEVELS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}


@contextlib.contextmanager
def captured(take: Callable[[str], bool]) -> Iterator[None]:
    """Read what native code prints while the block runs.

    ``take`` is given every line; it returns whether nothing more is to be done with it.
    """
    before = sys.stderr
    before.flush()
    # Never closed: log handlers and the fault handler keep it.
    original = os.dup(2)
    reading, writing = os.pipe()
    # A writer that holds Python's lock must never wait for the thread below: rather lose a line.
    os.set_blocking(writing, False)
    widen_pipe(writing, 1 << 20)
    sys.stderr = os.fdopen(original, "w", buffering=1, errors="backslashreplace", closefd=False)
    faulthandler.enable(file=original)
    os.dup2(writing, 2)
    os.close(writing)
    thread = threading.Thread(
        target=_read, args=(reading, original, take), name="native-log", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        os.dup2(original, 2)  # closes the last writing end, and the reader comes to its end
        thread.join()
        sys.stderr = before


def _read(reading: int, original: int, take: Callable[[str], bool]) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            try:
                _handle(line, original, take)
            except Exception:
                # the thread must go on, or native code finds a full pipe
                _log.exception("a line of native code was lost")


def _handle(line: bytes, original: int, take: Callable[[str], bool]) -> None:
    text = line.decode("utf-8", "backslashreplace").rstrip("\n")
    if take(text) or text.startswith(_BEFORE):
        return
    entry = _LINE.match(text)
    if entry is None:
        os.write(original, line)
        return
    severity, source, message = entry.groups()
    _log.log(_LEVELS[severity], "grpc", extra={"source": source, "text": message})
