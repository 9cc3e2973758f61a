"""Trees from sums over groups: they find an edge, say the same once saved, and stay out of the way
where sums are few."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import labelveil as lv
from labelveil.common.errors import DataError
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.feature_party.groups import boosting
from labelveil.feature_party.groups.asking import clusters
from labelveil.feature_party.groups.boosting import Boosted, boost
from labelveil.feature_party.groups.model import SumsModel, columns_of
from labelveil.feature_party.groups.saved import SavedSums, SumsFacts
from labelveil.feature_party.ridge.law import SumRows

ROWS = 3_000
X = np.random.default_rng(5).uniform(-1, 1, (ROWS, 3))
Y = np.where(X[:, 0] > 0.3, 8.0, 2.0) + np.where((X[:, 1] > 0) & (X[:, 0] < 0.3), 3.0, 0.0)
LATTICE = Lattice.between(0, 10)


@pytest.fixture(scope="module")
def answer() -> lv.PrivateSums:
    groups = clusters(X, 300, np.random.default_rng(0))
    widths = np.full(int(groups.max()) + 1, (LATTICE.steps + 1) // 2)
    question = lv.GroupQuestion(LATTICE, groups, widths, np.array([LATTICE.steps // 2]))
    return lv.group_sums(Y, question, epsilon=20)


@pytest.fixture(scope="module")
def model(answer: lv.PrivateSums) -> SumsModel:
    return SumsModel.fit(pl.DataFrame(X, schema=["a", "b", "c"]), [answer])


def test_trees_see_edges_from_sums_alone(answer: lv.PrivateSums) -> None:
    """Within a group an edge is not seen, so that errors are next to it: a third of a smooth
    function's, which an even plane is the best of."""
    data = SumRows.from_answers([answer])
    near = np.full(ROWS, 5.0)
    points = boost(X, data, near, np.ones(near.size), 0).predict(X)
    plane = np.column_stack([np.ones(ROWS), X])
    left = Y - plane @ np.linalg.lstsq(plane, Y, rcond=None)[0]
    assert np.mean((points - Y) ** 2) < np.mean(left**2) / 3
    assert np.mean((points - Y) ** 2) < 0.1 * Y.var()


@pytest.mark.slow
def test_a_sum_that_is_near_predictions_says_more_than_one_that_is_far_off(
    answer: lv.PrivateSums,
) -> None:
    """Half of the sums are off by far more than labels are: by how far they miss they count for
    little, and by the noise that is stated as much as any."""
    data = SumRows.from_answers([answer])
    noise = np.random.default_rng(3).laplace(0, 60, data.sums.size)
    noise[::2] = 0
    noisy = replace(data, sums=data.sums + noise, noise=np.full(data.sums.size, 2 * 30.0**2))
    near = Y + np.random.default_rng(4).normal(0, 1, ROWS)
    far = np.abs(noisy.sums + data.by_group(data.offsets - near)) + 1e-3

    def error(*more: Any) -> float:
        found = boost(X, noisy, near, np.ones(near.size), 0, *more)
        assert found is not None
        return float(np.mean((found.predict(X) - Y) ** 2))

    assert error(far) < 0.7 * error()


