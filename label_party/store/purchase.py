"""The one way in which budget is spent: reserve, write, sync, commit, and only then show.

Everything that leaves the labels party is a *purchase*: releases, those of a watch and the session
that pays for its tests, top-k, synthetic tables, evaluation sessions. Each names what it is and
what it costs, and says how its bytes come to lie in the store:

    paid = find_payment(store, purchase) or pay(store, purchase, write)

*What happens.* Under the store's lock: settle what dead processes left; reserve the guarantee;
``write`` draws noise, touches raw data, and puts the bytes into the store, durably and under their
name; their digest and the charge are committed in one transaction. Nothing may be shown to anybody
before ``pay`` returns, and ``write`` must not send, print or log what it computes.

*What holds.* The same purchase again is found and spends nothing. The same purpose with another
``request`` is refused. An exception in ``write``, a full disk or a limit that would be passed spend
nothing. After a crash at any point either nothing was spent and nothing can be read, or the bytes
are there and paid for; the next start finds out which (:mod:`label_party.store.recovery`). Beside
them lies ``charge.json``, from which an older ledger that meets them counts them as spent. Builders
exclude each other across processes, so ``write`` may take long.

*Guarantees.* State adjacency and privacy unit of the data set's limit (``config.privacy``), or the
charge is refused as not comparable. A pure ε fits every limit. (ε, δ), zCDP and RDP guarantees need
``[privacy] total_delta``; the sum is that of :mod:`label_party.store.budget`. ``composition`` is
``disjoint`` only if no record of this epoch occurs in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from common.errors import ReleaseError
from common.files import write_durably
from common.guarantees import Guarantee
from label_party.config.sections import LabelPartyConfig
from label_party.store.budget import Composition
from label_party.store.coverage import check as check_coverage
from label_party.store.coverage import cover
from label_party.store.disk import translating_errors
from label_party.store.entries import Charge, Covered, Facts
from label_party.store.fingerprints import Prints
from label_party.store.ledger import Ledger, LedgerError
from label_party.store.recovery import recover, undoing
from label_party.store.release_store import CHARGE_FILE, Store

Fingerprints = Callable[[bytes], Iterable[Prints]]


@dataclass(frozen=True)
class Purchase:
    """What is paid for.

    Attributes
    ----------
    purpose
        What the bytes are; part of their name in the ledger.
    guarantee
        What is spent at most.
    limit
        What the account may spend in all.
    request
        What was asked for, as JSON values; a later call with another request is refused.
    account
        Whose budget pays; the data set's own by default.
    limit_is_stated
        Whether somebody wrote the limit down; else the account's cap holds once there is one.
    separate_reason
        Why the account pays by itself although others have paid for some of its events.
    """

    data_set: str
    epoch: str
    purpose: str
    guarantee: Guarantee
    limit: Guarantee
    composition: Composition = "additive"
    request: dict[str, Any] = field(default_factory=dict)
    account: str = ""
    limit_is_stated: bool = True
    separate_reason: str = ""

    @classmethod
    def configured(
        cls, config: LabelPartyConfig, purpose: str, guarantee: Guarantee, request: dict[str, Any]
    ) -> Self:
        """Return a purchase for the configured epoch, from the configured account."""
        privacy = config.privacy
        return cls(
            config.data.data_set,
            config.data.epoch,
            purpose,
            guarantee,
            privacy.limit,
            privacy.epochs,
            request,
            config.account,
            privacy.limit_is_stated,
            privacy.separate_reason or "",
        )


@dataclass(frozen=True)
class Written:
    """What lies in the store and waits for its commit: digest, and rows if it has any."""

    digest: str
    rows: int = 0


@dataclass(frozen=True)
class Payment:
    """A purchase that is paid for.

    Attributes
    ----------
    charge
        Its committed entry in the ledger.
    existed
        Whether an earlier call made it; then nothing was spent.
    left
        What a charge of a new epoch may spend; None where that is not one number.
    recovered
        Reservations of dead processes that were taken back on the way.
    """

    charge: Charge
    existed: bool
    left: Guarantee | None
    recovered: int = 0


@dataclass(frozen=True)
class Outlook:
    """What an account has spent, and what purchases would leave.

    Attributes
    ----------
    limit
        What it may spend in all.
    recorded
        Whether the ledger has a cap for it; else the first charge records the limit.
    """

    account: str
    limit: Guarantee
    recorded: bool
    spent: Guarantee | None
    left: Guarantee | None


class Rehearsal:
    """Makes purchases on a copy of the ledger, of which nothing stays; use it as a context manager.

    Open reservations do not count: a dead process's is taken back before anything is charged, and
    while a living one builds, nobody else does.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as held:
            self._folder = Path(held.enter_context(TemporaryDirectory()))
            self._ledger = held.enter_context(self._store.read_ledger())
            for entry in self._ledger.reservations():
                self._ledger.abandon(entry.id)
            for name in {covered.sha256 for _, covered in self._ledger.coverage()}:
                (self._folder / name).symlink_to((self._store.covered / name).resolve())
            self._held = held.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()

    def buy(
        self, purchases: Sequence[Purchase], fingerprints: Fingerprints | None = None
    ) -> Outlook:
        """Say what purchases from one account would leave, on top of those before.

        Parameters
        ----------
        fingerprints
            Those of the events that the last of them is about; None to leave out the comparison
            with events that have paid.

        Raises
        ------
        LabelveilError
            If one of them would be refused.
        """
        last, ledger = purchases[-1], self._ledger
        account, limit = last.account or last.data_set, _limit(ledger, last)
        recorded, before = ledger.cap(account) is not None, ledger.spent(account, limit)
        for one in purchases:
            _reserve(ledger, self._folder, one, fingerprints if one is last else None)
        left = ledger.left(account, limit, last.composition)
        return Outlook(account, limit, recorded, before, left)


