"""A model of sums in its folder: it predicts what it did, and says in a line what is wrong."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import labelveil as lv
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.formats import SUMS_MODEL
from labelveil.common.mechanisms.group_sums import Lattice, NoisySums
from labelveil.feature_party.config.sections import FeaturePartyConfig
from tests.effort import one_in
from tests.refusals import check_refused

pytest.importorskip("torch", reason="the features party needs torch")

from labelveil.feature_party.groups.model import SumsModel
from labelveil.feature_party.groups.saved import SavedSums, SumsFacts, is_of_sums, load_trained
from labelveil.feature_party.groups.scoring import ScoreQuestion
from labelveil.feature_party.model.several_labels import LabelModels
from labelveil.feature_party.ridge.links import Cube, Line
from labelveil.feature_party.ridge.ridge import Ridge

FACTS = SumsFacts(("ab",), 200, 5.0, "", 0, "id", "y", ("take care",))


@pytest.fixture(scope="module")
def saved() -> SavedSums:
    rng = np.random.default_rng(2)
    table = pl.DataFrame({"x": rng.normal(size=200), "kind": rng.choice(["a", "b"], 200)})
    labels = np.clip(5 + 2 * table["x"].to_numpy(), 0, 10)
    sums = lv.group_sums(labels, lv.ask_groups(table, epsilon=2, lower=0, upper=10), epsilon=2)
    return SavedSums(SumsModel.fit(table, [sums]), FACTS)


@pytest.mark.slow
def test_it_predicts_and_asks_what_it_did(saved: SavedSums, tmp_path: Path) -> None:
    saved.save(tmp_path)
    again = SavedSums.load(tmp_path)
    assert (again.facts, again.key, [*again.by_label]) == (FACTS, "id", ["y"])
    assert is_of_sums(tmp_path)
    trained = load_trained(tmp_path)
    assert isinstance(trained, SavedSums)
    assert (trained.sources, trained.has_distributions) == ((), False)
    table = pl.DataFrame({"x": [0.1, None, 3.0], "kind": ["a", "b", "new"]})
    assert again.predict(table).equals(saved.predict(table))
    each = np.array([ridge.scales.double().numpy() ** 2 for ridge in saved.model.ridges])
    counts = np.exp(
        [(ridge.gain - saved.model.ridges[0].gain) / 10 for ridge in saved.model.ridges]
    )
    assert again.model.scales == pytest.approx(np.sqrt(counts @ each / counts.sum()))
    rng = [np.random.default_rng(1) for _ in range(2)]
    table = pl.concat([table] * 20)
    asked = [
        each.model.ask(table, 1, r).encode() for each, r in zip((saved, again), rng, strict=True)
    ]
    assert asked[0] == asked[1]
    with pytest.raises(DataError, match="labelveil-models"):
        LabelModels.load(tmp_path)


def test_it_is_about_the_labels_of_one_party(saved: SavedSums) -> None:
    assert saved.for_source("") is saved
    check_refused(lambda: saved.for_source("p"), ConfigError, "^source='p' must name .* alone")


def narrowed(ridge: Ridge, width: int) -> Ridge:
    """As if it had been learned from the first columns alone."""
    columns = ridge.scales.numel()
    stays = [*range(1 + width), *range(1 + columns, ridge.coefficients.numel())]
    return replace(
        ridge,
        scales=ridge.scales[:width],
        frequencies=ridge.frequencies[:width],
        coefficients=ridge.coefficients[stays],
        unknown=ridge.unknown[stays],
    )


@pytest.mark.slow
def test_models_of_many_values_predict_and_so_do_those_of_format_1(tmp_path: Path) -> None:
    """When format 1 was written, 32 values of a category had a column of their own."""
    city = np.repeat([f"c{at:02}" for at in range(40)], np.arange(12, 52))
    table = pl.DataFrame({"x": np.arange(city.size) % 7.0, "city": city})
    labels = 1.5 * table["x"].to_numpy()
    sums = lv.group_sums(labels, lv.ask_groups(table, epsilon=2, lower=0, upper=10), epsilon=2)
    saved = SavedSums(SumsModel.fit(table, [sums]), FACTS)
    width = saved.model.encoder.inputs + 32
    assert saved.model.scales.size == width + 8
    ridges = tuple(narrowed(ridge, width) for ridge in saved.model.ridges)
    old = replace(saved, model=replace(saved.model, ridges=ridges, boosted=None, most_values=32))
    for model in (saved, old):
        model.save(tmp_path)
        again, found = SavedSums.load(tmp_path), model.predict(table)["prediction"].to_numpy()
        assert np.array_equal(again.predict(table)["prediction"], found)
        few = [again.predict(some)["prediction"].to_numpy() for some in table.iter_slices(50)]
        assert np.concatenate(few) == pytest.approx(found)  # by trees that are walked
    path = tmp_path / "model.json"
    data = json.loads(path.read_text())
    del data["most_values"]
    path.write_text(json.dumps({**data, "format": f"{SUMS_MODEL.name}/1"}))
    assert SavedSums.load(tmp_path).predict(table).equals(old.predict(table))
    path.write_text(json.dumps(data))
    with pytest.raises(DataError, match="is damaged"):
        SavedSums.load(tmp_path)


def test_ridges_of_format_2_predict_by_terms(saved: SavedSums, tmp_path: Path) -> None:
    """Before format 3 nobody wrote how expected labels follow from what is linear in features."""
    assert {type(ridge.link) for ridge in saved.model.ridges} == {Line, Cube}
    ridges = tuple(replace(ridge, link=Line(10.0)) for ridge in saved.model.ridges)
    old = replace(saved, model=replace(saved.model, ridges=ridges))
    old.save(tmp_path)
    path = tmp_path / "model.json"
    data = json.loads(path.read_text())
    assert [each.pop("cube") for each in data["ridges"]] == [None] * 4
    path.write_text(json.dumps({**data, "format": f"{SUMS_MODEL.name}/2"}))
    again = SavedSums.load(tmp_path)
    assert all(ridge.link == Line() for ridge in again.model.ridges)
    width = ridges[0].scales.numel()
    rows = np.random.default_rng(0).normal(size=(9, width)).astype(np.float32)
    for read, kept in zip(again.model.ridges, ridges, strict=True):
        np.testing.assert_array_equal(read.predict(rows), kept.predict(rows))


@pytest.mark.parametrize("text", ["[" * 200_000, "{", '{"format": [', "\0", "null", "{}", ""])
def test_what_is_no_model_of_any_kind_is_said_in_a_line(text: str, tmp_path: Path) -> None:
    """Whoever is given a model asks of its kind first: nesting must not end that in a traceback."""
    (tmp_path / "model.json").write_text(text)
    assert not is_of_sums(tmp_path)
    for kind in (SavedSums, LabelModels):
        with pytest.raises(DataError, match="is damaged"):
            kind.load(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "name", "value"),
    one_in(
        2,
        [
            ("facts", "key", 5),
            ("facts", "mean", float("nan")),
            ("facts", "releases", "abc"),
            ("facts", "warnings", 5),
            ("ridges", "deviation", float("nan")),
            ("ridges", "doubt", "a"),
        ],
    ),
)
def test_each_value_is_of_its_type(
    section: str, name: str, value: object, saved: SavedSums, tmp_path: Path
) -> None:
    saved.save(tmp_path)
    data = json.loads((tmp_path / "model.json").read_text())
    inner = data[section][0] if section == "ridges" else data[section]
    inner[name] = value
    (tmp_path / "model.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="is damaged"):
        SavedSums.load(tmp_path)


def test_what_is_damaged_is_said_in_a_line(saved: SavedSums, tmp_path: Path) -> None:
    assert not is_of_sums(tmp_path)
    with pytest.raises(DataError, match="holds no trained model"):
        SavedSums.load(tmp_path)
    saved.save(tmp_path)
    path, weights = tmp_path / "model.json", tmp_path / "weights.pt"
    data = json.loads(path.read_text())
    newer = f"{SUMS_MODEL.name}/{SUMS_MODEL.number + 1}"
    for changed, said in (
        ({"format": newer}, "is newer than"),
        ({"ridges": data["ridges"][:1]}, "is damaged"),
        ({"ridges": [{**each, "linear": "much"} for each in data["ridges"]]}, "is damaged"),
        *(
            ({"ridges": [{**each, "cube": cube} for each in data["ridges"]]}, "is damaged")
            for cube in (
                3,
                "much",
                {},
                {"lower": 0},
                {"lower": 0, "level": 0},
                {"lower": 0, "level": -1.0},
            )
        ),
        ({"lattice": [0, 10]}, "is damaged"),
        *(({"most_values": most}, "is damaged") for most in (0, -1, None, "much")),
        ({"facts": {}}, "is damaged"),
    ):
        path.write_text(json.dumps({**data, **changed}))
        with pytest.raises(DataError, match=said) as caught:
            SavedSums.load(tmp_path)
        assert str(caught.value).isprintable()
    first, *others = saved.model.ridges
    nothing = replace(first, coefficients=first.coefficients * float("nan"))
    for ridges in ((), (nothing, *others)):
        replace(saved, model=replace(saved.model, ridges=ridges)).save(tmp_path)
        check_refused(lambda: SavedSums.load(tmp_path), DataError, "is damaged")
    saved.save(tmp_path)
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="is damaged"):
        SavedSums.load(tmp_path)


@pytest.mark.parametrize("miss", [0.3, 3.0])
def test_a_score_is_told_of_the_predictions_that_were_asked_about(miss: float) -> None:
    rng = np.random.default_rng(4)
    labels = rng.uniform(0, 10, 400)
    points = labels + rng.normal(0, miss, 400)  # some of them where no label is
    assert points.min() < 0 < 10 < points.max()
    lattice = Lattice.between(0, 10)
    asked = ScoreQuestion.from_predictions(points, 5.0, lattice, 1.0, rng, miss)
    answer = lv.group_sums(labels, asked.question, epsilon=1)
    again = ScoreQuestion.from_question(asked.question, points, 5.0, miss)
    assert again.score(answer) == asked.score(answer)
    with pytest.raises(DataError, match="about other predictions"):
        ScoreQuestion.from_question(asked.question, points[::-1].copy(), 5.0, miss)


def test_a_constant_is_compared_with_itself_and_asks_no_empty_group() -> None:
    """All predictions lie on one level of offsets, and no difference weighs anything."""
    lattice, places, points = Lattice(0, 10, 200), np.arange(400) // 2, np.full(400, 5.0)
    asked = ScoreQuestion.from_predictions(points, 5.0, lattice, 4.0, np.random.default_rng(1))
    assert asked.question.levels is None
    noisy = NoisySums(asked.question, Fraction(4))
    again = ScoreQuestion.from_question(asked.question, points, 5.0, None)
    score = again.score(lv.PrivateSums(noisy, asked.question.sums(places)))
    assert score.r2.low < score.r2.value == 0 < score.r2.high
    assert score.reference_mse.value == pytest.approx((places / 20).var(), rel=0.2)
    everything = np.zeros(400, dtype=np.int64)
    empty = lv.GroupQuestion(lattice, everything, np.array([200, 200]), np.array([100]), squares=2)
    with pytest.raises(DataError, match="not the two sums of a score"):
        ScoreQuestion.from_question(empty, points, 5.0, None)


@pytest.mark.parametrize(("miss", "kind"), [(0.05, "errors"), (3.0, "gain")])
def test_sums_of_another_meaning_and_impossible_ones_tell_no_score(miss: float, kind: str) -> None:
    """They would tell one that is wrong: each question differs in one thing from what was asked."""
    rng = np.random.default_rng(4)
    points = np.clip(rng.uniform(0, 10, 400), 1, 9)
    asked = ScoreQuestion.from_predictions(points, 5.0, Lattice.between(0, 10), 1 / miss, rng, miss)
    assert asked.kind == kind
    right = asked.question
    ScoreQuestion.from_question(right, points, 5.0, miss)
    first, second = right.groups == 0, right.groups == 1
    one = np.arange(400) == np.argmax(np.where(first, points, 0))
    widths = right.half_widths.astype(np.int64)
    others: dict[str, Any] = {
        "squares of others": {"squares": 3 - right.squares},
        "no squares": {"squares": 0},
        "a group without events": {"groups": np.zeros(400, dtype=np.int64)},
        "a third group": {"half_widths": np.append(widths, 1)},
        "errors that are clipped": {"half_widths": widths - [kind == "errors", 1]},
    }
    if right.weights is not None:
        weights, slight = right.weights.astype(np.int64), right.largest_weight // 50
        others["no weights"] = {"weights": None}
        others["a weight"] = {"weights": weights + one * slight}
        others["weights of squares"] = {"weights": weights - second * slight}
    others = {name: replace(right, **other) for name, other in others.items()}

    def refused(question: Any, points: Any) -> bool:
        with suppress(DataError):
            ScoreQuestion.from_question(question, points, 5.0, miss)
            return False
        return True

    assert [name for name in others if not refused(others[name], points)] == []
    assert refused(right, np.where(one, 1.0, points))
    # the second sum is of squares: 0 … n h² steps², and noise of deviation √2 h²
    square = int(widths[1]) ** 2 * right.largest_weight
    most, noisy = int(second.sum()) * square, NoisySums(right, Fraction(1))
    for sum_, possible in (
        (most + 25 * square, True), (most + 35 * square, False),
        (-25 * square, True), (-35 * square, False),
    ):  # fmt: skip
        with nullcontext() if possible else pytest.raises(DataError, match="no labels have such"):
            asked.score(lv.PrivateSums(noisy, np.array([0, sum_])))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"groups": {"epsilon": 1}}, "belong together"),
        ({"groups": {"epsilon": 1, "lower": 3, "upper": 3}}, "must be below upper"),
        ({"training": {"holdout": 0}}, "keeps no events"),
        ({"release": {"parquet": True}}, "have none"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything(
    values: dict[str, dict[str, object]], said: str
) -> None:
    rounds = {} if "groups" in values else {"rounds": {"shares": [1.0]}}
    given = {
        "groups": {"epsilon": 1, "lower": 0, "upper": 1},
        "labels_party": {"submit": True, "epoch": "day"},
    }
    with pytest.raises((ConfigError, ValueError), match=said):
        FeaturePartyConfig.model_validate(given | rounds | values)
