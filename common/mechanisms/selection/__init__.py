"""Private selection of the leading candidates: counts in, a set (or ⊥) and a guarantee out."""

from labelveil.common.mechanisms.selection.base import Ranking, Selection, Selector
from labelveil.common.mechanisms.selection.choose_k import ChooseRank, indifferent, pull_towards
from labelveil.common.mechanisms.selection.noisy_max import Law, NoisyMax
from labelveil.common.mechanisms.selection.peeling import LimitedDomain, Peeling
from labelveil.common.mechanisms.selection.stability import GaussianTest, LaplaceTest
from labelveil.common.mechanisms.selection.stable_top_k import FixedStableTopK, StableTopK
from labelveil.common.mechanisms.selection.top_stable import TopStable

__all__ = [
    "ChooseRank",
    "FixedStableTopK",
    "GaussianTest",
    "LaplaceTest",
    "Law",
    "LimitedDomain",
    "NoisyMax",
    "Peeling",
    "Ranking",
    "Selection",
    "Selector",
    "StableTopK",
    "TopStable",
    "indifferent",
    "pull_towards",
]
