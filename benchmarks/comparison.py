"""The comparison that the README quotes: ``make compare``.

Every data set that is present, four budgets, the default against the published method, the other
randomizers and what plain learners reach on true labels with noise of equal information; models
scored with true labels. Sizes are chosen so that the whole takes a few hours on two cores; an
interrupted run takes up where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.equal_information import REFERENCE, reference
from benchmarks.harness import markdown
from labelveil.common.arrays import Floats
from labelveil.comparison import CompareSettings, Job, Method, run_comparison
from labelveil.comparison.run import SETTINGS_FILE
from labelveil.comparison.settings import default_methods
from tests.data_sets import BIKE, CENSUS, DIAMONDS, HOUSING, RANDHIE, RETAIL, DataSet

EPSILONS = (0.5, 1.0, 2.0, 4.0)
AS_SENT = Method("rr-on-bins", "raw")
METHODS = [f"{one.randomizer}:{one.objective}" for one in default_methods()]
OUT = Path("out/comparison")


ROWS: dict[DataSet, int | None] = {
    RANDHIE: None,
    HOUSING: None,
    CENSUS: 10_000,
    RETAIL: 60_000,
    BIKE: 16_000,
    DIAMONDS: 16_000,
}
"""How many events of each data set are used."""


def main() -> None:
    """Run what is present, print every table and whether the default does what it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="data sets; all that are present if none is named")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rows", type=int, help="events of each set, at most")
    parser.add_argument("--runs", type=int, default=5, help="splits (5)")
    parser.add_argument("--epsilon", type=float, action="append", help="budget; repeatable")
    parser.add_argument("--method", action="append", help="RANDOMIZER:OBJECTIVE; repeatable")
    options = parser.parse_args()
    sections = []
    for data_set, rows in ROWS.items():
        if options.names and data_set.name not in options.names:
            continue
        if data_set.missing:
            print(f"{data_set.name}: skipped, {data_set.missing}")
            continue
        sections.append(_run(data_set, options.rows or rows, options))
    text = "\n".join(sections)
    (options.out / "verdict.md").write_text(text + "\n")
    print(text)


def _run(data_set: DataSet, rows: int | None, options: argparse.Namespace) -> str:
    out = options.out / data_set.name
    out.mkdir(parents=True, exist_ok=True)
    events = out / "events.parquet"
    data_set.load().write_parquet(events)
    settings = CompareSettings(
        labels=events,
        features=events,
        label=data_set.label,
        lower=data_set.lower,
        upper=data_set.upper,
        epsilons=options.epsilon or EPSILONS,
        runs=options.runs,
        rows=rows,
        workers=options.workers,
        methods=options.method or METHODS,
        out=out,
    )
    records = run_comparison(settings).records
    spec = json.loads((out / SETTINGS_FILE).read_text())
    jobs = [
        Job(epsilon, run, REFERENCE) for run in range(options.runs) for epsilon in settings.epsilons
    ]
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        records += pool.map(partial(reference, spec, folder=out), jobs)
    print(f"\n{data_set.name}\n{(out / 'table.md').read_text()}")
    return f"## {data_set.name}\n\n{verdict(records)}\n"


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """Hold the default against the best method at every ε, and against the published one.

    It is to be within 3 % of the best, and no worse than RR-on-bins with its labels taken as they
    are; either holds, too, if the difference, run by run (runs share their split), is within one
    standard error of nothing. Both must be among the records. In brackets: shares of the error of
    the best constant.
    """
    found: dict[float, dict[Method, dict[int, float]]] = {}
    constants: dict[int, float] = {}
    for record in records:
        job = Job.from_json(record)
        if "error" not in record and math.isfinite(job.epsilon):
            runs = found.setdefault(job.epsilon, {}).setdefault(job.method, {})
            runs[job.run] = float(record["test_mse"])
            constants[job.run] = float(record["constant_mse"])
    rows = []
    for epsilon, methods in sorted(found.items()):
        whole = set.intersection(*(set(runs) for runs in methods.values()))
        if not whole:
            continue
        errors = {
            method: np.array([runs[run] for run in sorted(whole)])
            for method, runs in methods.items()
        }
        reference = errors.pop(REFERENCE, None)
        best = min(errors, key=lambda method: float(errors[method].mean()))
        mine, least = errors[Method("auto")].mean(), errors[best].mean()
        constant = float(np.mean([constants[run] for run in sorted(whole)]))
        worse, error = _paired(errors[Method("auto")] - errors[best])
        behind, unsure = _paired(errors[Method("auto")] - errors[AS_SENT])
        holds = (mine <= 1.03 * least or worse <= error) and behind <= unsure
        rows.append(
            [
                f"{epsilon:g}",
                str(len(whole)),
                _share(errors[Method("auto")], constant),
                f"{best}: {_share(errors[best], constant)}",
                f"{mine / least - 1:+.1%} (± {error / least:.1%})",
                _share(errors[AS_SENT], constant),
                _share(reference, constant),
                "holds" if holds else "does not hold",
            ]
        )
    titles = ("ε", "runs", "default", "best on this data after the fact", "distance",
              "RR-on-bins, as sent", "equal information", "verdict")  # fmt: skip
    return markdown(titles, rows)


def _share(errors: Floats | None, constant: float) -> str:
    return "–" if errors is None else f"{errors.mean():.4g} ({errors.mean() / constant:.3f})"


def _paired(differences: Floats) -> tuple[float, float]:
    """Mean of the differences of paired runs, and its standard error (0 for a single run)."""
    runs = differences.size
    error = float(differences.std(ddof=1)) / math.sqrt(runs) if runs > 1 else 0.0
    return float(differences.mean()), error


if __name__ == "__main__":
    main()
