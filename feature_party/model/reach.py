"""How far above boosted trees a mixture's means may reach.

A channel tells labels apart up to some size and hardly above it: the law's tail alone says how far
the means of a few events with extreme features lie beyond, and no code contradicts it. Networks and
linear models go on rising there. Trees that learn means do not: they say of such events what codes
of the most extreme ones say together, drawn towards the prior's mean. By how much shows where many
events are: there the mixture is b >= 1 times as far above the prior's mean as trees. A mean is
believed up to 3 b times as far above it as theirs, and half a deviation. Of what is beyond, the
smaller a share is taken off the more events are predicted as high: those that K true labels' worth
of codes are about keep half. Where b is above 3, trees know too little to limit anything.

Source: James and Stein, *Estimation with Quadratic Loss*, 1961, for the shrinkage of what few rows
bear; the bound is our own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelveil.common.arrays import Floats
from labelveil.feature_party.learning.support import Support

_BELIEVED, _DEVIATIONS = 3.0, 0.5
_WORTH = 10.0
"""K; with the others, measured: docs/appendix/comparison.md."""
_MANY = (0.8, 0.98)
"""Quantiles of the mixture's means between which it is compared with trees."""
_FLATTEST = 3.0


class Reach(nn.Module):
    """Takes (n, m) distributions to such, of which none has too high a mean.

    ``times`` as far above the prior's mean as trees say is believed. At the (t,) ascending means
    ``levels`` the (t,) ``shares`` of what is too much are taken off.
    """

    values: Tensor
    prior: Tensor
    levels: Tensor
    shares: Tensor

    def __init__(self, support: Support, times: float, levels: Floats, shares: Floats) -> None:
        super().__init__()
        self.times = times
        self.mean = float(support.prior @ support.values)
        deviation = float(support.prior @ (support.values - self.mean) ** 2) ** 0.5
        self.slack = _DEVIATIONS * deviation
        state = {"values": support.values, "prior": support.prior}
        for name, value in {**state, "levels": levels, "shares": shares}.items():
            self.register_buffer(name, torch.as_tensor(value))

    @classmethod
    def from_means(
        cls, support: Support, means: Floats, of_trees: Floats, effective_labels: float
    ) -> Reach | None:
        """From (v,) means that the mixture and trees predict for rows that they had not seen, and
        how many true labels the codes of all rows are worth; None if none is too high, or trees
        know too little."""
        low, high = np.quantile(means, _MANY)
        many = (means >= low) & (means <= high)
        prior = float(support.prior @ support.values)
        ours, theirs = (float(np.maximum(of[many] - prior, 0).sum()) for of in (means, of_trees))
        if ours > _FLATTEST * theirs or not theirs:
            return None
        # means that all, a half, a quarter … of the rows lie above, and what these are worth
        above = 0.5 ** np.arange(int(np.log2(means.size)) + 1)
        levels, first = np.unique(np.quantile(means, 1 - above), return_index=True)
        shares = np.asarray(_WORTH / (_WORTH + effective_labels * above[first]), np.float64)
        reach = cls(support, _BELIEVED * max(ours / theirs, 1.0), levels, shares)
        found = reach.excess(torch.as_tensor(means), torch.as_tensor(of_trees))
        return reach if bool(found.any()) else None

    def to_json(self) -> dict[str, Any]:
        """JSON values from which :meth:`from_json` builds the same."""
        levels, shares = self.levels.tolist(), self.shares.tolist()
        return {"times": self.times, "levels": levels, "shares": shares}

    @classmethod
    def from_json(cls, support: Support, data: dict[str, Any]) -> Reach:
        """``ValueError`` if levels do not ascend, or shares or times are none."""
        times = float(data["times"])
        levels, shares = (np.array(data[name], np.float64) for name in ("levels", "shares"))
        ascending = levels.size > 0 and np.isfinite(levels).all() and (np.diff(levels) > 0).all()
        if levels.shape != shares.shape or not ascending:
            raise ValueError(f"{levels.size} levels do not ascend, with {shares.size} shares")
        if not ((shares >= 0) & (shares <= 1)).all():
            raise ValueError(f"shares up to {shares.max():g}")
        if not 1 <= times < np.inf:
            raise ValueError(f"a mean {times:g} times as far as trees say")
        return cls(support, times, levels, shares)

    def excess(self, means: Tensor, of_trees: Tensor) -> Tensor:
        """(n,) what is taken off (n,) means."""
        believed = self.mean + self.times * torch.relu(of_trees - self.mean) + self.slack
        return torch.relu(means - believed) * self._taken(means)

    def forward(self, distributions: Tensor, of_trees: Tensor) -> Tensor:
        """Limit (n, m) distributions of the mixture by (n, m) distributions of the trees."""
        means = distributions @ self.values
        excess = self.excess(means, of_trees @ self.values)
        # with so much of the prior a distribution has just the mean that is left
        share = (excess / torch.clamp(means - self.mean, min=1e-30))[:, None]
        limited: Tensor = (1 - share) * distributions + share * self.prior
        return limited

    def _taken(self, means: Tensor) -> Tensor:
        """The share of what is too much at (n,) means: linear between levels, else as at the
        nearest."""
        widths, rises = torch.diff(self.levels), torch.diff(self.shares)
        passed = torch.clamp(means[:, None] - self.levels[:-1], min=0.0)
        return self.shares[0] + torch.minimum(passed, widths) @ (rises / widths)
