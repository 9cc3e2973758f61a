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
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from common.errors import LabelveilError, present
from labelveil.children import child_command, child_environment
from labelveil.comparison.jobs import Job

WORKER = "labelveil.comparison.worker"

OnResult = Callable[[Job, dict[str, Any]], None]


class WorkerFailed(LabelveilError):
    """A worker process died; the message says where its log is."""


def run_jobs(
    jobs: Iterable[Job], data_set: dict[str, Any], workers: int, log: Path, on_result: OnResult
) -> None:
    """Run jobs on ``workers`` processes; ``on_result`` is called from one thread at a time.

    Raises
    ------
    WorkerFailed
        If a worker dies. Results that were reported until then stand.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock, failures, stop = threading.Lock(), list[BaseException](), threading.Event()
    processes = [_start(workers, log.with_suffix(f".{index}.log")) for index in range(workers)]

    def serve(process: subprocess.Popen[str]) -> None:
        try:
            _ask(process, data_set)
            while not stop.is_set():
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                answer = _ask(process, job.to_json())
                with lock:
                    on_result(job, answer)
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=serve, args=(p,), daemon=True) for p in processes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a join without a limit would not hear ^C
                thread.join(0.5)
    finally:
        stop.set()
        for process in processes:
            process.kill()
            process.wait()
    if failures:
        first = failures[0]
        if isinstance(first, LabelveilError):
            raise first
        raise WorkerFailed(f"a worker died ({first}); its log is beside {log}") from first


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


def _ask(process: subprocess.Popen[str], message: dict[str, Any]) -> dict[str, Any]:
    requests, replies = present(process.stdin), present(process.stdout)
    requests.write(json.dumps(message) + "\n")
    requests.flush()
    line = replies.readline()
    if not line:
        raise WorkerFailed(f"the worker ended with exit code {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer
