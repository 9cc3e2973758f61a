"""A release's likelihood as an objective of LightGBM, XGBoost and CatBoost.

Each is given the codes as labels; it adds a tree a round for each output, fitted to the first
derivatives of the codes' likelihood and its Fisher information. None of them applies the weights of
rows to an objective of one's own, so that it is done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Floats, finite
from labelveil.common.errors import ConfigError, DataError
from labelveil.feature_party.learning.derivatives import derivatives_of, row_blocks
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.notebook.laws_by_mean import LawsByMean
from labelveil.feature_party.notebook.sources import check_codes
from labelveil.feature_party.notebook.torch_loss import likelihood

METRIC = "release_loss"
SCALE_PACE = 0.15
"""How much slower a scale is learned than a location: few privatized labels say much of it."""


class BoostingObjective:
    """What all libraries are given.

    ``outputs`` are the raw outputs p of a row; 0 means the released prior. ``labels`` are the (m,)
    labels that a distribution is about.
    """

    def __init__(self, problem: LabelProblem, head: str = "auto") -> None:
        self._problem, self._likelihood = problem, likelihood(problem, head)
        made = derivatives_of(self._likelihood)
        if made is None:
            raise ConfigError(
                f"head={head!r} has more parameters than boosting serves; use gaussian, log-normal,"
                " gamma, poisson or negative-binomial"
            )
        table = self._table = made()
        self._paces = np.ones(table.outputs)
        if table.scale is not None:
            self._paces[table.scale] = SCALE_PACE
        self.outputs = self._likelihood.outputs
        self.labels: Floats = self._likelihood.values.double().numpy()

    def loss(self, raw: Floats, codes: NDArray[Any], weights: Floats | None = None) -> float:
        """Mean −ln P of (n,) codes for (n, p) raw outputs; of rows with (n,) ``weights`` theirs."""
        outputs, codes = self._rows_and_codes(raw, codes)
        losses = np.empty(codes.size)
        for rows in row_blocks(codes.size):
            losses[rows] = self._table.loss(outputs[rows], codes[rows])
        return float(np.average(losses, weights=self._weights(weights, losses.size)))

    def derivatives(
        self, raw: Floats, codes: NDArray[Any], weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """(n, p) gradient, and (n, p) Hessian, which is the Fisher information, by weight.

        ``DataError`` if these are not as many as raw outputs, or cannot be.
        """
        outputs, codes = self._rows_and_codes(raw, codes)
        gradient, hessian = np.empty((2, *outputs.shape))
        for rows in row_blocks(codes.size):
            _, slopes, hessian[rows] = self._table.derivatives(outputs[rows], codes[rows])
            gradient[rows] = slopes * self._paces
        if (each := self._weights(weights, len(gradient))) is not None:
            gradient, hessian = gradient * each[:, None], hessian * each[:, None]
        return gradient, hessian

    def start(self, points: ArrayLike, codes: NDArray[Any]) -> LawsByMean:
        """Where boosting goes on from another model, in place of raw outputs of 0.

        Takes (n,) predictions of that model, of events that it has not been fitted to, and their
        (n,) codes, which tell how wide the labels lie around the predictions. Returns a function
        from (n,) predictions to (n, p) raw outputs, for ``init_score`` or ``base_margin``.
        ``ConfigError`` for classes, of which a prediction is no number; ``DataError`` if there are
        not as many predictions as codes.
        """
        checked = check_codes(codes, self._problem)
        return LawsByMean.fitted(self._likelihood, finite(points, "predictions"), checked)

    def predict(self, raw: Floats) -> Floats:
        """(n,) expected labels for (n, p) raw outputs, in label units."""
        return self.distribution(raw) @ self.labels

    def distribution(self, raw: Floats) -> Floats:
        """(n, m) probabilities of :attr:`labels`."""
        with torch.no_grad():
            rows = torch.as_tensor(self._rows(raw))
            return self._likelihood.distributions(rows).numpy()

    def __deepcopy__(self, memo: Any) -> Self:
        """Itself, for nothing in it changes: estimators with a copy could not be cloned."""
        return self

    def _rows(self, raw: Floats) -> Floats:
        """(n, p) raw outputs; more or fewer would be those of other rows."""
        rows = np.asarray(raw, np.float64)
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.shape[1] != self.outputs:
            raise DataError(
                f"raw outputs of shape {np.shape(raw)} must have {self.outputs} a row; give the"
                " library this objective's .parameters, and ask it for raw predictions"
            )
        return rows

    def _rows_and_codes(self, raw: Floats, codes: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
        rows, checked = self._rows(raw), check_codes(codes, self._problem)
        if len(rows) != checked.size:
            raise DataError(f"{len(rows):,} raw outputs must be of as many codes as {checked.size}")
        return rows, checked

    @staticmethod
    def _weights(weights: ArrayLike | None, rows: int) -> Floats | None:
        """(n,) weights; None if there are none, of which XGBoost makes an empty array."""
        if weights is None or not np.size(weights):
            return None
        each = finite(weights, "weights")
        if each.size != rows or each.min() < 0:
            raise DataError(f"{each.size:,} weights must be {rows:,} numbers >= 0, one a row")
        return each


def _arguments(first: Any, second: Any, weights: Any) -> tuple[Floats, NDArray[Any], Any]:
    """Raw outputs, codes and weights, whoever calls.

    LightGBM and XGBoost themselves give raw outputs and a data set; their scikit-learn estimators
    give codes, raw outputs and, if there are any, weights.
    """
    if hasattr(second, "get_label"):
        return first, second.get_label(), second.get_weight()
    return second, first, weights


class LightGBMObjective(BoostingObjective):
    """Call ``lightgbm.train({**objective.parameters, …}, Dataset(X, codes), feval=…)``.

    Or ``LGBMRegressor(**objective.parameters, …).fit(X, codes, eval_metric=…)``.
    """

    @property
    def parameters(self) -> dict[str, Any]:
        """What LightGBM has to be told."""
        return {"objective": self.objective, "num_class": self.outputs, "metric": "None"}

    def objective(
        self, raw: Any, data: Any, sample_weight: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Gradient and Hessian for raw outputs and a ``Dataset`` whose labels are codes.

        As scikit-learn's estimators call it: for codes, raw outputs and weights.
        """
        raw, codes, weights = _arguments(raw, data, sample_weight)
        gradient, hessian = self.derivatives(raw, codes, weights)
        return gradient.reshape(raw.shape), hessian.reshape(raw.shape)

    def metric(
        self, raw: Any, data: Any, sample_weight: Floats | None = None
    ) -> tuple[str, float, bool]:
        """Mean loss, as LightGBM's ``feval`` or ``eval_metric`` returns it: lower is better."""
        return METRIC, self.loss(*_arguments(raw, data, sample_weight)), False


