"""The bins found are the plain program's in extended precision, however the prior is made."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.randomizers import optimal_binning
from labelveil.common.randomizers.base import Problem, check_prior
from labelveil.common.randomizers.binning.interval_costs import interval_costs
from labelveil.common.randomizers.losses import LOSS_NAMES, get_loss
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_it_is_the_plain_programs_optimum(loss: str, kind: str) -> None:
    k = 90 if loss == "absolute" else 200
    for weights in adversarial_priors(k, 0).values():
        for epsilon in (0.01, 0.5, 4.0, 10.0):
            assert_optimal(Problem(grid(k, kind), check_prior(weights, k), epsilon, get_loss(loss)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noise", "heavy tail", "steps"])
@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_thousands_of_labels_end_at_the_same_optimum(
    loss: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "steps":
        monkeypatch.setattr("labelveil.common.randomizers.binning.rr_on_bins._KEPT", 0)
    k = 2_200
    weights = adversarial_priors(k, 1)[name]
    assert_optimal(Problem(grid(k, "integers"), check_prior(weights, k), 3.0, get_loss(loss)))


def test_free_costs_do_not_satisfy_it() -> None:
    # bins of tiny mass at the left all take their value from the mass at the right
    labels, prior = np.arange(4.0), np.array([1e-3, 1e-3, 1e-3, 1 - 3e-3])
    costs = interval_costs(labels, prior, 1.0, get_loss("squared"))

    def cost(r: int, i: int) -> float:
        return float(costs.ending(i)[0][r])

    assert cost(0, 2) + cost(1, 3) > cost(0, 3) + cost(1, 2) + 1e-9