def find_payment(store: Store, purchase: Purchase) -> Payment | None:
    """Return the payment if it was made already.

    Raises
    ------
    ReleaseError
        If it was made for another request.
    """
    with store.read_ledger() as ledger:
        charge = _committed(ledger, purchase)
        return None if charge is None else Payment(charge, True, _left(ledger, purchase))


def pay(
    store: Store,
    purchase: Purchase,
    write: Callable[[Ledger], Written],
    fingerprints: Fingerprints | None = None,
) -> Payment:
    """Make a purchase, unless another process was faster.

    Parameters
    ----------
    fingerprints
        Given the ledger's secret, those of the events that the purchase is about. None for what is
        about no particular epoch's: the tests of a watch.
    write
        Given the ledger, to read what was committed before.

    Raises
    ------
    BudgetError
        If the charge does not fit; nothing is spent.
    LabelveilError
        For every other refusal; nothing is spent either.
    """
    store.create()
    with store.building(), store.open_ledger() as ledger:
        recovered = recover(store, ledger).undone
        charge = _committed(ledger, purchase)
        existed = charge is not None
        if charge is None:
            number, covered = _reserve(ledger, store.covered, purchase, fingerprints)
            with undoing(store, ledger, number):
                written = write(ledger)
                _write_facts(store, purchase, covered, written)
                ledger.commit(number, written.digest, written.rows)
            charge = _committed(ledger, purchase)
            if charge is None:
                raise LedgerError(f"ledger {ledger.path} lost a charge that it committed")
        return Payment(charge, existed, _left(ledger, purchase), recovered)


def _write_facts(
    store: Store, purchase: Purchase, covered: Covered | None, written: Written
) -> None:
    facts = Facts(
        purchase.account or purchase.data_set,
        purchase.data_set,
        purchase.epoch,
        purchase.purpose,
        purchase.composition,
        purchase.guarantee,
        purchase.request,
        covered,
        written.digest,
        written.rows,
    )
    path = store.folder(facts.data_set, facts.epoch, facts.purpose) / CHARGE_FILE
    with translating_errors(path):
        write_durably(path, facts.to_bytes())


def _reserve(
    ledger: Ledger, folder: Path, purchase: Purchase, fingerprints: Fingerprints | None
) -> tuple[int, Covered | None]:
    """Set the charge aside, unless its events have paid elsewhere; return its number."""
    covered = None
    if fingerprints is not None:
        covered = cover(folder, fingerprints(ledger.fingerprint_secret()))
        check_coverage(
            folder,
            ledger,
            covered,
            account=purchase.account or purchase.data_set,
            data_set=purchase.data_set,
            epoch=purchase.epoch,
            composition=purchase.composition,
            separate_reason=purchase.separate_reason,
        )
    number = ledger.reserve(
        purchase.data_set,
        purchase.epoch,
        purchase.guarantee,
        _limit(ledger, purchase),
        account=purchase.account,
        covered=covered,
        composition=purchase.composition,
        request=purchase.request,
        purpose=purchase.purpose,
    )
    return number, covered


def _committed(ledger: Ledger, purchase: Purchase) -> Charge | None:
    charge = ledger.committed(purchase.data_set, purchase.epoch, purchase.purpose)
    if charge is None or not charge.request:  # unknown for what was found in the store
        return charge
    either = purchase.request.keys() | charge.request.keys()
    different = sorted(
        key for key in either if charge.request.get(key) != purchase.request.get(key)
    )
    if different:
        raise ReleaseError(
            f"{purchase.purpose!r} of data set {charge.data_set!r}, epoch {charge.epoch!r}, was"
            f" released with other settings ({', '.join(different)}) and stays as it is; name"
            " another epoch with --epoch"
        )
    return charge


def _left(ledger: Ledger, purchase: Purchase) -> Guarantee | None:
    account = purchase.account or purchase.data_set
    return ledger.left(account, _limit(ledger, purchase), purchase.composition)


def _limit(ledger: Ledger, purchase: Purchase) -> Guarantee:
    cap = ledger.cap(purchase.account or purchase.data_set)
    return purchase.limit if cap is None or purchase.limit_is_stated else cap
