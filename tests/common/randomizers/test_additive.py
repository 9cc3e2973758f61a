"""Additive noise: the laws against quadrature and brute force, the channels against the laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.additive import (
    DiscreteLaplace,
    DiscreteStaircase,
    Laplace,
    Staircase,
    best_gamma,
    best_stair,
)

LABELS = np.linspace(0.0, 2.0, 21)
PRIOR = np.full(21, 1 / 21)
FAR = np.arange(-4000, 4001)


def staircase_density(x: Floats, span: float, epsilon: float, gamma: float) -> Floats:
    """Straight from the definition."""
    period, rest = np.divmod(np.abs(x), span)
    b = np.exp(-epsilon)
    top = (1 - b) / (2 * span * (gamma + b * (1 - gamma)))
    return np.asarray(top * b ** (period + (rest >= gamma * span)))


def discrete_staircase_law(steps: int, epsilon: float, stair: int) -> Floats:
    """P over FAR, straight from the definition."""
    b = np.exp(-epsilon)
    top = (1 - b) / (2 * stair + 2 * b * (steps - stair) - (1 - b))
    period, rest = np.divmod(np.abs(FAR), steps)
    return np.asarray(top * b ** (period + (rest >= stair)))


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("squared", [True, False])
def test_closed_form_gamma_is_the_minimum(epsilon: float, squared: bool) -> None:
    def moment(gamma: float) -> float:
        law = Staircase(1.0, epsilon, gamma)
        if not squared:
            return 2 * float(law.excess(np.array(0.0)))
        b, a = law.decay, law.height
        area = [(a * gamma**j + a * b * (1 - gamma**j)) / j for j in (1, 2, 3)]
        gone = 1 - b
        return 2 * (area[2] / gone + 2 * area[1] * b / gone**2 + area[0] * b * (1 + b) / gone**3)

    found = minimize_scalar(moment, bounds=(1e-9, 1), method="bounded")
    assert moment(best_gamma(epsilon, squared=squared)) <= found.fun * (1 + 1e-12)
    b = np.exp(-epsilon)
    published = -b / (1 - b) + (b - 2 * b**2 + 2 * b**4 - b**5) ** (1 / 3) / (
        2 ** (1 / 3) * (1 - b) ** 2
    )
    if squared:
        assert best_gamma(epsilon, squared=True) == pytest.approx(published, rel=1e-7)


@pytest.mark.parametrize("loss", ["squared", "absolute", "poisson"])
def test_stairs_are_the_best_for_the_loss_that_judges(loss: str) -> None:
    """Absolute errors take another γ and r than squared ones do; Poisson's count as squared."""
    ask = {"labels": LABELS, "prior": PRIOR, "epsilon": 1.2, "loss": loss}
    squared = loss != "absolute"
    made = build_randomizer("staircase", **ask)
    assert made.details["gamma"] == best_gamma(1.2, squared=squared)
    assert best_gamma(1.2, squared=True) != pytest.approx(best_gamma(1.2, squared=False), rel=0.05)
    whole = build_randomizer("discrete-staircase", **ask)
    assert whole.details["r"] == best_stair(whole.details["steps"], 1.2, squared=squared)
    assert len({best_stair(whole.details["steps"], 1.2, squared=which) for which in (0, 1)}) == 2


def test_continuous_laws_are_densities_and_their_tails_agree() -> None:
    law = Staircase(1.5, 0.8, 0.3)
    stairs = np.sort(np.concatenate([np.arange(60) * 1.5, np.arange(60) * 1.5 + 0.45]))
    for x in (0.0, 0.2, 0.45, 1.0, 1.5, 4.1):
        cuts = np.concatenate([[x], stairs[stairs > x]])
        middles, widths = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
        density = staircase_density(middles, 1.5, 0.8, 0.3)
        assert float(law.survival(np.array(x))) == pytest.approx(density @ widths, rel=1e-9)
        excess = density @ (widths * (middles - x))
        assert float(law.excess(np.array(x))) == pytest.approx(excess, rel=1e-9)
    laplace = Laplace(0.7)
    for x in (0.0, 1.3):
        tail = quad(lambda t: np.exp(-t / 0.7) / 1.4, x, 40)[0]
        assert float(laplace.survival(np.array(x))) == pytest.approx(tail, rel=1e-7)


@pytest.mark.parametrize(("steps", "epsilon", "stair"), [(7, 0.9, 3), (1, 0.5, 1), (5, 4.0, 5)])
def test_discrete_laws_by_brute_force(steps: int, epsilon: float, stair: int) -> None:
    q = np.exp(-epsilon / steps)
    laplace = (1 - q) / (1 + q) * q ** np.abs(FAR)
    staircase = discrete_staircase_law(steps, epsilon, stair)
    law = DiscreteStaircase(steps, epsilon, stair)
    assert staircase.sum() == pytest.approx(1)
    assert law.moment(1) == pytest.approx(staircase @ np.abs(FAR))
    assert law.moment(2) == pytest.approx(staircase @ FAR**2)
    for exact, mass in ((law, staircase), (DiscreteLaplace(steps, epsilon), laplace)):
        for n in (1, 2, steps, steps + 1, 30):
            at = np.array(float(n))
            assert float(exact.survival(at)) == pytest.approx(mass[n <= FAR].sum())
            assert float(exact.excess(at)) == pytest.approx(mass @ np.maximum(FAR - n, 0))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("squared", [True, False])
