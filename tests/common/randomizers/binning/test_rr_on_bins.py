"""RR-on-bins: Dinkelbach's optimum is that of the published program and of the linear program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers import build_randomizer, losses_by_bins, optimal_binning
from labelveil.common.randomizers.base import Problem, check_prior
from labelveil.common.randomizers.binning.interval_costs import MAX_CUSTOM_LABELS, interval_costs
from labelveil.common.randomizers.losses import Loss, check_monotone, get_loss
from tests.effort import effort, one_in

Minimiser = Callable[[Floats, Floats], float]


def pinball(prediction: Floats, label: Floats) -> Floats:
    return np.maximum(0.8 * (label - prediction), 0.2 * (prediction - label))


def huber(prediction: Floats, label: Floats) -> Floats:
    distance = np.abs(prediction - label)
    return np.where(distance <= 2.0, distance**2 / 2, 2.0 * distance - 2.0)


def weighted_mean(labels: Floats, weights: Floats) -> float:
    centre = labels[labels.size // 2]
    return float(centre + np.sum(weights * (labels - centre)) / np.sum(weights))


def weighted_quantile(share: float) -> Minimiser:
    def minimise(labels: Floats, weights: Floats) -> float:
        total = np.cumsum(weights)
        return float(labels[np.searchsorted(total, share * total[-1])])

    return minimise


def huber_location(labels: Floats, weights: Floats) -> float:
    """Bisect on the slope Σ w clip(ŷ - y, -2, 2)."""
    low, high = float(labels[0]), float(labels[-1])
    for _ in range(200):
        middle = (low + high) / 2
        if np.sum(weights * np.clip(middle - labels, -2.0, 2.0)) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


CASES: dict[str, tuple[Loss, Minimiser]] = {
    "squared": (get_loss("squared"), weighted_mean),
    "absolute": (get_loss("absolute"), weighted_quantile(0.5)),
    "poisson": (get_loss("poisson"), weighted_mean),
    "pinball": (get_loss(pinball), weighted_quantile(0.8)),
    "huber": (get_loss(huber), huber_location),
}


def published_program(problem: Problem, minimise: Minimiser) -> float:
    """Algorithm 2 of Ghazi et al. (2023): best cost of the first i labels in j bins, O(k³)."""
    labels, prior = problem.labels, problem.prior
    k, boost = labels.size, math.expm1(problem.epsilon)
    seen = prior > 0
    cost = np.zeros((k, k + 1))
    for r in range(k):
        for i in range(r + 1, k + 1):
            weights = prior.copy()
            weights[r:i] *= 1 + boost
            value = minimise(labels[seen], weights[seen])
            cost[r, i] = np.sum(weights[seen] * problem.loss(np.array(value), labels[seen]))
    best = np.full((k + 1, k + 1), np.inf)
    best[0, 0] = 0.0
    for i in range(1, k + 1):
        for j in range(1, i + 1):
            best[i, j] = min(best[r, j - 1] + cost[r, i] for r in range(i))
    return float(min(best[k, j] / (boost + j) for j in range(1, k + 1)))


def linear_program(problem: Problem, outputs: Floats) -> float:
    """The least expected loss of *any* ε-DP mechanism with these outputs."""
    k, d = problem.labels.size, outputs.size
    losses = problem.loss.matrix(outputs, problem.labels).T
    cost = np.concatenate([(problem.prior[:, None] * losses).ravel(), np.zeros(d)])
    sums = np.hstack([np.kron(np.eye(k), np.ones(d)), np.zeros((k, d))])
    columns = np.tile(np.eye(d), (k, 1))
    limits = np.vstack(
        [
            np.hstack([-np.eye(k * d), columns]),
            np.hstack([np.eye(k * d), -math.exp(problem.epsilon) * columns]),
        ]
    )
    solved = linprog(
        cost,
        A_ub=limits,
        b_ub=np.zeros(2 * k * d),
        A_eq=sums,
        b_eq=np.ones(k),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert solved.success
    return float(solved.fun)


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, Problem]:
    name = draw(st.sampled_from(sorted(CASES)))
    labels = draw(
        st.one_of(
            st.lists(st.integers(0, 40), min_size=1, max_size=9, unique=True),
            st.lists(st.floats(0, 400, width=32), min_size=1, max_size=9, unique=True),
            st.lists(st.integers(10**6, 10**6 + 9), min_size=2, max_size=9, unique=True),
        )
    )
    k = len(labels)
    kind = draw(st.sampled_from(["uniform", "heavy", "zeros", "atom", "ties", "free"]))
    free = draw(st.lists(st.integers(1, 1000), min_size=k, max_size=k))
    weights = {
        "uniform": [1.0] * k,
        "heavy": [float((j + 1) ** -3.0) for j in range(k)],
        "zeros": [float(w if w % 2 else 0) for w in free],
        "atom": [1.0 if j == free[0] % k else 0.0 for j in range(k)],
        "ties": [float(1 + w % 2) for w in free],
        "free": [w / 1000 for w in free],
    }[kind]
    if not any(weights):
        weights[0] = 1.0
    epsilon = draw(st.one_of(st.sampled_from([0.05, 0.5, 1.0, 2.0, 8.0]), st.floats(0.05, 8.0)))
    prior = check_prior(weights, k)
    return name, Problem(np.sort(np.array(labels, dtype=float)), prior, epsilon, CASES[name][0])


@settings(max_examples=effort(30, 300))
@given(problems())
def test_the_optimum_is_that_of_the_published_program(drawn: tuple[str, Problem]) -> None:
    name, problem = drawn
    binning = optimal_binning(problem)
    reference = published_program(problem, CASES[name][1])
    scale = abs(reference) + 1e-12 * float(np.max(np.abs(problem.labels))) + 1e-300
    assert abs(binning.objective - reference) <= 1e-9 * scale
    assert 1 <= binning.rounds <= 10
    assert binning.edges[0] == 0
    assert binning.edges[-1] == problem.labels.size
    assert np.all(np.diff(binning.edges) > 0)


@settings(max_examples=effort(30, 200))
@given(problems())
def test_the_channel_attains_the_objective(drawn: tuple[str, Problem]) -> None:
    _, problem = drawn
    if problem.labels.size < 2:
        return
    built = build_randomizer(
        "rr-on-bins",
        labels=problem.labels,
        prior=problem.prior,
        epsilon=problem.epsilon,
        loss=problem.loss,
    )
    objective = optimal_binning(problem).objective
    scale = abs(objective) + 1e-12 * float(np.max(np.abs(problem.labels)) ** 2)
    assert abs(built.expected_loss - objective) <= 1e-9 * scale
    assert built.channel.ratio <= exp_lower_bound(problem.epsilon)
    assert built.guarantee.exact_epsilon <= problem.epsilon


@pytest.mark.parametrize("name", ["squared", "absolute", "poisson"])
def test_a_bin_costs_what_its_best_constant_does(name: str) -> None:
    """Of each bin, by its definition: weights p (1 + c 1[y in S]), and each constant."""
    draw, loss, boost = np.random.default_rng(len(name)), get_loss(name), 1.7
    for k in (1, 2, 5, 13):
        labels = np.sort(draw.choice(40, k, replace=False)).astype(np.float64)
        prior = draw.dirichlet(np.full(k, 0.4)) + 1e-6
        prior /= prior.sum()
        costs = interval_costs(labels, prior, boost, loss)
        for i in range(1, k + 1):
            found, values = costs.ending(i)
            for r in range(i):
                weights = prior.copy()
                weights[r:i] *= 1 + boost
                mean = np.array([weights @ labels / weights.sum()])
                least = (
                    loss.matrix(labels if name == "absolute" else mean, labels) @ weights
                ).min()
                own = (loss.matrix(values[[r]], labels) @ weights).item()
                if name == "poisson":  # the costs leave out what no constant changes
                    least -= weights @ (labels - labels * np.log(np.maximum(labels, 1)))
                    own -= weights @ (labels - labels * np.log(np.maximum(labels, 1)))
                assert found[r] == pytest.approx(least, abs=1e-9)
                assert own == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("epsilon", one_in(2, [0.05, 0.5, 2.0, 8.0]))
@pytest.mark.parametrize("name", sorted(CASES))
def test_no_mechanism_beats_it(name: str, epsilon: float) -> None:
    draw = np.random.default_rng(len(name))
    loss = CASES[name][0]
    for labels, prior in (
        (np.arange(6.0), np.full(6, 1.0)),
        (np.array([0.0, 1, 2, 5, 20, 90]), np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])),
        (np.sort(draw.random(7) * 10), draw.random(7) * (draw.random(7) < 0.7) + 1e-3),
    ):
        problem = Problem(labels, check_prior(prior, labels.size), epsilon, loss)
        binning = optimal_binning(problem)
        spare = np.linspace(labels[0], labels[-1], 9)[1:-1]
        outputs = np.unique(np.concatenate([binning.values, spare]))
        # the Poisson loss has a floor below 0; measure differences from it
        best = np.sum(problem.prior * loss(np.maximum(labels, 1e-300), labels))
        reference = linear_program(problem, outputs) - best
        assert binning.objective - best == pytest.approx(reference, rel=1e-9, abs=1e-11)


def least_of_all_partitions(problem: Problem, outputs: Floats, bins: int) -> float:
    """Brute force: every cut into so many intervals, with the best output of each."""
    k, boost = problem.labels.size, math.expm1(problem.epsilon)
    each = problem.loss.matrix(outputs, problem.labels) * problem.prior  # (m, k)
    losses = []
    for cuts in itertools.combinations(range(1, k), bins - 1):
        edges = [0, *cuts, k]
        costs = [
            (each.sum(axis=1) + boost * each[:, low:high].sum(axis=1)).min()
            for low, high in itertools.pairwise(edges)
        ]
        losses.append(sum(costs) / (boost + bins))
    return float(min(losses))


ADMISSIBLE = {
    "whole": np.arange(0.0, 21.0, 4.0),
    "prices": np.array([0.5, 0.99, 9.99, 19.9]),
    "one": np.array([3.0]),
}


@pytest.mark.parametrize("epsilon", one_in(2, [0.05, 0.5, 2.0, 8.0]))
@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("given", ADMISSIBLE)
def test_no_mechanism_with_the_same_outputs_beats_it(name: str, epsilon: float, given: str) -> None:
    """Theorem 8 and Corollary 13: of all ε-DP mechanisms into a finite set some RR-on-bins."""
    draw, outputs = np.random.default_rng(len(name)), ADMISSIBLE[given]
    loss = CASES[name][0]
    for labels, prior in (
        (np.arange(6.0), np.full(6, 1.0)),
        (np.array([0.0, 1, 2, 5, 20, 90]), np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])),
        (np.sort(draw.random(7) * 20), draw.random(7) * (draw.random(7) < 0.7) + 1e-3),
    ):
        problem = Problem(labels, check_prior(prior, labels.size), epsilon, loss)
        possible = outputs[outputs > 0] if name == "poisson" else outputs  # 0 costs a label > 0 all
        reference = linear_program(problem, possible)
        found = optimal_binning(problem, outputs)
        assert found.objective == pytest.approx(reference, rel=1e-9, abs=1e-10)
        assert set(found.values) <= set(outputs)
        assert np.all(np.diff(found.values) > 0)
        built = build_randomizer(
            "rr-on-bins",
            labels=labels,
            prior=prior,
            epsilon=epsilon,
            loss=loss,
            outputs=outputs.tolist(),
        )
        assert built.expected_loss == pytest.approx(reference, rel=1e-9, abs=1e-10)
        assert set(built.channel.outputs) <= set(outputs)
        assert built.channel.ratio <= exp_lower_bound(epsilon)


@pytest.mark.parametrize("name", ["squared", "absolute", "poisson"])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_table_of_losses_by_bins_is_that_of_brute_force(name: str, epsilon: float) -> None:
    labels, outputs = np.array([0.0, 1, 2, 4, 5, 9, 12]), np.linspace(0.5, 12.0, 24)
    prior = check_prior([5.0, 1, 3, 2, 2, 1, 0.5], 7)
    problem = Problem(labels, prior, epsilon, get_loss(name))
    known = {"labels": labels, "prior": prior, "epsilon": epsilon, "loss": name}
    table = losses_by_bins(**known, outputs=outputs.tolist())
    brute = [least_of_all_partitions(problem, outputs, bins) for bins in range(1, 8)]
    assert table == pytest.approx(brute, rel=1e-9)
    assert losses_by_bins(**known, outputs=outputs.tolist(), most=3) == pytest.approx(brute[:3])
    assert optimal_binning(problem, outputs).objective == pytest.approx(min(brute), rel=1e-9)
    free = losses_by_bins(**known)
    assert optimal_binning(problem).objective == pytest.approx(free.min(), rel=1e-9)
    for most in range(1, 8):  # a bin fewer than is best costs something, one more nothing
        built = build_randomizer("rr-on-bins", **known, bins=most)
        assert built.channel.outputs.size <= most
        assert built.expected_loss == pytest.approx(free[:most].min(), rel=1e-9)


def test_outputs_and_bins_that_cannot_be_are_refused() -> None:
    known = {"labels": [0.0, 1.0, 2.0], "prior": [1, 1, 1], "epsilon": 1.0}

    def refused(match: str, **options: object) -> None:
        with pytest.raises(ConfigError, match=match):
            build_randomizer("rr-on-bins", **known, **options)  # type: ignore[arg-type]

    refused("strictly ascending", outputs=[1.0, 1.0])
    refused("strictly ascending", outputs=[])
    refused("strictly ascending", outputs=[math.inf])
    refused("needs outputs >= 0", outputs=[-1.0, 2.0], loss="poisson")
    refused("infinite poisson loss for the label 1", outputs=[0.0], loss="poisson")
    refused("bins=0 must be 1", bins=0)
    refused("bins=1000 must be 1", bins=1000)


def test_outputs_of_many_labels_are_still_those_given() -> None:
    labels = np.arange(2_000.0)
    built = build_randomizer(
        "rr-on-bins",
        labels=labels,
        prior=np.exp(-labels / 300),
        epsilon=4.0,
        outputs=[0.0, 100.0, 500.0, 1000.0],
        bins=3,
    )
    assert set(built.channel.outputs) <= {0.0, 100.0, 500.0, 1000.0}
    assert built.channel.outputs.size == 3


def test_more_bins_than_a_channel_may_have_are_built_over_fewer_labels() -> None:
    """At ε = 30 nothing is better than to answer each label: 600 of them, in at most 513 bins."""
    labels = np.arange(600.0)
    built = build_randomizer(
        "rr-on-bins", labels=labels, prior=np.ones(600), epsilon=30.0, loss="absolute"
    )
    assert 300 < built.channel.outputs.size <= 513
    assert set(built.channel.outputs) <= set(labels)
    assert built.channel.ratio <= exp_lower_bound(30.0)
    assert built.expected_loss < 0.5


@pytest.mark.parametrize("epsilon", [20.0, 30.0, 40.0])
@pytest.mark.parametrize("name", ["squared", "absolute", "poisson"])
def test_a_huge_epsilon_keeps_every_label(name: str, epsilon: float) -> None:
    # c = e^ε multiplies each bin's own spread: an error in its last digit would outweigh the rest
    labels = np.array([0.1, 0.3, 2.7, 33.3, 1e3 / 3, 1e3])
    prior = np.array([0.2, 0.1, 0.3, 0.2, 0.1, 0.1])
    problem = Problem(labels, prior, epsilon, get_loss(name))
    binning = optimal_binning(problem)
    assert binning.edges.tolist() == list(range(7))
    assert np.allclose(binning.values, labels, rtol=1e-4)
    losses = problem.loss.matrix(binning.values, labels)
    keep, lie = math.exp(epsilon), 1.0
    matrix = (np.eye(6) * (keep - lie) + lie) / (keep + 5)
    assert binning.objective == pytest.approx(np.sum(prior * (matrix * losses.T).sum(axis=1)))


@pytest.mark.parametrize("name", ["squared", "absolute", "poisson"])
def test_the_unit_and_the_origin_of_the_label_do_not_matter(name: str) -> None:
    draw = np.random.default_rng(0)
    labels = np.cumsum(draw.integers(1, 9, 60)).astype(float)
    prior = check_prior(draw.random(60), 60)
    power = {"squared": 2, "absolute": 1, "poisson": 1}[name]
    base = optimal_binning(Problem(labels, prior, 1.0, get_loss(name)))
    for scale in (2.0**-30, 2.0**40):
        scaled = optimal_binning(Problem(labels * scale, prior, 1.0, get_loss(name)))
        assert scaled.edges.tolist() == base.edges.tolist()
        if name != "poisson":
            assert scaled.objective == pytest.approx(base.objective * scale**power, rel=1e-12)
    if name != "poisson":
        moved = optimal_binning(Problem(labels + 2.0**40, prior, 1.0, get_loss(name)))
        assert moved.edges.tolist() == base.edges.tolist()
        assert moved.objective == pytest.approx(base.objective, rel=1e-9)


def test_labels_of_no_mass_join_a_bin_and_cost_nothing() -> None:
    labels = np.arange(6.0)
    prior = np.array([0.0, 0.5, 0.0, 0.0, 0.5, 0.0])
    binning = optimal_binning(Problem(labels, prior, 8.0, get_loss("squared")))
    alone = optimal_binning(
        Problem(np.array([1.0, 4.0]), np.array([0.5, 0.5]), 8.0, get_loss("squared"))
    )
    assert binning.objective == pytest.approx(alone.objective, rel=1e-12)
    assert binning.edges.tolist() == [0, 4, 6]


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_possible_label_is_always_answered(name: str) -> None:
    built = build_randomizer(
        "rr-on-bins", labels=[0, 1, 5], prior=[0, 1, 0], epsilon=1.0, loss=CASES[name][0]
    )
    assert built.channel.outputs.tolist() == pytest.approx([1.0], rel=1e-9)
    assert built.channel.epsilon == 0.0
    zero = build_randomizer(
        "rr-on-bins", labels=[0, 1, 5], prior=[1, 0, 0], epsilon=1.0, loss="poisson"
    )
    assert zero.expected_loss == 0.0  # and not 0 · ∞ from the labels that cannot occur


def test_randomizing_any_part_gives_that_part() -> None:
    built = build_randomizer("rr-on-bins", labels=np.arange(20), prior=np.ones(20), epsilon=1.0)
    values = np.linspace(-1, 21, 5001)
    entropy = seeded_entropy(0)
    whole = built.randomize(values, entropy)
    for start, stop in ((0, 1), (17, 1000), (4999, 5001)):
        part = built.randomize(values[start:stop], entropy, start_row=start)
        assert np.array_equal(part, whole[start:stop])


def test_impossible_problems_are_refused() -> None:
    def build(**changes: object) -> object:
        options = {"labels": [0, 1], "prior": [1, 1], "epsilon": 1.0, **changes}
        return build_randomizer("rr-on-bins", **options)  # type: ignore[arg-type]

    for epsilon in (0.0, -1.0, 41.0, math.nan, math.inf):
        with pytest.raises(PrivacyError, match="epsilon="):
            build(epsilon=epsilon)
    for prior in ([1], [1, -1], [0, 0], [1, math.nan], [math.inf, 1], [[1, 1]]):
        with pytest.raises(ConfigError, match="prior"):
            build(prior=prior)
    for labels in ([1, 0], [0, 0], [0], [0, math.nan]):
        with pytest.raises(ConfigError, match="grid"):
            build(labels=labels)
    with pytest.raises(ConfigError, match="poisson"):
        build(labels=[-1, 1], loss="poisson")
    with pytest.raises(ConfigError, match="unknown"):
        build_randomizer("rr-on-bin", labels=[0, 1], prior=[1, 1], epsilon=1.0)
    many = np.arange(MAX_CUSTOM_LABELS + 1)
    with pytest.raises(ConfigError, match="custom loss"):
        build(labels=many, prior=np.ones(many.size), loss=huber)


def test_bins_are_frozen() -> None:
    labels = np.arange(30.0)
    binning = optimal_binning(
        Problem(labels, check_prior(1 / (1 + labels) ** 2, 30), 2.0, get_loss("squared"))
    )
    assert binning.edges.tolist() == [0, 3, 30]
    assert binning.objective == pytest.approx(9.549475940312409, rel=1e-12)


def on_the_grid(loss: Loss, labels: Floats) -> Minimiser:
    """The best constant where it is a whole number."""

    def minimise(possible: Floats, weights: Floats) -> float:
        return float(labels[np.argmin(loss.matrix(labels, possible) @ weights)])

    return minimise


def bowl(prediction: Floats, label: Floats) -> Floats:
    """Labels 0 and 4 want the same prediction."""
    return (prediction - (label - 2) ** 2) ** 2


def slopes(prediction: Floats, label: Floats) -> Floats:
    """Convex, and least at the label, but of one label a hundred times the next one's."""
    at = np.asarray(label, dtype=np.int64)
    below, above = np.array([100.0, 10, 1, 100]), np.array([100.0, 1, 10, 100])
    return np.where(prediction < label, below[at], above[at]) * np.abs(prediction - label)


