"""PATE: teachers on disjoint private shards vote, a student learns from their private answers."""

from labelveil.common.mechanisms.pate.multi_label import (
    BinaryVote,
    ClippedVote,
    FullVote,
    LabelAnswers,
    Norm,
    StableMajority,
    StableVote,
)
from labelveil.common.mechanisms.pate.single_label import (
    NO_ANSWER,
    BoundaryVote,
    ClassAnswers,
    ConfidentGNMax,
    GNMax,
    PriorVote,
)
from labelveil.common.mechanisms.pate.teachers import (
    StudentReport,
    TorchModel,
    class_votes,
    incurred_epsilon,
    label_votes,
    partition,
    train_student,
    train_teachers,
)

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