def test_best_stair_by_brute_force(epsilon: float, squared: bool) -> None:
    size = np.abs(FAR).astype(np.float64) ** (2 if squared else 1)
    costs = [discrete_staircase_law(9, epsilon, r) @ size for r in range(1, 10)]
    assert costs[best_stair(9, epsilon, squared=squared) - 1] == pytest.approx(min(costs))
    loss = "squared" if squared else "absolute"
    built = build_randomizer(
        "discrete-staircase", labels=np.arange(10), prior=np.ones(10), epsilon=epsilon, loss=loss
    )
    assert costs[built.details["r"] - 1] == pytest.approx(min(costs))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_discrete_channels_follow_their_laws(epsilon: float) -> None:
    q = np.exp(-epsilon / 20)
    laws = {
        "discrete-laplace": (1 - q) / (1 + q) * q ** np.abs(FAR),
        "discrete-staircase": discrete_staircase_law(
            20, epsilon, best_stair(20, epsilon, squared=True)
        ),
    }
    for name, law in laws.items():
        channel = build_randomizer(name, labels=LABELS, prior=PRIOR, epsilon=epsilon).channel
        places = (channel.outputs > -1e-9) & (channel.outputs < 2 + 1e-9)
        wanted = law[4000 + np.arange(21) - np.arange(21)[:, None]]
        np.testing.assert_allclose(channel.probabilities[:, places], wanted, atol=1e-14)
        clipped = build_randomizer(
            name, labels=LABELS, prior=PRIOR, epsilon=epsilon, clip=True
        ).channel
        np.testing.assert_array_equal(clipped.outputs, LABELS)
        ends = np.array([law[-y >= FAR].sum() for y in range(21)])
        np.testing.assert_allclose(clipped.probabilities[:, 0], ends, atol=1e-12)


@pytest.mark.parametrize("loss", ["squared", "absolute"])
@pytest.mark.parametrize("kind", ["laplace", "staircase"])
def test_outputs_beyond_the_range_are_means_of_what_they_stand_for(kind: str, loss: str) -> None:
    """Under a lopsided prior: parts as wide as each other, and the last without an end."""
    labels, prior, epsilon, tails = np.arange(6.0), np.array([9.0, 4, 1, 1, 0, 2]) / 17, 0.7, 3
    asked = {"labels": labels, "prior": prior, "epsilon": epsilon, "loss": loss, "tails": tails}
    squared = loss == "squared"
    q = np.exp(-epsilon / 5)
    law = (1 - q) / (1 + q) * q ** np.abs(FAR)
    if kind == "staircase":
        law = discrete_staircase_law(5, epsilon, best_stair(5, epsilon, squared=squared))
    channel = build_randomizer(f"discrete-{kind}", **asked).channel
    width = int(np.ceil(16 * 5 / epsilon / tails))
    sums = FAR + labels[:, None]  # of a label and its noise
    for part in range(tails):
        ends = 1 + width * part, width * (part + 1) if part < tails - 1 else np.inf
        for z, depth in ((tails - 1 - part, -sums), (tails + 6 + part, sums - 5)):
            inside = law * ((ends[0] <= depth) & (depth <= ends[1]))
            assert channel.probabilities[:, z] == pytest.approx(inside.sum(axis=1), rel=1e-9)
            mean = prior @ (inside * sums).sum(axis=1) / (prior @ inside.sum(axis=1))
            assert channel.outputs[z] == pytest.approx(mean, rel=1e-9)

    channel = build_randomizer(kind, **asked).channel
    gamma = best_gamma(epsilon, squared=squared)
    steps = 16 * 5 / epsilon / tails  # sixteen noise scales beyond either end
    assert channel.outputs[1 : tails + 1] == pytest.approx(-steps * np.arange(tails, 0, -1))
    cells = np.linspace(0, 5 * 30, 30_001)  # e^20 times less at last
    beyond = (cells[1:] + cells[:-1]) / 2
    for z, depth, way in (
        (0, labels - channel.outputs[1], -1),
        (-1, channel.outputs[-2] - labels, 1),
    ):
        noise = depth[:, None] + beyond
        density = np.exp(-noise * epsilon / 5) * epsilon / 10
        if kind == "staircase":
            density = staircase_density(noise, 5.0, epsilon, gamma)
        mass = density * np.diff(cells)
        assert channel.probabilities[:, z] == pytest.approx(mass.sum(axis=1), rel=1e-3)
        mean = prior @ mass @ beyond / (prior @ mass.sum(axis=1))
        edge = channel.outputs[1 if way < 0 else -2]
        assert channel.outputs[z] - edge == pytest.approx(way * mean, rel=1e-3)


