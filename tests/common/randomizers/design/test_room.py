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
    with pytest.raises(ConfigError, match="combined codes"):
        most_knots([None] * 8)


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


@pytest.mark.parametrize("epsilon", [0.2, 2.0, 12.0])
def test_a_design_of_two_knots_has_four_outputs(epsilon: float) -> None:
    words = seeded_entropy(6).words("prior", 0, 12)
    for prior in (np.ones(12), np.arange(12) == 3, words / 2.0**64):
        built = build_randomizer(
            "auto", labels=np.arange(12), prior=prior, epsilon=epsilon, points=2
        )
        assert built.channel.outputs.size <= 4
