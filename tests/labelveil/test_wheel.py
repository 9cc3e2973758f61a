"""The wheel, installed by itself, in a folder whose modules have the names of our packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import typer
from typer.core import TyperGroup

import labelveil.commands.cli
import labelveil.feature_party.commands.cli
import labelveil.label_party.commands.cli
from tests.effort import one_in
from tests.engines import needs_java

ROOT = Path(__file__).parents[2]
PACKAGES = ("common", "feature_party", "label_party", "labelveil")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
SCRIPT = """#!{python}
import sys
from {module} import {function}
if __name__ == "__main__":
    sys.exit({function}())
"""
EVERY_HELP = """
import json, sys
from {module} import app
from typer.main import get_command
group = get_command(app)
for command in json.loads(sys.argv[1]):
    group.main([*command, "-h"], {program!r}, standalone_mode=False)
"""
"""The help of many commands: one process, since starting one takes longer than to write them."""
FOREIGN = "raise SystemExit('a foreign module ran')"
APPS = {
    "labelveil": labelveil.commands.cli.app,
    "label-party": labelveil.label_party.commands.cli.app,
    "feature-party": labelveil.feature_party.commands.cli.app,
}
MODULES = {
    "labelveil": "labelveil.commands.cli",
    "label-party": "labelveil.label_party.commands.cli",
    "feature-party": "labelveil.feature_party.commands.cli",
}
QUICK = ("ensemble=1", "epochs=2", "hidden=[8]")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as `pip wheel --no-build-isolation` does."""
    pytest.importorskip("setuptools", minversion="77", reason="the build needs the pinned one")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-c", BUILD, out], cwd=source, check=True, capture_output=True)
    (found,) = out.glob("labelveil-*.whl")
    return found


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel and what it needs, and nothing of this repository."""

    programs: Path  # its ``bin``
    cwd: Path  # where commands are run

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = (name for name in os.environ if not name.startswith(("PYTHON", "PYTEST", "PYSPARK")))
        ours = {name: os.environ[name] for name in kept}
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [self.programs / command[0], *command[1:]], cwd=self.cwd, capture_output=True,
            text=True, env={**ours, "PATH": path, "COLUMNS": "100", **variables},
        )  # fmt: skip

    def succeed(self, *command: str | Path, **variables: str) -> str:
        done = self.run(*command, **variables)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # a path in a .pth file is searched, but its own .pth files, our editable install, are not read
    others = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    (site / "others.pth").write_text("\n".join(others))
    (points,) = site.glob("labelveil-*.dist-info/entry_points.txt")
    declared = ConfigParser()
    declared.read(points)
    scripts = {**declared["console_scripts"], "torchrun": "torch.distributed.run:main"}
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        text = SCRIPT.format(python=home / "bin" / "python", module=module, function=function)
        (home / "bin" / name).write_text(text)
        (home / "bin" / name).chmod(0o755)
    return home / "bin"


def put_foreign_modules(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(FOREIGN)


@pytest.fixture
def installed(programs: Path, tmp_path: Path) -> Installed:
    """The environment, used in a folder where everything that can be hidden is."""
    put_foreign_modules(
        tmp_path, ["common.py", "common/__init__.py", "label_party.py", "feature_party.py"]
    )
    return Installed(programs, tmp_path)


@pytest.mark.slow
def test_the_wheel_holds_our_packages_and_what_they_read(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    folders = {name.split("/")[0] for name in names}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"labelveil"}
    for package in PACKAGES:
        tracked = subprocess.check_output(["git", "ls-files", package], cwd=ROOT, text=True).split()
        files = [name for name in tracked if not (ROOT / name).is_symlink()]
        assert files
        prefix = "" if package == "labelveil" else "labelveil/"
        assert {f"{prefix}{name}" for name in files} <= names


@pytest.mark.slow
@pytest.mark.parametrize("first", one_in(2, [{}, {"PYTHONPATH": "."}]))
def test_modules_of_the_same_names_stand_in_nobodys_way(
    installed: Installed, first: dict[str, str]
) -> None:
    """A user's own `common` beside a script is theirs, and the package is whole."""
    (installed.cwd / "common" / "__init__.py").write_text("MINE = True")
    (installed.cwd / "common.py").unlink()
    program = (
        "import common; assert common.MINE\n"
        "import labelveil as lv; print(lv.Grid.__module__)\n"
        "import labelveil.common as ours; print(ours.__file__)"
    )
    shown = installed.succeed("python", "-c", program, **first)
    grid, where = shown.splitlines()
    assert grid.startswith("labelveil.common.")
    assert Path(where).is_relative_to(installed.programs.parent)
    assert re.fullmatch(
        r"labelveil \d[\w.]*\n", installed.succeed("labelveil", "--version", **first)
    )
    for name, module in MODULES.items():
        assert "Usage: " in installed.succeed(name, "-h", **first)
        package = module.removesuffix(".commands.cli")
        assert "Usage: " in installed.succeed("python", "-m", package, "-h", **first)


