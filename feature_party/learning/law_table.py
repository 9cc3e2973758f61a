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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.arrays import Floats
from feature_party.learning.heads import AtomHead, Head

_AXES = (np.linspace(-6, 6, 193), np.linspace(-4, 4, 33))
"""Where a law is tabulated: its location in standard deviations, its scale on a logarithm."""
_NEAR = 1e-3
_LEAST_INFORMATION = 1e-3
"""Share of the largest Fisher information that every row has: a step is never unbounded."""
MOST_CODES = 4096
"""Codes that a table is made for; it holds 6,369 places for each."""


class LawTable:
    """First derivatives and Fisher information of −ln P(z | outputs).

    Parameters
    ----------
    head
        A family of one or two parameters, with or without point masses at the ends.
    likelihood
        (m, d) probability of each code given each cell of the support.

    Attributes
    ----------
    outputs
        Number p of the law's parameters: those of the point masses, a, and b.
    scale
        Place of b among them; None where there is none.
    """

    def __init__(self, head: Head, likelihood: Floats) -> None:
        self.outputs = head.outputs
        cells = torch.as_tensor(likelihood, dtype=torch.float64)
        self.ends, self.log_odds = np.zeros((0, likelihood.shape[1])), np.zeros(0)
        if isinstance(head, AtomHead):
            ends = [0] * head.low + [-1] * head.high
            self.ends, self.log_odds = likelihood[ends], head.log_odds.double().numpy()
            cells = cells[int(head.low) : len(cells) - int(head.high)]
            head = head.inner
        self.axes = _AXES[: head.outputs]
        self.scale = self.outputs - 1 if head.outputs == 2 else None
        places = np.stack(np.meshgrid(*self.axes, indexing="ij"), axis=-1)
        places = places.reshape(-1, head.outputs)

        def codes(step: Floats) -> Tensor:
            return torch.softmax(head.logits(torch.as_tensor(places + step)), dim=-1) @ cells

        steps = _NEAR * np.eye(head.outputs)
        slopes = [(codes(step) - codes(-step)) / (2 * _NEAR) for step in steps]
        table = torch.stack([codes(0 * steps[0]), *slopes], dim=-1)
        information = (table[..., 1:] ** 2 / table[..., :1]).sum(dim=1)
        floor = _LEAST_INFORMATION * information.amax(dim=0)
        self.information = torch.maximum(information, floor).numpy()
        self.table = table.transpose(0, 1).float().numpy().copy()  # (d, places, 1 + parameters)
        # what a code says of an end, at the start
        middle = self.table[:, len(places) // 2, 0].astype(np.float64)
        self.telling = np.sum((self.ends - middle) ** 2 / middle, axis=1)

    @staticmethod
    def serves(head: Head, codes: int) -> bool:
        """Whether a head has few enough parameters, and the channel few enough codes."""
        inner = head.inner if isinstance(head, AtomHead) else head
        return inner.outputs <= len(_AXES) and codes <= MOST_CODES

    def loss(self, outputs: Floats, codes: NDArray[np.integer]) -> Floats:
        """(n,) −ln P of (n,) codes for (n, p) outputs."""
        at, share = _place(outputs[:, self.log_odds.size :], self.axes)
        inner = sum(w * self.table[codes, place, 0] for place, w in zip(at, share, strict=True))
        weights = self._weights(outputs)
        rest = 1 - weights.sum(axis=1)
        whole = rest * inner + np.sum(weights * self.ends[:, codes].T, axis=1)
        return np.asarray(-np.log(whole))

    def derivatives(
        self, outputs: Floats, codes: NDArray[np.integer]
    ) -> tuple[Floats, Floats, Floats]:
        """(n,) losses, (n, p) first derivatives by the outputs, and (n, p) Fisher information."""
        at, share = _place(outputs[:, self.log_odds.size :], self.axes)
        pairs = list(zip(at, share[..., None], strict=True))
        inner = sum(w * self.table[codes, place] for place, w in pairs)
        information = sum(w * self.information[place] for place, w in pairs)
        weights = self._weights(outputs)
        rest = 1 - weights.sum(axis=1, keepdims=True)
        ends = self.ends[:, codes].T
        whole = rest * inner[:, :1] + np.sum(weights * ends, axis=1, keepdims=True)
        gradient = np.concatenate([weights * (1 - ends / whole), -rest * inner[:, 1:] / whole], 1)
        told = np.minimum(weights**2 * self.telling, weights * (1 - weights)) + 1e-4
        return -np.log(whole[:, 0]), gradient, np.concatenate([told, rest * information], axis=1)

    def _weights(self, outputs: Floats) -> Floats:
        """(n, e) weights of the point masses."""
        odds = np.exp(np.clip(outputs[:, : self.log_odds.size] + self.log_odds, -20, 20))
        return np.asarray(odds / (1 + odds.sum(axis=1, keepdims=True)))


def _place(raw: Floats, axes: Sequence[Floats]) -> tuple[NDArray[np.int64], Floats]:
    """(c, n) corners of the grid's mesh around each row's parameters, and their shares."""
    at, share = np.zeros((1, len(raw)), np.int64), np.ones((1, len(raw)))
    for values, axis in zip(raw.T, axes, strict=True):
        place = np.clip((values - axis[0]) / (axis[1] - axis[0]), 0, axis.size - 1.001)
        low = place.astype(np.int64)
        at = np.concatenate([at * axis.size + low, at * axis.size + low + 1])
        share = np.concatenate([share * (1 - (place - low)), share * (place - low)])
    return at, share
