"""Which learners of seconds are tried, for which laws and by which rows: without training any."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.training import quick
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.mixture import Candidate, Trained
from labelveil.feature_party.training.quick import QuickLearners
from labelveil.feature_party.training.trees import EXACT, LARGE, SMALL
from tests.feature_party.training.learners import events, folded

GAUSSIAN, GAMMA, MEAN = (Candidate("likelihood", head) for head in ("gaussian", "gamma", "mean"))


@pytest.fixture(scope="module")
def parts() -> tuple[FoldedRows, Support, LikelihoodObjective]:
    x = np.linspace(-1, 1, 60)
    data = events(pl.DataFrame({"x": x, "kind": ["a", "b"] * 30}), 15 + 5 * x)
    return folded(data, ensemble=2)


def learners(parts: Any, learner: str = "auto", **more: Any) -> QuickLearners:
    rows, support, law = parts
    return QuickLearners(learner, rows, support, lambda candidate: law, None, **more)


def trained(candidate: Candidate, losses: Any) -> Trained:
    fit: Any = SimpleNamespace(losses=np.asarray(losses, dtype=float))
    return Trained(replace(candidate, learner="linear"), fit)


@pytest.fixture
def ridges(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ridges whose first rows have these losses; names of the axes that they were made on."""
    made: list[Any] = []

    class Ridges:
        first = 1.2

        def __init__(self, rows: Any, support: Any, head: str) -> None:
            made.append(head)

        def first_losses(self, *law: Any) -> np.ndarray:
            return np.full(30, Ridges.first)

        def fit(self, *law: Any) -> str:
            return "a ridge"

    monkeypatch.setattr(quick, "KernelFit", Ridges)
    made.append(Ridges)
    return made


@pytest.mark.parametrize(
    ("first", "rest", "tried"), [(2.0, 0.0, True), (1.0, 9.0, False), (1.2, 9.0, False)]
)
def test_ridges_are_tried_where_they_are_ahead_on_the_same_rows(
    parts: Any, ridges: list[Any], first: float, rest: float, tried: bool
) -> None:
    """Of linear models on 60 rows: the first thirty are those that a ridge says something of."""
    linear = [trained(MEAN, np.zeros(60)), trained(GAMMA, [first] * 30 + [rest] * 30)]
    found = learners(parts).kernel([GAMMA, GAUSSIAN], linear)
    assert [(str(each.candidate), each.fit) for each in found] == [
        ("likelihood-kernel-gamma", "a ridge"), ("likelihood-kernel-gaussian", "a ridge"),
    ] * tried  # fmt: skip
    assert ridges[1:] == ["gamma"]  # one axis, of the likeliest


def test_ridges_need_a_linear_rival_and_few_columns_unless_they_are_asked_for(
    parts: Any, ridges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = [trained(GAMMA, np.full(60, 2.0))]
    assert not learners(parts).kernel([GAUSSIAN, GAMMA], linear)  # of another law
    assert not learners(parts).kernel([], linear)
    monkeypatch.setattr(quick, "columns", lambda rows: 65)
    assert not learners(parts).kernel([GAMMA], linear)
    assert learners(parts, "kernel").kernel([GAMMA], [])
    monkeypatch.setattr(quick, "columns", lambda rows: 64)
    assert learners(parts).kernel([GAMMA], linear)


def test_laws_of_which_no_linear_model_says_anything_come_first(parts: Any) -> None:
    """They have more values than one can serve; of the others the likeliest."""
    linear = [trained(GAUSSIAN, [0.5]), trained(GAMMA, [0.2])]
    order = learners(parts).likeliest([GAUSSIAN, GAMMA, MEAN], linear)
    assert order == [MEAN, GAMMA]
    assert learners(parts, "linear").likeliest([GAUSSIAN], linear) == []


def test_many_rows_have_a_linear_model_only_if_it_is_asked_for(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "fit_linear", lambda *given: "linear")
    rows = len(parts[0].codes)
    for most, learner, there in (
        (rows, "auto", True),
        (rows - 1, "auto", False),
        (rows - 1, "linear", True),
        (rows, "trees", False),
        (rows, "kernel", False),
    ):
        monkeypatch.setattr(quick, "MOST_LINEAR", most)
        assert bool(learners(parts, learner).linear([GAUSSIAN])) == there, (most, learner)


def test_trees_are_as_large_as_what_they_learn_from_bears(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[Any] = []
    monkeypatch.setattr(quick, "folds_of", lambda rows: [])
    monkeypatch.setattr(quick, "fit_trees", lambda *given: sizes.append(given[-1]))
    rows, support, law = parts
    known = replace(rows, labels=np.zeros(len(rows.codes)))
    for these, asks in ((rows, False), (rows, True), (known, False)):
        made = learners((these, support, law), asks=asks).trees(GAUSSIAN)
        assert [str(each.candidate) for each in made[0]] == ["likelihood-trees-gaussian"]
    assert sizes == [[SMALL, LARGE], [SMALL], [EXACT]]
