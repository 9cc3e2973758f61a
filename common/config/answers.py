"""What a command has found: lines for people, or one JSON document for other programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from labelveil.common.config import Section, setting
from labelveil.common.errors import printable
from labelveil.common.streams import output_errors


def json_text(document: Any, **options: Any) -> str:
    """Return a document as JSON, which has no number that is not finite: null stands for it."""
    made = {"indent": 2, "ensure_ascii": False, "allow_nan": False} | options
    return json.dumps(_finite(document), **made)


def print_json(document: Any) -> None:
    """Print a document; ``OutputFailed`` if standard output cannot be written."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    print_line(json_text(document, ensure_ascii=encoding != "utf8", default=str))


def print_line(line: str) -> None:
    """Print a line at once; ``OutputFailed`` if standard output cannot be written."""
    with output_errors():
        print(printable(line, lines=True), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


class Json(Section):
    """How a result is shown; a section of every command that has one."""

    as_json: bool = setting(
        False, "Print the result as JSON, and nothing else on standard output.", flag="--json"
    )

    def answer(self, document: Any, *lines: str) -> None:
        """Print a document, or the lines that say the same."""
        if self.as_json:
            print_json(document)
            return
        for line in lines:
            print_line(line)
