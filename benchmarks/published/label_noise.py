"""Regression with Label DP without a model: Figure 2 and Theorem 7, from exact channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from benchmarks.harness import markdown
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import LabelveilError
from labelveil.common.randomizers import LabelTerms, build_randomizer, losses_by_bins, private_prior
from labelveil.common.report.figures import logarithmic, picture
from labelveil.comparison.published_labels import CONTINUOUS_NOISE, integers, randomize_as_published
from tests.data_sets import DataSet

SHOWN = {
    "Laplace": ("laplace", {"clip": True}),
    "staircase": ("staircase", {"clip": True}),
    "exponential": ("exponential", {}),
    "RR-on-bins": ("rr-on-bins", {}),
}
"""What Figure 2 shows: titles, randomizers and their options."""

FIGURE_EPSILON = 3.0
SIZES = tuple(int(10**power) for power in np.arange(3, 8.01, 0.5))
_REPEATS = 10


def histogram(data_set: DataSet) -> tuple[Floats, Floats]:
    """(k,) the integers within a data set's bounds, and the shares of labels rounded down."""
    grid = integers(data_set.lower, data_set.upper)
    labels = data_set.load()[data_set.label].to_numpy().astype(np.float64)
    whole = np.floor(np.clip(labels, grid.lower, grid.upper)) - grid.lower
    counts = np.bincount(whole.astype(np.int64), minlength=len(grid))
    return grid.points, counts / counts.sum()


def densities(data_set: DataSet, path: Path) -> dict[str, tuple[float, int]]:
    """Draw Figure 2: where labels and their randomized values lie together, at ε = 3.

    Returns by title the randomized label's mean squared error, and the number of outputs.
    """
    labels, prior = histogram(data_set)
    errors, cells = {}, np.linspace(labels[0], labels[-1], 41)
    with picture(path, 13, 3.6) as figure:
        axes = figure.subplots(1, len(SHOWN), sharey=True)
        for ax, (title, (name, options)) in zip(axes, SHOWN.items(), strict=True):
            made = build_randomizer(
                name, labels=labels, prior=prior, epsilon=FIGURE_EPSILON, **options
            )
            outputs = made.channel.outputs
            errors[title] = (made.expected_loss, outputs.size)
            joint = prior[:, None] * made.channel.probabilities
            places = np.meshgrid(labels, outputs, indexing="ij")
            mass, _, _ = np.histogram2d(
                *(place.ravel() for place in places), bins=(cells, cells), weights=joint.ravel()
            )
            shade = np.log10(np.maximum(mass.T, 1e-8))
            ax.pcolormesh(cells, cells, shade, cmap="Blues", vmin=-7, vmax=-1)
            ax.set_title(f"{title}: error {made.expected_loss:,.4g}", fontsize=10)
            ax.set_xlabel("label")
        axes[0].set_ylabel("what is sent")
    return errors


def bins_figure(data_set: DataSet, path: Path) -> str:
    """Draw the table of Algorithm 2, least losses by the number of bins, and return it."""
    labels, prior = histogram(data_set)
    shown, rows = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), []
    with picture(path, 7, 4.5) as figure:
        ax = figure.subplots()
        for epsilon in (0.5, 2.0, 4.0, 8.0):
            losses = losses_by_bins(labels=labels, prior=prior, epsilon=epsilon, most=shown[-1])
            bins, least = np.arange(1, losses.size + 1), int(losses.argmin())
            (curve,) = ax.plot(bins, losses, "-", label=f"ε = {epsilon:g}")
            ax.plot(bins[least], losses[least], "o", color=curve.get_color())
            row = [f"{losses[bins - 1]:.4g}" for bins in shown if bins <= losses.size]
            rows.append([f"{epsilon:g}", *row, str(least + 1)])
        logarithmic(ax, "x", "bins")
        logarithmic(ax, "y", "mean squared error of what is sent")
        ax.legend()
    return markdown(["ε", *(f"{bins} bins" for bins in shown), "best"], rows)


