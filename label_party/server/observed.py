"""What an operator may ask over HTTP: metrics of server and ledger, and the page of status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from prometheus_client import ProcessCollector

from label_party.config.sections import LabelPartyConfig
from label_party.monitoring.budget_metrics import BudgetMetrics
from label_party.monitoring.calls import Telemetry
from label_party.monitoring.status import Samples, status
from label_party.server.health import Vitals
from label_party.server.http_probes import answering
from label_party.server.limits import Places
from label_party.store.account import AccountState, read_accounts


@contextmanager
def observed(
    config: LabelPartyConfig, listen: str, vitals: Vitals, telemetry: Telemetry, streams: Places
) -> Iterator[str]:
    """Answer on an address of its own; yields it.

    ``ConfigError`` if the address cannot be bound.
    """
    _measure(config, vitals, telemetry, streams)

    def lines() -> Iterator[str]:
        samples = Samples.of(telemetry.registry.collect())
        return status(read_accounts(config), samples, datetime.now(UTC))

    hosts = config.observability.hosts
    with answering(listen, hosts, vitals, telemetry.registry, lines) as address:
        yield address


def _measure(
    config: LabelPartyConfig, vitals: Vitals, telemetry: Telemetry, streams: Places
) -> None:
    catalog, credentials = vitals.catalog, vitals.credentials
    telemetry.gauge("label_party_fetches_active", "Fetches running.", lambda: streams.active)
    telemetry.gauge(
        "label_party_releases_damaged",
        "Committed releases that are left out, because their bytes are damaged.",
        lambda: len(catalog.damaged),
    )
    telemetry.count(
        "label_party_connections",
        "Connections taken, whatever became of them.",
        lambda: {"": vitals.handshakes.connections},
    )
    telemetry.count(
        "label_party_certificate_reloads",
        "Changed certificate files, by what reading them gave.",
        lambda: credentials.reloads,
        label="outcome",
    )

    def end_of(which: str) -> Callable[[], float]:
        return lambda: credentials.ends(which).timestamp()

    for which in ("server", "client_ca"):
        telemetry.gauge(
            f"label_party_{which}_certificate_expiry_timestamp_seconds",
            "When the certificate in use ends.",
            end_of(which),
        )

    def accounts() -> list[AccountState]:
        catalog.check()
        return read_accounts(config)

    telemetry.add(BudgetMetrics(accounts))
    telemetry.add(ProcessCollector(registry=None))
