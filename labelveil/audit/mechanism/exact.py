"""Probes of a randomizer that takes injected entropy: exact, or by replay.

What both steps of a release spend *exactly* is found by enumeration over tiny data sets. The
message is the noisy histogram h, the channel that was built, and one output for each label. For
neighbours D and D' that differ in one label, its log-likelihood ratio is

    ln P(h | D) - ln P(h | D') + Σ_j ln K_h[y_j, z_j] - ln K_h[y'_j, z_j].

With discrete Laplace noise of scale s the first difference is (‖h - c'‖₁ - ‖h - c‖₁) / s, a
rational number, and beyond a box around the counts it no longer changes; so the supremum over all
histograms, channels and outputs is a maximum over finitely many messages, and it is exactly ε.

*The sharpest event*, for a label i that is a in world D and b in world D', and true counts c in D:

    E* = {noisy h_a >= c_a,  noisy h_b <= c_b,  ỹ_i = Φ(a)},

where Φ(a) is the output that the published channel gives a most often. Each count event has
probability 1 / (1 + e^(-ε₁/2)) under D, by the discrete Laplace law of scale 2/ε₁; the label's own
output has e^ε₂ / (e^ε₂ + k - 1), of k outputs of randomized response. Under D' all three are
exactly e^(ε₁/2), e^(ε₁/2) and e^ε₂ times rarer, together e^(ε₁+ε₂): no event reveals more.

Is anything random used twice, in two places that are meant to be independent? Each part is run
under one key while every 64-bit word that it draws is recorded; words of different streams agree
with probability 2⁻⁶⁴. And noise on a known histogram is put beside the outputs of the same
releases, cell by cell and row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from labelveil.audit.attacks import replay as replays
from labelveil.audit.attacks.exact_channel import (
    PlantedEntropy,
    RecordedEntropy,
    count_weights,
    worst_ratio,
)
from labelveil.audit.attacks.one_run import OneRun, Outputs, draw_secrets
from labelveil.audit.attacks.rows_apart import Association, cells_of, largest_sum
from labelveil.audit.mechanism.subject import NamedSubject
from labelveil.audit.mechanism.trial import Trial, subject_is
from labelveil.audit.power import guess_probability, rarest_seen, smallest_excess
from labelveil.audit.verdict import GATE, Check, Power, Probes, verdict_of
from labelveil.common.arrays import Integers, Words
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import private_prior

PROBES = Probes[Trial]()
probe = partial(PROBES.add, fits=subject_is(NamedSubject))

BATCH = 1 << 16

WORLDS = np.array([2, 2, 0, 0]), np.array([1, 3, 0, 0])
"""True counts in both: a label is moved from the first point to the second."""

Histogram = tuple[int, ...]

ChannelRule = Callable[[Histogram, Histogram], FiniteChannel]
"""Noisy counts and true counts to the channel that is used: a right rule ignores the second."""


@probe("exact ε from the sampler", "Does the sampler itself keep ε for every label, exactly?")
def sampler_check(trial: Trial) -> Check:
    epsilon, channel = trial.named.epsilon, trial.named.randomizer.channel
    rows = np.array([channel.row_of.tolist().index(row) for row in range(len(channel.rows))])
    counted = count_weights(
        lambda i, words: trial.named.randomizer.randomize_indices(rows[i], PlantedEntropy(words)),
        len(rows),
    )
    exact = worst_ratio(counted.weights, epsilon)
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


@dataclass(frozen=True)
class JointAudit:
    """What the enumeration found."""

    epsilon: float  # the largest log-likelihood ratio of any message under any two neighbours
    messages: int  # pairs of neighbours × noisy histograms, with all outputs of all labels in each
    data_set: Histogram  # true counts, where the largest ratio occurs
    neighbour: Histogram  # and of the other data set


def joint_audit(
    rule: ChannelRule, scale: Fraction, *, labels: int, rows: int, margin: int
) -> JointAudit:
    """Enumerate every data set of n ``rows`` over k ``labels``, its neighbours and every message.

    Channels are chosen by ``rule``, and ``scale`` is the true scale of the discrete Laplace noise
    on each cell. Noisy counts are enumerated ``margin`` beyond 0 … n: there the noise's ratio is
    constant, and the margin lets the channel vary further out.
    """
    # thousands of histograms lead to a few channels: each is built and compared once
    distinct: dict[tuple[bytes, tuple[Histogram, ...]], FiniteChannel] = {}

    @cache
    def channel(noisy: Histogram, counts: Histogram) -> FiniteChannel:
        built = rule(noisy, counts)
        return distinct.setdefault((built.outputs.tobytes(), built.weights), built)

    ratios = cache(_labels_ratio)
    box = list(product(range(-margin, rows + margin + 1), repeat=labels))
    worst, messages = JointAudit(-math.inf, 0, (), ()), 0
    for counts, other, moved in _neighbours(labels, rows):
        for noisy in box:
            messages += 1
            near = sum(abs(h - c) for h, c in zip(noisy, counts, strict=True))
            far = sum(abs(h - c) for h, c in zip(noisy, other, strict=True))
            used = channel(noisy, counts), channel(noisy, other)
            ratio = float(Fraction(far - near) / scale) + ratios(*used, *moved)
            if ratio > worst.epsilon:
                worst = JointAudit(ratio, messages, counts, other)
    return replace(worst, messages=messages)


def _neighbours(labels: int, rows: int) -> Iterator[tuple[Histogram, Histogram, tuple[int, int]]]:
    """Every histogram of ``rows`` labels with each way of moving one label from a to b."""
    for counts in product(range(rows + 1), repeat=labels):
        for a, b in permutations(range(labels), 2):
            if sum(counts) == rows and counts[a]:
                other = tuple(n - (i == a) + (i == b) for i, n in enumerate(counts))
                yield counts, other, (a, b)


def _labels_ratio(used: FiniteChannel, other: FiniteChannel, a: int, b: int) -> float:
    """Largest Σ_j ln K[y_j, z_j] - ln K'[y'_j, z_j] over all outputs, where one label moves.

    Labels are randomized independently, so that it is the sum of each label's maximum, and a label
    that stays adds nothing. The channel itself is published: two that differ cannot be confused,
    and the ratio is infinite.
    """
    if used is not other:
        return math.inf
    rows = used.weights[a], used.weights[b]
    worst = max(Fraction(high, low) for high, low in zip(*rows, strict=True))
    return math.log(worst.numerator) - math.log(worst.denominator)


def histogram_event(
    prior_epsilon: float | Fraction, labels_epsilon: float | Fraction, runs: int
) -> OneRun:
    """Guess by E* which of two worlds this project's own two steps were run in.

    Each of n ``runs``, noisy histogram and randomized response over the same points, is in one
    or the other by the toss of a coin.
    """
    first, second = WORLDS
    points = first.size
    grid = np.arange(points, dtype=np.float64)
    channel = FiniteChannel(grid, grid, randomized_response_rows(points, labels_epsilon))

    def hits(counts: Integers, label: int, runs: int) -> int:
        seen = 0
        for start in range(0, runs, BATCH):
            size, entropy = min(BATCH, runs - start), system_entropy()
            # noise is drawn cell by cell: one call on repeated counts is many releases
            drawn = private_prior(np.tile(counts, size), prior_epsilon, entropy)
            noisy = drawn.noisy_counts.reshape(size, counts.size)
            sent = channel.sample(np.full(size, label), entropy.words("labels", 0, size))
            inside = (noisy[:, 0] >= first[0]) & (noisy[:, 1] <= first[1])
            seen += int(np.count_nonzero(inside & (sent == 0)))
        return seen

    others = int(draw_secrets(runs).sum())
    right = hits(first, 0, runs - others)
    return OneRun.from_guesses(right, right + hits(second, 1, others))


def event_probability(prior_epsilon: float, labels_epsilon: float) -> float:
    """Of E*, in the world that it is aimed at."""
    side = guess_probability(prior_epsilon / 2)
    return side * side * guess_probability(labels_epsilon, WORLDS[0].size)


def tapes_check(parts: Mapping[str, Callable[[Entropy], Any]], key: bytes) -> Check:
    """No word is drawn twice, by one random part of a release or by two; all run under one key."""
    tapes: dict[str, Words] = {}
    for name, part in parts.items():
        entropy = RecordedEntropy(key)
        part(entropy)
        tapes[name] = entropy.tape
    shared = {
        f"{part} and {other}": int(np.intersect1d(tapes[part], tapes[other]).size)
        for part, other in combinations(tapes, 2)
    }
    shared |= {f"{name} with themselves": t.size - np.unique(t).size for name, t in tapes.items()}
    used = {pair: count for pair, count in shared.items() if count}
    return Check(
        verdict=verdict_of(not used),
        tried="Each random part was run under one key while its words were recorded:"
        f" {', '.join(f'{name} ({tape.size:,} words)' for name, tape in tapes.items())}.",
        found="; ".join(f"{pair}: {count:,} words" for pair, count in used.items()) + "."
        if used
        else "No word is drawn twice.",
        details={"shared": shared},
    )


def correlation(noise: Integers, outputs: Outputs) -> Association:
    """Compare the noise on every cell with the output of every row, over many releases.

    (releases, k) noisy counts less the true ones, and (releases, m) outputs of rows whose labels
    are the same in every release.
    """
    cells = cells_of(outputs.reshape(-1)).reshape(outputs.shape)
    features = {
        "the sign of the noise": np.sign(noise).astype(np.float64),
        "whether the noise is odd": 2.0 * (noise % 2) - 1,
        "whether the noise is large": np.where(np.abs(noise) > np.median(np.abs(noise)), 1.0, -1.0),
    }
    scores = (cells >= (cells.max() + 1) // 2).astype(np.float64)
    return largest_sum(
        scores - scores.mean(axis=0),
        features,
        lambda name, row, cell: f"row {row} and {name} on cell {cell}",
    )
