"""What mechanisms show under noise that is replayed, and what they say of themselves, as approved.

Their laws and guarantees have tests of their own; what is made of noisy numbers afterwards, and the
public numbers that a plan goes by, are right on average, which takes many draws.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms import generalization
from labelveil.common.mechanisms.central.dp_sgd import DPSGDClassifier, DPSGDRegressor
from labelveil.common.mechanisms.central.gaussian_regression import LabelProcess
from labelveil.common.mechanisms.central.label_ridge import LabelRidge
from labelveil.common.mechanisms.central.perturbation import PERTURBATIONS, Perturbation
from labelveil.common.mechanisms.central.risk import Huber, HuberHinge, Logistic, ridge_loss
from labelveil.common.mechanisms.continual import FollowTheLeader, PrivateHedge
from labelveil.common.mechanisms.interactive import Target, Terms
from labelveil.common.mechanisms.interactive.call_count_tail import calls_until, least_hits, overrun
from labelveil.common.mechanisms.interactive.drift import DriftTest, affordable_epsilon
from labelveil.common.mechanisms.interactive.terms import largest_call_epsilon, most_hits
from labelveil.common.mechanisms.interactive.thresholds import DistinctCountTest
from labelveil.common.mechanisms.paired_gain import NoisyAnswers, PairedGain
from labelveil.common.mechanisms.pate import ConfidentGNMax, GNMax
from labelveil.common.mechanisms.selection import StableTopK, TopStable
from labelveil.common.mechanisms.selection.leaders import Leaders
from labelveil.common.mechanisms.synthesis import (
    BLR,
    MWEM,
    ConcentratedBudget,
    Domain,
    LinearQueries,
    Marginals,
    PureBudget,
    SelectMeasureProject,
)
from labelveil.common.mechanisms.thresholdout import Thresholdout
from labelveil.common.randomizers import private_prior
from tests.approved import approved
from tests.common.mechanisms import enumerated
from tests.common.mechanisms.central.test_minimiser import uniforms

KEPT = Path(__file__).with_name("approved.json")
ROWS = np.column_stack([uniforms(2, 60, 2) * [1.0, 0.3], np.ones(60)]) / 3
LABELS = np.clip(2 * ROWS[:, 0] + 3 * ROWS[:, 1] * ROWS[:, 0] + 0.3 * uniforms(4, 60), -1, 1)
CASES = [case for case in enumerated.cases() if not case.long]


def _figure(name: str, of: Any) -> Any:
    """A fraction that was a float is one: processors differ in the last bit of what led to it."""
    if name == "values":
        return np.array([float(Fraction(each)) for each in of])
    text = str(of)
    return float(Fraction(text)) if "/" in text and len(text) > 24 else text


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda n: f"{n} {CASES[n].of.__name__}")
def test_what_is_shown_under_the_same_noise_is_as_was_approved(place: int) -> None:
    case = CASES[place]
    sides = {str(side): side for pair in case.pairs[::7][:2] for side in pair}
    stated = {} if case.guarantee is None else case.guarantee.parameters()
    approved(KEPT, f"{place} {case.of.__name__}", {
        "guarantee": {
            name: _figure(name, each) for name, each in stated.items() if name != "orders"
        },
        **{
            name: [str(case.draw(side, seeded_entropy(seed))) for seed in range(2)]
            for name, side in sides.items()
        },
    })  # fmt: skip


@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_regressions_on_secret_labels_are_as_was_approved(epsilon: float) -> None:
    ridge = LabelRidge(epsilon).draw(ROWS, LABELS, seeded_entropy(3))
    process = LabelProcess(epsilon, 1e-5).draw(ROWS, LABELS, seeded_entropy(3))
    found = {}
    for name, fit, design in (
        ("ridge", ridge, ridge.design), ("process", process, process.measurement),
    ):  # fmt: skip
        found[name] = {
            "weights": fit.weights, "vectors": np.abs(design.vectors).sum(axis=0),
            "quantile": design.quantile, "shape": design.shape,
            "sensitivity": float(design.sensitivity),
        }  # fmt: skip
    found["predicted"] = {"process": process.predict(ROWS)}
    approved(KEPT, f"secret labels {epsilon}", found)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_perturbed_models_are_as_was_approved(kind: str, delta: float) -> None:
    found = {}
    for loss in (Logistic(), HuberHinge(), Huber(0.5), ridge_loss(0.05)):
        made = Perturbation(kind, loss, 0.05, 3.0, delta)
        labels = np.sign(LABELS) if loss.margin else LABELS
        found[str(loss)] = made.draw(ROWS, labels, seeded_entropy(1))
    approved(KEPT, f"perturbation {kind} {delta}", found)


@pytest.mark.parametrize(
    "options",
    [{}, {"noise": "laplace", "delta": 0.0}, {"sampling": "fixed", "noise": "direction"},
     {"hidden": (3,), "clip": 0.5}],
    ids=str,
)  # fmt: skip
def test_models_of_noisy_gradients_are_as_was_approved(options: dict[str, Any]) -> None:
    given = {"epsilon": 8.0, "sample": 12, "steps": 10, "entropy": seeded_entropy(1), **options}
    classes = DPSGDClassifier(**given).fit(ROWS, np.digitize(LABELS, [-0.3, 0.3]))
    numbers = DPSGDRegressor(**given, label_bounds=(-1.0, 1.0)).fit(ROWS, LABELS)
    approved(KEPT, f"gradients {options}", {
        "classes": classes.predict_proba(ROWS), "numbers": numbers.predict(ROWS),
        "noise": [classes.noise_scale_, numbers.noise_scale_],
        "guarantee": str(classes.guarantee_),
    })  # fmt: skip


def test_how_far_questions_overfit_is_as_was_approved() -> None:
    found: dict[str, Any] = {}
    for epsilon, delta, n in product((0.01, 0.5), (0.0, 1e-9), (100, 10**6)):
        found[f"{epsilon} {delta} {n}"] = [
            generalization.expected_gap(epsilon, delta),
            generalization.fresh_gap(n, 0.05, 3),
            generalization.max_information(epsilon, n, 0.05, delta),
            generalization.max_information_gap(epsilon, n, 0.05, delta),
            generalization.approximate_gap(epsilon, delta, n, 0.05),
        ]
    found["needed"] = [
        generalization.records_needed(error, epsilon, 0.05, delta)
        for error, epsilon, delta in ((0.1, 0.05, 0.0), (0.3, 0.1, 1e-12), (0.9, 1e-3, 0.0))
    ]
    approved(KEPT, "generalization", found)


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_gains_are_bounded_and_answered_as_was_approved(loss: Any) -> None:
    grid, prior = np.array([0.0, 1.0, 2.0, 5.0, 60.0]), np.array([0.4, 0.3, 0.2, 0.0995, 0.0005])
    points, labels = np.array([-1.0, 0.5, 3.0, 70.0]), np.array([0.0, 2.0, np.nan, 55.0])
    found: dict[str, Any] = {}
    for largest in (None, 9.0):
        gain = PairedGain.of_prior(grid, prior, loss, largest)
        answers = NoisyAnswers(Fraction(1, 2), 3, 2)
        answer = answers.draw(gain, points, labels, question="q", entropy=seeded_entropy(1))
        span = gain.span(points)
        found[str(largest)] = {
            "gain": gain, "moved": gain.differences(points, labels), "span": span,
            "unsure": answers.unsure(gain, span, 10), "answer": answer,
        }  # fmt: skip
    approved(KEPT, f"gain {loss}", found)


def test_a_holdouts_tolerance_is_as_was_approved() -> None:
    made = Thresholdout(Fraction(1, 2), 3, Fraction(1, 20))
    values = np.clip(uniforms(7, 500), -1, 1)
    shown = [
        made.draw(values, estimate, used=used, question="q", entropy=seeded_entropy(1))
        for estimate, used in ((0.0, 0), (0.9, 1), (float(values.mean()), 2))
    ]
    approved(KEPT, "holdout", {
        "answers": shown, "stated": str(made.approximate(1e-6)),
        "tolerance": [made.tolerance(500, 10, 0.05), made.tolerance(10**5, 1, 0.2)],
    })  # fmt: skip


def test_what_interactive_terms_cost_is_as_was_approved() -> None:
    found: dict[str, Any] = {}
    for epsilon, q, hits in ((0.1, 0.4, 20), (0.5, 0.3, 3)):
        target = Target(Fraction(epsilon), Fraction(q))
        terms = Terms(target, hits, Fraction(1, 10**9), 2)
        found[f"{epsilon} {q} {hits}"] = {
            "routes": {
                name: float(each.exact_epsilon) for name, each in terms.routes(1e-6).items()
            },
            "most": most_hits(2.0, 1e-6, target),
            "rdp": [float(value) for value in terms.guarantee.values],
            "overrun": overrun(2 * hits, hits, Fraction(q)),
            "calls": calls_until(hits, Fraction(q), 1e-3),
            "hits": least_hits(Fraction(q), 0.5, 1e-3),
        }
    found["call"] = {str(hits): str(largest_call_epsilon(1.0, 1e-6, hits)) for hits in (1, 40)}
    approved(KEPT, "terms", found)


def test_what_drift_and_distinct_users_are_told_by_is_as_was_approved() -> None:
    found: dict[str, Any] = {}
    prior = private_prior([400, 50, 30, 20], 1.0, seeded_entropy(1))
    for rows, group in ((100, 1), (5000, 3)):
        test = DriftTest(prior, rows, Fraction(1, 3), group, 0.02, 0.05)
        found[f"drift {rows}"] = [
            test.threshold, test.noticed(), test.noticed(0.2), test.expected,
            str(affordable_epsilon(Fraction(1), rows, 0.02, 0.05, group)),
        ]  # fmt: skip
    distinct = DistinctCountTest(np.asarray, 64, 20, Fraction(1, 2))
    found["distinct"] = [
        str(distinct.stays_down), distinct.phantoms, distinct.expected_flags(9),
        distinct.sketch(np.arange(9), seeded_entropy(2).source("x")),
    ]  # fmt: skip
    approved(KEPT, "watched", found)


def test_tables_are_made_up_as_was_approved() -> None:
    domain = Domain(("a", "b", "c"), (3, 2, 2))
    table = np.array([90, 0, 0, 50, 0, 0, 70, 0, 5, 5, 0, 34])
    found: dict[str, Any] = {}
    for budget in (PureBudget(Fraction(1)), ConcentratedBudget(Fraction(1, 10))):
        model = SelectMeasureProject(Marginals.up_to(domain, 2), budget).draw(
            table, seeded_entropy(2)
        )
        found[type(budget).__name__] = {
            "measured": [str(each) for each in model.measured], "model": model,
            "rows": domain.rows(table.astype(float), 100),
        }  # fmt: skip
    queries = LinearQueries(np.array([[1, 0, 1], [0, 1, 1]]))
    found["mwem"] = MWEM(queries, Fraction(2), 3, 2).draw(np.array([9, 1, 4]), seeded_entropy(2))
    blr = BLR(queries, Fraction(2), 0.4)
    found["blr"] = [
        blr.probabilities([3, 1, 2]), blr.errors([3, 1, 2]), blr.bound(100, 0.05),
        blr.draw([3, 1, 2], seeded_entropy(2)),
    ]  # fmt: skip
    approved(KEPT, "tables", {"all": found})


def test_learners_of_streams_play_as_was_approved() -> None:
    losses = uniforms(5, 12, 3)
    found = {}
    for learner in (FollowTheLeader, PrivateHedge):
        made = learner(12, 3, Fraction(5), seeded_entropy(1))
        found[learner.__name__] = [made.see(loss) for loss in losses][-1]
    approved(KEPT, "streams", found)


def test_what_is_chosen_has_its_share_of_epsilon_as_was_approved() -> None:
    top, leaders = TopStable(3, Fraction(2), Fraction(1, 10**6)), Leaders(Fraction(2), votes=1)
    pulled = StableTopK(Fraction(2), Fraction(1, 10**6), 3)
    approved(KEPT, "shares", {
        "top": [*map(str, top.scales)], "leaders": [*map(str, leaders.split(3))],
        "stable": [str(pulled.rank_choice.noise), str(pulled.test), pulled.test.threshold],
    })  # fmt: skip


def test_votes_that_agree_cost_as_little_as_was_approved() -> None:
    votes = np.array([[40, 5, 5], [20, 19, 11], [49, 1, 0], [26, 24, 0]])
    found = {}
    for vote in (GNMax(Fraction(30)), ConfidentGNMax(30, Fraction(40), Fraction(20), 2)):
        batch = vote.draw(votes, entropy=seeded_entropy(1))
        found[type(vote).__name__] = {
            "labels": batch.labels, "incurred": batch.incurred, "guarantee": str(batch.guarantee),
        }  # fmt: skip
    approved(KEPT, "votes", found)
