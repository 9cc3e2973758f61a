"""What programs say of their commands without importing them, and what commands import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

import labelveil.commands.cli
import labelveil.feature_party.commands.cli
import labelveil.label_party.commands.cli
from labelveil.common.command_line import Command, program, run
from labelveil.common.errors import ConfigError, LabelveilError
from labelveil.common.extras import need
from labelveil.programs import feature_party as feature_party_program
from tests.commands import RunCommand

APPS = {
    "labelveil": labelveil.commands.cli.app,
    "label-party": labelveil.label_party.commands.cli.app,
    "feature-party": labelveil.feature_party.commands.cli.app,
}

HEAVY = {
    "cryptography", "grpc", "jinja2", "matplotlib", "numpy", "onnx", "pandas", "polars", "pyarrow",
    "pydantic", "rich", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats", "torch",
}  # fmt: skip
"""Libraries that take long to import."""

CONFIGURED = {"cryptography", "numpy", "pydantic"}

MAY_IMPORT = {
    "labelveil.commands.cli": set(),
    "labelveil.label_party.commands.cli, labelveil.feature_party.commands.cli": set(),
    "labelveil.feature_party.commands.fetch, labelveil.feature_party.commands.train": CONFIGURED,
    "labelveil.feature_party.commands.fetch, labelveil.feature_party.pipeline.transfer": {
        *CONFIGURED,
        "grpc",
        "polars",
        "pyarrow",
        "rich",
    },
    "labelveil.feature_party.commands.predict, labelveil.feature_party.pipeline.predicting": {
        *CONFIGURED,
        "polars",
        "pyarrow",
        "rich",
        "torch",
    },
    "labelveil.feature_party.commands.run, labelveil.feature_party.pipeline.rounds,"
    " labelveil.feature_party.pipeline.stages, labelveil.feature_party.pipeline.sums": {
        *CONFIGURED,
        "grpc",
        "polars",
        "pyarrow",
        "rich",
        "scipy.linalg",
        "scipy.special",
        "torch",
    },
    "labelveil.commands.audit, labelveil.audit.certificate.epochs": {*CONFIGURED, "polars", "rich"},
    "labelveil.commands.audit, labelveil.audit.report": {"jinja2", "numpy", "pydantic", "rich"},
    "labelveil.label_party.commands.release, labelveil.label_party.commands.serve": CONFIGURED,
    "labelveil.label_party.commands.plan, labelveil.label_party.release.plan": {
        *CONFIGURED,
        "polars",
        "rich",
    },
    "labelveil.label_party.commands.budget, labelveil.label_party.store.account": {
        *CONFIGURED,
        "rich",
    },
    "labelveil.label_party.commands.plan, labelveil.label_party.commands.top_k": {
        *CONFIGURED,
        "rich",
    },
    "labelveil.commands.audit": {"numpy", "pydantic", "rich"},
}
"""By modules of commands: the libraries of these that they may bring before they do anything."""

IMPORTING = """
import json, os, sys
asked, heavy = json.loads(sys.argv[1]), set(sys.argv[2:])
for number, (modules, allowed) in enumerate(asked):
    for library in set.intersection(*(set(others) for _, others in asked[number:])):
        __import__(library)
    sys.stdout.flush()
    if not os.fork():
        for module in modules.split(", "):
            __import__(module)
        print(json.dumps([modules, sorted(heavy & set(sys.modules))]), flush=True)
        os._exit(0)
    os.wait()
"""
"""A process for each, forked once all that it and those after it may bring are imported."""


@pytest.mark.parametrize("name", APPS)
def test_the_list_of_commands_says_what_they_say_themselves(name: str) -> None:
    group = get_command(APPS[name])
    assert isinstance(group, TyperGroup)
    lines = group.get_help(group.make_context(name, [], resilient_parsing=True))
    shown = " ".join(lines.partition("Commands:")[2].partition("Exit codes:")[0].split())
    said = [
        f"{command} {' '.join((found.help or '').split(chr(10) * 2)[0].split())}"
        for command, found in group.commands.items()
    ]
    assert shown == " ".join(said)


WITHOUT_RESULT = {
    "label-party init": "writes files, and says what to do with them",
    "feature-party init": "writes a file, and says what to do with it",
    "label-party serve": "runs until it is stopped; its log is JSON by [server] log_format",
}
"""Commands without ``--json``, and why."""


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by what is typed for it."""
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield path, command
    for name, inner in below.items():
        yield from leaves(inner, f"{path} {name}")


COMMANDS = {
    path: command for name, app in APPS.items() for path, command in leaves(get_command(app), name)
}


