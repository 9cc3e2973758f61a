"""``label-party release``: read, complete, reserve, build, write, commit.

The order is the durability argument. Everything that can be refused is refused before the budget is
touched; the bytes are on the disk before the commit; nothing is served before the commit. Dying
between any two steps leaves either a reservation, which the next start takes back together with its
bytes, or a finished release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.console import row_progress
from common.entropy import system_entropy
from common.errors import ConfigError, ReleaseError
from common.guarantees import Guarantee
from common.randomizers import randomizer_names
from common.release.manifest import Manifest, manifest_digest
from label_party.config.sections import LabelPartyConfig
from label_party.events.completion import Completed, Tally
from label_party.events.on_disk import StoredEvents
from label_party.events.open import open_events
from label_party.release.message import Built, build
from label_party.release.signing import sign_again, signing_key
from label_party.store.ledger import Charge, Ledger
from label_party.store.recovery import recover, undoing
from label_party.store.release_store import Store

if TYPE_CHECKING:
    from label_party.release.drift import InForce


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


FindPrior = Callable[[Store, Ledger], "InForce | None"]
"""Finds the prior in force, while nobody else builds; None to pay for a new one."""


def run_release(
    config: LabelPartyConfig,
    *,
    quiet: bool = False,
    ready: Callable[[int], None] = lambda rows: None,
    find_prior: FindPrior = lambda store, ledger: None,
) -> Outcome:
    """Build the release of the configured data set and epoch, once and for ever.

    Parameters
    ----------
    ready
        Called with the number of events once they are read and the release does not exist yet.
    find_prior
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
        return _release(config, events, store, quiet, find_prior)


def _release(
    config: LabelPartyConfig,
    events: Completed | StoredEvents,
    store: Store,
    quiet: bool,
    find_prior: FindPrior,
) -> Outcome:
    store.create()
    with store.building(), store.open_ledger() as ledger:
        recovered = recover(store, ledger).undone
        existing = _existing(config, store)  # another process may have been faster
        if existing is not None:
            return existing
        built = _spend(config, events, store, ledger, quiet, find_prior(store, ledger))
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
        with row_progress("Randomizing", events.rows, quiet) as advance:
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
