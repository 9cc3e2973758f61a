"""What ``plan`` says about a randomizer agrees with what the randomizer does."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.design.assessment import Assessor

GRID = np.linspace(0.0, 10.0, 21)
PRIOR = np.exp(-GRID / 3)


def test_more_budget_is_worth_more_and_never_more_than_a_true_label() -> None:
    assessor = Assessor(GRID, PRIOR, rows=10_000)
    shares = [
        assessor.assess(
            build_randomizer("auto", labels=GRID, prior=PRIOR, epsilon=epsilon, rows=10_000)
        ).effective_share
        for epsilon in (0.25, 1.0, 4.0)
    ]
    assert 0 < shares[0] < shares[1] < shares[2] < 1


def test_worth_is_the_sample_of_true_labels_with_the_same_predicted_error() -> None:
    assessor = Assessor(GRID, PRIOR, rows=10_000)
    built = build_randomizer("two-point", labels=GRID, prior=PRIOR, epsilon=1.0)
    found = assessor.assess(built)
    assert found.effective_sample_size == pytest.approx(found.effective_share * 10_000)
    same = assessor._family.excess_error(np.eye(21), found.effective_share * assessor._effective)
    assert assessor.forecast.error(same) == pytest.approx(found.predicted_error, rel=1e-6)


@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson"])
def test_predictions_lie_between_the_constant_and_the_true_labels(loss: str) -> None:
    assessor = Assessor(GRID, PRIOR, rows=10_000, loss=loss)
    forecast = assessor.forecast
    assert forecast.unavoidable < forecast.with_true_labels < forecast.constant
    tiny = build_randomizer("two-point", labels=GRID, prior=PRIOR, epsilon=1e-4)
    assert assessor.assess(tiny).predicted_error == pytest.approx(forecast.constant, rel=1e-3)


def test_an_unbiased_randomizer_has_no_bias_and_the_published_one_has() -> None:
    assessor = Assessor(GRID, PRIOR, rows=10_000)
    unbiased = build_randomizer("randomized-thresholds", labels=GRID, prior=PRIOR, epsilon=1.0)
    published = build_randomizer("rr-on-bins", labels=GRID, prior=PRIOR, epsilon=1.0)
    assert assessor.assess(unbiased).bias < 1e-6
    assert assessor.assess(published).bias > 0.1
    assert assessor.assess(published).label_error < assessor.assess(unbiased).label_error


def test_candidates_come_best_first_and_the_unfit_with_a_reason() -> None:
    uneven = np.array([0.0, 1.0, 3.0, 7.0, 20.0])
    found, unfit = Assessor(uneven, np.ones(5), rows=5_000).compare(1.0)
    errors = [item.predicted_error for item in found]
    assert errors == sorted(errors)
    assert {"optimal-design", "rr-on-bins", "randomized-thresholds"} <= {i.name for i in found}
    assert all(reason for reason in unfit.values())
