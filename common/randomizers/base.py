"""The randomizer every builder returns, and the table of builders by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Floats, Indices, finite, is_number
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.exact.channel import Codes, FiniteChannel
from labelveil.common.guarantees import PureDP
from labelveil.common.guarantees.limits import digits
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.losses import Loss, LossFunction, get_loss

MAX_EPSILON = 40.0

LABEL_STREAM = "labels"
ROUNDING_STREAM = "rounding"

_MAX_CELLS = 1 << 22


@dataclass(frozen=True, eq=False)
class Problem:
    """What a builder is given."""

    labels: Floats  # (k,) the label grid, strictly ascending
    prior: Floats  # (k,) >= 0, summing to 1; never computed from raw labels without noise
    epsilon: float  # for one label, 0 < epsilon <= 40
    loss: Loss  # by which outputs are judged
    rows: int | None = None  # labels that will be randomized, where that is known and matters


def expected_loss(
    prior: Floats, loss: Loss, labels: Floats, outputs: Floats, rows: Floats, row_of: Indices
) -> float:
    """E ℓ(output, label) where (k,) labels follow the prior and outputs their (r, d) ``rows``."""
    possible = np.flatnonzero(prior > 0)  # an impossible label may have an infinite loss
    step = max(_MAX_CELLS // outputs.size, 1)
    parts = []
    for part in np.split(possible, range(step, possible.size, step)):
        losses = loss.matrix(outputs, labels[part])
        parts.append(np.sum(prior[part, None] * rows[row_of[part]] * losses.T))
    return math.fsum(parts)


@dataclass(frozen=True, eq=False)
class Randomizer:
    """A label randomizer: samples, states its guarantee, shows its matrix."""

    name: str
    """The name it was built by."""
    channel: FiniteChannel
    """The exact finite channel from grid labels to outputs."""
    prior: Floats = field(repr=False)
    """What it was built for, as is the loss."""
    loss: Loss
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Public facts about how it was built (bins, thresholds, …), as JSON values."""

    @property
    def guarantee(self) -> PureDP:
        """ε-DP for one replaced label, derived from the channel's integers."""
        return PureDP.of_channel(self.channel)

    @property
    def expected_loss(self) -> float:
        """E ℓ(output, label) under the prior: the published objective (label error)."""
        c = self.channel
        return expected_loss(
            self.prior, self.loss, c.inputs, c.outputs, c.row_probabilities, c.row_of
        )

    def randomize(self, values: ArrayLike, entropy: Entropy, start_row: int = 0) -> Codes:
        """Randomize (n,) labels, any finite numbers: (n,) uint16 indices into ``channel.outputs``.

        They are clipped to the grid's range, and those between its points rounded at random without
        bias first. ``start_row`` is the index of the first value in the whole data set: row i's
        noise depends on i alone. For anything that leaves, ``entropy`` is
        :func:`labelveil.common.entropy.system_entropy`.

        Raises
        ------
        DataError
            If some labels are missing.
        """
        array = finite(values, "labels")
        rounding = entropy.coins(ROUNDING_STREAM, start_row, array.size)
        indices = Grid(self.channel.inputs).round(array, rounding)
        return self.randomize_indices(indices, entropy, start_row)

    def randomize_indices(
        self, indices: NDArray[np.integer], entropy: Entropy, start_row: int = 0
    ) -> Codes:
        """As :meth:`randomize`, for labels already given as (n,) indices into the grid."""
        return self.channel.sample(indices, entropy.words(LABEL_STREAM, start_row, indices.size))


Builder = Callable[..., Randomizer]
_BUILDERS: dict[str, Builder] = {}
_DETAILS: dict[str, Mapping[str, Any]] = {}


def register(name: str, **details: Any) -> Callable[[Builder], Builder]:
    """Decorator: make ``builder(problem, **options) -> Randomizer`` available under a name.

    ``details`` are the types of what its randomizers say about themselves.
    """

    def add(builder: Builder) -> Builder:
        _BUILDERS[name] = builder
        _DETAILS[name] = details
        return builder

    return add


