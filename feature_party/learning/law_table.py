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

from collections.abc import Sequence
from typing import Any, NamedTuple

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
Reals = NDArray[np.float64] | NDArray[np.float32]
ONE = np.ones(1)
MOST_CODES = 4096
"""Codes that a table is made for; it holds 6,369 places for each."""


class _Found(NamedTuple):
    """What a table says of n rows."""

    at: Tensor  # (n,) lowest corners
    shares: Tensor  # (n, c) of the corners
    inner: Sequence[Tensor]  # (n,) probabilities of the codes, and their derivatives
    whole: Tensor  # (n,) the same with the point masses
    rest: Tensor  # (n,) weight of all but the point masses, where there are any
    weights: Sequence[Tensor] = ()  # (n,) of each point mass
    chances: Sequence[Tensor] = ()  # (n,) of the codes at each


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
        self.ends = ends.float()
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
        losses, gradient = self._slopes(self._found(outputs.unbind(1), codes))
        return losses, torch.stack(gradient, dim=1)

    def loss(self, outputs: Floats, codes: NDArray[np.integer]) -> Floats:
        """(n,) −ln P of (n,) codes for (n, p) outputs."""
        found = self._found(_columns(outputs), torch.as_tensor(codes))
        return -torch.log(found.whole).double().numpy()

    def derivatives(
        self, outputs: Floats, codes: NDArray[np.integer]
    ) -> tuple[Reals, Reals, Reals]:
        """(n,) losses, (n, p) first derivatives by the outputs, and (n, p) Fisher information, of
        single precision and an output after another."""
        places = torch.as_tensor(codes)
        found = self._found(_columns(outputs), places)
        losses, gradient = self._slopes(found)
        at = found.at
        if len(self.information) > self.size:
            at = at + self.size * self.channel_of.index_select(0, places.long())
        inner = self._between(self.information, at, found.shares).unbind(1)
        information = [found.rest * each for each in inner] if found.weights else [*inner]
        for place, weight in enumerate(found.weights):
            of_end = torch.minimum(weight**2 * self.end_information[place], weight * (1 - weight))
            information.insert(place, of_end + 1e-4)
        slopes, told = (torch.stack(each).numpy().T for each in (gradient, information))
        return losses.numpy(), slopes, told

    def _found(self, outputs: Sequence[Tensor], codes: Tensor) -> _Found:
        """What the table says for p (n,) outputs and (n,) codes.

        An output after another: vectors of all rows take a fraction of the time of rows of three.
        """
        ends = len(self.log_odds)
        at, shares = self._place(outputs[ends:])
        inner = self._between(self.table, at + self.size * codes, shares).unbind(1)
        if not ends:
            return _Found(at, shares, inner, inner[0], inner[0])
        # point masses at the ends, by their odds to all that lies between
        odds = [
            torch.exp((raw + each).clamp(-20, 20))
            for raw, each in zip(outputs[:ends], self.log_odds, strict=True)
        ]
        total = 1 + sum(odds[1:], odds[0])
        weights = [each / total for each in odds]
        chances = [each.index_select(0, codes) for each in self.ends]
        rest = 1 - sum(weights[1:], weights[0])
        of_ends = [weight * each for weight, each in zip(weights, chances, strict=True)]
        whole = rest * inner[0] + sum(of_ends[1:], of_ends[0])
        return _Found(at, shares, inner, whole, rest, weights, chances)

    def _slopes(self, found: _Found) -> tuple[Tensor, list[Tensor]]:
        """(n,) losses, and p (n,) first derivatives."""
        whole, inner = found.whole, found.inner[1:]
        if not found.weights:
            return -torch.log(whole), [-each / whole for each in inner]
        pairs = zip(found.weights, found.chances, strict=True)
        gradient = [weight * (1 - chance / whole) for weight, chance in pairs]
        return -torch.log(whole), gradient + [-found.rest * each / whole for each in inner]

    def _place(self, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(n,) lowest corners of the grid's mesh around each row's parameters, and (n, c) shares of
        all its corners."""
        at, shares = torch.zeros((), device=self.table.device), list[Tensor]()
        for values, (low, high, points) in zip(parameters, self.axes, strict=True):
            place = ((values - low) * ((points - 1) / (high - low))).clamp(0, points - 1.001)
            below = place.floor()  # single precision counts a grid's places exactly
            above = place - below
            at = at * points + below
            parts = [1 - above, above]
            shares = [share * part for share in shares for part in parts] if shares else parts
        return at.long(), torch.stack(shares, dim=1)

    def _between(self, table: Tensor, at: Tensor, shares: Tensor) -> Tensor:
        """(n, q) values of (places, q) between the corners of each row's mesh."""
        # one pass over the rows, where gathering, weighing and adding take four
        corners = at[:, None] + self.corners
        return embedding_bag(corners, table, per_sample_weights=shares, mode="sum")


def _columns(values: Floats) -> tuple[Tensor, ...]:
    """Each output of (n, p) in single precision."""
    return torch.as_tensor(values.T).float().contiguous().unbind(0)
