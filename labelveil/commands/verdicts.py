"""How every audit is announced, shown and kept: its cost, verdicts, and the files of a report."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from rich.padding import Padding
from rich.text import Text

from labelveil.audit.verdict import UNSEEN, Audit, Verdict, number
from labelveil.common.command_line import fail
from labelveil.common.config import setting
from labelveil.common.config.answers import Json, json_text, print_json
from labelveil.common.console import progress, stderr, stdout
from labelveil.common.extras import install_command
from labelveil.common.files import write_text
from labelveil.common.outputs import check_folder


class VerdictOptions(Json):
    """Where an audit's verdicts go."""

    out: Path = setting(Path("audit"), "Folder for audit.json and audit.html.")
    quiet: bool = setting(False, "No progress, nothing on the terminal.", flag="--quiet")


_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.NOT_CHECKABLE: "yellow"}
_LAST_IS_NEAREST = (Verdict.PASS, Verdict.NOT_CHECKABLE, Verdict.FAIL)
"""The order on a terminal, where the last lines are those that are read."""


def announce(cost: str, shown: VerdictOptions) -> None:
    """Say what an audit will cost, before it begins; refuse a folder that takes no verdicts."""
    check_folder("--out", shown.out)
    if not shown.quiet:
        stderr.print(f"cost: {cost}", highlight=False, soft_wrap=True)


def conduct(
    name: str, steps: int, shown: VerdictOptions, audit: Callable[[Callable[[str], None]], Audit]
) -> None:
    """Run an audit under a progress bar; show its verdicts, and exit with 1 if a check failed.

    ``audit`` takes the function to call with the name of each of its ``steps``.
    """
    with progress(quiet=shown.quiet) as bar:
        task = bar.add_task(name, total=steps, note="")
        begun = itertools.count()
        audited = audit(lambda step: bar.update(task, completed=next(begun), note=step))
        bar.update(task, completed=steps, total=steps, note="")
    out = shown.out
    write_text(out / "audit.json", json_text(audited.to_json()) + "\n")
    page = out / "audit.html"
    try:
        from labelveil.audit.report import write_report

        write_report(page, audited)
    except ModuleNotFoundError as error:
        page = out / "audit.json"
        stderr.print(
            f"warning: no audit.html: {error.name} is not installed; {install_command('report')}"
        )
    if shown.as_json:
        print_json(audited.to_json())
    elif not shown.quiet:
        show(audited)
        # a path may be longer than the terminal is wide, and must stay one line to be opened
        stdout.print(f"report: {page}", soft_wrap=True, highlight=False)
    if not audited.passed:
        names = ", ".join(check.name for check in audited.checks if check.verdict is Verdict.FAIL)
        fail(f"{audited.count(Verdict.FAIL)} of {len(audited.checks)} checks failed: {names}")


def show(audit: Audit) -> None:
    """Print every verdict with its question and its power, the failures last."""
    stdout.print(Text(f"Audit of {audit.subject}", "bold"), highlight=False)
    for check in sorted(audit.checks, key=lambda check: _LAST_IS_NEAREST.index(check.verdict)):
        head = Text.assemble(
            (f"{check.verdict}", _COLOURS[check.verdict]), "  ", (check.name, "bold")
        )
        if check.bound is not None and check.claimed is not None:
            head.append(f"  ε ≥ {number(check.bound)}, claimed {number(check.claimed)}")
        stdout.print(Padding(head, (1, 0, 0, 0), expand=False), highlight=False)
        for text, style in (
            (check.question, ""),
            (check.found, ""),
            (check.power_sentence, "dim"),
            (f"Not looked at: {check.not_looked_at}" if check.not_looked_at else "", "dim"),
        ):
            if text:
                line = Padding(Text(text, style), (0, 0, 0, 2), expand=False)
                stdout.print(line, highlight=False)
    stdout.print(Text("\nNobody sees from outside", "bold"), highlight=False)
    for what in UNSEEN:
        stdout.print(Padding(Text(what, "dim"), (0, 0, 0, 2), expand=False), highlight=False)
    counts = ", ".join(f"{audit.count(verdict)} {verdict}" for verdict in Verdict)
    stdout.print(f"\n{counts}; {audit.seconds:.1f} s", highlight=False)
