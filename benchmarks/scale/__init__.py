"""Every stage of a message, each in a process of its own, beside its physical limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelveil.common.security.tls import only_tls13

if TYPE_CHECKING:
    from benchmarks.harness import Bench, Table

only_tls13()  # a stage's process is a program, and one of them fetches


def run(bench: Bench) -> Table:
    """Measure all stages."""
    # a stage's own process imports this package, and must not load what the others need
    from benchmarks.scale.table import measure

    return measure(bench)