def register_joint(name: str, **details: Any) -> None:
    """Let randomizers for several labels, which are not built by name, say this of themselves."""
    _DETAILS[name] = details


def option_types(name: str) -> dict[str, Any]:
    """The types of a builder's options, from its signature."""
    if name in _DETAILS and name not in _BUILDERS:
        return {}
    _, *options = inspect.signature(_builder(name), eval_str=True).parameters.values()
    return {option.name: option.annotation for option in options}


def detail_types(name: str) -> Mapping[str, Any]:
    """The types of what a builder's randomizers say about themselves."""
    if name not in _DETAILS:
        _builder(name)
    return _DETAILS[name]


def _builder(name: str) -> Builder:
    if name not in _BUILDERS:
        raise ConfigError(
            f"randomizer={name!r:.60} is unknown; choose one of {', '.join(randomizer_names())}"
        )
    return _BUILDERS[name]


def randomizer_names() -> tuple[str, ...]:
    """Names that :func:`build_randomizer` knows."""
    return tuple(sorted(_BUILDERS))


def build_randomizer(
    name: str,
    *,
    labels: ArrayLike,
    prior: ArrayLike,
    epsilon: float,
    loss: str | Loss | LossFunction = "squared",
    rows: int | None = None,
    **options: Any,
) -> Randomizer:
    """Build a label randomizer by name.

    Parameters
    ----------
    name
        One of :func:`randomizer_names`.
    labels
        (k,) grid, strictly ascending.
    prior
        (k,) weights >= 0 over the grid, from public or privatized information only; normalised.
    epsilon
        Privacy parameter for each label, 0 < epsilon <= 40.
    loss
        ``squared``, ``absolute``, ``poisson``, or a callable ℓ(ŷ, y) convex in ŷ.
    rows
        Number of labels to be randomized; ``auto`` uses it.
    **options
        Passed on to the builder.

    Raises
    ------
    ConfigError
        For an unknown name or loss, or an unusable grid or prior.
    PrivacyError
        For an impossible ε.
    """
    builder = _builder(name)
    return builder(checked_problem(labels, prior, epsilon, loss, rows), **options)


def checked_problem(
    labels: ArrayLike,
    prior: ArrayLike,
    epsilon: float,
    loss: str | Loss | LossFunction,
    rows: int | None = None,
) -> Problem:
    """Say what a builder is given; parameters and errors are those of :func:`build_randomizer`."""
    check_epsilon(epsilon)
    grid = Grid(np.asarray(labels, dtype=np.float64)).points
    problem = Problem(grid, check_prior(prior, grid.size), float(epsilon), get_loss(loss), rows)
    if problem.loss.name == "poisson" and grid[0] < 0:
        raise ConfigError(f"loss='poisson' needs labels >= 0, but the grid starts at {grid[0]:g}")
    return problem


def check_epsilon(epsilon: float | Fraction, name: str = "epsilon") -> None:
    """Raise ``PrivacyError`` unless 0 < ε <= 40."""
    if not is_number(epsilon):
        raise PrivacyError(f"{name}={epsilon!r:.100} must be a number, such as 1.0")
    if not 0 < epsilon <= MAX_EPSILON:  # nor NaN
        raise PrivacyError(
            f"{name}={digits(epsilon)} must be a number above 0 and at most {MAX_EPSILON:g};"
            " useful values lie between 0.1 and 8"
        )


def check_prior(prior: ArrayLike, size: int) -> Floats:
    """Return a prior as (size,) probabilities, or raise ``ConfigError``."""
    weights = np.asarray(prior, dtype=np.float64)
    if weights.shape != (size,):
        raise ConfigError(
            f"a prior of shape {weights.shape} must give {size} labels one weight each"
        )
    if not np.all(np.isfinite(weights)) or weights.min() < 0 or weights.sum() <= 0:
        raise ConfigError("prior weights must be finite, >= 0 and not all zero")
    return np.asarray(weights / weights.sum())
