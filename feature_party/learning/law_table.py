"""A law's derivatives, tabulated: what boosting and Fisher scoring need of every row.

For a head of one or two parameters, a or (a, b), the probability of each code, P(z | a, b) = Σ_y
K[y, z] q(y | a, b), and its derivatives are computed once on a grid and interpolated from then on:
no loop over rows, and none over the cells of a distribution. Point masses at the ends of the label
grid, with weights w of their own, mix in exactly:

    P = (1 − Σ_e w_e) P_inner(z | a, b) + Σ_e w_e K[y_e, z]

The Hessian is the Fisher information, which is positive and does not depend on the code; that of
a mixture's component is at most w times the component's own, and that bound stands for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.learning.heads import AtomHead, Head

_AXES = ((-6.0, 6.0, 193), (-4.0, 4.0, 33))
"""Where a law is tabulated, from, to and how often: its location in standard deviations, and its
scale on a logarithm."""
_NEAR = 1e-3
_LEAST_INFORMATION = 1e-3
"""Share of the largest Fisher information that every row has: a step is never unbounded."""
_LEAST = 1e-30
_CODES = 64
"""Codes that are tabulated at once."""
ONE = np.ones(1)
MOST_CODES = 4096
"""Codes that a table is made for; it holds 6,369 places for each."""


class LawTable:
    """First derivatives and Fisher information of −ln P(z | outputs).

    ``head`` is a family of one or two parameters, with or without point masses at the ends;
    ``outputs`` is their number p: those of the point masses, a, and b. ``scale`` is b's place among
    them, None where there is none. ``likelihood`` has the (m, d) probability of each code given
    each cell of the support, ``channel_of`` which of c channels each of d codes is of, and
    ``shares`` the (c,) rows' shares of them, which the likelihood has as factors: a row has the
    information of its own channel.
    """

    of_a_label = 1.0
    """Fisher information of a true label about its location, in the law's own deviations."""

    def __init__(
        self,
        head: Head,
        likelihood: Floats,
        channel_of: Indices | None = None,
        shares: Floats = ONE,
    ) -> None:
        self.outputs = head.outputs
        place: dict[str, Any] = {"dtype": torch.float64, "device": head.device}
        cells = torch.as_tensor(likelihood, **place)
        ends, self.log_odds = cells[:0], torch.zeros(0, device=head.device)
        if isinstance(head, AtomHead):
            ends, self.log_odds = cells[[0] * head.low + [-1] * head.high], head.log_odds
            cells = cells[int(head.low) : len(cells) - int(head.high)]
            head = head.inner
        self.axes = _AXES[: head.outputs]
        self.scale = self.outputs - 1 if head.outputs == 2 else None
        along = (torch.linspace(*axis, **place) for axis in self.axes)
        places = torch.cartesian_prod(*along).view(-1, head.outputs)

        def laws(step: Tensor) -> Tensor:
            return torch.softmax(head.logits(places + step), dim=-1)

        steps = _NEAR * torch.eye(head.outputs, **place)
        still = laws(0 * steps[0])
        # differences of double precision, which single would drown; what codes make of them is kept
        # in single precision
        moved = ((laws(step) - laws(-step)) / (2 * _NEAR) for step in steps)
        # without what a law says of cells far away: a processor takes thirty times as long for
        # numbers that are next to nothing in single precision
        both = [part.where(part.abs() > _LEAST, 0.0).float() for part in (still, *moved)]
        cells_ = cells.float()
        size, count, parameters = len(places), cells.shape[1], 1 + head.outputs
        of = np.zeros(count, np.int64) if channel_of is None else channel_of
        self.channel_of = torch.as_tensor(of, device=head.device)
        information = torch.zeros((len(shares), size, head.outputs), **place)
        self.table = torch.empty((count, size, parameters), device=head.device)
        for start in range(0, count, _CODES):
            some = slice(start, start + _CODES)
            each = self.table[some]
            for at, part in enumerate(both):
                each[..., at] = cells_[:, some].T @ part.T
            told = each[..., 1:] * (each[..., 1:] / each[..., :1].clamp(min=_LEAST))
            information.index_add_(0, self.channel_of[some], told.double())
        self.table = self.table.view(-1, parameters)
        # the corners of a mesh of the grid, from its lowest one
        self.corners = torch.zeros(1, dtype=torch.int64, device=head.device)
        for _, _, points in self.axes:
            after = torch.arange(2, device=head.device)
            self.corners = (self.corners[:, None] * points + after).view(-1)
        floor = _LEAST_INFORMATION * information.sum(dim=0).amax(dim=0)
        information /= torch.as_tensor(np.maximum(shares, 1e-12), **place)[:, None, None]
        information = torch.maximum(information, floor)
        self.information = information.reshape(-1, information.shape[-1]).float()
        self.size = size
        self.ends = ends.float().T.contiguous()
        # Fisher information of a code about an end's weight, at the start
        middle = (still[size // 2] @ cells)[:, None]
        self.end_information = ((ends.T - middle) ** 2 / middle).sum(dim=0).float()

    @staticmethod
    def serves(head: Head, codes: int) -> bool:
        """Whether a head has few enough parameters, and the channel few enough codes."""
        inner = head.inner if isinstance(head, AtomHead) else head
        return inner.outputs <= len(_AXES) and codes <= MOST_CODES

    def slopes(self, outputs: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) losses −ln P of (n,) codes for (n, p) outputs, and (n, p) first derivatives."""
        return self._slopes(outputs, codes, *self._place(outputs))

    def loss(self, outputs: Floats, codes: NDArray[np.integer]) -> Floats:
        """(n,) −ln P of (n,) codes for (n, p) outputs."""
        losses = self.slopes(_single(outputs), torch.as_tensor(codes))[0]
        return losses.double().numpy()

    def derivatives(
        self, outputs: Floats, codes: NDArray[np.integer]
    ) -> tuple[Floats, Floats, Floats]:
        """(n,) losses, (n, p) first derivatives by the outputs, and (n, p) Fisher information."""
        raw = _single(outputs)
        at, share = self._place(raw)
        losses, gradient = self._slopes(raw, torch.as_tensor(codes), at, share)
        channels = self.channel_of.index_select(0, torch.as_tensor(codes.astype(np.int64)))
        information = self._between(self.information, at + self.size * channels, share)
        if self.log_odds.numel():
            weights = self._weights(raw)
            of_ends = weights**2 * self.end_information
            of_ends = torch.minimum(of_ends, weights * (1 - weights)) + 1e-4
            inner = (1 - weights.sum(dim=1, keepdim=True)) * information
            information = torch.cat([of_ends, inner], dim=1)
        return losses.double().numpy(), gradient.double().numpy(), information.double().numpy()

    def _slopes(
        self, outputs: Tensor, codes: Tensor, at: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor]:
        inner = self._between(self.table, at + self.size * codes, share)
        if not self.log_odds.numel():
            return -torch.log(inner[:, 0]), -inner[:, 1:] / inner[:, :1]
        weights, ends = self._weights(outputs), self.ends.index_select(0, codes)
        rest = 1 - weights.sum(dim=1, keepdim=True)
        whole = rest * inner[:, :1] + (weights * ends).sum(dim=1, keepdim=True)
        gradient = [weights * (1 - ends / whole), -rest * inner[:, 1:] / whole]
        return -torch.log(whole[:, 0]), torch.cat(gradient, dim=1)

    def _weights(self, outputs: Tensor) -> Tensor:
        """(n, e) weights of the point masses."""
        odds = torch.exp((outputs[:, : self.log_odds.numel()] + self.log_odds).clamp(-20, 20))
        return odds / (1 + odds.sum(dim=1, keepdim=True))

    def _place(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) lowest corners of the grid's mesh around each row's parameters, and (n, c) shares of
        all its corners."""
        raw = outputs[:, self.log_odds.numel() :]
        at, shares = torch.zeros((), dtype=torch.int64, device=raw.device), list[Tensor]()
        for values, (low, high, points) in zip(raw.unbind(1), self.axes, strict=True):
            place = ((values - low) * ((points - 1) / (high - low))).clamp(0, points - 1.001)
            below = place.long()
            above = place - below
            at = at * points + below
            parts = [1 - above, above]
            shares = [share * part for share in shares for part in parts] if shares else parts
        return at, torch.stack(shares, dim=1)

    def _between(self, table: Tensor, at: Tensor, shares: Tensor) -> Tensor:
        """(n, q) values of (places, q) between the corners of each row's mesh."""
        # one pass over the rows, where gathering, weighing and adding take four
        corners = at[:, None] + self.corners
        return embedding_bag(corners, table, per_sample_weights=shares, mode="sum")


def _single(values: Floats) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
