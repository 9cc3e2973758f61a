"""``label-party watch``; the work is in :mod:`labelveil.label_party.release.watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelveil.common.config import setting
from labelveil.common.config.answers import print_line
from labelveil.common.streams import say
from labelveil.label_party.commands.options import OutputOptions, options
from labelveil.label_party.commands.preflight import Preflight, PreflightOptions
from labelveil.label_party.commands.release import document, epoch_line
from labelveil.label_party.config.sections import LabelPartyConfig

if TYPE_CHECKING:
    from labelveil.label_party.release.run import ReleaseOutcome


class WatchOptions(OutputOptions):
    once: bool = setting(False, "Release what has arrived and end, as for cron.", flag="--once")


@options(
    *("data.labels", "data.population", "data.date", "data.data_set"),
    *("privacy.epsilon", "privacy.total_epsilon", "store.directory", "watch.interval"),
)
def watch(config: LabelPartyConfig, wanted: WatchOptions, how: PreflightOptions) -> None:
    from labelveil.common.allocator import keep_freed_memory
    from labelveil.common.signals import stopped_by_signals
    from labelveil.label_party.release.watch import (
        keep_releasing,
        release_new,
        seconds_between_looks,
    )

    def report(outcome: ReleaseOutcome) -> None:
        wanted.answer(document(outcome), epoch_line(outcome))
        preflight.untold.clear()

    keep_freed_memory()
    silent = wanted.quiet or wanted.as_json
    if len(config.labels) > 1 and not wanted.quiet:
        say("several labels: every epoch pays for a prior of its own")
    with Preflight(config, how, wanted) as preflight, stopped_by_signals() as stop:
        if wanted.once or how.dry_run:
            done = release_new(config, report, quiet=wanted.quiet, stop=stop, confirm=preflight)
            if not (done or preflight.foreseen or silent):
                print_line("no new epoch")
        else:
            if not silent:
                say(f"looking for new epochs every {seconds_between_looks(config):g} s; ^C ends it")
            idle = (lambda line: None) if silent else print_line
            keep_releasing(config, report, idle, stop, quiet=wanted.quiet, confirm=preflight)
