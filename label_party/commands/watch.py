"""``label-party watch``; the work is in :mod:`label_party.release.watch`."""

from __future__ import annotations

import typer

from common.config import Section, setting
from label_party.commands.options import options
from label_party.commands.release import print_epoch
from label_party.config.sections import LabelPartyConfig


class WatchOptions(Section):
    once: bool = setting(False, "Release what has arrived and end, as for cron.", flag="--once")
    quiet: bool = setting(False, "No progress bar, no line for each epoch.")


@options(
    "data.labels",
    "data.population",
    "data.date",
    "data.data_set",
    "privacy.epsilon",
    "privacy.total_epsilon",
    "store.directory",
    "watch.interval",
)
def watch(config: LabelPartyConfig, wanted: WatchOptions) -> None:
    """Release epochs as they arrive; pay for a new prior only when the labels have drifted.

    The prior of the last release stays in force until a private test of an epoch's labels says that
    they no longer follow it. Every epoch spends the same epsilon: what the test leaves of the
    prior's part goes to the labels. Ends at ^C or SIGTERM, after the epoch it is at.
    """
    from label_party.release.watch import Watcher, release_new, stopped_by_signals

    report = (lambda outcome: None) if wanted.quiet else print_epoch
    with stopped_by_signals() as stop:
        if wanted.once:
            done = release_new(config, report, quiet=wanted.quiet, stop=stop)
            if not done and not wanted.quiet:
                typer.echo("no new epoch")
        else:
            idle = (lambda line: None) if wanted.quiet else typer.echo
            Watcher(config, report, idle, wanted.quiet).run(stop)
