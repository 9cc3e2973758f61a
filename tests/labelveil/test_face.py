"""The public face: every name is there, typed, and nothing is loaded before it is used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import labelveil as lv
from labelveil.common.errors import ConfigError, LabelveilError
from labelveil.common.version import __version__
from tests.approved import approved

HEAVY = ("numpy", "polars", "torch", "matplotlib", "scipy", "pydantic", "typer", "grpc")


def loaded_by(program: str) -> set[str]:
    """The packages that a new interpreter has loaded at the end of a program, and our modules."""
    program += "\nimport sys; names = (name.removeprefix('labelveil.') for name in sys.modules)"
    program += "\nfound = [name.split('.') for name in names]"
    program += "\nprint(*{name[0] for name in found}, *map('.'.join, found))"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split())


def of_common(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.startswith("common.")}


def test_the_import_loads_nothing_but_what_sees_forks() -> None:
    loaded = loaded_by("import labelveil; dir(labelveil)")
    assert not loaded & set(HEAVY)
    assert of_common(loaded) == {"common.forks"}


@pytest.mark.slow
def test_using_it_needs_neither_torch_nor_a_plot() -> None:
    loaded = loaded_by("import labelveil as lv\nfor name in lv.__all__: getattr(lv, name)")
    assert "polars" in loaded
    assert not loaded & {"torch", "matplotlib", "label_party", "feature_party"}


def test_every_name_is_there() -> None:
    wanted = (
        "build_randomizer private_prior system_entropy seeded_entropy Grid FiniteChannel PureDP"
        " ApproximateDP ZeroConcentratedDP RenyiDP read_release simulate compare __version__"
    )
    assert set(wanted.split()) <= set(lv.__all__) <= set(dir(lv))
    for name in lv.__all__:
        assert inspect.getdoc(getattr(lv, name)), name
    assert lv.__version__ == __version__
    with pytest.raises(AttributeError, match="no attribute 'torch'"):
        lv.torch  # noqa: B018


SUBJECTS = (
    "accounting", "adaptive", "central", "continual", "exact", "interactive", "pate", "randomizers",
    "selection", "synthesis",
)  # fmt: skip


def test_every_subject_gives_its_names_when_they_are_used() -> None:
    loaded = loaded_by("import labelveil as lv\nfrom labelveil import " + ", ".join(SUBJECTS))
    assert not loaded & set(HEAVY)
    assert of_common(loaded) == {"common.forks"}
    for subject in SUBJECTS:
        module = getattr(lv, subject)
        assert module.__all__ == sorted(set(module.__all__)), subject
        assert {*module.__all__} <= {*dir(module)}
        for name, given in ((name, getattr(module, name)) for name in module.__all__):
            documented = inspect.isclass(given) or inspect.isfunction(given)
            assert not documented or inspect.getdoc(given), (subject, name)
        with pytest.raises(AttributeError, match=f"'labelveil.{subject}' has no attribute 'torch'"):
            module.torch  # noqa: B018


def with_parameters(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Its functions, classes and their public methods, by name."""
    for name in module.__all__:
        given = getattr(module, name)
        if inspect.isfunction(given):
            yield name, given
        if inspect.isclass(given) and not issubclass(given, Enum | Exception):
            yield name, given
            for method, what in inspect.getmembers(given, callable):
                if not method.startswith("_") and what.__module__.startswith("labelveil."):
                    yield f"{name}.{method}", what


@pytest.mark.parametrize("subject", ["", *SUBJECTS])
def test_what_is_taken_where_nothing_is_said_was_approved(subject: str) -> None:
    """Defaults decide what is spent: another one is meant, or a slip."""
    found = {}
    for name, given in with_parameters(getattr(lv, subject) if subject else lv):
        parameters = inspect.signature(given).parameters.values()
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        said = {
            name: default.__qualname__ if inspect.isfunction(default) else default
            for name, default in defaults.items()
        }
        if said:
            found[name] = said
    approved(Path(__file__).parent / "approved.json", f"labelveil.{subject}", found)


@pytest.mark.parametrize("subject", ["", *SUBJECTS])
def test_errors_are_stated_in_a_section_of_their_own(subject: str) -> None:
    """Of what users call, as NumPy's convention has it: of all that its own lines raise."""
    for name, given in with_parameters(getattr(lv, subject) if subject else lv):
        text, _, section = (inspect.getdoc(given) or "").partition("\nRaises\n------\n")
        assert not re.search(r"``\w+Error`` (if|for|after|when|where)", text), name
        if inspect.isclass(given):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(given)))
        calls = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
        raised = {ast.unparse(call.func) for call in calls if isinstance(call, ast.Call)}
        for error in raised & {each.__name__ for each in LabelveilError.__subclasses__()}:
            assert error in section, (name, error)


def test_functions_show_their_keywords() -> None:
    shown = inspect.signature(lv.simulate)
    assert shown.parameters["labels"].annotation is Path
    assert shown.parameters["holdout"].default == 0.2
    table, *keywords = shown.parameters.values()
    assert (table.name, table.kind) == ("table", inspect.Parameter.POSITIONAL_ONLY)
    assert {one.kind for one in keywords} == {inspect.Parameter.KEYWORD_ONLY}
    assert shown.return_annotation.__name__ == "Outcome"
    assert "epsilon\n    What the release may reveal" in (lv.simulate.__doc__ or "")
    with pytest.raises(TypeError, match="missing a required argument: 'features'"):
        lv.simulate(labels=Path("labels.csv"))
    facts = {"labels": "a", "features": "a", "label": "y", "lower": 0, "upper": 1, "out": "out"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilom'"):
        lv.compare(**facts, epsilom=1)
    with pytest.raises(ConfigError, match=r"^epsilon=-1 must be a number above 0"):
        lv.simulate(**facts, epsilon=-1)
    with pytest.raises(ConfigError, match=r"^epsilons=\[1, 0\] must be numbers above 0"):
        lv.compare(**facts, epsilons=[1, 0])
