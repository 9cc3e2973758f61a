"""Label inference from the message: what an output reveals about its event's label, at most and on
average.

For a prior π over labels and a channel K,

    Adv₊ = Σ_z max_y π_y K[y, z] - max_y π_y,      Adv× = Σ_z max_y π_y K[y, z] / max_y π_y,

the gain of the best guess by seeing the output, as a difference and as a ratio. Under ε-DP Adv₊ is
at most tanh(ε/4) for every prior (attained by randomized response over 1 + e^(ε/2) equally likely
labels), Adv× at most e^ε, and no label's log-odds move by more than ε.

Source: Busa-Fekete, Dick, Gentile, Medina, Smith, Swanberg, *Auditing Privacy Mechanisms via Label
Inference Attacks*, NeurIPS 2024; Braun, Chatzikokolakis, Palamidessi, *Quantitative Notions of
Leakage for One-try Attacks*, MFPS 2009, for the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.arrays import Floats
from common.program.audit.verdict import Check, verdict_of

_SLACK = 1e-9
_DOTS = 1500


@dataclass(frozen=True)
class Leakage:
    """What one output gives away under one prior.

    Attributes
    ----------
    additive, multiplicative
        Adv₊ and Adv×.
    largest, percentile
        Largest change of any label's log-odds, and its 98th percentile over labels and outputs as
        they occur.
    """

    additive: float
    multiplicative: float
    largest: float
    percentile: float


def additive_cap(epsilon: float) -> float:
    """tanh(ε/4): the most that the best guess can gain under any prior."""
    return math.tanh(epsilon / 4)


def leakage(channel: Floats, prior: Floats) -> Leakage:
    """Compute the advantages of seeing one output.

    Parameters
    ----------
    channel
        (k, d) probabilities.
    prior
        (k,) probabilities.
    """
    seen = prior > 0
    joint = prior[seen, None] * channel[seen]
    best = float(joint.max(axis=0).sum())
    change = np.abs(log_odds_change(channel[seen], prior[seen]))
    order = np.argsort(change, axis=None)
    mass = np.cumsum(joint.ravel()[order])
    at = min(int(np.searchsorted(mass, 0.98 * mass[-1])), change.size - 1)
    return Leakage(
        additive=best - float(prior.max()),
        multiplicative=best / float(prior.max()),
        largest=float(change.max()),
        percentile=float(change.ravel()[order][at]),
    )


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


def worst_pair_advantage(channel: Floats) -> tuple[float, int, int]:
    """Largest gain over two equally likely labels, half the total variation distance of two rows.

    Returns it with the two labels' indices.
    """
    best = (0.0, 0, channel.shape[0] - 1)
    for y in range(channel.shape[0] - 1):
        distance = np.abs(channel[y + 1 :] - channel[y]).sum(axis=1) / 4
        other = int(distance.argmax())
        if distance[other] > best[0]:
            best = (float(distance[other]), y, y + 1 + other)
    return best


def message_checks(channel: Floats, prior: Floats, epsilon: float) -> list[Check]:
    """The advantages under the released prior and under the priors that help an attacker most."""
    found = leakage(channel, prior)
    pair, low, high = worst_pair_advantage(channel)
    uniform = leakage(channel, np.full(channel.shape[0], 1 / channel.shape[0]))
    cap = additive_cap(epsilon)
    worst = max(found.additive, uniform.additive, pair)
    return [
        Check(
            name="additive advantage",
            question="How much better does one message make the best guess of a label?",
            verdict=verdict_of(worst <= cap + _SLACK),
            claim=f"Seeing an event's output helps the best guess of its label by at most"
            f" tanh(ε/4) = {cap:.4f}, whatever is known before.",
            tried="The gain was computed exactly under the released prior, a uniform prior, and"
            " for the two labels that are distinguished best.",
            found=f"{found.additive:.4f}, {uniform.additive:.4f} and {pair:.4f} (labels number"
            f" {low} and {high}).",
            confidence=1.0,
            details={"prior": found.additive, "uniform": uniform.additive, "pair": pair},
        ),
        Check(
            name="multiplicative advantage",
            question="How many times as good does one message make the best guess?",
            verdict=verdict_of(found.multiplicative <= math.exp(epsilon) + _SLACK),
            claim=f"The best guess becomes at most e^ε = {math.exp(epsilon):.3f} times as good.",
            tried="The ratio was computed exactly under the released prior and a uniform one.",
            found=f"{found.multiplicative:.4f} and {uniform.multiplicative:.4f}.",
            confidence=1.0,
            details={"prior": found.multiplicative, "uniform": uniform.multiplicative},
        ),
        Check(
            name="change of beliefs",
            question="How far can one message move what is believed of a label?",
            verdict=verdict_of(found.largest <= epsilon + _SLACK),
            claim=f"No label's log-odds move by more than ε = {epsilon:.4g}.",
            tried="Prior and posterior log-odds of every label were compared after every output,"
            " under the released prior.",
            found=f"The largest change is {found.largest:.4f}; 98% of what happens changes them by"
            f" at most {found.percentile:.4f}.",
            claimed=epsilon,
            bound=found.largest,
            shown=found.largest,
            confidence=1.0,
            details={"percentile_98": found.percentile},
        ),
    ]


def beliefs_plot(channel: Floats, prior: Floats, epsilon: float) -> dict[str, Any]:
    """Prior and posterior probabilities for the report, at most some hundreds of dots."""
    seen = prior > 0
    joint = prior[seen, None] * channel[seen]
    posterior = joint / joint.sum(axis=0)
    before = np.broadcast_to(prior[seen, None], posterior.shape).ravel()
    step = max(before.size // _DOTS, 1)
    return {
        "prior": before[::step].tolist(),
        "posterior": posterior.ravel()[::step].tolist(),
        "epsilon": epsilon,
    }
