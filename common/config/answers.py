"""What a command has found: lines for people, or one JSON document for other programs."""

from __future__ import annotations

import json
from typing import Any

from common.config import Section, setting
from common.errors import printable


def print_json(document: Any) -> None:
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    print(printable(text, lines=True), flush=True)  # an escape of JSON's, and so the same document


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
            print(printable(line, lines=True), flush=True)
