"""The container files: what they must contain, and build steps run without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.deploy.documents import DEPLOY, PARTIES, ROOT, Stage, assignments, stages
from tests.label_party.conftest import Party
from tests.label_party.serving import serving

HADOLINT = Path(sys.executable).parent / "hadolint"
TARGET = "/opt/labelveil"
NO_INDEX = re.compile(r"Retrying|connection|timed out|Name or service", re.IGNORECASE)
OTHER = {"label-party": "feature_party", "feature-party": "label_party"}


@pytest.mark.parametrize("party", PARTIES)
def test_a_linter_finds_nothing(party: str) -> None:
    done = subprocess.run(
        [HADOLINT, "--no-color", DEPLOY / party / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("party", PARTIES)
def test_the_last_stage_is_small_and_runs_as_nobody(party: str) -> None:
    build, final = stages(party)
    # both stages from one base, or the environment's interpreter is another one
    assert (build.base, build.name) == ("${BASE}", "build")
    assert (final.base, final.name) == ("${BASE}", "")
    text = (DEPLOY / party / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=\S+/python:3\.\d+-slim-\w+$", text, re.MULTILINE)
    assert final.all("COPY") == [f"--from=build {TARGET} {TARGET}"]
    assert [text for text in final.all("RUN") if "install " in text and "pip" in text] == [
        "python -m pip uninstall --yes --root-user-action=ignore setuptools wheel pip"
    ]
    assert final.last("USER") == "10001:10001"
    assert final.last("VOLUME") == "/var/lib/labelveil"
    assert json.loads(final.last("ENTRYPOINT")) == [party]
    # after USER nothing is built any more
    after = [name for name, _ in final.steps[final.steps.index(("USER", "10001:10001")) + 1 :]]
    assert not {"RUN", "COPY", "ADD", "USER"} & set(after)


@pytest.mark.parametrize("party", PARTIES)
def test_every_package_is_pinned(party: str) -> None:
    installs = [text for text in stages(party)[0].all("RUN") if " install " in text]
    assert installs
    pinned = ("--constraint constraints.txt", "--no-deps --require-hashes")
    assert all(any(way in text for way in pinned) for text in installs)


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    admitted = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        name.partition("/")[0]
        for party in PARTIES
        for text in stages(party)[0].all("COPY")
        for name in text.split()[:-1]
    }
    assert lines[1] == "*"
    assert admitted == copied
    assert all((ROOT / name).exists() for name in admitted)


@pytest.mark.slow
def test_the_labels_party_builds_without_torch(tmp_path: Path) -> None:
    build = stages("label-party")[0]
    environment = run_build(build, tmp_path)
    python = environment / "bin" / "python"

    def present(*modules: str) -> list[str]:
        found = "[m for m in sys.argv[1:] if importlib.util.find_spec(m)]"
        program = f"import importlib.util, json, sys; print(json.dumps({found}))"
        return json.loads(subprocess.check_output([python, "-I", "-c", program, *modules]))

    ours = ("labelveil.label_party", "labelveil.common", "psycopg", "opentelemetry")
    absent = ("torch", "pandas", "pyarrow", "matplotlib", "labelveil.feature_party", "pip")
    assert present(*absent, "setuptools", "common", "label_party", *ours) == [*ours]
    done = subprocess.run([environment / "bin" / "label-party", "--help"], capture_output=True)
    assert done.returncode == 0, done.stderr
    for command in ("feature-party", "labelveil"):
        assert not (environment / "bin" / command).exists()
    listing = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name: d.version for d in m.distributions()}))"
    )
    installed = json.loads(subprocess.check_output([python, "-I", "-c", listing]))
    pins = {
        name.lower().replace("_", "-"): version
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
        for name, version in [line.split("==")]
    }
    del installed["labelveil"]
    assert {name: pins.get(name.lower().replace("_", "-")) for name in installed} == installed


def run_build(build: Stage, folder: Path) -> Path:
    """Run a build stage's steps in a folder, with a Python that has nothing but pip."""
    base, source, target = folder / "base", folder / "src", folder / "labelveil"
    venv.create(base, with_pip=True)
    source.mkdir()
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    variables["PATH"] = f"{base / 'bin'}:{variables['PATH']}"
    variables["PIP_NO_COMPILE"] = (
        "1"  # byte code is most of the work, and nothing here depends on it
    )
    for number, (instruction, text) in enumerate(build.steps):
        if instruction == "ENV":
            variables |= assignments(text)
        elif instruction == "COPY":
            copy_step(text, source)
        elif instruction == "RUN":
            command = text.replace(TARGET, str(target))
            done = subprocess.run(
                ["sh", "-e", "-c", command], cwd=source, env=variables,
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode and NO_INDEX.search(done.stderr):
                pytest.skip(f"pip reaches no index: {done.stderr.splitlines()[-1]}")
            assert done.returncode == 0, (number, command, done.stdout[-2000:], done.stderr[-2000:])
        else:
            assert instruction in ("WORKDIR", "ARG"), instruction
    return target


def copy_step(text: str, source: Path) -> None:
    """Do what COPY does: a folder's content, or files, into the folder that is named last."""
    *names, to = text.split()
    for path in (ROOT / name for name in names):
        if path.is_dir():
            shutil.copytree(path, source / to, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (source / to).mkdir(exist_ok=True)
            shutil.copy(path, source / to)


@pytest.mark.slow
def test_the_labels_party_gets_no_audit_and_no_other_party(tmp_path: Path) -> None:
    """The wheel that its container is built from, by its list of files."""
    build, source = stages("label-party")[0], tmp_path / "src"
    source.mkdir()
    for text in build.all("COPY"):
        copy_step(text, source)
    program = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=source, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    parts = ("labelveil/common/", "labelveil/label_party/")
    assert all(any(name.startswith(part) for name in names) for part in parts)
    assert {name for name in names if not name.startswith(parts)} == {
        "labelveil/__init__.py",
        "labelveil/__init__.pyi",
        "labelveil/lazy.py",
        "labelveil/programs.py",
    }
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "labelveil.label_party", "--help"], capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_health_check_tells_the_living_from_the_dead(party: Party) -> None:
    assert party.release().code == 0
    final = stages("label-party")[1]
    command = json.loads(final.last("HEALTHCHECK").partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]

    def check(address: str) -> int:
        program = command[2].replace("127.0.0.1:9464", address)
        assert program != command[2]
        return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode

    with serving(party) as server:
        assert check(server.observed_at) == 0
    assert check(server.observed_at) != 0
