"""Composition side by side, and budgets divided: order, known values, optimality."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from scipy.optimize import brentq
from scipy.stats import binom

from labelveil.accounting.allocation import Stage, allocate
from labelveil.accounting.mechanisms import MECHANISMS, Mechanism, Numbers, mechanism
from labelveil.accounting.views import METHODS, composition_view
from labelveil.commands.cli import main
from labelveil.common.config import checked
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import Filter, ZeroConcentratedDP, epsilon_at, largest_rho, to_zcdp
from labelveil.common.guarantees.gaussian import gaussian_delta, gaussian_zcdp
from labelveil.common.mechanisms.interactive import Terms
from labelveil.common.mechanisms.interactive.targets import not_prior
from tests.commands import RunCommand
from tests.effort import one_in

TIMES = [1, 7, 100]


@pytest.mark.parametrize(
    "release",
    one_in(
        3,
        [
            mechanism("pure", Numbers(epsilon=0.1)),
            mechanism("pure", Numbers(epsilon=1.0)),
            mechanism("laplace", Numbers(noise=4.0)),
            mechanism("gaussian", Numbers(noise=8.0)),
            mechanism("sampled-gaussian", Numbers(noise=1.5, rate=0.02)),
        ],
    ),
    ids=lambda release: release.name,
)
def test_whoever_knows_more_claims_less(release: Mechanism) -> None:
    view = composition_view(release, TIMES, 1e-6)
    assert tuple(view) == METHODS
    for totals in view.values():
        assert totals == sorted(totals)
    for index in range(len(TIMES)):
        at = {method: totals[index] for method, totals in view.items()}
        assert at["optimal"] <= at["advanced"] * (1 + 1e-9)
        # loss distributions are rounded up to cells of 1e-4 for each release
        assert at["PLD"] <= min(at.values()) + 1e-4 * TIMES[index]
    last = {method: totals[-1] for method, totals in view.items()}
    assert last["RDP"] < last["advanced"]


EVERY = Numbers(epsilon=0.3, noise=20.0, rate=0.01, count=5, rho=0.002)


@pytest.mark.parametrize("name", one_in(2, MECHANISMS))
def test_every_mechanism_is_composed_and_no_freedom_is_free(name: str) -> None:
    """Filters charge for adaptivity what sums do not, odometers for stopping where one likes."""
    release = mechanism(name, EVERY)
    view = composition_view(release, TIMES, 1e-6)
    assert all(totals == sorted(totals) for totals in view.values())
    fixed = [min(view[method][at] for method in ("basic", "optimal", "RDP")) for at in range(3)]
    for at in range(3):
        assert fixed[at] <= view["filter"][at] * 1.001 < math.inf  # a grid of orders
        assert view["filter"][at] <= view["odometer"][at]
    assert view["RDP"][2] < 100 * view["RDP"][0] or math.isinf(view["RDP"][0])
    size = getattr(EVERY, MECHANISMS[name].size)
    assert f"{size:g}" in release.name  # which says how much of it is composed
    one = release.approximate(Fraction(1, 10**6)).epsilon
    assert one <= view["basic"][0] * (1 + 1e-9)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_filters_limit_admits_so_many_and_not_one_more(name: str) -> None:
    release = mechanism(name, EVERY)
    limits = []
    for restate in (to_zcdp, lambda same: same):
        with suppress(PrivacyError):
            limits.append(restate(release.guarantee).repeat(7))
    for limit in limits:
        guard = Filter(limit)
        for _ in range(7):
            guard.spend(release.guarantee)
        assert not guard.admits(release.guarantee)
    view = composition_view(release, [7], 1e-6, ("filter",))
    assert view["filter"][0] <= min(epsilon_at(limit, 1e-6) for limit in limits)


def test_known_values_of_what_is_counted() -> None:
    """k draws, c above, τ hits and T sums by the theorems' own formulas."""
    times, delta, methods = [1], 1e-6, ("basic", "RDP")

    def basic(name: str, **numbers: float) -> float:
        given = Numbers(**numbers)  # type: ignore[arg-type]
        return composition_view(mechanism(name, given), times, delta, methods)["basic"][0]

    assert basic("top-k", epsilon=0.25, count=8) == 2.0
    assert basic("svt", epsilon=0.75, count=3) == pytest.approx(0.75, rel=1e-3)
    assert basic("laplace", noise=4.0) == 0.25
    assert mechanism("tree", Numbers(noise=10.0, count=100)).guarantee == gaussian_zcdp(100).repeat(
        7
    )
    stable = mechanism("stable-top-k", Numbers(rho=0.5, failure=1e-9)).guarantee
    assert isinstance(stable, ZeroConcentratedDP)
    assert 0.49 < stable.rho <= 0.5
    hits = Terms(not_prior(Fraction(0.1)), 20)
    assert (
        basic("target-charging", epsilon=0.1, count=20) == hits.approximate(Fraction(delta)).epsilon
    )


