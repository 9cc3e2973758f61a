"""Numbers that other libraries are given: as formulas and finite differences have them."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_releases import join_problems
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.notebook.boosting import (
    SCALE_PACE,
    BoostingObjective,
    CatBoostObjective,
    LightGBMObjective,
    XGBoostObjective,
)
from labelveil.feature_party.notebook.clear_labels import ClearLabels
from labelveil.feature_party.notebook.laws_by_mean import LawsByMean
from labelveil.feature_party.notebook.sources import check_codes, prior_of_codes, problem_of
from labelveil.feature_party.notebook.targets import decode_targets
from labelveil.feature_party.notebook.torch_loss import ReleaseLoss, likelihood

torch = pytest.importorskip("torch")

GRID = np.arange(0.0, 12.0, 2.0)
PRIOR = np.array([0.1, 0.3, 0.25, 0.15, 0.15, 0.05])


def problem(epsilon: float = 2.0, loss: str = "squared") -> LabelProblem:
    channel = FiniteChannel(GRID, GRID + 0.5, randomized_response_rows(6, epsilon))
    return LabelProblem.from_channel(channel, PRIOR, loss)


def rows(count: int, outputs: int) -> np.ndarray:
    return 0.7 * np.random.default_rng(5).normal(size=(count, outputs))


@pytest.mark.parametrize("head", ["gaussian", "log-normal", "gamma", "poisson", "mean"])
def test_derivatives_are_slopes_of_the_loss_and_information_of_the_codes(head: str) -> None:
    given, step = problem(), 1e-3
    made = BoostingObjective(given, head)
    raw = rows(6, made.outputs)
    codes = np.arange(6)
    gradient, hessian = made.derivatives(raw, codes)
    assert gradient.shape == hessian.shape == raw.shape
    pace = np.ones(made.outputs)
    if made.outputs == 2:
        pace[1] = SCALE_PACE
    laws = made.distribution(raw)
    np.testing.assert_allclose(laws.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(made.predict(raw), laws @ made.labels, rtol=1e-6)

    told = Support.from_problem(given).likelihood

    def chances(outputs: np.ndarray) -> np.ndarray:
        """(n, d) of all codes, by the laws."""
        return np.asarray(made.distribution(outputs) @ told)

    for place in range(made.outputs) if head != "mean" else ():
        up, down = raw.copy(), raw.copy()
        up[:, place] += step
        down[:, place] -= step
        slopes = (np.log(chances(up)) - np.log(chances(down))) / (2 * step)
        np.testing.assert_allclose(
            gradient[:, place], -pace[place] * slopes[np.arange(6), codes], rtol=0.05, atol=0.05
        )
        information = np.sum(chances(raw) * slopes**2, axis=1)
        least = hessian[:, place].min()  # a step is never unbounded
        expected = np.maximum(information, least)
        np.testing.assert_allclose(hessian[:, place], expected, rtol=0.1, atol=0.03)
    losses = np.array([made.loss(raw[i : i + 1], codes[i : i + 1]) for i in range(6)])
    if head != "mean":
        # but for a constant of each code
        known = losses + np.log(chances(raw)[np.arange(6), codes])
        moved = made.loss(raw + 0.1, codes) + np.log(chances(raw + 0.1)[np.arange(6), codes]).mean()
        assert moved == pytest.approx(known.mean(), abs=0.02)
    each = np.array([0.0, 1.0, 2.0, 3.0, 0.5, 1.0])
    weighed = made.derivatives(raw, codes, each)
    np.testing.assert_allclose(weighed[0], gradient * each[:, None])
    np.testing.assert_allclose(weighed[1], hessian * each[:, None])
    assert made.loss(raw, codes, each) == pytest.approx(each @ losses / each.sum())
    assert made.loss(raw, codes) == pytest.approx(losses.mean())
    assert copy.deepcopy(made) is made  # or estimators that have one could not be cloned


def test_each_library_is_called_as_it_wants() -> None:
    given = problem()
    raw, codes, each = rows(6, 2), np.arange(6), np.arange(1.0, 7.0)
    data = SimpleNamespace(get_label=lambda: codes, get_weight=lambda: each)
    plain = BoostingObjective(given, "gaussian")
    gradient, hessian = plain.derivatives(raw, codes, each)
    loss = plain.loss(raw, codes, each)
    light = LightGBMObjective(given, "gaussian")
    assert light.parameters == {"objective": light.objective, "num_class": 2, "metric": "None"}
    boost = XGBoostObjective(given, "gaussian")
    assert boost.parameters == {
        "base_score": 0.0, "disable_default_eval_metric": True, "num_class": 2,
    }  # fmt: skip
    for made in (light, boost):
        for arguments in ((raw, data), (codes, raw, each)):
            found = made.objective(*arguments)
            np.testing.assert_allclose(found[0], gradient)
            np.testing.assert_allclose(found[1], hessian)
    assert light.metric(raw, data) == ("release_loss", loss, False)
    assert light.metric(codes, raw, each) == ("release_loss", loss, False)
    assert boost.metric(raw, data) == ("release_loss", loss)
    assert boost.metric(codes, raw, each) == loss
    one = XGBoostObjective(given, "mean")
    assert "num_class" not in one.parameters
    flat = LightGBMObjective(given, "mean").objective(raw[:, 0], data)[0]
    assert flat.shape == (6,)


def test_catboost_is_given_what_falls_and_sums() -> None:
    made = CatBoostObjective(problem(), "mean")
    raw, codes, each = rows(6, 1)[:, 0], np.arange(6.0), np.array([0.0, 1, 2, 3, 4, 5])
    gradient, hessian = made.derivatives(raw, codes, each)
    assert made.calc_ders_range(raw, codes, each) == [
        (-float(g[0]), -float(h[0])) for g, h in zip(gradient, hessian, strict=True)
    ]
    total, weight = made.evaluate([raw], codes, each)
    assert weight == 15
    assert made.get_final_error(total, weight) == pytest.approx(made.loss(raw, codes, each))
    total, weight = made.evaluate([raw], codes, None)
    assert weight == 6
    assert total / 6 == pytest.approx(made.loss(raw, codes))
    assert made.evaluate([raw], codes, np.zeros(6)) == (0, 0)
    assert not made.is_max_optimal()
    assert made.parameters == {
        "loss_function": made, "eval_metric": made, "boost_from_average": False,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="'gaussian' has 2 outputs here, and CatBoost learns one"):
        CatBoostObjective(problem(), "gaussian")


def test_what_is_not_of_the_same_rows_is_refused() -> None:
    made = BoostingObjective(problem(), "gaussian")
    codes = np.arange(6)
    for raw in (rows(6, 3), rows(6, 1), np.zeros((2, 2, 2))):
        with pytest.raises(DataError, match="must have 2 a row"):
            made.loss(raw, codes)
    with pytest.raises(DataError, match="5 raw outputs must be of as many codes as 6"):
        made.loss(rows(5, 2), codes)
    for wrong in ([1.0] * 5, [1.0] * 5 + [-1.0]):
        with pytest.raises(DataError, match=r"weights must be 6 numbers >= 0, one a row"):
            made.loss(rows(6, 2), codes, np.array(wrong))
    assert made.loss(rows(6, 2), codes, np.empty(0)) == made.loss(rows(6, 2), codes)
    for wrong, said in (([-1] * 6, "code -1 must lie in 0 … 5"), ([6] * 6, "code 6 must lie in")):
        with pytest.raises(DataError, match=said):
            made.loss(rows(6, 2), np.array(wrong))


def test_codes_are_whole_numbers_of_a_channel() -> None:
    given = problem()
    for good in ([0, 5], [0.0, 5.0], [True, False], np.array([5], dtype=np.uint16), []):
        found = check_codes(np.array(good), given)
        assert found.dtype == np.int64
        assert found.tolist() == [int(each) for each in good]
    for bad in ([[0]], [0.5], ["0"], [np.nan]):
        with pytest.raises(DataError, match="codes must be a column of whole numbers"):
            check_codes(np.array(bad), given)
    for bad, first in (([0, 6, 7], 6), ([0, -2, 9], -2)):
        with pytest.raises(DataError, match=rf"code {first} must lie in 0 … 5, the channel's"):
            check_codes(np.array(bad), given)


def test_the_likeliest_prior_of_codes_is_a_fixed_point() -> None:
    channel = FiniteChannel(GRID, GRID, randomized_response_rows(6, 1.5))
    codes = np.repeat(np.arange(6), [450, 640, 580, 470, 480, 380])
    found = prior_of_codes(channel, codes)
    assert found.sum() == pytest.approx(1)
    # randomized response is turned around: shares = (seen − q) / (p − q), which all are >= 0
    p, q = channel.probabilities[0, 0], channel.probabilities[0, 1]
    exact = (np.bincount(codes) / 3000 - q) / (p - q)
    assert exact.min() > 0
    np.testing.assert_allclose(found, exact, atol=1e-4)
    np.testing.assert_allclose(problem_of(channel, codes).prior, found, rtol=1e-12)
    with pytest.raises(DataError, match="there are no codes to learn from"):
        problem_of(channel, np.empty(0, dtype=int))


def test_decoded_labels_and_weights_are_those_of_the_formulas() -> None:
    given, codes = problem(), np.arange(6)
    joint = given.channel * given.prior[:, None]
    posterior = (joint * given.grid[:, None]).sum(axis=0) / joint.sum(axis=0)
    marginal = joint.sum(axis=0)
    told = float(marginal @ (posterior - given.mean) ** 2)
    low = decode_targets(given, codes, "low-variance")
    share = told / given.deviation**2
    np.testing.assert_allclose(low.targets, given.mean + (posterior - given.mean) / share)
    np.testing.assert_allclose(low.weights, 1)
    exact = decode_targets(given, codes)
    np.testing.assert_allclose(given.channel @ exact.targets, given.grid, atol=1e-9)
    with pytest.raises(ConfigError, match="method='best' must be unbiased or low-variance"):
        decode_targets(given, codes, "best")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["unbiased", "low-variance"])
def test_releases_weigh_by_the_inverse_of_their_noise(method: Any) -> None:
    parts = [problem(1.0), problem(3.0)]
    both = join_problems(parts, [10, 10])
    noise = []
    for part in parts:
        codes = np.arange(6)
        targets = decode_targets(part, codes, method).targets
        joint = part.channel * part.prior[:, None]
        if method == "unbiased":
            noise.append(float((joint * (targets - part.grid[:, None]) ** 2).sum()))
        else:
            noise.append(float(joint.sum(axis=0) @ (targets - part.mean) ** 2))
    found = decode_targets(both, np.arange(12), method)
    assert found.weights.mean() == pytest.approx(1)
    assert found.weights[0] / found.weights[6] == pytest.approx(noise[1] / noise[0])
    alone = [decode_targets(part, np.arange(6), method).targets for part in parts]
    np.testing.assert_allclose(found.targets, np.concatenate(alone))


@pytest.mark.parametrize(
    ("lowest", "prior", "head"),
    [
        (0, PRIOR, "gaussian"),
        (0, [0.8, 0.1, 0.05, 0.03, 0.015, 0.005], "log-normal"),
        (-1, [0.8, 0.1, 0.05, 0.03, 0.015, 0.005], "gaussian"),
    ],
)
def test_around_a_prediction_codes_are_decoded_under_its_law(
    lowest: float, prior: Any, head: str
) -> None:
    channel = FiniteChannel(GRID + lowest, GRID + 0.5, randomized_response_rows(6, 2.0))
    given, rng = LabelProblem.from_channel(channel, np.array(prior)), np.random.default_rng(3)
    points, codes = rng.uniform(2, 8, 400), rng.integers(0, 6, 400)
    found = decode_targets(given, codes, around=points)
    law = likelihood(given, head)
    laws, support = LawsByMean.fitted(law, points, codes), Support.from_problem(given)
    for place in range(0, 400, 40):
        at = int(np.abs(laws.means - points[place]).argmin())
        own, values = laws.probabilities[at], support.values
        joint = own[:, None] * support.likelihood
        marginal = joint.sum(axis=0)
        moved = values @ joint / marginal - own @ values
        variance = own @ values**2 - (own @ values) ** 2
        share = max(float(marginal @ moved**2) / marginal.sum() / variance, 1e-3)
        expected = own @ values + moved[codes[place]] / (share * marginal.sum())
        assert found.targets[place] == pytest.approx(expected, rel=0.02)
    assert found.weights.mean() == pytest.approx(1)
    assert np.ptp(found.weights) > 1e-3


def test_laws_of_a_family_are_found_by_their_means() -> None:
    given, rng = problem(), np.random.default_rng(4)
    law = likelihood(given, "gaussian")
    points = rng.uniform(2, 8, 300)
    codes = (points / 2).round().astype(int).clip(0, 5)
    found = LawsByMean.fitted(law, points, codes)
    assert (np.diff(found.means) >= 0).all()
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-6)
    nearest = found.nearest(points)
    apart = np.abs(found.means - points[:, None])
    np.testing.assert_allclose(apart[np.arange(300), nearest], apart.min(axis=1))
    raw = found(points)
    assert raw.shape == (300, 2)
    assert np.ptp(raw[:, 1]) == 0
    means = law.distributions(torch.as_tensor(raw)).numpy() @ law.support.values
    np.testing.assert_allclose(means, points, atol=0.05)
    # of all widths the likeliest: codes are right where predictions are, so labels lie close
    wide = LawsByMean.fitted(law, points, rng.integers(0, 6, 300))
    deviation = [
        float(np.sqrt(laws.probabilities[at] @ (law.support.values - laws.means[at]) ** 2))
        for laws, at in ((found, int(found.nearest(np.array([5.0]))[0])),
                         (wide, int(wide.nearest(np.array([5.0]))[0])))
    ]  # fmt: skip
    assert deviation[0] < 0.6 * deviation[1]
    with pytest.raises(DataError, match=r"predictions=\(2,\) must be one for each of \(300,\)"):
        LawsByMean.fitted(law, points[:2], codes)
    for head in ("softmax",):
        with pytest.raises(ConfigError, match="has laws that a mean does not tell apart"):
            LawsByMean.fitted(likelihood(given, head), points, codes)


@pytest.mark.parametrize(
    ("grid", "prior", "head"),
    [
        ([0.0, 1.0], [0.5, 0.5], "bernoulli"),
        ([0.0, 1.0, 2.0], [0.5, 0.3, 0.2], "softmax"),  # sent as they are
        (list(range(40)), [2.0**-i for i in range(40)], "log-normal"),
        (list(range(40)), [1.0] * 40, "gaussian"),
        (list(range(-1, 39)), [2.0**-i for i in range(40)], "gaussian"),
    ],
)
def test_the_law_follows_from_the_labels(grid: list[float], prior: list[float], head: str) -> None:
    points = np.array(grid, dtype=np.float64)
    channel = FiniteChannel(points, points, randomized_response_rows(points.size, 2.0))
    given = LabelProblem.from_channel(channel, prior)
    assert likelihood(given).family.name == head


def test_clear_labels_are_clipped_and_placed_between_points_at_random() -> None:
    given = problem()
    known = ClearLabels.from_labels([-5.0, 0.0, 10.0, 99.0], given)
    assert known.problem.outputs[known.codes].tolist() == [0, 0, 10, 10]
    assert known.codes.dtype == np.uint16
    np.testing.assert_allclose(known.problem.channel, np.eye(6))
    assert known.problem.prior.tolist() == given.prior.tolist()
    assert (known.problem.loss, known.problem.discrete) == (given.loss, given.discrete)
    between = ClearLabels.from_labels(np.full(20_000, 2.5), given)
    # a quarter of the way: six deviations of a binomial
    assert abs(np.mean(between.codes == 2) - 0.25) < 6 * (0.25 * 0.75 / 20_000) ** 0.5
    assert set(between.codes.tolist()) == {1, 2}


def test_the_loss_of_a_network_is_weighed_and_checked() -> None:
    loss = ReleaseLoss(problem(), "gaussian")
    raw = torch.as_tensor(rows(6, 2)).float()
    codes = torch.arange(6)
    each = torch.stack([loss(raw[i : i + 1], codes[i : i + 1]) for i in range(6)])
    weights = torch.arange(6.0)
    assert float(loss(raw, codes)) == pytest.approx(float(each.mean()))
    assert float(loss(raw, codes, weights)) == pytest.approx(float((each * weights).mean()))
    law = loss.distribution(raw)
    np.testing.assert_allclose(law @ loss.labels.to(law), loss.predict(raw), rtol=1e-5)
    cases: list[tuple[Any, Any, Any, str]] = [
        (raw[:, :1], codes, None, r"raw outputs of shape \(6, 1\) must have the shape \(n, 2\)"),
        (raw[0], codes, None, r"raw outputs of shape \(2,\)"),
        (raw, codes[:5], None, r"codes of shape \(5,\) must have the shape \(6,\)"),
        (raw, codes.double(), None, "codes have type torch.float64, and are whole numbers"),
        (raw, codes.to(torch.complex64), None, "codes have type torch.complex64, and are whole"),
        (raw, codes - 1, None, "code -1 must lie in 0 … 5"),
        (raw, codes + 1, None, "code 6 must lie in 0 … 5"),
        (raw, codes, weights[:5], r"weights of shape \(5,\) must have the shape \(6,\)"),
    ]
    for outputs, sent, weighed, said in cases:
        with pytest.raises(DataError, match=said):
            loss(outputs, sent, weighed)


def test_two_classes_have_no_law_by_their_mean() -> None:
    points = np.array([0.0, 1.0])
    channel = FiniteChannel(points, points, randomized_response_rows(2, 2.0))
    two = LabelProblem.from_channel(channel, np.ones(2))
    for head in ("softmax", "bernoulli"):
        law = likelihood(two, head)
        if head == "softmax":
            with pytest.raises(ConfigError, match="'softmax' has laws that a mean does not tell"):
                LawsByMean.fitted(law, np.array([0.5]), np.array([1]))
        else:
            assert LawsByMean.fitted(law, np.array([0.5]), np.array([1])).means.size == 241
