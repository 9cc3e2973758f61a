"""Label inference from the message: what a code reveals about its event's labels, at most and on
average.

For a prior π over labels and a channel K,

    Adv₊ = Σ_z max_y π_y K[y, z] - max_y π_y,      Adv× = Σ_z max_y π_y K[y, z] / max_y π_y,

the gain of the best guess by seeing the output, as a difference and as a ratio. Under ε-DP Adv₊ is
at most tanh(ε/4) for every prior (attained by randomized response over 1 + e^(ε/2) equally likely
labels) and tanh(ε/2)/2 for two equally likely ones, Adv× at most e^ε, and no log-odds move by more
than ε.

The labels of an event are guessed together. Where they have histograms of their own, they are
independent under the prior, and so are their codes: both sums are products over these *parts*, and
the log-odds of "all are as said" against "none is" move by the sum of what the parts move.

Source: Busa-Fekete, Dick, Gentile, Medina, Smith, Swanberg, *Auditing Privacy Mechanisms via Label
Inference Attacks*, NeurIPS 2024; Braun, Chatzikokolakis, Palamidessi, *Quantitative Notions of
Leakage for One-try Attacks*, MFPS 2009, for the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from labelveil.audit.verdict import Check, Probes, verdict_of
from labelveil.common.arrays import Floats, Indices
from labelveil.common.randomizers.cells import Codebook, Group, row_products

_SLACK = 1e-9
_DOTS = 1500
_BINS = 2000  # half of the steps in which changes of log-odds are counted
_INFINITE = 100.0  # log-odds are counted up to here


@dataclass(frozen=True, eq=False)
class LabelsCounted:
    """Labels that one histogram counts: (k, d) probabilities of outputs in each of their cells, and
    (k,) of the cells."""

    channel: Floats
    prior: Floats

    @cached_property
    def ratio(self) -> float:
        """Largest log-ratio of two labels' probabilities of one output."""
        with np.errstate(divide="ignore"):
            return float(np.log(self.channel.max(axis=0) / self.channel.min(axis=0)).max())


def counted_labels(
    codebook: Codebook, priors: Sequence[tuple[Group, Floats]]
) -> list[LabelsCounted]:
    """What codes say of labels that a histogram counts together, for each of the histograms.

    ``priors`` are each histogram's labels and the (k,) probabilities of their cells; every channel
    is of labels that one of them counts.
    """
    parts = []
    for counted, prior in priors:
        indices = np.zeros((len(counted.cells), len(codebook.names)), dtype=np.int64)
        indices[:, counted.labels] = counted.cells.indices(np.arange(len(counted.cells)))
        law = np.ones((len(counted.cells), 1))
        for group, channel in zip(codebook.groups, codebook.channels, strict=True):
            if set(group.labels) <= set(counted.labels):
                law = row_products(law, channel.probabilities[group.number(indices)])
        parts.append(LabelsCounted(law, prior))
    return parts


def worst_pair(codebook: Codebook) -> Indices:
    """(2, m) grid indices of two events' labels: every channel's pair of rows that are farthest
    apart in total variation."""
    pair = np.zeros((2, len(codebook.names)), dtype=np.int64)
    for group, channel in zip(codebook.groups, codebook.channels, strict=True):
        rows = channel.probabilities
        apart = [np.abs(rows - row).sum(axis=1) for row in rows]
        low = int(np.argmax([distances.max() for distances in apart]))
        pair[:, group.labels] = group.cells.indices(np.array([low, int(apart[low].argmax())]))
    return pair


@dataclass(frozen=True)
class Leakage:
    """What one output gives away under one prior."""

    additive: float  # Adv₊
    multiplicative: float  # Adv×
    largest: float  # change of log-odds
    percentile: float  # 98th, of changes over labels and outputs as they occur


