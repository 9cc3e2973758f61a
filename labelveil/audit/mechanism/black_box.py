"""Probes that only run a mechanism: any callable from labels to outputs will do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from labelveil.audit.attacks import rows_apart
from labelveil.audit.attacks.every_label import all_runs, every_label
from labelveil.audit.attacks.implementation import mantissa_check, permutation_check
from labelveil.audit.attacks.one_run import draw_secrets, one_run, rare_event
from labelveil.audit.attacks.seeds import seeds_check
from labelveil.audit.attacks.static_rule import static_check
from labelveil.audit.attacks.timing import timing_check
from labelveil.audit.bounds import expected_one_run_bound
from labelveil.audit.mechanism.cold_start import cold_digests
from labelveil.audit.mechanism.subject import CallableSubject
from labelveil.audit.mechanism.trial import Probes, Trial
from labelveil.audit.power import rarest_event
from labelveil.audit.verdict import GATE, SHOWN, Check, Power, Verdict, statistical

PROBES = Probes()


def _search_cost(trial: Trial) -> float:
    runs = all_runs(trial.sizes.runs, trial.subject.labels.size)
    return 0.5 + trial.seconds(runs, 6) + 1e-7 * runs


@PROBES.add(
    "every label",
    "Is any label, or any output, told apart better than ε allows?",
    _search_cost,
    not_looked_at="Labels between or beyond those of the grid.",
)
def every_label_check(trial: Trial) -> Check:
    subject, runs = trial.subject, trial.sizes.runs
    search = every_label(subject.mechanism, subject.labels, subject.epsilon, runs)
    suspect, worst = search.tested[0]
    labels = subject.labels[search.piloted]
    left_out = subject.labels.size - labels.size
    sides = [
        subject.shown(labels[side[0]]) if side.size == 1 else "all others"
        for side in (suspect.likely, suspect.unlikely)
    ]
    return statistical(
        "every label",
        search,
        claim=f"No event is more than e^ε times likelier for one label than for another,"
        f" ε = {subject.epsilon:g}.",
        tried=f"{search.pilot:,} pilot runs over {labels.size} labels"
        f"{', a random sample,' if left_out else ''} and {runs:,} more of the worst; then"
        f" {len(search.tested)} suspects on fresh runs. Worst: label {sides[0]} against {sides[1]},"
        f" {suspect.view.name}, {worst.correct:,} of {worst.guesses:,} guesses right.",
        claimed=subject.epsilon,
        power=search.power,
        details={"labels": labels.size, "worst": sides, "of": subject.labels.size},
        not_looked_at=f"{left_out:,} of {subject.labels.size:,} labels, chosen at random, were not"
        " run."
        if left_out
        else "",
    )


@PROBES.add(
    "one run",
    "How well is a secret guessed from one output, over a million records?",
    lambda trial: 0.2 + trial.seconds(trial.sizes.records) + 1e-7 * trial.sizes.records,
    not_looked_at="Labels between the lowest and the highest one.",
)
def one_run_check(trial: Trial) -> Check:
    epsilon, records = trial.subject.epsilon, trial.sizes.records
    low, high = map(trial.subject.shown, trial.ends)
    secrets = draw_secrets(records)
    run = one_run(trial.of_bits(secrets), secrets)
    reach = expected_one_run_bound(epsilon, max(run.guesses, 1), SHOWN)
    return statistical(
        "one run",
        run,
        claim=f"A uniform secret bit is guessed with probability at most"
        f" e^ε/(e^ε+1) = {1 / (1 + math.exp(-epsilon)):.4f}.",
        tried=f"{records:,} labels were drawn among {low} and {high}, randomized once, and"
        f" guessed: {run.correct:,} of {run.guesses:,} guesses were right. (A tight mechanism"
        f" would show {reach:.3f} at 95%.)",
        claimed=epsilon,
        details={"correct": run.correct, "guesses": run.guesses},
        power=(Power("excess of ε between the two outermost labels", run.excess(epsilon)),),
    )


_ROWS_MISSED = "Dependence of an output on three or more other rows together."


@PROBES.add(
    "repeated words",
    "Does any randomness come back in other rows, at any distance, block borders included?",
    lambda trial: 0.2 + trial.seconds(trial.sizes.rows) + 2e-6 * trial.sizes.rows,
    not_looked_at=f"Here and there, at lags above half of the rows. {_ROWS_MISSED}",
)
def repeats_check(trial: Trial) -> Check:
    return rows_apart.words_check(
        "repeated words",
        trial.constant,
        claim="Every row has random words of its own.",
        tried=f"{trial.constant.size:,} equal labels were randomized in one call",
    )


@PROBES.add(
    "call against call",
    "Does one release repeat the noise of another?",
    lambda trial: (
        0.1
        + trial.seconds(trial.sizes.small_calls // 4 * trial.sizes.small_rows)
        + trial.seconds(0, trial.sizes.small_calls // 4)
        + 5e-7 * trial.sizes.small_calls * trial.sizes.small_rows
    ),
)
def calls_check(trial: Trial) -> Check:
    calls, rows = trial.sizes.small_calls // 4, trial.sizes.small_rows
    return rows_apart.words_check(
        "call against call",
        np.concatenate([trial.repeat(trial.ends[0], rows) for _ in range(calls)]),
        claim="Every call has noise of its own.",
        tried=f"{calls:,} calls of {rows:,} equal labels were laid end to end",
    )


@PROBES.add(
    "labels of other rows",
    "Is any label used in another row than its own, of one long call or of many small ones?",
    lambda trial: (
        0.2
        + trial.seconds(trial.sizes.records)
        + trial.seconds(trial.sizes.small_calls * trial.sizes.small_rows, trial.sizes.small_calls)
        + 2e-6 * trial.sizes.records
        + 1e-6 * trial.sizes.small_calls * trial.sizes.small_rows
    ),
    not_looked_at=_ROWS_MISSED,
)
def influence_check(trial: Trial) -> Check:
    bits = draw_secrets(trial.sizes.records)
    lags = rows_apart.influence(trial.of_bits(bits), bits, GATE / 2)
    shape = trial.sizes.small_calls, trial.sizes.small_rows
    table = draw_secrets(math.prod(shape)).reshape(shape)
    outputs = np.stack([trial.of_bits(call) for call in table])
    pairs = rows_apart.influence(outputs, table, GATE / 2)
    check = max(lags, pairs, key=lambda association: association.ratio).check(
        "labels of other rows",
        "share of rows that show another row's label",
        claim="A row's output depends on its own label alone.",
        tried=f"{bits.size:,} random labels in one call, {shape[0]:,} calls of {shape[1]:,}:"
        f" {lags.sums + pairs.sums:,} comparisons of an output with another row's label, or with"
        " whether two other labels agree, at every distance and in every row of the small calls.",
    )
    powers = (
        Power("share of rows that show another row's label", lags.least_share),
        Power("probability that one row of a small call shows another's label", pairs.least_share),
    )
    return replace(check, power=powers)


@PROBES.add(
    "order",
    "Do outputs stand in the order of their rows, not in one of their own?",
    lambda trial: 0.2 + trial.seconds(1 << 18),
)
def order_check(trial: Trial) -> Check:
    bits = draw_secrets(min(trial.sizes.records, 1 << 18))
    return permutation_check(trial.of_bits(bits).astype(np.float64))


@PROBES.add(
    "cold starts",
    "Could the noise be had by trying every seed?",
    lambda trial: (
        6.0
        + trial.seconds(256 * trial.sizes.starts, trial.sizes.starts)
        + 0.01 * trial.sizes.starts * isinstance(trial.subject, CallableSubject)
    ),
    not_looked_at="Seeds of more bits than the power says, and generators that are predictable"
    " from their outputs.",
)
def starts_check(trial: Trial) -> Check:
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


@PROBES.add(
    "float mantissa",
    "Do the low bits of floating-point outputs give labels away?",
    lambda trial: 0.5 + trial.seconds(400_000),
)
def floats_check(trial: Trial) -> Check:
    secrets = draw_secrets(2 * min(trial.sizes.runs, 200_000))
    return mantissa_check(trial.of_bits(secrets), secrets, trial.subject.epsilon)


@PROBES.add(
    "timing",
    "Does the time of a call depend on the label?",
    lambda trial: 0.2 + trial.seconds(0, 2 * trial.sizes.calls),
    not_looked_at="Differences below the clock's resolution and this machine's unrest.",
)
def clock_check(trial: Trial) -> Check:
    low, high = (np.array([label]) for label in trial.ends)
    mechanism = trial.subject.mechanism
    return timing_check(
        "timing",
        (lambda: mechanism(low)[0], lambda: mechanism(high)[0]),
        trial.sizes.calls,
        trial.subject.epsilon,
        claim="Latency does not depend on the label, nor on whether it was kept or flipped.",
        tried=f"{2 * trial.sizes.calls:,} single calls for one of two labels at random; output and"
        " duration were looked at together.",
    )


@PROBES.add(
    "static rule",
    "Does any source on the way of a label use a predictable generator?",
    lambda trial: 2.0,
    not_looked_at="Libraries that the sources call.",
)
def sources_check(trial: Trial) -> Check:
    return static_check(trial.subject.sources, trial.subject.title)


@PROBES.add(
    "range",
    "Is a label far outside the domain treated as the nearest bound?",
    lambda trial: 0.3 + trial.seconds(200_000),
    subject=CallableSubject,
)
def black_box_range_check(trial: Trial) -> Check:
    (low, high), secrets = trial.ends, draw_secrets(200_000)
    shown = trial.subject.shown
    name, claim = "labels outside the domain", "Labels are clipped to the domain before any noise."
    try:
        outputs = trial.of_bits(secrets, (low, high + 10 * (high - low)))
    except Exception as error:  # anybody's code may refuse in any way
        refusal = f"It was refused: {error!r:.120}."
        tried = f"A label far above {shown(high)} was passed."
        return Check(name, Verdict.NOT_CHECKABLE, claim, tried, refusal)
    measured, _ = rare_event(outputs, secrets)
    rarest = rarest_event(math.inf, secrets.size / 2, trial.subject.epsilon, GATE)
    return statistical(
        name,
        measured,
        claim=claim,
        tried=f"{secrets.size:,} runs for one of the labels {shown(low)} and one far above"
        f" {shown(high)}.",
        claimed=trial.subject.epsilon,
        power=(Power("probability of an output that the far label alone gives", rarest),),
    )


@PROBES.add(
    "exact",
    "Is the claim proved, not only not refuted?",
    lambda trial: 0.0,
    subject=CallableSubject,
    not_looked_at=f"Everything that happens less often than the runs show at a level of {GATE:g}.",
)
def opaque_check(trial: Trial) -> Check:
    return Check(
        name="exact ε from the sampler",
        verdict=Verdict.NOT_CHECKABLE,
        claim="The mechanism is ε-DP exactly.",
        tried="A callable without injected entropy can only be run.",
        found="Statistics can refute a claim, never prove it: a raw label that leaks once in a"
        f" million runs, or a rounding error of 2⁻¹⁶, stays below any bound at confidence"
        f" 1 - {GATE:g}.",
    )
