"""Losses: values, edge cases at 0, lookup by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.losses import (
    ABSOLUTE,
    LOSS_NAMES,
    POISSON,
    SQUARED,
    Loss,
    check_monotone,
    get_loss,
)


@given(
    name=st.sampled_from(LOSS_NAMES),
    label=st.floats(0, 1e3),
    ends=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)),
    share=st.floats(0, 1),
)
def test_losses_are_convex_in_the_prediction(
    name: str, label: float, ends: tuple[float, float], share: float
) -> None:
    loss = get_loss(name)
    left, right = (float(loss(end, label)) for end in ends)
    middle = float(loss(share * ends[0] + (1 - share) * ends[1], label))
    if math.isfinite(left) and math.isfinite(right):
        assert middle <= share * left + (1 - share) * right + 1e-6 * (1 + abs(left) + abs(right))


def test_values() -> None:
    assert SQUARED(3.0, 1.0) == 4.0
    assert ABSOLUTE(-3.0, 1.0) == 4.0
    assert POISSON(2.0, 3.0) == pytest.approx(2 - 3 * math.log(2))
    assert SQUARED.matrix(np.array([0.0, 1.0]), np.array([2.0, 3.0, 4.0])).shape == (2, 3)


def test_poisson_at_zero() -> None:
    assert POISSON(0.0, 0.0) == 0.0
    assert POISSON(2.0, 0.0) == 2.0
    assert POISSON(0.0, 1.0) == math.inf
    assert POISSON(-1.0, 0.0) == math.inf  # or a negative prediction would beat every other


def test_lookup() -> None:
    assert get_loss("squared") is SQUARED
    assert get_loss(POISSON) is POISSON
    assert get_loss(lambda p, y: p * 0 + y).name == "custom"
    with pytest.raises(ConfigError, match="'cubic' must be one of squared, absolute, poisson"):
        get_loss("cubic")


def test_a_loss_that_falls_away_is_told_where_on_either_side_of_a_label() -> None:
    grid = np.array([0.0, 1.0, 2.5, 4.0, 7.0])

    def dented(prediction: float, label: float) -> Loss:
        """|ŷ - y|, but for one pair that costs next to nothing."""
        return get_loss(
            lambda made, y: np.abs(made - y) * np.where((made == prediction) & (y == label), 0.1, 1)
        )

    for prediction, label, between in (
        (4.0, 1.0, r"2\.5 and 4"),
        (7.0, 0.0, r"4 and 7"),
        (1.0, 4.0, r"1 and 2\.5"),
        (0.0, 7.0, r"0 and 1"),
    ):
        where = rf"the loss of label {label:g} falls away from it, between .* {between};"
        with pytest.raises(ConfigError, match=where):
            check_monotone(dented(prediction, label), grid)
    for name in LOSS_NAMES:
        check_monotone(get_loss(name), grid)
    check_monotone(
        get_loss(lambda made, y: np.maximum(np.abs(made - y), 1.0)), grid
    )  # flat is fine
