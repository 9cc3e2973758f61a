"""Label randomizers: a label on a public grid in, one of finitely many outputs out, ε-DP.

Every randomizer is built by name with :func:`build_randomizer` and is a finite channel with integer
weights, so its ε is derived from the bytes that leave (see :mod:`labelveil.common.exact.channel`).
"""

from labelveil.common.randomizers.additive import (
    build_discrete_laplace,
    build_discrete_staircase,
    build_exponential,
    build_laplace,
    build_staircase,
)
from labelveil.common.randomizers.base import Randomizer, build_randomizer, randomizer_names
from labelveil.common.randomizers.binning.rr_on_bins import Binning, losses_by_bins, optimal_binning
from labelveil.common.randomizers.budget import BudgetSplit, split_budget
from labelveil.common.randomizers.design.optimal_design import build_optimal_design
from labelveil.common.randomizers.message.message import Message
from labelveil.common.randomizers.message.plan import MessagePlan, plan_message
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.randomizers.prior import NoisyPrior, decoded_prior, private_prior
from labelveil.common.randomizers.response import build_randomized_response, build_rr_with_prior
from labelveil.common.randomizers.rp_with_prior import build_rp_with_prior
from labelveil.common.randomizers.thresholds import build_randomized_thresholds, threshold_weights
from labelveil.common.randomizers.two_point import build_two_point
from labelveil.common.randomizers.unbiased import build_unbiased

__all__ = [
    "Binning",
    "BudgetSplit",
    "LabelTerms",
    "Message",
    "MessagePlan",
    "NoisyPrior",
    "Randomizer",
    "build_discrete_laplace",
    "build_discrete_staircase",
    "build_exponential",
    "build_laplace",
    "build_optimal_design",
    "build_randomized_response",
    "build_randomized_thresholds",
    "build_randomizer",
    "build_rp_with_prior",
    "build_rr_with_prior",
    "build_staircase",
    "build_two_point",
    "build_unbiased",
    "decoded_prior",
    "losses_by_bins",
    "optimal_binning",
    "plan_message",
    "private_prior",
    "randomizer_names",
    "split_budget",
    "threshold_weights",
]
