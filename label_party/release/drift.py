"""The prior in force, and the private test whether a new epoch's labels still follow it.

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

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.exact.rational import decimal_value
from labelveil.common.guarantees import PureDP
from labelveil.common.mechanisms.interactive import DriftTest, Session, Terms, affordable_epsilon
from labelveil.common.randomizers import NoisyPrior, split_budget
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.message import Message, Released
from labelveil.common.randomizers.message.steps import MessagePlan, Share
from labelveil.common.randomizers.prior import rational_epsilon
from labelveil.common.release.sections import (
    DriftSection,
    InForceSection,
    SessionSection,
    TrialSection,
)
from labelveil.label_party.config.offers import WatchSection
from labelveil.label_party.config.privacy import PrivacySection
from labelveil.label_party.events.steps import Events
from labelveil.label_party.release.message import count_labels

_STREAM = "drift"


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
