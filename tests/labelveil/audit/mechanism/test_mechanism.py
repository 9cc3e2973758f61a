"""`mechanism` end to end, on a randomizer by name and on anybody's callable."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from typer.testing import CliRunner

from labelveil.audit.attacks import implementation
from labelveil.audit.attacks.exact_channel import (
    PlantedEntropy,
    count_weights,
    exp_series,
    worst_ratio,
)
from labelveil.audit.mechanism.black_box import (
    black_box_range_check,
    every_label_check,
    starts_check,
)
from labelveil.audit.mechanism.run import PROBES, audit_mechanism
from labelveil.audit.mechanism.subject import CallableSubject, NamedSubject
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.verdict import Verdict
from labelveil.commands.cli import app
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import build_randomizer
from tests.effort import one_in
from tests.labelveil.audit.conftest import without_power
from tests.labelveil.audit.twins import samplers as twins
from tests.labelveil.audit.twins.library import SMALL


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["rr-on-bins", pytest.param("randomized-thresholds", marks=pytest.mark.slow)]
)
def test_a_named_randomizer(name: str) -> None:
    subject = NamedSubject(name, np.arange(6.0), 1.0)
    seen: list[str] = []
    audit = audit_mechanism(Trial(subject, SMALL), seen.append)
    assert [(c.name, c.found) for c in audit.checks if c.verdict is not Verdict.PASS] == []
    assert seen == [probe.name for probe in PROBES.fitting(Trial(subject, SMALL))]
    assert without_power(audit) == []
    assert all(check.seconds > 0 for check in audit.checks)
    assert all(check.question.endswith("?") for check in audit.checks)


@pytest.mark.slow
def test_two_labels_of_which_no_histogram_is_released() -> None:
    """What has no first step is undecided, and the rest is looked at."""
    audit = audit_mechanism(Trial(NamedSubject("randomized-response", np.arange(2.0), 1.0), SMALL))
    undecided = {check.name for check in audit.checks if check.verdict is not Verdict.PASS}
    assert undecided == {
        "replay: histogram sensitivity",
        "replay: noise scale",
        "replay: only the noisy histogram reaches the channel",
        "support: noise on every cell",
    }
    assert audit.passed


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("samplers:right_response", set()),
        ("rows:ConstantSeed", {"cold starts"}),
        ("labels:FloatLaplace", {"float mantissa", "every label"}),
        ("labels:SlowFlips", {"timing"}),
    ],
)
@pytest.mark.slow
def test_a_callable(name: str, names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "clock", twins.CLOCK)
    subject = CallableSubject(f"tests.labelveil.audit.twins.{name}", np.array([0.0, 1.0]), 1.0)
    audit = audit_mechanism(Trial(subject, replace(SMALL, calls=600)))
    failed = {check.name for check in audit.checks if check.verdict is Verdict.FAIL}
    assert names <= failed
    assert without_power(audit) == []
    # what leaks in one way is often seen in others, too
    assert not failed if not names else not audit.passed


def test_labels_are_probed_between_those_of_a_grid_where_there_are_others() -> None:
    grid = np.arange(4.0)
    probed = Trial(NamedSubject("rr-on-bins", grid, 1.0), SMALL).labels
    assert {*grid, 0.5, 1.5, 2.5} < {*probed.tolist()}
    assert probed.size == 10
    again = Trial(NamedSubject("rr-on-bins", grid, 1.0), SMALL).labels
    assert np.setdiff1d(probed, again).size == 3  # drawn anew
    assert Trial(NamedSubject("rr-on-bins", grid, 1.0), SMALL, grid_only=True).labels.size == 4
    assert Trial(NamedSubject("rr-on-bins", grid[:2], 1.0), SMALL).labels.size == 2
    strict = CallableSubject("tests.labelveil.audit.mechanism.test_mechanism:whole", grid, 1.0)
    assert Trial(strict, SMALL).labels.size == 4


def whole(labels: np.ndarray) -> np.ndarray:
    """Refuse what is no whole number."""
    if (labels % 1).any():
        raise ValueError("a label is no whole number")
    return np.zeros(labels.size)


def of_two_labels(name: str) -> CallableSubject:
    target = f"tests.labelveil.audit.twins.samplers:{name}"
    return CallableSubject.of_several(target, [(0.0, 1.0)] * 2, 1.0)


def test_a_callable_of_two_labels_that_spends_all_on_each_is_caught() -> None:
    checks = {
        name: every_label_check(Trial(of_two_labels(name), replace(SMALL, runs=100_000)))
        for name in ("right_pair", "epsilon_for_each")
    }
    assert [check.verdict for check in checks.values()] == [Verdict.PASS, Verdict.FAIL]
    # no label alone tells so much: both change at once
    worst = {name: sorted(check.details["worst"]) for name, check in checks.items()}
    assert worst["epsilon_for_each"] in (["(0, 0)", "(1, 1)"], ["(0, 1)", "(1, 0)"])
    far = black_box_range_check(Trial(of_two_labels("right_pair"), SMALL))
    assert (far.verdict, "far above (1, 1)" in far.tried) == (Verdict.PASS, True)


@pytest.mark.slow
def test_two_labels_pass_every_probe_of_a_callable() -> None:
    audit = audit_mechanism(Trial(of_two_labels("right_pair"), SMALL))
    assert [c.name for c in audit.checks if c.verdict is Verdict.FAIL] == []
    assert audit.facts["labels"] == "4 from (0, 0) to (1, 1)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rr-on-bins", "--also", "0:1"], "randomizes one label"),
        (["tests.nowhere:f", "--also", "1"], "'1' must be LOWER:UPPER"),
        (["tests.nowhere:f", "--also", "1:0"], "'1:0' must be LOWER:UPPER"),
        (["tests.nowhere:f", "--also", "0:1"], "nowhere"),  # ends that are understood
    ],
)
def test_further_labels_that_do_not_fit_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, ["audit", "mechanism", *arguments], catch_exceptions=False)


def test_a_callable_that_refuses_far_labels_is_not_judged() -> None:
    subject = CallableSubject(
        "tests.labelveil.audit.twins.samplers:strict_response", np.array([0.0, 1.0]), 1.0
    )
    assert black_box_range_check(Trial(subject, SMALL)).verdict is Verdict.NOT_CHECKABLE


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "must be module:function"),
        ("no.such.module:f", "cannot be imported"),
        ("tests.labelveil.audit.twins.samplers:nobody", "has no callable"),
    ],
)
def test_a_callable_that_is_not_there_is_one_line(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = CallableSubject(target, np.array([0.0, 1.0]), 1.0).function


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 20.0])
def test_the_series_is_just_below(epsilon: float) -> None:
    value = exp_series(epsilon)
    assert 0 <= math.exp(epsilon) - float(value) <= 1e-12 * math.exp(epsilon)


@pytest.mark.parametrize("name", ["rr-on-bins", "two-point", "randomized-thresholds"])
def test_counted_weights_are_the_published_ones(name: str) -> None:
    randomizer = build_randomizer(name, labels=np.arange(7.0), prior=np.ones(7), epsilon=0.7)
    counted = count_weights(
        lambda i, words: randomizer.randomize_indices(i, PlantedEntropy(words)), 7, 1 << 14
    )
    assert counted.weights == randomizer.channel.weights
    assert worst_ratio(counted.weights, 0.7).holds
    assert not worst_ratio(counted.weights, 0.69).holds


ONCE = system_entropy()
DRAWN = count()


def made_once(labels: np.ndarray) -> np.ndarray:
    """Sixteen random bits a label, of noise that is made when this is loaded."""
    return ONCE.words(f"call {next(DRAWN)}", 0, labels.size) >> np.uint64(48)


def taken_along(labels: np.ndarray) -> np.ndarray:
    """The same, of a generator that does not mind a fork."""
    key = ONCE._key or b""
    words = Entropy(key, secure=False).words(f"call {next(DRAWN)}", 0, labels.size)
    return words >> np.uint64(48)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"), one_in(2, [("made_once", Verdict.PASS), ("taken_along", Verdict.FAIL)])
)
def test_a_subject_that_refuses_to_draw_after_a_fork_shares_nothing(
    name: str, verdict: Verdict
) -> None:
    subject = CallableSubject(f"{__name__}:{name}", np.array([0.0, 1.0]), 1.0)
    assert starts_check(Trial(subject, SMALL)).verdict is verdict
