"""Private ERM: sensitivity by adversarial search, densities by their formula, laws of the noise."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError, PrivacyError
from labelveil.common.exact.radial_noise import radial_laplace
from labelveil.common.guarantees import (
    Adjacency,
    ApproximateDP,
    Guarantee,
    PureDP,
    epsilon_at,
    largest_rho,
)
from labelveil.common.guarantees.gaussian import gaussian_sigma, gaussian_zcdp
from labelveil.common.mechanisms.central import perturbation
from labelveil.common.mechanisms.central.perturbation import (
    PERTURBATIONS,
    Perturbation,
    objective_noise,
    output_sensitivity,
    taylor_terms,
)
from labelveil.common.mechanisms.central.risk import (
    Huber,
    HuberHinge,
    Logistic,
    Loss,
    Risk,
    minimise,
    ridge_loss,
)
from labelveil.common.mechanisms.clipping import clip_rows
from tests.common.mechanisms.central.test_minimiser import uniforms
from tests.effort import EXHAUSTIVE, effort, one_in
from tests.statistics import follows

LOSSES: list[Loss] = [Logistic(), HuberHinge(), Huber(0.5), ridge_loss(0.05)]


def _data(n: int, d: int, seed: int = 1) -> tuple[Floats, Floats]:
    rows = clip_rows(uniforms(seed, n, d) * 2)
    return rows, np.where(rows[:, 0] + 0.3 * uniforms(seed + 1, n) > 0, 1.0, -1.0)


def _solve(loss: Loss, rows: Floats, labels: Floats, ridge: float) -> Floats:
    return minimise(Risk(loss, rows, labels, ridge, np.zeros(rows.shape[1])), 1e-8)


def _worst_neighbours(loss: Loss, n: int, ridge: float) -> float:
    """Largest ‖w - w'‖ over neighbours, by coordinate search from many starts."""
    worst = 0.0
    for start in range(6):
        rows, labels = _data(n, 2, 10 + start)
        angles = np.linspace(0, 2 * np.pi, 13)
        for _ in range(2):
            for record in range(n):
                tries = []
                for angle in angles:
                    for label in (-1.0, 1.0):
                        others, theirs = rows.copy(), labels.copy()
                        others[record] = clip_rows(np.array([[np.cos(angle), np.sin(angle)]]))[0]
                        theirs[record] = label
                        tries.append((others, theirs, _solve(loss, others, theirs, ridge)))
                ends = np.array([found for _, _, found in tries])
                gaps = np.linalg.norm(ends[:, None] - ends[None], axis=2)
                worst = max(worst, float(gaps.max()))
                # move to the data set from which neighbours are farthest
                rows, labels, _ = tries[int(gaps.max(axis=1).argmax())]
    return worst


@pytest.mark.parametrize("ridge", one_in(2, [0.6, 2.0]))
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_no_neighbours_are_farther_apart_than_the_bound(loss: Loss, ridge: float) -> None:
    n = 3
    bound = float(output_sensitivity(loss, n, ridge))
    worst = _worst_neighbours(loss, n, ridge)
    assert worst <= bound
    # the search has power: a bound for n² records in place of n is passed
    assert worst > bound / n if loss.lipschitz <= 1 else worst > bound / n**1.5
    if isinstance(loss, HuberHinge | Huber) and loss.lipschitz <= 1:
        assert worst > 0.9 * bound  # no smaller constant would do: not L for 2L, nor 2λ for λ


def _log_density(
    w: Floats, loss: Loss, rows: Floats, labels: Floats, strong: float, scale: float
) -> Floats:
    """Log density of the exact minimiser at each w (one dimension), without its constant."""
    outputs = np.outer(w, rows)
    b = loss.slope(outputs, labels) @ rows + len(rows) * strong * w
    bends = loss.curvature(outputs, labels) @ (rows * rows) + len(rows) * strong
    return np.asarray(-np.abs(b) / scale + np.log(bends))


