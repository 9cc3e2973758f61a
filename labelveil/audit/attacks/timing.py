"""How long an answer takes: does that and the answer say more about a label than ε allows?

Which of two worlds a call is made in is a secret bit, so that a machine that becomes slower does so
for both; output and duration (in quantiles) form one observation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from common.arrays import Floats
from labelveil.audit.attacks.one_run import draw_secrets, rare_event
from labelveil.audit.attacks.views import Mechanism, Outputs, View
from labelveil.audit.power import smallest_excess
from labelveil.audit.verdict import GATE, Check, Power, statistical

BINS = 16

clock = time.perf_counter_ns
"""What calls are timed with; a test puts one in its place that its machine cannot disturb."""


def most_apart(mechanism: Mechanism, labels: Floats, calls: int) -> tuple[int, int]:
    """Which of (k,) labels are slowest and fastest in so many single calls, by their mean rank."""
    kinds = draw_secrets(calls, labels.size)
    mechanism(labels[:1])  # the first call pays for what is made once
    nanoseconds = np.empty(calls)
    for at, label in enumerate(labels[kinds]):
        begun = clock()
        mechanism(np.array([label]))
        nanoseconds[at] = clock() - begun
    ranks = np.argsort(np.argsort(nanoseconds)) - calls / 2
    # a sum over the root of its number: a label of few calls does not stand out by chance
    sums = np.bincount(kinds, ranks, labels.size)
    scores = sums / np.sqrt(np.maximum(np.bincount(kinds, minlength=labels.size), 1))
    return int(scores.argmax()), int(scores.argmin())


def timing_check(
    name: str,
    worlds: tuple[Callable[[], float], Callable[[], float]],
    calls: int,
    claimed: float,
    *,
    claim: str,
    tried: str,
    question: str = "",
) -> Check:
    """Judge the time of about so many calls in either world, by the toss of a coin.

    A call returns what was sent, as a number. ``tried`` has places for the medians of both worlds,
    in milliseconds.
    """
    for call in worlds:
        call()  # the first call pays for what is made once
    order = draw_secrets(2 * calls)
    sent, seconds = np.empty(order.size), np.empty(order.size)
    for at, world in enumerate(order.tolist()):
        begun = clock()
        sent[at] = worlds[world]()
        seconds[at] = (clock() - begun) * 1e-9
    observed = np.column_stack([np.unique(sent, return_inverse=True)[1], seconds])
    measured, _ = rare_event(observed, order, _joint_view)
    medians = [float(np.median(seconds[order == world])) * 1000 for world in (0, 1)]
    excess = smallest_excess(0.5, calls, claimed, GATE)
    return statistical(
        name,
        measured,
        question=question,
        claim=claim,
        tried=tried.format(*medians),
        claimed=claimed,
        power=(Power("excess of ε in whether a call is slow", excess),),
    )


def _joint_view(sample: Floats) -> list[View]:
    edges = np.unique(np.quantile(sample[:, 1], np.linspace(0, 1, BINS + 1)[1:-1]))

    def encode(observed: Outputs) -> np.ndarray:
        slowness = np.searchsorted(edges, observed[:, 1], side="right")
        return np.minimum(observed[:, 0].astype(np.int64), last) * (edges.size + 1) + slowness

    last = int(sample[:, 0].max()) + 1  # for outputs that the sample does not have
    return [View("output and duration", encode, (last + 1) * (edges.size + 1))]