def test_every_command_with_a_result_prints_it_as_json() -> None:
    without = {
        path
        for path, command in COMMANDS.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == set(WITHOUT_RESULT)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_is_quiet_and_verbose_in_the_same_way(path: str) -> None:
    command = COMMANDS[path]
    names = [option for parameter in command.params for option in parameter.opts]
    assert {"-v", "--verbose"} <= set(names)
    assert ("--quiet" in names) == ("-q" in names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["accounting", "compose", "--epsilon", "0.1", "--times", "4"], {"releases": [1, 2, 3, 4]}),
        (["accounting", "split", "--epsilon", "1", "--stage", "a"], [{"name": "a", "budget": 1.0}]),
        (["certificates", "--out", "made"], {"files": 6}),
        (["audit", "canaries", "plant", "--lower", "0", "--upper", "1"], {"planted": True}),
    ],
)
def test_a_result_as_json_is_one_document_and_nothing_else(
    arguments: list[str],
    found: Any,
    run_command: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_command(labelveil.commands.cli.main, *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    wanted, part = (found[0], document[0]) if isinstance(found, list) else (found, document)
    assert {name: part[name] for name in wanted} == wanted


def test_verbose_shows_where_an_error_arose(run_command: RunCommand) -> None:
    main = partial(run, labelveil.label_party.commands.cli.app)
    arguments = ["release", "--config", "nowhere.toml"]
    assert "nowhere.toml does not exist" in run_command(main, *arguments).error
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        run_command(main, *arguments, "-v")


@pytest.mark.parametrize(
    ("main", "words", "found"),
    [
        (labelveil.commands.cli.main, "labelveil audit m", "mechanism"),
        (labelveil.label_party.commands.cli.main, "label-party release --dry", "--dry-run"),
        (labelveil.feature_party.commands.cli.main, "feature-party fe", "fetch"),
    ],
)
def test_a_shell_completes_commands_and_options(
    main: Callable[[], NoReturn],
    words: str,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = words.split()[0]
    monkeypatch.setattr("sys.argv", [name])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")  # as of a program on PATH
    monkeypatch.setenv(f"_{name.replace('-', '_').upper()}_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capfd.readouterr().out.split() == [found]


@pytest.mark.slow
def test_a_command_imports_nothing_heavy_that_it_does_not_need() -> None:
    asked = [
        (modules, sorted(allowed))
        for modules, allowed in sorted(MAY_IMPORT.items(), key=lambda item: len(item[1]))
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, json.dumps(asked), *HEAVY],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert found.keys() == MAY_IMPORT.keys(), done.stderr
    too_much = {modules: {*brought} - MAY_IMPORT[modules] for modules, brought in found.items()}
    assert not any(too_much.values()), too_much


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (LabelveilError("two\nlines"), "two lines"),
        (PermissionError(13, "Permission denied", "/x/p.csv"), "/x/p.csv: Permission denied; che"),
        (ModuleNotFoundError(name="torch"), r"^error: torch .*pip install .*/\S+\[features\]'"),
        (ModuleNotFoundError(name="sklearn.svm"), r"pip install .*/\S+\[central\]'"),
        (ModuleNotFoundError(name="labelveil.common.absent"), None),
        (OSError(28, "No space left on device"), "^error: No space left on device; check"),
        (pl.exceptions.ComputeError("disk\nabout the plan"), "^error: disk$"),
        (ValueError("nothing that a user could mend"), None),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    error: Exception, line: str | None, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()

    @app.command()
    def failing() -> None:
        raise error

    if line is None:
        monkeypatch.setattr("sys.argv", ["command"])
        with pytest.raises(type(error)):
            run(app)
    else:
        assert re.search(line, run_command(partial(run, app)).error)


def test_what_an_extra_brings_is_asked_for_early(monkeypatch: pytest.MonkeyPatch) -> None:
    need("features", "a simulation")

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("labelveil.common.extras.distribution", absent)
    with pytest.raises(ConfigError, match=r"a simulation needs torch.*\[features\]"):
        need("features", "a simulation")


def interrupted() -> None:
    """Work, until ^C is typed."""
    raise KeyboardInterrupt


def test_c_says_what_is_kept(run_command: RunCommand) -> None:
    command = Command(f"{__name__}:interrupted", "Work.", kept="half of it is kept, go on")
    app = program("Work.", {"work": command, "rest": command})
    done = run_command(partial(run, app), "work")
    assert (done.code, done.err) == (130, "interrupted; half of it is kept, go on\n")


def refused_by_python() -> None:
    """Work, until ^C is typed while a class is made."""

    class Name:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    class Owner:
        name = Name()


def failed_for_an_interrupt() -> None:
    """Work that fails: what an error came of is no interrupt, though one was there before."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise LabelveilError("the disk is full") from OSError(28, "no space")


def test_c_that_python_made_an_error_of_is_an_interrupt(run_command: RunCommand) -> None:
    commands = {
        "work": Command(f"{__name__}:refused_by_python", "Work.", kept="half is kept"),
        "fail": Command(f"{__name__}:failed_for_an_interrupt", "Fail."),
    }
    app = program("Work.", commands)
    done = run_command(partial(run, app), "work")
    assert (done.code, done.err) == (130, "interrupted; half is kept\n")
    done = run_command(partial(run, app), "fail")
    assert (done.code, done.err) == (1, "error: the disk is full\n")


def test_c_during_start_up_is_one_line(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing(name: str) -> None:
        waiting.append(os.environ["OMP_WAIT_POLICY"])
        raise KeyboardInterrupt

    waiting = list[str]()
    monkeypatch.setattr("labelveil.programs.import_module", importing)
    for set_before in (None, "ACTIVE"):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if set_before:
            monkeypatch.setenv("OMP_WAIT_POLICY", set_before)
        done = run_command(feature_party_program, "train")
        assert (done.code, done.err) == (130, "interrupted; nothing was done yet\n")
    assert waiting == ["PASSIVE", "ACTIVE"], "threads that wait sleep, unless somebody says else"
