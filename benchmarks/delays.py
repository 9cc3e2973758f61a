"""Labels that arrive late: what each way to release them costs in error, at one ε an event.

Amounts of the online retailer, with delays made up: an amount arrives whole, after a log-normal
time whose median grows with it (three days, and one more for every 50). Of the R² of all that ever
arrives, by trees, mean ± standard deviation over splits, noise and delays.
"""

from __future__ import annotations

import numpy as np
import polars as pl

import labelveil as lv
from benchmarks.harness import Bench, Table
from labelveil.common.arrays import Floats
from tests.data_sets import RETAIL

EARLY, LATE, UPPER = 7, 30, 400
EPSILONS = (2.0,)


def run(bench: Bench) -> Table:
    table = RETAIL.load()
    rows, runs = (400, 1) if bench.quick else (8_000, 5)
    rows_of: dict[str, list[str | float]] = {}
    for epsilon in EPSILONS:
        found: dict[str, list[float]] = {}
        for seed in range(runs):
            drawn = table.sample(2 * rows, seed=seed)
            for name, explained in _one_run(drawn, rows, epsilon, seed).items():
                found.setdefault(name, []).append(explained)
        for name, values in found.items():
            cell = f"{np.mean(values):.3f} ± {np.std(values):.3f}"
            rows_of.setdefault(name, [name]).append(cell)
    columns = [f"ε = {epsilon:g}" for epsilon in EPSILONS]
    return Table("R² of all that arrives", ["released", *columns], list(rows_of.values()))


def _one_run(table: pl.DataFrame, rows: int, epsilon: float, seed: int) -> dict[str, float]:
    features = table.drop(RETAIL.label)
    whole = table[RETAIL.label].to_numpy().clip(0, UPPER)
    days = np.random.default_rng(seed).lognormal(np.log(3 + whole / 50), 1.0)
    early, late = whole * (days <= EARLY), whole * (days <= LATE)

    def model(labels: Floats, spent: float) -> Floats:
        private = lv.randomize_labels(labels[:rows], lower=0, upper=UPPER, epsilon=spent)
        return _predict(features, rows, private, seed)

    def explained(predicted: Floats) -> float:
        true = whole[rows:]
        return float(1 - np.mean((true - predicted) ** 2) / true.var())

    both = lv.randomize_events(
        {"early": early[:rows], "rest": (late - early)[:rows]},
        {"early": (0.0, UPPER), "rest": (0.0, UPPER)},
        epsilon=epsilon,
    )
    arrived = early.sum() / whole.sum()  # what a partner knows from earlier epochs
    at_once, half = model(early, epsilon), model(early, epsilon / 2)
    return {
        f"after {LATE} days": explained(model(late, epsilon)),
        f"after {EARLY} days": explained(at_once),
        f"after {EARLY} days, scaled by the share that arrives so soon": explained(
            (at_once / arrived).clip(0, UPPER)
        ),
        f"after {EARLY} days, half of ε": explained(half),
        f"… and after {LATE} days what came since, the other half": explained(
            half + model(late - early, epsilon / 2)
        ),
        f"… and after {LATE} days the whole label, the other half": explained(
            model(late, epsilon / 2)
        ),
        f"after {LATE} days both windows, two labels of one event": explained(
            sum(_predict(features, rows, both[name], seed) for name in ("early", "rest"))
        ),
    }


def _predict(features: pl.DataFrame, rows: int, private: lv.PrivateLabels, seed: int) -> Floats:
    learner = lv.LabelDPRegressor(learner="trees", random_state=seed)
    fitted = learner.fit(features[:rows], private.codes, private)
    return fitted.predict(features[rows:])
