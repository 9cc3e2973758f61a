"""``label-party plan``: compare randomizers before anything is spent.

The comparison looks at the label domain, the number of events, ε and a prior
(:mod:`labelveil.label_party.release.prior_knowledge`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from labelveil.common.randomizers.design.assessment import Assessment, Assessor
from labelveil.common.randomizers.design.conditionals import EXPLAINED
from labelveil.common.randomizers.message.terms import RESPONSE
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.submitted import Populations
from labelveil.label_party.release.plan_divisions import plan_divisions
from labelveil.label_party.release.prior_knowledge import PriorKnowledge, from_domain
from labelveil.label_party.release.public_prior import public_prior, with_prior
from labelveil.label_party.store.release_store import Store

_USUAL_ROWS = 20_000
_USELESS = 0.1


@dataclass(frozen=True)
class PlanRow:
    """One candidate at one ε; errors in the units of the loss. ``auto`` marks the default."""

    epsilon: float
    epsilon_prior: float
    epsilon_labels: float
    assessment: Assessment
    auto: bool

    def to_json(self) -> dict[str, object]:
        facts = asdict(self.assessment)
        facts["randomizer"] = facts.pop("name")
        facts["realised_epsilon"] = facts.pop("epsilon")
        return {
            "epsilon": self.epsilon,
            "epsilon_prior": self.epsilon_prior,
            "epsilon_labels": self.epsilon_labels,
            "auto": self.auto,
            **facts,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """All candidates, by ε and predicted error; what the errors are to be compared with."""

    rows: list[PlanRow]
    knowledge: PriorKnowledge
    loss: str
    unfit: dict[str, str]
    constant_error: float
    true_label_error: float
    explained: float


def make_plan(
    config: LabelPartyConfig,
    knowledge: PriorKnowledge,
    epsilons: Sequence[float],
    on_epsilon: Callable[[float], None] = lambda epsilon: None,
    names: Sequence[str] | None = None,
    explained: float = EXPLAINED,
) -> Plan:
    """Judge every randomizer, or those named, at every ε.

    ``epsilons`` are whole budgets, prior included, each in 0 … 40; ``on_epsilon`` is called when
    everything at one has been judged. ``explained`` is the share, in 0 … 1, of the variance of the
    label's normal score that features are taken to explain.
    """
    (label,) = config.labels
    public = public_prior(config)
    rows: list[PlanRow] = []
    unfit: dict[str, str] = {}
    constant = true_labels = float("nan")
    for epsilon in sorted(epsilons):
        message = with_prior(config.plan_message(knowledge.rows, epsilon), config, public)
        (share,) = message.channels
        (grid,) = share.group.cells.grids
        paid = float(sum(each.epsilon for each in message.histograms))
        each = float(share.epsilon / config.privacy.group)
        prior = knowledge.over(share.group)
        assessor = Assessor(grid.points, prior, knowledge.rows, label.loss, explained)
        auto = RESPONSE if len(grid) == 2 else "optimal-design"
        assessments, unfit = assessor.compare(each, names)
        rows += [
            PlanRow(
                epsilon,
                paid,
                float(share.epsilon),
                assessment,
                assessment.name == auto,
            )
            for assessment in assessments
        ]
        constant, true_labels = assessor.forecast.constant, assessor.forecast.with_true_labels
        on_epsilon(epsilon)
    return Plan(rows, knowledge, label.loss, unfit, constant, true_labels, explained)


def too_few_events(config: LabelPartyConfig, rows: int) -> str | None:
    """Say so if the configured release is predicted to be worth next to nothing.

    The prediction looks at no label, so to act on it tells nobody anything about them.
    """
    epsilon, gains = config.privacy.epsilon, _gains(config, rows)
    few = {name: f"{gain:.1%}" for name, gain in gains.items() if gain < _USELESS}
    if not few:
        return None
    each = [f"{gain} for {name!r:.60}" if name else gain for name, gain in few.items()]
    return (
        f"{rows:,} event{'s are' if rows > 1 else ' is'} few for epsilon={epsilon:g}: a model is"
        f" predicted to gain {' and '.join(each)} of what true labels would over a constant"
        f" (label-party plan --rows {rows})"
    )


def _gains(config: LabelPartyConfig, rows: int) -> dict[str, float]:
    """What a model of each label gains, as a share of what true labels would; one has no name."""
    epsilon = config.privacy.epsilon
    if len(config.labels) == 1:
        # one threshold is judged at once, and what is enough for that is for the default
        chosen = config.randomizer.name
        for name in ("two-point", chosen) if chosen == "auto" else (chosen,):
            plan = make_plan(config, from_domain(rows), [epsilon], names=[name])
            possible = plan.constant_error - plan.true_label_error
            gains = [
                (plan.constant_error - row.assessment.predicted_error) / possible
                for row in plan.rows
            ]
            if gains and gains[0] >= _USELESS:
                break
        return {"": gains[0]} if gains else {}
    privacy, by_label = config.privacy, dict[str, float]()
    # a channel of each label's own is judged at once, and what is enough for that is for any
    for over_cells in (False, privacy.division != "split"):
        divisions = plan_divisions(config, from_domain(rows), [epsilon], over_cells=over_cells)
        taken = [row for row in divisions.rows if row.taken_by(privacy.division)]
        by_label = divisions.gains((taken or divisions.rows)[0])
        if min(by_label.values()) >= _USELESS:
            break
    return by_label


def planned_rows(config: LabelPartyConfig, rows: int | None) -> int:
    """Return the number of events to plan for: as asked, as submitted, or a usual number."""
    if rows is not None:
        return rows
    data = config.data
    submitted = None
    if data.submitted:
        submitted = Populations(Store(config.store.directory)).current(data.data_set, data.epoch)
    return _USUAL_ROWS if submitted is None else submitted.rows
