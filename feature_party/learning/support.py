"""The support of a predicted distribution: the label grid, merged where it is fine.

A distribution over m cells gives grid point y in cell c the mass q_c · p_y / p(c), with p the
released prior, so that a grid of 400 points costs no more than one of 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.learning.problem import LabelProblem, sums

MAX_CELLS = 64
_PRIOR_FLOOR = 0.005
_ANYWHERE = 1e-6
"""Share of a code's mean probability that every cell gives it at least. Less leaves only a channel
next to no noise, through which a narrow law would hold codes for impossible in floating point."""
_NOTHING = 1e-9
"""Information of a channel that tells nothing."""
_ALIKE = 0.2
"""Deviations between what channels say of one label that a model of means alone bears."""
_VALUES_FLOOR = 1e-4
"""Of few values each is counted well, and the rarest often matters most."""


@dataclass(frozen=True, eq=False)
class Support:
    """Cells over the grid."""

    values: Floats  # (m,) expected label of each cell under the prior, ascending
    cell_of: Indices  # (k,) cell of each grid point
    widths: Floats  # (m,) length of the label axis that each cell stands for
    # (m,) released prior over the cells, mixed with a little width so that none is empty
    prior: Floats
    floor: Floats  # (m,) that little: what the prior has of it says nothing of labels
    within: Floats  # (k,) share of its cell's mass that each grid point carries
    likelihood: Floats  # (m, d) probability of each output given each cell
    # channel_of, shares: (d,) which of c channels each output is of, and (c,) the rows' shares of
    # them
    channel_of: Indices
    shares: Floats
    # whether the cells are values of their own, two labels or a few classes, and not a range
    discrete: bool = False

    @classmethod
    def from_problem(cls, problem: LabelProblem, cells: int = MAX_CELLS) -> Support:
        """Merge the grid into at most ``cells`` cells; points of one label lie in one."""
        values, value_of = problem.values, problem.value_of
        prior = sums(value_of, _floored(problem), values.size)
        return cls.in_cells(problem, _cells(values, prior, cells)[value_of])

    @classmethod
    def in_cells(cls, problem: LabelProblem, cell_of: Indices) -> Support:
        """Merge the grid as (k,) cells of its points say."""
        grid, prior, widths = problem.grid, _floored(problem), _widths(problem)
        count = int(cell_of.max()) + 1
        mass = sums(cell_of, prior, count)
        within = prior / mass[cell_of]
        likelihood = np.zeros((count, problem.outputs.size))
        np.add.at(likelihood, cell_of, within[:, None] * problem.channel)
        likelihood = np.maximum(likelihood, _ANYWHERE * likelihood.mean(axis=0))
        sizes = [leg.outputs.size for leg in problem.legs]
        return cls(
            values=sums(cell_of, within * grid, count),
            cell_of=cell_of,
            widths=sums(cell_of, widths, count),
            prior=mass / mass.sum(),
            floor=sums(cell_of, _floor(problem), count),
            within=within,
            likelihood=likelihood,
            channel_of=np.repeat(np.arange(len(sizes)), sizes),
            shares=np.array([leg.share for leg in problem.legs]),
            discrete=problem.discrete,
        )

    @property
    def size(self) -> int:
        return int(self.values.size)

    @property
    def released(self) -> Floats:
        """(m,) the prior as it was released, which may have empty cells."""
        return np.asarray(np.maximum(self.prior - self.floor, 0.0) / (1 - self.floor.sum()))

    def floored(self, law: Floats) -> Floats:
        """Mix a (m,) distribution with as much width as the prior."""
        return np.asarray((1 - self.floor.sum()) * law + self.floor)

    @cached_property
    def estimates(self) -> Estimates:
        """What codes say of a label's mean."""
        return Estimates.from_support(self)

    @property
    def low_atom(self) -> bool:
        """Whether the lowest cell is a point mass: far more likely than its neighbours."""
        return _is_atom(self.prior / self.widths, self.prior)

    @property
    def high_atom(self) -> bool:
        """Whether the highest cell is a point mass, as clipped labels make it."""
        return _is_atom((self.prior / self.widths)[::-1], self.prior[::-1])

    @property
    def heavy_tailed(self) -> bool:
        """Whether labels are >= 0 and skewed enough for a logarithmic axis (skewness above 2)."""
        return bool(self.values[0] >= 0 and self.skewness > 2.0)

    @property
    def skewness(self) -> float:
        """Of the labels, under the prior."""
        centred = self.values - float(self.prior @ self.values)
        variance = float(self.prior @ centred**2)
        return float(self.prior @ centred**3 / max(variance, 1e-300) ** 1.5)