def _worst_log_ratio(loss: Loss, n: int, strong: float, scale: float) -> float:
    """Over all w, a few data sets, and all extreme neighbours of them."""
    w = np.concatenate([np.linspace(-4, 4, 801), np.linspace(-400, 400, 801)])
    worst, ones = 0.0, np.ones(n - 1)
    for rest in ([1.0] * (n - 1), [-1.0, 1.0] * ((n - 1) // 2), [0.0] * (n - 1)):
        laws = [
            _log_density(w, loss, np.array([*rest, x]), np.append(ones, y), strong, scale)
            for x in (-1.0, 0.0, 1.0)
            for y in (-1.0, 1.0)
        ]
        worst = max(worst, max(float((p - q).max()) for p in laws for q in laws))
    return worst


@pytest.mark.parametrize("loss", [Logistic(), HuberHinge(), Huber(0.5)], ids=str)
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("ridge", [1e-3, 0.3])
def test_objective_perturbation_by_its_density(loss: Loss, epsilon: float, ridge: float) -> None:
    """``f(w) ∝ e^{-|b(w)|/s} |db/dw|`` of one-dimensional data, for all extreme neighbours."""
    n = 5
    strong, scale = objective_noise(loss, n, ridge, Fraction(epsilon))
    assert strong >= ridge
    worst = _worst_log_ratio(loss, n, strong, float(scale))
    assert worst <= epsilon
    # in one dimension logistic gradients differ by L at most, σ(w) + σ(-w) = 1, not by 2L
    share = 0.38 if isinstance(loss, Logistic) else 0.9
    assert worst > share * epsilon
    # twins: noise for a fraction of the sensitivity; regularization for n² records
    assert _worst_log_ratio(loss, n, strong, float(scale) * share / 2) > epsilon
    if strong > ridge:
        assert _worst_log_ratio(loss, n, strong / n**2, float(scale)) > epsilon


def _worst_delta(loss: Loss, n: int, strong: float, sigma: float, epsilon: float) -> float:
    """δ(ε) of the exact minimiser in one dimension, by integration, over extreme neighbours."""
    reach = (12 * sigma + n) / (n * strong)
    w = np.unique([*np.linspace(-reach, reach, 20_001), *np.linspace(-5, 5, 20_001)])
    worst = 0.0
    for rest in ([1.0] * (n - 1), [-1.0, 1.0] * ((n - 1) // 2), [0.0] * (n - 1)):
        laws = []
        for x in (-1.0, 0.0, 1.0):
            for y in (-1.0, 1.0):
                rows, labels = np.array([*rest, x]), np.array([*[1.0] * (n - 1), y])
                outputs = np.outer(w, rows)
                b = loss.slope(outputs, labels) @ rows + n * strong * w
                bends = loss.curvature(outputs, labels) @ (rows * rows) + n * strong
                laws.append(stats.norm(scale=sigma).pdf(b) * bends)
        assert all(np.trapezoid(p, w) == pytest.approx(1, abs=1e-2) for p in laws)
        gaps = [np.maximum(p - math.exp(epsilon) * q, 0) for p in laws for q in laws]
        worst = max(worst, max(float(np.trapezoid(gap, w)) for gap in gaps))
    return worst


@pytest.mark.parametrize("loss", [HuberHinge(), Huber(0.5)], ids=str)
@pytest.mark.parametrize("epsilon", one_in(3, [0.2, 1.0, 4.0], first=1))
@pytest.mark.parametrize("ridge", one_in(2, [1e-3, 3.0]))
def test_gaussian_objective_perturbation_by_its_density(
    loss: Loss, epsilon: float, ridge: float
) -> None:
    n, delta = 5, 1e-3
    strong, sigma = objective_noise(loss, n, ridge, Fraction(epsilon), delta)
    assert _worst_delta(loss, n, strong, float(sigma), epsilon) <= delta
    # in one dimension gradients are seldom 2L apart; where the Jacobian costs little, half fails
    assert _worst_delta(loss, n, strong, float(sigma) / (2 if ridge > 1 and epsilon == 1 else 6),
                        epsilon) > delta  # fmt: skip
    if strong > ridge:  # the twin without further regularization
        assert _worst_delta(loss, n, strong / n**2, float(sigma), epsilon) > delta


def test_the_determinant_costs_one_logarithm_not_two() -> None:
    """Replacing a record changes it by at most 1 + c/(nΛ), in any dimension."""
    ridge_n, c = 0.5, 0.25
    worst = 0.0
    for seed in range(300):
        rows = clip_rows(3 * uniforms(seed, 4, 3))
        base = ridge_n * np.eye(3) + c * abs(uniforms(seed, 1)[0]) * rows[0][:, None] * rows[0]
        dets = [np.linalg.det(base + c * x[:, None] * x) for x in rows[1:]]
        worst = max(worst, math.log(max(dets) / min(dets)))
    extreme = [
        np.linalg.det(ridge_n * np.eye(3) + c * np.outer(x, x)) for x in (np.eye(3)[0], np.zeros(3))
    ]
    worst = max(worst, math.log(extreme[0] / extreme[1]))
    assert worst == pytest.approx(math.log(1 + c / ridge_n), rel=1e-12)


def test_regularization_rises_only_where_it_must() -> None:
    strong, scale = objective_noise(Logistic(), 10_000, 0.01, Fraction(1))
    assert strong == 0.01
    assert float(scale) == pytest.approx(2 / (1 - math.log1p(0.25 / 100)))
    raised, scale = objective_noise(Logistic(), 100, 1e-6, Fraction(1))
    assert raised == pytest.approx(0.25 / (100 * math.expm1(0.5)))
    assert float(scale) == pytest.approx(2 / 0.5)


@pytest.mark.statistical
def test_noise_for_an_objective_whose_epsilon_has_no_exponential() -> None:
    ridge, scale = objective_noise(Logistic(), 100, 0.25, Fraction(2000))
    assert ridge == 0.25
    rest = 2000 - math.log1p(0.25 / (100 * 0.25))
    assert float(scale) == pytest.approx(2 / rest, rel=1e-9)


def test_output_noise_is_radial_with_the_stated_scale() -> None:
    rows, labels = _data(40, 3)
    loss, ridge, epsilon = Logistic(), 0.1, 0.7
    exact = _solve(loss, rows, labels, ridge)
    mechanism, norms = Perturbation("output", loss, ridge, epsilon), []
    for seed in range(effort(150, 600)):
        weights = mechanism.draw(rows, labels, seeded_entropy(seed))
        norms.append(float(np.linalg.norm(weights - exact)))
    law = stats.gamma(3, scale=2 / (40 * ridge) / epsilon)
    assert follows(norms, law.cdf)
    far = 1.4 if EXHAUSTIVE else 2  # say, λ for λ/2
    for wrong in (far, 1 / far):
        assert not follows(np.multiply(wrong, norms), law.cdf)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_no_neighbours_have_taylor_terms_farther_apart_than_the_noise_is_for(loss: Loss) -> None:
    angles, labels = np.linspace(0, 2 * np.pi, 25), [-1.0, 1.0]
    if not loss.margin:
        labels += [-0.499, 0.499]  # within the knee
    terms = []
    for row in [*np.column_stack([np.cos(angles), np.sin(angles)]), np.zeros(2)]:
        for label in labels:
            data = clip_rows(np.array([row, [0.6, -0.8], [1.0, 0.0]])), np.array([label, 1.0, -1.0])
            terms.append(taylor_terms(loss, *data)[0])
            assert np.array_equal(terms[-1] * 2**26, np.rint(terms[-1] * 2**26))  # exact sums
    apart = max(float(np.linalg.norm(a - b)) for a in terms for b in terms)
    assert 1.99 < apart <= math.sqrt(4.5 if loss != Huber(0.5) else 5)
    if loss == Huber(0.5):
        assert apart > 0.99 * math.sqrt(5)  # one that is beyond the knee and one that is not


@pytest.mark.statistical
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_coefficients_have_the_stated_noise(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = _data(40, 2)
    terms, steep = taylor_terms(Logistic(), rows, labels)
    seen: list[tuple[Floats, Floats, float]] = []
    monkeypatch.setattr(perturbation, "_quadratic", lambda *given: seen.append(given))
    apart, scale_of = set[Fraction](), Perturbation._scale
    monkeypatch.setattr(
        Perturbation, "_scale", lambda self, by: apart.add(by) or scale_of(self, by)
    )
    for seed in range(effort(150, 600)):
        mechanism = Perturbation("function", Logistic(), 0.1, 0.7, delta)
        mechanism.draw(rows, labels, seeded_entropy(seed))
    (hidden,) = apart
    assert 5 <= hidden**2 < 5 + 1e-9
    size = 5 if delta == 0 else 2.5
    scale = math.sqrt(5) / 0.7 if delta == 0 else 2 * 5 * gaussian_sigma(0.7, delta) ** 2
    noise = []
    for moments, cross, ridge in seen:
        assert np.array_equal(moments, moments.T)
        assert ridge > 0.1
        halves = moments[np.triu_indices(2)] * 40 / 0.25
        noise.append(np.append(-cross * 40 / steep, halves) - terms)
    norms = np.linalg.norm(noise, axis=1) ** (1 if delta == 0 else 2)
    law = stats.gamma(size, scale=scale)
    assert follows(norms, law.cdf)
    far = (1.4 if EXHAUSTIVE else 2) ** (1 if delta == 0 else 2)
    for wrong in (far, 1 / far):
        assert not follows(wrong * norms, law.cdf)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["output", "objective"])
def test_gaussian_noise_has_the_stated_deviation(name: str) -> None:
    rows, labels = _data(40, 3)
    loss, ridge, epsilon, delta = Logistic(), 0.1, 0.7, 1e-6
    exact, norms = _solve(loss, rows, labels, ridge), []
    for seed in range(effort(150, 400)):
        w = Perturbation(name, loss, ridge, epsilon, delta).draw(rows, labels, seeded_entropy(seed))
        if name == "output":
            norms.append(float(np.sum((w - exact) ** 2)))
            continue
        strong, sigma = objective_noise(loss, 40, ridge, Fraction(epsilon) * 127 / 128, delta)
        gradient = Risk(loss, rows, labels, strong, np.zeros(3)).gradient(w)
        norms.append(float(np.sum((40 * gradient) ** 2)))
    if name == "output":
        sigma = output_sensitivity(loss, 40, ridge) * Fraction(gaussian_sigma(epsilon, delta))
    law = stats.gamma(1.5, scale=2 * float(sigma) ** 2)
    assert follows(norms, law.cdf)
    far = 1.5 if EXHAUSTIVE else 4  # of squares
    for wrong in (far, 1 / far):
        assert not follows(np.multiply(wrong, norms), law.cdf)


@pytest.mark.statistical
def test_objective_noise_can_be_read_from_the_minimiser() -> None:
    """b = -n ∇J(w) - …: from what is released, up to the noise that hides rounding."""
    rows, labels = _data(200, 2)
    loss, ridge, epsilon = Logistic(), 0.05, 1.0
    strong, scale = objective_noise(loss, 200, ridge, Fraction(epsilon) * 127 / 128)
    norms = []
    for seed in range(effort(150, 600)):
        w = Perturbation("objective", loss, ridge, epsilon).draw(rows, labels, seeded_entropy(seed))
        gradient = Risk(loss, rows, labels, strong, np.zeros(2)).gradient(w)
        norms.append(200 * float(np.linalg.norm(gradient)))
    law = stats.gamma(2, scale=float(scale))
    assert follows(norms, law.cdf)
    far = 1.4 if EXHAUSTIVE else 2
    for wrong in (far, 1 / far):
        assert not follows(np.multiply(wrong, norms), law.cdf)


@pytest.mark.statistical
def test_what_hides_rounding_has_its_scale_and_is_small() -> None:
    """With b known, the rest of the noise is discrete Laplace of known scale."""
    rows, labels = _data(200, 2)
    spread = []
    for seed in range(effort(120, 400)):
        entropy = seeded_entropy(seed)
        w = Perturbation("objective", Logistic(), 0.05, 1.0).draw(rows, labels, entropy)
        strong, scale = objective_noise(Logistic(), 200, 0.05, Fraction(127, 128))
        b = radial_laplace(np.zeros(2), scale, -40, entropy.source("objective perturbation"))
        linear = b.astype(np.float64) / 2**40 / 200
        exact = minimise(Risk(Logistic(), rows, labels, strong, linear), 1e-10)
        spread += (w - exact).tolist()
    # √d (2γ/Λ) 128/ε with γ = 1e-5/n and the root, grid and float allowances: within a factor
    least = 2**0.5 * 2 * 1e-5 / 200 / 0.05 * 128
    mean = float(np.mean(np.abs(spread)))
    assert least < mean < 3 * least
    assert follows(np.abs(spread) / mean, stats.expon.cdf)


@pytest.mark.statistical
@pytest.mark.parametrize("loss", [Logistic(), ridge_loss(0.1)], ids=["margin", "residual"])
def test_every_record_is_private_before_anybody_sees_it(
    loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Floats] = []

    def overhear(*seen: Floats | Risk | float) -> Floats:
        first = seen[0]
        sent.append(first.rows if isinstance(first, Risk) else np.column_stack(seen[:2]))
        return np.zeros(2)

    monkeypatch.setattr(perturbation, "minimise", overhear)
    monkeypatch.setattr(perturbation, "_debiased_ridge", overhear)
    rows, labels = _data(20_000, 2)
    Perturbation("input", loss, 0.1, 2.0).draw(rows, labels, seeded_entropy(9))
    clean = rows * labels[:, None] if loss.margin else np.column_stack([rows, labels])
    noise = np.rint((sent[0] - np.trunc(clean * 1024) / 1024) * 1024)
    # L1 diameter 2 √d (rounded up), and 2 for a label of its own
    scale = (4 + (0 if loss.margin else 2)) / 2.0 * 1024
    law = stats.laplace(scale=scale).cdf
    flat = noise.ravel()[:6000]
    assert follows(flat, law)
    for wrong in (1.4, 1 / 1.4):
        assert not follows(wrong * flat, law)
    # the worst two records are no farther apart than the noise is made for
    ends = clip_rows(np.array([[1.0, 1.0], [-1.0, -1.0]]))
    if not loss.margin:
        ends = np.column_stack([ends, [1.0, -1.0]])
    steps = np.trunc(ends * 1024)
    assert np.abs(steps[0] - steps[1]).sum() <= 2.0 * scale
    # and what noise is added to is never longer than its record
    monkeypatch.setattr(perturbation, "discrete_laplace", lambda s, n, _: np.zeros(n, np.int64))
    Perturbation("input", loss, 0.1, 2.0).draw(rows, labels, seeded_entropy(9))
    assert (np.abs(sent[1]) <= np.abs(clean)).all()
    assert (np.abs(sent[1] - clean) < 1 / 1024).all()


@pytest.mark.statistical
@pytest.mark.parametrize("loss", [Logistic(), ridge_loss(0.1)], ids=["margin", "residual"])
def test_gaussian_noise_hides_every_record(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Floats] = []

    def overhear(*seen: Floats | Risk | float) -> Floats:
        first = seen[0]
        sent.append(first.rows if isinstance(first, Risk) else np.column_stack(seen[:2]))
        return np.zeros(2)

    monkeypatch.setattr(perturbation, "minimise", overhear)
    monkeypatch.setattr(perturbation, "_debiased_ridge", overhear)
    rows, labels = _data(4000, 2)
    Perturbation("input", loss, 0.1, 2.0, 1e-6).draw(rows, labels, seeded_entropy(9))
    clean = rows * labels[:, None] if loss.margin else np.column_stack([rows, labels])
    diameter = 2 if loss.margin else 8**0.5
    sigma = diameter / math.sqrt(2 * float(largest_rho(2.0, 1e-6)))
    flat = (sent[0] - clean).ravel() + 1e-9  # truncation is below 1/64 of it
    assert epsilon_at(gaussian_zcdp(sigma**2, diameter**2), 1e-6) == pytest.approx(2)
    assert follows(flat, stats.norm(scale=sigma).cdf)
    for wrong in (1.2, 1 / 1.2):
        assert not follows(wrong * flat, stats.norm(scale=sigma).cdf)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta"), [(15.0, 0.0), (60.0, 1e-6)])
def test_noise_of_the_features_does_not_flatten_a_regression(epsilon: float, delta: float) -> None:
    """Noise as large as the features would halve the weights, were it not taken out of moments.

    A draw's weights err by about 2 %; a wrong variance, twice or half, moves them by a quarter.
    """
    rows = np.where(uniforms(5, 20_000, 1) > 0, 0.5, -0.5)
    labels = 1.6 * rows[:, 0]
    risk = ridge_loss(1e-3)
    weights = Perturbation("input", risk, 1e-3, epsilon, delta).draw(
        rows, labels, seeded_entropy(4)
    )
    assert weights == pytest.approx([1.6], rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("name", PERTURBATIONS)
def test_more_epsilon_brings_the_exact_minimiser(name: str, delta: float) -> None:
    rows, labels = _data(3000, 2)
    loss = ridge_loss(0.05) if name == "function" else Logistic()  # whose polynomial is the loss
    exact = _solve(loss, rows, labels, 0.05)

    def error(epsilon: float) -> float:
        mechanism = Perturbation(name, loss, 0.05, epsilon, delta)
        expected: Guarantee = PureDP.of(epsilon, Adjacency.REPLACE_RECORD)
        if delta:
            expected = ApproximateDP.of(epsilon, delta, Adjacency.REPLACE_RECORD)
        assert mechanism.guarantee == expected
        weights = [mechanism.draw(rows, labels, seeded_entropy(seed)) for seed in range(5)]
        return float(np.mean([np.linalg.norm(w - exact) for w in weights]))

    near, far = error(1e4), error(0.1)
    assert near < 0.01
    assert far > 10 * near


@pytest.mark.parametrize("scale", [1e-3, 0.999999999999999, 1.0, 1.0000000000000002, 1e6])
def test_rows_are_certainly_short(scale: float) -> None:
    rows = clip_rows(scale * uniforms(3, 200, 7) * 3)
    for row in rows:
        assert sum(Fraction(v) ** 2 for v in row.tolist()) <= 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kind": "gradient"}, ConfigError, "must be one of objective, output, function, input"),
        ({"epsilon": 0.0}, PrivacyError, "epsilon=0 must be"),
        ({"epsilon": math.nan}, PrivacyError, "epsilon=nan must be"),
        ({"delta": 1.0}, PrivacyError, "delta=1 must lie"),
        ({"ridge": 0.0}, PrivacyError, "alpha=0 must be"),
        ({"labels": np.zeros(10)}, DataError, "-1 or 1"),
        ({"labels": np.ones(9)}, DataError, "one label a row"),
        ({"rows": np.full((10, 2), math.nan)}, DataError, "must be finite"),
    ],
)
def test_impossible_requests_are_refused(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    rows, labels = _data(10, 2)
    data: dict[str, Any] = {"rows": rows, "labels": labels}
    terms: dict[str, Any] = {"kind": "output", "loss": Logistic(), "ridge": 0.1, "epsilon": 1.0}
    for name, value in changes.items():
        (data if name in data else terms)[name] = value
    with pytest.raises(error, match=message):
        Perturbation(**terms).draw(**data, entropy=seeded_entropy(0))
