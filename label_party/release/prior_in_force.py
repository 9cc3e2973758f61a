"""The prior in force, found in ledger and store, and the private test whether a new epoch's labels
still follow it.

*The epoch pays for its test* (the default): ``ε_t + ε₂`` while nothing has drifted, ``ε_t + ε₁ +
ε₂`` when something has, and ε₂ is what is left, so that every epoch spends the same ε. Where no
event occurs in two epochs (``epochs = "disjoint"``) its label pays for one test in its life,
however long the watch goes on; target charging could not make that cheaper.

*A session pays* (``[watch] hits``) where the same events or users come again and tests add up. One
session (:class:`labelveil.common.mechanisms.interactive.Session`) covers the tests of all epochs,
up to its last hit; it is charged once, when the watch begins, as an RDP guarantee that does not
depend on the number of epochs. Its state travels in the manifest of the release that its test
decided, whose digest the ledger commits together with the charge, before anybody sees an outcome.
So the ledger's last release is the session's journal: after a crash either outcome and hit are both
there, or neither is. A release whose bytes are lost counts as a hit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.exact.rational import decimal_value
from labelveil.common.formats import TERMS
from labelveil.common.guarantees import PureDP
from labelveil.common.mechanisms.interactive import DriftTest, Session, Terms, affordable_epsilon
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.randomizers import NoisyPrior, split_budget
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.message import Message, Released
from labelveil.common.randomizers.message.plan import MessagePlan, Share
from labelveil.common.randomizers.prior import rational_epsilon
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import (
    DriftSection,
    InForceSection,
    SessionSection,
    TrialSection,
)
from labelveil.label_party.config.offers import WatchSection
from labelveil.label_party.config.privacy import PrivacySection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events
from labelveil.label_party.release.message import count_labels
from labelveil.label_party.store.entries import Charge
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.purchase import Order, pay_once
from labelveil.label_party.store.release_store import Store, is_release

_STREAM = "drift"
TESTS = "tests for drift"
"""Purpose of a session's charge."""


@dataclass(frozen=True, eq=False)
class PaidSession:
    """The session that pays for tests."""

    outcome: str  # digest that the ledger knows its charge by
    terms: Terms  # its terms
    state: dict[str, Any] | None  # where it stands; None before its first test
    lost_hits: int = 0  # releases since then whose bytes are lost, each counted as a hit

    def open(self, data: Any, entropy: Entropy) -> Session[Any]:
        """Go on where the last release left it."""
        begun = Session(data, self.terms, entropy)
        if self.state is None and not self.lost_hits:
            return begun
        state = self.state or begun.to_json()
        hits = [min(state["hits"][0] + self.lost_hits, self.terms.hits)]
        return Session.resume({**state, "hits": hits}, data, entropy)


@dataclass(frozen=True)
class InForce:
    """A prior that earlier labels paid for."""

    origin: InForceSection  # the release that paid for it
    # grid, prior: the released histogram
    grid: Grid
    prior: NoisyPrior
    # what a test may cost
    watch: WatchSection
    privacy: PrivacySection
    session: PaidSession | None = None  # the session that pays for tests; None if each epoch does

    def test(self, rows: int) -> DriftTest:
        """The test that an epoch of n events gets; a function of public facts."""
        watch, group = self.watch, self.privacy.group
        if self.session is not None:
            epsilon = self.session.terms.target.epsilon
        else:
            epsilon = test_epsilon(watch, self.privacy, len(self.grid), rows)
        return DriftTest(self.prior, rows, epsilon, group, watch.tolerance, watch.false_alarm)

    def count(
        self, plan: MessagePlan, events: Events, entropy: Entropy
    ) -> tuple[Message, DriftSection | None]:
        """Count the labels anew only if a private test says that they have drifted; say so."""
        if not plan.histograms:
            return count_labels(plan, events, entropy), None
        (share,) = plan.channels
        here = Group(share.group.labels, Cells((self.grid,)))
        drift = self._test(events.count([here], entropy)[0], entropy)
        spent = Fraction(0) if drift.spent is None else drift.spent.exact_epsilon
        if drift.drifted:
            return count_labels(plan.after(spent), events, entropy), drift
        whole = share.epsilon + sum(each.epsilon for each in plan.histograms)
        plan = replace(plan, histograms=(), channels=(Share(here, whole),)).after(spent)
        return plan.build(Released({here: self.prior})), drift

    def _test(self, counts: Integers, entropy: Entropy) -> DriftSection:
        """Test an epoch's histogram over the grid, unless the session has halted."""
        test = self.test(int(counts.sum()))
        guarantee = PureDP.of(test.epsilon, unit=self.privacy.privacy_unit)
        section = TrialSection(
            scale=str(test.scale), threshold=test.threshold, guarantee=guarantee.to_json()
        )
        if self.session is None:
            drifted = test.draw(counts, entropy.source(_STREAM)).value
            return DriftSection(in_force=self.origin, test=section, drifted=drifted)
        session = self.session.open(counts, entropy)
        if session.halted:
            return DriftSection(in_force=self.origin, test=None, drifted=False)
        drifted = session.run(test)
        paid_by = SessionSection(outcome=self.session.outcome, state=session.to_json())
        section = section.model_copy(update={"session": paid_by})
        return DriftSection(in_force=self.origin, test=section, drifted=drifted)


def test_epsilon(watch: WatchSection, privacy: PrivacySection, points: int, rows: int) -> Fraction:
    """ε of one test for one privacy unit: as configured, or what the tolerance needs."""
    if watch.epsilon != "auto":
        return rational_epsilon(decimal_value(watch.epsilon))
    share, group = privacy.prior_share, privacy.group
    split = split_budget(privacy.epsilon, points, rows, records=group, largest_share=share)
    return affordable_epsilon(split.prior, rows, watch.tolerance, watch.false_alarm, group)


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
    request = {**_session_request(config), "terms": terms.to_json()}
    return Order.configured(config, TESTS, terms.guarantee, request)


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
    if not prior.noisy or prior.start is not None:
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
        if manifest.sums is not None or manifest.questioned:  # which count nothing
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
    request = _session_request(config)
    if config.watch.hits is None:
        return None
    sessions = [
        charge
        for charge in ledger.charges(config.data.data_set, purpose=TESTS, state="committed")
        if charge.account == config.account  # another's budget does not pay for these events
        and all(
            charge.request.get(key) == value
            for key, value in request.items()
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
