"""Probes of a randomizer that takes injected entropy: exact, or by replay."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, partial

import numpy as np

from labelveil.audit.attacks import replay as replays
from labelveil.audit.attacks.exact_channel import PlantedEntropy, certify, count_weights
from labelveil.audit.attacks.two_noises import correlation, tapes_check
from labelveil.audit.attacks.two_steps import event_probability, histogram_event, joint_audit
from labelveil.audit.mechanism.subject import NamedSubject
from labelveil.audit.mechanism.trial import Trial, subject_is
from labelveil.audit.power import rarest_seen, smallest_excess
from labelveil.audit.verdict import GATE, Check, Power, Probes, verdict_of
from labelveil.common.entropy import system_entropy

PROBES = Probes[Trial]()
probe = partial(PROBES.add, fits=subject_is(NamedSubject))


@probe("exact ε from the sampler", "Does the sampler itself keep ε for every label, exactly?")
def sampler_check(trial: Trial) -> Check:
    epsilon, channel = trial.named.epsilon, trial.named.randomizer.channel
    rows = np.array([channel.row_of.tolist().index(row) for row in range(len(channel.rows))])
    counted = count_weights(
        lambda i, words: trial.named.randomizer.randomize_indices(rows[i], PlantedEntropy(words)),
        len(rows),
    )
    exact = certify(counted.weights, epsilon)
    published = tuple(tuple(row[z] for z in counted.outputs) for row in channel.rows)
    same = published == counted.weights and len(counted.outputs) == channel.outputs.size
    return Check(
        verdict=verdict_of(exact.holds and same),
        claim=f"Randomizing one label spends at most ε = {epsilon:g}.",
        tried=f"The words behind each of {channel.outputs.size} outputs were counted through an"
        f" injected entropy source, for {len(rows)} distinct rows, and their worst ratio compared"
        " with Σ_{j<60} ε^j/j! in rational arithmetic.",
        found=f"Exactly ε = {exact.epsilon:.12g}; the counts"
        f" {'are' if same else 'are not'} the published weights.",
        claimed=epsilon,
        bound=exact.epsilon,
        shown=exact.epsilon,
    )


@probe(
    "exact ε of both steps",
    "Do noisy histogram and randomized labels together keep ε, exactly?",
    "Histogram (ε₁ = 1/2) and labels (ε₂ = 1/2) together spend at most 1.",
    not_looked_at="Data sets of more than a few labels; the argument for them is the same.",
)
def joint_check(trial: Trial) -> Check:
    labels = rows = 3
    build = cache(trial.named.channel_of)
    worst = joint_audit(
        lambda noisy, counts: build(noisy, rows), Fraction(4), labels=labels, rows=rows, margin=1
    )
    return Check(
        verdict=verdict_of(worst.epsilon <= 1 + 1e-9),
        tried=f"All data sets of {rows} labels over {labels} points, all their neighbours and all"
        f" messages were enumerated ({worst.messages:,} histograms).",
        found=f"The worst log-likelihood ratio is {worst.epsilon:.10g}, for counts"
        f" {worst.data_set} and {worst.neighbour}.",
        claimed=1.0,
        bound=worst.epsilon,
        shown=worst.epsilon,
    )


PROBES.of_part(replays.REPLAY, lambda trial: trial.replay, fits=subject_is(NamedSubject))


@probe(
    "replay: labels outside the domain",
    "Is a label far outside the domain treated as the nearest bound?",
    "Labels are clipped to the domain before any noise.",
)
def far_labels_check(trial: Trial) -> Check:
    return replays.range_check(trial.named.randomize, *trial.ends)


@probe("declared outputs", "Is every value that is sent a declared one?")
def declared_check(trial: Trial) -> Check:
    sent = trial.named.mechanism(np.resize(trial.named.labels, trial.sizes.runs // 10))
    declared = trial.named.randomizer.channel.outputs.size
    strange = int(np.count_nonzero(~np.isin(sent, np.arange(declared))))
    return Check(
        verdict=verdict_of(strange == 0),
        claim=f"Every value sent is one of {declared:,} declared outputs.",
        tried=f"{sent.size:,} values were compared with them.",
        found=f"{strange:,} lie outside.",
        power=(Power("probability of an undeclared output", rarest_seen(sent.size)),),
    )


@probe(
    "two noises",
    "Is any random word used twice, for the histogram and for rows?",
    "No randomness is used twice.",
)
def shared_words_check(trial: Trial) -> Check:
    subject, grid = trial.named, trial.named.labels
    between = np.resize((grid[:-1] + grid[1:]) / 2, 1000)  # so that rounding is random, too
    return tapes_check(
        {"prior": subject.noise, "rows": partial(subject.randomize, between)}, system_entropy().key
    )


@probe(
    "prior noise and rows",
    "Does the histogram's noise say anything about the rows' noise?",
    "The histogram's noise is independent of the rows' noise.",
    not_looked_at="Noise that is shared without leaving a correlation of a cell with a row.",
)
def noise_correlation_check(trial: Trial) -> Check:
    subject, releases = trial.named, trial.sizes.small_calls // 2
    keys = [system_entropy() for _ in range(releases)]
    outputs = np.stack([subject.randomize(subject.labels, entropy) for entropy in keys])
    largest = correlation(np.stack([*map(subject.noise, keys)]), outputs)
    return largest.check(
        "correlation of the noise on a cell with a row",
        tried=f"{releases:,} releases of one data set; {largest.sums:,} correlations of the noise"
        " on a cell with the output of a row.",
    )


@probe("two-step event", "Do histogram and one label together say more than both steps may?")
def two_step_check(trial: Trial) -> Check:
    """E* against this project's own histogram and sampler, ε₁ = ε₂ = ε/2 over four labels."""
    epsilon, releases = trial.named.epsilon, trial.sizes.releases
    half = Fraction(epsilon) / 2
    event = histogram_event(half, half, 2 * releases)
    chance = event_probability(float(half), float(half))
    excess = smallest_excess(chance, 2 * releases, epsilon, GATE)
    return event.check(
        claim=f"Noisy histogram and randomized label together spend at most {epsilon:g}.",
        tried=f"E* = {{noisy h_a ≥ c_a, noisy h_b ≤ c_b, ỹ = Φ(a)}} was looked for in"
        f" {2 * releases:,} releases of one of two neighbours at random: {event.correct:,} of the"
        f" {event.guesses:,} in which it occurred were of the first.",
        claimed=epsilon,
        power=(Power("excess of ε of both together", excess),),
    )
