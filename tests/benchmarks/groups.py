"""What sums over groups are worth, in one question and in three rounds.

``python -m tests.benchmarks.groups bike diamonds --epsilon 0.1``: for every data set that is named,
the error of a regressor on held-out true labels after each round, as a share of a constant's.
Splits are those of ``tests.benchmarks.rounds``; noise is the operating system's. Results are kept
in ``out/groups`` and taken up again.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np

import labelveil as lv
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.feature_party.groups.rounds import learn_in_rounds
from tests.benchmarks.harness import markdown
from tests.data_sets import BIKE, CENSUS, DIAMONDS, HOUSING, RETAIL, DataSet

ROWS = {BIKE: None, DIAMONDS: 20_000, HOUSING: None, CENSUS: None, RETAIL: 200_000}
"""How many events of each data set are used, a fifth of them held out."""
SHARES = {"one": (1.0,), "three": (0.25, 0.3, 0.45)}
OUT = Path("out/groups")


def main() -> None:
    """Run what is present and not there yet, and print the table of all that is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="data sets; all that are present if none is named")
    parser.add_argument("--epsilon", type=float, action="append", help="budget; repeatable")
    parser.add_argument("--rounds", choices=SHARES, action="append", help="repeatable")
    parser.add_argument("--runs", type=int, default=3, help="splits (3)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sets = {each.name: each for each in ROWS if not each.missing}
    if unknown := set(options.names) - set(sets):
        parser.error(f"{', '.join(sorted(unknown))}: not here; there are {', '.join(sets)}")
    grid = product(
        range(options.runs),
        options.names or sets,
        options.epsilon or (0.1, 0.25, 0.5),
        options.rounds or SHARES,
    )
    for run, name, epsilon, rounds in grid:
        path = options.out / f"{name}-{epsilon:g}-{rounds}-{run}.json"
        if not path.exists():
            path.write_text(json.dumps(_errors(sets[name], run, epsilon, SHARES[rounds])))
            print(path.stem, path.read_text(), flush=True)
    print(_table(options.out))


def _errors(
    data_set: DataSet, run: int, epsilon: float, shares: tuple[float, ...]
) -> dict[str, object]:
    """Share of a constant's squared error that is left after each round, and seconds."""
    table = data_set.load()
    order = np.random.default_rng(run).permutation(table.height)[: ROWS[data_set]]
    test, train = np.split(order, [order.size // 5])
    labels = table[data_set.label].to_numpy().astype(np.float64)
    labels = np.clip(labels, data_set.lower, data_set.upper)
    features, start, errors = table.drop(data_set.label), time.process_time(), []
    constant, known = np.mean((labels[test] - labels[train].mean()) ** 2), labels[train]
    for learned in learn_in_rounds(
        features[train],
        Lattice.between(data_set.lower, data_set.upper),
        epsilon,
        lambda rows, question: lv.group_sums(known[rows], question, epsilon=epsilon),
        shares=shares,
        seed=run,
    ):
        model = learned.model
        predictions = model.distributions(model.encoder.encode(features[test])).points
        errors.append(round(float(np.mean((predictions - labels[test]) ** 2) / constant), 4))
    return {"errors": errors, "seconds": round(time.process_time() - start, 1)}


def _table(out: Path) -> str:
    """Means over splits of what is left after the last round, and each split's."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for path in sorted(out.glob("*.json")):
        name, epsilon, rounds, _ = path.stem.rsplit("-", 3)
        left = json.loads(path.read_text())["errors"][-1]
        found.setdefault((name, epsilon), {}).setdefault(rounds, []).append(left)
    rows = [
        [name, epsilon]
        + [
            f"{np.mean(columns[r]):.3f} ({', '.join(f'{e:.3f}' for e in columns[r])})"
            if r in columns
            else "–"
            for r in SHARES
        ]
        for (name, epsilon), columns in found.items()
    ]
    return markdown(["data set", "ε", "one question", "three rounds"], rows)


if __name__ == "__main__":
    main()
