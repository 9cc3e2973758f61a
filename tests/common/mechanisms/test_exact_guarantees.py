"""Every mechanism against its guarantee: exact laws of its own code, in both directions.

A class that states a guarantee, or what a target is, has a case here, or a test elsewhere that is
named with the reason; a new one without either fails.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from fractions import Fraction
from typing import Any

import pytest

from labelveil.common import mechanisms
from labelveil.common.randomizers import build_randomizer, randomizer_names
from tests.common.mechanisms import enumerated
from tests.common.mechanisms.enumerated import Case
from tests.common.mechanisms.enumeration import LEAST, Law, broken, law, replace_samplers
from tests.effort import one_in
from tests.imports import ROOT

ELSEWHERE = {
    "Call": "a protocol",
    "Batch": "a protocol",
    "Budget": "abstract",
    "DistinctCountTest": "no noise to enumerate: its sketch's law is that of coins of 2**-32, see"
    " test_a_distinct_count_sketch_is_private_without_noise",
    "Perturbation": "real vectors: see test_output_noise_is_radial_with_the_stated_scale,"
    " test_objective_noise_can_be_read_from_the_minimiser,"
    " test_every_record_is_private_before_anybody_sees_it",
    "LabelRidge": "real vectors: see test_radial_noise_has_its_law,"
    " test_the_noise_is_for_the_farthest_two_labels_of_any_row",
    "LabelProcess": "see test_the_farthest_neighbours_are_within_epsilon_and_delta",
    "PrivateSums": "an answer, with the guarantee of the NoisySums that gave it",
    "SelectMeasureProject": "its rounds are what budgets' cases select and measure, and"
    " test_everything_spent_is_the_total adds them up",
}
"""Classes without a law of their own, and why."""


WITHOUT_DRAW = {
    "Terms", "Session", "MixedSession", "IndividualSparseVector",
    "FollowTheLeader", "PrivateHedge", "PrivateSums",
    "Budget", "PureBudget", "ConcentratedBudget", "GradientSteps",
}  # fmt: skip
"""What is asked again and again, or noise for somebody else's draw."""


def _states_a_guarantee(value: Any) -> bool:
    return inspect.isclass(value) and any(
        name in vars(base)
        for base in value.__mro__
        for name in ("guarantee", "target", "terms")
        if not name.startswith("_")
    )


def test_every_mechanism_has_a_case() -> None:
    stated = {
        name: value
        for found in pkgutil.walk_packages(mechanisms.__path__, f"{mechanisms.__name__}.")
        for name, value in vars(importlib.import_module(found.name)).items()
        if _states_a_guarantee(value)
        and value.__module__ == found.name
        and not name.startswith("_")
    }
    covered = {case.of.__name__ for case in enumerated.cases() if not case.long}
    assert stated.keys() - covered == set(ELSEWHERE)
    assert {name for name, value in stated.items() if not hasattr(value, "draw")} == WITHOUT_DRAW
    modules = (ROOT / "tests/common/mechanisms").rglob("test_*.py")
    tests = "".join(module.read_text() for module in modules)
    named = re.findall(r"\btest_\w+", " ".join(ELSEWHERE.values()))
    assert [name for name in named if f"def {name}(" not in tests] == []


def _laws(case: Case, least: float) -> dict[Any, Law]:
    data = dict.fromkeys(side for pair in case.pairs for side in pair)
    return {side: law(lambda entropy, side=side: case.draw(side, entropy), least) for side in data}  # type: ignore[misc]


def _broken(case: Case, least: float) -> str | None:
    laws = _laws(case, least)
    for one, other in case.pairs:
        pair = laws[one], laws[other]
        found = _misses(case, *pair) if case.guarantee is None else broken(case.guarantee, *pair)
        if found:
            return f"{one} and {other}: {found}"
    return None


def _misses(case: Case, one: Law, other: Law) -> str | None:
    """Why a call's target is not what it says: too far apart, or hit too rarely."""
    target, lost = case.target, one.lost + other.lost
    assert target is not None
    grow = math.exp(float(target.epsilon))
    own = [0.0, 0.0]
    hit = [0.0, 0.0]
    for outcome in {*one.masses, *other.masses}:
        both = one.masses.get(outcome, 0.0), other.masses.get(outcome, 0.0)
        low, high = min(both), max(both)
        if high > grow * (low + lost):
            return f"a ratio of {high / (low + lost):.4f} above e^{float(target.epsilon):.4f}"
        for side, mass in enumerate(both):
            if case.hits(outcome):
                hit[side] += mass
                own[side] += mass
            else:  # what of it cannot be common to both
                spread = (high - low) * (1 if mass == low else grow) - grow * lost
                own[side] += max(spread, 0.0) / (grow - 1)
    reached = (min(hit) + lost) / max(own)
    return None if reached >= float(target.probability) - 1e-9 else f"q of {reached:.4f} only"


CASES = [
    pytest.param(case, id=case.of.__name__, marks=[pytest.mark.slow] * case.long)
    for case in enumerated.cases()
]


@pytest.mark.parametrize("least", one_in(2, [10 * LEAST, LEAST]))
@pytest.mark.parametrize("case", CASES)
def test_what_is_guaranteed_holds_in_both_directions(
    case: Case, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    enumerated.coarse(monkeypatch)
    replace_samplers(monkeypatch)
    assert _broken(case, least) is None


@pytest.mark.parametrize("case", CASES)
def test_too_little_noise_is_found_out(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    enumerated.coarse(monkeypatch)
    replace_samplers(monkeypatch, thinner=case.thinner)
    # what few likely choices show broken is broken: what they leave out is granted
    assert any(_broken(case, least) is not None for least in (1e-3, LEAST))


@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(2)])
@pytest.mark.parametrize("name", randomizer_names())
def test_every_randomizers_rows_keep_its_guarantee(name: str, epsilon: Fraction) -> None:
    """In integers: no ratio of two rows in a column passes e^ε, and one comes near it."""
    built = build_randomizer(name, labels=[0, 1, 2, 3], prior=[4, 3, 2, 1], epsilon=epsilon)
    weights = built.channel.weights
    ratios = [
        Fraction(one[z], other[z])
        for one in weights
        for other in weights
        for z in range(len(one))
        if one[z] or other[z]
    ]
    claimed = built.guarantee.exact_epsilon
    assert math.log(max(ratios)) <= float(claimed) + 1e-15
    assert claimed <= epsilon
    assert math.log(max(ratios)) > 0.99 * float(claimed)
