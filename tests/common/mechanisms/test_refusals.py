"""What mechanisms refuse: each reason alone, one step beyond what is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction as F
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError, LabelveilError, PrivacyError
from labelveil.common.mechanisms.central.dp_sgd import DPSGDClassifier
from labelveil.common.mechanisms.central.estimators import PrivateLogisticRegression
from labelveil.common.mechanisms.central.gradient_steps import GradientSteps
from labelveil.common.mechanisms.clipping import checked_labels
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice, NoisySums
from labelveil.common.mechanisms.group_sums.noisy_sums import group_sums
from labelveil.common.mechanisms.group_sums.question import MOST_LEVELS, MOST_WEIGHT
from labelveil.common.mechanisms.interactive.targets import hit_probability
from labelveil.common.mechanisms.pate.multi_label import ClippedVote, Norm
from labelveil.common.mechanisms.pate.single_label import PriorVote, checked_votes
from labelveil.common.mechanisms.pate.teachers import class_votes, label_votes
from labelveil.common.mechanisms.synthesis import Domain, LinearQueries, Marginals
from tests.refusals import check_refused

AB = Domain(("a", "b"), (2, 3))
LATTICE = Lattice(0.0, 5.0, 5)
ONES = np.ones((2, 2))


def asked(**changed: Any) -> GroupQuestion:
    given = {"groups": np.array([0, 1, 1]), "half_widths": np.array([1, 5])} | changed
    return GroupQuestion(LATTICE, **given)


def voting(*votes: int) -> Any:
    """A teacher who votes so, whatever is asked."""
    return SimpleNamespace(predict=lambda x: np.array(votes))


def answered(votes: Any) -> object:
    return PriorVote(F(1), 1).draw(votes, lambda query, answers: 0, seeded_entropy(0))


def in_units(groups: Any) -> GroupQuestion:
    return GroupQuestion.on_grid(LATTICE, groups, 1.0, 0.0)  # type: ignore[arg-type]


Refused = tuple[Callable[[], object], type[LabelveilError], str]

REFUSED: Sequence[Refused] = [
    (lambda: checked_labels(np.ones(2), np.ones(2)), DataError, "one label a row"),
    (lambda: checked_labels(ONES, np.ones(3)), DataError, "one label a row"),
    (lambda: checked_labels(np.ones((0, 2)), np.ones(0)), DataError, "one label a row"),
    (lambda: checked_labels(np.ones((2, 0)), np.ones(2)), DataError, "one label a row"),
    (lambda: checked_labels(ONES * np.inf, np.ones(2)), DataError, "must be finite"),
    (lambda: checked_labels(ONES, np.array([1, np.nan])), DataError, "must be finite"),
    (lambda: checked_votes([1, 2]), PrivacyError, "must be"),
    (lambda: checked_votes([[1], [2]]), PrivacyError, "must be"),
    (lambda: checked_votes([[1, -1]]), PrivacyError, "must be"),
    (lambda: checked_votes([[[1, 1]]]), PrivacyError, "must be"),
    (lambda: answered([[1, -1]]), PrivacyError, "must be"),
    (lambda: class_votes([voting(0, 2)], [[0.0], [1.0]], 2), DataError, "outside the classes"),
    (lambda: class_votes([voting(0, -1)], [[0.0], [1.0]], 2), DataError, "outside the classes"),
    (lambda: class_votes([voting(0)], [[0.0], [1.0]], 2), DataError, "outside the classes"),
    (lambda: ClippedVote(F(1), tau=F(0)), PrivacyError, "must be > 0"),
    (lambda: ClippedVote(F(1), tau=F(-1)), PrivacyError, "must be > 0"),
    (lambda: ClippedVote(F(1), tau=F(99, 100), norm=Norm.L0), PrivacyError, "at least 1"),
    (lambda: Domain((), ()), ConfigError, "at least one, each once"),
    (lambda: Domain(("a", "a"), (1, 1)), ConfigError, "at least one, each once"),
    (lambda: Domain(("a", "b"), (1,)), ConfigError, "one number >= 1 per attribute"),
    (lambda: Domain(("a", "b"), (1, 1, 1)), ConfigError, "one number >= 1 per attribute"),
    (lambda: Domain(("a", "b"), (1, 0)), ConfigError, "one number >= 1 per attribute"),
    (lambda: Domain(("a", "b"), (2**11, 2**11 + 1)), ConfigError, "leave an attribute out"),
    (lambda: AB.index([0, 1]), DataError, "must be integers with one column"),
    (lambda: AB.index([[0]]), DataError, "must be integers with one column"),
    (lambda: AB.index([[0, 1, 1]]), DataError, "must be integers with one column"),
    (lambda: AB.index([[0.0, 1.0]]), DataError, "must be integers with one column"),
    (lambda: AB.index([[0, -1]]), DataError, "outside its attribute"),
    (lambda: AB.index([[2, 0]]), DataError, "outside its attribute"),
    (lambda: AB.index([[0, 3]]), DataError, "outside its attribute"),
    (lambda: LinearQueries(np.ones(2, dtype=int)), ConfigError, "must be a matrix"),
    (lambda: LinearQueries(np.ones((2, 0), dtype=int)), ConfigError, "must be a matrix"),
    (lambda: LinearQueries(ONES), ConfigError, "must be a matrix"),
    (lambda: LinearQueries(ONES.astype(int), 0), ConfigError, "scale in 1"),
    (lambda: LinearQueries(ONES.astype(int), 2**20 + 1), ConfigError, "scale in 1"),
    (lambda: LinearQueries(-ONES.astype(int), 1), ConfigError, "must lie in 0"),
    (lambda: LinearQueries(2 * ONES.astype(int), 1), ConfigError, "must lie in 0"),
    (lambda: Marginals(AB, ()), ConfigError, "distinct ascending"),
    (lambda: Marginals(AB, ((),)), ConfigError, "distinct ascending"),
    (lambda: Marginals(AB, ((1, 0),)), ConfigError, "distinct ascending"),
    (lambda: Marginals(AB, ((0, 0),)), ConfigError, "distinct ascending"),
    (lambda: Marginals(AB, ((-1, 0),)), ConfigError, "distinct ascending"),
    (lambda: Marginals(AB, ((0, 2),)), ConfigError, "distinct ascending"),
    (lambda: Marginals(AB, ((0,), (0,))), ConfigError, "distinct ascending"),
    (lambda: asked(groups=np.array([[0, 1, 1]])), ConfigError, "groups of shape"),
    (lambda: asked(groups=np.array([0.0, 1.0])), ConfigError, "groups of shape"),
    (lambda: asked(groups=np.array([], dtype=int)), ConfigError, "groups of shape"),
    (lambda: asked(half_widths=np.ones(4, dtype=int)), ConfigError, "4 groups of 3 events"),
    (lambda: asked(groups=np.array([0, 1, 2])), ConfigError, "group 2 must be one of 0 … 1"),
    (lambda: asked(groups=np.array([0, 1, -1])), ConfigError, "group -1 must be one of"),
    (lambda: asked(half_widths=np.array([0, 1])), ConfigError, "half-widths from 0 to 1"),
    (lambda: asked(half_widths=np.array([1, 6])), ConfigError, "half-widths from 1 to 6"),
    (lambda: asked(offsets=np.array([6])), ConfigError, "offsets from 6 to 6"),
    (lambda: asked(offsets=np.array([-1])), ConfigError, "offsets from -1 to -1"),
    (lambda: asked(offsets=np.zeros(0, dtype=int)), ConfigError, "offsets of shape"),
    (lambda: asked(half_widths=np.zeros(0, dtype=int)), ConfigError, "0 groups of 3 events"),
    (lambda: asked(offsets=np.array([0, 1])), ConfigError, "levels say which"),
    (lambda: asked(levels=np.zeros(3, dtype=int)), ConfigError, "levels say which"),
    (
        lambda: asked(offsets=np.array([0, 1]), levels=np.array([0, 1, 2])),
        ConfigError,
        "levels from 0 to 2",
    ),
    (
        lambda: asked(offsets=np.array([0, 1]), levels=np.array([0, 1])),
        ConfigError,
        "levels of shape",
    ),
    (
        lambda: asked(
            offsets=np.zeros(MOST_LEVELS + 1, dtype=int), levels=np.zeros(3, dtype=int)
        ),
        ConfigError,
        "257 levels",
    ),
    (lambda: asked(weights=np.array([0, 0, 0])), ConfigError, "must not all be 0"),
    (lambda: asked(weights=np.array([1, 1])), ConfigError, "weights of shape"),
    (lambda: asked(weights=np.array([1, 1, MOST_WEIGHT + 1])), ConfigError, "weights from 1 to"),
    (lambda: asked(weights=np.array([1, 1, -MOST_WEIGHT - 1])), ConfigError, "weights from -"),
    (lambda: asked(squares=-1), ConfigError, "squares are asked of -1"),
    (lambda: asked(squares=3), ConfigError, "squares are asked of 3"),
    (lambda: in_units([[0, 1]]), ConfigError, "groups must be a column"),
    (lambda: in_units([0.5, 1.0]), ConfigError, "groups must be a column"),
    (lambda: in_units([]), ConfigError, "groups must be a column"),
    (lambda: NoisySums(asked(), F(0)), PrivacyError, r"must lie in \(0, 40\]"),
    (lambda: NoisySums(asked(), F(401, 10)), PrivacyError, r"must lie in \(0, 40\]"),
    (lambda: group_sums([1.0, 2.0], asked(), epsilon=1.0), DataError, "about 3 events"),
    (lambda: hit_probability([[0.5, 0.5]], [[0.5, 0.5]], [0], 1.0), PrivacyError, "laws"),
    (lambda: hit_probability([0.8, 0.2], [0.2, 0.8], [0], 1.0), PrivacyError, "two laws are not"),
    (lambda: hit_probability([0.5, 0.5], [1.0], [0], 1.0), PrivacyError, "must be two vectors"),
    (lambda: hit_probability([-0.1, 1.1], [-0.1, 1.1], [0], 1.0), PrivacyError, ">= 0 and sum to"),
    (lambda: hit_probability([0.5, 0.6], [0.5, 0.5], [0], 1.0), PrivacyError, "to 1, not 1.1"),
    (lambda: hit_probability([np.nan, 0.5], [0.5, 0.5], [0], 1.0), PrivacyError, "to 1, not nan"),
    (
        lambda: GradientSteps(100, 10, 10**6, scale=F(2**20)).grid(3),
        ConfigError,
        "passes what the exact sampler takes",
    ),
    (
        lambda: GradientSteps(100, 10, 1).grid(2**40),
        ConfigError,
        "passes what the exact sampler takes",
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_each_reason_refuses_by_itself(number: int) -> None:
    check_refused(*REFUSED[number])


@pytest.mark.parametrize("places", [[[0, 1, 1]], [0, 1, 1, 1]])
def test_labels_that_are_not_one_an_event_are_no_sum(places: Any) -> None:
    with pytest.raises(ValueError, match="one for each event"):
        asked().sums(np.array(places))
    with pytest.raises(ValueError, match="one for each event"):
        asked().sums(np.array([0, 1]), first=2)
    with pytest.raises(ValueError, match="one for each event"):
        asked().sums(np.array([0]), first=-1)
    with pytest.raises(ValueError, match="one for each event"):
        NoisySums(asked(), F(1)).draw(np.array([0, 1]), seeded_entropy(1))


@pytest.mark.parametrize("model", [DPSGDClassifier, PrivateLogisticRegression])
@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 1, 2]])
def test_classes_are_two_at_least(model: Any, labels: list[int]) -> None:
    x = np.eye(3)
    made = model(1.0, 0.1) if model is DPSGDClassifier else model(1.0)
    if len(set(labels)) == 1:
        with pytest.raises(ValueError, match="all of one class"):
            made.fit(x, labels)
    elif model is PrivateLogisticRegression:
        with pytest.raises(ValueError, match="Only binary classification"):
            made.fit(x, labels)


def test_what_lies_at_the_bounds_is_taken() -> None:
    assert asked(half_widths=np.array([1, 5]), offsets=np.array([5]), squares=2).squares == 2
    assert asked(weights=np.array([MOST_WEIGHT, -MOST_WEIGHT, 0])).largest_weight == MOST_WEIGHT
    assert asked(groups=np.array([0, 1, NO_GROUP])).sizes.tolist() == [1, 1]
    assert Domain(("a", "b"), (2**11, 2**11)).cells == 2**22
    assert AB.index([[0, 0], [1, 2]]).tolist() == [0, 5]
    assert AB.index(np.zeros((0, 2), dtype=int)).size == 0
    assert LinearQueries(np.array([[0, 2**20]]), 2**20).l1_sensitivity == 2**20
    assert Marginals(AB, ((0, 1), (1,))).sets == ((0, 1), (1,))
    assert ClippedVote(F(1), tau=F(1), norm=Norm.L0).tau == 1
    assert checked_votes(np.zeros((0, 2))).shape == (0, 2)
    assert NoisySums(asked(), F(40)).epsilon == 40
    assert class_votes([voting(0, 1)], [[0.0], [1.0]], 2).tolist() == [[1, 0], [0, 1]]
    sure = [SimpleNamespace(predict=lambda x: np.array([[0.5, 0.51]]))]
    assert label_votes(sure, [[0.0]]).tolist() == [[[False, True]]]  # type: ignore[arg-type]
