"""The pruned search finds the optimum of the plain program, however the prior is made."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.arrays import Floats
from common.entropy import seeded_entropy
from common.errors import ConfigError
from common.randomizers import build_randomizer, optimal_binning
from common.randomizers.base import Problem, check_prior
from common.randomizers.binning.interval_costs import interval_costs
from common.randomizers.losses import LOSS_NAMES, get_loss
from common.randomizers.prior import private_prior
from tests.common.randomizers.binning.exhaustive_bins import (
    adversarial_priors,
    exhaustive_objective,
)

GRIDS = ("integers", "irregular", "logarithmic")


def grid(k: int, kind: str) -> Floats:
    draw = np.random.default_rng(k)
    return {
        "integers": np.arange(k, dtype=float),
        "irregular": np.cumsum(draw.exponential(size=k) ** 3 + 1e-9),
        "logarithmic": np.concatenate([[0.0], np.geomspace(1e-3, 1e5, k - 1)]),
    }[kind]


def assert_optimal(problem: Problem) -> None:
    found, reference = optimal_binning(problem).objective, exhaustive_objective(problem)
    # the Poisson loss has an arbitrary zero; its size is that of the label
    scale = abs(reference) if problem.loss.name != "poisson" else problem.prior @ problem.labels
    assert abs(found - reference) <= 1e-11 * scale, (found, reference)


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_it_is_the_plain_programs_optimum(loss: str, kind: str) -> None:
    k = 90 if loss == "absolute" else 200
    for weights in adversarial_priors(k, 0).values():
        for epsilon in (0.01, 0.5, 4.0, 10.0):
            assert_optimal(Problem(grid(k, kind), check_prior(weights, k), epsilon, get_loss(loss)))


@pytest.mark.parametrize("name", ["noise", "heavy tail", "steps"])
@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_coarse_rounds_end_at_the_same_optimum(loss: str, name: str) -> None:
    k = 2_200  # the first rounds use every fourth edge
    weights = adversarial_priors(k, 1)[name]
    assert_optimal(Problem(grid(k, "integers"), check_prior(weights, k), 3.0, get_loss(loss)))


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 60), min_size=4, max_size=10, unique=True),
    weights=st.lists(st.integers(1, 1000), min_size=10, max_size=10),
    power=st.integers(1, 4),
    boost=st.sampled_from([0.01, 0.6, 6.0, 400.0]),
    loss=st.sampled_from(LOSS_NAMES),
)
def test_confined_costs_satisfy_the_quadrangle_inequality(
    labels: list[int], weights: list[int], power: int, boost: float, loss: str
) -> None:
    k = len(labels)
    prior = check_prior(np.array(weights[:k], dtype=float) ** power, k)
    costs = interval_costs(np.sort(np.array(labels, dtype=float)), prior, boost, get_loss(loss))
    r, i = np.triu_indices(k + 1, 1)
    free, table = np.zeros((k + 1, k + 1)), np.zeros((k + 1, k + 1))
    free[r, i], table[r, i] = costs.cost(r, i), costs.confined(r, i)
    slack = 1e-12 * table.max()
    assert np.all(table >= free - slack)
    for a, b, c, d in itertools.combinations(range(k + 1), 4):
        assert table[a, c] + table[b, d] <= table[a, d] + table[b, c] + slack


def test_free_costs_do_not_satisfy_it() -> None:
    # bins of tiny mass at the left all take their value from the mass at the right
    labels, prior = np.arange(4.0), np.array([1e-3, 1e-3, 1e-3, 1 - 3e-3])
    costs = interval_costs(labels, prior, 1.0, get_loss("squared"))

    def cost(r: int, i: int) -> float:
        return float(costs.cost(np.array([r]), np.array([i]))[0])

    assert cost(0, 2) + cost(1, 3) > cost(0, 3) + cost(1, 2) + 1e-9


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_a_hundred_thousand_labels_fit_into_memory(loss: str) -> None:
    k = 100_000
    counts = np.bincount(np.minimum(np.arange(300_000) ** 2 // 500_000, k - 1), minlength=k)
    prior = private_prior(counts, 0.5, seeded_entropy(1)).probabilities
    tracemalloc.start()
    built = build_randomizer("rr-on-bins", labels=np.arange(k), prior=prior, epsilon=4.0, loss=loss)
    loss_of_it = built.expected_loss
    codes = built.randomize(np.arange(0, k, 7), seeded_entropy(2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400e6
    assert built.channel.satisfies(4.0)
    assert codes.max() < built.channel.outputs.size
    problem = Problem(np.arange(k, dtype=float), check_prior(prior, k), 4.0, get_loss(loss))
    assert loss_of_it == pytest.approx(optimal_binning(problem).objective, rel=1e-9)


def test_more_bins_than_a_channel_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="coarser label grid"):
        build_randomizer("rr-on-bins", labels=np.arange(2_500), prior=np.ones(2_500), epsilon=40.0)
