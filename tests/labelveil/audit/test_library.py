"""Every twin in the library is caught by the probe that it names; every right build passes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labelveil.audit.attacks import implementation
from labelveil.audit.attacks.every_label import every_label
from labelveil.audit.mechanism.black_box import (
    black_box_range_check,
    calls_check,
    every_label_check,
    influence_check,
    one_run_check,
    order_check,
    repeats_check,
)
from labelveil.audit.mechanism.run import PROBES
from labelveil.audit.mechanism.subject import CallableSubject, NamedSubject
from labelveil.audit.mechanism.trial import Sizes, Trial
from labelveil.audit.verdict import Verdict
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.channel import randomized_response_rows
from labelveil.common.exact.noise import uniform_below
from tests.effort import EXHAUSTIVE, effort, some_of
from tests.labelveil.audit.twins import (
    auditorium,
    drawn,
    labels,
    parties,
    releases,
    rows,
    samplers,
    sums,
)
from tests.labelveil.audit.twins.labels import ChannelTwin
from tests.labelveil.audit.twins.library import SMALL, TWINS, MechanismTwin, Twin
from tests.statistics import binomial_range

pytestmark = pytest.mark.statistical

MODULES = (auditorium, labels, parties, releases, rows, sums)
RIGHT = ("randomized-response", "rr-on-bins", "two-point", "randomized-thresholds", "unbiased")
CHECKS = (
    black_box_range_check,
    every_label_check,
    one_run_check,
    repeats_check,
    calls_check,
    influence_check,
    order_check,
)


def test_the_library_holds_every_kind() -> None:
    assert len(TWINS) >= 48
    assert len({type(one).__name__ for one in TWINS}) == len(TWINS)
    assert {type(one).__module__ for one in TWINS} == {module.__name__ for module in MODULES}


QUICK = {one.caught_by: one for one in reversed(TWINS) if not one.slow}.values()
"""The first twin of each probe."""
TRIED = [
    one
    for place, one in enumerate(TWINS)
    if EXHAUSTIVE
    or place % 3 == 0
    or one in QUICK
    or one.caught_by not in {q.caught_by for q in QUICK}
]
"""With these a third of the others, and all of probes that none of these is for."""


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=type(one).__name__, marks=[pytest.mark.slow] * (one not in QUICK))
        for one in TRIED
    ],
)
def test_a_twin_is_caught(one: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    if one in QUICK:
        monkeypatch.setattr("labelveil.audit.mechanism.sums.QUESTIONS", 6)
    found = one.audit()
    assert found.verdict is Verdict.FAIL, (found.name, found.found)
    if isinstance(one, MechanismTwin):
        assert found.question


@pytest.mark.slow
@pytest.mark.parametrize("one", auditorium.RIGHT, ids=lambda one: type(one).__name__)
def test_others_mechanisms_that_are_right_pass(one: MechanismTwin) -> None:
    assert one.audit().verdict is Verdict.PASS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(effort(1, 12)))
@pytest.mark.parametrize("kind", some_of(2, drawn.every(drawn.Drawn)))
def test_a_twin_that_is_drawn_is_caught(
    kind: type[drawn.Drawn], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of the probes at hand, with as much effort as audits take by default."""
    monkeypatch.setattr(implementation, "clock", samplers.CLOCK)
    target = f"{drawn.__name__}:{kind.__name__}_{seed}"
    sizes = replace(Sizes(), starts=300, forks=2)
    trial = Trial(CallableSubject(target, drawn.LABELS, 1.0), sizes)
    probes = [probe for probe in PROBES.fitting(trial) if probe.name in kind.caught_by]
    assert len(probes) == len(kind.caught_by)
    assert Verdict.FAIL in {probe(trial).verdict for probe in probes}


def right_build(number: int) -> Trial:
    """One of many right builds: a randomizer, a grid and an ε, drawn at random."""
    source = system_entropy().source("builds")
    points = 2 + int(uniform_below(12, 1, source)[0])
    epsilon = (0.25, 0.5, 1.0, 2.0, 4.0)[int(uniform_below(5, 1, source)[0])]
    name = RIGHT[number % len(RIGHT)]
    return Trial(NamedSubject(name, np.arange(float(points)), epsilon), SMALL)


def false_alarms(builds: int) -> list[str]:
    """What fails, of every check on every build."""
    found = []
    for number in range(builds):
        trial = right_build(number)
        for check in CHECKS:
            one = check(trial)
            if one.verdict is Verdict.FAIL:
                found.append(f"{trial.subject.title} {trial.subject.epsilon}: {one.name}")
    return found


@pytest.mark.slow
def test_right_builds_pass() -> None:
    assert false_alarms(2) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_right_builds_pass() -> None:
    """At one in a million, the 2,400 checks of 300 builds fail once in 400 runs of this test."""
    assert len(false_alarms(effort(20, 300))) <= 1


class Limit(ChannelTwin):
    """One label in the middle has a chosen excess of ε."""

    def __init__(self, excess: float) -> None:
        self._excess = excess
        super().__init__()

    def rows(self) -> list[list[int]]:
        rows = super().rows()
        rows[4] = list(randomized_response_rows(11, 1 + self._excess)[4])
        return rows


@pytest.mark.slow
def test_the_stated_power_is_kept() -> None:
    """A fault that is just as large as the power says is found by audits, 95 % of them."""
    grid, runs = np.arange(11.0), 200_000
    least = every_label(Limit(0.0), grid, 1.0, runs).power[0].least
    assert 0.05 < least < 0.5
    found = [every_label(Limit(least), grid, 1.0, runs).bound > 1 for _ in range(20)]
    assert sum(found) >= binomial_range(20, 0.95)[0]
    assert not any(every_label(Limit(least / 8), grid, 1.0, runs).bound > 1 for _ in range(5))


@pytest.mark.slow
def test_of_many_labels_a_random_sample_is_run_and_said() -> None:
    subject = NamedSubject("randomized-response", np.arange(500.0), 1.0)
    trial = Trial(subject, replace(SMALL, runs=5000))
    found = every_label_check(trial)
    assert found.verdict is Verdict.PASS
    assert found.not_looked_at == "1,098 of 1,498 labels, chosen at random, were not run."
    assert found.details["labels"] == 400
    assert [power.fault.split()[0] for power in found.power] == ["excess", *["probability"] * 2]
