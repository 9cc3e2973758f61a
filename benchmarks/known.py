"""Known labels of some events beside private ones: what 500 of them bring, at ε = 1.

Mean squared error as a share of the constant's, of 3,000 other events, by the default training.
"""

from __future__ import annotations

import numpy as np
import polars as pl

import labelveil as lv
from benchmarks.harness import Bench, Table
from tests.data_sets import BIKE, DIAMONDS, HOUSING, DataSet

EPSILON, ROWS, NEW, KNOWN, SPLITS = 1.0, 16_000, 3_000, 500, 2


def run(bench: Bench) -> Table:
    sets, splits = ((DIAMONDS,), 1) if bench.quick else ((BIKE, DIAMONDS, HOUSING), SPLITS)
    rows, most = list[list[str | float]](), 4_500 if bench.quick else ROWS
    for data_set in (one for one in sets if one.missing is None):
        found = [_one_split(data_set, most, seed) for seed in range(splits)]
        cells = (", ".join(f"{error:.3f}" for error in way) for way in zip(*found, strict=True))
        rows.append([data_set.name, *cells])
    columns = ["data set", "private labels", f"with {KNOWN} known", f"{KNOWN} known alone"]
    return Table("Error with known labels, by split", columns, rows)


def _one_split(data_set: DataSet, most: int, seed: int) -> list[float]:
    table = data_set.load()
    table = table.sample(min(table.height, most), seed=seed, shuffle=True)
    features, labels = table.drop(data_set.label), table[data_set.label].to_numpy()
    true = np.clip(labels.astype(np.float64), data_set.lower, data_set.upper)
    new, panel, rest = slice(0, NEW), slice(NEW, NEW + KNOWN), slice(NEW + KNOWN, None)
    bounds = {"lower": float(data_set.lower), "upper": float(data_set.upper)}
    private = lv.randomize_labels(labels[rest], **bounds, epsilon=EPSILON)
    known = lv.clear_labels(true[panel], private)
    both = pl.concat([features[rest], features[panel]])
    ways = (features[rest], private), (both, [private, known]), (features[panel], known)
    errors = []
    for inputs, codes in ways:
        predicted = lv.LabelDPRegressor(random_state=seed).fit(inputs, codes).predict(features[new])
        errors.append(float(np.mean((predicted - true[new]) ** 2) / true[new].var()))
    return errors
