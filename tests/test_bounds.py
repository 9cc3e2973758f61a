"""The lowest versions that pyproject.toml admits are such that the package works, and is safe."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.imports import ROOT

REASONS = {
    "torch": ("2.10", "weights alone were loaded, and a file could run code all the same"),
    "numpy": ("2.0", "float64 / (1 << 64) gave objects, and the default randomizer failed"),
    "scipy": ("1.13", "none before is made for numpy 2"),
    "matplotlib": ("3.9", "none before is made for numpy 2"),
    "pyarrow": ("16.1", "none before is made for numpy 2"),
    "opacus": ("1.5.4", "it excluded numpy 2"),
    "typer": ("0.16", "-h was no help"),
    "scikit-learn": ("1.6", "no estimator could be imported"),
    "threadpoolctl": ("3.1", "scikit-learn 1.6 asks for it"),
}
"""By library: the lowest version that will do, and what was wrong before."""


def lowest() -> dict[str, set[Version]]:
    """The lowest versions of every library, wherever it is asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    several = [project["dependencies"], *project["optional-dependencies"].values()]
    found = defaultdict(set)
    for text in (one for group in several for one in group):
        required = Requirement(text)
        for bound in required.specifier:
            if bound.operator == ">=":
                found[required.name].add(Version(bound.version))
    return found


def test_every_library_has_one_lowest_version() -> None:
    assert {name: bounds for name, bounds in lowest().items() if len(bounds) > 1} == {}


def test_versions_that_do_not_work_are_not_admitted() -> None:
    for name, (least, reason) in REASONS.items():
        assert min(lowest()[name]) >= Version(least), reason


@pytest.mark.slow
def test_what_images_and_tests_install_is_admitted() -> None:
    pinned = [ROOT / "constraints.txt", *sorted((ROOT / "deploy").glob("*/requirements.txt"))]
    assert len(pinned) == 3
    for path in pinned:
        for name, version in re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", path.read_text(), re.M):
            bounds = lowest().get(name.lower().replace("_", "-"), ())
            assert all(Version(version) >= bound for bound in bounds), (path, name)