@pytest.mark.parametrize(
    ("function", "points", "bins", "program", "said"),
    [
        (
            bowl,
            5,
            2.454,
            2.249,
            "loss of label 0 falls away from it, between the predictions 0 and 1",
        ),
        (slopes, 4, 43.34, 42.42, "does not grow with their distance from every prediction"),
    ],
)
def test_a_loss_that_other_mechanisms_serve_better_is_refused(
    function: Callable[[Floats, Floats], Floats],
    points: int,
    bins: float,
    program: float,
    said: str,
) -> None:
    """Without Assumption 4 the best bins are not the best mechanism."""
    labels = np.arange(float(points))
    loss = get_loss(function)
    problem = Problem(labels, check_prior(np.ones(points), points), 1.0, loss)
    fine = np.linspace(0, points - 1, 24 * (points - 1) + 1)
    assert published_program(problem, on_the_grid(loss, fine)) == pytest.approx(bins, rel=1e-3)
    assert linear_program(problem, fine) == pytest.approx(program, rel=1e-3)
    for build in (
        lambda: optimal_binning(problem),
        lambda: build_randomizer(
            "rr-on-bins", labels=labels, prior=np.ones(points), epsilon=1.0, loss=function
        ),
    ):
        with pytest.raises(ConfigError, match=rf"{said}.*another randomizer, such as optimal-des"):
            build()
    # where the labels that break it cannot occur, it is fine
    alone = np.arange(points) == 2
    assert optimal_binning(replace(problem, prior=alone.astype(np.float64))).values.size == 1


