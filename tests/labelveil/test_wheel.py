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

import feature_party.commands.cli
import label_party.commands.cli
import labelveil.commands.cli
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
    "label-party": label_party.commands.cli.app,
    "feature-party": feature_party.commands.cli.app,
}
MODULES = {
    "labelveil": "labelveil.commands.cli",
    "label-party": "label_party.commands.cli",
    "feature-party": "feature_party.commands.cli",
}
QUICK = ("ensemble=1", "epochs=2", "hidden=[8]")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as `pip wheel --no-build-isolation` does."""
    pytest.importorskip("setuptools", minversion="77", reason="the build needs the pinned one")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
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


def test_the_wheel_holds_our_packages_and_what_they_read(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    folders = {name.split("/")[0] for name in names}
    assert {name for name in folders if not name.endswith(".dist-info")} == set(PACKAGES)
    tracked = subprocess.check_output(["git", "ls-files", *PACKAGES], cwd=ROOT, text=True).split()
    assert tracked
    assert set(tracked) <= names


def test_programs_start_beside_modules_of_the_same_names(installed: Installed) -> None:
    shown = installed.succeed("python", "-P", "-c", "import common; print(common.__file__)")
    assert not Path(shown.strip()).is_relative_to(ROOT)
    assert re.fullmatch(r"labelveil \d[\w.]*\n", installed.succeed("labelveil", "--version"))
    for name in APPS:
        assert "Usage: " in installed.succeed(name, "-h")


@pytest.mark.parametrize("foreign", ["common.py", "common/__init__.py"])
def test_what_puts_the_working_directory_first_is_told_so(
    programs: Path, tmp_path: Path, foreign: str
) -> None:
    put_foreign_modules(tmp_path, [foreign])
    environment = Installed(programs, tmp_path)
    line = rf"{re.escape(str(tmp_path / foreign))} stands in the way of labelveil's own package"
    for package in ("labelveil", "label_party", "feature_party"):
        done = environment.run("python", "-m", package, "--help")
        assert re.fullmatch(rf"error: {line} 'common'; rename it, .*\n", done.stderr), done
    for name in APPS:
        done = environment.run(name, "--help", PYTHONPATH=".")
        assert done.returncode == 1
        assert re.fullmatch(rf"error: {line} 'common'; rename it, .*\n", done.stderr), done
    for program in ("import labelveil as lv; lv.Grid", "from labelveil import Grid"):
        done = environment.run("python", "-c", program)
        assert re.search(rf"^ImportError: {line}", done.stderr.splitlines()[-1]), done


def test_a_stranger_in_place_of_a_party_is_told_too(programs: Path, tmp_path: Path) -> None:
    put_foreign_modules(tmp_path, ["label_party.py"])
    done = Installed(programs, tmp_path).run("python", "-m", "labelveil", "demo")
    assert "label_party.py stands in the way" in done.stderr
    # an empty folder of that name hides nothing, and one that came first is named as well
    (tmp_path / "label_party.py").unlink()
    (tmp_path / "common").mkdir()
    assert "Usage: " in Installed(programs, tmp_path).succeed("python", "-m", "labelveil", "-h")
    (tmp_path / "common.py").touch()
    program = "import common, labelveil as lv; lv.Grid"
    done = Installed(programs, tmp_path).run("python", "-c", program)
    assert "restart Python" in done.stderr.splitlines()[-1]


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
