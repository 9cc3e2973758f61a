"""Command lines run inside this process, as their entry points do: a new one costs seconds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import pytest

RunCommand = Callable[..., "Result"]


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of an error; fails the test if it is not one line, or no error."""
        assert self.code == 1, self
        assert re.fullmatch(r"error: [^\n]+\n", self.err), self.err
        return self.err


@contextmanager
def same_environment() -> Iterator[None]:
    """Have the environment afterwards as it was before.

    What is the same is not touched: a thread of Polars' asks C's ``getenv`` every few seconds, and
    one that does so while the environment is emptied and filled again takes the process with it.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunCommand:
    """Run an entry point with arguments; its output is captured."""

    def run(main: Callable[[], NoReturn], *arguments: str) -> Result:
        monkeypatch.setattr("sys.argv", ["command", *arguments])
        capfd.readouterr()
        # a program may set what it alone, as a process of its own, would see
        with same_environment(), pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out, err)

    return run