@given(
    name=st.sampled_from(sorted(CASES)),
    labels=st.lists(st.integers(0, 10**6), min_size=1, max_size=12, unique=True),
    free=st.lists(st.integers(-(10**3), 10**3), min_size=12, max_size=12),
)
def test_what_depends_on_the_label_alone_does_not_matter(
    name: str, labels: list[int], free: list[int]
) -> None:
    """So the Poisson loss as ŷ - y ln ŷ is as good as its divergence."""
    ascending, loss = np.sort(np.array(labels, dtype=np.float64)), CASES[name][0]

    def shifted(prediction: Floats, label: Floats) -> Floats:
        return loss(prediction, label) + np.take(free, np.searchsorted(ascending, label))

    for function in (loss.function, shifted):
        check_monotone(Loss("custom", function), ascending)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squared", "absolute", "huber"])
def test_a_random_loss_that_passes_is_served_best(name: str) -> None:
    """Whatever the check lets through, no mechanism beats the best bins."""
    draw, passed, refused = np.random.default_rng(len(name)), 0, 0
    labels = np.arange(4.0)
    prior = check_prior(np.ones(4), 4)
    for _ in range(40):
        weights = draw.integers(1, 9, (2, 4)).astype(float)

        def function(p: Floats, y: Floats, weights: Floats = weights) -> Floats:
            at = np.asarray(y, dtype=np.int64)
            return np.where(p < y, weights[0][at], weights[1][at]) * CASES[name][0](p, y)

        problem = Problem(labels, prior, 1.0, get_loss(function))
        try:
            binning = optimal_binning(problem)
        except ConfigError:
            refused += 1
            continue
        passed += 1
        outputs = np.unique(np.append(np.linspace(0, 3, 31), binning.values))
        assert binning.objective <= linear_program(problem, outputs) * (1 + 1e-7)
    assert passed
    assert refused
