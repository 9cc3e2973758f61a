"""What is asked of groups and told by their sums, as it was approved; weights by formulas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.group_sums import (
    NO_GROUP,
    GroupQuestion,
    Lattice,
    NoisySums,
    PrivateSums,
)
from labelveil.feature_party.groups import asking, scoring
from labelveil.feature_party.groups import model as models
from labelveil.feature_party.groups.asking import Expected, first_question, groups_of
from labelveil.feature_party.groups.means import MeansQuestion
from labelveil.feature_party.groups.model import SumsModel, encoder_of
from labelveil.feature_party.groups.score import Known
from labelveil.feature_party.groups.scoring import ScoreQuestion
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.ridge import fit as ridges
from labelveil.feature_party.ridge.columns import columns_of
from labelveil.feature_party.ridge.fit import RidgeFit, _most_of_each
from labelveil.feature_party.ridge.law import SumRows
from labelveil.feature_party.ridge.links import Cube
from labelveil.feature_party.schema import NOTHING
from tests.approved import approved
from tests.feature_party.worlds import thresholds_channel

torch = pytest.importorskip("torch")

KEPT = Path(__file__).with_name("approved.json")
LATTICE = Lattice(-3.0, 3.0, 511)
SUMS = 42
"""That are asked of the made-up events from which ridges are learned."""


def answered(question: GroupQuestion, labels: Floats, epsilon: str = "1") -> PrivateSums:
    """Sums with no noise, so that they are the same everywhere, of labels at their points."""
    places = np.rint((labels - question.lattice.lower) / question.lattice.step).astype(np.int64)
    return PrivateSums(NoisySums(question, Fraction(epsilon)), question.sums(places))


def of_question(question: GroupQuestion) -> dict[str, Any]:
    return {
        "groups": question.groups, "half_widths": question.half_widths,
        "offsets": question.offsets, "levels": question.levels, "weights": question.weights,
        "squares": question.squares,
    }  # fmt: skip


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("known", [False, True])
def test_a_score_is_asked_and_told_as_it_was(share: float, known: bool) -> None:
    rng = np.random.default_rng(4)
    points = rng.normal(0, share**0.5, 600).clip(-3, 3)
    labels = (points + rng.normal(0, (1 - share) ** 0.5, 600)).clip(-3, 3)
    given = Known(0.9, 0.2) if known else None
    draw, miss = np.random.default_rng(1), (1 - share) ** 0.5
    asked = ScoreQuestion.from_predictions(points, 0.1, LATTICE, 1.0, draw, miss, given)
    told = asked.score(answered(asked.question, labels))
    again = ScoreQuestion.from_question(asked.question, points, 0.1, miss, given)
    assert again.score(answered(asked.question, labels)) == told
    # without noise and with next to none, the sums of their events
    exact = float(np.mean((labels - points) ** 2))
    assert told.mse.low < exact < told.mse.high
    approved(KEPT, f"score {share} {known}", {
        **of_question(asked.question), "kind": asked.kind, "helped": asked.assisted,
        "guess": asked.guess, "told": told, "said": told.sentence,
        "expected": asked.expected(Fraction(1)), "sharper": asked.expected(Fraction(8)),
    })  # fmt: skip


def test_a_model_is_compared_with_another_as_it_was() -> None:
    rng = np.random.default_rng(5)
    points, other = rng.normal(0, 1, (2, 400)).clip(-3, 3)
    labels = (points + rng.normal(0, 0.5, 400)).clip(-3, 3)
    for name, reference in (("other", other), ("same", points), ("near", points + 0.1)):
        asked = ScoreQuestion.from_predictions(
            points, reference, LATTICE, 0.5, np.random.default_rng(1)
        )
        told = asked.score(answered(asked.question, labels, "1/2"))
        approved(KEPT, f"compared {name}", {**of_question(asked.question), "told": told})


@pytest.mark.parametrize("events", [19, 20])
def test_a_score_takes_twenty_events(events: int) -> None:
    points = np.linspace(-1, 1, events)
    if events == 20:
        assert (
            len(ScoreQuestion.from_predictions(points, 0.0, LATTICE, 1.0, np.random.default_rng(0)))
            == 20
        )
        return
    with pytest.raises(DataError, match="19 events are too few to score: take at least 20"):
        ScoreQuestion.from_predictions(points, 0.0, LATTICE, 1.0, np.random.default_rng(0))


def test_what_is_no_number_is_counted() -> None:
    points = np.append(np.linspace(-1, 1, 30), [np.nan, np.inf])
    fine = np.zeros(32)
    for given, name in (((points, fine), "predictions"), ((fine, points), "the reference")):
        with pytest.raises(DataError, match=f"{name} hold 2 that are no finite numbers; score"):
            ScoreQuestion.from_predictions(*given, LATTICE, 1.0, np.random.default_rng(0))


def test_questions_of_groups_are_those_that_were_approved() -> None:
    rng = np.random.default_rng(2)
    inputs, predictions = rng.normal(size=(400, 3)), rng.uniform(-3.5, 3.5, 400)
    doubts = rng.normal(size=(400, 2))
    for epsilon in (0.3, 2.0):
        for miss in (0.01, 0.4):
            asked = Expected(inputs, doubts, predictions, miss).question(
                LATTICE, epsilon, np.random.default_rng(3)
            )
            approved(KEPT, f"asked {epsilon} {miss}", of_question(asked))
        first = first_question(inputs, LATTICE, epsilon, np.random.default_rng(3))
        approved(KEPT, f"asked first {epsilon}", of_question(first))


@pytest.mark.parametrize(
    ("events", "epsilon", "width", "deviation", "groups"),
    [(1000, 1.0, 10.0, 5.0, 250), (1000, 2.0, 10.0, 5.0, 500), (3, 0.1, 10.0, 1.0, 1),
     (1003, 1.0, 10.0, 5.0, 250), (1000, 1.0, 20.0, 5.0, 125)],
)  # fmt: skip
def test_a_group_has_events_that_vary_together_as_their_noise_does(
    events: int, epsilon: float, width: float, deviation: float, groups: int
) -> None:
    """2 width / (ε deviation) events each."""
    assert groups_of(events, epsilon, width, deviation) == groups


@pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.5, 4.0])
def test_what_an_event_is_worth_is_fisher_information(epsilon: float) -> None:
    normal = stats.norm
    width = 1.5
    inside = normal.cdf(width) - normal.cdf(-width)
    clipped = float(
        np.mean(np.clip(normal.ppf((np.arange(400_000) + 0.5) / 400_000), -1.5, 1.5) ** 2)
    )
    size = 4 * width / (0.866 * epsilon)
    told = size * inside**2 / (size * clipped + 8 * width**2 / epsilon**2)
    assert asking.worth_of_sum(epsilon) == pytest.approx(0.9 * told, rel=1e-4)
    best = 0.0
    for parts in range(2, 17):
        edges = normal.ppf(np.arange(parts + 1) / parts)
        keep = np.exp(epsilon) / (np.exp(epsilon) + parts - 1)
        other = 1 / (np.exp(epsilon) + parts - 1)
        slopes = (keep - other) * np.diff(normal.pdf(edges))
        best = max(best, float(np.sum(slopes**2 * parts / (keep + (parts - 1) * other))))
    assert asking.worth_of_code(epsilon) == pytest.approx(best, rel=1e-6)
    if epsilon <= 2:
        assert asking.worth_of_code(epsilon) == pytest.approx(2 / np.pi * np.tanh(epsilon / 2) ** 2)
    approved(KEPT, f"worth {epsilon}", {
        "unknown": asking.worth_of_code(epsilon, 0.7),
        "gain": [asking.gain_of_sums(epsilon, in_rounds=rounds) for rounds in (True, False)],
        "least": asking.gain_of_sums(1e-9, in_rounds=True),
        "least of rounds": asking.gain_of_rounds(1e-9),
    })  # fmt: skip


def test_rows_of_sums_follow_each_other() -> None:
    labels = np.linspace(-2, 2, 8)
    first = GroupQuestion(
        LATTICE, np.array([1, 0, NO_GROUP, 1]), np.array([20, 300]), np.array([255])
    )
    second = GroupQuestion(
        LATTICE, np.array([0, 0, 1, 1]), np.array([50, 60]), np.array([100, 255]),
        np.array([0, 1, 1, 0]), np.array([1, -2, 3, 1]),
    )  # fmt: skip
    data = SumRows.from_answers([answered(first, labels[:4]), answered(second, labels[4:])])
    assert data.rows.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert data.groups.tolist() == [1, 0, 1, 2, 2, 3, 3]
    step = LATTICE.step
    np.testing.assert_allclose(data.widths / step, [300, 20, 300, 50, 50, 60, 60])
    assert data.open_ended.tolist() == [True, False, True, False, False, False, False]
    assert data.weights.tolist() == [1, 1, 1, 1, -2, 3, 1]
    np.testing.assert_allclose(
        data.offsets, LATTICE.points(np.array([255] * 3 + [100, 255, 255, 100]))
    )
    mean, variance, slope = data.moments(np.zeros(8), np.full(8, 0.5))
    assert (mean[0], variance[0], slope[0]) == pytest.approx((-data.offsets[0], 0.25, 1.0))
    assert variance[4] == pytest.approx(4 * variance[5] / 9, rel=0.2)
    # a label is at most 256 steps from the 255th of 511: at that width none is clipped
    exactly = answered(replace(first, half_widths=np.array([255, 256])), labels[:4])
    assert SumRows.from_answers([exactly]).open_ended.tolist() == [True, False, True]
    approved(KEPT, "rows of sums", {"mean": mean, "variance": variance, "slope": slope,
                                    "sums": data.sums, "noise": data.noise})  # fmt: skip


def test_frequent_values_have_columns_of_their_own() -> None:
    many = [f"v{i:02}" for i in range(70) for _ in range(5 + (69 - i))]
    table = pl.DataFrame({"c": many, "x": np.arange(float(len(many))) % 50})
    encoder = encoder_of(table, NOTHING)
    counts = sorted((many.count(value) for value in set(many)), reverse=True)
    for columns, most in (
        (columns_of(encoder, encoder.encode(table)), 64),
        (columns_of(encoder, encoder.encode(table), 32), 32),
    ):
        assert columns.shape[1] == encoder.inputs + most
        flags = columns[:, encoder.inputs :]
        assert set(np.unique(flags)) == {0.0, 1.0}
        assert flags.sum(axis=0).tolist() == counts[:most]


@pytest.mark.parametrize(
    ("sizes", "total", "most"),
    [([5, 5, 5], 9, 3), ([1, 10, 10], 11, 5), ([1, 2, 100], 13, 10), ([9], 1, 1), ([4, 4], 1, 1)],
)  # fmt: skip
def test_of_large_groups_as_many_are_taken_as_of_others(
    sizes: list[int], total: int, most: int
) -> None:
    found = _most_of_each(np.array(sizes), total)
    assert found == most
    assert sum(min(size, found) for size in sizes) <= max(total, len(sizes))


def learned(codes: bool = False) -> SumsModel:
    rng = np.random.default_rng(7)
    table = pl.DataFrame({"x": rng.normal(size=120), "z": rng.normal(size=120)})
    labels = (table["x"].to_numpy() * 0.8).clip(-3, 3)
    first = first_question(
        columns_of(encoder := encoder_of(table, NOTHING), encoder.encode(table))[:60],
        *(LATTICE, 8.0, np.random.default_rng(0)),
    )
    expected = Expected(np.zeros((60, 1)), np.zeros((60, 1)), labels[60:] + 0.2, 0.3)
    second = expected.question(LATTICE, 8.0, np.random.default_rng(1))
    answers = [answered(first, labels[:60], "8"), answered(second, labels[60:], "8")]
    if not codes:
        return SumsModel.fit(table, answers, seed=3)
    channel = thresholds_channel(np.linspace(-3.0, 3.0, 13), 4.0)
    places = np.rint((labels[:90] + 3) * 2).astype(np.int64)
    sent = channel.sample(places, seeded_entropy(1).words("labels", 0, 90)).astype(np.int64)
    problem = LabelProblem.from_channel(channel, np.ones(13))
    rows = pl.concat([table[:60], table[:90]])
    return SumsModel.fit(rows, answers[:1], codes=(problem, sent), seed=3)


KINDS = models._Kind(0.5, False), models._Kind(1.0, True)


@pytest.fixture(scope="module", autouse=True)
def few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ridges, "STEPS", (6, 3))
        patched.setattr(ridges, "FEATURES", 40)
        patched.setattr(models, "_KINDS", KINDS)
        yield


@pytest.fixture(scope="module")
def steps(few_steps: None) -> SumsModel:
    return learned()


def test_ridges_are_learned_as_they_were(steps: SumsModel) -> None:
    fresh = pl.DataFrame({"x": [-1.0, 0.0, 2.0, None], "z": [0.5, -0.5, 0.0, 1.0]})
    inputs = columns_of(steps.encoder, steps.encoder.encode(fresh))
    first = steps.ridges[0]
    # loosely: what a few steps of single precision lead to
    said = {
        "points": steps.distributions(steps.encoder.encode(fresh)).points,
        "miss": steps.miss, "scales": steps.scales, "weights": steps.weights,
        "doubt": first.doubt, "gain": [each.gain for each in steps.ridges],
        "doubts": float(np.sum(first.predict_with_doubts(inputs)[1] ** 2)),
    }  # fmt: skip
    approved(
        KEPT, "ridges", {name: np.round(np.atleast_1d(value), 2) for name, value in said.items()}
    )
    assert steps.learned


def test_some_events_of_each_group_stand_for_all_and_codes_count(
    steps: SumsModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What either leads to is near what all events' sums do: labels rise by .8 with x."""
    fresh = pl.DataFrame({"x": [-1.5, 0.0, 1.5], "z": [0.0, 0.0, 0.0]})
    monkeypatch.setattr(ridges, "_EVENTS", 70)
    some = learned()
    monkeypatch.setattr(ridges, "_CELLS", 170)
    fewer = learned()
    monkeypatch.undo()
    both = learned(codes=True)
    found = [each.distributions(each.encoder.encode(fresh)).points for each in (some, fewer, both)]
    told = steps.distributions(steps.encoder.encode(fresh)).points
    assert (np.abs(np.stack(found) - told) < 0.5).all()
    approved(KEPT, "some and codes", {"points": np.round(found, 2), "miss": round(both.miss, 2)})