def label_errors(data_set: DataSet, epsilons: Sequence[float]) -> str:
    """Table 1's half without a model: errors of randomized labels, of four fifths of all rows."""
    labels = data_set.load()[data_set.label].to_numpy().astype(np.float64)
    labels = np.clip(labels, data_set.lower, data_set.upper)
    entropy = seeded_entropy(11)
    labels = labels[np.argsort(entropy.words("split", 0, labels.size))[: labels.size * 4 // 5]]
    rows = []
    for epsilon in epsilons:
        row, bins, first = [f"{epsilon:g}"], "–", "–"
        for name, options in SHOWN.values():
            terms = LabelTerms(
                "label", data_set.lower, data_set.upper, randomizer=name, options=options
            )
            try:
                made = randomize_as_published(
                    labels, terms, epsilon, entropy, continuous=name in CONTINUOUS_NOISE
                )
            except LabelveilError:  # the prior takes all of ε
                row.append("–")
                continue
            row.append(f"{np.mean((made.sent - labels) ** 2):,.4g}")
            if made.epsilon_prior:
                bins, first = str(made.outputs), f"{float(made.epsilon_prior):.3g}"
        rows.append([*row, bins, first])
    spread = f"Of {labels.size:,} labels with variance {labels.var():,.4g}."
    return f"{markdown(['ε', *SHOWN, 'bins', 'ε₁'], rows)}\n\n{spread}"


def excess(
    labels: Floats, prior: Floats, rows: int, epsilon: float, seed: int = 0, times: float = 2.0
) -> float:
    """How much worse two steps are than the optimum for the true prior (Theorem 7).

    ε₁ is so many ``times`` √(k/n), 2 in the experiments as published. It buys the prior of n
    labels, clipped and normalised as published; RR-on-bins for it gets the rest. Mean of 10 draws
    of labels and noise, each exact given the draw.
    """
    first = Fraction(times * math.sqrt(labels.size / rows))
    best = build_randomizer("rr-on-bins", labels=labels, prior=prior, epsilon=epsilon)
    losses = []
    for draw in range(_REPEATS):
        entropy = seeded_entropy(1000 * seed + draw)
        counts = np.random.default_rng(1000 * seed + draw).multinomial(rows, prior)
        noisy = private_prior(counts, first, entropy).clipped
        made = build_randomizer(
            "rr-on-bins", labels=labels, prior=noisy, epsilon=float(Fraction(epsilon) - first)
        )
        losses.append(replace(made, prior=prior).expected_loss)
    return float(np.mean(losses)) - best.expected_loss


def excess_bound(points: int, rows: int, first: float | None = None) -> float:
    """Theorem 7 with constants: ``tanh(ε₁/4) + 4k/(ε₁n) + √(k/n)`` times the largest loss B.

    ε₁ = ``first``, or 4√(k/n), at which the bound is least but for the third order of tanh: at most
    3 √(k/n) then.

    Proof. A mechanism's loss differs by B TV(P, P') at most between two priors, so that the optimum
    for P' is within 2B TV(P, P') of that for P. ``2 E TV`` is √(k/n) at most for n draws of P, by
    Jensen in each cell, and 4k/(ε₁n) for the noise: clipping and normalising at most double the sum
    of k magnitudes, each 2/ε₁ at most in the mean. With ε − ε₁ in place of ε the optimum's d bins
    keep a label in its own less often, by σ(u) − σ(u − ε₁), where σ is the logistic function and
    u = ε − ln(d − 1), and each such label costs B at most more. That difference is largest where u
    and u − ε₁ lie opposite each other, σ(ε₁/2) − σ(−ε₁/2) = tanh(ε₁/4) <= ε₁/4. The sum of ε₁/4 and
    4k/(ε₁n) is least where both are √(k/n).
    """
    ratio = points / rows
    first = 4 * math.sqrt(ratio) if first is None else first
    return math.tanh(first / 4) + 4 * ratio / first + math.sqrt(ratio)


def convergence(data_sets: dict[str, DataSet], path: Path, epsilon: float) -> str:
    """Draw the excess against n beside Theorem 7's rate, and return it as a table."""
    rows = []
    with picture(path, 7, 4.5) as figure:
        ax = figure.subplots()
        for title, data_set in data_sets.items():
            labels, prior = histogram(data_set)
            k, reach = labels.size, float(labels[-1] - labels[0]) ** 2
            sizes = [size for size in SIZES if math.sqrt(4 * k / size) < epsilon]
            shares = {size: excess(labels, prior, size, epsilon) / reach for size in sizes}
            (curve,) = ax.plot(sizes, list(shares.values()), "o-", label=f"{title}, k = {k}")
            bounds = [excess_bound(k, size, 2 * math.sqrt(k / size)) for size in sizes]
            ax.plot(sizes, bounds, ":", color=curve.get_color())
            row = [f"{shares[size]:.2g}" if size in shares else "–" for size in SIZES[::2]]
            rows.append([f"{title}, k = {k}", *row])
        ax.plot([], [], ":", color="0.4", label="bound of each")
        logarithmic(ax, "x", "labels n")
        logarithmic(ax, "y", "excess error, share of the largest loss")
        ax.legend()
    return markdown(["labels", *(f"n = {size:,}" for size in SIZES[::2])], rows)
