"""Run a comparison: prepare the data once, work through the jobs, write tables and plots.

Results are appended to ``results.jsonl`` as they come; a comparison that is started again in the
same folder with the same settings takes up where it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.console import progress
from common.entropy import seeded_entropy
from common.errors import ConfigError, DataError
from common.files import PUBLIC, appearing
from common.mechanisms.central.names import CENTRAL, NEED_DELTA
from common.program.comparison.jobs import Job
from common.program.comparison.plots import draw
from common.program.comparison.tables import summarise, write_csv, write_markdown
from common.program.comparison.workers import run_jobs
from common.program.simulation.inputs import Inputs

SETTINGS_FILE = "comparison.json"
RESULTS_FILE = "results.jsonl"

_SUBSAMPLE_SEED = 0


@dataclass(frozen=True)
class Comparison:
    """What all jobs share.

    Attributes
    ----------
    lower, upper
        Bounds of the labels.
    loss
        By which randomizers are built and models predict.
    holdout
        Share of the events that models are scored on.
    rows
        Number of events to use, drawn once; None uses all.
    training
        Settings of the features party's ``[training]`` section, on top of its defaults.
    delta
        δ of the baselines that cannot do without; None if there is none among them.
    """

    lower: float
    upper: float
    loss: str = "squared"
    holdout: float = 0.2
    rows: int | None = None
    training: dict[str, Any] | None = None
    delta: float | None = None


def compare(
    inputs: Inputs,
    comparison: Comparison,
    jobs: Sequence[Job],
    out: Path,
    *,
    workers: int,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Run all jobs that have no result yet and write everything that the results show.

    Returns
    -------
    One record a job: its settings, ``label_mse``, ``test_mse``, ``test_mae``, ``constant_mse``,
    ``outputs``, ``seconds``, and ``error`` where a randomizer does not fit the grid.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers} must be at least 1")
    out.mkdir(parents=True, exist_ok=True)
    data_set = _prepare(inputs, comparison, out)
    results = _earlier(out / RESULTS_FILE)
    todo = [job for job in jobs if job not in results]
    with progress(quiet=quiet) as bar, (out / RESULTS_FILE).open("a") as file:
        task = bar.add_task("Comparing", total=len(jobs), completed=len(jobs) - len(todo), note="")

        def keep(job: Job, answer: dict[str, Any]) -> None:
            results[job] = answer
            file.write(json.dumps({**job.to_json(), **answer}) + "\n")
            file.flush()
            bar.update(task, advance=1, note=f"{job.method} at ε = {job.epsilon:g}")

        if todo:
            run_jobs(todo, data_set, min(workers, len(todo)), out / "logs" / "worker", keep)
    records = [{**job.to_json(), **results[job]} for job in jobs]
    summary = summarise(records)
    write_csv(summary, out / "table.csv")
    names = {job.method.randomizer for job in jobs}
    notes = [f"{name}: {guarantee}." for name, guarantee in CENTRAL.items() if name in names]
    using = [name for name in NEED_DELTA if name in names]
    if using:
        notes.append(f"δ = {comparison.delta:g} for {', '.join(using)}; no other method has one.")
    write_markdown(summary, out / "table.md", notes)
    draw(summary, out)
    return records


def _prepare(inputs: Inputs, comparison: Comparison, out: Path) -> dict[str, Any]:
    """Write the data set for the workers; refuse a folder that holds another comparison."""
    features, truth = inputs.features, inputs.truth
    if features.height != truth.height:
        raise DataError(
            f"{features.height:,} events with features and {truth.height:,} with labels; a"
            " comparison needs the same events on both sides"
        )
    if comparison.rows is not None and comparison.rows < features.height:
        words = seeded_entropy(_SUBSAMPLE_SEED).words("subsample", 0, features.height)
        chosen = np.sort(np.argsort(words)[: comparison.rows])
        features, truth = features[chosen], truth[chosen]
    folder = (out / "data").resolve()
    data_set = {
        "features": str(folder / "features.parquet"),
        "truth": str(folder / "truth.parquet"),
        "key": inputs.key,
        "lower": comparison.lower,
        "upper": comparison.upper,
        "loss": comparison.loss,
        "holdout": comparison.holdout,
        "training": comparison.training or {},
    }
    if comparison.delta is not None:
        data_set["delta"] = comparison.delta
    settings = {**data_set, "rows": features.height, "labels": _fingerprint(truth)}
    path = out / SETTINGS_FILE
    if path.exists():
        if json.loads(path.read_text()) != settings:
            raise ConfigError(
                f"{out} holds a comparison with other data or settings; name another folder with"
                " --out, or remove it"
            )
        return data_set
    folder.mkdir(parents=True, exist_ok=True)
    features.write_parquet(folder / "features.parquet")
    truth.write_parquet(folder / "truth.parquet")
    with appearing(path, mode=PUBLIC) as file:
        file.write(json.dumps(settings, indent=2).encode())
    return data_set


def _fingerprint(truth: pl.DataFrame) -> str:
    return str(int(truth.hash_rows(seed=0).sum() or 0))


def _earlier(path: Path) -> dict[Job, dict[str, Any]]:
    """Results of an interrupted run; a line that was cut short is taken out of the file."""
    results: dict[Job, dict[str, Any]] = {}
    whole = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
                results[Job.from_json(record)] = record
            except (json.JSONDecodeError, KeyError):
                continue
            whole.append(line + "\n")
        with appearing(path, mode=PUBLIC) as file:
            file.write("".join(whole).encode())
    return results
