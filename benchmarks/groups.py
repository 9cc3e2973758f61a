"""What sums over groups are worth beside codes, and whether ``--ask auto`` takes the better ones.

``python -m benchmarks.groups bike diamonds --epsilon 0.1``: for every data set that is named,
the error of a regressor on held-out true labels, as a share of a constant's. It learns from sums in
one question and in the rounds of ``labelveil simulate``, from one message of codes, and from codes
in rounds. What ``auto`` would take is set against the best of them, the mean of whose splits is the
least. Splits are those of ``benchmarks.rounds``; noise is the operating system's. Results are
kept in ``out/groups`` and taken up again.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np

import labelveil as lv
from benchmarks.harness import markdown
from benchmarks.rounds import SHARES, error_left
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.feature_party.groups.asking import gain_of_sums
from labelveil.feature_party.groups.rounds import learn_in_rounds
from labelveil.simulation.settings import (
    FEWEST_IN_ROUNDS,
    LEAST_GAIN,
    SUMS_SHARES,
)
from tests.data_sets import BIKE, CENSUS, DIAMONDS, HOUSING, RANDHIE, RETAIL, DataSet

ROWS = {BIKE: None, DIAMONDS: 20_000, HOUSING: None, RANDHIE: None, CENSUS: None, RETAIL: 200_000}
"""How many events of each data set are used, a fifth of them held out."""
SUMS = {"question": (1.0,), "sums": tuple(SUMS_SHARES)}
CODES = {"message": SHARES["one"], "codes": SHARES["three"]}
TAKEN = ("sums", "message", "codes")
"""What ``auto`` takes one of."""
OUT = Path("out/groups")


def main() -> None:
    """Run what is present and not there yet, and print the table of all that is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="data sets; all that are present if none is named")
    parser.add_argument("--epsilon", type=float, action="append", help="budget; repeatable")
    parser.add_argument("--ask", choices=[*SUMS, *CODES], action="append", help="repeatable")
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
        options.epsilon or (0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
        options.ask or [*SUMS, *CODES],
    )
    for run, name, epsilon, ask in grid:
        path = options.out / f"{name}-{epsilon:g}-{ask}-{run}.json"
        if not path.exists():
            learn = _of_sums if ask in SUMS else _of_codes
            path.write_text(json.dumps(learn(sets[name], run, epsilon, ask)))
            print(path.stem, path.read_text(), flush=True)
    print(_table(options.out))


def _of_codes(data_set: DataSet, run: int, epsilon: float, ask: str) -> dict[str, object]:
    """Share of a constant's squared error that is left in the end, and seconds."""
    table, rows, start = data_set.load(), ROWS[data_set], time.process_time()
    left = error_left(data_set, table, rows, run, epsilon, CODES[ask], [])
    return {"errors": [round(left, 4)], "seconds": round(time.process_time() - start, 1)}


def _of_sums(data_set: DataSet, run: int, epsilon: float, ask: str) -> dict[str, object]:
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
        shares=SUMS[ask],
        seed=run,
    ):
        model = learned.model
        predictions = model.distributions(model.encoder.encode(features[test])).points
        errors.append(round(float(np.mean((predictions - labels[test]) ** 2) / constant), 4))
    return {"errors": errors, "seconds": round(time.process_time() - start, 1)}


def _auto(data_set: DataSet, epsilon: float) -> str:
    """What ``labelveil simulate --ask auto`` takes for so many events."""
    rows = ROWS[data_set] or data_set.load().height
    in_rounds = rows >= FEWEST_IN_ROUNDS
    if gain_of_sums(epsilon, in_rounds=in_rounds) >= LEAST_GAIN:
        return "sums"
    return "codes" if in_rounds else "message"


def _table(out: Path) -> str:
    """Means over splits of what is left in the end, and each split's; and what ``auto`` takes.

    How much worse than the best that is, is told of splits for which there is all of it.
    """
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for path in sorted(out.glob("*.json")):
        name, epsilon, ask, run = path.stem.rsplit("-", 3)
        left = json.loads(path.read_text())["errors"][-1]
        found.setdefault((name, epsilon), {}).setdefault(ask, {})[run] = left
    sets, rows = {each.name: each for each in ROWS}, []
    for (name, epsilon), columns in found.items():
        row = [name, epsilon]
        for ask in (*SUMS, *CODES):
            of = list(columns.get(ask, {}).values())
            each = ", ".join(f"{left:.3f}" for left in of)
            row.append(f"{np.mean(of):.3f} ({each})" if of else "–")
        taken = _auto(sets[name], float(epsilon))
        runs = set.intersection(*(set(columns.get(ask, {})) for ask in TAKEN))
        means = {ask: np.mean([columns[ask][run] for run in runs]) for ask in TAKEN if runs}
        regret = f"{means[taken] / min(means.values()) - 1:.1%}" if means else "–"
        rows.append([*row, taken, regret])
    header = ["data set", "ε", "one question", "sums in rounds", "one message", "codes in rounds"]
    return markdown([*header, "auto", "above the best"], rows)


if __name__ == "__main__":
    main()
