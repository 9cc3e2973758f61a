"""What randomizers refuse: each reason alone, one step beyond what is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import labelveil as lv
from labelveil.common.errors import ConfigError, DataError, LabelveilError, PrivacyError
from labelveil.common.exact.channel import MAX_OUTPUTS, FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import LabelTerms, build_randomizer
from labelveil.common.randomizers.base import check_epsilon
from labelveil.common.randomizers.budget import split_budget
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.exact_rows import MAX_WEIGHTS, check_size, exact_rows
from labelveil.common.randomizers.grid import MAX_POINTS, Grid
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.randomizers.message.division import cell_grids
from labelveil.common.randomizers.message.known_labels import KnownLabels
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.terms import check_terms
from tests.refusals import check_refused

GRID = Grid(np.arange(4.0))
LAWS = np.ones((2, 4), dtype=np.int64)
LABELS = np.arange(40.0) % 4


def asked(**changed: Any) -> Question:
    return Question(**({"strata": np.array([0, 1]), "grid": GRID, "laws": LAWS} | changed))


def known(values: Any, weights: Any) -> KnownLabels:
    return KnownLabels((0,), np.array(values, dtype=float), np.array(weights, dtype=float))


def book(names: Sequence[str], *groups: tuple[int, ...], inputs: int = 2) -> Codebook:
    cells = Cells((Grid(np.arange(2.0)),))
    rows = randomized_response_rows(inputs, 1.0)
    channel = FiniteChannel(np.arange(inputs), np.arange(inputs), rows)
    return Codebook(
        tuple(names),
        tuple(Group(labels, Cells(cells.grids * len(labels))) for labels in groups),
        (channel,) * len(groups),
    )


def built(name: str, **options: Any) -> object:
    return build_randomizer(name, labels=np.arange(4), prior=np.ones(4), epsilon=1.0, **options)


def several(count: int) -> list[LabelTerms]:
    return [LabelTerms(f"label {n}", 0, 1, weight=1e-9) for n in range(count)]


def sent(**options: Any) -> object:
    return lv.randomize_labels(LABELS, **({"lower": 0, "upper": 3, "epsilon": 1.0} | options))


def rows_of(first: list[float], *more: list[float]) -> object:
    return exact_rows(np.array([first, *more]), 1.0)


Refused = tuple[Callable[[], object], type[LabelveilError], str]

REFUSED: Sequence[Refused] = [
    (lambda: check_epsilon("1"), PrivacyError, "must be a number, such as"),  # type: ignore[arg-type]
    (lambda: check_epsilon(True), PrivacyError, "must be a number, such as"),
    (lambda: check_epsilon(0), PrivacyError, "above 0 and at most 40"),
    (lambda: check_epsilon(math.nextafter(40, 41)), PrivacyError, "above 0 and at most 40"),
    (lambda: check_epsilon(math.nan), PrivacyError, "above 0 and at most 40"),
    (lambda: rows_of([math.nan, 1.0]), PrivacyError, "finite numbers >= 0"),
    (lambda: rows_of([-0.5, 1.5]), PrivacyError, "finite numbers >= 0"),
    (lambda: exact_rows(np.array([0.5, 0.5]), 1.0), PrivacyError, "finite numbers >= 0"),
    (lambda: rows_of([0.5, 0.499]), PrivacyError, "must sum to 1"),
    (lambda: rows_of([0.5, 0.501]), PrivacyError, "must sum to 1"),
    (lambda: rows_of([0.8, 0.2], [0.2, 0.8]), PrivacyError, "it is not 1-DP"),
    (lambda: check_size(1, MAX_OUTPUTS), ConfigError, "is too large"),
    (lambda: check_size(MAX_WEIGHTS - 11, 1), ConfigError, "is too large"),  # with 12 rows more
    (lambda: Grid(np.ones((2, 2))), ConfigError, "must have at least 2"),
    (lambda: Grid.from_step(-9, MAX_POINTS - 8, 1), ConfigError, "more than 8,192 points"),
    (lambda: Grid.from_step(-9, MAX_POINTS - 9, 1), ConfigError, "8,192"),
    (lambda: Grid.from_step(5, 9, 4.5), ConfigError, "step=4.5 must lie in 0 … 4"),
    (lambda: known([[1.0]], []), DataError, "without any value"),
    (lambda: known([[math.inf]], [1]), DataError, "labels must be finite"),
    (lambda: known([[1.0]], [math.nan]), DataError, "labels must be finite"),
    (lambda: known([[1.0]], [math.inf]), DataError, "labels must be finite"),
    (lambda: known([[1.0], [2.0]], [2, -1]), DataError, "weights finite and >= 0"),
    (lambda: known([[1.0]], [0]), DataError, "all zero"),
    (lambda: asked(laws=LAWS[0]), ConfigError, "laws of shape"),
    (lambda: asked(laws=LAWS.astype(np.int32)), ConfigError, "laws of shape"),
    (lambda: asked(laws=LAWS[:, :3]), ConfigError, "laws of shape"),
    (lambda: asked(laws=np.ones((33, 4), dtype=np.int64)), ConfigError, "33 strata must be 1"),
    (lambda: asked(laws=LAWS[:0]), ConfigError, "0 strata must be 1"),
    (lambda: asked(laws=-LAWS), ConfigError, "weights must be 0"),
    (lambda: asked(laws=LAWS << 41), ConfigError, "weights must be 0"),
    (lambda: asked(laws=LAWS * np.array([[1], [0]])), ConfigError, "not all of them 0"),
    (lambda: asked(strata=np.array([[0, 1]])), ConfigError, "column of whole numbers"),
    (lambda: asked(strata=np.array([0.0, 1.0])), ConfigError, "column of whole numbers"),
    (lambda: asked(strata=np.array([], dtype=int)), ConfigError, "column of whole numbers"),
    (lambda: asked(strata=np.array([0, 2])), ConfigError, "one of 0 … 1"),
    (lambda: asked(strata=np.array([0, -1])), ConfigError, "one of 0 … 1"),
    (lambda: LabelTerms("a", "0", 1), ConfigError, "lower='0' must be a number"),  # type: ignore[arg-type]
    (lambda: LabelTerms("a", 0, None), ConfigError, "upper=None must be a number"),  # type: ignore[arg-type]
    (lambda: check_terms([]), ConfigError, "0 labels must be 1"),
    (lambda: check_terms(several(9)), ConfigError, "9 labels must be 1"),
    (lambda: check_terms([LabelTerms("a", 0, 1)] * 2), ConfigError, "is there twice"),
    (lambda: check_terms([LabelTerms("a", 0, 1.5, whole=True)]), ConfigError, "must be whole"),
    *(
        (lambda weight=weight: check_terms([LabelTerms("a", 0, 1, weight=weight)]),
         ConfigError, "must be above 0")
        for weight in (0, -1, math.inf, math.nan)
    ),
    (
        lambda: check_terms([LabelTerms("a", 0, 1), LabelTerms("b", 0, 1, randomizer="unbiased")]),
        ConfigError,
        "are chosen together",
    ),
    (
        lambda: check_terms([LabelTerms("a", 0, 1), LabelTerms("b", 0, 1, options={"points": 3})]),
        ConfigError,
        "are chosen together",
    ),
    (lambda: book("ab", (0,)), ConfigError, "in exactly one group"),
    (lambda: book("ab", (0,), (0,)), ConfigError, "in exactly one group"),
    (lambda: book("a", (0,), inputs=3), ConfigError, "3 inputs does not fit 2 cells"),
    (lambda: Codebooks((book("a", (0,)), book("b", (0,)))), ConfigError, "same groups"),
    (
        lambda: Codebooks((book("ab", (0,), (1,)), book("ab", (1,), (0,)))),
        ConfigError,
        "same groups",
    ),
    (lambda: built("randomized-thresholds", weights=[1, math.inf, 1]), ConfigError, "finite"),
    (lambda: built("randomized-thresholds", weights=[1, -1, 1]), ConfigError, ">= 0"),
    (lambda: built("randomized-thresholds", weights=[0, 0, 0]), ConfigError, "not all zero"),
    (lambda: built("randomized-thresholds", weights=[1, 1]), ConfigError, "weights of shape"),
    (lambda: built("randomized-thresholds", thresholds=0), ConfigError, "must lie in 1 … 512"),
    (lambda: built("randomized-thresholds", thresholds=513), ConfigError, "must lie in 1 … 512"),
    (lambda: built("unbiased", points=1), ConfigError, "must lie in 2 … 513"),
    (lambda: built("unbiased", points=514), ConfigError, "must lie in 2 … 513"),
    (lambda: built("optimal-design", points=1), ConfigError, "must lie in 2 … 64"),
    (lambda: built("optimal-design", points=65), ConfigError, "must lie in 2 … 64"),
    (lambda: built("optimal-design", explained=0), ConfigError, "between 0 and 1"),
    (lambda: built("optimal-design", explained=1), ConfigError, "between 0 and 1"),
    (lambda: built("optimal-design", threshold_share=-0.1), ConfigError, "in 0 … 0.9"),
    (lambda: built("optimal-design", threshold_share=0.91), ConfigError, "in 0 … 0.9"),
    (lambda: sent(correct_prior=True), ConfigError, "has no prior to correct"),
    (
        lambda: sent(question=asked(strata=np.zeros(40, dtype=int)), strata=["a"] * 40),
        ConfigError,
        "leave strata out",
    ),
    (
        lambda: sent(question=asked(strata=np.zeros(40, dtype=int)), prior={1: 1}),
        ConfigError,
        "leave prior out",
    ),
    (
        lambda: lv.randomize_events({"a": LABELS}, {"a": (0, 3), "b": (0, 1)}, epsilon=1),
        DataError,
        "no label 'b'",
    ),
    (lambda: split_budget(0.0, 10, 1000), PrivacyError, "above 0"),
    (lambda: split_budget(1.0, 0, 1000), PrivacyError, "points=0 must be at least 1"),
    (
        lambda: split_budget(2.0**-23, 10, 9, largest_share=0.499),
        PrivacyError,
        "for the released histogram",
    ),
    (lambda: split_budget(1.0, 10, 0), PrivacyError, "rows=0 must be at least 1"),
    (lambda: split_budget(1.0, 10, 9, largest_share=1.0), PrivacyError, "largest_share=1"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_each_reason_refuses_by_itself(number: int) -> None:
    check_refused(*REFUSED[number])


def test_what_lies_at_the_bounds_is_taken() -> None:
    check_epsilon(40)
    check_epsilon(Fraction(1, 10**9))
    check_size(MAX_WEIGHTS - 12, 1)
    assert len(Grid.from_step(-9, MAX_POINTS - 10, 1)) == MAX_POINTS
    assert asked(laws=LAWS << 40, strata=np.array([1, 0])).laws.max() == 1 << 40
    assert len(asked(laws=np.ones((32, 4), dtype=np.int64)).laws) == 32
    check_terms(several(8))
    for bound in (2, 513):
        built("unbiased", points=bound)
    for bound in (1, 512):
        built("randomized-thresholds", thresholds=bound)
    least = 2.0**-24  # what a histogram takes of ε
    assert split_budget(2 * least, 1, 9, largest_share=0.5).prior == Fraction(1, 1 << 24)
    for share in (0, 0.9):
        built("optimal-design", threshold_share=share)
    names = book("ab", (0,), (1,)).names
    assert Codebooks((book("ab", (0,), (1,)),) * 2).names == names == ("a", "b")
    assert np.array_equal(exact_rows(np.array([[1.0], [1.0]]), 1.0), np.zeros((2, 1)))
    with pytest.raises(ConfigError, match="label='b' must be one of a"):
        lv.randomize_events({"a": LABELS}, {"a": (0, 3)}, epsilon=1)["b"]


@pytest.mark.parametrize(
    ("points", "fits"),
    [(1, True), (133, True), (150, True), (199, True), (200, True), (201, False)],
)
def test_two_labels_share_four_hundred_cells(points: int, fits: bool) -> None:
    """One on points that were chosen and one of two values: together they fit, or they do not."""
    chosen = Grid(np.arange(points + 1.0)[: max(points, 2)])
    terms = [
        LabelTerms("chosen", 0, chosen.upper, chosen),
        LabelTerms("free", 0, 1, whole=True),
    ]
    for rows, epsilon in ((10, 0.1), (10**6, 8.0)):
        grids = cell_grids(terms, rows, epsilon)
        assert (grids is not None) is fits
        if grids is not None:
            assert grids[0] is chosen
            assert grids[1].points.tolist() == [0.0, 1.0]
