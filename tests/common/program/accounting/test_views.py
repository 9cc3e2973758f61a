"""Composition side by side, and budgets divided: order, known values, optimality."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigError, PrivacyError
from common.guarantees import largest_rho
from common.guarantees.gaussian import gaussian_delta
from common.program.accounting.allocation import Stage, allocate
from common.program.accounting.views import METHODS, composition_view, mechanism
from common.program.cli import main
from tests.commands import RunCommand

TIMES = [1, 7, 100]


@pytest.mark.parametrize(
    "release",
    [
        mechanism("pure", 0.1),
        mechanism("pure", 1.0),
        mechanism("gaussian", noise=8.0),
        mechanism("sampled-gaussian", noise=1.5, rate=0.02),
    ],
    ids=lambda release: release.name,
)
def test_whoever_knows_more_claims_less(release: object) -> None:
    view = composition_view(release, TIMES, 1e-6)  # type: ignore[arg-type]
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


def test_known_values() -> None:
    pure = composition_view(mechanism("pure", 0.1), [100], 1e-6)
    assert pure["basic"] == [pytest.approx(10.0)]
    advanced = math.sqrt(200 * math.log(1e6)) * 0.1 + 10 * math.expm1(0.1)
    assert pure["advanced"] == [pytest.approx(advanced)]
    assert pure["PLD"][0] == pytest.approx(pure["optimal"][0], rel=0.01)
    # m Gaussians of σ are one of σ/√m
    gaussian = composition_view(mechanism("gaussian", noise=10.0), [100], 1e-6)
    assert gaussian_delta(1.0, gaussian["PLD"][0]) == pytest.approx(1e-6, rel=0.1)
    single = composition_view(mechanism("gaussian", noise=2.0), [1], 1e-6, ("basic",))
    assert gaussian_delta(2.0, single["basic"][0]) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("laplace", 1.0), "must be one of"),
        (("pure",), "pass --epsilon"),
        (("gaussian",), "pass --noise"),
        (("sampled-gaussian", None, 1.0, 0.0), "rate=0"),
    ],
)
def test_impossible_mechanisms_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mechanism(*arguments)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="delta"):
        composition_view(mechanism("pure", 1.0), [1], 0.0)
    with pytest.raises(PrivacyError, match="at least 1"):
        composition_view(mechanism("pure", 1.0), [0], 1e-6)


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
    assert Stage.parse("prior") == Stage("prior")
    for bad in ("", "a:x", "a:1:1:0", "a:1:1:1:1", "a:1:1:1.5", "a:0", "a:-1", "a:nan"):
        with pytest.raises(ConfigError, match=r"stage"):
            Stage.parse(bad)
    with pytest.raises(ConfigError, match="--stage"):
        allocate([], 1.0)
    with pytest.raises(PrivacyError, match="epsilon=0"):
        allocate(STAGES, 0.0)


def test_the_commands_write_a_table_and_a_plot(tmp_path: Path, run_command: RunCommand) -> None:
    run = partial(run_command, main, "accounting")
    plot = tmp_path / "composition.png"
    done = run("compose", "--epsilon", "0.1", "--times", "100", "--plot", str(plot))
    assert done.code == 0, done
    assert "advanced" in done.out
    assert "6.308" in done.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    parted = run("split", "--epsilon", "1", "--stage", "prior", "--stage", "labels:8")
    assert parted.code == 0, parted
    assert "0.3333" in parted.out
    assert "0.6667" in parted.out
    assert run("compose", "--mechanism", "gaussian").error
