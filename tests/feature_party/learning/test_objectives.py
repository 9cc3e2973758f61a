"""Several laws on shared hidden layers: each has its outputs, and together they are a mixture."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from labelveil.common.randomizers import build_randomizer
from labelveil.feature_party.learning.heads import build_head
from labelveil.feature_party.learning.objectives import (
    LikelihoodObjective,
    PointObjective,
    SharedObjective,
)
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support


def test_laws_that_share_layers_are_an_equal_mixture() -> None:
    labels, prior = np.arange(9.0), np.full(9, 1 / 9)
    response = build_randomizer("randomized-response", labels=labels, prior=prior, epsilon=2.0)
    problem = LabelProblem.from_channel(response.channel, prior)
    support = Support.from_problem(problem)
    laws = [
        LikelihoodObjective(problem, support, build_head(name, support))
        for name in ("gaussian", "poisson")
    ]
    shared = SharedObjective(laws)
    raw = torch.randn(5, shared.outputs, generator=torch.Generator().manual_seed(0))
    codes = np.arange(5)
    assert [law.outputs for law in laws] == [2, shared.outputs - 2]
    pairs = list(zip(laws, (raw[:, :2], raw[:, 2:]), strict=True))
    for found, parts in (
        (shared.distributions(raw), [law.distributions(one) for law, one in pairs]),
        (shared.points(raw), [law.points(one) for law, one in pairs]),
        (
            shared.loss(raw, shared.targets(codes)),
            [law.loss(one, law.targets(codes)) for law, one in pairs],
        ),
    ):
        torch.testing.assert_close(found, (parts[0] + parts[1]) / 2)
    law = shared.distributions(raw)
    torch.testing.assert_close(law.sum(-1), torch.ones(5, dtype=law.dtype))
    values = torch.as_tensor(support.values, dtype=law.dtype)
    torch.testing.assert_close(law @ values, shared.points(raw).to(law.dtype), atol=1e-4, rtol=1e-4)


def test_an_objective_that_is_moved_is_of_the_moved_labels() -> None:
    labels, raw = np.array([0.0, 1.0, 5.0, 9.0]), torch.linspace(-40.0, 40.0, 9)[:, None]
    for kind, location in (("squared", 3.0), ("absolute", 3.0), ("poisson", 0.0)):
        own = PointObjective("raw", kind, np.zeros(0), 1.5 if location else 0.0, 2.0, 0.0, 10.0)
        moved = own.moved(location, 7.0)
        assert (moved.lower, moved.upper) == (location, location + 70)
        torch.testing.assert_close(moved.points(raw), location + 7 * own.points(raw))
        targets = own.value_targets(labels), moved.value_targets(location + 7 * labels)
        torch.testing.assert_close(*targets)


def test_the_loss_of_a_count_is_its_likelihood() -> None:
    counts, rates = np.array([0.0, 1.0, 3.0, 7.0]), np.array([0.5, 2.0, 3.0, 4.0])
    objective = PointObjective("raw", "poisson", np.zeros(0), 0.0, 1.0, 0.0, 10.0)
    targets = objective.value_targets(counts)
    raw = torch.as_tensor(np.log(rates), dtype=torch.float32)[:, None]
    excess = objective.loss(raw, targets) - objective.loss(torch.zeros(4, 1), targets)
    wanted = stats.poisson.logpmf(counts, 1.0) - stats.poisson.logpmf(counts, rates)
    np.testing.assert_allclose(excess.numpy(), wanted, rtol=1e-5, atol=1e-5)
