"""Every extra is enough for its users: commands run beside its packages alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from packaging.requirements import Requirement

BESIDE = """
import json, runpy, sys
from importlib.machinery import PathFinder
absent, find = set(json.loads(sys.argv[1])), PathFinder.find_spec
PathFinder.find_spec = lambda name, path=None, target=None: (
    None if name.partition(".")[0] in absent else find(name, path, target)
)
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
"""Runs a module where others cannot be found."""

QUICK = ("ensemble=1", "epochs=2", "hidden=[8]")
FACTS = ("--labels", "events.parquet", "--key", "id", "--label", "y", "--lower", "0",
         "--upper", "8", "--epsilon", "4")  # fmt: skip
SIMULATE = ("labelveil", "simulate", *FACTS, "--features", "events.parquet", "--no-nonprivate",
            *(part for one in QUICK for part in ("--set-feature", f"training.{one}")))  # fmt: skip
COMMANDS = {
    "": [
        ("labelveil.label_party", "init", *FACTS, "--data-set", "tests", "--new-secret"),
        ("labelveil.label_party", "release"),
    ],
    "report": [("labelveil", "audit", "certificate", "run/release", "--out", "audit")],
    "predict": [
        ("labelveil.feature_party", "predict", "--model", "run/model", "--features",
         "events.parquet", "--key", "id", "--output", "predictions.parquet"),
        ("labelveil.feature_party", "export", "--model", "run/model", "--output", "model.pt2"),
    ],
    "export": [
        ("labelveil.feature_party", "export", "--model", "run/model", "--output", "model.onnx"),
    ],
    "features": [(*SIMULATE, "--out", "again")],
}  # fmt: skip


def modules_besides(extra: str) -> list[str]:
    """Every installed module of a distribution that this extra does not ask for."""
    asked: set[tuple[str, str]] = set()
    waiting = {("labelveil", extra), ("labelveil", "")}
    while waiting:
        asked.add(one := waiting.pop())
        for needed in map(Requirement, distribution(one[0]).requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": one[1]}):
                waiting |= {(normal(needed.name), part) for part in ("", *needed.extras)} - asked
    brought = {name for name, _ in asked}
    return [
        module
        for module, names in packages_distributions().items()
        if not brought & set(map(normal, names))
    ]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation's folder, run with everything."""
    folder = tmp_path_factory.mktemp("extras")
    x = np.linspace(0, 1, 400)
    table = pl.DataFrame({"id": range(400), "x": x, "z": np.cos(9 * x), "y": np.round(8 * x)})
    table.write_parquet(folder / "events.parquet")
    subprocess.run([sys.executable, "-P", "-m", *SIMULATE, "--out", "run"], cwd=folder, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("extra", COMMANDS)
def test_an_extra_is_enough(run: Path, extra: str) -> None:
    absent = json.dumps(modules_besides(extra))
    for command in COMMANDS[extra]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", BESIDE, absent, *command],
            cwd=run, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])


@pytest.mark.slow
def test_what_an_extra_lacks_is_absent() -> None:
    """Predicting needs neither trees, frames nor plots; the labels party needs no torch."""
    assert {"lightgbm", "pandas", "matplotlib", "onnx"} <= set(modules_besides("predict"))
    assert {"lightgbm", "pandas", "matplotlib"} <= set(modules_besides("export"))
    assert {"torch", "pyarrow"} <= set(modules_besides("report"))
    assert "pandas" in modules_besides("features")