def test_without_loss_distributions_they_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelveil.accounting.views.available", lambda: False)
    view = composition_view(mechanism("pure", Numbers(epsilon=0.1)), [1], 1e-6)
    assert set(METHODS) - set(view) == {"PLD"}


def test_known_values() -> None:
    pure = composition_view(mechanism("pure", Numbers(epsilon=0.1)), [100], 1e-6)
    assert pure["basic"] == [pytest.approx(10.0)]
    advanced = math.sqrt(200 * math.log(1e6)) * 0.1 + 10 * math.expm1(0.1)
    assert pure["advanced"] == [pytest.approx(advanced)]
    assert pure["PLD"][0] == pytest.approx(pure["optimal"][0], rel=0.01)
    # m Gaussians of σ are one of σ/√m
    gaussian = composition_view(mechanism("gaussian", Numbers(noise=10.0)), [100], 1e-6)
    assert gaussian_delta(1.0, gaussian["PLD"][0]) == pytest.approx(1e-6, rel=0.1)
    single = composition_view(mechanism("gaussian", Numbers(noise=2.0)), [1], 1e-6, ("basic",))
    assert gaussian_delta(2.0, single["basic"][0]) == pytest.approx(1e-6, rel=1e-3)


def test_delta_is_shared_among_releases_and_their_composition() -> None:
    """m Gaussians at δ/m each, or at half of that with the rest left to composition."""
    m, delta, sigma = 100, 1e-6, 20.0
    methods = ("basic", "advanced", "optimal")
    view = composition_view(mechanism("gaussian", Numbers(noise=sigma)), [m], delta, methods)
    (basic,), (advanced,), (optimal,) = (view[method] for method in methods)
    assert gaussian_delta(sigma, basic / m) == pytest.approx(delta / m, rel=1e-3)
    one = brentq(lambda e: gaussian_delta(sigma, e) - delta / (2 * m), 0.01, 5)
    expected = math.sqrt(2 * m * math.log(2 / delta)) * one + m * one * math.expm1(one)
    assert advanced == pytest.approx(expected, rel=1e-3)
    # Kairouz, Oh, Viswanath: the loss of m randomized responses, and m failures
    ones = np.arange(m + 1)
    law = binom.pmf(ones, m, 1 / (1 + math.exp(-one)))
    tail = float(law @ np.maximum(-np.expm1(optimal - (2 * ones - m) * one), 0))
    sound = (1 - delta / (2 * m)) ** m
    assert 1 - sound * (1 - tail) == pytest.approx(delta, rel=0.02)


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("staircase", {"epsilon": 1.0}, "must be one of"),
        ("pure", {}, "pass --epsilon"),
        ("gaussian", {}, "pass --noise"),
        ("stable-top-k", {}, "pass --rho"),
        ("sampled-gaussian", {"noise": 1.0, "rate": 0.0}, "rate=0"),
        ("top-k", {"epsilon": 1.0, "count": 0}, "count=0"),
        ("stable-top-k", {"rho": 1.0, "failure": 0}, "failure=0"),
    ],
)
def test_impossible_mechanisms_are_refused(
    name: str, numbers: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        mechanism(name, checked(Numbers, numbers))
    with pytest.raises(PrivacyError, match="delta"):
        composition_view(mechanism("pure", Numbers(epsilon=1.0)), [1], 0.0)
    with pytest.raises(PrivacyError, match="at least 1"):
        composition_view(mechanism("pure", Numbers(epsilon=1.0)), [3, 0], 1e-6)


STAGES = [Stage("a"), Stage("b", 8.0), Stage("c", 2.0, 3.0, 5)]


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_no_other_split_costs_less(delta: float) -> None:
    shares = allocate(STAGES, 1.5, delta)
    total = Fraction(1.5) if delta == 0 else largest_rho(1.5, delta)
    assert sum(share.budget * share.stage.times for share in shares) == total
    budgets = np.array([float(share.budget) for share in shares])
    times = np.array([stage.times for stage in STAGES])
    squares = np.array([stage.weight * stage.sensitivity**2 for stage in STAGES])

    def cost(split: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        variances = 2 / split**2 if delta == 0 else 1 / (2 * split)
        return float(np.sum(times * squares * variances))

    best = cost(budgets)
    assert best == pytest.approx(sum(share.cost * share.stage.times for share in shares))
    for i in range(3):
        for j in range(3):
            if i != j:
                moved = budgets.copy()
                step = 0.05 * min(budgets[i] * times[i], budgets[j] * times[j])
                moved[i] += step / times[i]
                moved[j] -= step / times[j]
                assert cost(moved) > best
    assert best < 0.99 * cost(np.full(3, float(total) / times.sum()))


def test_stages_are_read_from_text() -> None:
    assert Stage.parse("labels:8:2:3") == Stage("labels", 8.0, 2.0, 3)
    assert Stage.parse("prior") == Stage("prior", 1.0, 1.0, 1)
    for bad in ("", "a:x", "a:1:1:0", "a:1:1:1:1", "a:1:1:1.5", "a:0", "a:-1", "a:nan"):
        with pytest.raises(ConfigError, match=r"stage"):
            Stage.parse(bad)
    with pytest.raises(ConfigError, match="--stage"):
        allocate([], 1.0)
    with pytest.raises(PrivacyError, match="epsilon=0"):
        allocate(STAGES, 0.0)


@pytest.mark.slow
def test_the_commands_write_a_table_and_a_plot(tmp_path: Path, run_command: RunCommand) -> None:
    run = partial(run_command, main, "accounting")
    plot = tmp_path / "composition.png"
    done = run("compose", "--epsilon", "0.1", "--times", "100", "--plot", str(plot))
    assert done.code == 0, done
    assert "advanced" in done.out
    assert "6.308" in done.out
    # the methods' lines are what it shows: it has as many colours as they, or more
    pixels = np.asarray(pyplot.imread(plot))[..., :3].reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    bright = np.ptp(colours, axis=1) > 0.3
    assert (counts[bright] > 100).sum() >= 4
    parted = run("split", "--epsilon", "1", "--stage", "prior", "--stage", "labels:8")
    assert parted.code == 0, parted
    assert "0.3333" in parted.out
    assert "0.6667" in parted.out
    hits = run("compose", "--mechanism", "target-charging", "--epsilon", "0.1", "--count", "20",
               "--times", "3", "--json")  # fmt: skip
    found = json.loads(hits.out)
    assert set(found["epsilon"]) == set(METHODS) - {"PLD"}
    assert found["epsilon"]["odometer"][0] is None  # an RDP curve has no zCDP to be read off
    assert run("compose", "--mechanism", "gaussian").error
