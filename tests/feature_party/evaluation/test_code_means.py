"""Means of groups from codes: closed forms, laws that are known, and how often intervals hold."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import labelveil as lv
from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.evaluation.code_means import GroupCodes
from labelveil.feature_party.evaluation.group_means import means_of_codes
from labelveil.feature_party.evaluation.scores import _not_asked_about
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_releases import join_problems

POINTS = np.arange(11.0)
PRIOR = stats.binom(10, 0.3).pmf(POINTS)


def codes_of(problem: LabelProblem, counts: Any) -> GroupCodes:
    """A group of so many of each code."""
    codes = np.repeat(np.arange(len(counts)), counts)
    return GroupCodes.from_codes(problem, codes, [False] * (problem.legs[-1].release + 1))


def chances(epsilon: float) -> np.ndarray:
    """Of randomized response over the points."""
    rows = np.ones((11, 11)) + (math.exp(epsilon) - 1) * np.eye(11)
    return rows / rows[0].sum()


def response(points: np.ndarray, epsilon: float, prior: np.ndarray) -> LabelProblem:
    rows = randomized_response_rows(points.size, epsilon)
    return LabelProblem.from_channel(FiniteChannel(points, points, rows), prior)


@pytest.mark.parametrize("ones", [3_000, 5_000, 7_000])
def test_a_share_of_two_labels_is_that_of_randomized_response(ones: int) -> None:
    """(c/n - q) / (1 - 2q) with standard error √(c (n - c) / n³) / (1 - 2q), q = 1 / (e + 1)."""
    n, q = 10_000, 1 / (math.e + 1)
    group = codes_of(response(np.array([0.0, 1.0]), 1.0, np.array([0.7, 0.3])), [n - ones, ones])
    mean, error = group.mean(np.arange(n))
    assert mean == pytest.approx((ones / n - q) / (1 - 2 * q), abs=0.01 * error)
    assert error == pytest.approx(math.sqrt(ones * (n - ones) / n**3) / (1 - 2 * q), rel=0.01)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    "law",
    [PRIOR, stats.binom(10, 0.6).pmf(POINTS), np.eye(11)[8], (np.eye(11)[0] + np.eye(11)[9]) / 2],
    ids=["the prior", "a tilt", "one label", "two humps"],
)
def test_without_noise_the_mean_is_that_of_the_group(law: np.ndarray, epsilon: float) -> None:
    """A million codes, as many of each as there would be on average."""
    problem = response(POINTS, epsilon, PRIOR)
    counts = np.rint(1e6 * law @ chances(epsilon)).astype(int)
    mean, error = codes_of(problem, counts).mean(np.arange(counts.sum()))
    assert mean == pytest.approx(law @ POINTS, abs=0.01)
    # decoded without bias: z - E z over the share that is sent as it is
    codes, kept = law @ chances(epsilon), math.expm1(epsilon) / (math.exp(epsilon) + 10)
    spread = math.sqrt(codes @ POINTS**2 - (codes @ POINTS) ** 2) / kept
    assert error <= 1.2 * spread / 1e3


def test_legs_are_of_one_group() -> None:
    """Codes of two releases say what as many of one say; a clearer channel's say more."""
    law = stats.binom(10, 0.4).pmf(POINTS)
    one, clear = response(POINTS, 1.0, PRIOR), response(POINTS, 3.0, PRIOR)
    counts = np.rint(5_000 * law @ chances(1.0)).astype(int)
    rows = np.arange(counts.sum())
    whole = codes_of(one, counts).mean(rows)
    some = counts // 5 * 2
    both = codes_of(join_problems([one, one], [2, 3]), [*some, *(counts - some)])
    assert both.mean(rows) == pytest.approx(whole, rel=1e-4)
    more = np.rint(5_000 * law @ chances(3.0)).astype(int)
    mixed = codes_of(join_problems([one, clear], [1, 1]), [*counts, *more])
    mean, error = mixed.mean(np.arange(counts.sum() + more.sum()))
    assert abs(mean - 4) < 1.96 * error
    assert error < whole[1] / 1.5


def test_a_group_of_few_is_told_no_better_than_its_labels_vary() -> None:
    group = codes_of(response(POINTS, 9.0, PRIOR), [0] * 3 + [4] + [0] * 7)
    mean, error = group.mean(np.arange(4))
    assert mean == pytest.approx(3, abs=0.05)
    assert error == pytest.approx(math.sqrt(10 * 0.3 * 0.7 / 4))


def test_a_law_that_codes_contradict_is_not_believed() -> None:
    """A group all of whose labels are 10, of which the prior has 6 in a million."""
    problem = response(POINTS, 1.0, PRIOR)
    for rows, sure in ((300, False), (30_000, True)):
        counts = np.rint(rows * chances(1.0)[10]).astype(int)
        mean, error = codes_of(problem, counts).mean(np.arange(counts.sum()))
        assert abs(mean - 10) < 1.96 * error
        assert (abs(mean - 10) < 0.05) == sure


