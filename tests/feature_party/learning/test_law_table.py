"""Derivatives from a table against automatic differentiation, and encodings of categories."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelveil.common.randomizers import build_randomizer
from labelveil.feature_party.learning.heads import build_head
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.problem import LabelProblem, Leg
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.learning.target_encoding import TargetEncoding, scores_of_codes
from tests.effort import one_in


def problem_with(prior: np.ndarray, epsilon: float) -> LabelProblem:
    grid = np.arange(prior.size, dtype=np.float64)
    built = build_randomizer(
        "randomized-thresholds", labels=grid, prior=prior / prior.sum(), epsilon=epsilon
    )
    return LabelProblem.from_channel(built.channel, prior)


PLAIN = np.exp(-0.5 * ((np.arange(30) - 12) / 5) ** 2) + 0.01
WITH_ATOMS = PLAIN + 3.0 * np.isin(np.arange(30), (0, 29))


@pytest.mark.parametrize("head", ["gaussian", "log-normal", "gamma", "prior-tilt", "poisson"])
@pytest.mark.parametrize("prior", one_in(2, [PLAIN, WITH_ATOMS], first=1))
def test_interpolated_derivatives_are_those_of_the_likelihood(head: str, prior: np.ndarray) -> None:
    problem = problem_with(prior, 2.0)
    support = Support.from_problem(problem)
    family = build_head(head, support)
    table = LawTable(family, support.likelihood)
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(500, family.outputs))
    codes = rng.integers(support.likelihood.shape[1], size=500)
    raw = torch.tensor(outputs, requires_grad=True)
    probabilities = torch.softmax(family.logits(raw), dim=-1)
    exact = -torch.log((probabilities * torch.as_tensor(support.likelihood.T[codes])).sum(dim=-1))
    exact.sum().backward()  # type: ignore[no-untyped-call]
    losses, gradient, information = table.derivatives(outputs, codes)
    assert raw.grad is not None
    np.testing.assert_allclose(losses, exact.detach().numpy(), atol=0.02)
    np.testing.assert_allclose(table.loss(outputs, codes), losses)
    assert np.abs(gradient - raw.grad.numpy()).mean() < 0.005
    assert information.min() > 0
    # as a loss of several members' batches, with its gradient
    objective = LikelihoodObjective(problem, support, family)
    asked = torch.tensor(outputs, dtype=torch.float32, requires_grad=True)
    shaped = objective.quick_loss(asked.view(5, 100, -1), torch.as_tensor(codes).view(5, 100))
    scale = np.log(support.likelihood.max(axis=0))[codes]
    np.testing.assert_allclose(shaped.detach().numpy().ravel(), losses + scale, atol=1e-4)
    (2 * shaped).sum().backward()  # type: ignore[no-untyped-call]
    assert asked.grad is not None
    np.testing.assert_allclose(asked.grad, 2 * gradient, atol=1e-4)


def test_the_hessian_is_the_fisher_information() -> None:
    support = Support.from_problem(problem_with(PLAIN, 2.0))
    table = LawTable(build_head("gaussian", support), support.likelihood)
    every = np.arange(support.likelihood.shape[1])
    outputs = np.tile([0.5, -0.25], (every.size, 1))
    losses, gradient, information = table.derivatives(outputs, every)
    expected = np.exp(-losses) @ gradient**2
    np.testing.assert_allclose(information[0], expected, rtol=0.02)
    np.testing.assert_allclose(np.exp(-losses) @ gradient, 0, atol=1e-3)


@pytest.mark.parametrize("head", ["gaussian", "gamma", "poisson"])
def test_a_channel_without_noise_has_derivatives_everywhere(head: str) -> None:
    """A narrow law gives labels far from it the probability 0 in floating point."""
    problem = problem_with(PLAIN, 1.0)
    every = np.arange(PLAIN.size)
    plain = Leg(problem.prior, np.eye(every.size), every, problem.grid)
    problem = replace(problem, legs=(plain,))
    support = Support.from_problem(problem)
    family = build_head(head, support)
    table = LawTable(family, support.likelihood)
    outputs = np.array([[place] * family.outputs for place in (-5.0, -2.0, 0.0, 5.0)])
    for code in every:
        for found in table.derivatives(outputs, np.full(4, code)):
            assert np.isfinite(found).all()


def test_no_product_is_of_numbers_that_processors_are_slow_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A narrow law says of most cells less than single precision's least normal number."""
    support = Support.from_problem(problem_with(np.full(64, 1 / 64), 1.0))
    product, taken = torch.Tensor.__matmul__, list[torch.Tensor]()

    def noted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        taken.extend(each for each in (left, right) if each.dtype == torch.float32)
        return product(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", noted)
    LawTable(build_head("gaussian", support), support.likelihood)
    least = torch.finfo(torch.float32).tiny
    slow = [int(((each != 0) & (each.abs() < least)).sum()) for each in taken]
    assert any((each == 0).any() for each in taken)  # the law is that narrow
    assert not any(slow)


def test_heads_of_more_parameters_have_no_table() -> None:
    support = Support.from_problem(problem_with(PLAIN, 2.0))
    assert LawTable.serves(build_head("gaussian", support), 60)
    assert not LawTable.serves(build_head("softmax", support), 60)
    assert not LawTable.serves(build_head("gaussian", support), 1 << 20)


def test_a_category_is_never_encoded_from_its_own_fold() -> None:
    rng = np.random.default_rng(0)
    categories = rng.integers(50, size=(2000, 1)).astype(np.int32)
    fold_of = rng.integers(4, size=2000)
    scores = rng.normal(size=2000)
    encoding = TargetEncoding(categories, (50,), scores, fold_of)
    before = encoding.rows(0)
    for fold in range(4):
        changed = np.where(fold_of == fold, 100.0, scores)
        after = TargetEncoding(categories, (50,), changed, fold_of)
        after.strength = encoding.strength
        mine = fold_of == fold
        np.testing.assert_array_equal(after.rows(0)[mine], before[mine])
        assert not np.array_equal(after.rows(1 if fold == 0 else fold)[~mine], before[~mine])


def test_encodings_find_what_labels_say_and_little_else() -> None:
    rng = np.random.default_rng(1)
    categories = rng.integers(100, size=(20_000, 2)).astype(np.int32)
    means = rng.normal(size=100)
    scores = means[categories[:, 0]] + 3 * rng.normal(size=20_000)
    encoding = TargetEncoding(categories, (100, 100), scores, rng.integers(4, size=20_000))
    telling, nothing = np.split(encoding.encoding(), 2)
    assert np.corrcoef(telling, means)[0, 1] > 0.9
    assert nothing.std() < 0.2 * telling.std()


def test_scores_of_codes_are_standardised_posterior_means() -> None:
    problem = problem_with(PLAIN, 1.0)
    scores = scores_of_codes(problem)
    marginal = problem.output_prior
    assert marginal @ scores == pytest.approx(0, abs=1e-9)
    assert marginal @ scores**2 == pytest.approx(1)
    joint = (problem.prior * (problem.grid - problem.mean)) @ problem.channel
    explained = (joint @ scores) ** 2 / problem.deviation**2
    assert explained == pytest.approx(problem.informativeness)


# What a process's memory grows by, in megabytes, while a table of 12 channels is made.
MAKING = """
import resource
import numpy as np
from labelveil.feature_party.learning.heads import build_head
from labelveil.feature_party.learning.law_table import LawTable
from labelveil.feature_party.learning.problem import LabelProblem, Leg
from labelveil.feature_party.learning.support import Support

grid, sent, channels = np.arange(40.0), np.linspace(-5, 45, 80), 12
shifts = np.random.default_rng(0).normal(size=channels)
rows = np.concatenate([np.exp(-abs(grid[:, None] - sent - at) / 15) for at in shifts], axis=1)
rows /= rows.sum(axis=1, keepdims=True)
prior, outputs = np.full(40, 1 / 40), np.arange(float(rows.shape[1]))
support = Support.from_problem(LabelProblem(grid, (Leg(prior, rows, np.arange(40), outputs),)))
head, channel_of = build_head("gaussian", support), np.repeat(np.arange(channels), sent.size)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = LawTable(head, support.likelihood, channel_of, np.full(channels, 1 / channels))
assert table.table.numel() * table.table.element_size() > 70e6
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


@pytest.mark.slow
def test_a_table_is_made_in_little_more_than_its_own_memory() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MAKING],
        cwd=Path(__file__).parents[3], check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert int(ended.stdout) < 250  # of 73 MB
