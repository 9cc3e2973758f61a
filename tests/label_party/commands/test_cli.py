"""The command line is made of the settings: flags, help, and what is said of a mistake."""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from typer.core import TyperCommand
from typer.main import get_group

from labelveil.common.config.declare import declared
from labelveil.label_party.commands.cli import app
from labelveil.label_party.config.sections import LabelPartyConfig
from tests.label_party.conftest import EVENTS, Party, Result

COMMANDS = get_group(app).commands
SETTINGS = {one.name: one for one in declared(LabelPartyConfig)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does_and_shows_an_example(
    name: str, run_cli: Callable[..., Result]
) -> None:
    shown = run_cli(name, "--help")
    assert shown.code == 0
    assert f"label-party {name}" in " ".join(shown.out.split("Example")[-1].split())


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_no_flag_means_two_things(command: TyperCommand) -> None:
    flags = Counter(flag for one in command.params for flag in (*one.opts, *one.secondary_opts))
    assert flags.most_common(1)[0][1] == 1, flags


def test_a_flag_of_a_setting_names_it_and_its_bounds() -> None:
    shown = {
        (one.name or "").replace("__", "."): getattr(one, "help", "")
        for command in COMMANDS.values()
        for one in command.params
    }
    assert "privacy.epsilon" in shown
    for name, text in shown.items():
        if name in SETTINGS:
            assert f"[{name}" in text
            assert not SETTINGS[name].says_more_than_its_type or SETTINGS[name].bounds in text


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["release", "--epsilon", "0"], ["epsilon=0 must be", "at most 40", "[privacy] epsilon"]),
        (["release", "--lower", "low"], ["lower='low' must be a number, in label units"]),
        (["release", "--set", "privacy.epsilom=1"], ["did you mean privacy.epsilon?"]),
        (["release", "--set", "epsilon=1"], ["did you mean privacy.epsilon or evaluation.epsilon"]),
        (["serve", "--set", "sever.listen=x:1"], ["sever is not", "did you mean server?"]),
        (
            ["watch", "--interval", "0"],
            ['interval=0 must be "auto" or a number above 0, in seconds'],
        ),
        (["plan", "--rows", "0"], ["--rows=0 must be a whole number of at least 1"]),
        (
            ["top-k", "--by", "a", "--categories", "b"],
            ["give --k N, --stable or both; or --adaptive"],
        ),
        (["synthesize", "--column", "a=b", "--delta", "1"], ["--delta=1 must be", "below 1"]),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    party: Party, arguments: list[str], parts: list[str]
) -> None:
    error = party.run(*arguments).error
    for part in parts:
        assert part in error
    assert party.nothing_left()


def test_what_was_planned_bought_and_kept_is_one_json_document_each(party: Party) -> None:
    def told(*arguments: str) -> Any:
        done = party.run(*arguments, "--json")
        assert done.code == 0, done
        return json.loads(done.out)

    planned = told("release", "--dry-run")
    made, again = told("release"), told("release")
    assert planned["left"] == made["left"] == again["left"]
    assert made["guarantee"] == planned["charges"]["labels"]
    assert (made["events"], made["found"]["unlabelled"]) == (EVENTS, EVENTS // 2)
    assert (made["existed"], again["existed"]) == (False, True)
    assert made["digest"] == again["digest"]
    assert told("budget", "raise", "--to", "9", "--reason", "agreed")["total"]["epsilon"] == "9"
    kept = told("backup", "--to", "kept.tar")
    assert (kept["releases"], kept["path"]) == (1, "kept.tar")
    back = party.run("restore", "kept.tar", "--store", "other", "--nothing-since", "--json")
    restored = json.loads(back.out)
    assert restored["releases"] == 1
    assert restored["made_at"]
    assert {"counted", "withdrawn", "damaged"} < restored.keys()


def test_the_package_is_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["label-party", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("labelveil.label_party", run_name="__main__")
    assert ended.value.code in (0, None)
    assert "label-party" in capsys.readouterr().out