class XGBoostObjective(BoostingObjective):
    """Call ``xgboost.train({**objective.parameters, …}, DMatrix(X, codes), obj=…)``.

    Or ``XGBRegressor(objective=objective.objective, eval_metric=…, **objective.parameters)``.
    """

    @property
    def parameters(self) -> dict[str, Any]:
        """What XGBoost has to be told."""
        several = {"num_class": self.outputs} if self.outputs > 1 else {}
        return {"base_score": 0.0, "disable_default_eval_metric": True, **several}

    def objective(
        self, raw: Any, data: Any, sample_weight: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Gradient and Hessian for raw outputs and a ``DMatrix`` whose labels are codes.

        As scikit-learn's estimators call it: for codes, raw outputs and weights.
        """
        return self.derivatives(*_arguments(raw, data, sample_weight))

    def metric(self, raw: Any, data: Any, sample_weight: Floats | None = None) -> Any:
        """Mean loss: name and number as ``custom_metric`` returns them, the number alone as
        ``eval_metric`` of scikit-learn's estimators does."""
        loss = self.loss(*_arguments(raw, data, sample_weight))
        return (METRIC, loss) if hasattr(data, "get_label") else loss


class CatBoostObjective(BoostingObjective):
    """Call ``CatBoostRegressor(**objective.parameters, …).fit(X, codes)``.

    ``ConfigError`` for a law of several outputs, of which CatBoost asks for one row at a time.
    """

    def __init__(self, problem: LabelProblem, head: str = "auto") -> None:
        super().__init__(problem, head)
        if self.outputs > 1:
            raise ConfigError(
                f"head={head!r} has {self.outputs} outputs here, and CatBoost learns one; use"
                " poisson or mean, or lv.decoded_labels with its weights"
            )

    @property
    def parameters(self) -> dict[str, Any]:
        """What CatBoost has to be told."""
        return {"loss_function": self, "eval_metric": self, "boost_from_average": False}

    def calc_ders_range(
        self, approxes: Floats, targets: Floats, weights: Floats | None
    ) -> list[tuple[float, float]]:
        """First and second derivatives of ln P by the one output, for rows and their codes."""
        derivatives = self.derivatives(np.asarray(approxes), np.asarray(targets), weights)
        gradient, hessian = (-each[:, 0] for each in derivatives)
        return list(zip(gradient.tolist(), hessian.tolist(), strict=True))

    def evaluate(
        self, approxes: Sequence[Floats], targets: Floats, weights: Floats | None
    ) -> tuple[float, float]:
        """Sum of the losses by weight, and sum of the weights."""
        losses = self._table.loss(*self._rows_and_codes(np.asarray(approxes[0]), targets))
        each = self._weights(weights, losses.size)  # which may all be 0 in a part of the rows
        counts = np.ones(losses.size) if each is None else each
        return float(counts @ losses), float(counts.sum())

    def get_final_error(self, error: float, weight: float) -> float:
        """Mean loss of what :meth:`evaluate` summed up."""
        return error / weight

    def is_max_optimal(self) -> bool:
        """Lower is better."""
        return False
