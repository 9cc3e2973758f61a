"""A pool of worker processes that train, one job at a time, each in a process of its own.

A worker is ``python -m labelveil.comparison.worker``: it gets the data set once, then a job a
line on standard input, and answers each with a line of JSON. Training happens there because it
brings torch, and so that several jobs run at once.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from common.errors import LabelveilError, present
from labelveil.children import child_command, child_environment
from labelveil.comparison.jobs import Job

WORKER = "labelveil.comparison.worker"


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
    with log.open("a") as errors:
        return subprocess.Popen(
            child_command(WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=child_environment(OMP_NUM_THREADS=threads, OMP_WAIT_POLICY="PASSIVE"),
        )


def _ask(process: subprocess.Popen[str], message: dict[str, Any], log: Path) -> dict[str, Any]:
    requests, replies = present(process.stdin), present(process.stdout)
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
