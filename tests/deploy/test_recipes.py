"""The recipes: what they type exists, what they name is pinned, and what can be run here is."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import labelveil.label_party.commands.cli
from tests.deploy.documents import DEPLOY, PARTIES, ROOT

RECIPES = DEPLOY / "recipes"
PARTNER = "labelveil-partner"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def test_airflow_types_commands_that_exist() -> None:
    tree = ast.parse((RECIPES / "airflow_labels.py").read_text("utf-8"))
    typed = [
        shlex.split(re.sub(r"\{\{.*?\}\}", "2026-06-01", ast.literal_eval(keyword.value)))
        for keyword in ast.walk(tree)
        if isinstance(keyword, ast.keyword) and keyword.arg == "bash_command"
    ]
    assert [words[:2] for words in typed] == [["label-party", "release"], ["label-party", "backup"]]
    for _, name, *words in typed:
        command = get_command(labelveil.label_party.commands.cli.app).commands[name]  # type: ignore[attr-defined]
        command.make_context(name, words)  # refuses what it does not know


def test_the_overlay_changes_namespace_and_image_alone() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")

    def built(folder: Path) -> list[dict]:
        command = ["kubectl", "kustomize", str(folder)]
        return list(yaml.safe_load_all(subprocess.check_output(command, text=True)))

    overlay = {(one["kind"], one["metadata"]["name"]): one for one in built(RECIPES / "overlay")}
    for one in built(DEPLOY / "label-party"):
        name = one["metadata"]["name"]
        other = overlay.pop((one["kind"], name if one["kind"] != "Namespace" else PARTNER))
        text = yaml.safe_dump(other).replace(PARTNER, "labelveil")
        text = re.sub(r"registry\.example\.com/(\S+)@sha256:0{64}", rf"\1:{VERSION}", text)
        assert yaml.safe_load(text) == one
    assert not overlay


LOCKED = re.compile(r"([a-z0-9.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64}){1,2})")


@pytest.mark.parametrize("party", PARTIES)
def test_every_package_is_pinned_with_its_digests(party: str) -> None:
    first, *lines = (DEPLOY / party / "requirements.txt").read_text().splitlines()
    assert first.startswith("# Written by `make lock`")
    pins = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    locked = {}
    for line in lines:
        found = LOCKED.fullmatch(line)
        assert found, line
        locked[found[1]] = found[2]
    assert locked == {name: pins[name] for name in locked}
    assert ("torch" in locked) == (party == "feature-party")
    assert {"numpy", "polars", "grpcio", "cryptography"} <= set(locked)
