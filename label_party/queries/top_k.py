"""``label-party top-k``: which categories lead, as one more release on the same budget.

An event of the population is one vote: its user's, or its own, for its category. How far one record
or user moves the counts is the reader's promise (:mod:`labelveil.label_party.events.open`): at most
1 each.

The release is a small JSON document, paid for and kept as
:mod:`labelveil.label_party.store.purchase` says: asking again shows the same bytes and spends
nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.arrays import Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.rational import decimal_value
from labelveil.common.guarantees import Unit
from labelveil.common.mechanisms.selection.leaders import Leaders, StableLeaders
from labelveil.common.mechanisms.selection.stable_top_k import STABLE_SHARE
from labelveil.common.version import software
from labelveil.label_party.config.data import DataSection
from labelveil.label_party.config.privacy import PrivacySection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.columns import NONE, Column, list_digest, read_category_list
from labelveil.label_party.events.intention import Confirm, Intention, Spread, go_on
from labelveil.label_party.events.open import open_events
from labelveil.label_party.events.steps import Events
from labelveil.label_party.store.purchase import Order, Outcome, find_outcome, pay_once
from labelveil.label_party.store.release_store import Store

FORMAT = "labelveil-top-k/1"
_TAIL = 0.05


@dataclass(frozen=True)
class TopKRequest:
    """What is asked: the column, how many, among which public categories."""

    by: str
    k: int | None  # how many to name; None lets the counts decide, up to ``most``
    most: int
    categories: Path
    user: str | None
    # δ of a stable set without noise; None for noisy counts, which need no δ
    delta: float | None = None
    # of a stable set of exactly k: part of the budget for the set before the gap
    stable_share: float | None = None

    @property
    def purpose(self) -> str:
        """Name of the charge in the ledger."""
        return f"top-k by {self.by}"


def run_top_k(
    config: LabelPartyConfig, request: TopKRequest, *, confirm: Confirm = go_on
) -> Outcome:
    """Make the release once, or read it back; after any refusal nothing was spent.

    ``confirm`` is called before anything is charged, unless the release exists.
    """
    categories = read_category_list(request.categories, "--categories")
    leaders = _mechanism(config.privacy, request)
    order = Order.configured(
        config, request.purpose, leaders.guarantee, _meaning(config.privacy, request, categories)
    )
    store = Store(config.store.directory)
    paid = find_outcome(store, order)
    if paid is not None:
        return paid
    if request.k is not None and request.k > len(categories):
        raise ConfigError(
            f"k={request.k} is above the {len(categories)} categories of"
            f" {request.categories}; set --k"
        )
    user = _user(config.privacy, request)
    with open_events(config, _columns(request.by, user, categories), quiet=True) as events:
        counts = _counts(request.by, user, len(categories), events)
        spread = Spread.from_codes(request.by, events.codes(request.by), len(categories))
        confirm(
            Intention(
                (order,),
                events,
                spreads=(spread,),
                too_few=_too_few(leaders, events.rows, len(categories)),
            )
        )
        return pay_once(
            store,
            order,
            lambda: _build(config.data, request, categories, leaders, counts),
            events,
        )


def _mechanism(privacy: PrivacySection, request: TopKRequest) -> Leaders | StableLeaders:
    epsilon, unit = decimal_value(privacy.epsilon), privacy.privacy_unit
    if request.delta is None:
        return Leaders(epsilon, request.k, request.most, unit, privacy.group)
    delta, share = checked_delta(privacy, request.delta), _stable_share(request)
    return StableLeaders(epsilon, delta, request.most, unit, request.k, share or STABLE_SHARE)


def _stable_share(request: TopKRequest) -> Fraction | None:
    """The share, exactly as it was written, where a stable set has a given k; None elsewhere."""
    if request.delta is None or request.k is None:
        return None
    given = request.stable_share
    return STABLE_SHARE if given is None else decimal_value(given)


def checked_delta(privacy: PrivacySection, delta: float) -> Fraction:
    """Return a δ, as it was written, for which the account's limit has room."""
    most = privacy.total_delta
    if not 0 < delta <= most:
        raise ConfigError(
            f"delta={delta:g} must be above 0 and at most total_delta={most:g}; set --delta and"
            " [privacy] total_delta"
        )
    return decimal_value(delta)


