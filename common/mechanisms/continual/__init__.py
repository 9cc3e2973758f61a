"""Sums that are kept up to date in private as numbers arrive, and learning online from them.

=====================  ===========================================================
``RunningSums``        every prefix sum of a stream of vectors, by a tree of noisy sums
``FollowTheLeader``    online convex optimisation on noisy sums of gradients
``PrivateHedge``       prediction with expert advice on noisy sums of losses
=====================  ===========================================================
"""

from labelveil.common.mechanisms.continual.online import FollowTheLeader, PrivateHedge
from labelveil.common.mechanisms.continual.tree import RunningSums

__all__ = ["FollowTheLeader", "PrivateHedge", "RunningSums"]
