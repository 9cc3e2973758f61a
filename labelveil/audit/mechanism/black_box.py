"""Probes that only run a mechanism: any callable from labels to outputs will do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.fft import next_fast_len

from labelveil.audit.attacks import implementation, rows_apart
from labelveil.audit.attacks.every_label import every_label
from labelveil.audit.attacks.one_run import draw_secrets, one_run, rare_event, uniform
from labelveil.audit.mechanism.cold_start import cold_digests, seeds_check
from labelveil.audit.mechanism.subject import CallableSubject, SumsSubject
from labelveil.audit.mechanism.trial import Trial, subject_is
from labelveil.audit.power import expected_one_run_bound, rarest_event
from labelveil.audit.verdict import GATE, SHOWN, Check, Power, Probes, Verdict
from labelveil.common.arrays import Floats

PROBES = Probes[Trial]()

PARTS = 32  # of a long call, each of which is guessed by itself
STARTS_AGAIN = 7  # rows of a long call that are looked for again, beside the first
PAIRED = 8  # influence is looked for of whether two labels at most so far apart agree

TRIPLES = ((1, 2), (1, 3), (2, 3))
"""Distances of two labels from a third that are taken together; others are drawn."""


@PROBES.add(
    "every label",
    "Is any label, or any output, told apart better than ε allows?",
    not_looked_at="Labels between two neighbours, but for the half-way one and one that was drawn.",
)
def every_label_check(trial: Trial) -> Check:
    subject, runs, all_labels = trial.subject, trial.sizes.runs, trial.labels
    search = every_label(subject.mechanism, all_labels, subject.epsilon, runs)
    suspect, worst = search.tested[0]
    labels = all_labels[search.piloted]
    left_out = all_labels.size - labels.size
    sides = [
        subject.shown(labels[side[0]]) if side.size == 1 else "all others"
        for side in (suspect.likely, suspect.unlikely)
    ]
    return search.check(
        claim=f"No event is more than e^ε times likelier for one label than for another,"
        f" ε = {subject.epsilon:g}.",
        tried=f"{search.pilot:,} pilot runs over {labels.size} labels"
        f"{', a random sample,' if left_out else ''} ({trial.between}) and {runs:,} more of the"
        f" worst; then {len(search.tested)} suspects on fresh runs. Worst: label {sides[0]} against"
        f" {sides[1]}, {suspect.view.name}, {worst.correct:,} of {worst.guesses:,} guesses right.",
        claimed=subject.epsilon,
        power=search.power,
        details={"labels": labels.size, "worst": sides, "of": all_labels.size},
        not_looked_at=f"{left_out:,} of {all_labels.size:,} labels, chosen at random, were not run."
        if left_out
        else "",
    )


@PROBES.add(
    "one run",
    "How well is a secret guessed from one output, at the beginning of a long call and at its end?",
    not_looked_at="Other labels than the two.",
)
def one_run_check(trial: Trial) -> Check:
    epsilon, records = trial.subject.epsilon, trial.about(trial.sizes.long_rows)
    pair = trial.pair()
    low, high = map(trial.subject.shown, pair)
    secrets = draw_secrets(records)
    runs = one_run(trial.of_bits(secrets, pair), secrets, PARTS)
    at = max(range(len(runs)), key=lambda part: runs[part].bound)
    run, whole = runs[at], runs[0]
    reach = expected_one_run_bound(epsilon, max(whole.guesses, 1), SHOWN)
    return run.check(
        claim=f"A uniform secret bit is guessed with probability at most"
        f" e^ε/(e^ε+1) = {1 / (1 + math.exp(-epsilon)):.4f}.",
        tried=f"{records:,} labels were drawn among {low} and {high}, randomized once, and"
        f" guessed, in all and in each of {PARTS} parts of the rows: {run.correct:,} of"
        f" {run.guesses:,} guesses were right in {f'part {at}' if at else 'all'}. (A tight"
        f" mechanism would show {reach:.3f} at 95%.)",
        claimed=epsilon,
        details={"correct": run.correct, "guesses": run.guesses, "part": at},
        power=(
            Power("excess of ε between two labels that were drawn", whole.excess(epsilon)),
            Power(f"the same in one of {PARTS} parts of the rows", runs[-1].excess(epsilon)),
        ),
    )


@PROBES.add(
    "repeated words",
    "Does any randomness come back in other rows, at any distance, block borders included?",
    "Every row has random words of its own.",
    not_looked_at="Words that come back after more rows than that.",
)
def repeats_check(trial: Trial) -> Check:
    label, mechanism = trial.label(), trial.subject.mechanism
    equal = mechanism(np.full(trial.about(trial.sizes.rows), label))
    long = mechanism(np.full(trial.about(trial.sizes.long_rows), trial.label()))
    kinds = draw_secrets(trial.about(trial.sizes.rows), trial.labels.size)
    mixed = rows_apart.Rows.from_outputs(mechanism(trial.labels[kinds]), kinds)
    starts = [0, *draw_secrets(STARTS_AGAIN, long.size // 4).tolist()]
    again = rows_apart.find_again(long, starts, GATE / 4)
    longest = long.size - max(starts) if again.window else 0
    return rows_apart.words_check(
        (rows_apart.find_repeat(equal, GATE / 4), again),
        [rows_apart.agreement(r, GATE / 4) for r in (rows_apart.Rows.from_outputs(equal), mixed)],
        tried=f"{equal.size:,} labels {trial.subject.shown(label)}, {kinds.size:,} labels at random"
        f" ({trial.between}) and {long.size:,} equal ones were randomized in a call each",
        powers=(
            Power(f"rows that come again within {longest:,}", float(again.window or math.inf)),
        ),
    )


@PROBES.add(
    "call against call",
    "Does one release repeat the noise of another?",
    "Every call has noise of its own.",
)
def calls_check(trial: Trial) -> Check:
    calls, rows = trial.sizes.small_calls // 4, trial.sizes.small_rows
    kinds = draw_secrets(rows, trial.some.size)
    labels = trial.some[kinds]
    outputs = np.concatenate([trial.subject.mechanism(labels) for _ in range(calls)])
    every = np.tile(kinds, calls)
    return rows_apart.words_check(
        (rows_apart.find_repeat(outputs, GATE / 2, every, rows),),
        (rows_apart.agreement(rows_apart.Rows.from_outputs(outputs, every), GATE / 2),),
        tried=f"{calls:,} calls for the same {rows:,} labels at random were laid end to end",
    )


@PROBES.add(
    "labels of other rows",
    "Is any label used in another row than its own, of one long call or of many small ones?",
    "A row's output depends on its own label alone.",
    not_looked_at="Dependence of an output on several other rows together, but for those drawn.",
)
def influence_check(trial: Trial) -> Check:
    """Labels all over the domain; how they are told apart is drawn, but for high and low."""

    def signs(labels: Floats) -> Floats:
        high = labels >= np.median(labels)
        return np.where([high, uniform(labels.size) < 0.5], 1.0, -1.0)

    # rows are compared in a circle, by a transform as long as the call
    size = next_fast_len(trial.about(trial.sizes.records), real=True)
    kinds = draw_secrets(size, trial.labels.size)
    outputs = trial.subject.mechanism(trial.labels[kinds])
    far = draw_secrets(4, size // 2) + 1
    gaps = [*((gap,) for gap in (*range(1, PAIRED + 1), *far[:2].tolist())), *TRIPLES]
    gaps.append(tuple(far[2:].tolist()))
    lags = rows_apart.influence(
        rows_apart.Rows.from_outputs(outputs, kinds),
        signs(trial.labels),
        draw_secrets(trial.labels.size, rows_apart.GROUPS),
        gaps,
        GATE / 2,
    )
    calls, rows = trial.sizes.small_calls, trial.sizes.small_rows
    few = draw_secrets(calls * rows, trial.some.size)
    small = [trial.subject.mechanism(trial.some[call]) for call in few.reshape(calls, rows)]
    pairs = rows_apart.influence_in_calls(
        rows_apart.Rows.from_outputs(np.concatenate(small), few),
        calls,
        signs(trial.some)[0],
        GATE / 2,
    )
    check = rows_apart.worst(lags, pairs).check(
        "share of rows that show another row's label",
        tried=f"{size:,} random labels in one call ({trial.between}), {calls:,} calls of {rows:,}:"
        f" {lags.sums + pairs.sums:,} comparisons of an output with another row's label, or with"
        " whether other labels agree, at every distance and in every row of the small calls.",
    )
    powers = (
        Power("share of rows that show another row's label", lags.least_share),
        Power("probability that one row of a small call shows another's label", pairs.least_share),
    )
    return replace(check, power=powers)


@PROBES.add(
    "rows are not ordered by label",
    "Do outputs stand in the order of their rows, not in one of their own?",
    "The order of rows says nothing about labels.",
)
def order_check(trial: Trial) -> Check:
    rows = max(trial.sizes.records // 4, 1000)
    labels = trial.labels[draw_secrets(rows, trial.labels.size)]
    return implementation.permutation_check(trial.subject.mechanism(labels).astype(np.float64))


@PROBES.add(
    "cold starts",
    "Could the noise be had by trying every seed?",
    "Noise comes from the operating system's entropy, again at every start: no seed.",
    not_looked_at="Seeds of more bits than the power says, and generators that are predictable"
    " from their outputs.",
)
def starts_check(trial: Trial) -> Check:
    starts, forks = trial.sizes.starts, trial.sizes.forks
    total = starts + 2 * forks
    kinds = draw_secrets(trial.sizes.rows, trial.some.size)
    sample = trial.subject.mechanism(trial.some[kinds])
    share = rows_apart.commonest_share(sample, kinds)
    rows = rows_apart.window_rows(share, trial.some.size * total * total / 2)
    if not rows:
        return Check(
            Verdict.NOT_CHECKABLE,
            "Outputs for equal labels were looked at.",
            "They vary too little: two starts would agree by chance.",
        )
    digests = cold_digests(trial.subject, trial.some, rows, starts, forks)
    said = f"{starts:,} in one process that loads it anew, {forks} in processes forked before it"
    said += f" was loaded, {forks} in processes forked after it had randomized"
    checks = [seeds_check(each, rows, said) for each in digests]
    at = max(range(len(checks)), key=lambda at: checks[at].details["repeated"])
    return replace(
        checks[at],
        tried=f"{checks[at].tried} So it was for each of {trial.some.size} labels that were drawn;"
        f" shown is {trial.subject.shown(trial.some[at])}.",
    )


@PROBES.add(
    "float mantissa",
    "Do the low bits of floating-point outputs give labels away?",
    "No floating-point noise leaves: outputs come from a finite set, and their low bits say nothing"
    " about the label.",
)
def floats_check(trial: Trial) -> Check:
    secrets = draw_secrets(2 * trial.sizes.runs // 5)
    outputs = trial.of_bits(secrets, trial.pair())
    return implementation.mantissa_check(outputs, secrets, trial.subject.epsilon)


@PROBES.add(
    "timing",
    "Does the time of a call depend on the label?",
    "Latency does not depend on the label, nor on whether it was kept or flipped.",
    not_looked_at="Differences below the clock's resolution and this machine's unrest.",
)
def clock_check(trial: Trial) -> Check:
    mechanism, labels = trial.subject.mechanism, trial.labels
    slowest, fastest = implementation.most_apart(mechanism, labels, trial.sizes.calls)
    low, high = labels[[fastest]], labels[[slowest]]
    return implementation.timing_check(
        (lambda: mechanism(low)[0], lambda: mechanism(high)[0]),
        trial.sizes.calls,
        trial.subject.epsilon,
        tried=f"{trial.sizes.calls:,} single calls showed which of {labels.size} labels"
        f" ({trial.between}) are slowest and fastest: {trial.subject.shown(high[0])} and"
        f" {trial.subject.shown(low[0])}. Of {2 * trial.sizes.calls:,} more for one of these at"
        " random, output and duration were looked at together.",
    )


@PROBES.add(
    "static rule: no predictable generator",
    "Does any source on the way of a label use a predictable generator?",
    "No NumPy generator, nor any other predictable one, is used on the way of a label.",
    not_looked_at="Libraries that the sources call.",
)
def sources_check(trial: Trial) -> Check:
    return implementation.static_check(trial.subject.sources, trial.subject.title)


@PROBES.add(
    "labels outside the domain",
    "Is a label far outside the domain treated as the nearest bound?",
    "Labels are clipped to the domain before any noise.",
    fits=subject_is(CallableSubject, SumsSubject),
)
def black_box_range_check(trial: Trial) -> Check:
    (low, high), shown = trial.ends, trial.subject.shown
    secrets = draw_secrets(trial.sizes.runs // 5)
    beyond = (1 + 20 * uniform(2) ** 2) * (high - low)
    far = [(low, high + beyond[0])]
    if not (isinstance(trial.subject, CallableSubject) and trial.subject.events is not None):
        far += [(high, low - beyond[1]), (high, high + beyond[1]), (low, low - beyond[0])]
    try:
        outputs = [trial.of_bits(secrets, pair) for pair in far]
    except Exception as error:  # anybody's code may refuse in any way
        refusal = f"It was refused: {error!r:.120}."
        tried = "Labels outside the domain were passed."
        return Check(Verdict.NOT_CHECKABLE, tried, refusal)
    measured = max(
        (rare_event(each, secrets, tests=len(far))[0] for each in outputs),
        key=lambda run: run.bound,
    )
    level = GATE / len(far)
    rarest = rarest_event(math.inf, secrets.size / 2, trial.subject.epsilon, level)
    sides = (f"above {shown(high)}" if other > high else f"below {shown(low)}" for _, other in far)
    near = (shown(label) for label, _ in far)
    pairs = "; ".join(f"{at} and one far {side}" for at, side in zip(near, sides, strict=True))
    return measured.check(
        tried=f"{secrets.size:,} runs each for one of two labels: {pairs}.",
        claimed=trial.subject.epsilon,
        details={"pairs": far},
        power=(Power("probability of an output that the far label alone gives", rarest),),
    )


@PROBES.add(
    "exact ε from the sampler",
    "Is the claim proved, not only not refuted?",
    "The mechanism is ε-DP exactly.",
    fits=subject_is(CallableSubject),
    not_looked_at=f"Everything that happens less often than the runs show at a level of {GATE:g}.",
)
def opaque_check(trial: Trial) -> Check:
    return Check(
        verdict=Verdict.NOT_CHECKABLE,
        tried="A callable without injected entropy can only be run.",
        found="Statistics can refute a claim, never prove it: a raw label that leaks once in a"
        f" million runs, or a rounding error of 2⁻¹⁶, stays below any bound at confidence"
        f" 1 - {GATE:g}.",
    )
