"""What the columns of a model of sums are, and what each of its ridges counts for."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
import torch

import labelveil as lv
from labelveil.common.arrays import Floats, Singles
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, NoisySums, PrivateSums
from labelveil.feature_party.groups import model as models
from labelveil.feature_party.groups.asking import Expected
from labelveil.feature_party.groups.model import SumsModel, encoder_of
from labelveil.feature_party.ridge.columns import columns_of, values_of
from labelveil.feature_party.ridge.links import Line
from labelveil.feature_party.ridge.ridge import Ridge
from labelveil.feature_party.schema import NOTHING

WORKERS = np.r_[np.zeros(100, dtype=np.int64), np.arange(100) % 6 + 1]
TABLE = pl.DataFrame({"workers": WORKERS, "age": np.arange(200.0) % 80})


@pytest.fixture(scope="module")
def model() -> SumsModel:
    question = lv.ask_groups(TABLE, epsilon=8, lower=0, upper=10)
    return SumsModel.fit(TABLE, [lv.group_sums(10.0 * (WORKERS > 0), question, epsilon=8)])


@pytest.mark.slow
def test_a_number_that_many_rows_have_has_a_column_of_its_own(model: SumsModel) -> None:
    columns = columns_of(model.encoder, model.encoder.encode(TABLE))
    assert columns.shape == (200, 3)  # two numbers, and whether there are workers at all
    assert np.array_equal(columns[:, 1] > 0, WORKERS > 0)


def test_each_frequent_value_of_a_category_has_a_column() -> None:
    """The most frequent first; rarer ones, missing ones and those never seen have none."""
    city = np.repeat(["b", "c", "a", "d"], [40, 30, 20, 15])
    table = pl.DataFrame({"city": city, "kind": np.resize(["tall", "wide"], city.size)})
    encoder = encoder_of(table, NOTHING)
    fresh = pl.DataFrame({"city": ["c", "d", None, "new", "b", "a"], "kind": ["wide"] * 6})
    rows = pl.concat([table, fresh])
    columns = columns_of(encoder, encoder.encode(rows), most_values=3)
    cities, kinds = values_of(encoder, most_values=3)
    assert columns.shape[1] == kinds.stop
    wanted = np.column_stack([rows["city"].to_numpy() == name for name in ("b", "c", "a")])
    assert np.array_equal(columns[:, cities], wanted)
    assert np.array_equal(columns[:, kinds].sum(axis=1), np.ones(len(rows)))


@pytest.mark.slow
def test_a_ridge_under_which_sums_are_likelier_by_ten_counts_e_times_as_much(
    model: SumsModel,
) -> None:
    first = replace(model.ridges[0], link=Line())
    constant = torch.zeros_like(first.coefficients)
    constant[0] = 1
    two = (
        replace(first, gain=-30.0, coefficients=2 * constant, deviation=3.0, doubt=4.0),
        replace(first, gain=-20.0, coefficients=6 * constant, deviation=6.0, doubt=8.0),
    )
    mean, share = replace(model, ridges=two), 1 / (1 + np.e)
    points = mean.distributions(mean.encoder.encode(TABLE)).points
    assert points == pytest.approx(np.full(200, 2 * share + 6 * (1 - share)))
    assert mean.miss == pytest.approx(5 * share + 10 * (1 - share))
    assert len(mean.ask(TABLE, 8, np.random.default_rng(0))) == 200


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:40 sums do not show")
def test_sums_of_noise_alone_show_no_column() -> None:
    """If one fit of noise in four showed one, 12 would with a chance of 97 %. A column that
    explains half of what varies is seen in every fit."""
    lattice, widths = Lattice(0, 10, 500), np.full(40, 250)
    said = {"noise": 0, "a column": 0}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, noise = rng.normal(size=(400, 3)), rng.normal(size=400)
        groups = np.empty(400, dtype=np.int64)
        groups[np.argsort(x[:, seed % 3])] = np.arange(400) // 10
        question = GroupQuestion(lattice, groups, widths, np.array([250]))
        for name, labels in {"noise": noise, "a column": x[:, seed % 3] + noise}.items():
            if name == "noise" or seed < 3:
                noisy, entropy = NoisySums(question, Fraction(2)), seeded_entropy(seed)
                places = np.rint(np.clip(5 + labels, 0, 10) / lattice.step).astype(np.int64)
                answer = PrivateSums(noisy, noisy.draw(places, entropy))
                table = pl.DataFrame(x, schema=["a", "b", "c"])
                said[name] += SumsModel.fit(table, [answer], seed=seed).learned
    assert said == {"noise": 0, "a column": 3}


@pytest.mark.slow
def test_doubts_of_a_mean_are_those_of_its_ridges(
    model: SumsModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of two events' is their covariance: the ridges' mean, as these are weighed."""
    first = model.ridges[0]
    mean = replace(model, ridges=(replace(first, gain=5.0), replace(first, gain=20.0)))
    drawn = {gain: np.random.default_rng(int(gain)).normal(size=(200, 3)) for gain in (5.0, 20.0)}

    def drawn_doubts(self: Ridge, inputs: Singles) -> tuple[Floats, Floats]:
        return self.predict(inputs), drawn[self.gain]

    monkeypatch.setattr(Ridge, "predict_with_doubts", drawn_doubts)
    monkeypatch.setattr(Expected, "question", lambda self, *given: (self, *given))
    expected, lattice, epsilon, _ = mean.ask(TABLE, 8, np.random.default_rng(0))  # type: ignore[misc]
    weights = np.array([np.exp(-1.5), 1]) / (np.exp(-1.5) + 1)
    wanted = sum(
        weight * doubts @ doubts.T for weight, doubts in zip(weights, drawn.values(), strict=True)
    )
    np.testing.assert_allclose(expected.doubts @ expected.doubts.T, wanted, atol=1e-5)
    np.testing.assert_allclose(
        expected.predictions, mean.distributions(mean.encoder.encode(TABLE)).points
    )
    assert (lattice, epsilon, expected.miss) == (model.lattice, 8, mean.miss)


