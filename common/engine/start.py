"""Open the engine that a configuration names."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from common.engine.local import InProcess, Pool, begin_worker
from common.engine.task import Engine, EngineSection


@contextmanager
def open_engine(config: EngineSection) -> Iterator[Engine]:
    """Start the configured engine, and stop it at the end."""
    if config.name == "spark":
        from common.engine.spark import SparkEngine

        with SparkEngine.open(config) as spark:
            yield spark
    elif config.workers == 1:
        yield InProcess()
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(config.workers, context, begin_worker) as executor:
            yield Pool(executor, config.workers)
