"""What a release makes public about its labels: all that noise-aware learning may use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.arrays import Floats, Indices
from common.errors import ConfigError
from common.exact.channel import FiniteChannel
from common.release.manifest import Manifest


def sums(groups: Indices, values: Floats, count: int) -> Floats:
    """(count,) sums of (n,) values by group."""
    return np.asarray(np.bincount(groups, weights=values, minlength=count), dtype=np.float64)


_PREDICTABLE = ("squared", "absolute", "poisson")


@dataclass(frozen=True)
class LabelProblem:
    """The public facts about randomized labels.

    Attributes
    ----------
    grid
        (k,) label values, ascending.
    prior
        (k,) released prior over the grid, summing to 1.
    rows
        (r, d) probabilities of the channel's distinct rows.
    row_of
        (k,) index of each grid point's row.
    outputs
        (d,) values that the codes stand for.
    loss
        ``squared``, ``absolute`` or ``poisson``: what predictions are judged by.
    """

    grid: Floats
    prior: Floats
    rows: Floats
    row_of: Indices
    outputs: Floats
    loss: str = "squared"

    @classmethod
    def from_channel(
        cls, channel: FiniteChannel, prior: ArrayLike, loss: str = "squared"
    ) -> LabelProblem:
        """Take the facts from a channel and a prior over its inputs."""
        weights = np.asarray(prior, dtype=np.float64)
        rows, inverse = np.unique(channel.row_probabilities, axis=0, return_inverse=True)
        return cls(
            grid=channel.inputs,
            prior=weights / weights.sum(),
            rows=rows,
            row_of=inverse.reshape(-1)[channel.row_of].astype(np.int64),
            outputs=channel.outputs,
            # A custom loss has no name on the wire; the mean serves most of them.
            loss=loss if loss in _PREDICTABLE else "squared",
        )

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> LabelProblem:
        """Take the facts from a verified manifest."""
        return cls.from_channel(manifest.channel, manifest.noisy_prior, manifest.randomizer.loss)

    @cached_property
    def channel(self) -> Floats:
        """(k, d) probabilities of every output for every grid point."""
        return self.rows[self.row_of]

    @cached_property
    def row_prior(self) -> Floats:
        """(r,) prior mass of each distinct row."""
        return sums(self.row_of, self.prior, self.rows.shape[0])

    @cached_property
    def output_prior(self) -> Floats:
        """(d,) marginal probability of each output under the prior."""
        return self.row_prior @ self.rows

    @property
    def mean(self) -> float:
        """Prior mean of the label."""
        return float(self.prior @ self.grid)

    @property
    def deviation(self) -> float:
        """Prior standard deviation of the label, > 0 even for a prior with one atom."""
        variance = float(self.prior @ (self.grid - self.mean) ** 2)
        return math.sqrt(max(variance, 1e-6 * float(self.grid[-1] - self.grid[0]) ** 2))

    @cached_property
    def informativeness(self) -> float:
        """Share of the label's variance that one privatized label explains, in 0 … 1.

        Var(E[y | z]) / Var(y) under the prior: n privatized labels say about as much about a mean
        as that share of n true ones.
        """
        joint = self.prior @ (self.channel * (self.grid - self.mean)[:, None])
        marginal = np.maximum(self.output_prior, 1e-300)
        explained = float(np.sum(joint**2 / marginal))
        return min(explained / self.deviation**2, 1.0)

    def check_codes(self, codes: NDArray[Any]) -> None:
        """Raise ``ConfigError`` if a code is not one of the d outputs."""
        if codes.size and int(codes.max()) >= self.outputs.size:
            raise ConfigError(f"code {int(codes.max())} is outside the {self.outputs.size} outputs")