def stand_in(number: int, start: float, kind: models._Kind, gains: dict[float, float]) -> Any:
    """A fit whose gain hangs on its start alone."""
    ridge = SimpleNamespace(gain=gains[start], number=number, kind=kind)
    return SimpleNamespace(
        constant_evidence=lambda: 7.0, misses=None, run=lambda constant, _: ridge
    )


@pytest.mark.parametrize(
    ("gains", "tried", "best"),
    [
        ({1.0: 3.0, 0.3: 9.0}, [1.0], 3.0),
        ({1.0: 2.9, 0.3: 2.95}, [1.0, 0.3], 2.95),
        ({1.0: 2.9, 0.3: 1.0}, [1.0, 0.3], 2.9),
    ],
)
def test_another_start_is_tried_where_the_first_finds_nothing(
    gains: dict[float, float], tried: list[float], best: float
) -> None:
    starts: dict[int, list[float]] = {4: [], 5: []}

    def fit(number: int, start: float, kind: models._Kind) -> Any:
        starts[number].append(start)
        return stand_in(number, start, kind, gains)

    found = [ridge for ridge, _ in models._fit_ridges(fit, 2, KINDS)]
    assert [(ridge.number, ridge.kind, ridge.gain) for ridge in found] == [
        (4, KINDS[0], best), (5, KINDS[1], best),
    ]  # fmt: skip
    assert starts == {4: [1.0, *tried], 5: tried}  # the first says what a constant would, too


