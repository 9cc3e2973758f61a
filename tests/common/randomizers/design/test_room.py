"""Codes of several designs in two bytes, whatever the priors are."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.base import Randomizer, build_randomizer
from labelveil.common.randomizers.design.optimal_design import fitting, most_knots


def test_knots_are_few_enough_that_all_codes_fit_two_bytes() -> None:
    assert most_knots([None, None]) == 32
    assert most_knots([2, None]) == 32
    assert most_knots([None] * 3) == 10
    assert most_knots([None] * 4 + [2]) == 3
    assert most_knots([2] * 8) == 32
    assert most_knots([None] * 5 + [2]) == 2  # of at most four outputs a point: 2 × 8⁵ is 2¹⁶
    for outputs, named in (
        ([None] * 8, "8 × 8 × 8"),
        ([None] * 5 + [2, 2], "8 × 2 × 2 = 131,072"),
        ([300, 300], "300 × 300 = 90,000"),
    ):
        with pytest.raises(ConfigError, match=f"{named}.* combined codes"):
            most_knots(outputs)  # type: ignore[arg-type]


def respond(outputs: int) -> Randomizer:
    even = np.ones(outputs)
    return build_randomizer(
        "randomized-response", labels=np.arange(outputs), prior=even, epsilon=1.0
    )


def test_designs_of_too_many_outputs_are_built_with_fewer_knots() -> None:
    """Not refused: by then the prior's noise is drawn, and a refusal would depend on labels."""
    tried = []

    def build(points: int) -> list[Randomizer]:
        tried.append(points)
        return [respond((points - 1) * (points + 2))] * 3  # every column that there can be

    built = fitting(build, most_knots([None] * 3))
    assert [one.channel.outputs.size for one in built] == [40] * 3
    assert tried == [10, 9, 8, 7, 6]
    # 2¹⁶ codes have room; those of two parts have not, nor has what a manifest says of nine
    wide = build_randomizer(  # 1,531 outputs, of 212 facts each
        "laplace", labels=np.arange(200), prior=np.ones(200), epsilon=1.0, tails=700
    )
    for made, parts, points in (
        ([respond(256)] * 2, 1, 9), ([respond(256)] * 2, 2, 2), ([respond(256)], 9, 2),
        ([wide], 1, 9), ([wide], 2, 2),
    ):  # fmt: skip
        tried.clear()

        def same(points: int, made: list[Randomizer] = made) -> list[Randomizer]:
            tried.append(points)
            return made

        assert fitting(same, 9, parts) == made
        assert tried[-1] == points


@pytest.mark.parametrize("epsilon", [0.2, 2.0, 12.0])
def test_a_design_of_two_knots_has_four_outputs(epsilon: float) -> None:
    words = seeded_entropy(6).words("prior", 0, 12)
    for prior in (np.ones(12), np.arange(12) == 3, words / 2.0**64):
        built = build_randomizer(
            "auto", labels=np.arange(12), prior=prior, epsilon=epsilon, points=2
        )
        assert built.channel.outputs.size <= 4
