"""Standard streams that are closed, full, gone or not UTF-8, of all three programs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from labelveil.common.config.answers import json_text
from tests.effort import one_in

COMMANDS = {
    "labelveil": "certificates --out made",
    "labelveil.label_party": "budget",
    "labelveil.feature_party": "train -h",
}


def ended(folder: Path, program: str, streams: str, **environment: str) -> tuple[int, str, bytes]:
    """Run a command of a program; return its code, and what "err" and "out" got."""
    command = shlex.join([sys.executable, "-m", program, *COMMANDS[program].split()])
    if program == "labelveil.label_party":
        (folder / "label_party.toml").write_text(
            "[data]\nlabels='l.csv'\n[domain]\nlower=0\nupper=1\n"
            "[privacy]\nepsilon=1\ntotal_epsilon=1\n"
        )
    done = subprocess.run(
        ["sh", "-c", f"{command} {streams}"], cwd=folder, env={**os.environ, **environment},
        check=False, timeout=300,
    )  # fmt: skip
    found = [
        path.read_bytes() if path.exists() else b"" for path in (folder / "err", folder / "out")
    ]
    return done.returncode, found[0].decode(), found[1]


@pytest.mark.parametrize("program", one_in(3, COMMANDS, first=1))
@pytest.mark.parametrize("streams", one_in(3, [">&-", "<&- >&-", "> /dev/full"], first=2))
def test_output_that_cannot_be_written_is_one_line(
    program: str, streams: str, tmp_path: Path
) -> None:
    code, said, _ = ended(tmp_path, program, f"2> err {streams}")
    assert code == 1
    (line,) = said.splitlines()
    assert line.startswith("error: ")


@pytest.mark.parametrize("program", one_in(3, COMMANDS, first=2))
@pytest.mark.parametrize(
    "streams", one_in(3, ["> out <&-", "> out 2>&-", "> out <&- 2>&-"], first=2)
)
def test_a_result_needs_no_other_stream(program: str, streams: str, tmp_path: Path) -> None:
    code, _, out = ended(tmp_path, program, streams)
    assert (code, bool(out)) == (0, True)


@pytest.mark.parametrize("program", one_in(3, COMMANDS))
def test_who_takes_no_more_of_a_result_is_told_nothing(program: str, tmp_path: Path) -> None:
    assert ended(tmp_path, program, "2> err | :")[1] in ("", "error: standard output cannot be"
                                                        " written: its reader has ended; the"
                                                        " answer was not shown\n")  # fmt: skip


@pytest.mark.parametrize("program", one_in(3, COMMANDS))
def test_a_terminal_that_is_not_utf8_shows_every_result(program: str, tmp_path: Path) -> None:
    code, said, out = ended(tmp_path, program, "> out 2> err", PYTHONIOENCODING="ascii")
    assert (code, said) == (0, "")
    assert out.decode("ascii")


def test_json_has_no_number_that_is_not_finite() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    infinite = float("inf")
    document = {
        "a": [1.5, infinite, (float("nan"), {"b": -infinite})],
        "ε": 3,
        "c": None,
        "d": True,
    }
    read = json.loads(json_text(document), parse_constant=refuse)
    assert read == {"a": [1.5, None, [None, {"b": None}]], "ε": 3, "c": None, "d": True}
