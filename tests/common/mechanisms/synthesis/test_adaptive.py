"""Select–measure–project: what is spent, how it is measured, and that it wins."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.published.sources import census_table
from labelveil.common.entropy import WordSource, seeded_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import ZeroConcentratedDP, epsilon_at, largest_rho
from labelveil.common.mechanisms.synthesis import (
    MWEM,
    Budget,
    ConcentratedBudget,
    Domain,
    Marginals,
    PureBudget,
    SelectMeasureProject,
    errors,
    laplace_answers,
)
from labelveil.common.mechanisms.synthesis import select_measure_project as adaptive
from labelveil.common.mechanisms.synthesis.select_measure_project import NoisyMarginal, project
from tests.common.mechanisms.synthesis.tables import neighbours, tables
from tests.data_sets import CENSUS
from tests.statistics import fits, gaussian_mass, laplace_mass

DOMAIN = Domain(("a", "b", "c"), (3, 2, 2))
WORKLOAD = Marginals.up_to(DOMAIN, 2)
TABLE = np.array([900, 0, 0, 50, 0, 0, 700, 0, 5, 5, 0, 340])
BUDGETS: list[Budget] = [PureBudget(Fraction(1)), ConcentratedBudget(Fraction(1, 10))]


@pytest.mark.parametrize("budget", BUDGETS)
def test_everything_spent_is_the_total(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw is made at an amount, and the amounts add up to the total, however adaptive."""
    spent: list[Fraction] = []
    kind = type(budget)
    noise, rate = kind.noise, kind.rate

    def noisy(self: Budget, amount: Fraction, size: int, source: WordSource) -> np.ndarray:
        spent.append(amount)
        return noise(self, amount, size, source)

    def rated(self: Budget, amount: Fraction) -> Fraction:
        spent.append(amount)
        return rate(self, amount)

    monkeypatch.setattr(kind, "noise", noisy)
    monkeypatch.setattr(kind, "rate", rated)
    for seed in range(3):
        spent.clear()
        model = SelectMeasureProject(WORKLOAD, budget).draw(TABLE, seeded_entropy(seed))
        assert sum(spent) == budget.total
        assert model.guarantee == budget.guarantee
        assert len(model.measured) > len(DOMAIN.sizes)


def test_a_score_and_a_marginal_move_by_two_at_most() -> None:
    domain = Domain(("a", "b"), (2, 2))
    workload = Marginals.up_to(domain, 2)
    model = np.array([1, 0, 2, 1])  # any integers that do not depend on the table
    score = moved = square = 0
    for table in tables(4, 4):
        for other in neighbours(table):
            for which in range(len(workload.sets)):
                mine, one, two = (workload.marginal(t, which) for t in (model, table, other))
                change = int(np.abs(one - mine).sum()) - int(np.abs(two - mine).sum())
                score = max(score, abs(change))
                moved = max(moved, int(np.abs(one - two).sum()))
                square = max(square, int(((one - two) ** 2).sum()))
    assert (score, moved, square) == (2, 2, 2)


def test_amounts_buy_the_noise_of_their_formulas() -> None:
    amount = Fraction(1, 2)
    source = seeded_entropy(5).source("noise")
    pure = PureBudget(Fraction(1))
    draws = pure.noise(amount, 100_000, source)
    assert fits(draws, laplace_mass(Fraction(4)))  # Δ₁ / ε = 2 / (1/2)
    assert not fits(draws, laplace_mass(Fraction(2)))
    assert pure.rate(amount) == Fraction(1, 8)  # ε / (2 · 2)
    assert pure.expected(amount) == pytest.approx(np.abs(draws).mean(), rel=0.02)
    assert pure.variance(amount) == pytest.approx(draws.var(), rel=0.03)
    concentrated = ConcentratedBudget(Fraction(1))
    draws = concentrated.noise(amount, 100_000, source)
    assert fits(draws, gaussian_mass(2))  # Δ₂² / (2ρ) = 2 / 1
    assert not fits(draws, gaussian_mass(2.6))
    assert concentrated.variance(amount) == 2
    wide = concentrated.noise(amount / 20, 100_000, source)
    assert concentrated.expected(amount / 20) == pytest.approx(np.abs(wide).mean(), rel=0.02)
    epsilon = concentrated.rate(amount) * 4
    assert epsilon**2 / 8 <= amount < epsilon**2 / 8 + Fraction(1, 10**6)


