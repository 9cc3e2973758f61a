"""Progress bars in a terminal of 80 columns."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from labelveil.common import console
from labelveil.common.command_line import fail
from labelveil.common.config.answers import print_json
from labelveil.common.errors import listed, not_none, printable
from tests.hostile import names


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


def test_names_are_listed_so_far_and_no_further() -> None:
    assert listed(["a" * 80, "b" * 81]) == f"{'a' * 80}, {'b' * 79}…"
    assert listed(["a"] * 12) == ", ".join("a" * 12)
    assert listed(["a"] * 13) == f"{', '.join('a' * 12)}, … (13 in all)"
    assert not_none(0) == 0
    with pytest.raises(RuntimeError, match="a mistake of this program"):
        not_none(None)


NAMES = names(Path("canary"))


def test_names_neither_style_nor_command_a_terminal() -> None:
    """All that leaves but our own styles is text, and a name's text is all there."""
    written = StringIO()
    terminal = console.Terminal(file=written, width=400, force_terminal=True, color_system=None)
    for name in NAMES[:-1]:
        terminal.print(name)
        terminal.print(f"[bold]{name}", soft_wrap=True)
        table = Table(name)
        table.add_row(name)
        terminal.print(table)
    text = written.getvalue()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)
    assert "\\u001b[31mred" in text
    for name in ("[red]red[/red]", ":bomb:", "[bold][/]"):
        assert name in text


def test_a_name_forges_no_line_of_an_error_or_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "stderr", console.Terminal(stderr=True, width=20))
    for name in NAMES:
        with pytest.raises(SystemExit):
            fail(f"no column {name}, nor any other")
        console.warn(f"no column {name}")
        shown = capsys.readouterr().err
        first, second, rest = shown.split("\n")
        assert rest == ""
        assert first.startswith("error: no column ")
        assert second == f"warning: no column {printable(name)}"
        assert printable(shown, lines=True) == shown


def test_json_for_programs_says_the_same_and_commands_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({name: name for name in NAMES})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {name: name for name in NAMES}
    assert printable(shown, lines=True) == shown


def test_what_languages_are_written_with_is_printable() -> None:
    for text in ("Größe L", "ε ≤ 1", "می\u200cخواهم", "👩\u200d🔬", "עברית", "数"):
        assert printable(text) == text
