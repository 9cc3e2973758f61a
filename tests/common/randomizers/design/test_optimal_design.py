"""The channel chosen for the model: its family, its criterion and its optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.design.conditionals import (
    ConditionalFamily,
    effective_rows,
    plausible_conditionals,
)
from labelveil.common.randomizers.design.optimal_design import (
    THRESHOLD_SHARES,
    Design,
    _within,
    identifying_design,
    largest_share,
    optimal_design,
    uniform_thresholds,
)
from labelveil.common.randomizers.knots import choose_knots, interpolation
from labelveil.common.randomizers.losses import ABSOLUTE, POISSON, SQUARED, Loss
from tests.effort import one_in
from tests.ending import ending

GRID = np.linspace(0.0, 5.0, 21)
BELL = np.exp(-0.5 * ((GRID - 2.0) / 0.9) ** 2)
HEAVY = 1.0 / (1.0 + GRID) ** 3
GAPPED = np.where(np.arange(21) % 5 == 0, 1.0, 0.0)
PRIORS = {name: p / p.sum() for name, p in (("bell", BELL), ("heavy", HEAVY), ("gapped", GAPPED))}


def _family(prior: str = "bell", loss: Loss = SQUARED, explained: float = 0.5):
    return plausible_conditionals(GRID, PRIORS[prior], loss, explained)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("explained", [0.1, 0.5, 0.8])
def test_the_conditional_distributions_add_up_to_the_prior(prior: str, explained: float) -> None:
    """Of a bell, whose normal score is the label itself, their means explain the share asked for;
    of an atom and a tail, less."""
    p = PRIORS[prior]
    found = _family(prior, explained=explained).distributions
    assert np.allclose(found.sum(axis=1), 1)
    assert 0.5 * np.abs(found.mean(axis=0) - p).sum() < 0.025
    share = np.var(found @ GRID) / (p @ (GRID - p @ GRID) ** 2)
    assert 0.6 * explained < share < 1.02 * explained
    if prior == "bell":
        assert share == pytest.approx(explained, rel=0.02)


def test_scores_are_derivatives_of_the_tilted_prior() -> None:
    family = _family()
    log_ratio = np.log(family.distributions)
    for draw in range(5):
        q, scores = family.distributions[draw], family.scores[draw]
        assert np.allclose(scores.sum(axis=0), 0, atol=1e-12)
        # tilting further along score i by h multiplies q by exp(h φ_i): compare a difference
        phi = scores / q[:, None]
        step = 1e-6
        for i in range(phi.shape[1]):
            tilted = np.exp(log_ratio[draw] + step * phi[:, i])
            moved = (tilted / tilted.sum() - q) / step
            assert np.allclose(moved, scores[:, i], atol=1e-5)


@pytest.mark.slow
def test_tempering_gives_the_draws_of_a_heavy_tail_a_say() -> None:
    family = _family("heavy")

    def most(some: ConditionalFamily) -> np.ndarray:
        return np.sum(some.gradients**2 / some.precision, axis=1)

    whole, same = most(family), most(family.tempered(1.0))
    assert np.allclose(most(family.tempered(0.0)), whole)
    assert np.allclose(same, whole.mean())
    assert np.allclose(most(family.tempered()) ** 4, whole * whole.mean() ** 3)
    # the far tail no longer decides: where labels are most noisy the one question that is asked
    # lies well inside the labels, and does not move when the tail is twice as long
    asked = []
    for tail in (1.0, 2.0):
        grid = np.arange(60.0)
        prior = np.exp(-grid / 3) + 2e-3 * tail * (grid > 40)
        prior /= prior.sum()
        found = plausible_conditionals(grid, prior, SQUARED)
        shares = []
        for some in (found, found.tempered()):
            rows = optimal_design(some, 0.2, 100.0).channel
            answer = int(np.ptp(rows, axis=0).argmax())
            shares.append(float(prior[np.isclose(rows[:, answer], rows[-1, answer])].sum()))
        asked.append(shares)
    assert asked[0][1] > 2 * asked[0][0]
    assert 0.5 < asked[1][1] / asked[0][1] < 2


def test_gradients_of_named_losses_agree_with_numeric_differences() -> None:
    squared = _family(loss=SQUARED)
    numeric = _family(loss=Loss("custom", lambda a, b: (a - b) ** 2))
    assert np.allclose(np.abs(squared.gradients), np.abs(numeric.gradients), rtol=1e-6)
    poisson = _family(loss=POISSON)
    means = poisson.distributions @ GRID
    assert np.allclose(
        np.abs(poisson.gradients) * np.sqrt(2 * means)[:, None], np.abs(squared.gradients)
    )


@given(
    epsilon=st.floats(0.05, 6), prior=st.sampled_from(sorted(PRIORS)), effective=st.floats(1, 5000)
)
@settings(max_examples=25, deadline=None)
def test_no_channel_beats_true_labels_and_no_label_is_worse_than_none(
    epsilon: float, prior: str, effective: float
) -> None:
    family = _family(prior)
    channel = uniform_thresholds(GRID, np.expm1(epsilon))
    truth = family.excess_error(np.eye(GRID.size), effective)
    nothing = family.excess_error(np.ones((GRID.size, 1)), effective)
    private = family.excess_error(channel, effective)
    assert truth <= private * (1 + 1e-9) <= nothing * (1 + 1e-8)
    assert family.excess_error(channel, 2 * effective) <= private * (1 + 1e-9)


def test_thresholds_are_an_unbiased_channel_of_the_stated_epsilon() -> None:
    channel = uniform_thresholds(GRID, np.expm1(1.0))
    assert np.allclose(channel.sum(axis=1), 1)
    assert (channel.max(axis=0) / channel.min(axis=0)).max() == pytest.approx(np.e)


@pytest.mark.parametrize("loss", [SQUARED, ABSOLUTE, POISSON], ids=lambda loss: loss.name)
@pytest.mark.parametrize("epsilon", one_in(3, [0.3, 1.0, 3.0], first=2))
def test_the_design_reaches_the_optimum_of_an_independent_solver(
    loss: Loss, epsilon: float
) -> None:
    labels = np.array([0.0, 1.0, 2.0, 4.0])
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    family = plausible_conditionals(labels, prior, loss)
    boost = float(exp_lower_bound(epsilon)) - 1
    sets = [[(code >> y) & 1 for y in range(4)] for code in range(1, 15)]  # every set of labels
    columns = 1 + boost * np.array(sets, dtype=float).T

    def excess(masses: np.ndarray) -> float:
        return family.excess_error(columns * np.maximum(masses, 1e-12), 300.0)

    start = np.full(14, 1.0)
    start /= (columns @ start).mean()
    best = minimize(
        excess,
        start,
        method="SLSQP",
        bounds=[(0, None)] * 14,
        constraints={"type": "eq", "fun": lambda masses: columns @ masses - 1},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    design = optimal_design(family, epsilon, 300.0, threshold_share=0.0)
    # all sets against intervals and their complements: nothing is lost but the stated gap
    assert design.excess_error * (1 - design.gap) <= best.fun * (1 + 1e-6)
    assert design.excess_error <= best.fun * 1.01
    assert design.gap <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_the_design_is_predicted_to_beat_the_published_optimum(prior: str, epsilon: float) -> None:
    family = _family(prior)
    effective = effective_rows(20_000)
    ours = build_randomizer("auto", labels=GRID, prior=PRIORS[prior], epsilon=epsilon, rows=20_000)
    theirs = build_randomizer("rr-on-bins", labels=GRID, prior=PRIORS[prior], epsilon=epsilon)
    assert ours.channel.epsilon <= epsilon
    assert ours.channel.ratio <= exp_lower_bound(epsilon)
    # on a prior of five atoms at ε = 4 both are nearly optimal, and ours pays for its thresholds
    mine, published = (
        family.excess_error(built.channel.probabilities, effective) for built in (ours, theirs)
    )
    assert mine < 1.05 * published
    if epsilon <= 2:
        assert mine < 0.95 * published


def _counts() -> tuple[np.ndarray, np.ndarray]:
    """Counts 0 … 30 with a long tail."""
    grid = np.arange(31.0)
    prior = 1 / (1 + grid) ** 2
    return grid, prior / prior.sum()


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 4.0])
def test_identifying_the_label_costs_little_of_what_is_gained_or_left(epsilon: float) -> None:
    grid, prior = _counts()
    effective = effective_rows(20_000)
    family = plausible_conditionals(grid, prior, SQUARED, 0.03)  # where little can be gained
    nothing = family.excess_error(np.ones((grid.size, 1)), effective)
    best = optimal_design(family, epsilon, effective).excess_error
    design, share = identifying_design(family, epsilon, effective)
    assert share >= 0.02
    assert design.excess_error - best <= 0.051 * min(best, nothing - best)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_a_search_is_given_up_only_where_every_channel_errs_more(epsilon: float) -> None:
    family = plausible_conditionals(*_counts(), SQUARED).tempered()
    start = optimal_design(family, epsilon, 300.0).masses
    whole = optimal_design(family, epsilon, 300.0, 0.3, start)
    least = whole.excess_error * (1 - whole.gap)
    within = optimal_design(family, epsilon, 300.0, 0.3, start, whole.excess_error)
    assert np.array_equal(within.channel, whole.channel)
    given_up = optimal_design(family, epsilon, 300.0, 0.3, start, 0.8 * least)
    assert given_up.excess_error > 0.8 * least
    assert given_up.gap > whole.gap


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("points", [8, 32])
def test_outputs_are_unbiased_on_the_whole_grid(epsilon: float, points: int) -> None:
    labels = np.arange(101.0)
    prior = 1 / (1 + labels) ** 1.5
    built = build_randomizer("auto", labels=labels, prior=prior, epsilon=epsilon, points=points)
    bias = built.channel.probabilities @ built.channel.outputs - labels
    spread = np.ptp(built.channel.outputs)
    assert np.abs(bias).max() <= 1e-9 * max(spread, 100.0)


@given(st.integers(2, 60), st.integers(2, 70), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_knots_and_rounding(size: int, count: int, random) -> None:  # type: ignore[no-untyped-def]
    labels = np.cumsum([random.uniform(0.01, 5) for _ in range(size)])
    prior = np.array([random.choice([0.0, random.random()]) for _ in range(size)]) + 1e-12
    chosen = choose_knots(labels, prior / prior.sum(), count)
    assert 2 <= chosen.size <= max(count, 2)
    assert chosen[0] == 0
    assert chosen[-1] == size - 1
    assert np.all(np.diff(chosen) > 0)
    matrix = interpolation(labels, labels[chosen])
    assert np.allclose(matrix.sum(axis=1), 1)
    assert np.allclose(matrix @ labels[chosen], labels)
    assert matrix.min() >= -1e-15


@pytest.mark.parametrize("step", [5e-324, 1e-310, 1e-300, 1e-100, 1e-9])
@pytest.mark.parametrize("at", [0, 20, 40])
def test_the_search_for_knots_ends_whatever_lies_between_points(step: float, at: int) -> None:
    """Their gaps may be too small for any share of the range."""
    labels = np.r_[step * np.arange(40), 60.0]
    with ending():
        chosen = choose_knots(labels, np.eye(41)[at], 32)
    assert chosen.size == 32
    assert np.all(np.diff(chosen) > 0)
    assert (chosen[0], chosen[-1]) == (0, 40)


@pytest.mark.parametrize("scale", one_in(3, [1e-6, 1.0, 1e6]))
def test_the_unit_of_the_label_does_not_matter(scale: float) -> None:
    plain = build_randomizer("auto", labels=GRID, prior=BELL, epsilon=1.0)
    scaled = build_randomizer("auto", labels=scale * GRID, prior=BELL, epsilon=1.0)
    excess = plain.details["predicted_excess_error"]
    assert scaled.details["predicted_excess_error"] == pytest.approx(scale**2 * excess, rel=0.01)


@pytest.mark.parametrize("epsilon", [14.0, 25.0, 40.0])
def test_masses_that_are_next_to_nothing_still_make_a_channel(epsilon: float) -> None:
    weights = seeded_entropy(5).words("prior", 0, 11).astype(np.float64)
    for points in (2, 5, 11):
        built = build_randomizer(
            "auto", labels=range(11), prior=weights, epsilon=epsilon, rows=3000, points=points
        )
        assert built.channel.ratio <= exp_lower_bound(epsilon)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 3.29289, 8.0])
@pytest.mark.parametrize("seed", one_in(3, range(6)))
def test_any_small_noisy_prior_gives_a_channel(epsilon: float, seed: int) -> None:
    words = seeded_entropy(seed).words("prior", 0, 5).astype(np.float64)
    prior = np.where(words > np.median(words), words, 0.0)
    for k in (2, 3, 5):
        weights = prior[:k] if prior[:k].any() else np.ones(k)
        built = build_randomizer("auto", labels=range(k), prior=weights, epsilon=epsilon, rows=6)
        assert built.channel.ratio <= exp_lower_bound(epsilon)
        assert built.channel.epsilon > 0.999 * epsilon


def test_thresholds_get_the_largest_share_that_is_affordable_or_the_last_whatever_it_costs() -> (
    None
):
    def shares(
        *errors: float, least: float = 0.2, nothing: float = 1.0
    ) -> tuple[float, list[float]]:
        asked: list[float] = []

        def design(share: float, most: float) -> Design:
            asked.append(most)
            error = errors[THRESHOLD_SHARES.index(share)]
            return Design(np.ones((2, 2)), error, share, np.ones(1))

        made, share = largest_share(design, least, nothing)
        assert made.gap == share  # it is the design of this share
        return share, asked

    just, more = 0.2 + 0.01 - 1e-9, 0.2 + 0.01 + 1e-9  # a twentieth of what is lost to noise
    assert shares(just, more, more, more, more)[0] == 0.3
    assert shares(more, more, just, more, just)[0] == 0.1
    share, asked = shares(*[9.0] * 5)
    assert share == 0.02
    assert asked[:4] == pytest.approx([0.21] * 4, rel=1e-4)
    assert min(asked[:4]) > 0.21
    assert asked[4] == np.inf
    # where little is gained over no label at all, that is what a share may not cost much of
    assert shares(0.2 + 0.0049, *[9.0] * 4, nothing=0.3)[0] == 0.3
    assert shares(0.2 + 0.0051, *[9.0] * 4, nothing=0.3)[0] == 0.02


def test_what_a_solver_broke_is_mended_by_as_little_as_it_takes() -> None:
    exact = np.array([[0.5, 0.3, 0.2], [0.25, 0.45, 0.3], [0.25, 0.375, 0.375]])
    for passed in (0.0, 1e-8, 1e-3):
        broken = exact * [[1 + passed, 1, 1], [1, 1, 1], [1 - passed, 1, 1 + passed]]
        mended = _within(3 * broken, 2.0)
        assert mended.sum(axis=1) == pytest.approx(np.ones(3))
        assert (mended.max(axis=0) / mended.min(axis=0)).max() <= 2 * (1 - 1e-10)
        assert np.abs(mended - exact).max() <= 4 * passed + 1e-8
    assert np.array_equal(_within(exact, 2.1), exact)
