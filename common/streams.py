"""The standard streams: all three open, able to write every letter, and failing in one line."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from labelveil.common.errors import LabelveilError, OutputFailed, printable

_READABLE = "labelveil.readable"
_IN_ASCII = {
    **{"ε": "epsilon", "δ": "delta", "ρ": "rho", "σ": "sigma", "τ": "tau", "…": "...", "×": "x"},
    **{"±": "+/-", "≤": "<=", "≥": ">=", "–": "-", "—": "-", "→": "->", "²": "^2", "✓": "ok"},
    "█": "#",
}


def open_streams() -> None:
    """Give every standard stream a place to lead to, and a way to write every letter.

    A file that is opened while one of them is closed would take its place, and the next message
    would be written into it. What is written to a closed standard output fails, so that it can be
    said that nobody saw it.
    """
    codecs.register_error(_READABLE, _readable)
    nowhere = (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    )
    for number, (name, mode, flags) in enumerate(nowhere):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the system gives the lowest number that is free
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    for stream, errors in (
        (sys.stdin, "replace"),
        (sys.stdout, _READABLE),
        (sys.stderr, _READABLE),
    ):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(io.UnsupportedOperation):  # something was read already, by who calls us
                stream.reconfigure(errors=errors)


def _readable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write letters that a terminal lacks by such as it has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    if all(letter in _IN_ASCII for letter in letters):
        return "".join(map(_IN_ASCII.__getitem__, letters)), error.end
    return codecs.backslashreplace_errors(error)


def say(line: str) -> None:
    """Write a line to standard error if that can be: that it cannot may not change what is done."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _lead_nowhere(sys.stderr)


def one_line(error: BaseException) -> str | None:
    """Return what an error says to a user; None if it is ours to mend."""
    if isinstance(error, ModuleNotFoundError):
        from labelveil.common.extras import extra_of, install_command

        extra = extra_of(error.name or "")
        return extra and f"{error.name} is not installed; {install_command(extra)}"
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{reason}; check the path, its rights and the disk's space"
    if isinstance(error, LabelveilError):
        return str(error)
    if type(error).__module__ == "polars.exceptions":  # a table, or the disk below it
        return str(error).partition("\n")[0]
    return None


def flush_output() -> None:
    """Write what standard output still holds; ``OutputFailed`` if that cannot be."""
    with output_errors():
        sys.stdout.flush()


@contextmanager
def output_errors() -> Iterator[None]:
    """Turn failures to write to standard output into one line, after which it leads nowhere."""
    try:
        yield
    except OSError as error:
        _lead_nowhere(sys.stdout)
        reason = "its reader has ended" if error.errno == errno.EPIPE else error.strerror
        raise OutputFailed(
            f"standard output cannot be written: {reason}; the answer was not shown"
        ) from error


def _lead_nowhere(stream: TextIO) -> None:
    """Let a stream that fails take what it still holds: Python tries once more at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
