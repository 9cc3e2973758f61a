"""What rounds and strata are worth: one message against several, or in classes that both know.

``python -m benchmarks.rounds``: for every data set that is present, the error of a default
model on held-out true labels, as a share of a constant's. Splits are the same for all columns;
noise is the operating system's. Results are kept in ``out/rounds`` and taken up again.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import polars as pl

import labelveil as lv
from benchmarks.harness import markdown
from labelveil.common.arrays import Floats
from tests.data_sets import (
    ANES,
    BIKE,
    CENSUS,
    COMMUNITIES,
    CRITEO,
    DIABETES,
    DIAMONDS,
    DIGITS,
    FAIR,
    HOUSING,
    LETTERS,
    PATIENTS,
    RANDHIE,
    RETAIL,
    TEXAS,
    TRAVEL,
    DataSet,
)

ROWS = {BIKE: None, DIAMONDS: 20_000, HOUSING: None, CENSUS: 12_500, RETAIL: 60_000, RANDHIE: None}
ROWS |= {FAIR: None, DIGITS: None, TEXAS: None, LETTERS: None, PATIENTS: 20_000}
ROWS |= {COMMUNITIES: None, CRITEO: None, ANES: None, TRAVEL: None, DIABETES: None}
"""How many events of each data set are used, a fifth of them held out."""
SHARES = {"one": (1.0,), "two": (0.25, 0.75), "three": (0.15, 0.25, 0.6), "five": (0.2,) * 5}
SHARES |= {"strata": (1.0,)}
KNOWN = {
    BIKE: ["hr"],
    DIAMONDS: ["cut", "clarity"],
    HOUSING: ["ocean_proximity"],
    CENSUS: ["sex", "education"],
    RETAIL: ["Country"],
}
"""Columns whose values are the strata of ``strata``."""
DAYS, SHOWN = 20, (1, 2, 5, 10, 20)
OUT = Path("out/rounds")


def main() -> None:
    """Run what is present and not there yet, and print the table of all that is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="data sets; all that are present if none is named")
    parser.add_argument("--epsilon", type=float, action="append", help="budget; repeatable")
    parser.add_argument("--rounds", choices=SHARES, action="append", help="repeatable")
    parser.add_argument("--runs", type=int, default=5, help="splits (5)")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--days", action="store_true", help="20 messages, with questions or without"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for data_set, rows in ROWS.items():
        if data_set.missing or (options.names and data_set.name not in options.names):
            continue
        table = data_set.load()
        if options.days:
            for epsilon, asking in product(options.epsilon or (0.5, 1.0), (False, True)):
                days = _days(data_set, table, rows, epsilon, asking)
                shown = ", ".join(f"{day}: {error:.3f}" for day, error in days.items())
                print(data_set.name, epsilon, "asking" if asking else "plain", shown, flush=True)
            continue
        grid = product(range(options.runs), options.epsilon or (0.5, 1.0), options.rounds or SHARES)
        for run, epsilon, rounds in grid:
            path = options.out / f"{data_set.name}-{epsilon:g}-{rounds}-{run}.json"
            if not path.exists():
                strata = KNOWN.get(data_set, []) if rounds == "strata" else []
                found = error_left(data_set, table, rows, run, epsilon, SHARES[rounds], strata)
                path.write_text(json.dumps(found))
    if not options.days:
        print(_table(options.out))


def error_left(
    data_set: DataSet,
    table: pl.DataFrame,
    rows: int | None,
    run: int,
    epsilon: float,
    shares: tuple[float, ...],
    strata: list[str],
) -> float:
    """Share of a constant's squared error that messages of codes, one for each share, leave."""
    order = np.random.default_rng(run).permutation(table.height)[:rows]
    test, train = np.split(order, [order.size // 5])
    labels = table[data_set.label].to_numpy().astype(np.float64)
    features = table.drop(data_set.label)
    ends = [0, *np.rint(np.cumsum(shares) * train.size).astype(int).tolist()]
    known = np.array(["/".join(map(str, row)) for row in table.select(strata).rows()])
    bounds = {"lower": data_set.lower, "upper": data_set.upper, "epsilon": epsilon}
    model, sent = lv.LabelDPRegressor(random_state=run), list[lv.PrivateLabels]()
    for start, stop in pairwise(ends):
        part = train[start:stop]
        question = model.ask(features[part]) if sent else None
        classes = known[part] if strata else None
        sent.append(lv.randomize_labels(labels[part], question=question, strata=classes, **bounds))
        model.fit(features[train[:stop]], sent)
    points: Floats = model.predict(features[test])
    clipped = np.clip(labels, data_set.lower, data_set.upper)
    constant = np.mean((clipped[test] - clipped[train].mean()) ** 2)
    return float(np.mean((points - clipped[test]) ** 2) / constant)


def _days(
    data_set: DataSet, table: pl.DataFrame, rows: int | None, epsilon: float, asking: bool
) -> dict[int, float]:
    """Share of a constant's squared error that is left after some of 20 equal days.

    Each day's events are sent once; ``asking``, they are asked what yesterday's model does not
    know.
    """
    order = np.random.default_rng(0).permutation(table.height)[:rows]
    test, train = np.split(order, [order.size // 5])
    labels = table[data_set.label].to_numpy().astype(np.float64)
    features, found = table.drop(data_set.label), {}
    bounds = {"lower": data_set.lower, "upper": data_set.upper, "epsilon": epsilon}
    model, sent = lv.LabelDPRegressor(random_state=0), list[lv.PrivateLabels]()
    clipped = np.clip(labels, data_set.lower, data_set.upper)
    constant = np.mean((clipped[test] - clipped[train].mean()) ** 2)
    ends = np.rint(np.linspace(0, train.size, DAYS + 1)).astype(int).tolist()
    for day, (start, stop) in enumerate(pairwise(ends), 1):
        part = train[start:stop]
        question = model.ask(features[part]) if asking and sent else None
        sent.append(lv.randomize_labels(labels[part], question=question, **bounds))
        if asking or day in SHOWN:
            model.fit(features[train[:stop]], sent)
        if day in SHOWN:
            points: Floats = model.predict(features[test])
            found[day] = float(np.mean((points - clipped[test]) ** 2) / constant)
    return found


def _table(out: Path) -> str:
    """Means over splits, and in brackets the standard error of the difference to one round."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for path in sorted(out.glob("*.json")):
        name, epsilon, rounds, run = path.stem.rsplit("-", 3)
        column = found.setdefault((name, epsilon), {}).setdefault(rounds, {})
        column[run] = json.loads(path.read_text())
    rows = []
    for (name, epsilon), columns in found.items():
        row = [name, epsilon]
        for rounds in SHARES:
            both = sorted(columns.get(rounds, {}).keys() & columns.get("one", {}).keys())
            errors = np.array([columns[rounds][run] for run in both])
            gains = errors - [columns["one"][run] for run in both] if both else errors
            doubt = np.std(gains, ddof=1) / math.sqrt(len(both)) if len(both) > 1 else math.nan
            shown = f"{errors.mean():.3f}" if both else "–"
            row.append(shown if rounds == "one" or not both else f"{shown} ({doubt:.3f})")
        rows.append(row)
    return markdown(["data set", "ε", *SHARES], rows)


if __name__ == "__main__":
    main()
