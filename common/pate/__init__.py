"""PATE: teachers on disjoint private shards vote, a student learns from their private answers."""

from common.pate.boundary_vote import BoundaryVote
from common.pate.gnmax import NO_ANSWER, ClassAnswers, ConfidentGNMax, GNMax
from common.pate.multi_label import (
    BinaryVote,
    ClippedVote,
    FullVote,
    LabelAnswers,
    MultiLabelAggregator,
    Norm,
    StableMajority,
    StableVote,
)
from common.pate.smooth import SmoothCost, smooth_gnmax_cost
from common.pate.student import StudentReport, incurred_epsilon, train_student
from common.pate.teachers import class_votes, label_votes, partition, train_teachers
from common.pate.torch_model import TorchModel

__all__ = [
    "NO_ANSWER",
    "BinaryVote",
    "BoundaryVote",
    "ClassAnswers",
    "ClippedVote",
    "ConfidentGNMax",
    "FullVote",
    "GNMax",
    "LabelAnswers",
    "MultiLabelAggregator",
    "Norm",
    "SmoothCost",
    "StableMajority",
    "StableVote",
    "StudentReport",
    "TorchModel",
    "class_votes",
    "incurred_epsilon",
    "label_votes",
    "partition",
    "smooth_gnmax_cost",
    "train_student",
    "train_teachers",
]
