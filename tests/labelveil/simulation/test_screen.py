"""What is left of an output after its redraws."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from labelveil.simulation.screen import Screen


def _shown(data: bytes, size: int = 1 << 16) -> str:
    out: list[str] = []
    screen = Screen(out.append)
    for at in range(0, len(data), size):
        screen.feed(data[at : at + size])
    screen.close()
    return "".join(out)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"one\ntwo\n", "one\ntwo\n"),
        (b"\x1b[32mgreen\x1b[0m\n", "green\n"),
        (b"10%\r20%\r30%\n", "30%\n"),
        (b"a 1\nb 1\r\x1b[2K\x1b[1A\x1b[2Ka 2\nb 2\n", "a 2\nb 2\n"),
        (b"kept\r\nunfinished", "kept\nunfinished\n"),
        ("ε = 1\n".encode(), "ε = 1\n"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_redrawn_lines_are_replaced(data: bytes, shown: str, size: int) -> None:
    assert _shown(data, size) == shown


def test_old_lines_are_final_and_none_is_lost() -> None:
    lines = "".join(f"line {i}\n" for i in range(500))
    assert _shown(lines.encode(), 7) == lines


def test_a_progress_bar_leaves_its_last_state() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60)
    with Progress(console=console, auto_refresh=False) as bar:
        tasks = [bar.add_task(name, total=50) for name in ("first", "second")]
        for _ in range(50):
            for task in tasks:
                bar.advance(task)
            bar.refresh()
    shown = _shown(out.getvalue().encode(), 11).splitlines()
    assert len(shown) == 2
    assert shown[0].startswith("first")
    assert all("100%" in line for line in shown)