@pytest.mark.slow
@pytest.mark.parametrize(("more", "ridges"), [(1, 4), (0, 1)])
def test_many_sums_teach_one_ridge(more: int, ridges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    question = lv.ask_groups(TABLE, epsilon=8, lower=0, upper=10)
    answer = lv.group_sums(10.0 * (WORKERS > 0), question, epsilon=8)
    monkeypatch.setattr(models, "_MANY_SUMS", answer.sums.size + more)
    assert len(SumsModel.fit(TABLE, [answer]).ridges) == ridges


@pytest.mark.slow
def test_groups_of_no_event_whose_noise_is_nothing_are_learned_from() -> None:
    """At this ε every sum is exact, and of clipped labels: empty groups miss by nothing at all."""
    x = np.linspace(-2, 2, 200)
    labels = np.clip(5 + 2 * x, 0, 10)
    groups = np.arange(200, dtype=np.int64) // 10
    widths, offsets = np.full(24, 4), np.array([10])
    question = GroupQuestion(Lattice(0, 10, 20), groups, widths, offsets, None)
    answer = lv.group_sums(labels, question, epsilon=40)
    table = pl.DataFrame({"x": x})
    model = SumsModel.fit(table, [answer])
    missed = model.distributions(model.encoder.encode(table)).points - labels
    assert np.mean(missed**2) < 0.2 * labels.var()


@pytest.mark.slow
def test_ridges_that_are_fitted_side_by_side_are_those_of_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = lv.ask_groups(TABLE, lower=0, upper=10, epsilon=8)
    answer = lv.group_sums(10.0 * (WORKERS > 0), question, epsilon=8)
    found = []
    for cores in (1, 4):
        monkeypatch.setattr("labelveil.feature_party.threads.THREADS", cores)
        model = SumsModel.fit(TABLE, [answer])
        found.append([(ridge.gain, *ridge.coefficients.tolist()) for ridge in model.ridges])
    assert found[0] == found[1]
    assert len({each[0] for each in found[0]}) == 4  # each with features of its own
