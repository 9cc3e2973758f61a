"""What sums over groups are worth beside codes, and whether a simulation takes the better ones.

``python -m benchmarks.groups bike diamonds --epsilon 0.1``: for every data set that is named,
the error of a regressor on held-out true labels, as a share of a constant's. It learns from sums in
one question and in the rounds of ``labelveil simulate``, from one message of codes, and from codes
in rounds. What ``labelveil simulate`` would take is set against the best of them, the mean of whose
splits is the least, and against one message. Splits are those of ``benchmarks.rounds``; noise is
the operating system's. Results are kept in ``out/groups`` and taken up again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

import labelveil as lv
from benchmarks.harness import markdown
from benchmarks.rounds import ROWS as IN_ROUNDS
from benchmarks.rounds import SHARES, error_left
from labelveil.common.mechanisms.group_sums import Lattice
from labelveil.feature_party.config.usual_shares import usual_shares
from labelveil.feature_party.groups.rounds import learn_in_rounds
from labelveil.simulation.settings import FEWEST_IN_ROUNDS, GROUPS, best_way
from tests.data_sets import CENSUS, RETAIL, DataSet

ROWS = IN_ROUNDS | {CENSUS: None, RETAIL: 200_000}
"""How many events of each data set are used at most, a fifth of them held out."""
SUMS = ("question", "sums")
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
    parser.add_argument("--rows", type=int, help="events of each data set at most")
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
        table = sets[name].load()
        most = (table.height, ROWS[sets[name]], options.rows)
        rows = min(count for count in most if count is not None)
        path = options.out / f"{name}-{rows}-{epsilon:g}-{ask}-{run}.json"
        if not path.exists():
            learn = _of_sums if ask in SUMS else _of_codes
            path.write_text(json.dumps(learn(sets[name], table, rows, run, epsilon, ask)))
            print(path.stem, path.read_text(), flush=True)
    print(_table(options.out))


def _of_codes(
    data_set: DataSet, table: pl.DataFrame, rows: int, run: int, epsilon: float, ask: str
) -> dict[str, object]:
    """Share of a constant's squared error that is left in the end, and seconds."""
    start = time.process_time()
    left = error_left(data_set, table, rows, run, epsilon, CODES[ask], [])
    return {"errors": [round(left, 4)], "seconds": round(time.process_time() - start, 1)}


def _of_sums(
    data_set: DataSet, table: pl.DataFrame, rows: int, run: int, epsilon: float, ask: str
) -> dict[str, object]:
    """Share of a constant's squared error that is left after each round, and seconds."""
    order = np.random.default_rng(run).permutation(table.height)[:rows]
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
        shares=usual_shares(rows, epsilon) if ask == "sums" else (1.0,),
        seed=run,
    ):
        model = learned.model
        predictions = model.distributions(model.encoder.encode(features[test])).points
        errors.append(round(float(np.mean((predictions - labels[test]) ** 2) / constant), 4))
    return {"errors": errors, "seconds": round(time.process_time() - start, 1)}


def _auto(rows: int, epsilon: float) -> str:
    """What ``labelveil simulate`` takes for so many events."""
    taken, _ = best_way(epsilon, rows)
    return "sums" if taken == GROUPS else taken


def _table(out: Path) -> str:
    """Means over splits of what is left in the end, and each split's; and what ``auto`` takes.

    How much worse than the best that is, is told of splits for which there is all of it; how it
    compares with one message, of those for which there are both, with a standard error.
    """
    found: dict[tuple[str, int, float], dict[str, dict[str, float]]] = {}
    for path in out.glob("*.json"):
        *cell, ask, run = path.stem.rsplit("-", 4)
        left = json.loads(path.read_text())["errors"][-1]
        of_cell = found.setdefault((cell[0], int(cell[1]), float(cell[2])), {})
        of_cell.setdefault(ask, {})[run] = left
    rows = []
    for (name, events, epsilon), columns in sorted(found.items()):
        row = [name, f"{events:,}", f"{epsilon:g}"]
        for ask in (*SUMS, *CODES):
            of = [left for _, left in sorted(columns.get(ask, {}).items())]
            each = ", ".join(f"{left:.3f}" for left in of)
            row.append(f"{np.mean(of):.3f} ({each})" if of else "–")
        taken = _auto(events, epsilon)
        asked = TAKEN if events >= FEWEST_IN_ROUNDS else ("sums", "message")
        runs = set.intersection(*(set(columns.get(ask, {})) for ask in asked))
        means = {ask: np.mean([columns[ask][run] for run in runs]) for ask in asked if runs}
        regret = f"{means[taken] / min(means.values()) - 1:.1%}" if means else "–"
        rows.append([*row, taken, regret, _compared(columns, taken)])
    header = ["data set", "events", "ε", "one question", "sums in rounds", "one message"]
    return markdown(
        [*header, "codes in rounds", "auto", "above the best", "auto − one message"], rows
    )


def _compared(columns: dict[str, dict[str, float]], taken: str) -> str:
    """Mean over splits of what a choice leaves more than one message, with a standard error."""
    chosen, message = columns.get(taken, {}), columns.get("message", {})
    more = [chosen[run] - message[run] for run in chosen.keys() & message.keys()]
    if not more or taken == "message":
        return "–"
    doubt = f" ± {np.std(more, ddof=1) / math.sqrt(len(more)):.3f}" if more[1:] else ""
    return f"{np.mean(more):+.3f}{doubt}"


if __name__ == "__main__":
    main()
