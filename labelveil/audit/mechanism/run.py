"""`mechanism`: everything that can be held against a randomizer without a deployment.

Exact where the sampler can be interrogated, statistical where it is a black box: every label is
looked at, every record of one run carries a secret, rows are compared with rows, starts with
starts, and the two-step event sees histogram and labels together.
"""

from __future__ import annotations

from labelveil.audit.attacks.every_label import all_runs
from labelveil.audit.mechanism import black_box, exact, sums
from labelveil.audit.mechanism.subject import starts_anew
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.verdict import Audit, Probes, Progress, silent

PROBES = Probes[Trial]([*exact.PROBES, *sums.PROBES, *black_box.PROBES])
"""Every probe of a mechanism, in the order in which they run."""


def audit_mechanism(trial: Trial, progress: Progress = silent) -> Audit:
    """Run every probe that fits the subject."""
    subject = trial.subject
    subject.mechanism(subject.labels[:1])  # a subject that cannot run at all is a mistake
    audit = Audit("mechanism", subject.title, subject.epsilon, progress=progress)
    audit.facts = {
        "subject": subject.title,
        "labels": f"{subject.labels.size} from {' to '.join(map(subject.shown, trial.ends))}",
        "ε claimed for one label": f"{subject.epsilon:g}",
        "CPU seconds expected": f"{mechanism_cost(trial):.0f}",
    }
    PROBES.audit(audit, trial)
    return audit


def mechanism_cost(trial: Trial) -> float:
    """CPU seconds that an audit will take: its subject from a short run, the rest as measured."""
    sizes = trial.sizes
    small = sizes.small_calls * sizes.small_rows
    rows = all_runs(sizes.runs, trial.labels.size) + 1.3 * sizes.runs + 1024 * sizes.starts
    rows += 2 * (sizes.long_rows + sizes.rows) + 1.25 * (sizes.records + small)
    calls = 1.25 * sizes.small_calls + 3 * sizes.calls + sizes.starts
    loaded = 0.01 * sizes.starts * (not starts_anew(trial.subject))
    row, call = trial.pace
    return 1.0 + 11e-6 * sizes.runs + loaded + rows * row + calls * call
