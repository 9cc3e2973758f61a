"""A student learns from private answers; ε of what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Floats
from common.errors import DataError
from common.guarantees import ApproximateDP, epsilon_at, to_approximate
from common.guarantees.renyi import RenyiDP
from common.mechanisms.pate.data_dependent import ORDERS
from common.mechanisms.pate.gnmax import ClassAnswers
from common.mechanisms.pate.multi_label import LabelAnswers
from common.mechanisms.pate.teachers import Estimator, train_teachers


@dataclass(frozen=True)
class StudentReport:
    """What the student reached, and what its labels cost."""

    accuracy: float
    """Share of right classes (or of right labels, averaged over labels) on the test set."""
    label_accuracy: float
    """The same share among the answers it was trained on; NaN without true labels."""
    answered: int
    """Number of answered queries."""
    privacy: ApproximateDP
    """What is guaranteed."""
    incurred_epsilon: float | None
    """ε from the data-dependent cost: private, and not a guarantee. None if there is none."""
    student: Estimator
    """The trained model."""


def train_student(
    make: Callable[[], Estimator],
    queries: ArrayLike,
    answers: ClassAnswers | LabelAnswers,
    test_features: ArrayLike,
    test_labels: ArrayLike,
    delta: float | Fraction,
    query_labels: ArrayLike | None = None,
) -> StudentReport:
    """Train on the answered ones of (q, d) public queries and score on a test set.

    ``query_labels`` are the queries' true labels, for scoring the answers themselves; δ is that of
    the reported ε.
    """
    labels, kept = answers.labels.astype(np.int64), np.flatnonzero(answers.answered)
    if not kept.size:
        raise DataError("no query was answered; raise the budget or ask easier queries")
    (student,) = train_teachers(make, queries, labels, [kept])
    truth = np.asarray(test_labels)
    accuracy = float(np.mean(np.asarray(student.predict(test_features)) == truth))
    quality = float("nan")
    if query_labels is not None:
        quality = float(np.mean(labels[kept] == np.asarray(query_labels)[kept]))
    return StudentReport(
        accuracy,
        quality,
        int(kept.size),
        to_approximate(answers.guarantee, delta),
        None if answers.incurred is None else incurred_epsilon(answers.incurred, delta),
        student,
    )


def incurred_epsilon(curve: Floats, delta: float | Fraction) -> float:
    """ε at δ of a data-dependent RDP curve at ``ORDERS``."""
    orders = tuple(Fraction(float(order)) for order in ORDERS)
    return epsilon_at(RenyiDP.of(curve, orders=orders), delta)
