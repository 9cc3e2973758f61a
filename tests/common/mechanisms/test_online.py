"""Online learning: guarantees, sensitivity, and regret against the best in hindsight."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.guarantees import Adjacency, ZeroConcentratedDP
from labelveil.common.mechanisms.clipping import rounded_within
from labelveil.common.mechanisms.continual import FollowTheLeader, PrivateHedge
from tests.common.mechanisms.central.test_minimiser import uniforms


@pytest.mark.parametrize("rho", [Fraction(1, 10**6), Fraction(1, 100), 0.5, 3.0])
def test_what_is_asked_for_is_kept(rho: float | Fraction) -> None:
    for learner in (
        FollowTheLeader(100, 5, rho, seeded_entropy(0)),
        PrivateHedge(100, 5, rho, seeded_entropy(0)),
    ):
        made = learner.guarantee
        assert isinstance(made, ZeroConcentratedDP)
        assert made.adjacency == Adjacency.REPLACE_RECORD
        assert Fraction(rho) * Fraction(99, 100) <= made.exact_rho <= Fraction(rho)
        assert np.isfinite(learner.see(np.ones(5))).all()


@pytest.mark.parametrize("grid", [8, 1024])
def test_one_round_moves_sums_by_no_more_than_the_noise_is_for(grid: int) -> None:
    steps = rounded_within(10 * uniforms(1, 500, 5), grid)
    assert (steps**2).sum(axis=1).max() <= grid**2
    # rounding without the shorter norm would pass it
    rows = 10 * uniforms(1, 500, 5)
    plain = np.rint(rows / np.linalg.norm(rows, axis=1)[:, None] * grid)
    assert (plain**2).sum(axis=1).max() > grid**2
    learner = FollowTheLeader(4, 5, 1.0, seeded_entropy(0))
    assert learner._sums.noise.sensitivity == 2 * learner._grid
    hedge = PrivateHedge(4, 5, 1.0, seeded_entropy(0))
    assert hedge._sums.noise.sensitivity >= math.sqrt(5) * hedge._grid


def _regret(rho: float, horizon: int = 800, seed: int = 0) -> float:
    """Mean regret of absolute losses ``|⟨x, w⟩ - y|``, y = ⟨x, u⟩ for a hidden u."""
    rows = uniforms(seed + 1, horizon, 3)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    hidden = np.array([0.5, -0.5, 0.3])
    learner = FollowTheLeader(horizon, 3, rho, seeded_entropy(seed))
    lost = 0.0
    for x in rows:
        error = float(x @ (learner.play - hidden))
        lost += abs(error)
        learner.see(np.sign(error) * x)
    return lost / horizon


@pytest.mark.slow
def test_regret_falls_with_the_budget_to_that_without_noise() -> None:
    free, costly, none = _regret(1e4), _regret(1.0), _regret(1e-3)
    assert free < 1.0 / math.sqrt(800)  # R C/√T: best without noise
    assert free < costly < none
    assert costly < 0.25 < none


def test_hedge_finds_the_best_expert() -> None:
    losses = (uniforms(3, 800, 4) + 1) / 2
    losses[:, 2] *= 0.5
    for rho, most in ((1e4, 0.05), (0.5, 0.2)):
        learner, lost = PrivateHedge(800, 4, rho, seeded_entropy(1)), 0.0
        for row in losses:
            lost += float(learner.weights @ row)
            learner.see(row)
        assert lost / 800 - losses.mean(axis=0).min() < most
    assert learner.weights.argmax() == 2
    assert learner.weights.sum() == pytest.approx(1)


def test_without_noise_a_play_is_the_step_down_the_gradient_to_a_thousandth() -> None:
    learner = FollowTheLeader(4, 2, 1e9, seeded_entropy(0), learning_rate=0.5)
    assert learner.see([0.333, -0.111]) == pytest.approx([-0.1665, 0.0555], abs=1e-3)
    assert learner.see([0.1, 0.2]) == pytest.approx([-0.2165, -0.0445], abs=1e-3)
    # by default R/(C√T), of gradients up to 3
    learner = FollowTheLeader(4, 2, 1e9, seeded_entropy(0), radius=2, clip=3)
    assert learner.see([0.3, -2.4]) == pytest.approx([-0.1, 0.8], abs=3e-3)
    assert learner.see([-30, 40]) == pytest.approx([0.5, 0.0], abs=3e-3)
    hedge = PrivateHedge(4, 2, 1e9, seeded_entropy(0), learning_rate=0.5)
    assert hedge.see([1, 0.2]) == pytest.approx([0.4013, 0.5987], abs=1e-3)


def test_much_noise_slows_learning() -> None:
    """Of T = 4 rounds a sum has noise of L = 3 nodes, so that d coordinates have C L √(d/ρ)."""
    noise = 3 * 3 * math.sqrt(5 / 2)
    rate = 2 / math.sqrt(4 * (3**2 + 2 * 3 * noise))
    plays = [
        FollowTheLeader(4, 5, 2, seeded_entropy(0), radius=2, clip=3, learning_rate=each).see(
            [1] * 5
        )
        for each in (None, rate)
    ]
    assert plays[0] == pytest.approx(plays[1], rel=1e-6)


def test_plays_stay_in_the_ball() -> None:
    learner = FollowTheLeader(50, 3, 0.01, seeded_entropy(2), radius=0.5)
    norms = [np.linalg.norm(learner.see(row)) for row in uniforms(5, 50, 3)]
    assert max(norms) <= 0.5 + 1e-12
    assert max(norms) > 0.49


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e200])
def test_no_number_refuses_a_round_or_passes_the_clip(odd: float) -> None:
    (steps,) = rounded_within(np.array([[odd, 1.0]]), 1 << 10)
    assert not steps.any()
    learner, hedge = (kind(10, 2, 1, seeded_entropy(0)) for kind in (FollowTheLeader, PrivateHedge))
    assert np.all(np.isfinite(learner.see([odd, 0])))
    assert np.all(np.isfinite(hedge.see([odd, 0])))


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(PrivacyError, match="rho=0"):
        PrivateHedge(10, 2, 0, seeded_entropy(0))
    with pytest.raises(PrivacyError, match="clip=0"):
        FollowTheLeader(10, 2, 1, seeded_entropy(0), clip=0)
    with pytest.raises(DataError, match="2 numbers"):
        FollowTheLeader(10, 2, 1, seeded_entropy(0)).see([0.5])
    with pytest.raises(DataError, match="2 numbers"):
        PrivateHedge(10, 2, 1, seeded_entropy(0)).see([0.5])
