"""DP-SGD on exact noise: gradients, a step's privacy by enumeration, laws of noise and samples."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy, system_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import Adjacency, ApproximateDP, PureDP, RenyiDP
from labelveil.common.mechanisms.central import dp_sgd, gradient_steps
from labelveil.common.mechanisms.central.dp_sgd import (
    DPSGDClassifier,
    DPSGDRegressor,
    activations,
    gradients,
    start,
)
from labelveil.common.mechanisms.central.gradient_steps import GradientSteps
from tests.common.mechanisms.central.test_minimiser import uniforms
from tests.effort import effort
from tests.statistics import binomial_range, counts_fit, fits, gaussian_mass, laplace_mass


def _log_law(steps: GradientSteps, points: Floats, mean: float) -> Floats:
    size = float(steps.scale) * steps.grid(1)
    gap = points - mean
    law = -(gap**2) / (2 * size**2) if steps.noise == "gaussian" else -np.abs(gap) / size
    return np.asarray(law - scipy.special.logsumexp(law))


def _worst(steps: GradientSteps, order: int) -> float:
    """RDP of one step for neighbours whose gradients are at their worst, one weight."""
    grid = steps.grid(1)
    size = float(steps.scale) * grid
    stride = max(1, grid // 4096)  # Laplace's grid is finer than can be summed
    points = np.arange(-30 * size - 2 * grid, 30 * size + 2 * grid, stride)
    rate = float(steps.rate)
    ends = (0.0, grid) if steps.sampling == "poisson" else (-grid, grid)
    plain, other = (_log_law(steps, points, mean) for mean in ends)
    mixed = np.logaddexp(plain + math.log1p(-rate), other + math.log(rate))
    return max(
        float(scipy.special.logsumexp(order * p - (order - 1) * q)) / (order - 1)
        for p, q in ((plain, mixed), (mixed, plain))
    )


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_one_step_is_as_private_as_it_says(noise: Any, sampling: Any) -> None:
    """m = 1 of n = 20, on the integers that leave a step; a twin with less noise is found out."""
    steps = GradientSteps(20, 1, 1, noise, sampling, Fraction(3, 2))
    made = steps.step
    for order in (2, 3, 16):
        bound = made.at(order) if isinstance(made, RenyiDP) else made.exact_epsilon  # type: ignore[attr-defined]
        assert _worst(steps, order) <= float(bound)
    quieter = replace(steps, scale=Fraction(1, 2))
    bound = made.at(2) if isinstance(made, RenyiDP) else made.exact_epsilon  # type: ignore[attr-defined]
    assert _worst(quieter, 2 if noise == "gaussian" else 64) > float(bound)


def test_laplace_noise_on_poisson_samples_is_for_a_record_more_or_less() -> None:
    """m = 10 of n = 100, with noise for a gradient that comes or goes: 1/s before sampling."""
    step = GradientSteps(100, 10, 1, "laplace", "poisson", Fraction(4)).step
    assert isinstance(step, PureDP)
    assert step.adjacency is Adjacency.ADD_REMOVE
    assert step.epsilon == pytest.approx(math.log1p(0.1 * math.expm1(1 / 4)))


@pytest.mark.parametrize(("noise", "shift"), [("laplace", 2), ("direction", 1)])
def test_many_steps_of_pure_noise_cost_less_at_a_delta(noise: Any, shift: int) -> None:
    """400 adaptive uses of e-DP: their Rényi curve at least, ``min(α e²/2, e)`` at order α."""
    steps = GradientSteps(100, 10, 400, noise, "fixed", Fraction(4))
    each = math.log1p(0.1 * math.expm1(shift / 4))
    orders = np.arange(2, 60)
    curve = 400 * np.minimum(orders * each**2 / 2, each) + math.log(1e6) / (orders - 1)
    assert steps.approximate(0).epsilon == pytest.approx(400 * each)
    assert steps.approximate(1e-6).epsilon <= float(curve.min()) < 200 * each


def test_poisson_steps_cost_exactly_what_is_charged() -> None:
    """Discrete noise has the continuous formula at integer orders, to rounding."""
    steps = GradientSteps(20, 1, 1, scale=Fraction(3, 2))
    made = steps.step
    assert isinstance(made, RenyiDP)
    for order in (2, 3, 16):
        assert _worst(steps, order) == pytest.approx(float(made.at(order)), rel=1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_gradients_are_integers_within_their_bound_one_by_one(noise: Any) -> None:
    steps = GradientSteps(100, 10, 1, noise)
    rows = uniforms(1, 400, 50) * 10.0 ** uniforms(2, 400)[:, None]
    found, order = steps.rounded(rows), 1 if noise == "laplace" else 2
    grid = steps.grid(50)
    norms = (np.abs(found) ** order).sum(axis=1)
    assert norms.max() <= grid**order
    assert norms.max() > 0.9 * grid**order  # and little is lost
    assert np.array_equal(found[7], steps.rounded(rows[7:8])[0])
    plain = np.rint(rows / np.linalg.norm(rows, ord=order, axis=1)[:, None] * grid)
    assert (np.abs(plain) ** order).sum(axis=1).max() > grid**order  # what rounding alone does


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_no_gradient_passes_the_clip_whatever_numbers_it_holds(noise: Any) -> None:
    steps = GradientSteps(100, 10, 1, noise)
    odd = [np.nan, np.inf, -np.inf, 1e200, 1.7e308, -1.7e308, 5e-324, -0.0]
    rows = np.array([[value, other] for value in odd for other in (*odd, 1.0)])
    grid, order = steps.grid(2), 1 if noise == "laplace" else 2
    integers = [[int(step) for step in row] for row in steps.rounded(rows)]
    assert max(sum(abs(step) ** order for step in row) for row in integers) <= grid**order
    broken = [not np.all(np.isfinite(row)) for row in rows]
    assert not np.any(np.array(integers)[broken])
    # the twin that casts what is no number: its squares wrap to 0, and pass
    with np.errstate(invalid="ignore"):
        cast = np.array([np.nan, np.nan]).astype(np.int64)
        assert (np.abs(cast) ** 2).sum() <= grid**2 < sum(int(step) ** 2 for step in cast)


def _rows_that_depend_on_others(multiply: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows have other gradients, by a bit, alone or in another sample."""
    monkeypatch.setattr(dp_sgd, "each_by_itself", multiply)
    layers = start((37, 21, 9, 3))
    layers[-1] = uniforms(3, *layers[-1].shape)
    rows, targets = uniforms(5, 90, 37), np.eye(3)[np.arange(90) % 3]

    def integers(sample: Any) -> Any:
        inputs = activations(layers, rows[sample])
        slopes = scipy.special.softmax(inputs[-1], axis=1) - targets[sample]
        return gradients(layers, inputs, slopes)

    whole = integers(np.arange(90))
    samples = [[i] for i in range(90)] + [list(range(90 - k)) for k in (1, 2, 7, 31, 64)]
    return sum(
        not np.array_equal(whole[i], row)
        for sample in samples
        for i, row in zip(sample, integers(sample), strict=True)
    )


