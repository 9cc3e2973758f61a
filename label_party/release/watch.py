"""``label-party watch``: one release an epoch, as epochs arrive, and a new prior only after drift.

Epochs are files, one each (``{epoch}`` in the name of ``[data] labels``), or days of a column
(``[data] date``). A file counts as complete when it has its name, a day when it is over. What comes
later for an epoch that was released is not in any release.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl

from labelveil.common.config.names import NAME_PATTERN, NAME_WORDS
from labelveil.common.errors import ConfigError, DataError, OutputFailed
from labelveil.common.signals import Stop
from labelveil.common.streams import one_line, say
from labelveil.label_party.config.data import EPOCH_PLACE
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.epoch import rows_of_epoch
from labelveil.label_party.events.intention import Confirm, DryRunEnded, Intention, go_on
from labelveil.label_party.events.submitted import Populations
from labelveil.label_party.release.prior_in_force import (
    open_session,
    session_to_open,
)
from labelveil.label_party.release.run import ReleaseOutcome, run_release
from labelveil.label_party.sources.remote_source import Source
from labelveil.label_party.store.disk import StoreBusy, StoreError
from labelveil.label_party.store.purchase import rehearsing
from labelveil.label_party.store.release_store import Store, is_release

Report = Callable[[ReleaseOutcome], None]

_ANYTHING = Exception, pl.exceptions.PanicException
"""What an epoch may end with; the latter, of Polars, is no ``Exception``."""


_WAITED_FOR, _BY_ITSELF = 60.0, 3600.0
"""Seconds between two looks: for what somebody submits and waits for, and for what lands."""


def arrived(config: LabelPartyConfig) -> list[str]:
    """Return the epochs that are complete, in the order of their names.

    ``ConfigError`` if nothing says what an epoch is, or files and epochs contradict each other;
    ``DataError`` if the folder of the files, or the column of dates, is not there.
    """
    data = config.data
    by_file = EPOCH_PLACE in str(data.labels)
    if data.submitted and not by_file and data.date is None:
        return _submitted(config)  # the submitter says which there are, and what they are about
    if by_file == (data.date is not None):
        raise ConfigError(
            f"epochs are either files, with {EPOCH_PLACE} in [data] labels, or days of a column,"
            f" [data] date; {'both' if by_file else 'neither'} is set"
        )
    population = data.population_source
    if by_file:
        return _files(data.labels_source, population, config.privacy.epochs)
    today = datetime.now(UTC).date().isoformat()
    if data.submitted:  # the submitter says which days there are, and no row of labels does
        return [epoch for epoch in _submitted(config) if _is_day(epoch) and epoch < today]
    rows, listed = rows_of_epoch(config)
    return [day for day in (listed or rows).days() if day < today]


def _submitted(config: LabelPartyConfig) -> list[str]:
    return Populations(Store(config.store.directory)).epochs(config.data.data_set)


def _is_day(epoch: str) -> bool:
    try:
        return date.fromisoformat(epoch).isoformat() == epoch
    except ValueError:
        return False


def _files(labels: Source, population: Source | None, epochs_are: str) -> list[str]:
    templates = [labels, *([] if population is None else [population])]
    if population is not None and EPOCH_PLACE not in str(population):
        if epochs_are == "disjoint":
            raise ConfigError(
                f"population={str(population)!r} covers the same events in every epoch, which"
                f" epochs='disjoint' denies; set [data] population to a name with {EPOCH_PLACE}"
            )
        templates.pop()
    epochs = [set(_epochs_of(template)) for template in templates]
    return sorted(set.intersection(*epochs))


def _epochs_of(template: Source) -> Iterator[str]:
    if not isinstance(template, Path):
        raise ConfigError(
            f"{template} must be files on this machine, whose names can be listed; set [data]"
            " labels and population, or [data] date for one source with a column of dates"
        )
    before, _, after = template.name.partition(EPOCH_PLACE)
    if EPOCH_PLACE in str(template.parent) or not (before or after) or EPOCH_PLACE in after:
        raise ConfigError(
            f"{template} must have {EPOCH_PLACE} once, in the file's name and not alone, such as"
            f" sales/{EPOCH_PLACE}.parquet; set [data] labels and population"
        )
    if not template.parent.is_dir():
        raise DataError(f"{template.parent} is no folder; set [data] labels and population")
    for path in template.parent.iterdir():
        name = path.name
        if name.startswith(".") or not (name.startswith(before) and name.endswith(after)):
            continue
        yield name[len(before) : len(name) - len(after)]


def release_new(
    config: LabelPartyConfig,
    report: Report,
    *,
    quiet: bool = False,
    stop: Stop | None = None,
    confirm: Confirm = go_on,
) -> int:
    """Release every epoch that has arrived and was not released; return how many.

    ``report`` is told of each. ``confirm`` is called before each is charged; one that it does not
    want is left out. ``stop`` ends the work before the next epoch once it is set. ``DataError`` if
    epochs were refused, whatever the reason, once all others are released: the first one's;
    ``StoreBusy`` if another process builds. What was released stays.
    """
    store = Store(config.store.directory)
    done, refused = _look(config, store, report, {}, quiet=quiet, stop=stop, confirm=confirm)
    if refused:
        (epoch, line), *others = refused.items()
        more = f" ({len(others)} more were refused, too)" if others else ""
        raise DataError(f"epoch {epoch!r}: {line}{more}")
    return done


def _look(
    config: LabelPartyConfig,
    store: Store,
    report: Report,
    before: Mapping[str, str],
    *,
    again: bool = True,
    quiet: bool,
    stop: Stop | None,
    confirm: Confirm,
) -> tuple[int, dict[str, str]]:
    """Release what there is; return how many epochs, and which were refused, and why.

    Those that were refused ``before`` are tried ``again``, or not, and last: whoever submits one
    delays no other.
    """
    done, refused = 0, dict[str, str]()
    for epoch in sorted(_waiting(config, store), key=lambda epoch: epoch in before):
        if stop is not None and stop.is_set():
            return done, {**before, **refused}
        if epoch in before and not again:
            refused[epoch] = before[epoch]
            continue
        store.check_ledger()  # a second one would pay for all of them again
        try:
            outcome = _release(config.at(epoch), store, quiet, confirm)
        except DryRunEnded:
            continue
        except OutputFailed:
            raise
        except StoreBusy as busy:
            store.create()
            with store.building():  # else it is the store that is busy, and no epoch can be built
                refused[epoch] = str(busy)
        except _ANYTHING as error:
            refused[epoch] = _reason(error)
        else:
            report(outcome)  # if that fails, it is not the epoch that does
            done += 1
            store.check_ledger()  # which may be its first
    return done, refused


def _reason(error: BaseException) -> str:
    """Say why an epoch was refused. What is not meant for users may show a label: it stays out."""
    if (line := one_line(error)) is not None:
        return line
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__} in {Path(where.filename).name}, line {where.lineno}, a mistake of"
        " this program; label-party release -v of this epoch shows all of it"
    )


def _release(
    config: LabelPartyConfig, store: Store, quiet: bool, confirm: Confirm
) -> ReleaseOutcome:
    if not re.fullmatch(NAME_PATTERN, config.data.epoch):
        raise DataError(
            f"the name of {config.data.labels} cannot name an epoch; it must hold {NAME_WORDS}"
        )

    def confirm_both(intention: Intention) -> None:
        if config.watch.hits is None:
            return confirm(intention)
        with rehearsing(store) as rehearsal:
            session = session_to_open(config, rehearsal.ledger, intention.events.rows)
            if session is not None:
                intention = replace(intention, purchases=(session, *intention.purchases))
                rehearsal.buy(intention.purchases)  # both are allowed, or neither is charged
        confirm(intention)
        if session is not None:
            open_session(store, session)

    return run_release(config, quiet=quiet, confirm=confirm_both, keeps_prior=True)


def _waiting(config: LabelPartyConfig, store: Store) -> list[str]:
    epochs = arrived(config)
    with store.read_ledger() as ledger:
        settled = {
            charge.epoch for charge in filter(is_release, ledger.charges(config.data.data_set))
        }
    return [epoch for epoch in epochs if epoch not in settled]


def keep_releasing(
    config: LabelPartyConfig,
    report: Report,
    idle: Callable[[str], None],
    stop: Stop,
    *,
    quiet: bool = False,
    confirm: Confirm = go_on,
) -> None:
    """Look, release, wait, and again, until ``stop``; an epoch that was begun is finished.

    ``idle`` is told of each wait for another process, in words. An epoch that is refused, for
    whatever reason, stays to be released, and those after it are, meanwhile. The operator is told
    of a refusal once, and again when its reason is another.
    """
    store = Store(config.store.directory)
    refused, unread, seconds, looks = dict[str, str](), "", seconds_between_looks(config), 0
    # what is submitted in vain has labels read again no more often than what lands by itself
    often = round(_BY_ITSELF / seconds) if config.watch.interval == "auto" else 1
    while not stop.is_set():
        again, looks = looks % often == 0, looks + 1
        try:
            _, now = _look(
                config, store, report, refused, again=again, quiet=quiet, stop=stop, confirm=confirm
            )
            for epoch, line in now.items():
                if refused.get(epoch) != line:
                    say(f"error: epoch {epoch!r}: {line}")
            refused, unread = now, ""
        except StoreBusy as busy:  # a release by hand, or a backup: it ends by itself
            idle(str(busy))
        except (DataError, StoreError, OSError) as error:  # which epochs there are is not known
            line = one_line(error) or ""
            if line != unread:
                say(f"error: {line}")
            unread = line
        stop.wait(seconds)


def seconds_between_looks(config: LabelPartyConfig) -> float:
    """How long a watch waits before it looks for new epochs again."""
    if config.watch.interval != "auto":
        return config.watch.interval
    return _WAITED_FOR if config.data.submitted else _BY_ITSELF
