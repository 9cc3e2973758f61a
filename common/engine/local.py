"""Tasks in this process, or in workers on this machine; and the engine that is configured."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from labelveil.common.allocator import keep_freed_memory
from labelveil.common.engine.task import Engine, EngineError, EngineSection, ResultT, Secrets, Task
from labelveil.common.errors import not_none


class InProcess(Engine):
    """Runs one task after another, here."""

    def stream(self, tasks: Sequence[Task[ResultT]], secrets: Secrets) -> Iterator[ResultT]:
        for task in tasks:
            yield task.run(secrets)


@dataclass(frozen=True)
class Pool(Engine):
    """Runs tasks in worker processes of this machine.

    Workers are spawned, never forked: a process that has started gRPC's threads must not be
    copied. Secrets reach a worker through its pipe, with each task, and lie in memory alone.
    """

    executor: ProcessPoolExecutor
    workers: int

    def stream(self, tasks: Sequence[Task[ResultT]], secrets: Secrets) -> Iterator[ResultT]:
        waiting: deque[Future[ResultT]] = deque()
        try:
            for task in tasks:
                waiting.append(self.executor.submit(task.run, secrets))
                if len(waiting) > 2 * self.workers:  # results must not pile up
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise EngineError(
                "a worker process died, most likely for want of memory; lower [engine]"
                f" workers={self.workers}, or free some memory, and try again"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def begin_worker() -> None:
    """Prepare a worker process, which ends when the one that started it does.

    One that is killed cannot say so: its workers would wait for tasks for ever, and have the
    secrets of the last ones in their memory.
    """
    keep_freed_memory()
    parent = not_none(multiprocessing.parent_process())

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextmanager
def open_engine(config: EngineSection) -> Iterator[Engine]:
    """Start the configured engine, and stop it at the end."""
    if config.name == "spark":
        from labelveil.common.engine.spark import SparkEngine

        with SparkEngine.open(config) as spark:
            yield spark
    elif config.workers == 1:
        yield InProcess()
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(config.workers, context, begin_worker) as executor:
            yield Pool(executor, config.workers)
