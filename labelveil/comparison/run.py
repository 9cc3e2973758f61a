"""Run a comparison: prepare the data once, work through the jobs, write tables and plots.

Results are appended to ``results.jsonl`` as they come; a comparison that is started again in the
same folder with the same settings takes up where it was.

Training happens in worker processes, a job at a time: it brings torch, and several jobs run at
once. A worker gets the data set, then a job a line on standard input, and answers each with a line
of JSON.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.children import child_command, child_environment, end_with_parent
from labelveil.common.console import progress
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError, LabelveilError, not_none
from labelveil.common.extras import need
from labelveil.common.files import PUBLIC, appearing, writing
from labelveil.common.signals import interrupts_held, terminated_as_interrupted
from labelveil.comparison.names import CENTRAL, NEED_DELTA
from labelveil.comparison.settings import CompareSettings, Job
from labelveil.comparison.tables import Cell, draw, summarise, write_csv, write_markdown
from labelveil.simulation.inputs import Inputs, read_inputs

SETTINGS_FILE = "comparison.json"
RESULTS_FILE = "results.jsonl"


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of a comparison."""

    # one a job: its settings, ``label_mse``, ``test_mse``, ``test_mae``, ``test_loss``,
    # ``constant_mse``, ``outputs``, ``seconds``, and ``error`` where a randomizer does not fit the
    # grid. Of several labels, these figures stand under ``labels``, a list, with a ``name``.
    records: list[dict[str, Any]]
    cells: list[Cell]  # means and deviations over the runs, one a method and ε, of each label
    folder: Path  # holds ``table.md``, ``table.csv`` and the plots

    @property
    def failures(self) -> list[str]:
        """Which methods could not be run, and why; the reference on true labels among them."""
        return _failures(self.records)

    @property
    def complete(self) -> bool:
        """Whether every method that was asked for has run at every ε."""
        return not any("error" in record for record in self.records if _is_private(record))


def _failures(records: Iterable[dict[str, Any]]) -> list[str]:
    failed = (
        f"{Job.from_json(record).method} could not be run: {record['error']}"
        for record in records
        if "error" in record
    )
    return [*dict.fromkeys(failed)]


def _is_private(record: dict[str, Any]) -> bool:
    return math.isfinite(Job.from_json(record).epsilon)


def run_comparison(settings: CompareSettings) -> Comparison:
    """Run all jobs that have no result yet and write everything that the results show.

    ``LabelveilError`` if something cannot work, no method could be run, or a worker dies; results
    until then stand.
    """
    need("features", "a comparison")
    jobs, out = settings.jobs, settings.out
    inputs = read_inputs(settings.simulation)
    shared = settings.for_workers(jobs, inputs)
    data_set = _prepare(inputs, shared, settings.rows, out)
    results = _earlier(out / RESULTS_FILE)
    todo = [job for job in jobs if job not in results]
    with progress(quiet=settings.quiet) as bar, (out / RESULTS_FILE).open("a") as file:
        task = bar.add_task("Comparing", total=len(jobs), completed=len(jobs) - len(todo), note="")

        def keep(job: Job, answer: dict[str, Any]) -> None:
            results[job] = answer
            with writing(out / RESULTS_FILE):
                file.write(json.dumps({**job.to_json(), **answer}) + "\n")
                file.flush()
            bar.update(task, advance=1, note=f"{job.method} at ε = {job.epsilon:g}")

        if todo:
            workers = min(settings.workers or os.cpu_count() or 1, len(todo))
            with terminated_as_interrupted():  # the workers end with this process
                run_jobs(todo, data_set, workers, out / "logs" / "worker", keep)
    records = [{**job.to_json(), **results[job]} for job in jobs]
    private = [record for record in records if _is_private(record)]
    if all("error" in record for record in private):
        raise ConfigError(f"nothing to compare: {'; '.join(_failures(private))}")
    cells = summarise(records)
    write_csv(cells, out / "table.csv")
    names = {job.method.randomizer for job in jobs}
    notes = [f"{name}: {guarantee}." for name, guarantee in CENTRAL.items() if name in names]
    using = [name for name in NEED_DELTA if name in names]
    if using:
        notes.append(f"δ = {settings.delta:g} for {', '.join(using)}; no other method has one.")
    notes += (f"{failure}." for failure in _failures(records))
    write_markdown(cells, out / "table.md", notes, settings.loss)
    draw(cells, out, settings.loss)
    return Comparison(records, cells, out)


def _prepare(inputs: Inputs, shared: dict[str, Any], rows: int | None, out: Path) -> dict[str, Any]:
    """Write the data set for the workers; refuse a folder that holds another comparison."""
    features, truth = inputs.features, inputs.truth
    if features.height != truth.height:
        raise DataError(
            f"{features.height:,} events with features and {truth.height:,} with labels; a"
            " comparison needs the same events on both sides"
        )
    if rows is not None and rows < features.height:
        words = seeded_entropy(0).words("subsample", 0, features.height)
        chosen = np.sort(np.argsort(words)[:rows])
        features, truth = features[chosen], truth[chosen]
    folder = (out / "data").resolve()
    data_set = {
        "features": str(folder / "features.parquet"),
        "truth": str(folder / "truth.parquet"),
        "key": inputs.key,
        **shared,
    }
    digest = str(int(truth.hash_rows(seed=0).sum() or 0))
    facts = {**data_set, "rows": features.height, "labels": digest}
    path = out / SETTINGS_FILE
    if path.exists():
        if json.loads(path.read_text("utf-8")) != facts:
            raise ConfigError(
                f"{out} holds a comparison with other data or settings; name another folder with"
                " --out, or remove it"
            )
        return data_set
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder):
        features.write_parquet(folder / "features.parquet")
        truth.write_parquet(folder / "truth.parquet")
    with appearing(path, mode=PUBLIC) as file:
        file.write(json.dumps(facts, indent=2).encode())
    return data_set


def _earlier(path: Path) -> dict[Job, dict[str, Any]]:
    """Results of an interrupted run. What was cut short, or could not be run, is tried again, and
    its line taken out of the file."""
    results: dict[Job, dict[str, Any]] = {}
    whole = []
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            try:
                record = json.loads(line)
                job = Job.from_json(record)
            except (json.JSONDecodeError, KeyError):
                continue
            if "error" not in record:
                results[job] = record
                whole.append(line + "\n")
        with appearing(path, mode=PUBLIC) as file:
            file.write("".join(whole).encode())
    return results


class WorkerFailed(LabelveilError):
    """A worker process died; the message says where its log is."""


def run_jobs(
    jobs: Iterable[Job],
    data_set: dict[str, Any],
    workers: int,
    log: Path,
    on_result: Callable[[Job, dict[str, Any]], None],
) -> None:
    """Run jobs on ``workers`` processes, and report each result as it comes.

    ``WorkerFailed`` if a worker dies; results that were reported until then stand.
    """
    processes = [_start(workers, log.with_suffix(f".{index}.log")) for index in range(workers)]
    idle = queue.SimpleQueue[subprocess.Popen[str]]()

    def prepare(process: subprocess.Popen[str]) -> None:
        _ask(process, data_set, log)
        idle.put(process)

    def run(job: Job) -> tuple[Job, dict[str, Any]]:
        process = idle.get()
        try:
            return job, _ask(process, job.to_json(), log)
        finally:
            idle.put(process)  # a dead one, too: no thread may wait for ever

    pool = ThreadPoolExecutor(workers)  # each thread waits for one process
    try:
        list(pool.map(prepare, processes))
        for future in as_completed([pool.submit(run, job) for job in jobs]):
            on_result(*future.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
            process.wait()


def _start(workers: int, log: Path) -> subprocess.Popen[str]:
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as errors, interrupts_held():
        return subprocess.Popen(
            child_command("labelveil.comparison.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            env=child_environment(OMP_NUM_THREADS=threads, OMP_WAIT_POLICY="PASSIVE"),
            preexec_fn=end_with_parent,
        )


def _ask(process: subprocess.Popen[str], message: dict[str, Any], log: Path) -> dict[str, Any]:
    requests, replies = not_none(process.stdin), not_none(process.stdout)
    try:
        requests.write(json.dumps(message) + "\n")
        requests.flush()
        answer: dict[str, Any] = json.loads(replies.readline())
    except (OSError, ValueError) as error:  # a closed pipe, or no line
        process.kill()
        code = process.wait()
        raise WorkerFailed(
            f"a worker died with exit code {code}; its log is beside {log}"
        ) from error
    return answer