def leakage(parts: Sequence[LabelsCounted]) -> Leakage:
    """Compute the advantages of seeing one message, and how far it moves log-odds."""
    best = known = 1.0
    falls = rises = 0.0
    ratios = [min(part.ratio, _INFINITE) for part in parts]
    step = max(sum(ratios), _SLACK) / _BINS
    law = np.ones(1)  # of the whole change: that of a sum of independent ones
    for part, ratio in zip(parts, ratios, strict=True):
        seen = part.prior > 0
        joint = part.prior[seen, None] * part.channel[seen]
        best *= float(joint.max(axis=0).sum())
        known *= float(part.prior.max())
        change = log_odds_change(part.channel[seen], part.prior[seen])
        falls, rises = falls - float(change.min()), rises + float(change.max())
        reach = math.ceil(ratio / step)
        bins = np.rint(np.clip(change / step, -reach, reach)).astype(np.int64) + reach
        law = np.convolve(law, np.bincount(bins.ravel(), joint.ravel(), 2 * reach + 1))
    size = np.abs(np.arange(law.size) - law.size // 2)
    up_to = np.cumsum(np.bincount(size, law))
    largest = max(falls, rises)
    percentile = step * int(np.searchsorted(up_to, 0.98 * up_to[-1]))
    return Leakage(best - known, best / known, largest, min(percentile, largest))


def log_odds_change(channel: Floats, prior: Floats) -> Floats:
    """(k, d) posterior minus prior log-odds of each label after each output.

    It is ln K[y, z] - ln P[z | not y]: a ratio of the channel alone and of a mixture of its rows,
    so it never passes the channel's own ε.
    """
    # the other labels' mixture is summed, not subtracted from the whole: nothing cancels
    weights = np.broadcast_to(prior, (prior.size, prior.size)).copy()
    np.fill_diagonal(weights, 0.0)
    rest = weights.sum(axis=1, keepdims=True)
    others = weights @ channel / np.where(rest > 0, rest, 1.0)
    certain = rest[:, 0] == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.log(channel) - np.log(others)
    change[certain] = 0.0
    return np.asarray(change)


@dataclass(frozen=True, eq=False)
class Message:
    """What is sent of one event, what was released of its labels' distribution, and the claim."""

    codebook: Codebook
    priors: Sequence[tuple[Group, Floats]]
    epsilon: float

    @cached_property
    def counted(self) -> list[LabelsCounted]:
        return counted_labels(self.codebook, self.priors)

    @cached_property
    def released(self) -> Leakage:
        """Under the released prior."""
        return leakage(self.counted)

    @cached_property
    def uniform(self) -> Leakage:
        """Under a uniform one."""
        sizes = (part.prior.size for part in self.counted)
        flat = (np.full(size, 1 / size) for size in sizes)
        return leakage([replace(p, prior=q) for p, q in zip(self.counted, flat, strict=True)])


MESSAGE = Probes[Message]()
"""The advantages under the released prior and under the priors that help an attacker most."""


@MESSAGE.add(
    "additive advantage",
    "How much better does one message make the best guess of an event's labels?",
)
def additive_check(message: Message) -> Check:
    codebook, epsilon = message.codebook, message.epsilon
    released, uniform = message.released.additive, message.uniform.additive
    pair = worst_pair(codebook)
    low, high = codebook.of_labels(pair)
    apart = float(np.abs(high - low).sum()) / 4
    cap, two = math.tanh(epsilon / 4), math.tanh(epsilon / 2) / 2  # the module says of what
    values = codebook.cells.values(pair)
    ends = " and ".join(" with ".join(f"{value:g}" for value in event) for event in values)
    return Check(
        verdict_of(max(released, uniform) <= cap + _SLACK and apart <= two + _SLACK),
        "The gain was computed exactly under the released prior, a uniform prior, and for two that"
        f" are distinguished best, {ends}.",
        f"{released:.4f}, {uniform:.4f} and {apart:.4f}.",
        claim="Seeing an event's output helps the best guess of its labels by at most"
        f" tanh(ε/4) = {cap:.4f}, whatever is known before, and by tanh(ε/2)/2 = {two:.4f} where"
        f" two"
        " are equally likely and no other.",
        details={"prior": released, "uniform": uniform, "pair": apart},
    )


@MESSAGE.add(
    "multiplicative advantage", "How many times as good does one message make the best guess?"
)
def multiplicative_check(message: Message) -> Check:
    most = math.exp(message.epsilon)
    released, uniform = message.released.multiplicative, message.uniform.multiplicative
    return Check(
        verdict_of(max(released, uniform) <= most + _SLACK),
        "The ratio was computed exactly under the released prior and a uniform one.",
        f"{released:.4f} and {uniform:.4f}.",
        claim=f"The best guess becomes at most e^ε = {most:.3f} times as good.",
        details={"prior": released, "uniform": uniform},
    )


@MESSAGE.add(
    "change of beliefs", "How far can one message move what is believed of an event's labels?"
)
def beliefs_check(message: Message) -> Check:
    released, epsilon = message.released, message.epsilon
    ratio = sum(part.ratio for part in message.counted)
    largest = max(released.largest, ratio)
    return Check(
        verdict_of(largest <= epsilon + _SLACK),
        "Prior and posterior log-odds were compared after every output, under the released prior"
        " and where only two events are possible, for all pairs.",
        f"The largest changes are {released.largest:.4f} and {ratio:.4f}; under the released prior"
        f" 98% of what happens changes them by at most {released.percentile:.4f}.",
        claim=f"No log-odds of an event's labels move by more than ε = {epsilon:.4g}.",
        claimed=epsilon,
        bound=largest,
        shown=largest,
        details={"percentile_98": released.percentile, "pairs": ratio},
    )


def beliefs_plot(message: Message) -> dict[str, Any]:
    """Prior and posterior probabilities for the report, at most some hundreds of dots."""
    before, after = [], []
    for part in message.counted:
        joint = part.prior[:, None] * part.channel
        posterior = (joint / joint.sum(axis=0))[part.prior > 0]
        before.append(np.broadcast_to(part.prior[part.prior > 0, None], posterior.shape).ravel())
        after.append(posterior.ravel())
    prior, posterior = np.concatenate(before), np.concatenate(after)
    step = max(prior.size // _DOTS, 1)
    return {
        "prior": prior[::step].tolist(),
        "posterior": posterior[::step].tolist(),
        "epsilon": message.epsilon,
    }