@dataclass(frozen=True, eq=False)
class Estimates:
    """What a code says of its label's mean, in the prior's deviations from the prior's.

    A code z says u = (E[y | z] − E[y]) / I, with I = Var(E[y | z]) / Var(y) the information of its
    channel: at the prior that has slope 1 in the label's mean, and a variance that no unbiased
    decoding is below.
    """

    of_code: Floats  # (d,) u
    information: Floats  # (c,) I of each channel
    expected: Floats  # (m, c) E[u | y] of each cell through each channel
    overall: Floats  # (m,) the same over all rows, each counting by its channel's information
    apart: float  # how far channels' expectations of a label lie from those overall, in the mean

    @property
    def alike(self) -> bool:
        """Whether channels say something, and about the same of a label, as those of days do.

        Of questions that suit some labels each, an average over all rows stands for no label's
        mean.
        """
        return bool(self.information.min() > _NOTHING and self.apart < _ALIKE)

    @classmethod
    def from_support(cls, support: Support) -> Estimates:
        centred = support.values - support.prior @ support.values
        axis = centred / np.sqrt(support.prior @ centred**2)
        marginal = support.prior @ support.likelihood
        scores = (support.prior * axis) @ support.likelihood / marginal
        # by channel: each has its own information, and its codes are put on the axis of the labels
        through = np.eye(support.shares.size)[support.channel_of]
        information = (marginal * scores**2) @ through / (marginal @ through)
        information = np.maximum(information, _NOTHING)
        of_code = scores / information[support.channel_of]
        expected = (support.likelihood * of_code) @ through / (support.likelihood @ through)
        counting = support.shares * information / (support.shares @ information)
        overall = expected @ counting
        apart = support.prior @ (expected - overall[:, None]) ** 2 @ counting
        return cls(of_code, information, expected, overall, float(apart) ** 0.5)


def _floored(problem: LabelProblem) -> Floats:
    """(k,) prior: the histogram was clipped at 0, so an empty cell is not an impossible one."""
    floor = _floor(problem)
    return np.asarray((1 - floor.sum()) * problem.prior + floor)


def _floor(problem: LabelProblem) -> Floats:
    widths = _widths(problem)
    share = _VALUES_FLOOR if problem.discrete else _PRIOR_FLOOR
    return np.asarray(share * (0.5 * widths / widths.sum() + 0.5 / widths.size))


def _is_atom(density: Floats, mass: Floats) -> bool:
    return bool(density.size >= 8 and mass[0] > 0.02 and density[0] > 3 * density[1:4].mean())


def _widths(problem: LabelProblem) -> Floats:
    """(k,) length of the label axis that each point stands for: points of one label share it."""
    gaps = np.diff(problem.values)
    widths = np.concatenate([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
    return np.asarray((widths / np.bincount(problem.value_of))[problem.value_of])


def _cells(grid: Floats, prior: Floats, cells: int) -> Indices:
    """Cell of each grid point: even steps of a mixture of prior mass and label range."""
    if grid.size <= cells:
        return np.arange(grid.size)
    scale = max(float(prior @ (grid - grid[0])), 1e-12 * float(grid[-1] - grid[0]))
    logarithmic = np.log1p((grid - grid[0]) / scale)
    spread = 0.5 * logarithmic / logarithmic[-1] + 0.5 * (np.cumsum(prior) - prior / 2)
    spread = (spread - spread[0]) / (spread[-1] - spread[0])
    raw = np.minimum((spread * (cells - 2)).astype(np.int64) + 1, cells - 2)
    raw[0], raw[-1] = 0, cells - 1  # the ends stay alone: clipped and missing labels pile up there
    return np.unique(raw, return_inverse=True)[1].astype(np.int64)
