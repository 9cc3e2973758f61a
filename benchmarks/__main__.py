"""Command line of the benchmarks."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks import harness


def main() -> None:
    """Measure the topics named, or all of them."""
    topics = harness.topics()
    known = "\n".join(f"  {name:<14} {harness.description(t)}" for name, t in topics.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure speed and memory; nothing is asserted.",
        epilog=f"topics:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="topics to measure (all)")
    parser.add_argument("--repeat", type=int, default=3, help="measurements per median (3)")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size")
    parser.add_argument(
        "--rows",
        type=_sizes,
        default=(),
        metavar="N,N",
        help="numbers of rows for the topics scale and learning, for example 1e6,1e8",
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for results")
    options = parser.parse_args()
    if unknown := sorted(set(options.topics) - set(topics)):
        parser.error(f"unknown topic {unknown[0]!r}; choose from {', '.join(topics)}")
    if options.repeat < 1:
        parser.error(f"--repeat={options.repeat} must be at least 1")
    bench, console = harness.Bench(options.repeat, options.quick, options.rows), Console()
    console.print(harness.machine())
    for name in options.topics or topics:
        with console.status(f"{name}: {harness.description(topics[name])}"):
            table = topics[name].run(bench)
        harness.show(table, console)
        harness.write(name, table, options.out)
    console.print(f"Tables are in {options.out}")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(float(part)) for part in text.split(","))


if __name__ == "__main__":
    main()
