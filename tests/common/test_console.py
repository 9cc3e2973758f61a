"""Progress bars in a terminal of 80 columns."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from common import console


@pytest.mark.parametrize("note", ["rows, 1,234/s", "behind the mixture on a part of the rows"])
def test_a_bar_ends_with_its_count_and_time_however_narrow(
    note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "stderr", Console(stderr=True, width=80, force_terminal=True))
    with console.progress() as bar:
        task = bar.add_task("tried-prior-tilt", total=None, note="")
        bar.update(task, completed=16_000, total=16_000, note=note)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    line = [each for each in re.split(r"[\r\n]+", shown) if each.strip()][-1]
    assert "16000/16000 00:00 " in line
    assert len(line) <= 80
    assert note[:20] in line


def test_a_pipe_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress() as bar:
        bar.add_task("fetch", total=None, note="")
    assert capsys.readouterr().err == ""
