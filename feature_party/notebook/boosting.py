"""A release's likelihood as an objective of LightGBM and of XGBoost.

Either is given the codes as labels; it adds a tree a round for each output, fitted to the first
derivatives of the codes' likelihood and its Fisher information.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from common.arrays import Floats
from common.errors import ConfigError
from feature_party.learning.derivatives import derivatives_of
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support
from feature_party.notebook.laws_by_mean import LawsByMean
from feature_party.notebook.sources import check_codes
from feature_party.notebook.torch_loss import likelihood

METRIC = "release_loss"
SCALE_PACE = 0.15
"""How much slower a scale is learned than a location: few privatized labels say much of it."""


class BoostingObjective:
    """What both libraries are given.

    ``outputs`` are the raw outputs p of a row; 0 means the released prior. ``labels`` are the (m,)
    labels that a distribution is about.
    """

    def __init__(self, problem: LabelProblem, head: str = "auto") -> None:
        self._problem, self._likelihood = problem, likelihood(problem, head)
        table = derivatives_of(self._likelihood.family, Support.of(problem))
        if table is None:
            raise ConfigError(
                f"head={head!r} has more parameters than boosting serves; use gaussian, log-normal,"
                " gamma, poisson or negative-binomial"
            )
        self._table = table
        self._paces = np.ones(table.outputs)
        if table.scale is not None:
            self._paces[table.scale] = SCALE_PACE
        self.outputs = self._likelihood.outputs
        self.labels: Floats = self._likelihood.values.double().numpy()

    def loss(self, raw: Floats, codes: NDArray[Any]) -> float:
        """Mean −ln P of (n,) codes for (n, p) raw outputs."""
        return float(self._table.loss(self._rows(raw), check_codes(codes, self._problem)).mean())

    def derivatives(self, raw: Floats, codes: NDArray[Any]) -> tuple[Floats, Floats]:
        """(n, p) gradient, and (n, p) Hessian, which is the Fisher information."""
        derivatives = self._table.derivatives(self._rows(raw), check_codes(codes, self._problem))
        return derivatives[1] * self._paces, derivatives[2]

    def start(self, points: ArrayLike, codes: NDArray[Any]) -> LawsByMean:
        """Where boosting goes on from another model, in place of raw outputs of 0.

        Takes (n,) predictions of that model, of events that it has not been fitted to, and their
        (n,) codes, which tell how wide the labels lie around the predictions. Returns a function
        from (n,) predictions to (n, p) raw outputs, for ``init_score`` or ``base_margin``.
        ``ConfigError`` for classes, of which a prediction is no number; ``DataError`` if there are
        not as many predictions as codes.
        """
        checked = check_codes(codes, self._problem)
        return LawsByMean.fitted(self._likelihood, np.asarray(points, np.float64), checked)

    def predict(self, raw: Floats) -> Floats:
        """(n,) expected labels for (n, p) raw outputs, in label units."""
        return self.distribution(raw) @ self.labels

    def distribution(self, raw: Floats) -> Floats:
        """(n, m) probabilities of :attr:`labels`."""
        with torch.no_grad():
            rows = torch.as_tensor(self._rows(raw))
            return self._likelihood.distributions(rows).numpy()

    def _rows(self, raw: Floats) -> Floats:
        return np.asarray(raw, np.float64).reshape(-1, self.outputs)


class LightGBMObjective(BoostingObjective):
    """Call ``lightgbm.train({**objective.parameters, …}, Dataset(X, codes), feval=…)``."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What LightGBM has to be told."""
        return {"objective": self.objective, "num_class": self.outputs, "metric": "None"}

    def objective(self, raw: Floats, data: Any) -> tuple[Floats, Floats]:
        """Gradient and Hessian for the rows of a ``Dataset`` whose labels are codes."""
        gradient, hessian = self.derivatives(raw, data.get_label())
        return gradient.reshape(raw.shape), hessian.reshape(raw.shape)

    def metric(self, raw: Floats, data: Any) -> tuple[str, float, bool]:
        """Mean loss, as LightGBM's ``feval`` returns it: lower is better."""
        return METRIC, self.loss(raw, data.get_label()), False


class XGBoostObjective(BoostingObjective):
    """Call ``xgboost.train({**objective.parameters, …}, DMatrix(X, codes), obj=…)``."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What XGBoost has to be told."""
        several = {"num_class": self.outputs} if self.outputs > 1 else {}
        return {"base_score": 0.0, "disable_default_eval_metric": True, **several}

    def objective(self, raw: Floats, data: Any) -> tuple[Floats, Floats]:
        """Gradient and Hessian for the rows of a ``DMatrix`` whose labels are codes."""
        return self.derivatives(raw, data.get_label())

    def metric(self, raw: Floats, data: Any) -> tuple[str, float]:
        """Mean loss, as XGBoost's ``custom_metric`` returns it."""
        return METRIC, self.loss(raw, data.get_label())
