"""How every audit is announced, shown and kept: its cost, verdicts, and the files of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from common.command_line import fail
from common.config import setting
from common.config.answers import Json, print_json
from common.console import progress, stderr, stdout
from common.outputs import check_folder
from labelveil.audit.verdict import Audit, Check, Verdict


class VerdictOptions(Json):
    """Where an audit's verdicts go."""

    out: Path = setting(Path("audit"), "Folder for audit.json and audit.html.")
    quiet: bool = setting(False, "No progress, nothing on the terminal.", flag="--quiet")


_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.NOT_CHECKABLE: "yellow"}
_LAST_IS_NEAREST = (Verdict.PASS, Verdict.NOT_CHECKABLE, Verdict.FAIL)
"""The order on a terminal, where the last lines are those that are read."""


def announce(what: str, shown: VerdictOptions) -> None:
    """Say what an audit will cost, before it begins; refuse a folder that takes no verdicts."""
    check_folder("--out", shown.out)
    if not shown.quiet:
        stderr.print(f"cost: {what}", highlight=False, soft_wrap=True)


@contextmanager
def checks_bar(what: str, steps: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar over named checks; yields the function to call with each name."""
    with progress(quiet=quiet) as bar:
        task = bar.add_task(what, total=steps, note="")
        begun = 0

        def advance(name: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, note=name)
            begun += 1

        yield advance
        bar.update(task, completed=steps, total=steps, note="")


def finish(found: Audit, shown: VerdictOptions) -> None:
    """Write both files, show the verdicts, and leave with exit code 1 if a check failed."""
    out = shown.out
    found.write_json(out / "audit.json")
    page: Path | None = out / "audit.html"
    try:
        from labelveil.audit.report import write_report

        write_report(out / "audit.html", found)
    except ModuleNotFoundError as error:
        page = None
        stderr.print(
            f"[yellow]warning:[/] no audit.html: {error.name} is not installed; install"
            " labelveil\\[report]"
        )
    if shown.as_json:
        print_json(found.to_json())
    elif not shown.quiet:
        show(found)
        # a path may be longer than the terminal is wide, and must stay one line to be opened
        stdout.print(f"report: {page or out / 'audit.json'}", soft_wrap=True, highlight=False)
    if not found.passed:
        names = ", ".join(check.name for check in found.checks if check.verdict is Verdict.FAIL)
        fail(f"{found.count(Verdict.FAIL)} of {len(found.checks)} checks failed: {names}")


def show(found: Audit) -> None:
    """Print every verdict with its question and its power, the failures last."""
    stdout.print(f"[bold]Audit of {escape(found.subject)}[/]", highlight=False)
    for verdict in _LAST_IS_NEAREST:
        for check in found.checks:
            if check.verdict is verdict:
                _show_check(check)
    counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in Verdict)
    stdout.print(f"\n{counts}; {found.seconds:.1f} s", highlight=False)


def _show_check(check: Check) -> None:
    head = Text.assemble((f"{check.verdict}", _COLOURS[check.verdict]), "  ", (check.name, "bold"))
    if check.bound is not None and check.claimed is not None:
        head.append(f"  ε ≥ {_number(check.bound)}, claimed {_number(check.claimed)}")
    stdout.print(Padding(head, (1, 0, 0, 0), expand=False), highlight=False)
    lines = [
        (check.question, ""),
        (check.found, ""),
        (check.power_sentence, "dim"),
        (f"Not looked at: {check.not_looked_at}" if check.not_looked_at else "", "dim"),
    ]
    for text, style in lines:
        if text:
            stdout.print(Padding(Text(text, style), (0, 0, 0, 2), expand=False), highlight=False)


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.4g}"
