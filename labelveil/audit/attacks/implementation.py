"""Attacks on the implementation: what leaves although no formula says so.

Each check takes plain callables, so that the same code audits a library function, a subprocess and
a server across the wire.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from common.arrays import Floats, Integers
from common.entropy import system_entropy
from labelveil.audit.attacks.two_worlds import View, choose_event, count_event, two_worlds
from labelveil.audit.power import (
    FOUND,
    rarest_seen,
    two_worlds_excess,
    two_worlds_rarest,
)
from labelveil.audit.verdict import GATE, Check, Power, Verdict, statistical, verdict_of

Outputs = NDArray[Any]
Mechanism = Callable[[Floats], Outputs]
"""(n,) labels to (n,) outputs, with fresh noise at each call."""

TIMING_BINS = 16
SPREAD = 20


def byte_equality_check(fetch: Callable[[], bytes], times: int = 3) -> Check:
    """The same request returns identical bytes, however often it is made.

    With fresh noise on each of r requests an average over them spends up to r times ε.
    """
    answers = [hashlib.sha256(fetch()).hexdigest() for _ in range(times)]
    distinct = len(set(answers))
    return Check(
        name="byte equality of repeated requests",
        question="Does asking again give the same bytes?",
        verdict=verdict_of(distinct == 1),
        claim="A release is built once: the same request returns the same bytes forever.",
        tried=f"The same request was made {times} times.",
        found=f"{distinct} of {times} answers are different; SHA-256 {answers[0][:16]}…"
        if distinct > 1
        else f"All answers are the same bytes, SHA-256 {answers[0][:16]}….",
        confidence=1.0,
        details={"sha256": answers},
    )


def cold_start_check(first: bytes, second: bytes) -> Check:
    """Two processes, started one after the other on the same labels, draw different noise."""
    same = first == second
    return Check(
        name="two cold starts differ",
        question="Does a second start draw noise of its own?",
        verdict=verdict_of(not same),
        claim="Noise comes from the operating system's entropy, again in every process.",
        tried="The same labels were randomized in two processes, each started from nothing.",
        found="Both drew the same noise: anyone who knows it can take it off."
        if same
        else "The two outputs differ.",
        bound=math.inf if same else 0.0,
        confidence=1.0,
    )


def mantissa_check(outputs: Outputs, other: Outputs, claimed: float) -> Check:
    """No output's low bits exclude a label: floating-point noise does that.

    Parameters
    ----------
    outputs, other
        (n,) outputs for either of two labels.
    claimed
        ε.
    """
    distinct = np.unique(np.concatenate([outputs, other])).size
    finite = distinct <= max(outputs.size // SPREAD, 2)
    found = two_worlds(outputs, other)
    rarest = two_worlds_rarest(outputs.size // 2, claimed, GATE)
    check = statistical(
        "float mantissa",
        claim="No floating-point noise leaves: outputs come from a finite set, and their low bits"
        " say nothing about the label.",
        tried=f"{outputs.size:,} outputs for either of two labels were compared by value, quantile"
        f" and lowest set bit; best event: {found.event}.",
        claimed=claimed,
        bound=found.bound,
        shown=found.shown,
        details={"distinct_outputs": int(distinct)},
        power=(Power("probability of a bit pattern that one label alone gives", rarest),),
    )
    if finite:
        return check
    how_many = f"{distinct:,} distinct outputs in {2 * outputs.size:,}: noise in floating point."
    return replace(check, verdict=Verdict.FAIL, found=f"{how_many} {check.found}")


def declared_outputs_check(values: Outputs, declared: Outputs) -> Check:
    """Every output lies in the declared set."""
    strange = int(np.count_nonzero(~np.isin(values, declared)))
    return Check(
        name="declared outputs",
        question="Is every value that is sent a declared one?",
        verdict=verdict_of(strange == 0),
        claim=f"Every value sent is one of {declared.size:,} declared outputs.",
        tried=f"{values.size:,} values were compared with them.",
        found=f"{strange:,} lie outside.",
        confidence=1.0,
        power=(Power("probability of an undeclared output", rarest_seen(values.size)),),
    )


def id_set_check(one: Sequence[Hashable], other: Sequence[Hashable]) -> Check:
    """Two data sets over one population give the same events, whatever their labels."""
    only = len(set(one) ^ set(other))
    return Check(
        name="id set",
        question="Does it depend on labels which events are sent?",
        verdict=verdict_of(only == 0 and len(one) == len(other)),
        claim="Which events are sent depends on the public population alone, not on who has a"
        " label.",
        tried="Two data sets over one population, one of them with a label less, were released.",
        found=f"{len(one):,} and {len(other):,} events; {only:,} are in one release only.",
        bound=math.inf if only else 0.0,
        confidence=1.0,
    )


def row_order_check(one: Sequence[Hashable], other: Sequence[Hashable]) -> Check:
    """Two data sets over one population give the same order of events."""
    moved = sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))
    return Check(
        name="row order",
        question="Does the order of rows depend on labels?",
        verdict=verdict_of(moved == 0),
        claim="The order of rows depends on the public population alone.",
        tried="Two data sets that differ in one label were released.",
        found=f"{moved:,} of {len(one):,} rows hold another event.",
        bound=math.inf if moved else 0.0,
        confidence=1.0,
    )


def permutation_check(labels: Floats, alpha: float = GATE) -> Check:
    """Canary labels, in the order of the rows, look like a random permutation.

    Spearman's rank correlation of label and row number has variance 1/(n - 1) under a random
    order; compared by its normal approximation, two-sided.

    Parameters
    ----------
    labels
        (n,) labels that the auditor drew at random, in row order, n of a few hundred at least.
    alpha
        Probability of failing a right build.
    """
    ranks = np.empty(labels.size)
    # ties get random ranks, or runs of equal labels would carry their row numbers
    shuffle = np.argsort(system_entropy().words("ties", 0, labels.size))
    order = np.lexsort((shuffle, labels))
    ranks[order] = np.arange(labels.size)
    rows = np.arange(labels.size)
    correlation = float(np.corrcoef(ranks, rows)[0, 1])
    p = 2 * float(scipy.special.ndtr(-abs(correlation) * math.sqrt(labels.size - 1)))
    deviations = -scipy.special.ndtri(alpha / 2) - scipy.special.ndtri(1 - FOUND)
    least = float(deviations) / math.sqrt(labels.size - 1)
    return Check(
        name="rows are not ordered by label",
        question="Does the order of rows say anything about labels?",
        verdict=verdict_of(p >= alpha),
        claim="The order of rows says nothing about labels.",
        tried=f"The rank correlation of {labels.size:,} canary labels with their row was tested.",
        found=f"Correlation {correlation:.4f}; a random order gives as much with probability"
        f" {p:.3g}.",
        confidence=1 - alpha,
        details={"correlation": correlation, "p": p},
        power=(Power("rank correlation of label and row", least),),
    )


clock = time.perf_counter_ns
"""What calls are timed with; a test puts one in its place that its machine cannot disturb."""


def timing_check(
    mechanism: Mechanism, one: float, other: float, claimed: float, calls: int = 2000
) -> Check:
    """How long a call takes says no more about the label than ε allows, together with its output.

    Calls for the two labels are made in random order, so that a machine that becomes slower does
    so for both; output and duration (in ``TIMING_BINS`` quantiles) form one observation.
    """
    coins = system_entropy().words("order", 0, 2 * calls)
    world = np.zeros(2 * calls, dtype=np.int64)
    world[np.argsort(coins)[:calls]] = 1
    inputs = (np.array([one]), np.array([other]))
    for value in inputs:
        mechanism(value)  # the first call pays for what is made once
    sent, seconds = [], np.empty(world.size)
    for call, which in enumerate(world.tolist()):
        begun = clock()
        output = mechanism(inputs[which])
        seconds[call] = clock() - begun
        sent.append(output[0])
    found = _timed_bound(np.asarray(sent), seconds, world)
    return statistical(
        "timing",
        claim="Latency does not depend on the label, nor on whether it was kept or flipped.",
        tried=f"{calls:,} single calls for either of two labels, in random order; output and"
        " duration were looked at together.",
        claimed=claimed,
        bound=found[0],
        shown=found[1],
        power=(slowness_power(calls, claimed),),
    )


def slowness_power(counted: int, claimed: float) -> Power:
    """What is found of an event as likely as that a call is among the slower half."""
    excess = two_worlds_excess(0.5, counted // 2, claimed, GATE)
    return Power("excess of ε in whether a call is slow", excess)


def _timed_bound(sent: Outputs, seconds: Floats, world: Integers) -> tuple[float, float]:
    first = np.arange(world.size) % 2 == 0
    edges = np.unique(np.quantile(seconds[first], np.linspace(0, 1, TIMING_BINS + 1)[1:-1]))
    values, codes = np.unique(sent, return_inverse=True)
    size = values.size * (edges.size + 1)
    joint = codes * (edges.size + 1) + np.searchsorted(edges, seconds, side="right")
    view = View("output and duration", lambda x: x, size)
    event = choose_event([view], joint[first & (world == 0)], joint[first & (world == 1)])
    found = count_event(event, joint[~first & (world == 0)], joint[~first & (world == 1)])
    return found.bound, found.shown
