"""What rows say of each other's labels and noise."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.audit.attacks.rows_apart import (
    Association,
    Repeat,
    Rows,
    agreement,
    find_again,
    find_repeat,
    influence,
    words_check,
)
from labelveil.audit.verdict import Check, Verdict

SIGNS = np.array([[-1.0, 1.0]])
ONE = np.zeros(2, dtype=np.int64)


def of_two(outputs: np.ndarray, bits: np.ndarray) -> Association:
    return influence(Rows.from_outputs(outputs, bits), SIGNS, ONE, [(1,)])


@pytest.mark.parametrize("follows", [False, True])
def test_outputs_that_do_not_vary_say_nothing_of_other_rows(follows: bool) -> None:
    bits = np.arange(1000) % 2
    outputs = bits.astype(float) if follows else np.zeros(1000)
    assert of_two(outputs, bits).size == 0.0


def test_a_label_that_shows_in_another_row_is_found() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 4000)
    assert of_two(np.roll(bits, 3).astype(float), bits).exceeds
    assert not of_two(rng.integers(0, 2, 4000).astype(float), bits).exceeds


def test_a_group_of_own_labels_that_shows_another_row_is_found() -> None:
    """One row in three of one label sends the row before; among all rows these are too few."""
    rng = np.random.default_rng(1)
    kinds = rng.integers(0, 10, 40_000)
    high = np.where(np.arange(10) >= 5, 1.0, -1.0)
    outputs = rng.integers(0, 2, kinds.size)
    rows = np.flatnonzero(kinds == 4)[::3]
    outputs[rows] = high[kinds[rows - 1]] > 0
    groups = (np.arange(10) == 4).astype(np.int64)
    found = Rows.from_outputs(outputs, kinds)
    assert influence(found, high[None], groups, []).where.endswith("(own labels of group 1)")
    assert influence(found, high[None], groups, []).exceeds
    assert not influence(found, high[None], np.zeros(10, dtype=np.int64), [(1,)]).exceeds


def words(outputs: np.ndarray) -> Check:
    found = find_repeat(outputs), find_again(outputs, [0])
    return words_check(found, [agreement(Rows.from_outputs(outputs))], tried="")


@pytest.mark.parametrize("rows", [1000, 1009])
def test_words_of_constant_outputs_decide_nothing(rows: int) -> None:
    assert words(np.zeros(rows)).verdict is Verdict.NOT_CHECKABLE
    again = np.resize(np.random.default_rng(0).integers(0, 2, rows // 4), rows)
    assert words(again).verdict is Verdict.FAIL


def test_a_window_that_comes_again_is_found_without_sorting() -> None:
    outputs = np.random.default_rng(2).integers(0, 3, 100_000).astype(np.uint8)
    assert not find_again(outputs, [0, 777]).exists
    outputs[60_000:60_100] = outputs[777:877]
    assert find_again(outputs, [0, 777]) == Repeat(find_again(outputs, [0]).window, 777, 59_223)


def test_windows_are_compared_where_labels_come_again() -> None:
    """Labels alone make rows alike: that is no repeat."""
    rng = np.random.default_rng(3)
    kinds = np.tile(rng.integers(0, 2, 64), 400)
    outputs = np.where(rng.random(kinds.size) < 0.9, kinds, 1 - kinds)
    assert not find_repeat(outputs, kinds=kinds, pattern=64).exists
    outputs[64 * 300 : 64 * 316] = outputs[64 * 5 : 64 * 21]
    assert find_repeat(outputs, kinds=kinds, pattern=64).lag == 64 * 295


@pytest.mark.parametrize("stated", [True, False])
def test_words_that_come_again_under_other_labels_are_found(stated: bool) -> None:
    """A word is used again 123 rows later, by a row whose label may be another."""
    rng = np.random.default_rng(4)
    laws = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6], [0.3, 0.4, 0.3]])
    kinds, uniform = rng.integers(0, 3, 30_000), rng.random(30_000)

    def rows(uniform: np.ndarray) -> Rows:
        codes = (uniform[:, None] >= laws.cumsum(axis=1)[kinds, :-1]).sum(axis=1)
        return Rows.by_laws(codes, kinds, laws) if stated else Rows.from_outputs(codes, kinds)

    right = agreement(rows(uniform))
    assert not right.exceeds
    again = np.flatnonzero(rng.random(uniform.size) < 1.2 * right.least_share)
    again = again[again >= 123]
    uniform[again] = uniform[again - 123]
    assert agreement(rows(uniform)).where == "lag 123"
    assert agreement(rows(uniform)).exceeds


@pytest.mark.parametrize("least", [0.1, np.inf])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("size", [0.5, 2.0])
@pytest.mark.parametrize("lag", [-1, 7])
def test_each_way_in_which_words_come_back_decides(
    lag: int, size: float, window: int, least: float
) -> None:
    quiet = Association(0.1, 1.0, "quiet", 10, np.inf)
    loud = Association(size, 1.0, "loud", 5, least)
    again = Repeat(window, 3 if lag > 0 else -1, lag)
    for lags in ([quiet, loud], [loud, quiet]):
        found = words_check([Repeat(0), again], lags, tried="Rows were drawn")
        if window or least < 1:
            back = lag > 0 or size > 1
            assert found.verdict is (Verdict.FAIL if back else Verdict.PASS)
            assert found.bound == (np.inf if back else 0.0)
        else:
            assert found.verdict is Verdict.NOT_CHECKABLE
        assert "at 15 lags" in found.tried
        assert ("from 3 on" in found.found) is (lag > 0)
        assert found.details == {"lag": lag, "where": "loud"}
        assert found.power[0].least == (window or np.inf)
        assert found.power[1].least == least