def commands(app: typer.Typer) -> list[list[str]]:
    """Every command of a program, and of its groups."""

    def below(group: TyperGroup, path: list[str]) -> list[list[str]]:
        return [
            found
            for name, command in group.commands.items()
            for found in [
                [*path, name],
                *(below(command, [*path, name]) if isinstance(command, TyperGroup) else []),
            ]
        ]

    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return below(group, [])


@pytest.mark.slow
@pytest.mark.parametrize("program", APPS)
def test_every_command_has_help(installed: Installed, program: str) -> None:
    asked = commands(APPS[program])
    script = EVERY_HELP.format(module=MODULES[program], program=program)
    shown = installed.succeed("python", "-P", "-c", script, json.dumps(asked))
    assert all(f"Usage: {program} {' '.join(command)} " in shown for command in asked)


def events(folder: Path, rows: int = 400) -> Path:
    x = np.linspace(0, 1, rows)
    table = pl.DataFrame({"id": range(rows), "x": x, "z": np.cos(9 * x), "y": np.round(8 * x)})
    table.write_parquet(folder / "events.parquet")
    return folder / "events.parquet"


FACTS = ("--labels", "events.parquet", "--features", "events.parquet", "--key", "id",
         "--label", "y", "--lower", "0", "--upper", "8")  # fmt: skip


@pytest.mark.slow
def test_both_parties_work_and_train_in_two_processes(installed: Installed) -> None:
    pytest.importorskip("torch")
    events(installed.cwd)
    quick = [part for one in QUICK for part in ("--set-feature", f"training.{one}")]
    installed.succeed(
        "labelveil", "simulate", *FACTS, "--epsilon", "4", "--out", "run", "--no-nonprivate",
        "--randomizer", "rr-on-bins", *quick,
    )  # fmt: skip
    assert (installed.cwd / "run" / "report.html").is_file()
    installed.succeed("labelveil", "audit", "certificate", "run/release", "--out", "audit")
    party = installed.cwd / "run" / "feature_party"
    put_foreign_modules(party, ["common.py", "feature_party.py"])
    settings = [part for one in QUICK for part in ("--set", f"training.{one}")]
    Installed(installed.programs, party).succeed(
        "torchrun", "--standalone", "--nproc_per_node", "2", "--no-python", "feature-party",
        "train", "--model", "together", *settings,
    )  # fmt: skip
    assert (party / "together").is_dir()


@pytest.mark.slow
def test_a_comparison_and_a_mechanism_audit_start_their_own_processes(
    installed: Installed,
) -> None:
    pytest.importorskip("torch")
    events(installed.cwd)
    quick = [part for one in QUICK for part in ("--set-training", one)]
    installed.succeed(
        "labelveil", "compare", *FACTS, "--out", "compared", "--method", "rr-on-bins:raw",
        "--epsilons", "1", "--runs", "1", "--workers", "1", *quick,
    )  # fmt: skip
    (installed.cwd / "mine.py").write_text(
        "import os\ndef coin(labels):\n    return [byte & 1 for byte in os.urandom(len(labels))]\n"
    )
    done = installed.succeed(
        "labelveil", "audit", "mechanism", "mine:coin", "--epsilon", "1", "--upper", "3",
        "--points", "2", "--effort", "0.01", "--out", "audit",
    )  # fmt: skip
    assert "callable mine:coin" in done


ENGINES = [
    pytest.param(("engine.workers=2",), id="two workers"),
    pytest.param(
        ("engine.name=spark", "engine.master=local[2]", "engine.partitions=2"),
        id="spark",
        marks=needs_java,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", ENGINES)
def test_a_release_is_built_elsewhere(installed: Installed, settings: tuple[str, ...]) -> None:
    if len(settings) > 1:
        pytest.importorskip("pyspark")
    events(installed.cwd)
    installed.succeed("labelveil", "certificates", "--out", "certificates")
    installed.succeed(
        "label-party", "init", "--labels", "events.parquet", "--key", "id", "--label", "y",
        "--data-set", "tests", "--lower", "0", "--upper", "8", "--epsilon", "2",
        "--randomizer", "rr-on-bins",
    )  # fmt: skip
    engine = [part for setting in settings for part in ("--set", setting)]
    installed.succeed("label-party", "release", *engine, SPARK_LOCAL_IP="127.0.0.1")
    assert "ε = 2" in installed.succeed("label-party", "budget")
