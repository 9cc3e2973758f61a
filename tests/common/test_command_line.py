"""What programs say of their commands without importing them, and what commands import."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

import common.program.cli
import feature_party.commands.cli
import label_party.commands.cli
from common.command_line import run
from common.errors import ConfigError, LabelveilError
from common.extras import need
from common.program.children import child_environment
from tests.commands import RunCommand

APPS = {
    "labelveil": common.program.cli.app,
    "label-party": label_party.commands.cli.app,
    "feature-party": feature_party.commands.cli.app,
}

HEAVY = {
    "cryptography", "grpc", "jinja2", "matplotlib", "numpy", "onnx", "pandas", "polars", "pyarrow",
    "pydantic", "rich", "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats", "torch",
}  # fmt: skip
"""Libraries that take long to import."""

CONFIGURED = {"cryptography", "numpy", "pydantic"}

MAY_IMPORT = {
    "common.program.cli, label_party.commands.cli, feature_party.commands.cli": set(),
    "feature_party.commands.fetch, feature_party.commands.train": CONFIGURED,
    "feature_party.commands.fetch, feature_party.pipeline.transfer": {
        *CONFIGURED,
        "grpc",
        "polars",
        "pyarrow",
        "rich",
    },
    "feature_party.commands.predict, feature_party.pipeline.learning": {
        *CONFIGURED,
        "grpc",
        "polars",
        "pyarrow",
        "rich",
        "torch",
    },
    "label_party.commands.release, label_party.commands.serve": CONFIGURED,
    "label_party.commands.plan, label_party.release.plan": {*CONFIGURED, "polars", "rich"},
    "label_party.commands.budget, label_party.store.account": {*CONFIGURED, "rich"},
    "label_party.commands.plan, label_party.commands.top_k": {*CONFIGURED, "rich"},
    "common.program.commands.audit": {"numpy", "rich"},
}
"""By modules of commands: the libraries of these that they may bring before they do anything."""


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


def leaves(command: Any) -> Iterator[Any]:
    """Every command of a program that has no further ones."""
    below = getattr(command, "commands", None)
    if below is None:
        yield command
    else:
        for inner in below.values():
            yield from leaves(inner)


@pytest.mark.parametrize("name", APPS)
def test_every_command_is_quiet_and_verbose_in_the_same_way(name: str) -> None:
    for command in leaves(get_command(APPS[name])):
        names = [option for parameter in command.params for option in parameter.opts]
        assert {"-v", "--verbose"} <= set(names), command.name
        assert ("--quiet" in names) == ("-q" in names), command.name
        assert len(names) == len(set(names)), command.name


def test_verbose_shows_where_an_error_arose(run_command: RunCommand) -> None:
    main = partial(run, label_party.commands.cli.app)
    arguments = ["release", "--config", "nowhere.toml"]
    assert "nowhere.toml does not exist" in run_command(main, *arguments).error
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        run_command(main, *arguments, "-v")


@pytest.mark.parametrize(
    ("program", "words", "found"),
    [
        ("common.program.cli", "labelveil audit m", "mechanism"),
        ("label_party.commands.cli", "label-party release --dry", "--dry-run"),
        ("feature_party.commands.cli", "feature-party fe", "fetch"),
    ],
)
def test_a_shell_completes_commands_and_options(program: str, words: str, found: str) -> None:
    name = words.split()[0]
    start = f"import sys; sys.argv = ['{name}']; from {program} import main; main()"
    command = [sys.executable, "-c", start]
    asked = {f"_{name.replace('-', '_').upper()}_COMPLETE": "complete_bash", "COMP_WORDS": words}
    done = subprocess.run(
        command,
        env=child_environment(**asked, COMP_CWORD=str(len(words.split()) - 1)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [found]


@pytest.mark.parametrize("modules", MAY_IMPORT)
def test_a_command_imports_nothing_heavy_that_it_does_not_need(modules: str) -> None:
    program = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert HEAVY & set(done.stdout.split()) <= MAY_IMPORT[modules]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (LabelveilError("two\nlines"), "two lines"),
        (PermissionError(13, "Permission denied", "/x/p.csv"), "/x/p.csv: Permission denied; che"),
        (
            ModuleNotFoundError(name="torch"),
            r"^error: torch .*'labelveil\[features\]'",
        ),
        (ModuleNotFoundError(name="sklearn.svm"), r"pip install 'labelveil\[central\]'"),
        (ModuleNotFoundError(name="common.absent"), None),
        (OSError("nothing that a user could mend"), None),
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

    monkeypatch.setattr("common.extras.distribution", absent)
    with pytest.raises(ConfigError, match=r"a simulation needs torch.*labelveil\[features\]"):
        need("features", "a simulation")
