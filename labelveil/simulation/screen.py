"""What a process's output looks like once its progress bars have stopped moving.

A progress bar redraws itself by moving the cursor up and erasing lines, many times a second. A log
of every redraw would be megabytes of the same line; this keeps what a terminal would show.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r\n|\n|\r|\x1b\[?[0-9;?]*$|[^\x1b\r\n]+|\x1b")
_KEPT = 64
"""Lines that may still be redrawn; older ones are final."""


class Screen:
    """The last lines of an output, with redrawn lines replaced.

    Parameters
    ----------
    write
        Called with each line that can no longer change, with its line break.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._lines: list[str] = [""]
        self._row = 0
        self._fresh = False
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the output; they may end within a character or a command."""
        text = self._rest + self._decode(data)
        self._rest = ""
        for token in _TOKEN.finditer(text):
            if token[0].startswith("\x1b"):
                if token[2] is None and token.end() == len(text):
                    self._rest = token[0]
                elif token[2]:
                    self._command(token[1], token[2])
            elif token[0] == "\r":
                self._fresh = True
            elif "\n" in token[0]:
                self._down()
            else:
                self._put(token[0])

    def close(self) -> None:
        """Give out all lines that are left."""
        for line in self._lines:
            if line:
                self._write(line + "\n")
        self._lines, self._row = [""], 0

    @property
    def lines(self) -> list[str]:
        """Lines not yet final that hold anything but spaces, without surrounding spaces."""
        return [line.strip() for line in list(self._lines) if line.strip()]

    def _put(self, text: str) -> None:
        self._lines[self._row] = text if self._fresh else self._lines[self._row] + text
        self._fresh = False

    def _down(self) -> None:
        self._row += 1
        self._fresh = self._row < len(self._lines)
        if self._row == len(self._lines):
            self._lines.append("")
        while len(self._lines) > _KEPT and self._row > 0:
            self._write(self._lines.pop(0) + "\n")
            self._row -= 1

    def _command(self, arguments: str, name: str) -> None:
        if name == "A":
            self._row = max(self._row - int(arguments or 1), 0)
            self._fresh = True
        elif name == "K":
            self._lines[self._row] = ""
