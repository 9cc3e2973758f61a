"""Adaptive overfitting: features selected on a holdout, reported accuracy against the truth.

Published: Dwork et al., NeurIPS 2015, Figure 2 (and *Science* 349, 2015, Figure 1). Labels are coin
flips. The analyst keeps the features whose agreement with the label has the same sign on training
set and holdout, takes the k that agree most in training, and lets them vote. Features are ±1 here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import scipy

from benchmarks.harness import markdown
from labelveil.common.arrays import Booleans, Floats
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.mechanisms.generalization import (
    expected_gap,
    fresh_gap,
    max_information_gap,
    transfer_gap,
)
from labelveil.common.mechanisms.thresholdout import ReusableHoldout, Thresholdout
from labelveil.common.report.figures import picture

Ask = Callable[[Floats, float], float]

RECORDS, FEATURES = 10_000, 1_000
SIZES = (10, 20, 50, 100, 200, 300, 400, 500)
MECHANISM = Thresholdout(epsilon=Fraction(4), most=40, threshold=Fraction(4, 100))
BETA = 0.05


@dataclass(frozen=True)
class Curve:
    """Accuracy of the voting classifiers of growing size."""

    sizes: tuple[int, ...]  # numbers of features
    training: tuple[float, ...]
    reported: tuple[float, ...]  # by the holdout
    fresh: tuple[float, ...]
    from_holdout: tuple[bool, ...]  # whether the report came from it
    used: int  # answers that came from it in all; 0 for the plain one


def sample(entropy: Entropy, name: str, records: int, features: int, good: int) -> Booleans:
    """(records, features) whether each feature agrees with the record's label.

    ``good`` features agree with probability ½ + 3/√n, the others with probability ½: for ±1
    features and labels agreement is all that an analyst of this kind looks at.
    """
    words = entropy.words(name, 0, records * features // 4 + 1)
    coins = (words.view(np.uint16)[: records * features] / 65536.0).reshape(records, features)
    bar = np.full(features, 0.5)
    bar[:good] += 3 / math.sqrt(records)
    return np.asarray(coins < bar)


def analyse(
    training: Booleans,
    holdout: Booleans,
    fresh: Booleans,
    mechanism: Thresholdout | None,
    seed: int,
) -> Curve:
    """Select on training set and holdout, which is a plain one without a mechanism."""
    private = None if mechanism is None else ReusableHoldout(mechanism, seeded_entropy(seed))
    kinds: list[bool] = []

    def ask(values: Floats, estimate: float) -> float:
        if private is None:
            kinds.append(True)
            return float(values.mean())
        answer = private.ask(values, estimate)
        kinds.append(answer.from_holdout)
        return answer.value

    means = training.mean(axis=0)
    answers = np.array([ask(holdout[:, j].astype(float), means[j]) for j in range(means.size)])
    signs = np.sign(means - 0.5)
    kept = np.flatnonzero((signs == np.sign(answers - 0.5)) & (signs != 0))
    kept = kept[np.argsort(-np.abs(means[kept] - 0.5), kind="stable")]
    rows: list[tuple[int, float, float, float, bool]] = []
    for size in (size for size in SIZES if size <= kept.size):
        chosen = kept[:size]
        right = [_right(data[:, chosen], signs[chosen]) for data in (training, holdout, fresh)]
        estimate = float(right[0].mean())
        reported = ask(right[1], estimate)
        rows.append((size, estimate, reported, float(right[2].mean()), kinds[-1]))
    sizes, own, reports, truth, sources = zip(*rows, strict=True)
    used = 0 if private is None else private.mechanism.most - private.left
    return Curve(sizes, own, reports, truth, sources, used)


def _right(agreement: Booleans, signs: Floats) -> Floats:
    """Share of each record's vote that is right: 1, 0, or ½ for a tie."""
    votes = np.where(agreement, 1, -1).astype(np.int32) @ signs.astype(np.int32)
    return np.asarray((np.sign(votes) + 1) / 2)


def experiment(records: int, features: int, good: int, seed: int) -> tuple[Curve, Curve]:
    """The same analyst with a plain and with a private holdout."""
    entropy = seeded_entropy(seed)
    parts = [
        sample(entropy, name, records, features, good) for name in ("training", "holdout", "fresh")
    ]
    plain = analyse(parts[0], parts[1], parts[2], None, seed)
    return plain, analyse(parts[0], parts[1], parts[2], MECHANISM, seed)


