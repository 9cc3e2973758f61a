"""A torch module as a teacher or student: classes by cross-entropy, label sets by logistic loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class TorchModel:
    """Gives a torch module scikit-learn's ``fit`` and ``predict``.

    ``build`` makes a fresh module from numbers of features and of outputs: of classes, or with
    ``multi_label`` of labels, which are (n, outputs) indicators then. Training is full-batch Adam.
    """

    def __init__(
        self,
        build: Callable[[int, int], Any],
        outputs: int,
        *,
        multi_label: bool = False,
        epochs: int = 100,
        learning_rate: float = 1e-2,
        seed: int = 0,
    ) -> None:
        self.build, self.outputs, self.multi_label = build, outputs, multi_label
        self.epochs, self.learning_rate, self.seed = epochs, learning_rate, seed
        self.module: Any = None

    def fit(self, features: Any, labels: Any) -> TorchModel:
        """Train from fresh weights."""
        import torch

        x = torch.as_tensor(np.asarray(features), dtype=torch.float32)
        self.width = self.outputs if not self.multi_label else np.asarray(labels).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.module = self.build(x.shape[1], self.width)
        loss: Any
        if self.multi_label:
            y = torch.as_tensor(np.asarray(labels), dtype=torch.float32)
            loss = torch.nn.BCEWithLogitsLoss()
        else:
            y = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
            loss = torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(self.module.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            optimizer.zero_grad()
            loss(self.module(x), y).backward()
            optimizer.step()
        return self

    def predict(self, features: Any) -> Any:
        """Return the most likely class, or every label with a positive logit."""
        import torch

        with torch.no_grad():
            scores = self.module(torch.as_tensor(np.asarray(features), dtype=torch.float32))
        logits = scores.numpy()
        return logits > 0 if self.multi_label else logits.argmax(axis=1)
