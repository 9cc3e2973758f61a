"""Links: what is expected as a function of what is linear in features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import labelveil as lv
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.feature_party.notebook.sources import problem_of
from labelveil.feature_party.ridge.codes import CodeRows
from labelveil.feature_party.ridge.fit import RidgeFit
from labelveil.feature_party.ridge.law import SumRows
from labelveil.feature_party.ridge.links import Cube, Line, Link
from tests.feature_party.ridge.test_ridge import rows_of

LINKS = [Line(8.0), Cube(2.0, 3.0)]


@pytest.mark.parametrize("link", LINKS)
def test_a_link_is_smooth_rises_and_is_inverted(link: Link) -> None:
    z = np.linspace(-9, 9, 1_801)
    labels, step = link.mean(z), 1e-6
    np.testing.assert_allclose(link.inverse(labels), z, atol=1e-9)
    assert (np.diff(labels) > 0).all()
    slope = (link.mean(z + step) - link.mean(z - step)) / (2 * step)
    np.testing.assert_allclose(link.slope(z), slope, rtol=1e-5)
    np.testing.assert_allclose(link.mean(torch.as_tensor(z)).numpy(), labels, rtol=1e-13)


def test_a_cube_differs_by_factors_around_its_level() -> None:
    cube = Cube(2.0, 3.0)
    z = np.array([0.0, 0.3, 3.0])
    np.testing.assert_allclose(cube.mean(z), 2 + 3 * np.array([1.0, 1.1**3, 8.0]))
    np.testing.assert_allclose(cube.mean(z[:2]), 2 + 3 * np.exp(z[:2]), rtol=0.01)
    # and by the same factors labels deviate: as predictions change
    np.testing.assert_allclose(cube.relative_deviation(z), cube.slope(z) / cube.slope(z[:1]))
    assert cube.relative_deviation(np.array([-50.0])) == pytest.approx(0.16)


@pytest.mark.parametrize(
    ("average", "level"), [(5.0, 4.0), (1.2, 0.2), (0.0, 0.2), (np.nan, 0.2), (99.0, 10.0)]
)
def test_a_level_is_within_the_bounds(average: float, level: float) -> None:
    assert Cube.around(average, 1.0, 11.0) == Cube(1.0, pytest.approx(level))


def test_what_differs_by_factors_takes_fewer_sums_to_learn() -> None:
    """Three factors of two columns each; noise of a twentieth of the range for each of 150 sums."""
    rng, left = np.random.default_rng(4), {}
    inputs = rng.uniform(-1, 1, size=(2_000, 3)).astype(np.float32)
    truth = np.exp(1.2 * inputs.sum(axis=1))
    order = np.argsort(inputs[:1_500] @ [1.0, 0.3, 0.1])
    groups = np.empty(1_500, dtype=np.int64)
    groups[order] = np.arange(1_500) // 10
    data = rows_of(groups, truth[:1_500])
    noise = rng.laplace(scale=20, size=150)
    data = replace(data, sums=data.sums + noise, noise=np.full(150, 800.0))
    for name, link in (("line", None), ("cube", Cube.around(data.average, 0, 40))):
        ridge = RidgeFit(inputs, data, 0, 40, 0, waves=100, link=link).run()
        left[name] = np.mean((ridge.predict(inputs[1_500:]) - truth[1_500:]) ** 2) / truth.var()
        left[f"gain of {name}"] = ridge.gain
    assert left["cube"] < 0.6 * left["line"]
    assert left["gain of cube"] > left["gain of line"] + 5


def test_codes_are_numbers_of_what_is_linear() -> None:
    """Near z a code tells of it what it tells of the label there, times the slope."""
    rng = np.random.default_rng(2)
    labels, inputs = rng.uniform(0, 10, 200), rng.normal(size=(200, 2)).astype(np.float32)
    codes = lv.randomize_labels(labels, lower=0, upper=10, epsilon=2)
    beside = CodeRows.from_problem(problem_of(codes, codes.codes), codes.codes, np.arange(200))
    found = {}
    for link in (Line(10.0), Cube(0.0, 4.0)):
        fit = RidgeFit(inputs, SumRows.none(), 0, 10, 0, codes=beside, link=link)
        fit.z = link.inverse(np.full(200, 6.0))
        fit._linearize()
        found[type(link)] = fit.seen.numpy() * link.unit, fit.seen_variance.numpy() * link.unit**2
    cube = Cube(0.0, 4.0)
    z = cube.inverse(np.array([6.0]))
    assert cube.relative_deviation(z) == pytest.approx(1.5 ** (2 / 3))
    slope = cube.slope(z)
    assert np.isfinite(found[Cube][0]).all()
    # labels deviate by another factor there, so that what is told agrees loosely
    np.testing.assert_allclose(found[Cube][1] * slope**2, found[Line][1], rtol=0.5)


def test_a_model_of_sums_takes_both_kinds() -> None:
    table = pl.DataFrame({"x": np.arange(400) % 20 / 10.0})
    labels = np.exp(table["x"].to_numpy())
    sums = lv.group_sums(labels, lv.ask_groups(table, epsilon=2, lower=0, upper=8), epsilon=2)
    model = lv.LabelDPRegressor().fit(table, [sums])
    assert {type(ridge.link) for ridge in model.model_.ridges} == {Line, Cube}


def test_the_average_is_of_labels_and_of_offsets_where_they_are_clipped() -> None:
    labels = np.arange(12.0)
    data = rows_of(np.arange(12) % 3, labels)
    assert data.average == pytest.approx(5.5)
    clipped = replace(data, offsets=np.full(12, 4.0), sums=np.array([2.0, -2.0, 6.0]))
    assert clipped.average == pytest.approx(4.5)
    louder = replace(data, noise=np.array([1e-9, 1.0, 1.0]))
    assert louder.average == pytest.approx(labels[::3].mean())
    signs = np.repeat([1.0, -1.0], 6)
    assert np.isnan(replace(data, weights=signs).average)


def test_sums_of_differences_are_learned_from_too() -> None:
    """Weights that cancel say of no level: predictions begin at the least there is."""
    x = np.linspace(-1, 1, 200)
    table, labels = pl.DataFrame({"x": x}), 20 + 10 * x
    weights = np.where(x > 0, 1, -1)
    question = GroupQuestion(
        Lattice(0, 40, 40),
        np.arange(200) % 20,
        np.full(20, 40),
        np.array([20]),
        weights=weights,
    )
    sums = lv.group_sums(labels, question, epsilon=8)
    points = lv.LabelDPRegressor().fit(table, [sums]).predict(table)
    assert np.isfinite(points).all()
    assert np.corrcoef(points, labels)[0, 1] > 0.8


def test_where_a_constant_is_far_likelier_a_cube_predicts_the_mean() -> None:
    """Around a constant a cube is a line: the mean of its predictions, far off, would be double."""
    rng = np.random.default_rng(6)
    inputs = rng.normal(size=(400, 2)).astype(np.float32)
    labels = np.exp(1.5 * inputs[:, 0]).clip(0, 40)
    data = rows_of(np.argsort(np.argsort(inputs[:, 0])) // 10, labels)

    link = Cube.around(data.average, 0, 40)
    fit = RidgeFit(inputs, data, 0, 40, 0, waves=40, steps=(10, 5), link=link)
    points = fit.run(constant=1e6).predict(inputs)
    assert points.std() < 1e-6
    assert points.mean() == pytest.approx(labels.mean(), rel=0.1)
