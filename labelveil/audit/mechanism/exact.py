"""Checks of a randomizer that takes injected entropy: exact, or by replay."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from common.entropy import system_entropy
from labelveil.audit.attacks import replay as replays
from labelveil.audit.attacks.exact_channel import certify, count_weights, randomizer_sampler
from labelveil.audit.attacks.exact_joint import joint_audit
from labelveil.audit.attacks.histogram_event import TwoStepResponse, histogram_event
from labelveil.audit.attacks.implementation import declared_outputs_check
from labelveil.audit.attacks.two_noises import correlation, tapes_check
from labelveil.audit.bounds import histogram_event_probability
from labelveil.audit.mechanism.subject import NamedSubject
from labelveil.audit.power import two_worlds_excess
from labelveil.audit.verdict import GATE, Check, Power, statistical, verdict_of


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


def two_step_check(subject: NamedSubject, releases: int) -> Check:
    """E* against this project's own histogram and sampler, ε₁ = ε₂ = ε/2 over four labels."""
    half = Fraction(subject.epsilon) / 2
    sampler = TwoStepResponse(4, half, half)
    found = histogram_event(sampler, np.array([2, 2, 0, 0]), releases)
    chance = histogram_event_probability(float(half), float(half), 4)
    excess = two_worlds_excess(chance, releases, subject.epsilon, GATE)
    return statistical(
        "two-step event",
        claim=f"Noisy histogram and randomized label together spend at most {subject.epsilon:g}.",
        tried=f"E* = {{noisy h_a ≥ c_a, noisy h_b ≤ c_b, ỹ = Φ(a)}} was counted in {releases:,}"
        f" releases of each of two neighbours: {found.hits:,} against {found.other_hits:,}.",
        claimed=subject.epsilon,
        bound=found.bound,
        shown=found.shown,
        power=(Power("excess of ε of both together", excess),),
    )


def far_labels_check(subject: NamedSubject) -> Check:
    """A label far outside gives the bytes of the nearest bound."""
    low, high = float(subject.labels[0]), float(subject.labels[-1])
    return replays.range_check(subject.randomize, low, high)


def declared_check(subject: NamedSubject) -> Check:
    """Only declared outputs leave."""
    outputs = subject.mechanism(np.resize(subject.labels, 100_000))
    return declared_outputs_check(outputs, np.arange(subject.randomizer.channel.outputs.size))


def shared_words_check(subject: NamedSubject) -> Check:
    """Prior and rows of one release share no word."""
    return tapes_check(subject.noises(), system_entropy().key)


def noise_correlation_check(subject: NamedSubject, releases: int) -> Check:
    """Noise on a known histogram, beside the rows of the same releases."""
    drawn = [subject.whole_release(system_entropy()) for _ in range(releases)]
    noise, outputs = (np.stack(part) for part in zip(*drawn, strict=True))
    found = correlation(noise, outputs)
    return Check(
        name="prior noise and rows",
        verdict=verdict_of(not found.found),
        claim="The histogram's noise is independent of the rows' noise.",
        tried=f"{releases:,} releases of one data set; {found.sums:,} correlations of the noise on"
        " a cell with the output of a row.",
        found=f"The largest is {found.ratio:.2f} of what a right build passes once in a million"
        f" audits ({found.where}).",
        confidence=1 - GATE,
        power=(Power("correlation of the noise on a cell with a row", found.least_share),),
    )
