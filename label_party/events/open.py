"""An epoch's events, opened: completed in memory or on disk, in one order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from common.console import row_progress
from common.engine.shuffle import Keys
from common.engine.start import open_engine
from common.engine.task import EngineError
from common.errors import DataError
from common.release.event_keys import read_secret, secret_check
from label_party.config.sections import LabelPartyConfig
from label_party.events.completion import Completed, complete
from label_party.events.on_disk import Sizes, StoredEvents, Work, complete_external, open_sources
from label_party.events.submitted import Populations
from label_party.events.tasks import read_keys
from label_party.sources.databases import snapshot
from label_party.sources.tables import parquet_files, read_events
from label_party.store.disk import clean, scratch
from label_party.store.release_store import Store

_IN_MEMORY_ROWS = 1 << 21
_CSV_IN_MEMORY_BYTES = 1 << 24
"""A row of CSV takes four bytes at least, so that what is read in memory is one part of a release.
"""


@contextmanager
def submitted_population(
    config: LabelPartyConfig, secret: bytes
) -> Iterator[tuple[Path, int] | None]:
    """Yield file and rows of the submitted population, which stays as it is meanwhile.

    None if other files say what the population is.

    Raises
    ------
    DataError
        If none was submitted, or it was hashed under another secret.
    """
    data = config.data
    if not data.submitted:
        yield None
        return
    populations = Populations(Store(config.store.directory))
    with populations.in_use(data.data_set, data.epoch) as submitted:
        if submitted.secret_check != secret_check(secret).hex():
            raise DataError(
                f"{submitted.client} hashed the population that it submitted under another secret"
                f" than {config.keys.secret_file}; both parties need the same one, so set [keys]"
                " secret_file, or have the population submitted again"
            )
        yield populations.keys_file(data.data_set, data.epoch, submitted), submitted.rows


@contextmanager
def submitted_keys(config: LabelPartyConfig, secret: bytes) -> Iterator[Keys | None]:
    """Yield the keys of :func:`submitted_population` in memory."""
    with submitted_population(config, secret) as submitted:
        yield None if submitted is None else read_keys(submitted[0], 0, submitted[1])


@contextmanager
def open_events(config: LabelPartyConfig, *, quiet: bool) -> Iterator[Completed | StoredEvents]:
    """Complete the population: in memory if it fits there, else through the store's scratch folder.

    Raises
    ------
    LabelveilError
        If labels, population or secret cannot be read, or are not what they should be.
    EngineError
        If workers are lost, also while the events are worked on.
    """
    secret, store = read_secret(config.keys.secret_file), Store(config.store.directory)
    with submitted_population(config, secret) as submitted:
        clean(store.scratch)
        if _fits(config, submitted):
            keys = None if submitted is None else read_keys(submitted[0], 0, submitted[1])
            yield read_completed(config, secret, keys, quiet=quiet)
            return
        store.create()
        try:
            with scratch(store.scratch) as folder, open_engine(config.engine) as engine:
                with snapshot():
                    sources = open_sources(config, submitted, folder)
                work = Work(engine, folder, secret, Sizes())
                with row_progress("Hashing keys", sources.rows, quiet) as advance:
                    events = complete_external(config, sources, work, advance)
                yield events
        except EngineError as error:
            raise EngineError(f"{error}; nothing was spent") from None


def _fits(config: LabelPartyConfig, submitted: tuple[Path, int] | None) -> bool:
    """Whether all rows fit into this process's memory, and no other engine is asked for."""
    if config.engine.name != "local" or config.engine.workers > 1:
        return False
    rows = 0 if submitted is None else submitted[1]
    for source in (config.data.labels_source, config.data.population_source):
        if not isinstance(source, Path) or not source.exists():
            continue  # nobody knows how much it is
        files = parquet_files(source)
        if files is None and source.stat().st_size > _CSV_IN_MEMORY_BYTES:
            return False
        rows += sum(count for _, count in files or ())
    return rows <= _IN_MEMORY_ROWS


def read_completed(
    config: LabelPartyConfig, secret: bytes, submitted: Keys | None, *, quiet: bool
) -> Completed:
    """Read labels and population, and give every event of the population its label."""
    data, privacy = config.data, config.privacy
    own = data.population is None
    day = None if data.date is None else (data.date, data.epoch)
    with snapshot():
        user = privacy.user if own else None
        labels = read_events(data.labels_source, data.key, label=data.label, user=user, day=day)
        population: pl.DataFrame | Keys | None = submitted
        rows = labels.height
        if data.population_source is not None:
            population = read_events(data.population_source, data.key, user=privacy.user, day=day)
            rows += population.height
    with row_progress("Hashing keys", rows, quiet) as advance:
        return complete(
            labels,
            population,
            secret,
            missing=config.missing_value,
            duplicates=data.duplicates,
            max_records_per_user=privacy.max_records_per_user,
            progress=advance,
        )
