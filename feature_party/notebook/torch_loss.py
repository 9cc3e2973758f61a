"""A release's likelihood as a loss of PyTorch."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from labelveil.common.errors import DataError
from labelveil.feature_party.learning.objectives import LikelihoodObjective, build_objective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support

SKEWED = 1.0


def likelihood(problem: LabelProblem, head: str = "auto") -> LikelihoodObjective:
    """The likelihood of codes under a law of the label.

    ``auto`` takes one whose parameters are plain numbers: the probabilities of few values, for
    skewed labels >= 0 the log-normal law, and otherwise the normal law.
    """
    support = Support.from_problem(problem)
    if head == "auto":
        head = _law(support)
    objective = build_objective("likelihood", problem, support, head)
    return cast(LikelihoodObjective, objective)


def _law(support: Support) -> str:
    if support.discrete:
        return "bernoulli" if support.size == 2 else "softmax"
    return "log-normal" if support.values[0] >= 0 and support.skewness > SKEWED else "gaussian"


class ReleaseLoss(nn.Module):
    """Mean negative log likelihood of codes, through the channel that they were sent by.

    A model must have ``outputs`` raw outputs p; all 0 means the released prior.
    """

    def __init__(self, problem: LabelProblem, head: str = "auto") -> None:
        super().__init__()
        self._objective = likelihood(problem, head)
        self.outputs = self._objective.outputs
        self._codes_of_release = problem.outputs.size

    def forward(self, raw: Tensor, codes: Tensor, weights: Tensor | None = None) -> Tensor:
        """Mean loss of (n, p) raw outputs for (n,) codes, each times its weight if there are any.

        ``DataError`` for other shapes, or what is no code: broadcast or cut to whole numbers, they
        would be learned from all the same.
        """
        self._objective.to(raw.device)
        losses = self._objective.loss(self._rows(raw), self._codes(codes, raw))
        if weights is None:
            return losses.mean()
        if weights.shape != losses.shape:
            raise DataError(
                f"weights of shape {(*weights.shape,)} must have the shape {(*losses.shape,)}"
            )
        return (losses * weights).mean()

    def predict(self, raw: Tensor) -> Tensor:
        """(n,) expected labels for (n, p) raw outputs, in label units."""
        self._objective.to(raw.device)
        return self._objective.points(self._rows(raw))

    def distribution(self, raw: Tensor) -> Tensor:
        """(n, m) probabilities of the labels :attr:`labels`."""
        self._objective.to(raw.device)
        return self._objective.distributions(self._rows(raw))

    @property
    def labels(self) -> Tensor:
        """(m,) labels that a distribution is about."""
        return self._objective.values

    def _rows(self, raw: Tensor) -> Tensor:
        if raw.ndim != 2 or raw.shape[1] != self.outputs:
            raise DataError(
                f"raw outputs of shape {(*raw.shape,)} must have the shape (n, {self.outputs}): let"
                " the network end in loss.outputs"
            )
        return raw

    def _codes(self, codes: Tensor, raw: Tensor) -> Tensor:
        codes = torch.as_tensor(codes, device=raw.device)
        if codes.is_floating_point() or codes.is_complex():
            raise DataError(
                f"codes have type {codes.dtype}, and are whole numbers: give .long() of a release's"
                " codes, never true labels"
            )
        if codes.shape != raw.shape[:1]:
            raise DataError(
                f"codes of shape {(*codes.shape,)} must have the shape {(*raw.shape[:1],)}, one"
                " for each row of raw outputs"
            )
        whole = codes.long()
        if whole.numel():
            low, high = (int(end) for end in whole.aminmax())
            if low < 0 or high >= self._codes_of_release:
                raise DataError(
                    f"code {low if low < 0 else high} must lie in 0 … {self._codes_of_release - 1},"
                    " the channel's outputs"
                )
        return whole
