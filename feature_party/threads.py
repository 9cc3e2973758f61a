"""How many threads work has here: one for few rows, and as many things side by side as cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Event

import torch
from threadpoolctl import ThreadpoolController

THREADS = torch.get_num_threads()
"""What torch takes by itself: ``OMP_NUM_THREADS``, or the machine's cores."""
_FEW_ROWS = 25_000
"""Up to this many, threads wait for each other as long as they compute: one alone takes as long on
two idle cores, half the processor time, and half as long where something else runs."""


@cache
def _linear_algebra() -> ThreadpoolController:
    """NumPy's and SciPy's, as they are loaded; to look for them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """Give few rows one thread of torch's, of the trees' and of linear algebra's."""
    if rows > _FEW_ROWS:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _linear_algebra().limit(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


def at_once() -> int:
    """How many things may be worked on side by side, each with the threads that it has here."""
    return max(1, THREADS // torch.get_num_threads())


@contextmanager
def side_by_side() -> Iterator[tuple[ThreadPoolExecutor, Callable[[], None]]]:
    """As many threads as cores are free, and what is to be called in them between two steps.

    It raises ``CancelledError`` there once an error, or an interrupt, has ended this context:
    nobody waits for what nobody wants any more.
    """
    unwanted = Event()

    def go_on() -> None:
        if unwanted.is_set():
            raise CancelledError

    with ThreadPoolExecutor(at_once()) as threads:
        try:
            yield threads, go_on
        except BaseException:
            unwanted.set()
            raise
