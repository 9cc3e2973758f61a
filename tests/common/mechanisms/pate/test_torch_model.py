"""A network as teacher or student: it learns, and follows from its parameters alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.pate.teachers import TorchModel

X = seeded_entropy(1).words("x", 0, 400).reshape(200, 2) / 2.0**63 - 1
CLASSES = 2 * (X[:, 0] > 0) + (X[:, 1] > 0)
SIDES = X > 0


def made(**changed: Any) -> TorchModel:
    given: dict[str, Any] = {"outputs": 4, "epochs": 60, "learning_rate": 0.3, "seed": 1}
    return TorchModel(torch.nn.Linear, **(given | changed))


def weights(model: TorchModel) -> list[float]:
    return [one for part in model.module.parameters() for one in part.detach().ravel().tolist()]


@pytest.mark.parametrize(("multi", "truth"), [(False, CLASSES), (True, SIDES)])
def test_it_learns_classes_or_several_labels(multi: bool, truth: Any) -> None:
    model = made(**({"multi_label": True} if multi else {})).fit(X, truth)
    assert model.width == (2 if multi else 4)
    found = model.predict(X)
    assert found.shape == truth.shape
    assert found.dtype == (np.bool_ if multi else np.int64)
    assert np.mean(found == truth) > 0.9


def test_it_follows_from_its_parameters_and_touches_no_state() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3).tolist()
    torch.manual_seed(7)
    first = weights(made(epochs=3).fit(X, CLASSES))
    assert torch.rand(3).tolist() == expected
    again = made(epochs=3)
    for _ in range(2):  # from fresh weights
        assert weights(again.fit(X, CLASSES)) == first
    for changed in ({"seed": 2}, {"epochs": 4}, {"learning_rate": 0.2}):
        assert weights(made(**{"epochs": 3} | changed).fit(X, CLASSES)) != first
