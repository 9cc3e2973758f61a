"""Children import what their parent imports, whatever lies in the folder they work in."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import labelveil
from labelveil.children import child_command, child_environment

PROGRAM = "import labelveil; print(labelveil.__file__)"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "labelveil.py").write_text("raise SystemExit('not ours')")
    (tmp_path / "shows.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(environment: dict[str, str] | None) -> str:
    done = subprocess.run(child_command("shows"), env=environment, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_child_finds_the_same_packages(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(None) == "not ours"
    assert "No module named shows" in shown(child_environment())
    monkeypatch.setattr("sys.path", [*sys.path, str(hostile)])
    assert shown(child_environment()) == labelveil.__file__


def test_more_variables_are_added() -> None:
    assert child_environment(COLUMNS="100")["COLUMNS"] == "100"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells children of an end")
def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    child = "import signal; print(flush=True); signal.pause()"
    code = (
        "import subprocess, sys; from labelveil.children import end_with_parent\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE,"
        " preexec_fn=end_with_parent)\n"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=child_environment(), stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        ended = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
