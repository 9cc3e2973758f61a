"""Every head is the distribution it says, and stays finite wherever the network goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import build_randomizer
from labelveil.feature_party.learning.heads import (
    HEAD_NAMES,
    GammaHead,
    MeanHead,
    NegativeBinomialHead,
    PoissonHead,
    build_head,
    candidate_heads,
    canonical_tilts,
)
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.problem import LabelProblem, Leg, silent_leg
from labelveil.feature_party.learning.support import Support
from tests.feature_party.worlds import thresholds_channel


def problem_of(grid: np.ndarray, prior: np.ndarray, epsilon: float = 1.0) -> LabelProblem:
    return LabelProblem.from_channel(thresholds_channel(grid, epsilon), prior)


def counts_problem() -> LabelProblem:
    """Counts 0 … 30 with a point mass at 0 and a long tail."""
    grid = np.arange(31.0)
    prior = 0.5 * stats.poisson.pmf(grid, 4) + 0.5 * stats.geom.pmf(grid + 1, 0.15)
    prior[0] += 0.6
    return problem_of(grid, prior / prior.sum())


def smooth_problem() -> LabelProblem:
    """A bell on 26 points without atoms."""
    grid = np.linspace(0.0, 5.0, 26)
    prior = np.exp(-0.5 * ((grid - 2) / 1.1) ** 2)
    return problem_of(grid, prior / prior.sum())


def two_labels() -> LabelProblem:
    return problem_of(np.array([0.0, 1.0]), np.array([0.975, 0.025]))


def few_classes() -> LabelProblem:
    response = build_randomizer("randomized-response", labels=[0, 1, 2], prior=[1] * 3, epsilon=1)
    return LabelProblem.from_channel(response.channel, [0.5, 0.3, 0.2])


RANGE_HEADS = [name for name in HEAD_NAMES if name != "bernoulli"]
CASES = [
    (name, problem) for name in RANGE_HEADS for problem in (counts_problem(), smooth_problem())
]
CASES += [("bernoulli", two_labels()), ("softmax", two_labels())]
NAMED = [f"{name} over {problem.grid.size}" for name, problem in CASES]


@pytest.mark.parametrize(("name", "problem"), CASES, ids=NAMED)
def test_log_likelihood_is_the_brute_force_sum(name: str, problem: LabelProblem) -> None:
    support = Support.from_problem(problem)
    head = build_head(name, support)
    objective = LikelihoodObjective(problem, support, head)
    rng = np.random.default_rng(3)
    raw = torch.as_tensor(rng.normal(size=(50, head.outputs)), dtype=torch.float32)
    codes = rng.integers(0, problem.outputs.size, 50)
    # −ln Σ_y K[y, z] q(y | x), with q in double precision from the head's own logits
    logits = head.logits(raw).double().numpy()
    q = np.exp(logits - logits.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    on_grid = q[:, support.cell_of] * support.within
    likelihood = (on_grid * problem.channel[:, codes].T).sum(axis=1)
    constant = np.log(support.likelihood.max(axis=0))[codes]
    found = objective.loss(raw, objective.targets(codes)).double().numpy()
    np.testing.assert_allclose(found, constant - np.log(likelihood), atol=2e-5)


@pytest.mark.parametrize("scale", [0.0, 5.0, 1e3, 1e6])
@pytest.mark.parametrize(("name", "problem"), CASES, ids=NAMED)
def test_losses_and_gradients_are_finite_at_extremes(
    name: str, problem: LabelProblem, scale: float
) -> None:
    support = Support.from_problem(problem)
    head = build_head(name, support)
    objective = LikelihoodObjective(problem, support, head)
    signs = torch.randint(0, 2, (64, head.outputs), generator=torch.Generator().manual_seed(0))
    raw = (scale * (2.0 * signs - 1.0)).requires_grad_()
    loss = objective.loss(raw, torch.arange(64) % problem.outputs.size)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss).all()
    assert raw.grad is not None
    assert torch.isfinite(raw.grad).all()


def test_labels_of_their_own_get_heads_of_their_own() -> None:
    for problem, wanted in ((two_labels(), "bernoulli"), (few_classes(), "softmax")):
        support = Support.from_problem(problem)
        assert problem.discrete
        assert candidate_heads(support, counts=True) == ((wanted,), ())
        nothing = build_head(wanted, support)
        logits = nothing.log_probabilities(torch.zeros(nothing.outputs))
        np.testing.assert_allclose(logits.exp(), problem.prior, atol=1e-4)
    assert not LabelProblem.from_json(smooth_problem().to_json()).discrete
    assert LabelProblem.from_json(two_labels().to_json()).discrete
    with pytest.raises(ConfigError, match="is for two labels, not for 26; use softmax"):
        build_head("bernoulli", Support.from_problem(smooth_problem()))


def test_gaussian_is_the_normal_density() -> None:
    support = Support.from_problem(smooth_problem())
    head = build_head("gaussian", support)
    mean = float(support.prior @ support.values)
    scale = float(support.prior @ (support.values - mean) ** 2) ** 0.5
    found = head.log_probabilities(torch.tensor([0.4, -0.5])).exp().double().numpy()
    wanted = stats.norm.pdf(
        support.values,
        mean + scale * 8 * np.tanh(0.4 / 8),
        scale * np.exp(8 * np.tanh(-0.5 / 8)),
    )
    wanted *= support.widths
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("shares", "shape", "size"),
    [
        ({10: 0.999, 9: 0.0005, 11: 0.0005}, np.exp(6), np.exp(5)),  # nearly of one value
        ({0: 0.999, 20: 0.001}, np.exp(-3), np.exp(-5)),  # nearly all nothing
        ({8: 0.5, 12: 0.5}, 100 / 4, np.exp(5)),  # varies less than counts of one rate
        ({0: 0.5, 20: 0.5}, 1.0, 100 / 90),
    ],
)
def test_shapes_are_the_priors_as_far_as_any_model_needs(
    shares: dict[int, float], shape: float, size: float
) -> None:
    values, widths, prior = np.arange(21.0), np.ones(21), np.zeros(21)
    for place, share in shares.items():
        prior[place] = share
    mean, positive = prior @ values, np.maximum(values, 0.25)
    for head, wanted in (
        (GammaHead(values, widths, prior), stats.gamma.pdf(positive, shape, scale=mean / shape)),
        (
            NegativeBinomialHead(values, widths, prior),
            stats.nbinom.pmf(values, size, size / (size + mean)),
        ),
        (PoissonHead(values, widths, prior), stats.poisson.pmf(values, mean)),
    ):
        found = head.probabilities(torch.zeros(1, head.outputs))[0].numpy()
        np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("name", "problem"), CASES, ids=NAMED)
def test_all_constants_move_to_a_device(name: str, problem: LabelProblem) -> None:
    support = Support.from_problem(problem)
    objective = LikelihoodObjective(problem, support, build_head(name, support))
    meta = torch.device("meta")
    assert objective.to(meta) is objective
    assert objective.family.device == meta
    held = [objective, objective.family, getattr(objective.family, "inner", objective.family)]
    constants = [value for each in held for value in vars(each).values()]
    assert {each.device for each in constants if isinstance(each, torch.Tensor)} == {meta}


def test_a_mean_is_looked_up_alike_where_a_model_is_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    support = Support.from_problem(smooth_problem())
    head = build_head("mean", support)
    assert isinstance(head, MeanHead)
    known = head.means[::7]
    raw = torch.cat([known, known[:-1] + 1e-3, torch.tensor([-99.0, 99.0])])[:, None]
    plain = head.logits(raw)
    with monkeypatch.context() as exported:
        exported.setattr(torch.compiler, "is_compiling", lambda: True)
        found = head.logits(raw)
    assert torch.equal(found, plain)


def test_tilts_that_were_learned_by_are_kept() -> None:
    """A model has no channel to find them in again."""
    support = Support.from_problem(counts_problem())
    tilts = np.stack([support.values / 30, np.cos(support.values)], axis=1)
    head = build_head("canonical", support, tilts)
    raw = torch.tensor([[0.3, -0.2]])
    wanted = np.log(support.prior) + tilts @ (8 * np.tanh(raw[0].numpy() / 8))
    np.testing.assert_allclose(head.logits(raw)[0], wanted, rtol=1e-5)
    axis = support.values / 3 - 1
    mean = build_head("mean", support, axis[:, None])
    law = mean.probabilities(torch.tensor([[0.5]]))[0].numpy()
    assert law @ axis == pytest.approx(0.5, abs=0.01)


def test_counts_follow_their_families() -> None:
    grid = np.arange(25.0)
    problem = problem_of(grid, stats.nbinom.pmf(grid, 3, 3 / 8))
    support = Support.from_problem(problem)
    assert not support.low_atom
    mean = float(support.prior @ support.values)
    variance = float(support.prior @ (support.values - mean) ** 2)
    zero = torch.zeros(1)
    poisson = build_head("poisson", support).log_probabilities(zero).exp().double().numpy()
    wanted = stats.poisson.pmf(grid, mean)
    np.testing.assert_allclose(poisson, wanted / wanted.sum(), rtol=1e-4, atol=1e-7)
    size = mean**2 / (variance - mean)
    head = build_head("negative-binomial", support)
    found = head.log_probabilities(torch.zeros(2)).exp().double().numpy()
    wanted = stats.nbinom.pmf(grid, size, size / (size + mean))
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["softmax", "prior-tilt", "canonical"])
def test_tilted_heads_start_at_the_prior(name: str) -> None:
    support = Support.from_problem(counts_problem())
    head = build_head(name, support)
    found = head.log_probabilities(torch.zeros(head.outputs)).exp().double().numpy()
    np.testing.assert_allclose(found, support.prior, rtol=1e-5)


def test_canonical_tilts_are_what_the_channel_tells_apart() -> None:
    support = Support.from_problem(counts_problem())
    tilts = canonical_tilts(support.prior, support.likelihood)
    prior, channel = support.prior, support.likelihood
    marginal = prior @ channel
    # E[E[h | output] | label] = σ² h: each is an eigenfunction of guessing from the output
    there = channel @ ((channel * prior[:, None]).T / marginal[:, None])
    scale = tilts / np.sqrt(prior @ tilts**2)
    values = np.sum(prior[:, None] * scale * (there @ scale), axis=0)
    np.testing.assert_allclose(there @ scale, values * scale, atol=1e-9)
    assert np.all(np.diff(values) <= 1e-12)
    np.testing.assert_allclose((prior[:, None] * scale).T @ scale, np.eye(values.size), atol=1e-9)
    np.testing.assert_allclose(prior @ tilts, 0, atol=1e-9)
    # no function of the label correlates more with one of the output than the first does
    rng = np.random.default_rng(4)
    for _ in range(200):
        h = rng.normal(size=support.size)
        h = (h - prior @ h) / np.sqrt(prior @ h**2 - (prior @ h) ** 2)
        assert prior @ (h * (there @ h)) <= values[0] + 1e-12
    # and their lengths fall with what an output tells of them
    lengths = np.sqrt(prior @ tilts**2)
    np.testing.assert_allclose(lengths**2 / lengths[0] ** 2, values / values[0], rtol=1e-6)


def test_a_canonical_head_keeps_the_prior_where_the_channel_does_not_look() -> None:
    grid = np.arange(40.0)
    prior = np.exp(-grid / 6)
    prior /= prior.sum()
    channel = np.where(grid[:, None] < 5, [0.75, 0.25], [0.25, 0.75])
    rows, row_of = np.unique(channel, axis=0, return_inverse=True)
    problem = LabelProblem(grid, (Leg(prior, rows, row_of.reshape(-1), np.array([0.0, 1.0])),))
    support = Support.from_problem(problem)
    head = build_head("canonical", support)
    assert head.outputs == 1
    found = head.log_probabilities(torch.tensor([0.8])).exp().double().numpy()
    for side in (grid < 5, grid >= 5):
        np.testing.assert_allclose(
            found[side] / found[side].sum(),
            support.prior[side] / support.prior[side].sum(),
            rtol=1e-5,
        )
    assert abs(found[grid >= 5].sum() - prior[grid >= 5].sum()) > 0.1


def test_a_channel_that_says_nothing_has_nothing_to_tilt() -> None:
    grid = np.arange(9.0)
    problem = LabelProblem(grid, (silent_leg(grid, np.full(9, 1 / 9)),))
    head = build_head("canonical", Support.from_problem(problem))
    found = head.log_probabilities(torch.full((head.outputs,), 3.0)).exp().numpy()
    np.testing.assert_allclose(found, 1 / 9, rtol=0.02)


def test_atoms_get_their_own_output() -> None:
    support = Support.from_problem(counts_problem())
    assert support.low_atom
    head = build_head("gamma", support)
    assert head.outputs == 3
    raw = torch.zeros(3)
    raw[0] = 50.0
    assert float(head.log_probabilities(raw)[0]) == pytest.approx(0.0, abs=1e-6)
    start = head.log_probabilities(torch.zeros(3)).exp()
    assert float(start[0]) == pytest.approx(support.prior[0], rel=1e-4)


@pytest.mark.parametrize(("cells", "end"), [(8, True), (7, False)])
def test_an_end_is_an_atom_of_a_range_of_many_values(cells: int, end: bool) -> None:
    prior = np.ones(cells)
    prior[0] = 4.0  # of a cell that is half as wide: eight times as dense
    low = Support.from_problem(problem_of(np.arange(float(cells)), prior / prior.sum()))
    high = Support.from_problem(problem_of(np.arange(float(cells)), prior[::-1] / prior.sum()))
    assert (low.low_atom, low.high_atom) == (end, False)
    assert (high.low_atom, high.high_atom) == (False, end)


def test_a_fine_grid_is_merged() -> None:
    grid = np.arange(401.0)
    prior = np.exp(-grid / 20) + 1e-5
    problem = problem_of(grid, prior / prior.sum())
    support = Support.from_problem(problem)
    assert support.size <= 64
    moved = Support.from_problem(problem_of(grid + 1000, prior / prior.sum()))
    assert np.array_equal(moved.cell_of, support.cell_of)  # wherever labels begin
    np.testing.assert_allclose(moved.values, support.values + 1000)
    assert support.values[0] == 0
    assert support.values[-1] == 400
    assert np.all(np.diff(support.values) > 0)
    np.testing.assert_allclose(support.likelihood.sum(axis=1), 1, rtol=1e-9)
    np.testing.assert_allclose(support.prior @ support.values, problem.mean, rtol=0.1)
    assert support.heavy_tailed


def test_long_tails_get_heads_that_do_not_tilt_them() -> None:
    grid = np.arange(401.0)
    prior = np.exp(-grid / 5)
    prior[0] *= 3  # skewness above 2 on either grid
    long = Support.from_problem(problem_of(grid, prior / prior.sum()))
    few = Support.from_problem(problem_of(grid[:100], prior[:100] / prior[:100].sum()))
    for support, counts, last in (
        (long, True, "gamma"),  # 400 is rather an amount
        (few, True, "negative-binomial"),
        (few, False, "gamma"),
    ):
        assert candidate_heads(support, counts) == (("canonical", "log-normal", last), ())
    bell = Support.from_problem(smooth_problem())
    flexible = ("prior-tilt", "softmax")
    assert candidate_heads(bell, counts=False) == (("gaussian", "log-normal"), flexible)
    for points, last in ((128, "negative-binomial"), (129, "gamma")):
        law = prior[:points] / prior[:points].sum()
        ends = Support.from_problem(problem_of(grid[:points], law))
        assert candidate_heads(ends, counts=True)[0][-1] == last
    # a logarithmic axis is for labels that are nowhere below zero
    for start, first in ((1.0, "canonical"), (-1.0, "gaussian")):
        moved = Support.from_problem(problem_of(grid[:100] + start, prior[:100]))
        assert candidate_heads(moved, counts=False)[0][0] == first
    below = Support.from_problem(problem_of(np.linspace(-1, 1, 9), np.ones(9)))
    assert candidate_heads(below, counts=False) == (("gaussian",), flexible)
    above = Support.from_problem(problem_of(np.linspace(1, 3, 9), np.ones(9)))
    assert candidate_heads(above, counts=False) == (("gaussian", "log-normal"), flexible)


def test_unknown_and_impossible_heads_are_refused() -> None:
    support = Support.from_problem(smooth_problem())
    with pytest.raises(ConfigError, match="head='normal' must be auto or one of"):
        build_head("normal", support)
    grid = np.linspace(-1, 1, 9)
    negative = Support.from_problem(problem_of(grid, np.full(9, 1 / 9)))
    with pytest.raises(ConfigError, match="needs labels >= 0"):
        build_head("gamma", negative)
