"""``label-party status``: budget, releases, fetches, refusals and certificates on one screen."""

from __future__ import annotations

from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException

from labelveil.common.config.answers import Json, print_json
from labelveil.label_party.commands.budget import as_plain
from labelveil.label_party.commands.options import options
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.monitoring.status import NO_SERVER, Samples, samples_of, status

_SECONDS = 5.0


@options("store.directory", "observability.listen")
def show(config: LabelPartyConfig, shown: Json) -> None:
    from labelveil.label_party.store.account import read_accounts

    samples, server = _ask(config.observability.listen), NO_SERVER
    accounts = read_accounts(config)
    ledgers = (samples or {}).get("label_party_ledger_info", [])
    if samples is not None and accounts[0].ledger not in (of["ledger"] for of, _ in ledgers):
        samples, server = None, f"the one at {config.observability.listen} serves another store"
    if shown.as_json:
        print_json({"accounts": [as_plain(account) for account in accounts], "server": samples})
        return
    for line in status(accounts, samples, datetime.now(UTC), server):
        print(line)


def _ask(listen: str | None) -> Samples | None:
    """What a running server counts; None if none answers."""
    from prometheus_client.parser import text_string_to_metric_families

    if listen is None:
        return None
    connection = HTTPConnection(listen, timeout=_SECONDS)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
        text = connection.getresponse().read().decode()
        return samples_of(text_string_to_metric_families(text))
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
