"""The parties' processes: their own words on failure, and none left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from labelveil.simulation import processes
from labelveil.simulation.processes import Party, StageFailed, run_party, serving


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A party that does what its first argument says."""
    (tmp_path / "pretend.py").write_text(
        "import sys, signal\n"
        "what = sys.argv[1]\n"
        "from rich.console import Console\n"
        "Console().print('[green]at work[/green]')\n"
        "sys.stdout.flush()\n"
        "if what == 'refuse': sys.exit('error: epsilon=-1 must be > 0')\n"
        "if what == 'crash': raise RuntimeError('lost')\n"
        "if what == 'bytes': sys.stdout.buffer.write(b'caf\\xe9 lost\\n'); sys.exit(2)\n"
        "if what == 'stay': signal.pause()\n"
        "if what == 'deaf':\n"
        "    signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True))\n"
        "    print('deaf', flush=True)\n"
        "    while True: signal.pause()\n"
        "if what == 'serve':\n"
        "    open('.port', 'w').write('12345')\n"
        "    import os; os.rename('.port', 'port')\n"
        "    signal.pause()\n"
        "if what == 'wait': print('told' if sys.stdin.readline() else 'left alone')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "pretend"


def test_a_failure_is_told_in_the_partys_own_words(module: str, tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=r"^pretend refuse: epsilon=-1 must be > 0$"):
        run_party(module, ["refuse"], tmp_path, tmp_path / "logs" / "refuse.log")


def test_a_crash_names_its_last_line_and_the_log(module: str, tmp_path: Path) -> None:
    log = tmp_path / "crash.log"
    with pytest.raises(StageFailed, match="exit code 1: RuntimeError: lost") as caught:
        run_party(module, ["crash"], tmp_path, log)
    assert str(log) in str(caught.value)
    assert "Traceback" in log.read_text()


def test_last_words_of_any_bytes_are_told(module: str, tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="exit code 2: caf\ufffd lost"):
        run_party(module, ["bytes"], tmp_path, tmp_path / "bytes.log")


def test_what_a_party_prints_is_kept_without_colours(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which is the parent's, and not the log's
    run_party(module, ["work"], tmp_path, tmp_path / "work.log")
    assert (tmp_path / "work.log").read_text() == "at work\n"


def test_a_party_is_made_to_end_with_whoever_started_it(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "end_with_parent", (tmp_path / "bound").touch)
    run_party(module, ["work"], tmp_path, tmp_path / "work.log")
    assert (tmp_path / "bound").exists()


def test_leaving_the_block_ends_the_process(module: str, tmp_path: Path) -> None:
    def work() -> None:
        with Party(module, ["stay"], tmp_path, tmp_path / "stay.log") as party:
            assert not party.ended_within(0)
            started.extend({*psutil.Process().children()} - before)
            raise KeyboardInterrupt

    started, before = list[psutil.Process](), {*psutil.Process().children()}
    with pytest.raises(KeyboardInterrupt):
        work()
    assert started
    assert not any(child.is_running() for child in started)


def test_who_does_not_end_is_killed(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_STOP_SECONDS", 0.2)
    log = tmp_path / "deaf.log"
    with Party(module, ["deaf"], tmp_path, log) as party:
        while "deaf" not in log.read_text():
            assert not party.ended_within(0.01)
    assert party.returncode == -signal.SIGKILL
    assert log.read_text().endswith("no\n")


def test_who_waits_goes_on_when_told(module: str, tmp_path: Path) -> None:
    log = tmp_path / "wait.log"
    with Party(module, ["wait"], tmp_path, log, waits=True) as party:
        party.go_on()
        assert party.wait() == 0
    assert log.read_text().splitlines()[-1] == "told"
    with Party(module, ["refuse"], tmp_path, log, waits=True) as party:
        party.wait()
        party.go_on()  # to whom has ended, and it is no failure of ours
    assert "must be > 0" in str(party.failure())


def test_a_server_is_there_once_it_has_said_its_port(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LABEL_PROGRAM", module)
    given = tmp_path, tmp_path / "log", tmp_path / "port"
    with serving(["serve"], *given) as port:
        assert port == 12345
    given[2].unlink()
    with (
        pytest.raises(StageFailed, match="pretend refuse: epsilon=-1 must be > 0"),
        serving(["refuse"], *given),
    ):
        raise AssertionError("nothing serves")
