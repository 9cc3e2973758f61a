"""Processes forked after Polars was used: its threads stay behind, and whoever asks them waits.

Polars begins a thread a processor when it first computes, and never again
(https://docs.pola.rs/user-guide/misc/multiprocessing/).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

_THREADS = "/proc/self/task"
_left_behind = [False, False]
"""Whether this process lost the threads, and whether one that is forked now loses them."""


def _has_threads() -> bool:
    names = set[str]()
    for thread in os.listdir(_THREADS) if os.path.isdir(_THREADS) else ():
        with suppress(OSError), open(f"{_THREADS}/{thread}/comm", encoding="utf-8") as name:
            names.add(name.read())  # or it has ended meanwhile
    return any(re.match(r"polars-\d", name) for name in names)


def _before() -> None:
    _left_behind[1] = _left_behind[0] or _has_threads()


def _in_child() -> None:
    _left_behind[0] = _left_behind[1]


def watch_forks() -> None:
    """See each fork from now on; once a process, before anything computes."""
    os.register_at_fork(before=_before, after_in_child=_in_child)


def check_threads() -> None:
    """Raise ``RuntimeError`` in a process whose parent had used Polars before the fork."""
    if _left_behind[0]:
        raise RuntimeError(
            "this process was forked after Polars was used, whose threads stayed behind, and would"
            ' wait for them for ever; start it by multiprocessing.get_context("spawn"), or read'
            " tables and models in the forked processes alone"
        )
