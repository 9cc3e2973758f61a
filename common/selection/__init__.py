"""Private selection of the leading candidates: counts in, a set (or ⊥) and a promise out."""

from common.selection.base import Ranking, Selection, Selector
from common.selection.counting import ItemCounts, count_users
from common.selection.noisy_max import Law, NoisyMax
from common.selection.peeling import LimitedDomain, Peeling
from common.selection.rank import ChooseRank, indifferent, pull_towards
from common.selection.stability import GaussianTest, LaplaceTest
from common.selection.stable_top_k import FixedStableTopK, StableTopK
from common.selection.top_stable import TopStable

__all__ = [
    "ChooseRank",
    "FixedStableTopK",
    "GaussianTest",
    "ItemCounts",
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
    "count_users",
    "indifferent",
    "pull_towards",
]