@pytest.mark.parametrize("name", ["laplace", "staircase", "discrete-laplace", "discrete-staircase"])
def test_what_is_clipped_lies_at_the_ends_and_nothing_else_moves(name: str) -> None:
    asked = {"labels": LABELS**2, "prior": PRIOR, "epsilon": 0.8}
    plain = build_randomizer(name, **asked).channel
    clipped = build_randomizer(name, **asked, clip=True).channel
    places = np.clip(plain.outputs, 0.0, 4.0)
    for z, at in enumerate(clipped.outputs):
        sent = plain.probabilities[:, np.abs(places - at) < 1e-9].sum(axis=1)
        assert clipped.probabilities[:, z] == pytest.approx(sent, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_continuous_laws_on_a_lattice(epsilon: float) -> None:
    """Each output's probability is the integral of its hat function under the density."""
    channel = build_randomizer("laplace", labels=LABELS, prior=PRIOR, epsilon=epsilon).channel
    stairs = build_randomizer("staircase", labels=LABELS, prior=PRIOR, epsilon=epsilon).channel
    gamma = best_gamma(epsilon, squared=True)
    assert channel.outputs[0] < -2 / epsilon
    for y in (0, 7, 20):
        for z in (1, 40, 70, 80, 90, 120):
            for built, density in (
                (channel, lambda x: np.exp(-np.abs(x) * epsilon / 2) * epsilon / 4),
                (stairs, lambda x: staircase_density(x, 2.0, epsilon, gamma)),
            ):
                left, centre, right = built.outputs[[max(z - 1, 1), z, z + 1]]
                steps = np.linspace(left, right, 40_001)
                middles = (steps[1:] + steps[:-1]) / 2
                hat = np.interp(middles, [left, centre, right], [0, 1, 0])
                if z == 1:  # the last lattice point on this side has half a hat
                    hat = (right - middles) / (right - centre)
                values = density(middles - LABELS[y])
                integral = float(values @ hat * (right - left) / 40_000)
                assert built.probabilities[y, z] == pytest.approx(integral, rel=2e-3, abs=1e-12)


def test_laplace_keeps_its_published_variance() -> None:
    for name in ("laplace", "discrete-laplace"):
        built = build_randomizer(name, labels=np.arange(101.0), prior=np.ones(101), epsilon=1.0)
        assert built.expected_loss == pytest.approx(2 * 100.0**2, rel=0.01)


def test_uneven_grids_get_a_lattice_that_holds_them() -> None:
    labels = np.array([0.0, 2.0, 5.0, 40.0])
    built = build_randomizer("discrete-laplace", labels=labels, prior=np.ones(4), epsilon=1.0)
    assert built.details["steps"] == 40
    ragged = np.array([0.0, np.sqrt(2), np.pi, 40.0])
    built = build_randomizer("discrete-laplace", labels=ragged, prior=np.ones(4), epsilon=1.0)
    assert built.details["steps"] == 512
    means = built.channel.probabilities @ built.channel.outputs
    np.testing.assert_allclose(means, ragged, atol=1e-9)


def test_exponential_is_laplace_conditioned_on_the_range() -> None:
    channel = build_randomizer("exponential", labels=LABELS, prior=PRIOR, epsilon=1.5).channel
    steps = np.linspace(0, 2, 400_001)
    middles = (steps[1:] + steps[:-1]) / 2
    density = np.exp(-np.abs(middles - LABELS[5]) * 1.5 / 4)
    cell = np.abs(middles[:, None] - LABELS[[0, 5, 13]]) < 0.05
    wanted = (density[:, None] * cell).sum(axis=0) / density.sum()
    np.testing.assert_allclose(channel.probabilities[5, [0, 5, 13]], wanted, rtol=1e-4)
    assert 0.7 < channel.epsilon < 1.5


@pytest.mark.parametrize("name", ["discrete-laplace", "discrete-staircase"])
def test_outputs_too_far_out_for_any_mass_are_left_out(name: str) -> None:
    labels = np.array([0.0, 1.0])
    channel = build_randomizer(
        name, labels=labels, prior=[1, 1], epsilon=40.0, loss="squared"
    ).channel
    assert channel.ratio <= exp_lower_bound(40.0)
    np.testing.assert_allclose(channel.probabilities @ channel.outputs, labels, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("laplace", {"points": 1}),
        ("laplace", {"tails": -1}),
        ("staircase", {"gamma": 2.0}),
        ("discrete-laplace", {"tails": 0}),
        ("discrete-staircase", {"r": 99}),
        ("exponential", {"points": 1}),
    ],
)
def test_unusable_options(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must"):
        build_randomizer(name, labels=LABELS, prior=PRIOR, epsilon=1.0, **options)