def _too_few(leaders: Leaders | StableLeaders, events: int, categories: int) -> str | None:
    """Say so if noise covers what the average category can count; looks at public facts alone."""
    if isinstance(leaders, StableLeaders):
        return None if leaders.k is not None else _no_gap(leaders, events)
    _, _, scale = leaders.split(leaders.k or min(leaders.most, categories - 1))
    margin = -float(scale) * math.log(_TAIL)
    if margin <= events / categories:
        return None
    return (
        f"{events:,} events are few for epsilon={float(leaders.epsilon):g}: noise of"
        f" ± {margin:,.0f} (95%) is more than the {events / categories:,.3g} events of an average"
        " category"
    )


def _no_gap(leaders: StableLeaders, events: int) -> str | None:
    """Say so if not even all events on one category would make a gap wide enough."""
    gap = leaders.gap_needed(_TAIL)
    if gap <= events:
        return None
    return (
        f"{events:,} events are few for epsilon={float(leaders.epsilon):g} and"
        f" delta={float(leaders.delta):g}: a set is shown (95%) before a gap of {gap:,} or more"
    )


def _user(privacy: PrivacySection, request: TopKRequest) -> str | None:
    """The column of users, of whom each has one vote in a category; None if events have."""
    if privacy.privacy_unit == Unit.USER and request.user not in (None, privacy.user):
        raise ConfigError(
            f"user={request.user!r} must be {privacy.user!r}, whose privacy is protected;"
            " leave --user out"
        )
    user = privacy.user or request.user
    if user == request.by:
        raise ConfigError(f"user={user!r} must be another column than --by; set --user")
    return user


def _columns(by: str, user: str | None, categories: pl.Series) -> list[Column]:
    users = [] if user is None else [Column(user, public=True)]
    return [Column(by, categories), *users]


def _counts(by: str, user: str | None, categories: int, events: Events) -> Integers:
    """Distinct users of each category, in the list's order: an event is a vote of its user."""
    items = events.codes(by)
    users = np.arange(items.size) if user is None else events.codes(user)
    counted = (items != NONE) & (items < categories) & (users != NONE)
    _, users = np.unique(users[counted], return_inverse=True)  # of 63 bits: smaller, to multiply
    votes = np.unique(users * categories + items[counted])
    return np.bincount(votes % categories, minlength=categories)


def _meaning(
    privacy: PrivacySection, request: TopKRequest, categories: pl.Series
) -> dict[str, Any]:
    return {
        "by": request.by,
        "k": request.k,
        "most": request.most if request.k is None else None,
        "epsilon": str(decimal_value(privacy.epsilon)),
        "user": privacy.user or request.user,
        "delta": None if request.delta is None else str(decimal_value(request.delta)),
        "stable_share": None if (share := _stable_share(request)) is None else str(share),
        "categories": list_digest(categories),
    }


def _build(
    data: DataSection,
    request: TopKRequest,
    categories: pl.Series,
    leaders: Leaders | StableLeaders,
    counts: Integers,
) -> bytes:
    shown: list[dict[str, Any]]
    noise: dict[str, str] | None = None
    entropy = system_entropy()
    try:
        if isinstance(leaders, StableLeaders):
            chosen = leaders.draw(counts, entropy)
            places = [] if chosen is None else chosen.tolist()
            shown = [{"category": categories[place]} for place in places]
        else:
            leading = leaders.draw(counts, entropy)
            shown = [
                {"category": categories[int(place)], "users": int(count)}
                for place, count in zip(leading.chosen, leading.noisy_counts, strict=True)
            ]
            noise = {"law": "discrete-laplace", "scale": str(leading.scale)}
    finally:
        entropy.destroy()
    return document_bytes(
        data,
        FORMAT,
        by=request.by,
        adaptive=request.k is None,
        candidates=len(categories),
        guarantee=leaders.guarantee.to_json(),
        k=len(shown),
        leaders=shown,
        noise=noise,
    )


def document_bytes(data: DataSection, form: str, **said: Any) -> bytes:
    """Return what is released: in JSON, also what it is and what made it."""
    document = {
        "format": form,
        "software": software(),
        "data_set": data.data_set,
        "epoch": data.epoch,
        **said,
    }
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
