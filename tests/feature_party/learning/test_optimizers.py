"""Steps are those of torch's optimizers, bit for bit."""

from __future__ import annotations

import pytest
import torch

from labelveil.feature_party.learning.optimizers import Optimizer


@pytest.mark.parametrize(("name", "beta2"), [("adamw", 0.99), ("adamw", 0.999), ("rmsprop", 0.99)])
def test_steps_are_torchs_own(name: str, beta2: float) -> None:
    torch.manual_seed(0)
    ours = [torch.randn(5, 4, requires_grad=True) for _ in range(3)]
    theirs = [one.detach().clone().requires_grad_() for one in ours]
    optimizer = Optimizer(name, [(ours[:2], 0.01), (ours[2:], 0.0)], 0.01, beta2)
    groups = [
        {"params": theirs[:2], "weight_decay": 0.01},
        {"params": theirs[2:], "weight_decay": 0.0},
    ]
    known: torch.optim.Optimizer = torch.optim.RMSprop(groups, lr=0.01)
    if name == "adamw":
        known = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, beta2), fused=True)
    for step in range(20):
        optimizer.learning_rate = 0.01 / (1 + step)
        for group in known.param_groups:
            group["lr"] = 0.01 / (1 + step)
        if step == 10:  # what a checkpoint keeps is all there is
            kept, optimizer = optimizer, Optimizer(name, optimizer.groups, 0.01 / (1 + step), beta2)
            optimizer.load_state_dict(kept.state_dict())
        for tensors, one in ((ours, optimizer), (theirs, known)):
            one.zero_grad()
            # one that has no gradient stays, and so does a group of such
            seen = tensors[step % 3 == 0 : 2 if step % 5 == 4 else 3]
            torch.stack([(tensor**3).sum() for tensor in seen]).sum().backward()
            one.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
