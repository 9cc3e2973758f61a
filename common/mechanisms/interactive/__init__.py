"""Many private questions to one data set, of which only those that hit a target are charged.

=====================  ===========================================================
``Session``            runs calls, counts hits, halts, states its guarantee
``MixedSession``       the same for calls that differ in ε and q, on one budget
``Terms``              what is admitted, and what the whole of it guarantees
``ThresholdTests``     a million "is it above?" at once; ``BetweenThresholds``
``DistinctCountTest``  a test whose noise is a sketch's own randomness
``NotPrior``           any algorithm with an expected outcome; ``BestOfPriors``
``HeldOutcome``        conditional release and its revisions
``ChangeStream``       a stream that pays only for change
``DriftTest``          whether a day's labels have moved away from a released prior
``one_shot_top_k``     the best of many candidates
``Boundary``           free where the answer is certain; ``RunTwice`` for black boxes
``SparseVector``       the classical technique, for comparison and for pure ε
=====================  ===========================================================

Source: Cohen and Lyu, *The Target-Charging Technique for Privacy Analysis across Interactive
Computations*, NeurIPS 2023, with a tighter account of the whole
(:mod:`labelveil.common.mechanisms.interactive.optimal_curve`).
"""

from labelveil.common.mechanisms.interactive.boundary import (
    Boundary,
    ExponentialMechanism,
    LaplaceTest,
    NoisyMaxLaplace,
    Oracle,
)
from labelveil.common.mechanisms.interactive.call_count_tail import least_hits
from labelveil.common.mechanisms.interactive.calls import (
    Algorithm,
    BestOfPriors,
    Candidate,
    ChangeStream,
    HeldOutcome,
    NotPrior,
    RunTwice,
    one_shot_top_k,
)
from labelveil.common.mechanisms.interactive.drift import DriftTest, affordable_epsilon
from labelveil.common.mechanisms.interactive.individual import IndividualSparseVector
from labelveil.common.mechanisms.interactive.mixed import MixedSession, mixed_budget
from labelveil.common.mechanisms.interactive.session import (
    Answers,
    AnySession,
    Batch,
    Call,
    Outcome,
    Session,
)
from labelveil.common.mechanisms.interactive.sparse_vector import SparseVector
from labelveil.common.mechanisms.interactive.targets import Target, hit_probability
from labelveil.common.mechanisms.interactive.terms import (
    Terms,
    hit_cost,
    largest_call_epsilon,
    most_hits,
)
from labelveil.common.mechanisms.interactive.thresholds import (
    BetweenThresholds,
    DistinctCountTest,
    Position,
    ThresholdTests,
)

__all__ = [
    "Algorithm",
    "Answers",
    "AnySession",
    "Batch",
    "BestOfPriors",
    "BetweenThresholds",
    "Boundary",
    "Call",
    "Candidate",
    "ChangeStream",
    "DistinctCountTest",
    "DriftTest",
    "ExponentialMechanism",
    "HeldOutcome",
    "IndividualSparseVector",
    "LaplaceTest",
    "MixedSession",
    "NoisyMaxLaplace",
    "NotPrior",
    "Oracle",
    "Outcome",
    "Position",
    "RunTwice",
    "Session",
    "SparseVector",
    "Target",
    "Terms",
    "ThresholdTests",
    "affordable_epsilon",
    "hit_cost",
    "hit_probability",
    "largest_call_epsilon",
    "least_hits",
    "mixed_budget",
    "most_hits",
    "one_shot_top_k",
]
