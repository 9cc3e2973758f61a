"""Teachers: disjoint shards of private data, one model each, and their votes; and the student.

A record lies in exactly one shard, drawn for it alone, so adding, removing or replacing one record
changes one teacher and hence one teacher's votes. A student learns from private answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.arrays import Booleans, Floats, Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import DataError
from labelveil.common.guarantees import ApproximateDP, RenyiDP, epsilon_at, to_approximate
from labelveil.common.guarantees.limits import within
from labelveil.common.mechanisms.pate.data_dependent import ORDERS
from labelveil.common.mechanisms.pate.multi_label import LabelAnswers
from labelveil.common.mechanisms.pate.single_label import ClassAnswers


class Estimator(Protocol):
    """What a teacher or student must offer: scikit-learn's two verbs."""

    def fit(self, features: Any, labels: Any) -> Any:
        """Learn from (n, d) features and (n,) classes or (n, c) label indicators."""

    def predict(self, features: Any) -> Any:
        """Return (m,) classes or (m, c) label indicators."""


class TorchModel:
    """A torch module as a teacher or student, with scikit-learn's ``fit`` and ``predict``: classes
    by cross-entropy, label sets by logistic loss.

    ``build`` makes a fresh module from numbers of features and of outputs: of classes, or with
    ``multi_label`` of labels, which are (n, outputs) indicators then. Training is full-batch Adam.
    """

    def __init__(
        self,
        build: Callable[[int, int], Any],
        outputs: int,
        *,
        multi_label: bool = False,
        epochs: int = 100,
        learning_rate: float = 1e-2,
        seed: int = 0,
    ) -> None:
        self.build, self.outputs, self.multi_label = build, outputs, multi_label
        self.epochs, self.learning_rate, self.seed = epochs, learning_rate, seed
        self.module: Any = None

    def fit(self, features: Any, labels: Any) -> TorchModel:
        """Train from fresh weights."""
        import torch

        x = torch.as_tensor(np.asarray(features), dtype=torch.float32)
        self.width = self.outputs if not self.multi_label else np.asarray(labels).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.module = self.build(x.shape[1], self.width)
        loss: Any
        if self.multi_label:
            y = torch.as_tensor(np.asarray(labels), dtype=torch.float32)
            loss = torch.nn.BCEWithLogitsLoss()
        else:
            y = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
            loss = torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(self.module.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            optimizer.zero_grad()
            loss(self.module(x), y).backward()
            optimizer.step()
        return self

    def predict(self, features: Any) -> Any:
        """Return the most likely class, or every label with a positive logit."""
        import torch

        with torch.no_grad():
            scores = self.module(torch.as_tensor(np.asarray(features), dtype=torch.float32))
        logits = scores.numpy()
        return logits > 0 if self.multi_label else logits.argmax(axis=1)


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
    """Train one model a shard of (n, d) private features and (n,) classes or (n, c) 0/1 indicators.

    ``make`` builds a fresh model: a scikit-learn estimator or a :class:`TorchModel`. A shard
    without rows, or with a single class or label row, gets a constant teacher, for many estimators
    refuse such data and skipping it would be a leak. ``on_trained`` is called with the number of
    teachers trained so far.

    Raises
    ------
    DataError
        If there are not as many rows of features as of labels.
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
    """(q, classes) counts of the teachers' votes; each row sums to the number of teachers.

    Raises
    ------
    DataError
        If a teacher voted outside the classes.
    """
    x = np.asarray(queries)
    counts = np.zeros((len(x), classes), dtype=np.int64)
    rows = np.arange(len(x))
    for teacher in teachers:
        votes = np.asarray(teacher.predict(x)).astype(np.int64)
        if votes.shape != (len(x),) or ((votes < 0) | (votes >= classes)).any():
            raise DataError(
                f"a teacher voted outside the classes 0 … {classes - 1}; encode labels as integers"
            )
        counts[rows, votes] += 1
    return counts


def label_votes(teachers: Sequence[Estimator], queries: ArrayLike) -> Booleans:
    """Collect each teacher's label indicators, (teachers, q, labels)."""
    x = np.asarray(queries)
    return np.stack([np.asarray(teacher.predict(x)) > 0.5 for teacher in teachers])


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

    Raises
    ------
    DataError
        If no query was answered.
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