def test_a_records_gradient_does_not_depend_on_who_else_is_in_the_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not _rows_that_depend_on_others(dp_sgd.each_by_itself, monkeypatch)
    assert _rows_that_depend_on_others(np.matmul, monkeypatch)


@pytest.mark.statistical
def test_samples_are_uniform() -> None:
    fixed = GradientSteps(5, 2, 5000, sampling="fixed")
    seen = Counter(tuple(sample.tolist()) for sample in fixed.samples(seeded_entropy(1)))
    pairs = list(combinations(range(5), 2))
    counts = np.array([seen[pair] for pair in pairs])
    assert counts.sum() == 5000
    assert counts_fit(counts, np.full(10, 0.1))
    assert not counts_fit(np.sort(counts) + np.arange(10) * 40, np.full(10, 0.1))
    most = GradientSteps(5, 4, 1000, sampling="fixed")
    assert all(sample.size == 4 for sample in most.samples(seeded_entropy(2)))
    poisson = GradientSteps(7, 2, 5000)
    sizes = [sample.size for sample in poisson.samples(seeded_entropy(3))]
    low, high = binomial_range(7 * 5000, 2 / 7)
    assert low <= sum(sizes) <= high
    drawn = system_entropy()  # which gives no word twice: noise takes others
    assert next(poisson.samples(drawn)).size <= 7
    assert next(poisson.noises(3, drawn)).size == 3
    law = scipy.stats.binom(7, 2 / 7).pmf(np.arange(8))
    assert counts_fit(np.bincount(sizes, minlength=8), law)


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_what_leaves_a_step_is_the_sum_and_the_stated_noise(noise: Any) -> None:
    """Read off the weights after one step over all rows, from gradients that are known."""
    rows, labels = np.zeros((4, 10_000)), np.array([0.0, 1, 0, 1])
    model = DPSGDRegressor(
        2.0, 1e-6, noise=noise, sample=4, steps=1, clip=0.5, fit_intercept=False,
        label_bounds=(0, 1), entropy=seeded_entropy(3),
    ).fit(rows, labels)  # fmt: skip
    mechanism = GradientSteps(4, 4, 1, noise).calibrated(2.0, 1e-6)
    grid = mechanism.grid(10_000)
    integers = model.layers_[0].ravel() * 4 * grid / 0.5
    assert np.allclose(integers, np.rint(integers), atol=1e-3)
    found = np.rint(integers).astype(np.int64)
    step = max(1, grid // 1024)
    mass = gaussian_mass if noise == "gaussian" else laplace_mass
    size = mechanism.scale * grid
    law = mass(size**2) if noise == "gaussian" else mass(size / step)
    assert fits(found // step + (found < 0) if step > 1 else found, law)
    assert not fits((found * 1.2).astype(np.int64) // step, law)


def test_gradients_are_clipped_where_the_clip_says() -> None:
    """Read off the weight after one step over all rows, without noise to speak of."""
    rows, labels = np.ones((64, 1)), np.ones(64)

    def weight(clip: float, rate: float = 1.0) -> float:
        model = DPSGDRegressor(
            1e6, 1e-6, sample=64, steps=1, clip=clip, learning_rate=rate, fit_intercept=False,
            label_bounds=(0, 1), entropy=seeded_entropy(3),
        ).fit(rows, labels)  # fmt: skip
        return float(model.layers_[0].item())

    # all gradients are one and the same: the step is the clip's length, until that is longer
    assert weight(0.01) == pytest.approx(0.01, rel=0.05)
    assert weight(0.02, 3.0) == pytest.approx(0.06, rel=0.05)
    whole = weight(64.0)
    assert whole == pytest.approx(weight(32.0), rel=0.05)
    assert weight(whole / 2) == pytest.approx(whole / 2, rel=0.05)


def test_gradients_are_those_of_finite_differences() -> None:
    sizes = (3, 4, 2, 2)
    layers = start(sizes)
    layers[-1] = uniforms(1, *layers[-1].shape)
    rows, targets = uniforms(2, 5, 3), np.eye(2)[[0, 1, 1, 0, 1]]

    def losses(weights: list[Floats]) -> Floats:
        outputs = activations(weights, rows)[-1]
        return np.asarray(-np.sum(targets * scipy.special.log_softmax(outputs, axis=1), axis=1))

    found = activations(layers, rows)
    slopes = scipy.special.softmax(found[-1], axis=1) - targets
    each = gradients(layers, found, slopes)
    at = 0
    for index, weights in enumerate(layers):
        for place in range(weights.size):
            ends = []
            for sign in (1, -1):
                moved = [w.copy() for w in layers]
                moved[index].flat[place] += sign * 1e-6
                ends.append(losses(moved))
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(each[:, at], abs=1e-6)
            at += 1
    assert at == each.shape[1]


@pytest.mark.slow
@parametrize_with_checks(
    [
        DPSGDClassifier(50.0, entropy=seeded_entropy(0)),
        DPSGDRegressor(50.0, 0, noise="laplace", sampling="fixed", entropy=seeded_entropy(0)),
        DPSGDClassifier(50.0, sampling="fixed", entropy=seeded_entropy(0)),
    ][: effort(2, 3)]
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
def test_ten_classes_and_what_only_hidden_layers_can() -> None:
    images, digits = load_digits(return_X_y=True)
    model = DPSGDClassifier(
        8.0, 1e-5, bounds=(0, 16), learning_rate=8, entropy=seeded_entropy(0)
    ).fit(images, digits)
    assert model.score(images, digits) > 0.75
    assert isinstance(model.guarantee_, ApproximateDP)
    assert model.guarantee_.epsilon <= 8
    assert model.guarantee_.adjacency == Adjacency.ADD_REMOVE
    assert np.allclose(model.predict_proba(images[:5]).sum(axis=1), 1)
    points = uniforms(4, 3000, 2)
    classes = points[:, 0] * points[:, 1] > 0
    scores = {
        hidden: DPSGDClassifier(20.0, bounds=(-1, 1), hidden=hidden, entropy=seeded_entropy(1))
        .fit(points, classes)
        .score(points, classes)
        for hidden in ((), (16,))
    }
    assert scores[()] < 0.65 < 0.85 < scores[16,]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("hidden", [pytest.param((), marks=pytest.mark.slow), (3,)])
def test_a_step_whose_sample_is_empty_is_a_step(noise: Any, hidden: tuple[int, ...]) -> None:
    """With m = 1 a third of Poisson samples are: they release noise, as the guarantee says."""
    points = uniforms(4, 100, 2)
    delta = 1e-6 if noise == "gaussian" else 0.0
    for seed in range(5):
        model = DPSGDRegressor(
            1.0, delta, noise=noise, sample=1, steps=40, bounds=(-1, 1), hidden=hidden,
            entropy=seeded_entropy(seed),
        ).fit(points, points[:, 0])  # fmt: skip
        steps = GradientSteps(100, 1, 40, noise, scale=Fraction(model.noise_scale_))
        assert min(sample.size for sample in steps.samples(seeded_entropy(seed))) == 0
        assert all(np.isfinite(layer).all() for layer in model.layers_)
    noises, sums = (
        [*steps.noises(3, seeded_entropy(9))],
        steps.sums(3, seeded_entropy(9)),
    )
    empty = np.zeros((0, 3))
    assert [sums(empty).tolist() for _ in range(40)] == [noise.tolist() for noise in noises]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_noise_is_drawn_for_as_many_steps_as_there_are(
    noise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at once, or one; each as if all were drawn together, and none twice."""
    steps = GradientSteps(100, 10, 5, noise)
    for block in (1, 12, 1 << 18):
        monkeypatch.setattr(gradient_steps, "_BLOCK", block)
        found = np.array([*steps.noises(5, seeded_entropy(1))])
        assert found.shape == (5, 5)
        assert np.unique(found).size == 25


def test_the_grid_is_as_fine_as_the_samplers_take() -> None:
    for scale, grid in ((64, 1024), (Fraction(65_537, 1024), 512), (4096, 16)):
        assert GradientSteps(100, 10, 1, scale=Fraction(scale)).grid(3) == grid
    laplace = GradientSteps(100, 10, 1, "laplace", scale=Fraction(1 << 24))
    assert laplace.grid(3) == 1 << 24
    # rounding makes vectors of 2^18 numbers longer by 256 steps, a quarter of a gradient
    assert GradientSteps(100, 10, 1).grid(1 << 18) == 1024
    for made, size in (
        (GradientSteps(100, 10, 1), (1 << 18) + 1),
        (GradientSteps(100, 10, 1, scale=4096 + Fraction(1, 1024)), 3),
        (replace(laplace, scale=laplace.scale + Fraction(1, 1024)), 3),
    ):
        with pytest.raises(ConfigError, match="passes what the exact sampler takes"):
            made.grid(size)


def test_classes_are_the_likeliest_of_their_probabilities() -> None:
    points, names = uniforms(4, 200, 2), np.array(["a", "b", "c"])
    classes = names[(points[:, 0] > 0).astype(int) + (points[:, 1] > 0.3)]
    model = DPSGDClassifier(50.0, bounds=(-1, 1), sample=50, entropy=seeded_entropy(0))
    model.fit(points, classes)
    chances, outputs = model.predict_proba(points), model._outputs(points)
    assert chances == pytest.approx(np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True))
    assert np.array_equal(names[chances.argmax(axis=1)], model.predict(points))
    assert model.score(points, classes) > 0.6
    assert model.noise_scale_ == GradientSteps(200, 50, 40).calibrated(50.0, 1e-6).scale


def test_one_random_record_a_step_and_pure_epsilon() -> None:
    points = uniforms(4, 2000, 2)
    model = DPSGDRegressor(
        5.0, 0, noise="laplace", sampling="fixed", sample=1, steps=2000, bounds=(-1, 1),
        learning_rate=0.1, entropy=seeded_entropy(0),
    ).fit(points, points[:, 0])  # fmt: skip
    assert model.guarantee_ == replace(
        PureDP.of(5, Adjacency.REPLACE_RECORD), exact_epsilon=model.guarantee_.exact_epsilon
    )
    assert 4.9 < model.guarantee_.epsilon <= 5
    assert model.score(points, points[:, 0]) > 0.3


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"noise": "uniform"}, ConfigError, "gaussian or laplace"),
        ({"sampling": "shuffled"}, ConfigError, "poisson or fixed"),
        ({"sample": 11}, PrivacyError, r"sample=11 must lie in \[1, 10\]"),
        ({"sample": 0}, PrivacyError, r"sample=0 must lie in \[1, 10\]"),
        ({"sample": 101}, PrivacyError, r"sample=101 must lie in \[1, 10\]"),
        ({"steps": 0}, PrivacyError, "steps=0 must be at least 1"),
        ({"delta": 0.0}, PrivacyError, "Gaussian noise needs delta"),
        ({"epsilon": 0.0}, PrivacyError, "epsilon=0 must be > 0"),
        ({"clip": 0.0}, PrivacyError, "clip=0 must be"),
    ],
)
def test_impossible_requests_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DPSGDRegressor(**changes).fit(uniforms(1, 10, 2), uniforms(2, 10))


@pytest.mark.parametrize(("noise", "shift"), [("laplace", 2), ("direction", 1)])
def test_a_replaced_record_moves_a_fixed_sample_by_two_gradients(noise: Any, shift: int) -> None:
    """A direction of its own moves by one. ``ln(1 + q(e^(shift/scale) - 1))`` for q = m/n."""
    step = GradientSteps(10, 3, 1, noise, "fixed", Fraction(2)).step
    assert isinstance(step, PureDP)
    assert step.epsilon == pytest.approx(math.log1p(0.3 * math.expm1(shift / 2)), rel=1e-9)
