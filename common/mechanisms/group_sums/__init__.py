"""Sums of labels over groups of events, with exact noise paid for once a group."""

from labelveil.common.mechanisms.group_sums.lattice import Lattice
from labelveil.common.mechanisms.group_sums.noisy_sums import NoisySums, PrivateSums, group_sums
from labelveil.common.mechanisms.group_sums.question import NO_GROUP, GroupQuestion

__all__ = ["NO_GROUP", "GroupQuestion", "Lattice", "NoisySums", "PrivateSums", "group_sums"]
