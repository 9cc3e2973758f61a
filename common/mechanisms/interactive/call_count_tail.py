"""How many calls can have learned something before the τ-th hit: the negative binomial tail.

Each call that learns something hits with probability at least q, whatever came before, so the
number of such calls until the τ-th hit is at most that of fair trials with chance q (Cohen and Lyu
2023, Lemma 2.2 and Theorem B.4). More than m of them happen with probability at most
``P[Bin(m, q) < τ]``: exact here, bounded by Chernoff's inequality in the paper.

Least m with a failure probability of at most 1e-6, per hit (``1/q`` would be none too many):

        ε = 0.1, q = 0.475              ε = 1, q = 0.269
======  =====  =====  ==============  =====  =====  ==============
τ       paper  exact  paper / exact   paper  exact  paper / exact
======  =====  =====  ==============  =====  =====  ==============
10      9.60   5.60   1.71            16.90  11.00  1.54
30      5.33   3.83   1.39            9.40   7.27   1.29
100     3.55   2.95   1.20            6.26   5.47   1.14
1000    2.49   2.35   1.06            4.39   4.22   1.04
======  =====  =====  ==============  =====  =====  ==============
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import scipy

from labelveil.common.errors import not_none
from labelveil.common.exact.search import least_integer
from labelveil.common.guarantees.limits import at_least, within

_ERROR = 1e-9
"""Relative error allowed to SciPy's incomplete beta function, generously. That takes q itself; what
takes 1 - q, as its ``bdtr``, loses a small q to rounding."""


def overrun(calls: int, hits: int, q: Fraction) -> float:
    """``P[Bin(m, q) < τ]``, rounded up: the chance that m >= τ calls do not suffice for τ hits."""
    return min(1.0, float(scipy.special.betaincc(hits, calls - hits + 1, float(q))) * (1 + _ERROR))


def calls_until(hits: int, q: Fraction, failure: float) -> int:
    """The least m whose :func:`overrun` is at most δ* = ``failure``, in (0, 1)."""
    at_least(1, hits=hits)
    within("(0, 1)", failure=failure)
    return not_none(least_integer(lambda calls: overrun(calls, hits, q) <= failure, hits))


def least_hits(q: Fraction, overhead: float | Fraction, failure: float) -> int:
    """The least τ whose ``(1 + α)τ/q`` calls are enough but for δ* = ``failure``: for planning.

    α = ``overhead``, at least 1/100, is what a session pays beyond 1/q calls a hit. Chernoff's
    inequality asks for ``ln(1/δ*)/(α − ln(1 + α))`` hits, or simplified ``2 (1 + α) ln(1/δ*)/α²``
    (Cohen and Lyu 2023, Remark B.5). Here the tail is exact; at δ* = 1e-6, for calls of ε = 0.1 and
    of ε = 1:

    =====  ==========  =====  =========  =========
    α      simplified  raw    q = 0.475  q = 0.269
    =====  ==========  =====  =========  =========
    0.1    3,040       2,946  1,292      1,774
    0.5    166         147    69         91
    1      56          46     22         28
    2      21          16     8          10
    =====  ==========  =====  =========  =========

    Calls are whole, so that a τ just above the least may be too few again, by a call.
    """
    within("[1/100, ∞)", overhead=overhead)
    within("(0, 1]", q=q)
    within("(0, 1)", failure=failure)
    each, start, size = (1 + Fraction(overhead)) / Fraction(q), 1, 64
    while True:
        hits = np.arange(start, start + size)
        calls = np.array([math.floor(each * tau) for tau in hits.tolist()])
        missed = scipy.special.betaincc(hits, calls - hits + 1, float(q)) * (1 + _ERROR)
        enough = missed <= failure
        if enough.any():
            return int(hits[np.argmax(enough)])
        start, size = start + size, 2 * size
