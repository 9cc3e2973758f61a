"""How many knots several designs may have for the codes of all of them to fit two bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from common.errors import ConfigError
from common.exact.channel import MAX_OUTPUTS
from common.randomizers.base import Randomizer
from common.randomizers.design.optimal_design import POINTS

_OUTPUTS_A_POINT = 4
"""A design for p points has 2(p − 1) thresholds, and seldom more than p other outputs."""


def most_knots(outputs: Sequence[int | None], most: int = MAX_OUTPUTS) -> int:
    """Choose how many knots designs may have for all channels' codes to fit two bytes, as a rule.

    ``outputs`` says, one a label, how many its channel has: None for those that a design decides.
    There may be ``most`` combined codes; ``ConfigError`` if not even two knots would have room.
    """
    designed = sum(size is None for size in outputs)
    room = most // math.prod(size for size in outputs if size)
    points = int(room ** (1 / designed) / _OUTPUTS_A_POINT + 1e-9) if designed else POINTS
    if points < 2 or not room:
        sizes = [size or 2 * _OUTPUTS_A_POINT for size in outputs]
        raise ConfigError(
            f"{len(outputs)} labels with channels of their own need at least"
            f" {' × '.join(map(str, sizes))} = {math.prod(sizes):,} combined codes, more than"
            f" {most:,}; send fewer of them in one message"
        )
    return min(points, POINTS)


def fitting(
    build: Callable[[int], list[Randomizer]], points: int, most: int = MAX_OUTPUTS
) -> list[Randomizer]:
    """Build randomizers whose combined codes fit two bytes, whatever the priors are.

    A design with more outputs than its knots were given room for is built anew with fewer, from
    the same priors: nothing is refused once these are paid for. It ends at two knots at the latest,
    where a design has 4 outputs and :func:`most_knots`, which says with how many ``points`` to
    begin, found room for 8. ``build`` builds the randomizers, designs with at most so many knots;
    their codes may be ``most`` combined ones.
    """
    built = build(points)
    while math.prod(randomizer.channel.outputs.size for randomizer in built) > most:
        points -= 1
        built = build(points)
    return built
