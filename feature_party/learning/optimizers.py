"""AdamW and RMSProp, by torch's own functions.

The classes of ``torch.optim`` import torch's compiler as soon as one is made, which takes two
seconds of CPU in every process that trains; the functions that they call do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop

_MOMENTS = {"adamw": ("mean", "square"), "rmsprop": ("square",)}


class Optimizer:
    """Moves tensors against their gradients; the learning rate may be set between steps.

    It is ``adamw`` (Loshchilov and Hutter, ICLR 2019; betas .9 and ``beta2``) or ``rmsprop`` (decay
    .99); each group of tensors has its weight decay, decoupled (AdamW) or L2 (RMSProp).
    """

    def __init__(
        self,
        name: str,
        groups: Sequence[tuple[Sequence[Tensor], float]],
        learning_rate: float,
        beta2: float = 0.99,
    ) -> None:
        self.name, self.groups, self.learning_rate = name, groups, learning_rate
        self.beta2 = beta2
        self._tensors = [tensor for group, _ in groups for tensor in group]
        self._states = [
            {"step": torch.zeros((), dtype=torch.float32, device=tensor.device)}
            | {moment: torch.zeros_like(tensor) for moment in _MOMENTS[name]}
            for tensor in self._tensors
        ]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for tensor in self._tensors:
            tensor.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step, of those tensors that have a gradient."""
        following = iter(self._states)
        for group, decay in self.groups:
            pairs = [(tensor, next(following)) for tensor in group]
            pairs = [(tensor, state) for tensor, state in pairs if tensor.grad is not None]
            if not pairs:
                continue
            tensors: Any = [tensor for tensor, _ in pairs]
            gradients: Any = [tensor.grad for tensor in tensors]
            state: Any = {name: [each[name] for _, each in pairs] for name in self._states[0]}
            given: Any = {"lr": self.learning_rate, "eps": 1e-8, "weight_decay": decay}
            if self.name == "rmsprop":
                given |= {"alpha": 0.99, "momentum": 0.0, "centered": False}
                rmsprop(tensors, gradients, state["square"], [], [], state["step"], **given)
            else:
                given |= {"beta1": 0.9, "beta2": self.beta2, "amsgrad": False, "maximize": False}
                moments = state["mean"], state["square"]
                adamw(tensors, gradients, *moments, [], state["step"], fused=True, **given)

    def state_dict(self) -> list[dict[str, Tensor]]:
        """What a checkpoint keeps."""
        return self._states

    def load_state_dict(self, states: list[dict[str, Tensor]]) -> None:
        """Go on from what a checkpoint kept."""
        for own, kept in zip(self._states, states, strict=True):
            for name, value in kept.items():
                own[name].copy_(value)
