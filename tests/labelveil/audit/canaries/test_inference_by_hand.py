"""What messages and models give away of labels, of numbers that are made up."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.canaries.inference import (
    LabelsCounted,
    Leakage,
    additive_check,
    leakage,
    log_odds_change,
    multiplicative_check,
    numeric_features,
)
from labelveil.audit.canaries.model import (
    SecretBits,
    _curve,
    attack_control,
    attack_predictions,
    smooth_fit,
)
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebook
from tests.labelveil.audit.checks import FAIL, PASS

RNG = np.random.default_rng


def test_advantages_are_sums_over_outputs() -> None:
    """Of two parts by enumerating all pairs of labels and outputs."""
    rng = RNG(5)
    parts = []
    for labels, outputs in ((3, 2), (2, 4)):
        channel = rng.dirichlet(np.ones(outputs) * 3, labels)
        parts.append(LabelsCounted(channel, rng.dirichlet(np.ones(labels))))
    joint = [part.prior[:, None] * part.channel for part in parts]
    best = sum(max(a[y] * b[x] for y in range(3) for x in range(2))
               for a in joint[0].T for b in joint[1].T)  # fmt: skip
    known = parts[0].prior.max() * parts[1].prior.max()
    found = leakage(parts)
    assert found.additive == pytest.approx(best - known)
    assert found.multiplicative == pytest.approx(best / known)
    changes = []
    for part, mass in zip(parts, joint, strict=True):
        each = np.empty(mass.shape)
        for y, z in itertools.product(*map(range, mass.shape)):
            posterior = mass[y, z] / mass[:, z].sum()
            odds = posterior / (1 - posterior) / (part.prior[y] / (1 - part.prior[y]))
            each[y, z] = math.log(odds)
        assert log_odds_change(part.channel, part.prior) == pytest.approx(each)
        ratio = max(
            math.log(part.channel[y, z] / part.channel[x, z])
            for z in range(mass.shape[1])
            for y, x in itertools.permutations(range(mass.shape[0]), 2)
        )
        assert part.ratio == pytest.approx(ratio)
        changes.append((each.ravel(), mass.ravel()))
    rises = sum(each.max() for each, _ in changes)
    falls = -sum(each.min() for each, _ in changes)
    assert found.largest == pytest.approx(max(rises, falls))
    (one, p), (two, q) = changes
    sizes = np.abs(np.add.outer(one, two)).ravel()
    weights = np.outer(p, q).ravel()
    order = np.argsort(sizes)
    at = order[np.searchsorted(np.cumsum(weights[order]), 0.98)]
    assert found.percentile == pytest.approx(sizes[at], abs=0.02)
    certain = leakage([LabelsCounted(parts[0].channel, np.array([0.0, 1.0, 0.0]))])
    assert (certain.additive, certain.largest) == (pytest.approx(0.0), 0.0)


def test_each_advantage_has_its_bound() -> None:
    """Under the released prior, a uniform one, and of two that are as likely: one at a time."""
    epsilon, small = 1.0, Leakage(0.0, 1.0, 0.0, 0.0)
    group = Group((0,), Cells((Grid.from_edges([0, 1]),)))

    def message(sent: float, **changed: Leakage) -> Any:
        channel = FiniteChannel([0, 1], [0, 1], randomized_response_rows(2, sent))
        codebook = Codebook(("y",), (group,), (channel,))
        facts = {"released": small, "uniform": small, **changed}
        return SimpleNamespace(codebook=codebook, epsilon=epsilon, **facts)

    assert additive_check(message(1.0)).verdict is PASS
    assert additive_check(message(1.1)).verdict is FAIL  # tanh(ε/2)/2 of two
    assert multiplicative_check(message(1.0)).verdict is PASS
    for law in ("released", "uniform"):
        more = {law: Leakage(math.tanh(epsilon / 4) + 1e-6, math.e + 1e-6, 0.0, 0.0)}
        assert additive_check(message(0.5, **more)).verdict is FAIL
        assert multiplicative_check(message(0.5, **more)).verdict is FAIL


def test_a_curve_has_the_surest_guesses_first() -> None:
    right = np.array([True] * 300 + [False] * 100)
    found = _curve(right)
    assert (found["share"][0], found["share"][-1]) == (0.5, 1.0)
    assert (found["right"][0], found["right"][-1]) == (1.0, 0.75)
    assert len(found["share"]) <= 60
    assert _curve(np.array([True, False]))["right"] == [0.5]
    assert _curve(np.array([], dtype=np.bool_)) == {"share": [], "right": []}


@pytest.mark.slow
def test_a_smooth_fit_has_no_memory_of_events() -> None:
    rng = RNG(6)
    x = np.tile(rng.normal(size=(1000, 2)), (17, 1))  # in two blocks
    smooth = np.sin(x[:, 0]) + 0.5 * x[:, 1]
    fitted = smooth_fit(x, smooth)
    assert np.mean((fitted - smooth) ** 2) < 0.01 * smooth.var()
    noise = rng.normal(size=1000)
    assert smooth_fit(x[:1000], noise).var() < 0.4
    assert fitted[:1000] == pytest.approx(fitted[-1000:])


def secret_bits(rows: int = 4000) -> SecretBits:
    laws = np.array([[0.75, 0.25], [0.25, 0.75]])
    return SecretBits(np.arange(rows), draw_secrets(rows), laws, planted=True)


def test_a_model_that_remembers_gives_its_labels_away() -> None:
    canaries = secret_bits()
    sign = 2.0 * canaries.secrets - 1
    features = RNG(7).normal(size=(4000, 2))
    smooth = 3 * np.sin(features[:, 0])
    told = attack_predictions({"y": 0.1 * sign + smooth}, features, canaries)
    assert told.view == "y less a smooth fit"
    assert told.result.guesses <= 3200
    assert told.result.correct / told.result.guesses > 0.9
    assert told.curve["right"][0] > 0.95
    noise = RNG(8).normal(size=4000)
    turned = attack_predictions({"y": 0.01 * noise - sign}, None, canaries)
    assert turned.curve["right"][0] > 0.97
    assert turned.view == "y"
    assert turned.result.correct > 0.97 * turned.result.guesses
    both = attack_predictions({"a": sign + 9 * noise, "b": 9 * noise}, None, canaries)
    assert both.view == "all labels"
    nothing = attack_predictions({"y": noise}, None, canaries)
    assert nothing.result.bound == 0


def test_a_control_remembers_each_events_own_code() -> None:
    canaries = secret_bits()
    kept = RNG(9).random(4000) < 0.75
    sent = np.where(kept, canaries.secrets, 1 - canaries.secrets)
    found = attack_control(sent, np.zeros((4000, 1)), canaries, math.log(3))
    assert (found.result.guesses, found.result.correct) == (4000, int(kept.sum()))
    assert attack_control(sent, None, canaries, math.log(3)).result.correct == int(kept.sum())
    # of three outputs the surest alone are guessed, and one that tells nothing is not
    for low, high in ((0.1, 0.6), (0.25, 0.45)):
        laws = np.array([[high, 0.3, low], [low, 0.3, high]])
        three = SecretBits(np.arange(6), np.array([0, 1, 0, 1, 1, 0]), laws, planted=True)
        found = attack_control(np.array([0, 2, 1, 1, 0, 0]), None, three, 5.0)
        assert (found.result.guesses, found.result.correct) == (4, 3)


def test_features_are_standardised_and_categories_counted() -> None:
    table = pl.DataFrame({
        "x": [1.0, 3.0, None, float("nan")], "b": [True, False, True, True],
        "c": ["u", "v", "u", None], "k": [5, 5, 5, 5],
    })  # fmt: skip
    found = numeric_features(table)
    assert found.shape == (4, 1 + 1 + 2 + 1)  # what is missing is no category
    assert sorted(np.sign(found[:, 2:4]).sum(axis=1)) == [-2.0, 0.0, 0.0, 0.0]
    x = np.array([1.0, 3.0, 2.0, 2.0])
    assert found[:, 0] == pytest.approx((x - 2) / x.std())
    assert found[:, -1].tolist() == [0.0] * 4
    assert found.mean(axis=0) == pytest.approx(0, abs=1e-12)
    many = pl.DataFrame({"c": [f"v{at % 30:02}" for at in range(300)]})
    assert numeric_features(many).shape == (300, 20)
