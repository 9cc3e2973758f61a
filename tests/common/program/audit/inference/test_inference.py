"""Label inference: caps, exact distributions of canaries, and an attack that has power."""

from __future__ import annotations

import math

import numpy as np
import pytest

from common.entropy import Words, seeded_entropy
from common.exact.channel import FiniteChannel, randomized_response_rows
from common.program.audit.attacks.canaries import find_canaries
from common.program.audit.attacks.message_attack import (
    additive_cap,
    leakage,
    message_checks,
    worst_pair_advantage,
)
from common.program.audit.attacks.model_attack import attack_control, attack_predictions
from common.program.audit.attacks.one_run import score
from common.program.audit.verdict import Verdict
from common.randomizers import build_randomizer
from tests.statistics import binomial_range, counts_fit

EVENTS = 20_000
GRID = np.arange(5.0)


def response(outputs: int, epsilon: float) -> FiniteChannel:
    grid = np.arange(float(outputs))
    return FiniteChannel(grid, grid, randomized_response_rows(outputs, epsilon))


def test_the_cap_is_attained() -> None:
    epsilon = 2 * math.log(7)  # 1 + e^(ε/2) = 8 labels
    found = leakage(response(8, epsilon).probabilities, np.full(8, 1 / 8))
    assert found.additive == pytest.approx(additive_cap(epsilon), abs=1e-12)


@pytest.mark.parametrize("outputs", [2, 3, 5, 20])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_nothing_passes_its_cap(outputs: int, epsilon: float) -> None:
    channel = response(outputs, epsilon).probabilities
    words = seeded_entropy(outputs).words("priors", 0, 40 * outputs).astype(float)
    for prior in words.reshape(40, outputs) ** 3:
        found = leakage(channel, prior / prior.sum())
        assert -1e-12 <= found.additive <= additive_cap(epsilon) + 1e-12
        assert found.multiplicative <= math.exp(epsilon)
        assert found.percentile <= found.largest <= epsilon + 1e-9
    assert worst_pair_advantage(channel)[0] <= math.tanh(epsilon / 2) / 2 + 1e-12


def test_a_channel_that_claims_too_little_fails() -> None:
    channel, prior = response(2, 2.0).probabilities, np.array([0.5, 0.5])
    assert {c.verdict for c in message_checks(channel, prior, 2.0)} == {Verdict.PASS}
    verdicts = [c.verdict for c in message_checks(channel, prior, 1.0)]
    assert verdicts == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]


def uniform(words: Words) -> np.ndarray:
    return (words >> np.uint64(11)).astype(float) * 2.0**-53


@pytest.fixture
def run() -> tuple[FiniteChannel, np.ndarray, np.ndarray, np.ndarray]:
    """Channel, features, labels that depend on them, and randomized labels."""
    entropy = seeded_entropy(1)
    features = uniform(entropy.words("features", 0, 3 * EVENTS)).reshape(EVENTS, 3)
    labels = np.clip(np.rint(4 * features[:, 0] ** 2), 0, 4)
    prior = np.bincount(labels.astype(int), minlength=5) / EVENTS
    randomizer = build_randomizer(
        "randomized-thresholds", labels=GRID, prior=prior, epsilon=1.0, rows=EVENTS
    )
    codes = randomizer.randomize(labels, entropy).astype(np.int64)
    return randomizer.channel, (features - 0.5) * math.sqrt(12), labels, codes


def test_found_canaries_have_the_law_of_planted_ones(
    run: tuple[FiniteChannel, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    channel, _, labels, codes = run
    rows = channel.probabilities
    found = find_canaries(rows, GRID, labels, codes, 0, 4)
    sent = codes[found.rows]
    for secret, law in ((0, rows[0]), (1, rows[4])):
        counts = np.bincount(sent[found.secrets == secret], minlength=law.size)
        assert counts_fit(counts, law)
        assert not counts_fit(counts, rows[2])
    # true labels say nothing about the secret that was found
    for label in GRID:
        chosen = found.secrets[labels[found.rows] == label]
        low, high = binomial_range(chosen.size, 0.5)
        assert low <= chosen.sum() <= high


def test_a_smooth_model_is_silent_and_the_control_is_not(
    run: tuple[FiniteChannel, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    channel, features, labels, codes = run
    canaries = find_canaries(channel.probabilities, GRID, labels, codes, 0, 4)
    columns = np.concatenate([np.ones((EVENTS, 1)), features], axis=1)
    weights = np.linalg.lstsq(columns, channel.outputs[codes], rcond=None)[0]
    ridge = attack_predictions(columns @ weights, features, canaries)
    assert ridge.result.bound <= 1
    assert ridge.result.shown < 0.1
    control = attack_control(channel.probabilities, codes, features, canaries, 1.0)
    assert control.result.bound <= 1
    assert control.result.shown >= 0.9


def test_a_memorising_model_is_seen(
    run: tuple[FiniteChannel, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    channel, features, labels, codes = run
    canaries = find_canaries(channel.probabilities, GRID, labels, codes, 0, 4)
    memory = labels + 0.3 * channel.outputs[codes]
    found = attack_predictions(memory, features, canaries)
    assert found.result.shown > 0.3
    assert found.result.bound <= 1


def test_a_model_that_saw_planted_labels_is_caught() -> None:
    entropy = seeded_entropy(2)
    secrets = (entropy.words("secrets", 0, 5000) >> np.uint64(63)).astype(np.int64)
    assert score(secrets, secrets).bound > 4
