"""Sums over groups under the audit: the right ones pass every probe, by law and exactly."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from labelveil.audit.mechanism import sums
from labelveil.audit.mechanism.run import PROBES, audit_mechanism, mechanism_cost
from labelveil.audit.mechanism.subject import GROUP_SUMS, Answered, SumsSubject
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.verdict import Check, Verdict
from labelveil.commands.cli import app
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.noise import discrete_laplace_each
from labelveil.common.mechanisms.group_sums import GroupQuestion, noisy_sums
from tests.effort import one_in
from tests.labelveil.audit.conftest import without_power
from tests.labelveil.audit.twins import sums as twins
from tests.labelveil.audit.twins.library import SMALL

pytestmark = pytest.mark.statistical


FEW = replace(SMALL, seeds=20)


@pytest.fixture(autouse=True)
def _few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "QUESTIONS", 6)


def own(points: int = 5, epsilon: float = 1.0) -> Trial:
    """Our own sums, tried quickly."""
    return Trial(SumsSubject(GROUP_SUMS, np.arange(float(points)), epsilon), FEW)


def verdicts(trial: Trial) -> dict[str, Verdict]:
    """Of the probes of sums."""
    return {probe.name: probe(trial).verdict for probe in sums.PROBES}


def found(trial: Trial, name: str) -> Check:
    """Of one probe."""
    return next(probe for probe in PROBES.fitting(trial) if probe.name == name)(trial)


@pytest.mark.slow
@pytest.mark.parametrize(("points", "epsilon"), one_in(2, [(2, 0.1), (5, 20.0)]))
def test_right_sums_pass(points: int, epsilon: float) -> None:
    assert {*verdicts(own(points, epsilon)).values()} == {Verdict.PASS}


@pytest.mark.slow
def test_what_twins_do_wrong_passes_where_it_is_done_right() -> None:
    right = SumsSubject(f"{twins.__name__}:RIGHT", np.arange(5.0), 1.0)
    assert {*verdicts(Trial(right, SMALL)).values()} == {Verdict.PASS}


def test_the_worst_ratio_is_what_is_claimed() -> None:
    """Exactly: a twin that is 1/4,000 above is caught, and right sums reach ε."""
    check = found(own(epsilon=0.3), "exact ε of sums")
    assert (check.bound, check.claimed) == (0.3, 0.3)


@pytest.mark.slow
def test_what_it_costs_is_said_without_starts_that_are_not_made() -> None:
    """Our own code is not loaded again for each start, and a callable is."""
    trial = Trial(SumsSubject(GROUP_SUMS, np.arange(2.0), 1.0), replace(SMALL, starts=100_000))
    other = replace(trial, subject=SumsSubject(f"{__name__}:own_entropy", np.arange(2.0), 1.0))
    assert mechanism_cost(other) - mechanism_cost(trial) > 0.005 * trial.sizes.starts


@pytest.mark.slow
def test_sums_pass_every_probe_of_a_mechanism() -> None:
    audit = audit_mechanism(own())
    assert [c.name for c in audit.checks if c.verdict is not Verdict.PASS] == []
    assert without_power(audit) == []
    assert all(check.question.endswith("?") for check in audit.checks)


@pytest.mark.slow
def test_right_sums_pass_many_times() -> None:
    for _ in range(20):
        assert found(own(), "noise of sums").verdict is Verdict.PASS
        assert found(own(), "noise of other groups").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "twin"),
    one_in(
        3,
        [
            ("every label", twins.HalfTheScale),
            ("repeated words", twins.OneNoiseForTwo),
            ("labels outside the domain", twins.BoundsNotKept),
        ],
    ),
)
def test_outputs_alone_give_a_broken_sum_away(name: str, twin: twins.Sums) -> None:
    """Without the question, as any mechanism from labels to outputs."""
    # two points: a sum's noise is then of one step, so that few runs see what is wrong
    checks = [
        found(Trial(SumsSubject(target, np.arange(2.0), 1.0), twin.sizes), name)
        for target in (GROUP_SUMS, f"{twins.__name__}:{type(twin).__name__}")
    ]
    assert [check.verdict for check in checks] == [Verdict.PASS, Verdict.FAIL]


def test_noise_that_is_a_4096th_narrower_than_stated_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No number of runs could; the noise is drawn again, bit for bit."""

    def narrower(numerators: Integers, denominator: int, source: Any) -> Integers:
        return discrete_laplace_each(4096 * numerators - 1, 4096 * denominator, source)

    monkeypatch.setattr(noisy_sums, "discrete_laplace_each", narrower)
    failed = {name for name, verdict in verdicts(own()).items() if verdict is Verdict.FAIL}
    assert failed == {"exact noise of sums"}


def own_entropy(
    labels: Floats, question: GroupQuestion, epsilon: Fraction, entropy: Entropy
) -> Answered:
    """Right sums by a library that takes no entropy."""
    return twins.RIGHT(labels, question, epsilon, system_entropy())


@pytest.mark.slow
def test_what_cannot_be_replayed_is_judged_by_its_law() -> None:
    trial = Trial(SumsSubject(f"{__name__}:own_entropy", np.arange(5.0), 1.0), FEW)
    assert verdicts(trial) == {
        "exact ε of sums": Verdict.NOT_CHECKABLE,
        "exact noise of sums": Verdict.NOT_CHECKABLE,
        "two questions": Verdict.PASS,
        "noise of sums": Verdict.PASS,
        "noise of other groups": Verdict.PASS,
    }


@pytest.mark.parametrize("subject", [[GROUP_SUMS], ["tests.nowhere:f", "--sums"]])
def test_sums_of_several_labels_are_refused(subject: list[str]) -> None:
    with pytest.raises(ConfigError, match="--also is for outputs"):
        CliRunner().invoke(
            app, ["audit", "mechanism", *subject, "--also", "0:1"], catch_exceptions=False
        )


@pytest.mark.slow
def test_the_command_fails_what_is_broken(tmp_path: Any) -> None:
    command = ["audit", "mechanism", f"{twins.__name__}:WeightsAreForgotten", "--sums", "--effort"]
    ran = CliRunner().invoke(app, [*command, "0.01", "--out", str(tmp_path), "--points", "5"])
    assert ran.exit_code == 1
    assert "fail  exact ε of sums" in ran.output
