"""Exact audits: ε of samplers counted word by word, of both steps enumerated, of noise replayed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.audit.attacks.exact_channel import PlantedEntropy, count_weights, worst_ratio
from labelveil.audit.attacks.one_run import draw_secrets, one_run
from labelveil.audit.attacks.replay import (
    function_check,
    noise_scale_check,
    replay,
    sensitivity_check,
    support_check,
)
from labelveil.audit.mechanism.exact import joint_audit
from labelveil.audit.verdict import Verdict
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import NoisyPrior, build_randomizer
from tests.effort import one_in
from tests.labelveil.audit.twins import samplers as twins

LABELS = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 2.0])

pytestmark = pytest.mark.statistical


def one_run_of(rows: twins.Rows, records: int) -> float:
    """Bound at the gate from one run of two labels' secrets."""
    secrets = draw_secrets(records)
    outputs = twins.mechanism(twins.word_sampler(rows))(secrets.astype(float))
    return one_run(outputs, secrets)[0].bound


def exact(rows: twins.Rows, claim: float) -> tuple[float, bool]:
    """ε counted from the sampler, and whether the claim holds."""
    counted = count_weights(twins.word_sampler(rows), len(rows))
    found = worst_ratio(counted.weights, claim)
    return found.epsilon, found.holds


@pytest.mark.parametrize(
    ("rows", "claim", "epsilon"),
    one_in(
        3,
        [
            (randomized_response_rows(2, 2.0), 1.0, 2.0),
            (twins.own_bin(2), 1.0, 1.862),
            (twins.own_bin(8), 1.0, 1.413),
            (twins.rounded_up(1.0, 0.01), 1.0, 1.046),
            (twins.rounded_up(4.0, 2**-8), 4.0, 4.143),
            (twins.rounded_up(4.0, 2**-16), 4.0, 4.00064),
            (twins.raw_leak(), 1.0, math.inf),
        ],
    ),
)
def test_exact(rows: twins.Rows, claim: float, epsilon: float) -> None:
    found, holds = exact(rows, claim)
    assert found == pytest.approx(epsilon, abs=1e-3 if epsilon < 4.001 else 1e-2)
    assert not holds


@pytest.mark.slow
def test_exact_sees_scattered_words() -> None:
    counted = count_weights(twins.low_bits_leak, 2, 1 << 23)
    assert not worst_ratio(counted.weights, 1.0).holds


def test_exact_counts_every_word_of_runs_between_two_tries() -> None:
    """Three outputs within one bracket of tries, each of a known number of words."""
    ends = np.array([5, 12, 1 << 63, (1 << 63) + 3], dtype=np.uint64) + np.uint64(1 << 40)
    counted = count_weights(
        lambda labels, words: np.searchsorted(ends, words, side="right"), labels=1, probes=1 << 8
    )
    bounds = [0, *map(int, ends), 1 << 64]
    assert counted.weights == (tuple(np.diff(np.array(bounds, dtype=object)).tolist()),)


def test_planted_words_are_those_of_the_labels_alone() -> None:
    planted = np.arange(5, dtype=np.uint64)
    entropy = PlantedEntropy(planted)
    assert entropy.words("labels", 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert entropy.words("labels", 2, 2).tolist() == [2, 3]
    for start in (0, 2):
        other = entropy.words("rounding", start, 2)
        assert other.tolist() == PlantedEntropy(planted).words("rounding", start, 2).tolist()
        assert other.max() > 1000


@pytest.mark.parametrize(
    ("rows", "claim"), [(twins.rounded_up(4.0, 2**-16), 4.0), (twins.raw_leak(), 1.0)]
)
def test_only_the_exact_check_sees_the_smallest_leaks(rows: twins.Rows, claim: float) -> None:
    assert one_run_of(rows, 100_000) <= claim


def test_half_the_histogram_noise() -> None:
    half = Fraction(2)
    honest = replay(twins.releaser(drawn_epsilon=half, stated_scale=2 / half), LABELS, 0, 1.0, 60)
    assert sensitivity_check(honest).verdict is Verdict.FAIL
    assert sensitivity_check(honest).bound == 2  # twice what is claimed
    lying = replay(twins.releaser(drawn_epsilon=half), LABELS, 0, 1.0, 100)
    assert sensitivity_check(lying).verdict is Verdict.PASS
    assert noise_scale_check(lying).verdict is Verdict.FAIL


@pytest.mark.slow
def test_right_replays_pass() -> None:
    found = replay(twins.releaser(), LABELS, 0, 1.0, 400)
    checks = (sensitivity_check, noise_scale_check, function_check, support_check)
    assert [check(found).verdict for check in checks] == [Verdict.PASS] * 4


def built(prior: np.ndarray) -> FiniteChannel:
    return build_randomizer("rr-on-bins", labels=[0.0, 1.0, 2.0], prior=prior, epsilon=0.5).channel


class _Rule:
    """From noisy (or raw) counts to the channel, each built once."""

    def __init__(self, raw: bool) -> None:
        self._raw, self._built = raw, dict[tuple[int, ...], FiniteChannel]()

    def __call__(self, noisy: tuple[int, ...], counts: tuple[int, ...]) -> FiniteChannel:
        key = counts if self._raw else noisy
        if key not in self._built:
            prior = np.array(counts) / 4
            if not self._raw:
                prior = NoisyPrior(np.array(noisy), Fraction(1, 2), 4).probabilities
            self._built[key] = built(prior)
        return self._built[key]


@pytest.mark.slow
def test_the_exact_joint_audit() -> None:
    right, half = _Rule(raw=False), Fraction(1, 2)
    sizes = {"labels": 3, "rows": 4, "margin": 2}
    assert joint_audit(right, 2 / half, **sizes).epsilon == pytest.approx(1.0, abs=1e-9)
    assert joint_audit(right, 1 / half, **sizes).epsilon == pytest.approx(1.5, abs=1e-9)
    assert joint_audit(_Rule(raw=True), 2 / half, **sizes).epsilon == math.inf
