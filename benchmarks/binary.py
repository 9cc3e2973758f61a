"""Labels of two values: the default model beside learners on the same randomized response.

The references know the channel as the default does (their likelihood goes through it): LightGBM
with early stopping, and logistic regression. Log loss and AUC on true labels of other events.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

import labelveil as lv
from benchmarks.harness import Bench, Table
from labelveil.common.arrays import Floats, Integers
from labelveil.feature_party.training.trees import lightgbm
from tests.data_sets import CENSUS, RANDHIE, RETAIL, read

ROWS, TEST, SPLITS = 20_000, 20_000, 3


def run(bench: Bench) -> Table:
    epsilons, splits = ((2.0,), 1) if bench.quick else ((0.5, 1.0, 2.0, 4.0), SPLITS)
    sets = {
        "randhie": (RANDHIE, _visited),
        "retail": (RETAIL, _returned),
        "census": (CENSUS, _earning),
    }
    rows = list[list[str | float]]()
    for name, (data_set, load) in sets.items():
        if data_set.missing:
            continue
        features, labels = load()
        for epsilon in epsilons:
            scores = np.array(
                [_scores(features, labels, epsilon, split, bench) for split in range(splits)]
            )
            rows.append([name, epsilon, *scores.mean(axis=0).tolist()])
    columns = [
        f"{score}, {who}"
        for score, who in product(("log loss", "AUC"), ("default", "trees", "logistic"))
    ]
    return Table("Labels of two values", ["data set", "ε", *columns], rows)


def _visited() -> tuple[pl.DataFrame, Integers]:
    table = RANDHIE.load()
    return table.drop("mdvis"), (table["mdvis"] > 0).cast(pl.Int64).to_numpy()


def _returned() -> tuple[pl.DataFrame, Integers]:
    table = read("online_retail.parquet").filter(pl.col("UnitPrice") > 0)
    features = table.select(
        "StockCode",
        "Country",
        pl.col("CustomerID").cast(pl.Int64).cast(pl.String),
        "UnitPrice",
        hour=pl.col("InvoiceDate").dt.hour(),
    )
    return features, (table["Quantity"] < 0).cast(pl.Int64).to_numpy()


def _earning() -> tuple[pl.DataFrame, Integers]:
    table = CENSUS.load()
    return table.drop("income"), (table["income"] == "50000+.").cast(pl.Int64).to_numpy()


def _scores(
    features: pl.DataFrame, labels: Integers, epsilon: float, split: int, bench: Bench
) -> list[float]:
    order = np.random.default_rng(split).permutation(features.height)
    size = min(bench.size(ROWS), features.height * 4 // 5)
    train, test = order[:size], order[size : size + TEST]
    private = lv.randomize_labels(labels[train], lower=0, upper=1, epsilon=epsilon)
    model = lv.LabelDPRegressor(random_state=split).fit(features[train], private)
    predicted = [model.predict(features[test])]
    truth = private.channel.probabilities[:, 1]  # of code 1, for labels 0 and 1
    codes = private.codes.astype(np.float64)
    encoded, hot = _encode(features, train)
    predicted.append(_trees(encoded[train], codes, truth, split)(encoded[test]))
    predicted.append(_logistic(hot[train], codes, truth)(hot[test]))
    clipped = [np.clip(p, 1e-6, 1 - 1e-6) for p in predicted]
    true = labels[test]
    return [log_loss(true, p) for p in clipped] + [roc_auc_score(true, p) for p in predicted]


def _encode(features: pl.DataFrame, train: Integers) -> tuple[Floats, Floats]:
    """(n, d) numbers and categories for trees; (n, D) scaled, and the 30 most frequent one-hot."""
    numbers, hot = [], []
    for column in features:
        if column.dtype.is_numeric():
            values = column.cast(pl.Float64).to_numpy()
            known = values[train][np.isfinite(values[train])]
            values = np.where(np.isfinite(values), values, np.median(known))
            numbers.append(values)
            hot.append((values - known.mean()) / (known.std() or 1.0))
        else:
            _, places = np.unique(column.fill_null("").to_numpy().astype(str), return_inverse=True)
            numbers.append(places.astype(float))
            common = np.argsort(-np.bincount(places[train]), kind="stable")[:30]
            hot += [(places == value).astype(float) for value in common]
    return np.stack(numbers, 1), np.stack(hot, 1)


def _loss(raw: Floats, codes: Floats, truth: Floats) -> tuple[Floats, Floats, Floats]:
    """Losses of codes through the channel, their derivatives, and the Fisher information."""
    chance = expit(raw)
    seen = truth[0] + (truth[1] - truth[0]) * chance
    slope = (truth[1] - truth[0]) * chance * (1 - chance)
    losses = -np.log(np.where(codes > 0, seen, 1 - seen))
    return (
        losses,
        -np.where(codes > 0, 1 / seen, -1 / (1 - seen)) * slope,
        slope**2 / (seen * (1 - seen)),
    )


def _trees(inputs: Floats, codes: Floats, truth: Floats, seed: int) -> Callable[[Floats], Floats]:
    """LightGBM's own defaults at a slower pace, ended by a tenth of the codes."""
    package = lightgbm()
    cut = inputs.shape[0] // 10
    parameters = {
        "objective": "none",
        "learning_rate": 0.05,
        "num_leaves": 15,
        "seed": seed,
        "verbosity": -1,
    }
    start = float(np.clip((codes.mean() - truth[0]) / (truth[1] - truth[0]), 0.005, 0.995))
    start = np.log(start / (1 - start))
    data = package.Dataset(
        inputs[cut:], label=codes[cut:], init_score=np.full(codes.size - cut, start)
    )
    held = package.Dataset(
        inputs[:cut], label=codes[:cut], init_score=np.full(cut, start), reference=data
    )

    def objective(raw: Floats, data: Any) -> tuple[Floats, Floats]:
        _, first, second = _loss(raw, data.get_label(), truth)
        return first, second

    def score(raw: Floats, data: Any) -> tuple[str, float, bool]:
        return "loss", float(_loss(raw, data.get_label(), truth)[0].mean()), False

    booster = package.train(
        parameters | {"objective": objective},
        data,
        500,
        [held],
        feval=score,
        callbacks=[package.early_stopping(30, verbose=False)],
    )
    return lambda new: expit(start + booster.predict(new, raw_score=True))


def _logistic(inputs: Floats, codes: Floats, truth: Floats) -> Callable[[Floats], Floats]:
    """Ridge penalty by a tenth of the codes."""
    cut = inputs.shape[0] // 10
    inputs = np.c_[np.ones(inputs.shape[0]), inputs]

    def fit(inputs: Floats, codes: Floats, ridge: float) -> Floats:
        penalty = np.r_[0.0, np.full(inputs.shape[1] - 1, ridge)]

        def value(weights: Floats) -> tuple[float, Floats]:
            losses, first, _ = _loss(inputs @ weights, codes, truth)
            return float(
                losses.sum() + penalty @ weights**2 / 2
            ), inputs.T @ first + penalty * weights

        return minimize(value, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B").x

    def held(ridge: float) -> float:
        weights = fit(inputs[cut:], codes[cut:], ridge)
        return float(_loss(inputs[:cut] @ weights, codes[:cut], truth)[0].mean())

    weights = fit(inputs, codes, min((1.0, 3.0, 10.0, 30.0, 100.0), key=held))
    return lambda new: expit(np.c_[np.ones(len(new)), new] @ weights)