def test_projection_fits_consistent_marginals_exactly() -> None:
    share = TABLE / TABLE.sum()
    exact = [
        NoisyMarginal(i, WORKLOAD.marginal(TABLE, i).astype(float), 1.0)
        for i in range(len(WORKLOAD.sets))
    ]
    fitted = project(np.full(12, 1 / 12), exact, WORKLOAD, 2000, 2000)
    gap = WORKLOAD.answers(fitted) - WORKLOAD.answers(share)
    assert np.abs(gap).max() < 1e-3
    twice = [
        NoisyMarginal(0, np.array([2000.0, 0, 0]), 3.0),
        NoisyMarginal(0, np.array([0.0, 2000, 0]), 1.0),
    ]
    merged = project(np.full(12, 1 / 12), twice, WORKLOAD, 2000, 500)
    np.testing.assert_allclose(WORKLOAD.marginal(merged, 0), [0.25, 0.75, 0], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_the_model_is_close_on_a_small_table(budget: Budget) -> None:
    model = SelectMeasureProject(WORKLOAD, budget).draw(TABLE, seeded_entropy(2))
    uniform = errors(WORKLOAD, TABLE, WORKLOAD.answers(np.full(12, 2000 / 12)))
    ours = errors(WORKLOAD, TABLE, WORKLOAD.answers(model.weights * 2000))
    assert ours[1] < 0.15 * uniform[1]

    def misfit(weights: np.ndarray) -> float:
        gaps = [(WORKLOAD.marginal(weights * 2000, m.which) - m.values, m) for m in model.measured]
        return float(sum(gap @ gap / m.variance for gap, m in gaps))

    further = project(model.weights, model.measured, WORKLOAD, 2000, 3000)
    assert misfit(model.weights) < 1.1 * misfit(further)  # it is fitted to all that was measured


def test_cheap_rounds_that_teach_nothing_become_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a tiny budget noise drowns the table, and annealing ends the run after a few rounds."""
    tiny = SelectMeasureProject(WORKLOAD, PureBudget(Fraction(1, 1000)))
    few = len(tiny.draw(TABLE, seeded_entropy(2)).measured)
    round_ = adaptive._Run.round
    monkeypatch.setattr(adaptive._Run, "round", lambda run, amount: (round_(run, amount), True)[1])
    many = len(tiny.draw(TABLE, seeded_entropy(2)).measured)
    assert few < many == 3 + 6


@pytest.mark.parametrize(
    "budget", [PureBudget(Fraction(1, 50)), ConcentratedBudget(Fraction(1, 8192))]
)
def test_a_round_says_whether_its_marginal_moved_by_more_than_its_noise(budget: Budget) -> None:
    """On average over its cells; either answer occurs, and forgetting the average is noticed."""
    said, forgetful = [], []
    for seed in range(12):
        run = adaptive._Run(budget, WORKLOAD, TABLE, seeded_entropy(seed))
        run.measure(0, budget.total / 4)
        run.project(20)
        before = run.weights
        learnt = run.round(budget.total / 4)
        last = run.measured[-1]
        moved = WORKLOAD.marginal((run.weights - before) * TABLE.sum(), last.which)
        # the noise of the measurement itself: E|Z| of its variance, to two parts in a hundred
        share = 2 / math.pi if isinstance(budget, ConcentratedBudget) else 1 / 2
        noise = math.sqrt(share * last.variance)
        average = float(np.abs(moved).mean()) / noise
        assert learnt == (average > 1) or abs(average - 1) < 0.02
        said.append(learnt)
        forgetful.append(average * moved.size > 1)
    assert len(set(said)) == 2
    assert said != forgetful


@pytest.mark.slow
@pytest.mark.skipif(CENSUS.missing is not None, reason=str(CENSUS.missing))
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1)])
def test_census_marginals_are_better_than_mwem_and_noise_on_each(epsilon: Fraction) -> None:
    domain, table = census_table()
    workload = Marginals.up_to(domain, 3)

    def mean_error(weights: np.ndarray) -> float:
        return errors(workload, table, workload.answers(weights * table.sum()))[1]

    ours = SelectMeasureProject(workload, PureBudget(epsilon)).draw(table, seeded_entropy(3))
    older = MWEM(workload, epsilon, rounds=60).draw(table, seeded_entropy(3))
    noisy = laplace_answers(workload, table, epsilon, seeded_entropy(3))
    assert mean_error(ours.weights) < 0.6 * mean_error(older.weights)
    assert mean_error(ours.weights) < 0.3 * errors(workload, table, noisy)[1]


def test_a_concentrated_budget_states_what_it_is_in_epsilon_and_delta() -> None:
    guarantee = ConcentratedBudget(largest_rho(1.0, 1e-6)).guarantee
    assert isinstance(guarantee, ZeroConcentratedDP)
    assert epsilon_at(guarantee, 1e-6) <= 1.0


def test_refusals() -> None:
    least = Fraction(1, 1 << 14)
    with pytest.raises(PrivacyError, match="at least 2"):
        PureBudget(least - Fraction(1, 1 << 30))
    assert PureBudget(least).share(least / (1 << 20)) == Fraction(1, 1 << 24)
    with pytest.raises(ConfigError, match="every attribute"):
        SelectMeasureProject(Marginals(DOMAIN, ((0, 1), (2,))), BUDGETS[0])
