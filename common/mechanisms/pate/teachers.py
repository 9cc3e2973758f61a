"""Teachers: disjoint shards of private data, one model each, and their votes.

A record lies in exactly one shard, drawn for it alone, so adding, removing or replacing one record
changes one teacher and hence one teacher's votes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from common.arrays import Booleans, Integers
from common.entropy import Entropy
from common.errors import DataError
from common.guarantees.limits import within


class Estimator(Protocol):
    """What a teacher or student must offer: scikit-learn's two verbs."""

    def fit(self, features: Any, labels: Any) -> Any:
        """Learn from (n, d) features and (n,) classes or (n, c) label indicators."""

    def predict(self, features: Any) -> Any:
        """Return (m,) classes or (m, c) label indicators."""


def partition(rows: int, teachers: int, entropy: Entropy) -> list[Integers]:
    """Deal rows to teachers, each row independently and uniformly.

    Independence is what makes the deal safe when a record is added: a shuffled deal would move
    others with it. Returns an array of row indices for each of two or more teachers; some may be
    empty.
    """
    within(f"[2, {rows}]", teachers=teachers)
    words = entropy.words("pate-partition", 0, rows)
    owner = (words % np.uint64(teachers)).astype(np.int64)
    return [np.flatnonzero(owner == teacher) for teacher in range(teachers)]


def train_teachers(
    make: Callable[[], Estimator],
    features: ArrayLike,
    labels: ArrayLike,
    shards: Sequence[Integers],
    on_trained: Callable[[int], None] | None = None,
) -> list[Estimator]:
    """Train one model a shard.

    Parameters
    ----------
    make
        Builds a fresh model: a scikit-learn estimator or a :class:`TorchModel`.
    features, labels
        (n, d) private features and (n,) classes or (n, c) 0/1 label indicators.
    shards
        From :func:`partition`. A shard without rows, or with a single class or label row, gets a
        constant teacher, for many estimators refuse such data and skipping it would be a leak.
    on_trained
        Called with the number of teachers trained so far.
    """
    x, y = np.asarray(features), np.asarray(labels)
    if len(x) != len(y):
        raise DataError(f"{len(x)} feature rows and {len(y)} label rows must be as many")
    models: list[Estimator] = []
    for shard in shards:
        models.append(_train(make, x[shard], y[shard], like=y))
        if on_trained is not None:
            on_trained(len(models))
    return models


def _train(make: Callable[[], Estimator], x: Any, y: Any, like: Any) -> Estimator:
    if not len(y):
        return Constant(np.zeros(like.shape[1:], dtype=like.dtype))
    if np.all(y == y[0]):
        return Constant(y[0])
    model = make()
    if y.ndim == 1:
        model.fit(x, y)
        return model
    varying = np.flatnonzero(np.any(y != y[0], axis=0))
    model.fit(x, y[:, varying])
    return Constant(y[0], model, varying)


class Constant:
    """A teacher that knows one answer, but for the labels that vary in its shard, if any do."""

    def __init__(
        self, answer: Any, model: Estimator | None = None, varying: Integers | None = None
    ) -> None:
        self.answer, self.model, self.varying = np.asarray(answer), model, varying

    def fit(self, features: Any, labels: Any) -> Constant:
        """Learn nothing more."""
        return self

    def predict(self, features: Any) -> Any:
        """Repeat the answer, and fill in the labels that vary."""
        answers = np.repeat(self.answer[None], len(features), axis=0)
        if self.model is not None:
            predicted = np.asarray(self.model.predict(features))
            answers[:, self.varying] = predicted.reshape(len(features), -1)
        return answers


def class_votes(teachers: Sequence[Estimator], queries: ArrayLike, classes: int) -> Integers:
    """(q, classes) counts of the teachers' votes; each row sums to the number of teachers."""
    x = np.asarray(queries)
    counts = np.zeros((len(x), classes), dtype=np.int64)
    rows = np.arange(len(x))
    for teacher in teachers:
        votes = np.asarray(teacher.predict(x)).astype(np.int64)
        if votes.shape != (len(x),) or votes.min() < 0 or votes.max() >= classes:
            raise DataError(
                f"a teacher voted outside the classes 0 … {classes - 1}; encode labels as integers"
            )
        counts[rows, votes] += 1
    return counts


def label_votes(teachers: Sequence[Estimator], queries: ArrayLike) -> Booleans:
    """Collect each teacher's label indicators, (teachers, q, labels)."""
    x = np.asarray(queries)
    return np.stack([np.asarray(teacher.predict(x)) > 0.5 for teacher in teachers])
