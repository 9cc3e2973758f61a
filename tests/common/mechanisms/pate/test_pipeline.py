"""From private records to a student: shards, teachers of every kind, votes, accuracy."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, PrivacyError
from labelveil.common.mechanisms.pate import (
    GNMax,
    StableVote,
    TorchModel,
    class_votes,
    label_votes,
    partition,
    train_student,
    train_teachers,
)
from tests.effort import one_in


def test_a_record_decides_about_itself_alone() -> None:
    short, long = partition(100, 7, seeded_entropy(1)), partition(101, 7, seeded_entropy(1))
    owners = {int(row): t for t, shard in enumerate(long) for row in shard}
    assert sorted(owners) == list(range(101))
    assert all(owners[int(row)] == t for t, shard in enumerate(short) for row in shard)
    with pytest.raises(PrivacyError, match="teachers=1"):
        partition(10, 1, seeded_entropy(1))


def test_digits_from_many_small_teachers() -> None:
    x, y = load_digits(return_X_y=True)
    x = x / 16.0
    private, public, test = slice(0, 1200), slice(1200, 1500), slice(1500, None)
    shards = partition(1200, 40, seeded_entropy(5))
    seen: list[int] = []
    teachers = train_teachers(
        lambda: KNeighborsClassifier(1), x[private], y[private], shards, seen.append
    )
    assert seen[-1] == 40
    votes = class_votes(teachers, x[public], 10)
    assert np.all(votes.sum(axis=1) == 40)
    answers = GNMax(Fraction(9)).draw(votes, seeded_entropy(6))
    report = train_student(
        lambda: LogisticRegression(max_iter=200),
        x[public],
        answers,
        x[test],
        y[test],
        1e-5,
        y[public],
    )
    assert report.accuracy > 0.7
    assert report.label_accuracy > 0.75
    assert report.answered == 300
    assert report.privacy.epsilon > 0
    assert report.incurred_epsilon is not None
    nobody = replace(answers, labels=np.full(300, -1))
    with pytest.raises(DataError, match="no query was answered"):
        train_student(LogisticRegression, x[public], nobody, x[test], y[test], 1e-5)


def blobs() -> tuple[np.ndarray, np.ndarray]:
    words = seeded_entropy(8).words("features", 0, 600 * 3).reshape(600, 3)
    x = (words >> np.uint64(11)).astype(np.float64) / 2**53
    return x, np.column_stack([x[:, 0] > 0.5, x[:, 1] > 0.4, np.zeros(600, dtype=bool)]).astype(int)


@pytest.mark.parametrize("kind", one_in(2, ["tree", "torch"]))
def test_labels_from_scikit_learn_and_torch(kind: str) -> None:
    x, y = blobs()

    def make() -> Any:
        if kind == "tree":
            return DecisionTreeClassifier(max_depth=3, random_state=0)
        torch = pytest.importorskip("torch")
        return TorchModel(torch.nn.Linear, 3, multi_label=True, epochs=60, learning_rate=0.2)

    shards = partition(400, 20, seeded_entropy(2))
    teachers = train_teachers(make, x[:400], y[:400], shards)
    votes = label_votes(teachers, x[400:500])
    assert votes.shape == (20, 100, 3)
    assert not votes[:, :, 2].any()
    answers = StableVote(Fraction(1), Fraction(1, 10**4)).draw(votes, seeded_entropy(3))
    report = train_student(make, x[400:500], answers, x[500:], y[500:], 0.05)
    assert report.accuracy > 0.8


@pytest.mark.slow
def test_torch_classes() -> None:
    torch = pytest.importorskip("torch")
    x, y = blobs()
    model = TorchModel(torch.nn.Linear, 2, epochs=80, learning_rate=0.2).fit(x, y[:, 0])
    assert np.mean(model.predict(x) == y[:, 0]) > 0.9


def test_poor_shards_still_vote() -> None:
    x = np.zeros((4, 2))
    empty = np.zeros(0, dtype=np.int64)
    teachers = train_teachers(
        DecisionTreeClassifier, x, np.array([2, 2, 1, 1]), [empty, np.array([0])]
    )
    assert class_votes(teachers, x, 3).tolist() == [[1, 0, 1]] * 4
    assert class_votes(teachers, x[:0], 3).shape == (0, 3)
    with pytest.raises(DataError, match="outside the classes"):
        class_votes(teachers, x, 2)
    with pytest.raises(DataError, match="as many"):
        train_teachers(DecisionTreeClassifier, x, [1], [empty])