def test_two_rare_codes_among_twenty_contradict_no_law() -> None:
    """Of amounts most codes stand for some 50, and 0.8 % for thousands: one group in 60 has two."""
    points = np.linspace(0, 400, 31)
    prior = stats.gamma(2, scale=30).pdf(points + 5)
    channel = lv.build_randomizer(
        "auto", labels=points, prior=prior / prior.sum(), epsilon=1.88, loss="squared", rows=2_000
    ).channel
    problem = LabelProblem.from_channel(channel, prior)
    counts = np.rint(20 * problem.output_prior).astype(int)
    assert counts.sum() == 20
    plain = decoder(problem, points).values[:, 0]
    rare = plain > 1_000
    assert problem.output_prior[rare].sum() == pytest.approx(0.0085, abs=0.001)
    counts[np.argsort(plain)[-2:]] += 1
    assert plain @ counts / 22 > 2 * 400
    mean, error = codes_of(problem, counts).mean(np.arange(22))
    assert abs(mean - problem.prior @ points) < 1.96 * error
    assert 0 < mean < 400


def test_a_law_that_codes_doubt_is_believed_as_far_as_they_leave_it_likely() -> None:
    """A wrong law's mean is off by 4 standard errors of one without bias, and one law in ten is
    wrong: what 300 codes of two humps leave likely, and by how much it then errs."""
    law, n = (np.eye(11)[0] + np.eye(11)[9]) / 2, 300
    counts = np.rint(n * law @ chances(1.0)).astype(int)
    mean, error = codes_of(response(POINTS, 1.0, PRIOR), counts).mean(np.arange(counts.sum()))
    codes, kept = law @ chances(1.0), math.expm1(1.0) / (math.e + 10)
    alone = math.sqrt((codes @ POINTS**2 - (codes @ POINTS) ** 2) / counts.sum()) / kept
    gap = 4.5 - mean
    assert 2 * alone < gap < 3 * alone
    right, wrong = (stats.norm(0, scale).pdf(gap / alone) for scale in (1, math.sqrt(17)))
    doubt = 0.1 * wrong / (0.1 * wrong + 0.9 * right)
    squares = doubt * (alone**2 + gap**2) + (1 - doubt) * 0.74**2  # what such a law alone errs by
    assert error == pytest.approx(math.sqrt(squares), rel=0.1)


def test_codes_that_were_asked_about_count_where_all_were() -> None:
    part = response(np.array([0.0, 1.0, 2.0]), 2.0, np.ones(3))
    both = join_problems([part, part], [3, 3])
    codes = np.arange(6)
    for asked, told in (([False, True], [True] * 3 + [False] * 3), ([True, True], [True] * 6),
                        ([False, False], [True] * 6)):  # fmt: skip
        found = GroupCodes.from_codes(both, codes, asked)
        assert (found.told.tolist(), found.ends) == (told, (0.0, 2.0))
        manifests: Any = [SimpleNamespace(questioned=one) for one in asked]
        events: Any = SimpleNamespace(problem=both)
        assert _not_asked_about(events, codes, manifests).tolist() == told
    groups = [(("a",), np.array([0, 3])), (("b",), np.array([4])), (("c",), np.array([1, 2, 5]))]
    means = means_of_codes(groups, GroupCodes.from_codes(both, codes, [False, True]), "a")
    assert [(mean.values, mean.events) for mean in means] == [(("a",), 1), (("c",), 2)]


LAWS = [
    stats.poisson(3).pmf(np.arange(31)),
    stats.poisson(1).pmf(np.arange(31)),
    (np.arange(31) == 7).astype(float),
    (np.arange(31) % 12 == 0) * (np.arange(31) < 13) / 2,
    stats.poisson(5).pmf(np.arange(31)),
]


def test_merged_labels_are_not_told_apart() -> None:
    rows = randomized_response_rows(2, 1.0)
    merged = FiniteChannel(np.arange(3.0), np.array([0.5, 2.0]), rows, [0, 0, 1])
    group = codes_of(LabelProblem.from_channel(merged, np.ones(3)), [5, 5])
    assert not group.exact
    assert codes_of(response(POINTS, 1.0, PRIOR), [1] * 11).exact


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [1.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_intervals_hold_for_laws_that_are_no_tilt(epsilon: float) -> None:
    """Groups of 400 of a message whose labels are counts, 40 times the same message: of 200
    intervals more than 27 miss once in a million runs where each misses with .05. Half as wide they
    miss more often; without the law's help they are twice as wide.
    """
    rng = np.random.default_rng(2)
    labels = [rng.choice(31, 400, p=law / law.sum()) for law in LAWS]
    sent = lv.randomize_labels(np.concatenate(labels), epsilon=epsilon, lower=0, upper=30)
    problem = LabelProblem.from_channel(sent.channel, sent.prior)
    plain = decoder(problem, problem.grid).values[:, 0]
    free = math.sqrt(problem.output_prior @ (plain - problem.mean) ** 2 / 400)
    missed = narrow = 0
    errors = []
    assert sent.channel.inputs.tolist() == list(range(31))
    for run in range(40):
        words = seeded_entropy(run).words("labels", 0, 2_000)
        codes = sent.channel.sample(np.concatenate(labels), words)
        group = GroupCodes.from_codes(problem, codes, [False])
        for place, mine in enumerate(labels):
            mean, error = group.mean(np.arange(400 * place, 400 * (place + 1)))
            missed += abs(mean - mine.mean()) > 1.96 * error
            narrow += abs(mean - mine.mean()) > 0.5 * error
            errors.append(error)
    assert missed <= stats.binom(200, 0.05).isf(1e-6) == 27 < narrow
    assert 2 * np.median(errors) < free
