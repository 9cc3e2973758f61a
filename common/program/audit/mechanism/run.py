"""`mechanism`: everything that can be held against a randomizer without a deployment.

Exact where the sampler can be interrogated, statistical where it is a black box: the event is
chosen on one half of the runs and bounded on the other, every record of one run carries a secret,
and the two-step event sees histogram and labels together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations

import numpy as np

from common.errors import LabelveilError
from common.program.audit.attacks import replay as replays
from common.program.audit.attacks.exact_channel import certify, count_weights, randomizer_sampler
from common.program.audit.attacks.exact_joint import joint_audit
from common.program.audit.attacks.histogram_event import TwoStepResponse, histogram_event
from common.program.audit.attacks.implementation import (
    Mechanism,
    cold_start_check,
    declared_outputs_check,
    mantissa_check,
    timing_check,
)
from common.program.audit.attacks.one_run import draw_secrets, one_run
from common.program.audit.attacks.static_rule import static_check
from common.program.audit.attacks.two_worlds import two_worlds
from common.program.audit.bounds import expected_one_run_bound
from common.program.audit.mechanism.subject import (
    CallableSubject,
    NamedSubject,
    Subject,
    cold_output,
)
from common.program.audit.verdict import GATE, SHOWN, Audit, Check, Verdict, statistical, verdict_of

Progress = Callable[[str], None]

PILOT_RUNS = 20_000
PILOT_LABELS = 6


@dataclass(frozen=True)
class Sizes:
    """How much is tried.

    Attributes
    ----------
    runs
        Runs of a label mechanism for each of two worlds.
    records
        Records of the one-run audit.
    releases
        Two-step releases for each of two worlds.
    calls
        Timed single calls for each of two labels.
    seeds
        Replays of a release.
    """

    runs: int = 1_000_000
    records: int = 1_000_000
    releases: int = 500_000
    calls: int = 2_000
    seeds: int = 100


def audit_mechanism(
    subject: Subject, sizes: Sizes | None = None, progress: Progress = lambda name: None
) -> Audit:
    """Run every check that fits the subject.

    Parameters
    ----------
    subject
        What is audited, and what it claims.
    sizes
        How much is tried.
    progress
        Told each check's name before it runs.
    """
    sizes = sizes or Sizes()
    audit = Audit("mechanism", subject.title, subject.epsilon)
    audit.facts = {
        "subject": subject.title,
        "labels": f"{subject.labels.size} from {subject.labels[0]:g} to {subject.labels[-1]:g}",
        "ε claimed for one label": f"{subject.epsilon:g}",
        "runs in each of two worlds": f"{sizes.runs:,}",
        "records of the one-run audit": f"{sizes.records:,}",
    }
    subject.mechanism(subject.labels[:1])  # a subject that cannot run at all is a mistake
    for name, check in steps(subject, sizes):
        progress(name)
        audit.run(lambda name=name, check=check: _guarded(name, check))  # type: ignore[misc]
    audit.plots = {"bounds": bound_plot(audit)}
    return audit


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; one that the subject refuses is undecided, and the others go on."""
    try:
        return check()
    except LabelveilError as error:
        return Check(
            name=name,
            verdict=Verdict.NOT_CHECKABLE,
            claim="The subject can be built and run for this check.",
            tried="The check was begun.",
            found=f"The subject refused: {error}",
        )


def step_names(subject: Subject) -> list[str]:
    """Names of the checks, in order."""
    return [name for name, _ in steps(subject, Sizes())]


def steps(subject: Subject, sizes: Sizes) -> list[tuple[str, Callable[[], Check]]]:
    """(name, check) in the order in which they run."""
    black_box: list[tuple[str, Callable[[], Check]]] = [
        ("two worlds", lambda: two_worlds_check(subject, sizes.runs)),
        ("one run", lambda: one_run_check(subject, sizes.records)),
        ("float mantissa", lambda: _mantissa(subject, min(sizes.runs, 200_000))),
        ("cold starts", lambda: cold_start_check(cold_output(subject), cold_output(subject))),
        ("timing", lambda: _timing(subject, sizes.calls)),
        ("static rule", lambda: static_check(subject.sources, subject.title)),
    ]
    if isinstance(subject, CallableSubject):
        return [*black_box, ("range", lambda: black_box_range_check(subject)), ("exact", _opaque)]
    named = subject
    found = cache(lambda: replayed(named, sizes.seeds))
    return [
        ("exact ε", lambda: sampler_check(named)),
        ("joint ε", lambda: joint_check(named)),
        ("replay", lambda: replays.sensitivity_check(found())),
        ("noise scale", lambda: replays.noise_scale_check(found())),
        ("bins", lambda: replays.function_check(found())),
        ("support", lambda: replays.support_check(found())),
        ("range", lambda: _range(named)),
        ("declared outputs", lambda: _declared(named)),
        *black_box,
        ("two-step event", lambda: two_step_check(named, sizes.releases)),
    ]


