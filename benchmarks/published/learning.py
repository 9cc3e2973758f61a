"""Private learning beyond pure ERM: Gaussian noise and DP-SGD side by side, and learning online.

The loss of everything here is the mean logistic loss on records that training never saw, without
regularization, so that methods that regularise differently can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.harness import markdown
from benchmarks.published import erm, sources
from benchmarks.published.kept import Kept
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy, system_entropy
from labelveil.common.mechanisms.central.dp_sgd import DPSGDClassifier
from labelveil.common.mechanisms.central.perturbation import Perturbation
from labelveil.common.mechanisms.central.risk import Logistic, Risk, minimise
from labelveil.common.mechanisms.continual import FollowTheLeader, PrivateHedge

EPSILONS = (0.1, 0.3, 1.0, 3.0)
DELTA = 1e-6
ROWS, TESTED = 16_000, 4_000
RIDGE = 1e-3
RUNS = 3

Fit = Callable[[Floats, Floats, float], Floats]
Variants = dict[str, Fit]
"""By name, what differs in a setting that is chosen in hindsight."""


def _perturbed(name: str, delta: float) -> Variants:
    def fit(rows: Floats, labels: Floats, epsilon: float) -> Floats:
        entropy = system_entropy()
        return Perturbation(name, Logistic(), RIDGE, epsilon, delta).draw(rows, labels, entropy)

    return {"": fit}


def _stepped(*steps: float, **settings: Any) -> Variants:
    def at(step: float) -> Fit:
        def fit(rows: Floats, labels: Floats, epsilon: float) -> Floats:
            made = {"delta": DELTA, "fit_intercept": False, "learning_rate": step, **settings}
            weights = DPSGDClassifier(epsilon, **made).fit(rows, labels).layers_[0]
            return np.asarray(weights[:, 1] - weights[:, 0])

        return fit

    return {f" steps of {step:g}": at(step) for step in steps}


METHODS: dict[str, Variants] = {
    "objective perturbation, δ = 0": _perturbed("objective", 0.0),
    "objective perturbation, Gaussian": _perturbed("objective", DELTA),
    "output perturbation, δ = 0": _perturbed("output", 0.0),
    "output perturbation, Gaussian": _perturbed("output", DELTA),
    "functional mechanism, δ = 0": _perturbed("function", 0.0),
    "functional mechanism, Gaussian": _perturbed("function", DELTA),
    "DP-SGD, Gaussian, Poisson samples": _stepped(10.0),
    "DP-SGD, Gaussian, samples of one size": _stepped(10.0, sampling="fixed"),
    "DP-SGD, Laplace, δ = 0": _stepped(1.0, 3.0, 10.0, noise="laplace", delta=0.0),
    "DP-SGD, Laplace, one random record": _stepped(
        0.001, 0.01, 0.1, noise="laplace", delta=0.0, sampling="fixed", sample=1, steps=ROWS
    ),
    "DP-SGD, random directions, δ = 0": _stepped(
        0.3, 1.0, 3.0, noise="direction", delta=0.0, sampling="fixed", steps=16
    ),
}


def learning_table(task: str, rows: Floats, labels: Floats, kept: Kept) -> str:
    """Mean test loss and its standard error over the runs, for every method and ε."""
    order = np.argsort(seeded_entropy(53).words("rows", 0, len(labels)))
    rows, labels = rows[order], labels[order]
    x, y = rows[:ROWS], labels[:ROWS]

    def test_loss(weights: Floats) -> float:
        unseen = slice(ROWS, ROWS + TESTED)
        return float(Logistic().value(rows[unseen] @ weights, labels[unseen]).mean())

    def losses(fit: Fit, epsilon: float) -> list[float]:
        return [test_loss(fit(x, y, epsilon)) for _ in range(RUNS)]

    free = test_loss(minimise(Risk(Logistic(), x, y, 1e-6, np.zeros(x.shape[1]))))
    table = []
    for name, variants in METHODS.items():
        cells = []
        for epsilon in EPSILONS:
            tried = [
                kept(f"learning {task} {name}{variant} {epsilon:g}", losses, fit, epsilon)
                for variant, fit in variants.items()
            ]
            best = min(tried, key=np.mean)
            error = np.std(best, ddof=1) / math.sqrt(RUNS)
            cells.append(f"{np.mean(best):.3f} ± {error:.1g}")
        table.append([name, *cells])
    table.append(["without privacy", *[f"{free:.3f}"] * len(EPSILONS)])
    head = ["method", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
    return f"{markdown(head, table)}\n\nw = 0 has {math.log(2):.3f}."


def online_table(rounds: int = 2000, runs: int = 3) -> str:
    """Regret a round of the two online learners, beside what they are without noise."""
    budgets = (1e6, 10.0, 1.0, 0.1, 0.01)
    rows = []
    for name, regret in (("follow the leader, d = 5", _leader), ("hedge, 10 experts", _hedge)):
        means = [np.mean([regret(rho, rounds, run) for run in range(runs)]) for rho in budgets]
        rows.append([name, *(f"{mean:.4f}" for mean in means)])
    return markdown(["learner", "no noise", *(f"ρ = {rho:g}" for rho in budgets[1:])], rows)


def _uniforms(name: str, seed: int, *shape: int) -> Floats:
    words = seeded_entropy(seed).words(name, 0, math.prod(shape)) >> np.uint64(11)
    return np.asarray(words.reshape(shape) / 2.0**53)


def _leader(rho: float, rounds: int, seed: int) -> float:
    """Absolute losses of a linear model in the unit ball; the best play loses nothing."""
    rows = 2 * _uniforms("rows", seed, rounds, 5) - 1
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    best = np.array([0.6, -0.5, 0.3, 0.0, 0.2])
    learner, lost = FollowTheLeader(rounds, 5, rho, seeded_entropy(seed)), 0.0
    for x in rows:
        error = float(x @ (learner.play - best))
        lost += abs(error)
        learner.see(np.sign(error) * x)
    return lost / rounds


def _hedge(rho: float, rounds: int, seed: int) -> float:
    """Uniform losses, one expert's lower by a tenth."""
    losses = _uniforms("losses", seed, rounds, 10)
    losses[:, 3] *= 0.8
    learner, lost = PrivateHedge(rounds, 10, rho, seeded_entropy(seed)), 0.0
    for row in losses:
        lost += float(learner.weights @ row)
        learner.see(row)
    return (lost - float(losses.sum(axis=0).min())) / rounds


def report(kept: Kept) -> Iterator[str]:
    """Run everything; yields the report's sections."""
    yield f"## Regret a round, 2,000 rounds, 3 runs\n\n{kept('learning online', online_table)}"
    for name, (file, load) in erm.TASKS.items():
        skipped = sources.missing(file)
        if skipped:
            yield f"Private learning on {name}: skipped, {skipped}."
            continue
        yield (
            f"## Logistic loss on unseen records, {name}, {ROWS:,} records, δ = {DELTA:g},"
            f" {RUNS} runs\n\n{learning_table(name, *load(), kept)}"
        )
