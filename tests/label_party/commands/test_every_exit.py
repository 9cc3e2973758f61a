"""Whatever a command that charges ends with, it says whether it charged; and it charges once."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.signals import Stop
from labelveil.label_party.store.ledger import Ledger
from tests.effort import one_in
from tests.label_party.conftest import Party

CHARGED = "charged all the same, for labels of data set 'labels', epoch '1': ε = 1"


def shell(party: Party, command: str, streams: str, **environment: str) -> tuple[int, str]:
    """Run ``label-party`` with redirections of a shell; return its code, and what "err" got."""
    words = shlex.join([sys.executable, "-m", "labelveil.label_party", *shlex.split(command)])
    done = subprocess.run(
        ["sh", "-c", f"{words} {streams}"],
        cwd=party.folder,
        env={**os.environ, **environment},
        check=False,
        timeout=300,
    )
    said = party.folder / "err"
    return done.returncode, said.read_text("utf-8") if said.exists() else ""


def charges(party: Party) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(party.run("budget", "--json").out)[0]["charges"]
    assert all(charge["state"] == "committed" for charge in found)
    return found


@pytest.mark.parametrize("streams", one_in(3, [">&-", "> /dev/full", "| :"]))
def test_output_that_nobody_gets_says_what_was_charged(party: Party, streams: str) -> None:
    code, said = shell(party, "release", f"2> err {streams}")
    assert code == (0 if streams == "| :" else 1)  # of a pipe the shell tells the last one's
    assert any(line.startswith(CHARGED) for line in said.splitlines())
    assert "error: standard output cannot be written" in said
    assert "Traceback" not in said
    assert len(charges(party)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "streams",
    one_in(4, ["<&- > out", "2>&- > out", "<&- 2>&- > out", "> out 2> /dev/full"], first=2),
)
def test_without_its_other_streams_a_release_is_as_ever(party: Party, streams: str) -> None:
    assert shell(party, "release", streams)[0] == 0
    assert "budget left" in (party.folder / "out").read_text("utf-8")
    assert len(charges(party)) == 1
    with Ledger(party.store / "ledger.sqlite") as ledger:  # nothing was written in its place
        assert len(ledger.charges("labels")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("streams", one_in(2, ["<&- >&- 2>&-", "> /dev/full 2>&1"]))
def test_where_nothing_can_be_said_the_code_says_that_nothing_was_shown(
    party: Party, streams: str
) -> None:
    assert shell(party, "release", streams)[0] == 1
    assert len(charges(party)) == 1


@pytest.mark.parametrize(
    "environment",
    one_in(
        3,
        [
            {"PYTHONIOENCODING": "ascii"},
            {"PYTHONIOENCODING": "latin-1"},
            {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        ],
    ),
)
def test_a_terminal_without_greek_letters_shows_what_was_charged(
    party: Party, environment: dict[str, str]
) -> None:
    assert shell(party, "release", "> out 2> err", **environment) == (0, "")
    assert "epsilon = 1" in (party.folder / "out").read_text("ascii")
    assert len(charges(party)) == 1
    assert shell(party, "budget --json", "> out", **environment)[0] == 0
    assert json.loads((party.folder / "out").read_text("ascii"))[0]["account"] == "labels"


def stop_after_commit(monkeypatch: pytest.MonkeyPatch, stop: Callable[[], object]) -> None:
    """Have something happen right after a charge counts."""
    commit = Ledger.commit

    def stopped(self: Ledger, *arguments: Any) -> None:
        commit(self, *arguments)
        stop()

    monkeypatch.setattr(Ledger, "commit", stopped)


def fail() -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGTERM), 143),
        (lambda: os.kill(os.getpid(), signal.SIGINT), 130),
        (fail, 1),
    ],
)
@pytest.mark.parametrize("command", ["release", "top-k", "synthesize"])
def test_who_is_stopped_right_after_a_charge_says_so(
    party: Party,
    command: str,
    stop: Callable[[], object],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [f"event-{i}" for i in range(40)]
    party.write_labels({"key": keys, "label": [1.0] * 40, "kind": ["a", "b"] * 20})
    (party.folder / "kinds").write_text("a\nb\n")
    more = {
        "release": [],
        "top-k": ["--by", "kind", "--categories", "kinds", "--k", "1"],
        "synthesize": ["--column", "kind=kinds", "--bins", "2"],
    }[command]
    with monkeypatch.context() as patched:
        stop_after_commit(patched, stop)
        done = party.run(command, *more)
    assert done.code == code
    told, last = [line for line in done.err.splitlines() if not line.startswith("warning: ")]
    assert told.startswith("charged all the same, for ")
    assert "data set 'labels', epoch '1'" in told
    assert last.startswith(("interrupted; label-party budget shows", "error: Input/output error"))
    assert party.run(command, *more).code == 0
    assert len(charges(party)) == 1


def test_who_is_stopped_before_a_charge_says_nothing_of_one(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", lambda *given: os.kill(os.getpid(), signal.SIGTERM))
        done = party.run("release")
    assert (done.code, len(done.err.splitlines())) == (143, 1)
    assert party.nothing_left()


@pytest.mark.slow
def test_a_watch_whose_output_ends_says_what_was_charged_and_not_shown(party: Party) -> None:
    (party.folder / "days").mkdir()
    for day in ("d1", "d2", "d3"):
        rows = "".join(f"{day}-{i},{i % 10}\n" for i in range(100))
        (party.folder / "days" / f"{day}.csv").write_text(f"key,label\n{rows}")
    text = (party.folder / "label_party.toml").read_text()
    alone = text.replace('population = "population.csv"', "")
    (party.folder / "label_party.toml").write_text(alone)
    command = "watch --once --set data.labels=days/{epoch}.csv --set privacy.epochs=disjoint"
    code, said = shell(party, command, "2> err > /dev/full")
    assert code == 1
    (told,) = (line for line in said.splitlines() if line.startswith("charged"))
    assert "epoch 'd1'" in told
    assert [charge["epoch"] for charge in charges(party)] == ["d1"]


def test_a_watch_looks_until_it_is_asked_to_end(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    def wait(stop: Stop, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            stop.set()

    monkeypatch.setattr(Stop, "wait", wait)
    epochs = {"data__labels": "labels-{epoch}.csv", "privacy__epochs": "disjoint"}
    epochs["data__population"] = "population-{epoch}.csv"
    for name in ("labels", "population"):
        (party.folder / f"{name}.csv").rename(party.folder / f"{name}-d1.csv")
    done = party.run("watch", "--interval=7", *party.arguments(**epochs))
    assert (done.code, waits) == (0, [7.0, 7.0])
    assert "looking for new epochs every 7 s" in done.err
    assert done.out.count("d1: 200 events") == 1


def test_labels_that_add_up_to_infinity_are_no_reason_to_end_after_a_charge(party: Party) -> None:
    keys = [f"event-{i}" for i in range(40)]
    party.write_labels({"key": [*keys, *keys], "label": [1e308] * 80})
    done = party.run("release", "--json", *party.arguments(data__duplicates="sum"))
    assert done.code == 0, done

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert json.loads(done.out, parse_constant=refuse)["found"]["largest"] is None
    days = Path(party.folder / "days")
    days.mkdir()
    (party.folder / "labels.csv").rename(days / "2.csv")
    asked = {"data__duplicates": "sum", "data__labels": "days/{epoch}.csv"}
    asked |= {"data__population": "population-{epoch}.csv", "privacy__epochs": "disjoint"}
    (party.folder / "population-2.csv").write_text("key\n" + "\n".join(keys))
    asked |= {"privacy__account": "another", "privacy__separate": "true"}
    asked |= {"privacy__separate_reason": "a test"}
    done = party.run("watch", "--once", "--json", *party.arguments(**asked))
    assert done.code == 0, done
    assert json.loads(done.out, parse_constant=refuse)["found"]["largest"] is None
