"""``label-party release``: read, complete, reserve, build, write, commit.

The order is the durability argument. Everything that can be refused is refused before the budget is
touched; the bytes are on the disk before the commit; nothing is served before the commit. Dying
between any two steps leaves either a reservation, which the next start takes back together with its
bytes, or a finished release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from common.console import progress as progress_bar
from common.engine.shuffle import Keys
from common.engine.task import EngineError, open_engine
from common.entropy import system_entropy
from common.errors import ConfigError, DataError, ReleaseError
from common.guarantees import Guarantee
from common.randomizers import randomizer_names
from common.release.event_keys import read_secret, secret_check
from common.release.folder import Manifest, manifest_digest
from label_party.config.sections import LabelPartyConfig
from label_party.events.completion import Completed, Tally, complete
from label_party.events.on_disk import Sizes, StoredEvents, Work, complete_external, open_sources
from label_party.events.submitted import Populations
from label_party.events.tasks import read_keys
from label_party.release.message import Built, build
from label_party.release.signing import sign_again, signing_key
from label_party.sources.databases import snapshot
from label_party.sources.tables import parquet_files, read_events
from label_party.store.ledger import Charge, Ledger
from label_party.store.recovery import recover, undoing
from label_party.store.release_store import Store
from label_party.store.scratch import clean, scratch

if TYPE_CHECKING:
    from label_party.release.drift import InForce

Progress = Callable[[int], None]

_IN_MEMORY_ROWS = 1 << 21
_CSV_IN_MEMORY_BYTES = 1 << 24
"""A row of CSV takes four bytes at least, so that what is read in memory is one part of a release.
"""

_SHOW_PROGRESS_ROWS = 300_000
"""From about this many rows on, hashing and randomizing take more than a second."""


@dataclass(frozen=True)
class Outcome:
    """What a release run did, for the labels party's own console.

    Attributes
    ----------
    manifest, digest
        The release.
    tally, clipped
        What happened to the raw labels; None if the release existed already.
    left
        What is left of the data set's total; None where that is not one number.
    recovered
        Reservations of dead processes that were taken back on the way.
    """

    manifest: Manifest
    digest: str
    tally: Tally | None
    clipped: int | None
    left: Guarantee | None
    limit: Guarantee
    recovered: int

    @property
    def existed(self) -> bool:
        return self.tally is None


Standing = Callable[[Store, Ledger], "InForce | None"]
"""Finds the prior in force, while nobody else builds; None to pay for a new one."""


def run_release(
    config: LabelPartyConfig,
    *,
    quiet: bool = False,
    ready: Callable[[int], None] = lambda rows: None,
    standing: Standing = lambda store, ledger: None,
) -> Outcome:
    """Build the release of the configured data set and epoch, once and for ever.

    Parameters
    ----------
    ready
        Called with the number of events once they are read and the release does not exist yet.
    standing
        Where a prior in force is to be found (:mod:`label_party.release.drift`). By default every
        release pays for its own.

    Raises
    ------
    LabelveilError
        For any refusal; then nothing was spent and nothing can be fetched.
    """
    known = randomizer_names()
    if config.randomizer.name not in known:
        raise ConfigError(
            f"randomizer={config.randomizer.name!r} must be one of {', '.join(known)};"
            " set [randomizer] name"
        )
    config = config.at(config.data.epoch)
    key = signing_key(config)
    store = Store(config.store.directory)
    existing = _existing(config, store)
    if existing is not None:
        if key is not None:
            sign_again(store.path(config.data.data_set, config.data.epoch), key)
        return existing
    with open_events(config, quiet=quiet) as events:
        ready(events.rows)
        return _release(config, events, store, quiet, standing)


def _release(
    config: LabelPartyConfig,
    events: Completed | StoredEvents,
    store: Store,
    quiet: bool,
    standing: Standing,
) -> Outcome:
    store.create()
    with store.building(), store.open_ledger() as ledger:
        recovered = recover(store, ledger).undone
        existing = _existing(config, store)  # another process may have been faster
        if existing is not None:
            return existing
        built = _spend(config, events, store, ledger, quiet, standing(store, ledger))
        return Outcome(
            manifest=built.manifest,
            digest=manifest_digest(built.manifest_bytes),
            tally=events.tally,
            clipped=built.clipped,
            left=_left(config, ledger),
            limit=config.privacy.limit,
            recovered=recovered,
        )


def _existing(config: LabelPartyConfig, store: Store) -> Outcome | None:
    """Find the committed release of this epoch; refuse if it means something else."""
    if not store.ledger_path.exists():
        return None
    with store.open_ledger() as ledger:
        charge = ledger.committed(config.data.data_set, config.data.epoch)
        if charge is None:
            return None
        _check_same(config, charge)
        release = store.open_release(charge)
        release.close()
        return Outcome(
            manifest=release.manifest,
            digest=release.digest,
            tally=None,
            clipped=None,
            left=_left(config, ledger),
            limit=config.privacy.limit,
            recovered=0,
        )


def _check_same(config: LabelPartyConfig, charge: Charge) -> None:
    wanted = config.request() if charge.request else {}  # unknown for what was found in the store
    either = wanted.keys() | charge.request.keys()
    different = sorted(key for key in either if charge.request.get(key) != wanted.get(key))
    if different:
        raise ReleaseError(
            f"epoch {charge.epoch!r} of data set {charge.data_set!r} was released with other"
            f" settings ({', '.join(different)}) and stays as it is; name another epoch with"
            " --epoch"
        )


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
                with _progress("Hashing keys", sources.rows, quiet) as advance:
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
    with _progress("Hashing keys", rows, quiet) as advance:
        return complete(
            labels,
            population,
            secret,
            missing=config.missing_value,
            duplicates=data.duplicates,
            max_records_per_user=privacy.max_records_per_user,
            progress=advance,
        )


def _spend(
    config: LabelPartyConfig,
    events: Completed | StoredEvents,
    store: Store,
    ledger: Ledger,
    quiet: bool,
    in_force: InForce | None,
) -> Built:
    data, privacy = config.data, config.privacy
    charge = ledger.reserve(
        data.data_set,
        data.epoch,
        privacy.charge,
        privacy.limit,
        composition=privacy.epochs,
        request=config.request(),
    )
    with undoing(store, ledger, charge):
        built = _write(config, events, store, quiet, in_force)
        ledger.commit(charge, manifest_digest(built.manifest_bytes), built.manifest.population.rows)
    return built


def _write(
    config: LabelPartyConfig,
    events: Completed | StoredEvents,
    store: Store,
    quiet: bool,
    in_force: InForce | None,
) -> Built:
    writer = store.writer(config.data.data_set, config.data.epoch)
    entropy = system_entropy()
    try:
        with _progress("Randomizing", events.rows, quiet) as advance:
            built = build(events, config, entropy, writer, advance, in_force)
        key = signing_key(config)
        writer.finish(built.manifest_bytes, key.sign(built.manifest_bytes) if key else b"")
        writer.publish()
    finally:
        entropy.destroy()
        writer.close()
    return built


def _left(config: LabelPartyConfig, ledger: Ledger) -> Guarantee | None:
    privacy = config.privacy
    return ledger.left(config.data.data_set, privacy.limit, privacy.epochs)


@contextmanager
def _progress(what: str, rows: int, quiet: bool) -> Iterator[Progress]:
    bar = progress_bar(quiet=quiet or rows < _SHOW_PROGRESS_ROWS)
    with bar:
        task = bar.add_task(what, total=rows, note="")
        yield lambda done: bar.update(task, advance=done)
