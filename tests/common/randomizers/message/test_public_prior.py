"""Public priors in place of histograms, where labels are at hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

import labelveil as lv
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message import known_labels
from labelveil.common.randomizers.message.known_labels import KnownLabels
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.private_labels import randomize
from labelveil.common.randomizers.message.terms import Division, LabelTerms
from labelveil.common.randomizers.prior import expected_prior, private_prior
from labelveil.common.release.size import check_manifest
from labelveil.feature_party.notebook.sources import problem_of
from tests.statistics import repeatable_entropy

GRID = np.arange(31.0)
WEIGHTS = np.exp(-GRID / 4)
LABELS = np.repeat(GRID, np.rint(8_000 * WEIGHTS / WEIGHTS.sum()).astype(int)).astype(int)
RIGHT = dict(zip(GRID.tolist(), WEIGHTS.tolist(), strict=True))
WRONG = {25.0: 1.0, 30.0: 2.0}
BOUNDS = {"lower": 0, "upper": 30}


@pytest.mark.parametrize("prior", [RIGHT, WRONG])
def test_nothing_is_spent_on_it(prior: dict[float, float]) -> None:
    made = lv.randomize_labels(LABELS, epsilon=1, prior=prior, **BOUNDS)
    ratio = made.channel.ratio  # the worst of the integers themselves
    assert math.log(ratio) <= 1
    assert made.guarantee.exact_epsilon <= 1
    assert float(made.guarantee.exact_epsilon) > 0.99
    assert made.prior @ GRID == pytest.approx(
        sum(y * w for y, w in prior.items()) / sum(prior.values()), rel=1e-6
    )


def test_a_right_one_leaves_a_smaller_error_than_one_that_is_paid_for() -> None:
    """Theorem 5 has the prior for granted; Theorem 7 says what it costs to buy one."""
    few, truth = LABELS[::20], WEIGHTS / WEIGHTS.sum()

    def error(**options: dict[float, float]) -> float:
        made = lv.randomize_labels(few, epsilon=1, randomizer="rr-on-bins", **options, **BOUNDS)  # type: ignore[arg-type]
        squares = (made.channel.outputs - GRID[:, None]) ** 2
        return float(truth @ (made.channel.probabilities * squares).sum(axis=1))

    best = lv.build_randomizer("rr-on-bins", labels=GRID, prior=truth, epsilon=1.0).expected_loss
    assert error(prior=RIGHT) == pytest.approx(best, rel=1e-6)
    assert error() > 1.001 * best


def test_codes_bring_back_what_a_wrong_prior_excludes() -> None:
    truth = LABELS.mean()
    with repeatable_entropy():
        wrong = lv.randomize_labels(LABELS, epsilon=4, prior=WRONG, **BOUNDS)
        right = lv.randomize_labels(LABELS, epsilon=4, prior=RIGHT, **BOUNDS)
    assert abs(wrong.prior @ GRID - truth) > 10
    assert abs(problem_of(wrong, wrong.codes).mean - truth) < 1.5
    assert abs(problem_of(right, right.codes).mean - truth) < 0.2


@pytest.mark.slow
def test_a_histogram_keeps_a_right_prior_and_is_not_misled_by_a_wrong_one() -> None:
    """Labels with heaps, which no smooth law has, and the same noise on each."""
    truth = np.exp(-GRID / 8) * (1 + 6 * (GRID % 5 == 0))
    truth /= truth.sum()
    wrong = np.exp(-((GRID - 22) ** 2) / 50)

    def distances(prior: Floats | None) -> Floats:
        found = []
        for seed in range(8):
            counts = np.random.default_rng(seed).multinomial(2_000, truth)
            start = None if prior is None else expected_prior(prior).noisy_counts
            noisy = private_prior(counts, 0.2, seeded_entropy(seed), start=start)
            found.append(np.abs(noisy.probabilities - truth).sum() / 2)
        return np.array(found)

    none = distances(None)
    assert distances(truth).mean() < none.mean() / 2
    assert np.all(np.abs(distances(wrong) - none) < 0.01)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("division", ["split", "joint", "auto"])
def test_several_labels(division: Division, corrected: bool) -> None:
    """Of the joint law of two labels each group of cells takes its own, and the rest of ε."""
    terms = [LabelTerms("a", 0, 3, whole=True), LabelTerms("b", 0, 4, whole=True)]
    rows = np.random.default_rng(1).integers(0, [4, 5], (4_000, 2)).astype(float)
    known = KnownLabels((0, 1), *np.unique(rows[:500], axis=0, return_counts=True))
    plain = plan_message(terms, len(rows), 1.0, division=division)
    priors = {group: known.over(group) for group in plain.groups}
    plan = plain.knowing(priors, corrected=corrected)
    assert check_manifest(plan) > 0
    made = randomize(rows, plan, seeded_entropy(3))
    spent = [share.epsilon for share in (*plan.histograms, *plan.channels)]
    assert sum(spent) == sum(share.epsilon for share in (*plain.histograms, *plain.channels))
    assert made.guarantee.exact_epsilon <= 1
    assert bool(plan.histograms) is corrected
    for group, prior in made.message.histograms:
        assert prior.public is not corrected
        stated = prior.start if corrected else prior.noisy_counts
        assert stated is not None
        assert np.allclose(stated / stated.sum(), known.over(group), atol=1e-9)


def test_two_labels_need_none() -> None:
    made = lv.randomize_labels(LABELS > 3, lower=0, upper=1, epsilon=1, prior={0: 1, 1: 3})
    assert made.randomizer == "randomized-response"
    assert abs(problem_of(made, made.codes).mean - (LABELS > 3).mean()) < 0.1


def test_what_cannot_be_a_prior_is_refused() -> None:
    def refused(error: type[Exception], match: str, **options: object) -> None:
        with pytest.raises(error, match=match):
            lv.randomize_labels(LABELS, epsilon=1, **BOUNDS, **options)  # type: ignore[arg-type]

    refused(DataError, "must be numbers", prior={"many": 1})
    refused(DataError, "weights finite", prior={1: -1})
    refused(DataError, "all zero", prior={1: 0})
    refused(DataError, "without any value", prior={})
    refused(ConfigError, "nothing|no prior to correct", correct_prior=True)
    refused(ConfigError, "have it corrected", prior=RIGHT, strata=["a", "b"] * (LABELS.size // 2))


def test_a_prior_of_several_labels_is_split_between_the_cells_around_each_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand, of labels in another order than they are known in, some outside, in chunks of 2."""
    monkeypatch.setattr(known_labels, "_VALUES_AT_ONCE", 2)
    values = np.array([[0.0, 5.0], [3.0, -1.0], [1.5, 2.0], [9.0, 4.0], [2.0, 1.0]])
    known = KnownLabels((2, 0), values, np.array([1.0, 0.0, 2.0, 3.0, 4.0]))
    first, third = Grid.from_edges([0.0, 4.0]), Grid.from_edges([0.0, 2.0, 3.0])
    found = known.over(Group((0, 2), Cells((first, third)))).reshape(2, 3)
    exact = np.zeros((2, 3))
    exact[1, 0] += 1  # 5, outside, counts as 4; the third label is 0
    exact[0] += 2 * 0.5 * np.array([0.25, 0.75, 0])
    exact[1] += 2 * 0.5 * np.array([0.25, 0.75, 0])
    exact[1, 2] += 3
    exact[0, 1] += 4 * 0.75
    exact[1, 1] += 4 * 0.25
    assert found == pytest.approx(exact / 10)
    assert known.over(Group((0,), Cells((first,)))) == pytest.approx(exact.sum(axis=1) / 10)
    assert known.over(Group((2,), Cells((third,)))) == pytest.approx(exact.sum(axis=0) / 10)


def test_a_digest_is_of_values_with_their_weights_in_any_order() -> None:
    values, weights = np.array([[1.0, 2.0], [1.0, 3.0], [0.0, 3.0]]), np.array([1.0, 2.0, 0.5])
    digest = KnownLabels((0, 1), values, weights).digest
    order = [1, 2, 0]
    assert KnownLabels((0, 1), values[order], weights[order]).digest == digest
    others = [(values, weights[order]), (values[:, ::-1], weights), (values[:2], weights[:2])]
    others.append((values, weights * 2))
    assert digest not in {KnownLabels((0, 1), *each).digest for each in others}
