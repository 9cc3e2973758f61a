"""AdamW and RMSProp, by torch's own functions.

The classes of ``torch.optim`` import torch's compiler as soon as one is made, which takes two
seconds of CPU in every process that trains; the functions that they call do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop

_MOMENTS = {"adamw": ("mean", "square"), "rmsprop": ("square",)}


@dataclass
class Optimizer:
    """Moves tensors against their gradients.

    Attributes
    ----------
    name
        ``adamw`` (Loshchilov and Hutter, ICLR 2019; betas .9 and .99) or ``rmsprop`` (decay .99).
    groups
        Tensors and their weight decay: decoupled (AdamW) or L2 (RMSProp).
    learning_rate
        > 0, of the next step.
    """

    name: str
    groups: Sequence[tuple[Sequence[Tensor], float]]
    learning_rate: float
    _states: list[dict[str, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        names = _MOMENTS[self.name]
        self._states = [
            {"step": torch.zeros((), dtype=torch.float32, device=one.device)}
            | {name: torch.zeros_like(one) for name in names}
            for group, _ in self.groups
            for one in group
        ]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group, _ in self.groups:
            for one in group:
                one.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step, of those tensors that have a gradient."""
        states = iter(self._states)
        for group, decay in self.groups:
            pairs = [(one, next(states)) for one in group]
            moved = [(one, state) for one, state in pairs if one.grad is not None]
            if moved:
                self._move([one for one, _ in moved], [state for _, state in moved], decay)

    def _move(self, tensors: list[Tensor], states: list[Any], decay: float) -> None:
        gradients: Any = [one.grad for one in tensors]
        steps, square = ([state[name] for state in states] for name in ("step", "square"))
        how: Any = {"lr": self.learning_rate, "eps": 1e-8, "weight_decay": decay}
        if self.name == "rmsprop":
            how |= {"alpha": 0.99, "momentum": 0.0, "centered": False}
            rmsprop(tensors, gradients, square, [], [], steps, **how)
            return
        mean = [state["mean"] for state in states]
        how |= {"beta1": 0.9, "beta2": 0.99, "amsgrad": False, "maximize": False, "fused": True}
        adamw(tensors, gradients, mean, square, [], steps, **how)

    def state_dict(self) -> list[dict[str, Tensor]]:
        """What a checkpoint keeps."""
        return self._states

    def load_state_dict(self, states: list[dict[str, Tensor]]) -> None:
        """Go on from what a checkpoint kept."""
        for own, kept in zip(self._states, states, strict=True):
            for name, value in kept.items():
                own[name].copy_(value)