def sampler_check(subject: NamedSubject) -> Check:
    """The sampler's own integers: counted, compared with the published ones, certified."""
    channel = subject.randomizer.channel
    sampler = randomizer_sampler(subject.randomizer)
    rows = [channel.row_of.tolist().index(row) for row in range(len(channel.rows))]
    counted = count_weights(lambda i, words: sampler(np.array(rows)[i], words), len(rows))
    found = certify(counted.weights, subject.epsilon)
    published = tuple(tuple(row[z] for z in counted.outputs) for row in channel.rows)
    same = published == counted.weights and len(counted.outputs) == channel.outputs.size
    return Check(
        name="exact ε from the sampler",
        verdict=verdict_of(found.holds and same),
        claim=f"Randomizing one label spends at most ε = {subject.epsilon:g}.",
        tried=f"The words behind each of {channel.outputs.size} outputs were counted through an"
        f" injected entropy source, for {len(rows)} distinct rows, and their worst ratio compared"
        " with Σ_{j<60} ε^j/j! in rational arithmetic.",
        found=f"Exactly ε = {found.epsilon:.12g}; the counts"
        f" {'are' if same else 'are not'} the published weights.",
        claimed=subject.epsilon,
        bound=found.epsilon,
        shown=found.epsilon,
        confidence=1.0,
    )


def joint_check(subject: NamedSubject) -> Check:
    """Both steps at once, exactly, over every tiny data set."""
    labels, rows, half = 3, 3, Fraction(1, 2)
    rule = subject.channel_rule(labels, rows)
    found = joint_audit(rule, 2 / half, labels=labels, rows=rows, margin=1)
    return Check(
        name="exact ε of both steps",
        verdict=verdict_of(found.epsilon <= 1 + 1e-9),
        claim="Histogram (ε₁ = 1/2) and labels (ε₂ = 1/2) together spend at most 1.",
        tried=f"All data sets of {rows} labels over {labels} points, all their neighbours and all"
        f" messages were enumerated ({found.messages:,} histograms).",
        found=f"The worst log-likelihood ratio is {found.epsilon:.10g}, for counts"
        f" {found.data_set} and {found.neighbour}.",
        claimed=1.0,
        bound=found.epsilon,
        shown=found.epsilon,
        confidence=1.0,
    )


def replayed(subject: NamedSubject, seeds: int) -> replays.Replay:
    """Replay two-step releases of six labels over three points that differ in one label."""
    points = min(3, subject.labels.size)
    labels = np.array([0.0, 0.0, 0.0, 1.0, points - 1.0, points - 1.0])
    truth = np.bincount(labels.astype(np.int64), minlength=points).tolist()
    return replays.replay(subject.release, labels, 0, 1.0, truth, seeds)


def two_worlds_check(subject: Subject, runs: int) -> Check:
    """Event chosen on one half of the runs, bounded on the other, for the worst pair of labels."""
    mechanism = subject.mechanism
    low, high = worst_pair(mechanism, subject.labels)
    found = two_worlds(_repeat(mechanism, low, runs), _repeat(mechanism, high, runs))
    return statistical(
        "two worlds",
        claim=f"No event is more than e^ε times likelier for one label than for another,"
        f" ε = {subject.epsilon:g}.",
        tried=f"{runs:,} runs for each of the labels {low:g} and {high:g}: event chosen on one half"
        f" ({found.event}), counted on the other ({found.hits:,} against {found.other_hits:,}).",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
        details={"pair": [low, high]},
    )