def sampling_error(records: int, questions: int) -> float:
    """How far a holdout's mean may be from the population's, but for probability β (Hoeffding)."""
    return math.sqrt(math.log(2 * questions / BETA) / (2 * records))


def plot(path: Path, seeds: Sequence[int] = (0, 1, 2, 3)) -> str:
    """Draw both holdouts without and with features that are any good; returns a table."""
    rows = []
    with picture(path, 9, 7) as figure:
        axes = figure.subplots(2, 2, sharex=True, sharey="row")
        for row, good in zip(axes, (0, 20), strict=True):
            curves = [experiment(RECORDS, FEATURES, good, seed) for seed in seeds]
            for axis, which, name in zip(row, (0, 1), ("plain", "Thresholdout"), strict=True):
                group = [curve[which] for curve in curves]
                shared = min(len(curve.sizes) for curve in group)
                sizes, last = group[0].sizes[:shared], []
                for label in ("training", "reported", "fresh"):
                    values = np.array([getattr(curve, label)[:shared] for curve in group])
                    mean, deviation = values.mean(axis=0), values.std(axis=0)
                    axis.plot(sizes, mean, marker="o", ms=3, label=label)
                    axis.fill_between(sizes, mean - deviation, mean + deviation, alpha=0.2)
                    last.append(f"{mean[-1]:.3f}")
                axis.set_title(f"{name}, {good} good features of {FEATURES:,}")
                used = float(np.mean([curve.used for curve in group]))
                rows.append([str(good), name, str(sizes[-1]), *last, f"{used:g}"])
            row[0].set_ylabel("accuracy")
        axes[0, 0].legend()
        for axis in axes[1]:
            axis.set_xlabel("features in the vote")
    head = "good features", "holdout", "k", "training", "reported", "fresh", "answers used"
    return markdown(head, rows)


def bounds_table(trials: int = 1000, features: int = 500, beta: float = 0.05) -> str:
    """Gap of the fair coin that an ε-DP choice finds best, beside what theory says it may be.

    The exponential mechanism picks one of many features that are coin flips, by how often it is 1;
    the transfer theorem's answers are its mean with Laplace noise of the same ε.
    """
    head = ("n", "ε", "mean gap", "expected gap's bound", "gap passed by 5%",
            "max-information's bound", "the same for δ = 1e-9", "a question fixed before",
            "answer's error passed by 5%",
            "transfer theorem's bound")  # fmt: skip
    rows = []
    for records in (1_024, 16_384, 262_144):
        for epsilon in (0.01, 0.05, 0.2):
            gaps, errors = _choices(records, epsilon, features, trials)
            alpha = math.log(1000 / beta) / (epsilon * records)  # missed with probability β/1000
            shown = (
                gaps.mean(), expected_gap(epsilon),
                np.quantile(np.abs(gaps), 1 - beta), max_information_gap(epsilon, records, beta),
                max_information_gap(epsilon, records, beta, 1e-9),
                fresh_gap(records, beta),
                np.quantile(errors, 1 - beta),
                transfer_gap(2 * epsilon, 0.0, beta, alpha, beta / 1000),
            )  # fmt: skip
            cells = ["–" if value >= 1 else f"{value:.4f}" for value in shown]
            rows.append([f"{records:,}", f"{epsilon:g}", *cells])
    return markdown(head, rows)


def _choices(records: int, epsilon: float, features: int, trials: int) -> tuple[Floats, Floats]:
    """Gaps of chosen features, and how far their noisy means are from a half."""
    entropy = seeded_entropy(records)
    uniforms = (entropy.words("coins", 0, trials * (2 * features + 1)) >> np.uint64(11)) + 0.5
    uniforms = uniforms / 2.0**53
    coins, noise, rest = np.split(uniforms, [trials * features, 2 * trials * features])
    law = scipy.stats.binom(records, 0.5).cdf(np.arange(records))
    heads = np.searchsorted(law, coins).reshape(trials, features)
    gumbel = -np.log(-np.log(noise)).reshape(trials, features)
    chosen = heads[np.arange(trials), np.argmax(epsilon / 2 * heads + gumbel, axis=1)]
    answers = (chosen + scipy.stats.laplace(scale=1 / epsilon).ppf(rest)) / records
    return np.asarray(chosen / records - 0.5), np.abs(answers - 0.5)
