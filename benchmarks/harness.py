"""What every benchmark shares: a stopwatch, tables, and finding the topics."""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import rich.table
from rich.console import Console
from rich.markup import escape

import benchmarks

NOT_TOPICS = {"__main__", "harness"}

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """One topic's result."""

    title: str
    columns: Sequence[str]  # with units
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # what a reader must know to judge the numbers


@dataclass(frozen=True)
class Bench:
    """How a topic is to measure."""

    repeat: int = 3  # measurements, whose median counts
    quick: bool = False  # sizes a hundredth as large, to see that everything runs
    rows: tuple[int, ...] = ()  # sizes, where a topic takes several; () for its own

    def size(self, full: int) -> int:
        """``full``, or a hundredth of it in a quick run."""
        return max(full // 100, 1) if self.quick else full

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the median wall-clock time of ``work``, without the garbage collector's."""
        times = []
        for _ in range(self.repeat):
            gc.collect()
            gc.disable()
            start = time.perf_counter()
            try:
                work()
            finally:
                times.append(time.perf_counter() - start)
                gc.enable()
        return statistics.median(times)


def topics() -> dict[str, ModuleType]:
    """Every topic by name; long studies with a command line of their own have no ``run``."""
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    modules = {
        name: importlib.import_module(f"benchmarks.{name}")
        for name in names
        if name not in NOT_TOPICS
    }
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


def description(topic: ModuleType) -> str:
    return (topic.__doc__ or "").strip().partition("\n")[0]


def show(table: Table, console: Console) -> None:
    """Print a table."""
    view = rich.table.Table(title=table.title, caption=table.note or None, title_justify="left")
    for column in table.columns:
        view.add_column(escape(column), justify="right")
    for row in table.rows:
        view.add_row(*(escape(text(cell)) for cell in row))
    console.print(view)


def text(cell: Cell) -> str:
    """Show a number with three significant digits, and nothing as a dash."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def write(name: str, table: Table, directory: Path) -> None:
    """Write ``NAME.md`` and ``NAME.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = markdown(table.columns, [list(map(text, row)) for row in table.rows], "---:")
    parts = [f"# {table.title}", machine(), rows, *([table.note] if table.note else [])]
    (directory / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    records = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    data = {"title": table.title, "note": table.note, "machine": machine(), "rows": records}
    (directory / f"{name}.json").write_text(
        json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "---") -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(columns)} |", f"|{rule}" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def machine() -> str:
    """Describe what the numbers were taken on."""
    load = os.getloadavg()[0]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores"
        f" (load {load:.1f}), Python {platform.python_version()}, NumPy {np.__version__}"
    )
