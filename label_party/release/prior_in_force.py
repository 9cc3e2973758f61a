"""Find the prior in force, and the session that pays for tests, in ledger and store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from labelveil.common.formats import TERMS
from labelveil.common.mechanisms.interactive import Terms
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import InForceSection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.release.drift import InForce, PaidSession, test_epsilon
from labelveil.label_party.store.entries import Charge
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.pay_once import pay_once
from labelveil.label_party.store.purchase import Order
from labelveil.label_party.store.release_store import Store, is_release

TESTS = "tests for drift"
"""Purpose of a session's charge."""


def session_to_open(config: LabelPartyConfig, ledger: Ledger, rows: int) -> Order | None:
    """Return the session that all tests will be made in, unless it is paid for, or not wanted."""
    privacy, hits = config.privacy, config.watch.hits
    if hits is None or _session_charge(ledger, config) is not None:
        return None
    plan = config.plan_message(rows)
    if not plan.groups:  # nothing is ever tested
        return None
    epsilon = test_epsilon(config.watch, privacy, len(plan.groups[0].cells), rows)
    terms = Terms(not_prior(epsilon), hits, unit=privacy.privacy_unit)
    asked = {**_session_request(config), "terms": terms.to_json()}
    return Order.configured(config, TESTS, terms.guarantee, asked)


def open_session(store: Store, order: Order) -> None:
    """Charge a session, which holds nothing but its terms and in which epoch it begins.

    ``BudgetError`` if it does not fit.
    """
    facts = {"terms": order.request["terms"], "epoch": order.epoch}  # two sessions, two digests
    data = json.dumps(facts, sort_keys=True).encode()
    pay_once(store, order, lambda: data)


def prior_in_force(config: LabelPartyConfig, store: Store, ledger: Ledger) -> InForce | None:
    """The prior of the last release, if it is about the same range of labels and unit.

    Not with that of a release that is withdrawn: the last one before, whose prior is of none that
    is, counts. ``ReleaseError`` if that release is damaged.
    """
    last = _last(config, store, ledger) if config.tests_drift else None
    if last is None:
        return None
    charge, manifest = last
    if len(manifest.labels) > 1 or manifest.strata:
        return None
    ((group, prior),), privacy = manifest.message.histograms, config.privacy
    (grid,), unit = group.cells.grids, manifest.labels_guarantee.unit
    wanted = (*config.labels[0].bounds, privacy.group, privacy.privacy_unit)
    if (grid.lower, grid.upper, prior.group, unit) != wanted:
        return None
    if prior.decoded is not None or prior.start is not None:
        return None
    origin = InForceSection(
        epoch=manifest.epoch, manifest=charge.digest, rows=manifest.population.rows
    )
    if manifest.drift is not None and not manifest.drift.drifted:
        origin = manifest.drift.in_force
    session = _paid_session(config, store, ledger)
    return InForce(origin, grid, prior, config.watch, privacy, session)


def _last(config: LabelPartyConfig, store: Store, ledger: Ledger) -> tuple[Charge, Manifest] | None:
    """The last release whose prior may be gone on with, as far as withdrawals matter."""
    withdrawn = ledger.withdrawals()
    releases = [*filter(is_release, ledger.charges(config.data.data_set))]
    gone = {entry.epoch for entry in releases if entry.id in withdrawn}
    for entry in reversed(releases):
        if entry.lost or entry.epoch in gone:
            continue
        manifest = store.read_manifest(entry)
        if manifest.sums is not None:  # which count nothing
            continue
        drift = manifest.drift
        if drift is None or drift.drifted or drift.in_force.epoch not in gone:
            return entry, manifest
    return None


def _paid_session(config: LabelPartyConfig, store: Store, ledger: Ledger) -> PaidSession | None:
    charge = _session_charge(ledger, config)
    if charge is None:
        return None
    session = PaidSession(charge.digest, Terms.from_json(charge.request["terms"]), None)
    releases = [*filter(is_release, ledger.charges(config.data.data_set))]
    last, withdrawn, unknown = charge.id, ledger.withdrawals(), []
    for entry in releases:  # all of them: what a restored ledger counted may come after its own
        manifest = _manifest_if_any(store, entry, withdrawn=entry.id in withdrawn)
        if manifest is None:
            unknown.append(entry.id)
        drift = None if manifest is None else manifest.drift
        test = None if drift is None else drift.test
        if test is None or test.session is None or test.session.outcome != session.outcome:
            continue
        state = test.session.state
        if not entry.counted:  # another ledger knew nothing of what was lost here
            last = max(last, entry.id)
        if session.state is None or state["calls"] > session.state["calls"]:
            session = replace(session, state=dict(state))
    return replace(session, lost_hits=sum(number > last for number in unknown))


def _manifest_if_any(store: Store, entry: Charge, *, withdrawn: bool) -> Manifest | None:
    """What a release stated; None if it is lost, or withdrawn and removed since."""
    if entry.lost or (withdrawn and not store.folder(*entry.name).exists()):
        return None
    return store.read_manifest(entry)


def _session_charge(ledger: Ledger, config: LabelPartyConfig) -> Charge | None:
    """The session in which tests are made: the last one that was opened on these terms."""
    asked = _session_request(config)
    if config.watch.hits is None:
        return None
    sessions = [
        charge
        for charge in ledger.charges(config.data.data_set, purpose=TESTS, state="committed")
        if charge.account == config.account  # another's budget does not pay for these events
        and all(
            charge.request.get(key) == value
            for key, value in asked.items()
            # what another version did not ask nobody has changed: no session is paid for again
            if key in charge.request or charge.terms_format == str(TERMS)
        )
    ]
    return sessions[-1] if sessions else None


def _session_request(config: LabelPartyConfig) -> dict[str, Any]:
    return {
        "hits": config.watch.hits,
        "epsilon": config.watch.epsilon,
        "unit": config.privacy.unit,
        "group": config.privacy.group,
        "user": config.privacy.user,
    }
