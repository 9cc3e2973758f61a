"""`mechanism`: everything that can be held against a randomizer without a deployment.

Exact where the sampler can be interrogated, statistical where it is a black box: every label is
looked at, every record of one run carries a secret, rows are compared with rows, starts with
starts, and the two-step event sees histogram and labels together.
"""

from __future__ import annotations

import math
from typing import cast

from labelveil.audit.attacks import replay as replays
from labelveil.audit.attacks.every_label import Effort
from labelveil.audit.attacks.static_rule import static_check
from labelveil.audit.mechanism import black_box, exact
from labelveil.audit.mechanism.subject import CallableSubject, NamedSubject, Subject
from labelveil.audit.mechanism.trial import Sizes as Sizes
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.registry import Probe, Progress, expected_cost, fitting, run_probes
from labelveil.audit.verdict import GATE, Audit, Check


def _named(trial: Trial) -> bool:
    return isinstance(trial.subject, NamedSubject)


def _callable(trial: Trial) -> bool:
    return isinstance(trial.subject, CallableSubject)


def _range_of_callable(trial: Trial) -> Check:
    return black_box.black_box_range_check(cast(CallableSubject, trial.subject))


_ROWS_MISSED = "Dependence of an output on three or more other rows together."

PROBES: tuple[Probe[Trial], ...] = (
    Probe(
        "exact ε",
        "Does the sampler itself keep ε for every label, exactly?",
        lambda t: 1.0,
        lambda t: exact.sampler_check(t.named),
        _named,
    ),
    Probe(
        "joint ε",
        "Do noisy histogram and randomized labels together keep ε, exactly?",
        lambda t: 1.5,
        lambda t: exact.joint_check(t.named),
        _named,
        "Data sets of more than a few labels; the argument for them is the same.",
    ),
    Probe(
        "replay",
        "Does one label move the histogram by no more than its noise pays for?",
        lambda t: 0.015 * t.sizes.seeds,
        lambda t: replays.sensitivity_check(t.replay),
        _named,
    ),
    Probe(
        "noise scale",
        "Is the histogram's noise as wide as it is said to be?",
        lambda t: 0.1,
        lambda t: replays.noise_scale_check(t.replay),
        _named,
    ),
    Probe(
        "bins",
        "Is the channel built from the noisy histogram alone?",
        lambda t: 0.1,
        lambda t: replays.function_check(t.replay),
        _named,
    ),
    Probe(
        "support",
        "Do empty cells of the histogram get noise, too?",
        lambda t: 0.1,
        lambda t: replays.support_check(t.replay),
        _named,
    ),
    Probe(
        "range",
        "Is a label far outside the domain treated as the nearest bound?",
        lambda t: 0.1 + t.seconds(0, 128),
        lambda t: exact.far_labels_check(t.named),
        _named,
    ),
    Probe(
        "declared outputs",
        "Is every value that is sent a declared one?",
        lambda t: 0.1 + t.seconds(100_000),
        lambda t: exact.declared_check(t.named),
        _named,
    ),
    Probe(
        "two noises",
        "Is any random word used twice, for the histogram and for rows?",
        lambda t: 0.1,
        lambda t: exact.shared_words_check(t.named),
        _named,
    ),
    Probe(
        "prior noise and rows",
        "Does the histogram's noise say anything about the rows' noise?",
        lambda t: 0.1 + 1.2e-3 * t.sizes.small_calls,
        lambda t: exact.noise_correlation_check(t.named, t.sizes.small_calls),
        _named,
        "Noise that is shared without leaving a correlation of a cell with a row.",
    ),
    Probe(
        "every label",
        "Is any label, or any output, told apart better than ε allows?",
        lambda t: (
            0.5
            + t.seconds(Effort.of(t.sizes.runs, t.subject.labels.size).total, 6)
            + 1e-7 * Effort.of(t.sizes.runs, t.subject.labels.size).total
        ),
        black_box.every_label_check,
        not_looked_at="Labels between or beyond those of the grid.",
    ),
    Probe(
        "one run",
        "How well is a secret guessed from one output, over a million records?",
        lambda t: 0.2 + t.seconds(t.sizes.records) + 1e-7 * t.sizes.records,
        black_box.one_run_check,
        not_looked_at="Labels between the lowest and the highest one.",
    ),
    Probe(
        "repeated words",
        "Does a stretch of randomness come back in other rows?",
        lambda t: 0.1 + t.seconds(t.sizes.rows) + 1e-6 * t.sizes.rows,
        black_box.repeats_check,
    ),
    Probe(
        "agreement at every lag",
        "Do rows agree with rows at any distance, block borders included?",
        lambda t: 0.1 + 1e-6 * t.sizes.rows,
        black_box.agreement_check,
        not_looked_at=f"Lags above half of the rows. {_ROWS_MISSED}",
    ),
    Probe(
        "call against call",
        "Does one release repeat the noise of another?",
        lambda t: (
            0.1
            + t.seconds(t.sizes.small_calls // 4 * t.sizes.small_rows, t.sizes.small_calls // 4)
            + 5e-7 * t.sizes.small_calls * t.sizes.small_rows
        ),
        black_box.calls_check,
    ),
    Probe(
        "labels of other rows",
        "Is any label used in another row than its own?",
        lambda t: 0.1 + t.seconds(t.sizes.records) + 2e-6 * t.sizes.records,
        black_box.influence_check,
        not_looked_at=_ROWS_MISSED,
    ),
    Probe(
        "canaries in every row",
        "Does any row of a small release show a label of another row?",
        lambda t: (
            0.1
            + t.seconds(t.sizes.small_calls * t.sizes.small_rows, t.sizes.small_calls)
            + 1e-6 * t.sizes.small_calls * t.sizes.small_rows
        ),
        black_box.canaries_check,
        not_looked_at=_ROWS_MISSED,
    ),
    Probe(
        "order",
        "Do outputs stand in the order of their rows, not in one of their own?",
        lambda t: 0.2 + t.seconds(1 << 18),
        black_box.order_check,
    ),
    Probe(
        "cold starts",
        "Could the noise be had by trying every seed?",
        lambda t: (
            6.0
            + t.seconds(256 * t.sizes.starts, t.sizes.starts)
            + (0.01 * t.sizes.starts if _callable(t) else 0.0)
        ),
        black_box.starts_check,
        not_looked_at="Seeds of more bits than the power says, and generators that are predictable"
        " from their outputs.",
    ),
    Probe(
        "float mantissa",
        "Do the low bits of floating-point outputs give labels away?",
        lambda t: 0.5 + t.seconds(400_000),
        black_box.floats_check,
    ),
    Probe(
        "timing",
        "Does the time of a call depend on the label?",
        lambda t: 0.2 + t.seconds(0, 2 * t.sizes.calls),
        black_box.clock_check,
        not_looked_at="Differences below the clock's resolution and this machine's unrest.",
    ),
    Probe(
        "static rule",
        "Does any source on the way of a label use a predictable generator?",
        lambda t: 2.0,
        lambda t: static_check(t.subject.sources, t.subject.title),
        not_looked_at="Libraries that the sources call.",
    ),
    Probe(
        "range",
        "Is a label far outside the domain treated as the nearest bound?",
        lambda t: 0.3 + t.seconds(200_000),
        _range_of_callable,
        _callable,
    ),
    Probe(
        "exact",
        "Is the claim proved, not only not refuted?",
        lambda t: 0.0,
        lambda t: black_box.opaque_check(),
        _callable,
        f"Everything that happens less often than the runs show at a level of {GATE:g}.",
    ),
    Probe(
        "two-step event",
        "Do histogram and one label together say more than both steps may?",
        lambda t: 0.2 + 4e-6 * t.sizes.releases,
        lambda t: exact.two_step_check(t.named, t.sizes.releases),
        _named,
    ),
)
"""Every probe of a mechanism, in the order in which they run."""


def audit_mechanism(
    subject: Subject, sizes: Sizes | None = None, progress: Progress = lambda name: None
) -> Audit:
    """Run every probe that fits the subject.

    Parameters
    ----------
    subject
        What is audited, and what it claims.
    sizes
        How much is tried.
    progress
        Told each probe's name before it runs.
    """
    trial = Trial(subject, sizes or Sizes())
    subject.mechanism(subject.labels[:1])  # a subject that cannot run at all is a mistake
    audit = Audit("mechanism", subject.title, subject.epsilon)
    audit.facts = {
        "subject": subject.title,
        "labels": f"{subject.labels.size} from {' to '.join(map(subject.shown, trial.ends))}",
        "ε claimed for one label": f"{subject.epsilon:g}",
        "CPU seconds expected": f"{mechanism_cost(trial):.0f}",
    }
    run_probes(audit, PROBES, trial, progress)
    audit.plots = {"bounds": bound_plot(audit)}
    return audit


def mechanism_cost(trial: Trial) -> float:
    """CPU seconds that an audit will take, from a short run of its subject."""
    return expected_cost(PROBES, trial)


def step_names(subject: Subject) -> list[str]:
    """Names of the probes, in order."""
    return [probe.name for probe in fitting(PROBES, Trial(subject, Sizes()))]


def bound_plot(audit: Audit) -> list[dict[str, object]]:
    """Measured bounds beside the claims, for the report."""
    return [
        {
            "name": check.name,
            "claimed": check.claimed,
            "bound": check.bound if math.isfinite(check.bound) else None,
            "shown": check.shown if check.shown and math.isfinite(check.shown) else None,
            "exact": check.confidence == 1.0,
            "verdict": str(check.verdict),
        }
        for check in audit.checks
        if check.claimed is not None and check.bound is not None
    ]
