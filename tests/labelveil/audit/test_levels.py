"""Levels, limits and counts that verdicts rest on, computed here a second time."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.audit.attacks.exact_channel import exp_series, worst_ratio
from labelveil.audit.attacks.one_run import OneRun, one_run
from labelveil.audit.certificate.manifest_checks import channel_check, prior_scale_check
from labelveil.audit.mechanism.exact import tapes_check
from labelveil.audit.verdict import GATE, SHOWN, Verdict
from labelveil.common.entropy import Entropy
from tests.common.release.releases import make_release
from tests.labelveil.audit.conftest import evidence_of


@pytest.mark.parametrize("epsilon", ["0", "1", "7.9", "8", "8.1", "20", "40", "64"])
def test_the_limit_of_a_ratio_lies_just_below_its_exponential(epsilon: str) -> None:
    with localcontext() as context:
        context.prec = 80
        exact = Fraction(Decimal(epsilon).exp())
    limit = exp_series(Fraction(epsilon))
    rounding = Fraction(1, 10**70)
    assert exact * (1 - Fraction(1, 10**20)) <= limit <= exact * (1 + rounding)
    low = 10**30
    for high, holds in ((math.floor(low * limit), True), (math.ceil(low * limit) + 1, False)):
        rest = 10**80
        rows = [[low, rest - low], [high, rest - high]]
        assert worst_ratio(rows, Fraction(epsilon)).holds == holds


@pytest.mark.parametrize("tests", [1, 2, 20])
@pytest.mark.parametrize(("correct", "guesses"), [(60, 60), (900, 1000), (5600, 10_000)])
def test_a_bound_is_passed_at_the_level_that_tests_share(
    correct: int, guesses: int, tests: int
) -> None:
    """At the bound, so many right guesses have the level's probability (Steinke et al., 2023)."""
    found = OneRun.from_guesses(correct, guesses, tests)
    for bound, level in ((found.bound, GATE), (found.shown, SHOWN)):
        chance = stats.binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-bound)))
        assert chance == pytest.approx(level / tests, rel=0.01)
    more = found.excess(1.0) - OneRun.from_guesses(correct, guesses).excess(1.0)
    assert more > 0 if tests == 20 else more >= 0


@pytest.mark.parametrize("parts", [0, 1, 4])
def test_parts_of_a_run_share_its_level(parts: int) -> None:
    """All levels together are the whole one, and no record is counted in two parts."""
    secrets = np.random.default_rng(0).integers(0, 2, 4000)
    runs = one_run(secrets.copy(), secrets, parts)
    assert len(runs) == 1 + parts
    assert sum(Fraction(1, run.tests) for run in runs) == 1
    assert sum(run.guesses for run in runs[1:]) in (0, runs[0].guesses)
    assert all(run.correct == run.guesses for run in runs)


def test_a_part_that_takes_words_twice_is_caught() -> None:
    def once(entropy: Entropy) -> Any:
        return entropy.words("labels", 0, 500)

    def again(entropy: Entropy) -> Any:
        return entropy.words("prior", 0, 500), entropy.words("prior", 499, 100)

    def other(entropy: Entropy) -> Any:
        return entropy.words("prior", 0, 500)

    key = bytes(32)
    assert tapes_check({"labels": once, "prior": other}, key).verdict is Verdict.PASS
    alone = tapes_check({"labels": once, "prior": again}, key)
    assert alone.verdict is Verdict.FAIL
    assert alone.details["shared"]["prior with themselves"] == 1
    assert tapes_check({"prior": other, "also": other}, key).verdict is Verdict.FAIL


@pytest.mark.parametrize("group", [1, 3])
def test_claims_about_a_unit_pay_for_all_of_its_records(group: int) -> None:
    """Guarantees that are right for one record hold for no unit that has three."""
    manifest, _, _ = make_release(200)
    privacy = manifest.privacy.model_copy(update={"records_per_unit": group})
    users = manifest.model_copy(update={"privacy": privacy})
    wanted = Verdict.PASS if group == 1 else Verdict.FAIL
    assert channel_check(evidence_of(users)).verdict is wanted
    assert prior_scale_check(evidence_of(users)).verdict is wanted
    tripled = Fraction(users.prior.guarantee["epsilon"]) * group
    prior = users.prior.model_copy(
        update={"guarantee": {**users.prior.guarantee, "epsilon": str(tripled)}}
    )
    paid = users.model_copy(update={"priors": [prior]})
    assert prior_scale_check(evidence_of(paid)).verdict is Verdict.PASS
