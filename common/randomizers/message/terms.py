"""What is public about a label before anything is read, and how a channel of its own sends it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from labelveil.common.arrays import Floats, is_number
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.base import Randomizer, build_randomizer
from labelveil.common.randomizers.design.optimal_design import POINTS, most_outputs
from labelveil.common.randomizers.exact_rows import MAX_WEIGHTS, size_of
from labelveil.common.randomizers.grid import Grid, whole_step

Division = Literal["auto", "split", "joint"]
"""How several labels share one ε."""
RESPONSE = "randomized-response"
FEW = 16
"""Values that randomized response is the default for, at most: with more it is seldom right."""
MOST_LABELS = 8
_NEAR_ZERO = 50.0
_DESIGNED = ("auto", "optimal-design")


@dataclass(frozen=True)
class LabelTerms:
    """What is public about one label, between its bounds, before anything is read."""

    name: str
    lower: float
    upper: float
    grid: Grid | None = None
    """Its points, where they were chosen; None to choose them from bounds, events and ε."""
    loss: str = "squared"
    """How predictions of it are judged."""
    weight: float = 1.0
    """How much that counts beside other labels, > 0."""
    values: bool = False
    """Whether the grid's points are all the labels there are, and not places on a range."""
    whole: bool = False
    """Whether labels are whole numbers, where no grid was chosen."""
    randomizer: str = "auto"
    """As its options in :func:`labelveil.common.randomizers.build_randomizer`, of a label sent
    alone."""
    options: Mapping[str, Any] = field(hash=False, default_factory=dict)
    explained: float | None = None
    """Share of its variance that features are taken to explain, where a design needs to know that
    and options do not say; None for the usual one."""

    def __post_init__(self) -> None:
        ends: dict[str, Any] = {"lower": self.lower, "upper": self.upper}
        for name, end in ends.items():
            if not is_number(end):
                raise ConfigError(f"{name}={end!r:.100} must be a number")
            if not isinstance(end, int | float):  # NumPy's, which may be of few bits
                object.__setattr__(self, name, float(end))

    def own_grid(self, rows: int, epsilon: float) -> Grid:
        """Its points if it is sent alone."""
        return self.grid or Grid.default(self.lower, self.upper, rows, epsilon, whole=self.whole)

    def coarse_grid(self, most: int) -> Grid:
        """At most n points: those of whole bounds, or finer near 0 where amounts lie."""
        step = whole_step(self.lower, self.upper, whole=self.whole)
        if step is not None and (self.upper - self.lower) / step < most:
            return Grid.from_step(self.lower, self.upper, step)
        if self.lower != 0:
            return Grid.from_count(self.lower, self.upper, most)
        points = Grid.from_log(0.0, self.upper, most, self.upper / _NEAR_ZERO).points
        return Grid(np.unique(np.round(points)) if step == 1 else points)

    def needs_prior(self, grid: Grid) -> bool:
        """Whether its channel depends on a prior.

        Two labels, or a few that are values of their own, are sent by randomized response, whose
        codes also tell their histogram: no ε is spent on one.
        """
        few = len(grid) == 2 or (self.values and len(grid) <= FEW)
        return not few or bool(self.options) or self.randomizer not in ("auto", RESPONSE)

    def build(
        self, grid: Grid, prior: Floats | None, epsilon: float, rows: int, points: int = POINTS
    ) -> Randomizer:
        """Build the channel of its own for this many events, ε being of one label.

        ``prior`` has (k,) weights of the grid's points, and is None where the channel needs none;
        ``points`` are a design's knots, at most, where the options do not say.
        """
        design: dict[str, Any] = {}
        if prior is not None and points < POINTS:
            design["points"] = points
        if prior is not None and self.explained is not None:
            design["explained"] = self.explained
        return build_randomizer(
            RESPONSE if prior is None else self.randomizer,
            labels=grid.points,
            prior=np.ones(len(grid)) if prior is None else prior,
            epsilon=epsilon,
            loss=self.loss,
            rows=rows,
            **(self.options or design),
        )

    def most_weights(self, grid: Grid, points: int) -> int:
        """Size of the channel that :meth:`build` makes, at most, whatever the prior is."""
        if not self.needs_prior(grid):
            return size_of(len(grid), len(grid))
        if self.randomizer in _DESIGNED and not self.options:
            knots = min(points, len(grid))
            return size_of(knots, most_outputs(knots))
        return MAX_WEIGHTS


def check_terms(terms: Sequence[LabelTerms]) -> None:
    """Raise ``ConfigError`` for labels that no message can carry."""
    names = [label.name for label in terms]
    if not 1 <= len(names) <= MOST_LABELS:
        raise ConfigError(f"{len(names)} labels must be 1 … {MOST_LABELS}; send several messages")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"label {name!r:.60} is there twice; name each label once")
    for label in terms:
        if label.whole and whole_step(label.lower, label.upper, whole=True) is None:
            raise ConfigError(
                f"label {label.name!r:.60} is one of whole numbers, so its bounds must be whole,"
                f" not {label.lower:g} … {label.upper:g}"
            )
        if not 0 < label.weight < math.inf:
            raise ConfigError(f"label {label.name!r:.60}: weight={label.weight:g} must be above 0")
        if len(names) > 1 and (label.randomizer != "auto" or label.options):
            raise ConfigError(
                f"label {label.name!r:.60} is one of {len(names)}, whose randomizers are chosen"
                f" together; leave {label.randomizer!r:.60} and its options out"
            )
