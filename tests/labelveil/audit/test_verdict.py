"""Verdicts, and how probes are declared, chosen and run."""

from __future__ import annotations

import math
import re

import pytest

from labelveil.audit.settings import CanarySettings, Planting
from labelveil.audit.verdict import (
    FORMAT,
    Audit,
    Bounds,
    Check,
    Power,
    Probes,
    cpu_seconds,
    number,
    worst,
)
from labelveil.common.errors import ReleaseError
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN


def test_a_failure_is_worse_than_what_is_undecided_and_that_than_a_pass() -> None:
    assert worst([PASS, UNKNOWN, FAIL]) is FAIL
    assert worst([PASS, UNKNOWN, PASS]) is UNKNOWN
    assert worst([PASS, PASS]) is PASS
    assert worst([]) is UNKNOWN


def test_bounds_refute_a_claim_that_they_lie_above() -> None:
    at = Bounds(1.0, 1.25).check(claimed=1.0, tried="t")
    assert (at.verdict, at.bound, at.shown, at.claimed, at.confidence) == (
        PASS, 1.0, 1.25, 1.0, 1 - 1e-6,
    )  # fmt: skip
    assert at.found == (
        "The true ε is at least 1.000 with confidence 1 - 1e-06, which does not exceed the claimed"
        " 1; at 95% it is at least 1.250."
    )
    above = Bounds(1.0001, 1.25).check(claimed=1.0, tried="t")
    assert (above.verdict, "which exceeds the claimed 1;" in above.found) == (FAIL, True)


def test_power_is_said_in_one_sentence() -> None:
    powers = (Power("share", 0.1234), Power("start", math.inf))
    check = Check(PASS, "t", "f", confidence=0.9, power=powers)
    assert check.power_sentence == "Would have found with 95 %: share from 0.12 on; no start."
    assert check.to_json()["power_95"][1] == {"fault": "start", "least": "infinity"}
    assert Check(PASS, "t", "f").power_sentence == "Exact: no chance is in it."
    assert Check(PASS, "t", "f", confidence=0.9).power_sentence == ""
    assert Check(UNKNOWN, "t", "f").power_sentence == ""
    undecided = Check(UNKNOWN, "t", "f", bound=-math.inf).to_json()
    assert (undecided["measured_bound"], undecided["confidence"]) == ("undefined", 1.0)
    assert [number(value) for value in (math.inf, 0.123456, 12345.6)] == [
        "∞",
        "0.1235",
        "1.235e+04",
    ]
    assert number(0.123456, 2) == "0.12"


def test_probes_run_in_order_where_they_fit() -> None:
    probes = Probes[int](refused=FAIL)

    @probes.add("even", "Is it even?", "It is even.", not_looked_at="Halves.", decides=("a",))
    def even(subject: int) -> Check:
        return Check(PASS if subject % 2 == 0 else FAIL, "t", "f", not_looked_at="")

    @probes.add("small", "Is it small?", fits=lambda subject: subject < 10)
    def small(subject: int) -> Check:
        if subject == 3:
            raise ReleaseError("three")
        return Check(PASS, "t", "f", claim="It is.", not_looked_at="Others.")

    unseen = probes.not_checkable(
        "odd", "Is it odd?", "It is odd.", "Ask.", tried="Not.", decides=("b",)
    )
    assert [probe.name for probe in probes.fitting(4)] == ["even", "small", "odd"]
    assert [probe.name for probe in probes.fitting(12)] == ["even", "odd"]
    first, second, third = probes.checks(4)
    assert (first.name, first.question, first.claim, first.not_looked_at) == (
        "even", "Is it even?", "It is even.", "Halves.",
    )  # fmt: skip
    assert (second.claim, second.not_looked_at) == ("It is.", "Others.")
    assert (third.verdict, third.tried, third.found) == (UNKNOWN, "Not.", "Ask.")
    assert (even.decides, unseen.decides) == (("a",), ("b",))
    refused = small(3)
    assert (refused.verdict, refused.found) == (FAIL, "The subject refused: three")
    assert refused.claim == "The subject can be read and run for this check."
    part = Probes[str]()
    part.of_part([even], len, fits=lambda text: text != "no")
    assert part.checks("abc")[0].verdict is FAIL
    assert part.checks("ab")[0].verdict is PASS
    assert part.checks("no") == []
    assert part[0].not_looked_at == "Halves."
    seen: list[str] = []
    audit = Audit("k", "s", progress=seen.append)
    probes.audit(audit, 3)
    assert seen == ["even", "small", "odd"]
    assert (audit.count(FAIL), audit.count(UNKNOWN), audit.passed) == (2, 1, False)
    assert audit.seconds == sum(check.seconds for check in audit.checks) > 0


def test_an_audit_says_when_it_was_made_and_in_which_format() -> None:
    said = Audit("k", "s").to_json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", said["created"])
    assert (said["format"], said["kind"], said["verdict"]) == (FORMAT, "k", "pass")
    assert cpu_seconds(lambda: None) == pytest.approx(0.01)  # a tick of the clock


def test_canaries_have_names_and_labels_in_order() -> None:
    assert CanarySettings(labels=3).names == ["label", "label2", "label3"]
    planting = Planting(lower=0, upper=4, values=3, also=["a:5:6", "b:7:8"])
    assert planting.columns == [("label", 0, 4), ("a", 5, 6), ("b", 7, 8)]
    assert planting.labels[:5].tolist() == [[0, 5, 7], [0, 5, 8], [0, 6, 7], [0, 6, 8], [2, 5, 7]]
    assert len(planting.labels) == 12
