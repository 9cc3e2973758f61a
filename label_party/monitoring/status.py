"""What an operator wants to see at a glance, as lines of text: for a terminal and a page.

It holds public facts only, as logs and metrics do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from operator import itemgetter

from prometheus_client.metrics_core import Metric

from labelveil.label_party.store.account import AccountState
from labelveil.label_party.store.budget import short

NO_SERVER = "none answers at [observability] listen"
_DAY = 86_400.0
_SOON_DAYS = 30
"""From this number of days before its end a certificate is pointed out."""


Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""What a server counts, by metric; of each, the labels' values and the number."""


def samples_of(families: Iterable[Metric]) -> Samples:
    """Take what a registry, or the text of ``/metrics``, holds."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for family in families:
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    return dict(samples)


def status(
    accounts: Iterable[AccountState],
    samples: Samples | None,
    now: datetime,
    without: str = NO_SERVER,
) -> Iterator[str]:
    """Yield the lines: what was spent, what was released, who fetched it, who was refused why.

    ``samples`` are what the server counts; of None, ``without`` says why there are none.
    """
    for account in accounts:
        spent = short(account.spent, "nothing")
        yield f"account {account.account}: {spent} spent of {account.limit}"
        yield f"  left {account.left_in_words}"
        for charge in account.charges:
            when = _minute(charge.committed_at or charge.reserved_at)
            state = "" if charge.state == "committed" else f", {charge.state}"
            lost = ", bytes lost" if charge.lost else ""
            if (withdrawal := account.withdrawals.get(charge.id)) is not None:
                lost = f", withdrawn: {withdrawal.reason}"
            yield (
                f"  {when}  {charge.data_set}, epoch {charge.epoch}, {charge.purpose}:"
                f" {short(charge.guarantee)}{state}{lost}"
            )
    if samples is None:
        yield f"server: {without}"
        return
    yield from _served(samples, now)


def _served(samples: Samples, now: datetime) -> Iterator[str]:
    def number(name: str) -> float | None:
        return next((value for _, value in samples.get(name, ())), None)

    began = number("process_start_time_seconds")
    since = "" if began is None else f" since {_stamp(began)}"
    active = number("label_party_fetches_active") or 0
    damaged = number("label_party_releases_damaged") or 0
    yield f"server: answers{since}; {active:g} fetches running, {damaged:g} damaged releases"
    yield "fetched to the last row, since it started"
    fetches = samples.get("label_party_last_fetch_timestamp_seconds", [])
    for labels, stamp in sorted(fetches, key=itemgetter(1), reverse=True):
        what = f"{labels['data_set']}, epoch {labels['epoch']}"
        yield f"  {_stamp(stamp)}  {what}: by {labels['client']}"
    yield from [] if fetches else ["  nothing"]
    yield "refused, since it started"
    refused = [
        (labels["reason"], count)
        for labels, count in samples.get("label_party_refusals_total", ())
        if count
    ]
    for reason, count in sorted(refused, key=itemgetter(1), reverse=True):
        yield f"  {count:6g}  {reason}"
    yield from [] if refused else ["  nobody"]
    yield "certificates"
    whose = {"server": "the server's", "client_ca": "the clients' authority", "client": "that of "}
    for which, name in whose.items():
        found = samples.get(f"label_party_{which}_certificate_expiry_timestamp_seconds", ())
        for labels, end in found:
            days = (end - now.timestamp()) / _DAY
            soon = ": renew it" if days < _SOON_DAYS else ""
            client = labels.get("client", "")
            yield f"  {name}{client} ends {_stamp(end)}, in {days:.0f} days{soon}"


def _minute(stamp: str) -> str:
    return stamp[:16].replace("T", " ")


def _stamp(seconds: float) -> str:
    return _minute(datetime.fromtimestamp(seconds, UTC).isoformat())