def worst_pair(mechanism: Mechanism, labels: np.ndarray) -> tuple[float, float]:
    """The two labels that short pilot runs tell apart best; the outermost two break ties."""
    at = np.unique(np.linspace(0, labels.size - 1, PILOT_LABELS).round().astype(int))
    samples = {i: _repeat(mechanism, float(labels[i]), PILOT_RUNS) for i in at.tolist()}
    pairs = sorted(combinations(samples, 2), key=lambda pair: pair[0] - pair[1])
    best = max(pairs, key=lambda pair: two_worlds(samples[pair[0]], samples[pair[1]]).shown)
    return float(labels[best[0]]), float(labels[best[1]])


def one_run_check(subject: Subject, records: int) -> Check:
    """Every record carries a secret bit; one run gives the bound."""
    low, high = float(subject.labels[0]), float(subject.labels[-1])
    secrets = draw_secrets(records, 2)
    outputs = subject.mechanism(np.where(secrets == 1, high, low))
    found = one_run(outputs, secrets)
    reach = expected_one_run_bound(subject.epsilon, max(found.guesses, 1), SHOWN)
    return statistical(
        "one run",
        claim=f"A uniform secret bit is guessed with probability at most"
        f" e^ε/(e^ε+1) = {1 / (1 + math.exp(-subject.epsilon)):.4f}.",
        tried=f"{records:,} labels were drawn among {low:g} and {high:g}, randomized once, and"
        f" guessed: {found.correct:,} of {found.guesses:,} guesses were right. (A tight mechanism"
        f" would show {reach:.3f} at 95%.)",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
        details={"correct": found.correct, "guesses": found.guesses},
    )


def two_step_check(subject: NamedSubject, releases: int) -> Check:
    """E* against this project's own histogram and sampler, ε₁ = ε₂ = ε/2 over four labels."""
    half = Fraction(subject.epsilon) / 2
    sampler = TwoStepResponse(4, half, half)
    found = histogram_event(sampler, np.array([2, 2, 0, 0]), releases)
    return statistical(
        "two-step event",
        claim=f"Noisy histogram and randomized label together spend at most {subject.epsilon:g}.",
        tried=f"E* = {{noisy h_a ≥ c_a, noisy h_b ≤ c_b, ỹ = Φ(a)}} was counted in {releases:,}"
        f" releases of each of two neighbours: {found.hits:,} against {found.other_hits:,}.",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
    )


def black_box_range_check(subject: CallableSubject) -> Check:
    """A label far outside says no more than the bound does."""
    low, high = float(subject.labels[0]), float(subject.labels[-1])
    far = high + 10 * (high - low)
    name, claim = "labels outside the domain", "Labels are clipped to the domain before any noise."
    try:
        outside = _repeat(subject.mechanism, far, 100_000)
    except Exception as error:  # anybody's code may refuse in any way
        refusal = f"It was refused: {error!r:.120}."
        tried = f"A label of {far:g} was passed."
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, refusal)
    found = two_worlds(_repeat(subject.mechanism, low, 100_000), outside)
    return statistical(
        name,
        claim=claim,
        tried=f"100,000 runs for each of the labels {low:g} and {far:g}.",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
    )


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


def _repeat(mechanism: Mechanism, label: float, runs: int) -> np.ndarray:
    return mechanism(np.full(runs, label))


def _mantissa(subject: Subject, runs: int) -> Check:
    low, high = float(subject.labels[0]), float(subject.labels[-1])
    mechanism = subject.mechanism
    return mantissa_check(
        _repeat(mechanism, low, runs), _repeat(mechanism, high, runs), subject.epsilon
    )


def _timing(subject: Subject, calls: int) -> Check:
    low, high = float(subject.labels[0]), float(subject.labels[-1])
    return timing_check(subject.mechanism, low, high, subject.epsilon, calls)


def _range(subject: NamedSubject) -> Check:
    low, high = float(subject.labels[0]), float(subject.labels[-1])
    return replays.range_check(subject.randomize, low, high)


def _declared(subject: NamedSubject) -> Check:
    outputs = subject.mechanism(np.resize(subject.labels, 100_000))
    return declared_outputs_check(outputs, np.arange(subject.randomizer.channel.outputs.size))


def _opaque() -> Check:
    return Check(
        name="exact ε from the sampler",
        verdict=Verdict.NOT_CHECKABLE,
        claim="The mechanism is ε-DP exactly.",
        tried="A callable without injected entropy can only be run.",
        found="Statistics can refute a claim, never prove it: a raw label that leaks once in a"
        f" million runs, or a rounding error of 2⁻¹⁶, stays below any bound at confidence"
        f" 1 - {GATE:g}.",
    )
