"""What makes labels whole numbers: their type or a word, and never a value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from labelveil.common.arrays import holds_integers
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.private_labels import randomize_events, randomize_labels
from labelveil.common.randomizers.message.terms import LabelTerms
from tests.effort import one_in

COIN = [0, 1] * 500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "points"),
    one_in(
        3,
        [
            (COIN, 2),
            (np.array(COIN, dtype=np.int8), 2),
            (np.array(COIN, dtype=bool), 2),
            (pd.Series(COIN, dtype="Int64"), 2),
            (pd.Series(COIN, dtype="boolean"), 2),
            (pl.Series(COIN), 2),
            (np.array(COIN, dtype=float), 11),
            (pd.Series(COIN, dtype="Float64"), 11),
            (pl.Series(COIN, dtype=pl.Float64), 11),
        ],
    ),
)
def test_the_type_says_whether_labels_are_whole(labels: object, points: int) -> None:
    assert holds_integers(labels) == (points == 2)
    made = randomize_labels(labels, lower=0, upper=1, epsilon=1)  # type: ignore[arg-type]
    assert len(made.prior) == points
    events = randomize_events({"a": labels, "b": COIN}, {"a": (0, 1), "b": (0, 1)}, epsilon=1)  # type: ignore[dict-item]
    assert len(events["b"].prior) == 2
    assert len(events["a"].prior) == points


@pytest.mark.slow
def test_no_value_decides() -> None:
    anywhere = np.array([0.0, 1.0] * 500)
    moved = anywhere.copy()
    moved[0] = 0.37
    points = [
        len(randomize_labels(y, lower=0, upper=1, epsilon=1).prior) for y in (anywhere, moved)
    ]
    assert points == [11, 11]


def test_whole_labels_have_whole_bounds() -> None:
    with pytest.raises(ConfigError, match=r"bounds must be whole, not 0 … 1\.5"):
        plan_message([LabelTerms("y", 0, 1.5, whole=True)], 1000, 1.0)


def test_several_labels_keep_their_points() -> None:
    terms = [
        LabelTerms("rate", 0, 1),
        LabelTerms("coin", 0, 1, whole=True),
        LabelTerms("y", 0, 9.5),
    ]
    for rows in (100, 10**6):
        rate, coin, _ = plan_message(terms, rows, 2.0).grids
        assert coin.points.tolist() == [0, 1]
        assert 5 <= len(rate) <= 11


def test_equal_terms_are_one_in_a_set() -> None:
    same = [LabelTerms("y", 0, 1, options={"explained": 0.5}) for _ in range(2)]
    assert len({*same, LabelTerms("y", 0, 2)}) == 2


def test_more_codes_than_a_byte_holds_keep_their_numbers() -> None:
    labels = np.arange(301)[::-1]
    made = randomize_labels(
        labels, lower=0, upper=300, epsilon=40, values=np.arange(301),
        randomizer="randomized-response",
    )  # fmt: skip
    assert made.codes.dtype == np.uint16
    assert made.channel.outputs[made.codes].tolist() == labels.tolist()


@pytest.mark.parametrize("bound", [np.int8(100), np.float16(100), np.float32(100), 100])
def test_bounds_are_numbers_of_the_widest_kind(bound: float) -> None:
    """Twice 100 is no int8, and a step of a thousandth is nothing to a float16."""
    terms = LabelTerms("y", -bound, bound, whole=True)
    assert {type(terms.lower), type(terms.upper)} <= {int, float}
    assert terms.coarse_grid(300).points.tolist() == list(range(-100, 101))
    for wrong in ("100", None, True, [1.0]):
        with pytest.raises(ConfigError, match=r"^upper=.* must be a number"):
            LabelTerms("y", 0, wrong)  # type: ignore[arg-type]
