"""The command ``label-party watch``; the work is in :mod:`label_party.release.watch`."""

from __future__ import annotations

from typing import Annotated

import typer

from label_party.commands.options import (
    Config,
    DataSet,
    Directory,
    Epsilon,
    Population,
    Settings,
    Total,
)
from label_party.config.sections import DEFAULT_CONFIG, load


def watch(
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels; {epoch} in the name stands for an epoch's.")
    ] = None,
    population: Population = None,
    date: Annotated[
        str | None, typer.Option(help="Column of one file whose days are the epochs.")
    ] = None,
    data_set: DataSet = None,
    epsilon: Epsilon = None,
    total_epsilon: Total = None,
    store: Directory = None,
    once: Annotated[
        bool, typer.Option("--once", help="Release what has arrived and end, as for cron.")
    ] = False,
    interval: Annotated[
        float | None, typer.Option(help="Seconds between two looks for new epochs.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar, no line for each epoch.")] = False,
) -> None:
    """Release epochs as they arrive; pay for a new prior only when the labels have drifted.

    The prior of the last release stays in force until a private test of an epoch's labels says that
    they no longer follow it. Every epoch spends the same epsilon: what the test leaves of the
    prior's part goes to the labels. Ends at ^C or SIGTERM, after the epoch it is at.
    """
    from label_party.commands.release import print_epoch
    from label_party.release.watch import Watcher, release_new, stopped_by_signals

    overrides = {
        "data.labels": labels,
        "data.population": population,
        "data.date": date,
        "data.data_set": data_set,
        "privacy.epsilon": epsilon,
        "privacy.total_epsilon": total_epsilon,
        "store.directory": store,
        "watch.interval": interval,
    }
    loaded = load(config, overrides, settings or ())
    report = (lambda outcome: None) if quiet else print_epoch
    with stopped_by_signals() as stop:
        if once:
            done = release_new(loaded, report, quiet=quiet, stop=stop)
            if not done and not quiet:
                typer.echo("no new epoch")
        else:
            idle = (lambda line: None) if quiet else typer.echo
            Watcher(loaded, report, idle, quiet).run(stop)
