"""Domains and workloads: answers by hand, sensitivities by trying every neighbour."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.mechanisms.synthesis import (
    Domain,
    LinearQueries,
    Marginals,
    Workload,
    errors,
    laplace_answers,
)
from tests.common.mechanisms.synthesis.tables import neighbours, tables

DOMAIN = Domain(("colour", "size", "sold"), (3, 2, 2))
SMALL = Domain(("a", "b"), (2, 2))
WORKLOADS: list[Workload] = [
    Marginals.up_to(SMALL, 2),
    Marginals(SMALL, ((0,), (0, 1))),
    LinearQueries(np.array([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]])),
    LinearQueries(np.array([[0, 3, 5, 1], [5, 2, 2, 0]]), scale=5),
]


def test_a_marginal_counts_the_records_that_it_says() -> None:
    codes = np.array([[0, 1, 0], [2, 1, 1], [2, 0, 1], [2, 1, 1]])
    table = DOMAIN.histogram(codes)
    assert table.sum() == 4
    np.testing.assert_array_equal(DOMAIN.codes(DOMAIN.index(codes)), codes)
    workload = Marginals.up_to(DOMAIN, 2)
    expected = [
        int(np.all(codes[:, list(chosen)] == values, axis=1).sum())
        for chosen in workload.sets
        for values in np.ndindex(*[DOMAIN.sizes[j] for j in chosen])
    ]
    np.testing.assert_array_equal(workload.answers(table), expected)
    for query in range(workload.size):
        cells, shares = workload.support(query)
        assert int(table[cells] @ shares) == expected[query]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_sensitivities_are_attained_and_never_passed(workload: Workload) -> None:
    single, together = 0, 0
    for table in tables(4, 3):
        for other in neighbours(table):
            moved = np.abs(workload.answers(table) - workload.answers(other))
            single, together = max(single, int(moved.max())), max(together, int(moved.sum()))
    assert together == workload.l1_sensitivity
    assert single == workload.scale


def test_records_lie_where_the_weights_are() -> None:
    weights = np.array([0.5, 0, 1.5, 2, 0.1, 0.9, 0, 0, 3, 1, 1, 0])
    rows = DOMAIN.rows(weights, 1000)
    counts = DOMAIN.histogram(rows)
    np.testing.assert_allclose(counts, weights * 100, atol=1)
    first = Marginals(DOMAIN, ((0,),))
    np.testing.assert_allclose(first.answers(counts), first.answers(weights * 100), atol=1)
    assert DOMAIN.rows(weights, 0).shape == (0, 3)


def test_errors_are_shares_of_records_whatever_the_scale() -> None:
    queries = LinearQueries(np.array([[0, 3, 5, 1], [5, 2, 2, 0]]), scale=5)
    table = np.array([2, 1, 0, 1])  # 4 records, so that 4/20 of an answer are a fifth
    assert errors(queries, table, np.add(queries.answers(table), [4, -2])) == pytest.approx(
        (0.2, 0.15)
    )


@pytest.mark.parametrize("cells", [1024, 1025])
def test_a_bound_for_many_cells_is_of_ranges(cells: int) -> None:
    """Of weights 1 … 3 and 2 … 3 they are 2 and 1; columns are no farther apart where known."""
    weights = np.full((2, cells), 3)
    weights[0, 0], weights[1, 1] = 1, 2
    assert LinearQueries(weights, 3).l1_sensitivity == 3


def test_the_baseline_has_the_noise_of_its_formula() -> None:
    workload = Marginals.up_to(SMALL, 2)  # three marginals: Δ₁ = 6
    table = np.array([5, 0, 2, 9])
    truth = workload.answers(table)
    noise = discrete_laplace(Fraction(3), truth.size, seeded_entropy(1).source("laplace-answers"))
    found = laplace_answers(workload, table, Fraction(2), seeded_entropy(1))
    np.testing.assert_array_equal(found, truth + noise)
    assert errors(workload, table, truth) == (0, 0)
    assert errors(workload, table, truth + 8) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda: Domain(("a", "a"), (2, 2)), "each once"),
        (lambda: Domain(("a", "b"), (2, 0)), "number >= 1"),
        (lambda: Domain(("a", "b"), (1 << 12, 1 << 12)), "merge values"),
        (lambda: Marginals(SMALL, ((1, 0),)), "ascending"),
        (lambda: Marginals.up_to(SMALL, 3), "1 … 2"),
        (lambda: Marginals.up_to(SMALL, 0), "1 … 2"),
        (lambda: Marginals(SMALL, ((0,), (1, 0))), "ascending"),
        (lambda: LinearQueries(np.array([[0, 2]])), "0 … 1"),
        (lambda: LinearQueries(np.array([0.5])), "matrix"),
    ],
)
def test_impossible_shapes_are_refused(broken: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        broken()


def test_codes_and_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="outside"):
        SMALL.index([[0, 2]])
    with pytest.raises(DataError, match="integers with one column"):
        SMALL.index([[0.0, 1.0]])
    most = 1 << 40
    assert laplace_answers(WORKLOADS[0], [0, most, 0, 0], Fraction(1), seeded_entropy(0)).size == 8
    for table in ([1, 2, 3], [1, 2, 3, -1], [0, 0, 0, 0], [1, most, 0, 0]):
        with pytest.raises(DataError, match="histogram"):
            laplace_answers(WORKLOADS[0], table, Fraction(1), seeded_entropy(0))


@pytest.mark.parametrize("cells", [3, 1024, 1025, 3000])
def test_no_replaced_record_moves_more_than_is_said(cells: int) -> None:
    """Also where pairs of cells are too many to be looked at: here some hundred of them are."""
    chance = np.random.default_rng(cells)
    weights = chance.integers(0, 6, (4, cells))
    weights[:, :2] = [[5, 0]] * 4  # the worst pair
    queries = LinearQueries(weights, 5)
    pairs = np.concatenate([[[0, 1]], chance.integers(0, cells, (200, 2))])
    tables = np.zeros((2, len(pairs), cells), dtype=np.int64)
    for table, column in zip(tables, pairs.T, strict=True):
        table[np.arange(len(pairs)), column] = 1
    moved = [
        np.abs(queries.answers(a) - queries.answers(b)).sum() for a, b in zip(*tables, strict=True)
    ]
    assert max(moved) == 20 == queries.l1_sensitivity
