"""The one reader of an epoch's events: completed in memory or on disk, in one order.

Every purchase reads through here: releases and watches, top-k, synthetic tables, questions.

*Neighbours.* Public are the population's keys, whose they are, and whatever else its file says of
them; where the labels' own keys are the population, those keys, their users and their strata
(``[strata]``: those of an event's first row). Secret is all that the labels' rows say: labels,
further columns, and which events have a row at all, or several. Neighbours differ in the rows of
one event (unit ``record``), or of all events of one user.

*What a neighbour changes.* Label and columns of at most c events, c = 1 or
``max_records_per_user``, and nothing else: not which events there are, nor their order.

1. Rows are kept by their own key and day alone: a key outside the population is left out, and so is
   another day's row.
2. What an event is, is a function of its own rows (``[data] duplicates``): with ``missing`` an
   event of several rows is as one without any; ``last`` takes, of each column, the last that there
   is; ``sum`` and ``mean`` take its rows for parts of one event, which has the category that all
   that have one agree on, else none. An event without a row has the missing label and no category.
3. A user's events beyond c have the missing label and no category, and so do those without a
   user. Which these are depends on keys and users, not on labels. Where the labels' own keys are
   the population, an event is its first row's user's, and the rows of anybody else do not count.

So, with an exact count of what noise is added to: a histogram of labels, or of cells of a table,
moves by at most 2c in L1 (c events leave a cell and enter one); a sum of values in 0 … 1 by c; the
distinct users of each category by 1, and by 2c over all categories, for an event names one user and
one category; and c events' labels are randomized from something else. These are the sensitivities
that are charged; ``tests/label_party/events/test_neighbours.py`` enumerates them.

Nothing in the labels' rows is refused. What is odd about them is counted, for the operator alone
(:mod:`labelveil.label_party.events.intention`). A population that lists an event twice, or none at
all, is refused: it is public.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from labelveil.common.console import row_progress
from labelveil.common.engine.local import open_engine
from labelveil.common.engine.task import EngineError, EngineSection
from labelveil.common.errors import DataError
from labelveil.common.release.event_keys import read_secret, secret_check
from labelveil.label_party.config.data import DataSection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.columns import Column
from labelveil.label_party.events.completion import Rules
from labelveil.label_party.events.epoch import rows_of_epoch
from labelveil.label_party.events.steps import Events, Sizes, Sources, Work, complete
from labelveil.label_party.events.submitted import Populations
from labelveil.label_party.events.tasks import SubmittedRows
from labelveil.label_party.sources.databases import snapshot
from labelveil.label_party.sources.tables import parquet_files
from labelveil.label_party.store.disk import clean, scratch
from labelveil.label_party.store.release_store import Store

_IN_MEMORY_ROWS = 1 << 21
_CSV_IN_MEMORY_BYTES = 1 << 24
"""A row of CSV takes four bytes at least, so that what is read in memory is one part of a release.
"""


@contextmanager
def submitted_population(config: LabelPartyConfig, secret: bytes) -> Iterator[SubmittedRows | None]:
    """Yield the submitted population, which stays as it is meanwhile.

    None if other files say what the population is. ``DataError`` if none was submitted, or it was
    hashed under another secret.
    """
    data = config.data
    if not data.submitted:
        yield None
        return
    populations = Populations(Store(config.store.directory))
    with populations.in_use(data.data_set, data.epoch) as submitted:
        if bytes.fromhex(submitted.secret_check) != secret_check(secret):
            raise DataError(
                f"{submitted.client} hashed the population that it submitted under another secret"
                f" than {config.keys.secret_file}; both parties need the same one, so set [keys]"
                " secret_file, or have the population submitted again"
            )
        yield SubmittedRows(*populations.rows_of(data.data_set, data.epoch, submitted))


@contextmanager
def open_events(
    config: LabelPartyConfig,
    columns: Sequence[Column] = (),
    stratum: Column | None = None,
    *,
    quiet: bool,
) -> Iterator[Events]:
    """Complete the population: in memory if it fits there, else through the store's scratch folder.

    ``columns`` are further ones that are wanted of each event, and ``stratum`` the one that says in
    which stratum it is. ``LabelveilError`` if labels, population or secret cannot be read, or are
    not what they should be; ``EngineError`` if workers are lost, also while the events are worked
    on.
    """
    secret, store = read_secret(config.keys.secret_file), Store(config.store.directory)
    with submitted_population(config, secret) as submitted:
        clean(store.scratch)
        try:
            with _work(config, store, secret, submitted) as work:
                with snapshot():
                    labels, population = rows_of_epoch(config, columns, stratum)
                    read, listed = work.open_table(labels, "labels"), None
                    if population is not None:
                        listed = work.open_table(population, "population")
                sources = Sources(read, listed, submitted)
                limit = config.privacy.max_records_per_user
                with row_progress("Hashing keys", sources.rows, quiet) as advance:
                    events = complete(sources, work, rules_of(config), limit, advance)
                yield events
        except EngineError as error:
            raise EngineError(f"{error}; nothing was spent") from None


def rules_of(config: LabelPartyConfig) -> Rules:
    """What an event's labels are, given its rows."""
    return Rules(
        tuple(terms.missing for terms in config.labels),
        tuple(terms.bounds for terms in config.labels),
        config.data.duplicates,
    )


@contextmanager
def _work(
    config: LabelPartyConfig, store: Store, secret: bytes, submitted: SubmittedRows | None
) -> Iterator[Work]:
    """Where events are completed. A store is made for it, and taken away if it stays empty."""
    if _fits(config.data, config.engine, submitted):
        yield Work.in_memory(secret)
        return
    existed = store.directory.exists()
    store.create()
    try:
        with scratch(store.scratch) as folder, open_engine(config.engine) as engine:
            yield Work(engine, folder, secret, Sizes())
    finally:
        if not existed:
            store.remove_if_empty()


def _fits(data: DataSection, engine: EngineSection, submitted: SubmittedRows | None) -> bool:
    """Whether all rows fit into this process's memory, and no other engine is asked for."""
    if engine.name != "local" or engine.workers > 1:
        return False
    rows = 0 if submitted is None else submitted.rows
    for source in (data.labels_source, data.population_source):
        if not isinstance(source, Path) or not source.exists():
            continue  # nobody knows how much it is
        files = parquet_files(source)
        if files is None and (source.is_dir() or source.stat().st_size > _CSV_IN_MEMORY_BYTES):
            return False
        rows += sum(count for _, count in files or ())
    return rows <= _IN_MEMORY_ROWS
