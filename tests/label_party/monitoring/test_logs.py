"""What a person reads on a terminal, and what native code prints."""

from __future__ import annotations

import logging
import os
import re
import sys

import pytest

from labelveil.label_party.monitoring import logs


@pytest.mark.parametrize(
    ("form", "terminal", "is_json"),
    [("auto", False, True), ("auto", True, False), ("text", False, False), ("json", True, True)],
)
def test_lines_are_text_for_people_and_json_elsewhere(
    form: str, terminal: bool, is_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.configure("warning", form)
        (handler,) = root.handlers
        assert isinstance(handler.formatter, logs.JsonLines) == is_json
        assert root.level == logging.WARNING
    finally:
        root.handlers[:], root.level = before, level


def test_a_line_of_text_has_its_fields_and_its_error() -> None:
    try:
        _ = {}["x"]
    except KeyError:
        error = sys.exc_info()
    record = logging.makeLogRecord(
        {"levelname": "ERROR", "msg": "call\n2", "created": 0.0, "rows": 3, "exc_info": error}
    )
    first, *others = logs.TextLines().format(record).splitlines()
    assert first == r"1970-01-01T00:00:00.000+00:00 error   call\n2 rows=3"
    assert others[-1] == "KeyError: 'x'"
    record.exc_info = None
    assert logs.TextLines().format(record) == first


def test_lines_of_native_code_are_logged_taken_or_passed_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logs.__name__)

    def take(line: str) -> bool:
        if line == "bad":
            raise ValueError(line)
        return line == "ours"

    reading, writing = os.pipe()
    passed, original = os.pipe()
    lines = [
        b"ours", b"WARNING: All log messages before absl::InitializeLog() is called", b"bad",
        b"E0102 03:04:05.678901    12 a/b.cc:34] it failed", b"by \xff another library",
    ]  # fmt: skip
    os.write(writing, b"\n".join(lines) + b"\n")
    os.close(writing)
    logs._read(reading, original, take)
    os.close(original)
    with os.fdopen(passed, "rb") as rest:
        assert rest.read() == b"by \xff another library\n"
    lost, told = caplog.records
    assert re.match("a line of native code was lost", lost.getMessage())
    assert (told.getMessage(), told.levelno) == ("grpc", logging.ERROR)
    assert logs.fields(told) == {"source": "a/b.cc", "text": "it failed"}
