"""What every data set may spend, has spent and has left, read from the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import PrivacyError
from common.guarantees import Guarantee
from label_party.config.sections import LabelPartyConfig
from label_party.store.ledger import Charge, Ledger, Restore
from label_party.store.release_store import Store


@dataclass(frozen=True)
class Account:
    """One data set's budget.

    Attributes
    ----------
    left
        What a further release of the configured kind may spend; None where that is not one number.
    """

    data_set: str
    limit: Guarantee
    spent: Guarantee | None
    left: Guarantee | None
    charges: list[Charge]


def account(config: LabelPartyConfig) -> list[Account]:
    """Read the ledger; the configured data set is listed even if it has spent nothing."""
    name, limit = config.data.data_set, config.privacy.limit
    store = Store(config.store.directory)
    if not store.ledger_path.exists():
        return [Account(name, limit, None, limit, [])]
    with store.open_ledger() as ledger:
        accounts = []
        for data_set in sorted({*ledger.data_sets(), name}):
            total = _total(config, ledger, data_set)
            spent = ledger.spent(data_set, total)
            composition = config.privacy.epochs if data_set == name else "additive"
            left = ledger.left(data_set, total, composition)
            accounts.append(Account(data_set, total, spent, left, ledger.charges(data_set)))
        return accounts


def _total(config: LabelPartyConfig, ledger: Ledger, data_set: str) -> Guarantee:
    """Return the configured total, or the last one in force where that cannot count the charges.

    It cannot if they are of another privacy unit, or concentrated and total_delta is 0 now.
    """
    configured, last = config.privacy.limit, ledger.limit(data_set)
    if last is None:
        return configured
    if data_set != config.data.data_set:
        return last
    try:
        ledger.spent(data_set, configured)
    except PrivacyError:
        return last
    return configured


def restores(config: LabelPartyConfig) -> list[Restore]:
    """Return when the ledger was restored from a backup, and what was stated then."""
    store = Store(config.store.directory)
    if not store.ledger_path.exists():
        return []
    with store.open_ledger() as ledger:
        return ledger.restores()