@pytest.mark.parametrize("missing", [-1, 0, 1])
def test_trees_take_so_many_sums_and_how_far_each_is_off(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def boost(inputs: Floats, data: SumRows, *others: Any) -> None:
        given.append((data.sums.size, *others))
        raise ConfigError("LightGBM cannot be loaded")

    monkeypatch.setattr(models, "boost", boost)
    monkeypatch.setattr(models, "_LEAST_SUMS", SUMS + missing)
    seeds = property(lambda fit: np.full(SUMS, float(fit.draw.initial_seed())))
    monkeypatch.setattr(RidgeFit, "misses", seeds)
    with nullcontext() if missing > 0 else pytest.warns(UserWarning, match="LightGBM cannot be"):
        model = learned()
    assert model.boosted is None
    assert len(given) == (missing <= 0)
    for sums, points, deviations, seed, far, values in given:
        assert (sums, seed, points.size, [*values]) == (SUMS, 3, 120, [])  # there is no category
        own = model.weights @ [one.deviation for one in model.ridges]
        assert np.sqrt(np.mean(deviations**2)) == pytest.approx(own, rel=0.1)
        assert far == pytest.approx(np.full(SUMS, model.weights @ [6, 7]))


def test_codes_leave_no_room_for_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_LEAST_SUMS", 0)
    monkeypatch.setattr(models, "boost", None)
    assert learned(codes=True).boosted is None


def test_only_answers_of_these_rows_and_bounds_are_learned_from(steps: SumsModel) -> None:
    table = pl.DataFrame({"x": np.arange(40.0) % 7, "z": np.arange(40.0) % 5})
    question = first_question(np.zeros((40, 1)), LATTICE, 1.0, np.random.default_rng(0))
    answer = answered(question, np.zeros(40))
    other = first_question(np.zeros((40, 1)), Lattice(-3, 3, 300), 1.0, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="name the same bounds in all rounds"):
        SumsModel.fit(table, [answer, answered(other, np.zeros(40))])
    with pytest.raises(DataError, match="X has 39 rows, and the sums are about 40 events"):
        SumsModel.fit(table[:39], [answer])


def test_means_are_asked_by_columns_and_of_no_other_question() -> None:
    table = pl.DataFrame(
        {"arm": ["a", "b", "c"] * 20, "x": [1.0] * 60, "kind": ["u"] * 30 + ["v"] * 30}
    )
    asked = MeansQuestion.by_columns(table, ["kind", "arm"], Lattice(0, 9, 9))
    question = asked.question
    assert question.half_widths.tolist() == [5] * 6
    assert question.offsets.tolist() == [4]
    for place, (values, rows) in enumerate(asked.groups):
        assert values == (table["kind"][int(rows[0])], table["arm"][int(rows[0])])
        assert np.array_equal(np.flatnonzero(question.groups == place), np.sort(rows))
    labels = np.tile([1.0, 4.0, 7.0], 20)
    told = asked.means(answered(question, labels), "a")
    assert told.columns[:4] == ["kind", "arm", "events", "mean"]
    assert told["mean"].to_list() == pytest.approx([1.0, 4.0, 7.0] * 2)
    assert told["lift"].to_list() == pytest.approx([None, 3.0, 6.0] * 2)
    assert told["events"].to_list() == [10] * 6
    other = MeansQuestion.by_columns(table, ["arm"], Lattice(0, 9, 9))
    with pytest.raises(ConfigError, match="this answers another question than that for means"):
        other.means(answered(question, labels))
    for wrong, said in (
        (["none"], "by='none' is no column of X; columns: arm, x, kind"),
        ([], "means are of at least one event, by at least one column"),
    ):
        with pytest.raises(DataError, match=said):
            MeansQuestion.by_columns(table, wrong, Lattice(0, 9, 9))
    with pytest.raises(DataError, match="at least one event"):
        MeansQuestion.by_columns(table[:0], ["arm"], Lattice(0, 9, 9))


def test_constants_of_a_fit_are_those_of_the_labels_range() -> None:
    rng = np.random.default_rng(9)
    inputs = rng.normal(size=(60, 2))
    question = first_question(inputs, LATTICE, 1.0, np.random.default_rng(0))
    data = SumRows.from_answers([answered(question, rng.uniform(-1, 1, 60))])
    fit = RidgeFit(inputs, data, -3.0, 3.0, 0)
    assert fit.range == 6.0
    spread = inputs.std(axis=0).mean()
    assert fit.first == pytest.approx(np.log(1 / (spread * 2**0.5)))
    shorter = RidgeFit(inputs, data, -3.0, 3.0, 0, start=0.3, along=0.5)
    assert shorter.first == pytest.approx(np.log(0.3 / (spread * 2**0.5)))
    assert (fit.frequencies != 0).all()
    assert (shorter.frequencies != 0).any(dim=0).all()  # a wave along no column is a constant
    assert float((shorter.frequencies != 0).double().mean()) == pytest.approx(0.625, abs=0.1)
    np.testing.assert_array_equal(fit.first_predictions, 0)  # where none is clipped, at the level
    cubed = RidgeFit(inputs, data, -3.0, 3.0, 0, link=Cube(-3.0, 2.0))
    np.testing.assert_array_equal(cubed.first_predictions, -1.0)
    assert scoring.FEWEST == 20
