"""Sums over groups under the audit of any mechanism: the right ones pass, broken ones do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labelveil.audit.mechanism.black_box import (
    black_box_range_check,
    every_label_check,
    repeats_check,
)
from labelveil.audit.mechanism.run import audit_mechanism
from labelveil.audit.mechanism.subject import CallableSubject
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.verdict import Verdict
from tests.labelveil.audit.twins.library import SMALL

pytestmark = pytest.mark.statistical


def trial(name: str) -> Trial:
    target = f"tests.labelveil.audit.twins.sums:{name}"
    return Trial(CallableSubject(target, np.array([0.0, 1.0]), 1.0), replace(SMALL, runs=100_000))


@pytest.mark.parametrize(
    ("probe", "twin"),
    [
        (every_label_check, "half_the_scale"),
        (every_label_check, "even_noise"),
        (repeats_check, "shared_noise"),
        (black_box_range_check, "not_clipped"),
    ],
)
def test_a_broken_sum_is_caught(probe: object, twin: str) -> None:
    found = [probe(trial(name)).verdict for name in ("right", twin)]  # type: ignore[operator]
    assert found == [Verdict.PASS, Verdict.FAIL]


@pytest.mark.slow
def test_sums_pass_every_probe_of_a_mechanism() -> None:
    audit = audit_mechanism(Trial(trial("right").subject, SMALL))
    assert [check.name for check in audit.checks if check.verdict is Verdict.FAIL] == []
