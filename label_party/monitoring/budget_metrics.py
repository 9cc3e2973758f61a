"""The ledger as metrics: releases and budgets of every account, read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from labelveil.common.errors import LabelveilError
from labelveil.common.guarantees import Guarantee
from labelveil.label_party.store.account import AccountState


class BudgetMetrics(Collector):
    """Asks for the accounts, and so reads the ledger, and shows them."""

    def __init__(self, accounts: Callable[[], list[AccountState]]) -> None:
        self._accounts = accounts

    def describe(self) -> list[Metric]:
        """Name nothing in advance: the registry need not read the ledger to register this."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the state of now, or that there is none to be had."""
        accounts, readable = [], 0
        with suppress(LabelveilError):
            accounts, readable = self._accounts(), 1
        yield GaugeMetricFamily(
            "label_party_ledger_readable", "Whether the ledger could be read.", value=readable
        )
        ledger = _family("label_party_ledger_info", "Which ledger this is.", "ledger")
        for name in {entry.ledger for entry in accounts}:
            ledger.add_metric([name], 1)
        yield ledger
        releases = _family("label_party_releases", "Committed releases.", "data_set")
        withdrawn = _family(
            "label_party_releases_withdrawn", "Those that are served no more.", "data_set"
        )
        families = {
            "limit": _family("label_party_budget_epsilon", "What an account may spend."),
            "spent": _family("label_party_budget_epsilon_spent", "What it has spent."),
            "left": _family("label_party_budget_epsilon_left", "What it has left."),
        }
        charges = _family(
            "label_party_budget_charges", "Charges that were committed; there are never fewer."
        )
        for entry in accounts:
            # one that is set aside may be given back
            paid = [charge for charge in entry.charges if charge.state != "reserved"]
            charges.add_metric([entry.account], len(paid))
            committed = Counter(charge.data_set for charge in entry.charges if charge.digest)
            for data_set, count in committed.items():
                releases.add_metric([data_set], count)
            gone = [charge for charge in entry.charges if charge.id in entry.withdrawals]
            for data_set, count in Counter(charge.data_set for charge in gone).items():
                withdrawn.add_metric([data_set], count)
            for name, family in families.items():
                epsilon = _epsilon(getattr(entry, name), nothing=0.0 if name == "spent" else None)
                if epsilon is not None:
                    family.add_metric([entry.account], epsilon)
        yield releases
        yield charges
        yield withdrawn
        yield from families.values()


def _family(name: str, text: str, label: str = "account") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=[label])


def _epsilon(guarantee: Guarantee | None, *, nothing: float | None) -> float | None:
    """Return ε where a guarantee has one that needs no δ to be named first."""
    epsilon = nothing if guarantee is None else getattr(guarantee, "epsilon", None)
    return epsilon if isinstance(epsilon, float) else None
