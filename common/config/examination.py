"""Checks of a party's setup: each a function that returns a line, or raises why it fails.

They change nothing, spend nothing, and show no label.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from labelveil.common.command_line import TRACEBACK
from labelveil.common.config.answers import Json
from labelveil.common.errors import ConfigError, LabelveilError
from labelveil.common.streams import one_line


class NotYetThere(LabelveilError):
    """What would be checked does not exist yet, so that nobody can say whether it is right."""


@dataclass(frozen=True)
class Finding:
    """What one check has found."""

    check: str
    state: Literal["ok", "open", "failed"]
    line: str


def examine(checks: Mapping[str, Callable[[], str]]) -> Iterator[Finding]:
    """Make checks, by name, one after another, whatever became of those before."""
    for name, check in checks.items():
        try:
            yield Finding(name, "ok", check())
        except NotYetThere as error:
            yield Finding(name, "open", str(error))
        except Exception as error:
            line = one_line(error)
            if line is None and os.environ.get(TRACEBACK):
                raise
            # what another library says may show a row
            yield Finding(
                name, "failed", line or f"{type(error).__name__}; -v shows where it arose"
            )


def answer(findings: Iterable[Finding], shown: Json) -> None:
    """Print what was found, each in a line, as it comes.

    ``ConfigError`` if a check has failed.
    """
    done = []
    for finding in findings:
        done.append(finding)
        if not shown.as_json:
            shown.answer(None, f"{finding.state:<6}  {finding.check:<14}{finding.line}")
    shown.answer([vars(finding) for finding in done])
    if failed := [finding.check for finding in done if finding.state == "failed"]:
        raise ConfigError(f"{len(failed)} of {len(done)} checks failed: {', '.join(failed)}")


@contextmanager
def verified(unverified: bool, open_questions: list[str]) -> Iterator[None]:
    """Before a file is written: let it not be where a check fails, or note why with --unverified.

    What does not exist yet is noted in any case.
    """
    try:
        yield
    except NotYetThere as error:
        open_questions.append(str(error))
    except LabelveilError as error:
        if not unverified:
            remedy = "nothing was written; with --unverified it is written all the same"
            raise type(error)(f"{error}; {remedy}") from None
        open_questions.append(str(error))
