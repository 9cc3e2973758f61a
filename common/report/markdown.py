"""Text in a Markdown page: names from data begin no heading, link, table cell or HTML."""

from __future__ import annotations

import re
from html import escape

from labelveil.common.errors import printable

_MARKS = re.compile(r"[\\`*\[\]#|~$]|(?<![^\W_])_|_(?![^\W_])")
"""What begins or ends something, wherever it stands; an underscore does not within a word."""
_AT_START = re.compile(r"^([-+=](?=[-+=\s]|$)|\d+(?=[.)](?:\s|$)))")


def markdown(text: str) -> str:
    """Text that Markdown shows as it stands, in one line."""
    text = escape(_MARKS.sub(r"\\\g<0>", printable(text)), quote=False)
    return _AT_START.sub(lambda found: _escaped_start(found[0]), text)


def _escaped_start(start: str) -> str:
    return f"\\{start}" if not start.isdigit() else f"{start}\\"
