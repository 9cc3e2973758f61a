"""Checks that only run a mechanism: any callable from labels to outputs will do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from labelveil.audit.attacks import rows_apart
from labelveil.audit.attacks.every_label import every_label
from labelveil.audit.attacks.implementation import (
    mantissa_check,
    permutation_check,
    timing_check,
)
from labelveil.audit.attacks.one_run import draw_secrets, one_run
from labelveil.audit.attacks.rows_apart import Association
from labelveil.audit.attacks.seeds import seeds_check
from labelveil.audit.attacks.two_worlds import two_worlds
from labelveil.audit.bounds import expected_one_run_bound
from labelveil.audit.mechanism.cold_start import cold_digests
from labelveil.audit.mechanism.subject import CallableSubject
from labelveil.audit.mechanism.trial import Trial
from labelveil.audit.power import smallest_excess, two_worlds_rarest
from labelveil.audit.verdict import GATE, SHOWN, Check, Power, Verdict, statistical, verdict_of


def every_label_check(trial: Trial) -> Check:
    """The label, the pair and the output that say most, searched for and tested."""
    subject = trial.subject
    found = every_label(subject.mechanism, subject.labels, subject.epsilon, trial.sizes.runs)
    worst, effort = found.tested[0], found.effort
    labels = subject.labels[found.looked_at]
    some = found.looked_at.size < subject.labels.size
    sides = [
        subject.shown(labels[side[0]]) if side.size == 1 else "all others"
        for side in (worst.suspect.likely, worst.suspect.unlikely)
    ]
    check = statistical(
        "every label",
        claim=f"No event is more than e^ε times likelier for one label than for another,"
        f" ε = {subject.epsilon:g}.",
        tried=f"{effort.pilot:,} pilot runs over {labels.size} labels"
        f"{', a random sample,' if some else ''} and {effort.again:,} more of the worst; then"
        f" {len(found.tested)} suspects on fresh runs. Worst: label {sides[0]} against {sides[1]},"
        f" {worst.suspect.view.name}, {worst.right:,} of {worst.guesses:,} guesses right.",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
        power=found.power,
        details={"labels": labels.size, "worst": sides, "of": subject.labels.size},
    )
    if not some:
        return check
    left = f"{subject.labels.size - labels.size:,} of {subject.labels.size:,} labels"
    return replace(check, not_looked_at=f"{left}, chosen at random, were not run.")


def one_run_check(trial: Trial) -> Check:
    """Every record carries a secret bit; one run gives the bound."""
    subject, records = trial.subject, trial.sizes.records
    low, high = map(subject.shown, trial.ends)
    secrets = draw_secrets(records, 2)
    found = one_run(trial.of_bits(secrets), secrets)
    guesses = max(found.guesses, 1)
    reach = expected_one_run_bound(subject.epsilon, guesses, SHOWN)
    excess = smallest_excess(1.0, guesses, subject.epsilon, GATE)
    return statistical(
        "one run",
        claim=f"A uniform secret bit is guessed with probability at most"
        f" e^ε/(e^ε+1) = {1 / (1 + math.exp(-subject.epsilon)):.4f}.",
        tried=f"{records:,} labels were drawn among {low} and {high}, randomized once, and"
        f" guessed: {found.correct:,} of {found.guesses:,} guesses were right. (A tight mechanism"
        f" would show {reach:.3f} at 95%.)",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
        details={"correct": found.correct, "guesses": found.guesses},
        power=(Power("excess of ε between the two outermost labels", excess),),
    )


def repeats_check(trial: Trial) -> Check:
    """No stretch of rows comes back."""
    outputs = trial.constant
    found = rows_apart.find_repeat(outputs)
    verdict = verdict_of(not found.found) if found.window else Verdict.NOT_CHECKABLE
    return Check(
        name="repeated words",
        verdict=verdict,
        claim="Every row has random words of its own.",
        tried=f"{outputs.size:,} equal labels were randomized in one call, and every window of"
        f" {found.window:,} rows was compared with every other one, at any distance.",
        found=f"The rows from {found.first:,} on are the same {found.lag:,} rows later."
        if found.found
        else "No window occurs twice."
        if found.window
        else "The outputs vary too little: windows would agree by chance.",
        bound=math.inf if found.found else 0.0 if found.window else None,
        confidence=1 - GATE,
        power=(Power("rows of a stretch that is repeated", float(found.window or math.inf)),),
        details={"lag": found.lag, "first": found.first},
    )


def agreement_check(trial: Trial) -> Check:
    """Rows at no distance agree more or less often than chance."""
    found = rows_apart.agreement(trial.constant)
    return _association(
        "agreement at every lag",
        found,
        claim="The noise of any two rows is independent, however far apart they are.",
        tried=f"{trial.constant.size:,} equal labels were randomized in one call; outputs were"
        f" compared at {found.sums:,} lags.",
        power="share of rows that repeat another's word at one lag",
    )


def influence_check(trial: Trial) -> Check:
    """No row's output depends on another row's label."""
    bits = rows_apart.random_bits(trial.sizes.records)
    found = rows_apart.influence(trial.of_bits(bits), bits)
    return _association(
        "labels of other rows",
        found,
        claim="A row's output depends on its own label alone.",
        tried=f"{bits.size:,} random labels in one call; {found.sums:,} comparisons of an output"
        " with another row's label, or with whether two other labels agree, at every distance.",
        power="share of rows that show another row's label",
    )


def canaries_check(trial: Trial) -> Check:
    """A canary in any row of a call is compared with all other rows."""
    shape = trial.sizes.small_calls, trial.sizes.small_rows
    bits = rows_apart.random_bits(shape[0] * shape[1]).reshape(shape)
    outputs = np.stack([trial.of_bits(call) for call in bits])
    found = rows_apart.small_calls_influence(outputs, bits)
    return _association(
        "canaries in every row",
        found,
        claim="No row of a call shows a label of another row.",
        tried=f"{shape[0]:,} calls of {shape[1]:,} random labels: {found.sums:,} comparisons of the"
        " output of one row with the label of another, or with whether two neighbours agree.",
        power="probability that one row shows another row's label",
    )


def calls_check(trial: Trial) -> Check:
    """No call repeats words of another call."""
    calls, rows = trial.sizes.small_calls, trial.sizes.small_rows
    outputs = np.concatenate([trial.repeat(trial.ends[0], rows) for _ in range(calls // 4)])
    found = rows_apart.find_repeat(outputs)
    again = rows_apart.agreement(outputs[: -(outputs.size % 2) or None])
    holds = not (found.found or again.found)
    return Check(
        name="call against call",
        verdict=verdict_of(holds),
        claim="Every call has noise of its own.",
        tried=f"{calls // 4:,} calls of {rows:,} equal labels were laid end to end; windows of"
        f" {found.window:,} rows were compared, and outputs at {again.sums:,} lags.",
        found=f"Rows come back {found.lag:,} rows later." if found.found else _size(again),
        bound=0.0 if holds else math.inf,
        confidence=1 - GATE,
        power=(
            Power("rows of a stretch that is repeated", float(found.window or math.inf)),
            Power("share of rows that repeat another's word at one lag", again.least_share),
        ),
    )


def order_check(trial: Trial) -> Check:
    """Outputs stand in the order of their rows."""
    bits = rows_apart.random_bits(min(trial.sizes.records, 1 << 18))
    return permutation_check(trial.of_bits(bits).astype(np.float64))


def starts_check(trial: Trial) -> Check:
    """First starts, forked processes and restored copies draw different noise."""
    starts, forks = trial.sizes.starts, trial.sizes.forks
    total = starts + 2 * forks
    rows = rows_apart.window_rows(trial.constant, total * total / 2)
    if not rows:
        return Check(
            "cold starts",
            Verdict.NOT_CHECKABLE,
            "Noise comes from the operating system's entropy, again at every start: no seed.",
            "Outputs for equal labels were looked at.",
            "They vary too little: two starts would agree by chance.",
        )
    digests = cold_digests(trial.subject, rows, starts, forks)
    kinds = f"{starts:,} in one process that loads it anew, {forks} in processes forked before it"
    kinds += f" was loaded, {forks} in processes forked after it had randomized"
    return seeds_check(digests, rows, kinds)


def black_box_range_check(subject: CallableSubject) -> Check:
    """A label far outside says no more than the bound does."""
    low, high = float(subject.labels[0]), float(subject.labels[-1])
    far = high + 10 * (high - low)
    name, claim = "labels outside the domain", "Labels are clipped to the domain before any noise."
    try:
        outside = subject.mechanism(np.full(100_000, far))
    except Exception as error:  # anybody's code may refuse in any way
        refusal = f"It was refused: {error!r:.120}."
        tried = f"A label far above {subject.shown(high)} was passed."
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, refusal)
    found = two_worlds(subject.mechanism(np.full(100_000, low)), outside)
    rarest = two_worlds_rarest(50_000, subject.epsilon, GATE)
    return statistical(
        name,
        claim=claim,
        tried=f"100,000 runs for each of the labels {subject.shown(low)} and one far above"
        f" {subject.shown(high)}.",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
        power=(Power("probability of an output that the far label alone gives", rarest),),
    )


def floats_check(trial: Trial) -> Check:
    """No floating-point noise leaves."""
    low, high = trial.ends
    runs = min(trial.sizes.runs, 200_000)
    return mantissa_check(trial.repeat(low, runs), trial.repeat(high, runs), trial.subject.epsilon)


def clock_check(trial: Trial) -> Check:
    """How long a call takes says nothing."""
    return timing_check(
        trial.subject.mechanism, *trial.ends, trial.subject.epsilon, trial.sizes.calls
    )


def opaque_check() -> Check:
    return Check(
        name="exact ε from the sampler",
        verdict=Verdict.NOT_CHECKABLE,
        claim="The mechanism is ε-DP exactly.",
        tried="A callable without injected entropy can only be run.",
        found="Statistics can refute a claim, never prove it: a raw label that leaks once in a"
        f" million runs, or a rounding error of 2⁻¹⁶, stays below any bound at confidence"
        f" 1 - {GATE:g}.",
    )


def _association(name: str, found: Association, *, claim: str, tried: str, power: str) -> Check:
    return Check(
        name=name,
        verdict=verdict_of(not found.found),
        claim=claim,
        tried=tried,
        found=_size(found),
        confidence=1 - GATE,
        power=(Power(power, found.least_share),),
        details={"where": found.where, "of_threshold": found.ratio},
    )


def _size(found: Association) -> str:
    return (
        f"The largest is {found.ratio:.2f} of what a right build passes once in a million audits"
        f" ({found.where})."
    )
