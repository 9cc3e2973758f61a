"""A release's likelihood as a loss of PyTorch."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from feature_party.learning.objectives import LikelihoodObjective, build_objective
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support

SKEWED = 1.0


def likelihood(problem: LabelProblem, head: str = "auto") -> LikelihoodObjective:
    """The likelihood of codes under a law of the label.

    ``auto`` takes one whose parameters are plain numbers: the probabilities of few values, for
    skewed labels >= 0 the log-normal law, and otherwise the normal law.
    """
    support = Support.of(problem)
    if head == "auto":
        head = _law(support)
    objective = build_objective("likelihood", problem, support, head)
    return cast(LikelihoodObjective, objective)


def _law(support: Support) -> str:
    if support.values_alone:
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

    def forward(self, raw: Tensor, codes: Tensor) -> Tensor:
        """Mean loss of (n, p) raw outputs for (n,) codes."""
        self._objective.to(raw.device)
        return self._objective.loss(raw, codes.long()).mean()

    def predict(self, raw: Tensor) -> Tensor:
        """(n,) expected labels for (n, p) raw outputs, in label units."""
        self._objective.to(raw.device)
        return self._objective.points(raw)

    def distribution(self, raw: Tensor) -> Tensor:
        """(n, m) probabilities of the labels :attr:`labels`."""
        self._objective.to(raw.device)
        return self._objective.distributions(raw)

    @property
    def labels(self) -> Tensor:
        """(m,) labels that a distribution is about."""
        return self._objective.values
