"""`labelveil simulate`: both parties on this machine, with real processes and real mutual TLS."""

from __future__ import annotations

from labelveil.common.config.answers import Json, print_json
from labelveil.common.config.options import with_options
from labelveil.common.console import stdout, warning
from labelveil.simulation import Settings, run_simulation
from labelveil.simulation.run import Outcome, summary_table


@with_options()
def simulate(settings: Settings, shown: Json) -> None:
    show(run_simulation(settings), settings, shown)


def show(outcome: Outcome, settings: Settings, shown: Json) -> None:
    if shown.as_json:
        print_json({**outcome.metrics, "report": outcome.report})
        return
    if settings.quiet:
        return
    stdout.print()
    stdout.print(summary_table(outcome.metrics))
    for text in outcome.metrics.get("warnings", []):
        stdout.print(warning(text))
    # A path may be longer than the terminal is wide, and must stay one line to be opened.
    stdout.print(f"\nreport: {outcome.report}", soft_wrap=True, highlight=False)
