"""What every account may spend, has spent and has left, read from the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from labelveil.common.errors import PrivacyError, not_none
from labelveil.common.guarantees import Guarantee
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.budget import at_most, remaining, seen_by, short, spent
from labelveil.label_party.store.entries import Cap, Charge, Separation, Withdrawal
from labelveil.label_party.store.release_store import Store


@dataclass(frozen=True, eq=False)
class AccountState:
    """One account's budget."""

    ledger: str  # name of the ledger that says so
    account: str
    limit: Guarantee  # what may be spent now: the cap, or less where the configuration says so
    spent: Guarantee | None
    # what a further release of the configured kind may spend; None where that is not one number
    left: Guarantee | None
    caps: list[Cap]
    separations: list[Separation]
    charges: list[Charge]
    withdrawals: dict[int, Withdrawal]  # of all accounts, by the charge's number

    @property
    def left_in_words(self) -> str:
        """What is left for a further release; of disjoint epochs that is all, whatever is spent."""
        return short(self.left) + " for a further release" * (self.left is not None)


def read_accounts(config: LabelPartyConfig) -> list[AccountState]:
    """Read the ledger; the configured account is listed even if it has spent nothing."""
    name = config.account
    with Store(config.store.directory).read_ledger() as ledger:
        said, withdrawals = ledger.separations(), ledger.withdrawals()
        accounts = []
        for account in sorted({*ledger.accounts(), name}):
            configured = account == name  # it alone may have no cap yet
            charges, cap = ledger.charges(account=account), ledger.cap(account)
            limit = _limit_in_force(config, charges, cap) if configured else not_none(cap)
            composition = config.privacy.epochs if configured else "additive"
            accounts.append(
                AccountState(
                    ledger=ledger.identity(),
                    account=account,
                    limit=limit,
                    spent=spent(charges, limit),
                    left=remaining(limit, spent(seen_by(charges, composition), limit)),
                    caps=ledger.caps(account),
                    separations=[
                        entry for entry in said if account in (entry.account, entry.other)
                    ],
                    charges=charges,
                    withdrawals=withdrawals,
                )
            )
        return accounts


def _limit_in_force(
    config: LabelPartyConfig, charges: list[Charge], cap: Guarantee | None
) -> Guarantee:
    """Return what the configured account may spend: what the file states, at most its cap.

    The cap, too, where the stated limit cannot count the charges: if they are of another privacy
    unit, or concentrated and total_delta is 0 now.
    """
    configured = config.privacy.limit
    if cap is None:
        return configured
    if not config.privacy.limit_is_stated:
        return cap
    try:
        spent(charges, configured)
        return configured if at_most(configured, cap) else cap
    except PrivacyError:
        return cap
