"""PATE: teachers on disjoint private shards vote, a student learns from their private answers."""

from labelveil.common.mechanisms.pate.boundary_vote import BoundaryVote, PriorVote
from labelveil.common.mechanisms.pate.gnmax import NO_ANSWER, ClassAnswers, ConfidentGNMax, GNMax
from labelveil.common.mechanisms.pate.multi_label import (
    BinaryVote,
    ClippedVote,
    FullVote,
    LabelAnswers,
    Norm,
    StableMajority,
    StableVote,
)
from labelveil.common.mechanisms.pate.teachers import (
    StudentReport,
    class_votes,
    incurred_epsilon,
    label_votes,
    partition,
    train_student,
    train_teachers,
)
from labelveil.common.mechanisms.pate.torch_model import TorchModel

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
    "Norm",
    "PriorVote",
    "StableMajority",
    "StableVote",
    "StudentReport",
    "TorchModel",
    "class_votes",
    "incurred_epsilon",
    "label_votes",
    "partition",
    "train_student",
    "train_teachers",
]