@pytest.mark.slow
def test_models_of_too_many_sums_draw_theirs(
    answer: lv.PrivateSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they have seen most, and are better than one model of as few."""
    monkeypatch.setattr(boosting, "_MOST_GROUPS", 100)
    data, near = SumRows.from_answers([answer]), np.full(ROWS, 5.0)
    found = boost(X, data, near, np.ones(near.size), 0)
    assert found is not None
    few = data.select(np.arange(0, data.sums.size, 3))
    alone = boost(X, few, near, np.ones(near.size), 0)
    assert alone is not None
    mine, its = (np.mean((each.predict(X) - Y) ** 2) for each in (found, alone))
    assert mine < 0.15 * Y.var()
    assert mine < its


@pytest.mark.slow
def test_they_count_by_how_many_sums_there_are_and_are_saved(
    answer: lv.PrivateSums, model: SumsModel, tmp_path: Path
) -> None:
    table = pl.DataFrame(X, schema=["a", "b", "c"])
    encoded = model.encoder.encode(table)
    ridges = replace(model, boosted=None).distributions(encoded).points
    kept = model.boosted
    assert kept is not None
    trees = kept.predict(columns_of(model.encoder, encoded))
    share = answer.sums.size / (answer.sums.size + 1_000)
    both = np.clip((1 - share) * ridges + share * trees, 0, 10)
    points = model.distributions(encoded).points
    inside = (ridges > 0) & (ridges < 10)
    assert points[inside] == pytest.approx(both[inside])
    SavedSums(model, SumsFacts((), ROWS, 5.0, "", 0, "id", "y")).save(tmp_path)
    again = SavedSums.load(tmp_path).predict(table)["prediction"].to_numpy()
    assert again == pytest.approx(points, rel=1e-12)
    for all_of, alone in ((0.0, ridges), (1.0, trees)):
        of_one = replace(model, boosted=Boosted(kept.trees, kept.constant, all_of))
        SavedSums(of_one, SumsFacts((), ROWS, 5.0, "", 0, "id", "y")).save(tmp_path)
        again = SavedSums.load(tmp_path).predict(table)["prediction"].to_numpy()
        assert again == pytest.approx(np.clip(alone, 0, 10), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"trees": None}, {"trees": {}}, {"constant": float("nan")}, {"constant": "much"},
        {"share": 1.5}, {"share": -0.1}, {"share": float("nan")}, {"share": "half"},
        {"shape": {"nodes": 10**12}}, {"shape": {"members": 4}}, {"shape": {"depth": -1}},
    ],
)  # fmt: skip
def test_trees_that_are_damaged_are_said_in_a_line(
    changed: dict[str, Any], model: SumsModel, tmp_path: Path
) -> None:
    SavedSums(model, SumsFacts((), ROWS, 5.0, "", 0, "id", "y")).save(tmp_path)
    path = tmp_path / "model.json"
    data = json.loads(path.read_text("utf-8"))
    if "trees" in changed:
        data |= changed
    else:
        data["trees"] |= changed | {"shape": data["trees"]["shape"] | changed.get("shape", {})}
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(DataError, match="is damaged"):
        SavedSums.load(tmp_path)


def test_a_leaf_that_says_no_number_is_said_in_a_line(model: SumsModel, tmp_path: Path) -> None:
    SavedSums(model, SumsFacts((), ROWS, 5.0, "", 0, "id", "y")).save(tmp_path)
    states = torch.load(tmp_path / "weights.pt", weights_only=True)
    states[-1]["values"][3] = float("nan")
    torch.save(states, tmp_path / "weights.pt")
    with pytest.raises(DataError, match="is damaged"):
        SavedSums.load(tmp_path)


def test_sums_of_labels_that_are_all_clipped_teach_no_trees(answer: lv.PrivateSums) -> None:
    """One step around the middle, and labels at 2 and 8: around exact predictions no sum moves."""
    asked = answer.question
    narrow = asked.half_widths.copy()
    narrow[:] = 1
    near = np.where(Y < 5, 2.0, 8.0)

    def boosted(widths: np.ndarray) -> Boosted | None:
        question = lv.GroupQuestion(LATTICE, asked.groups, widths, asked.offsets)
        sums = lv.group_sums(Y, question, epsilon=20)
        return boost(X, SumRows.from_answers([sums]), near, np.full(near.size, 1e-3), 0)

    assert boosted(narrow) is None
    narrow[::2] = asked.half_widths[::2]  # every other group is told as ever
    half = boosted(narrow)
    assert half is not None
    points = half.predict(X)
    assert np.isfinite(points).all()
    assert np.mean((points - Y) ** 2) < 0.5 * Y.var()
