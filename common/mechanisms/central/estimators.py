"""Private linear models as scikit-learn estimators (needs ``labelveil[central]``).

Each fit is one release for replacing one record, by
:class:`~labelveil.common.mechanisms.central.perturbation.Perturbation`; ``guarantee_`` says which.
The number of records, of features, and the set of classes are public. Hyperparameters must not have
been chosen by looking at the private data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from labelveil.common.arrays import Floats, with_nan
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.mechanisms.central.perturbation import Perturbation
from labelveil.common.mechanisms.central.risk import Huber, HuberHinge, Logistic, Loss, ridge_loss
from labelveil.common.mechanisms.clipping import LabelScaling, scaled_rows


def fresh_entropy(entropy: Entropy | None) -> Entropy:
    """Return fresh entropy for one fit; refuses a secret key that two fits might share.

    Two fits under one key draw the same noise, and the difference of their results has none.
    """
    if entropy is None:
        return system_entropy()
    if entropy.secure:
        raise PrivacyError(
            "entropy must be None, so that every fit draws fresh noise; only a seeded_entropy, for"
            " tests, may be given"
        )
    return entropy


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """What all estimators share; after a fit they have ``guarantee_``."""

    _: KW_ONLY
    # public lower and upper bounds of the features, numbers or arrays; None takes them as they are
    bounds: tuple[Any, Any] | None = None
    norm_bound: float | None = None  # public bound of a row's norm: see scaled_rows
    fit_intercept: bool = True  # adds a constant feature, which is regularised like the others
    # None draws fresh noise in every fit; a seeded_entropy repeats it, for tests: not private
    entropy: Entropy | None = None

    def _rows(self, features: Floats) -> Floats:
        return scaled_rows(features, self.bounds, self.norm_bound, intercept=self.fit_intercept)

    def _new_rows(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return self._rows(validate_data(self, with_nan(X), dtype=np.float64, reset=False))


@dataclass(eq=False, repr=False)
class _PrivateLinearModel(PrivateEstimator):
    """What all linear models share; after a fit they have ``coef_``."""

    epsilon: float = 1.0  # ε > 0 of one fit
    _: KW_ONLY
    delta: float = 0.0  # δ of one fit: 0, or above 0 for Gaussian noise
    # or "output", "function" (noisy coefficients), or "input" (local DP: noise on every record)
    perturbation: str = "objective"
    alpha: float = 0.01  # λ > 0, the L2 regularization of the mean loss, for rows of norm <= 1

    @property
    @abstractmethod
    def _loss(self) -> Loss: ...

    def _learn(self, features: Floats, labels: Floats) -> None:
        entropy = fresh_entropy(self.entropy)
        mechanism = Perturbation(
            self.perturbation, self._loss, self.alpha, self.epsilon, self.delta
        )
        self.coef_ = mechanism.draw(self._rows(features), labels, entropy)
        self.guarantee_ = mechanism.guarantee

    def _outputs(self, X: ArrayLike) -> Floats:
        return np.asarray(self._new_rows(X) @ self.coef_)


class _PrivateClassifier(ClassifierMixin, _PrivateLinearModel):  # type: ignore[misc]
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from records: (n, d) features and (n,) labels of two classes."""
        features, labels = validate_data(self, with_nan(X), with_nan(y), dtype=np.float64)
        check_classification_targets(labels)
        kind = type_of_target(labels, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(
                "Only binary classification is supported. The type of the target is"
                f" {kind}: fit one model for each class and divide epsilon among them."
            )
        self.classes_ = np.unique(labels)
        if self.classes_.size < 2:
            raise ValueError(f"The labels are all of one class, {self.classes_[0]!r}; two needed.")
        self._learn(features, np.where(labels == self.classes_[1], 1.0, -1.0))
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """(n,) outputs, positive for the second class."""
        return self._outputs(X)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """(n,) classes."""
        outputs = self._outputs(X)
        return np.asarray(self.classes_[(outputs > 0).astype(np.int64)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic regression under ε-DP."""

    _loss = Logistic()

    def predict_proba(self, X: ArrayLike) -> Floats:
        """(n, 2) probabilities of the classes."""
        second = scipy.special.expit(self._outputs(X))
        return np.column_stack([1 - second, second])


class PrivateHuberClassifier(_PrivateClassifier):
    """Support vector machine with the Huberised hinge loss (h = 1/2), under ε-DP."""

    _loss = HuberHinge()


@dataclass(eq=False, repr=False)
class BoundedRegressor(RegressorMixin):  # type: ignore[misc]
    """Learns from labels within public bounds, as an estimator with ``_learn`` and ``_outputs``."""

    label_bounds: tuple[float, float] = field(default=(-1.0, 1.0), kw_only=True)  # public

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from records: (n, d) features and (n,) labels, clipped to ``label_bounds``."""
        features, labels = validate_data(
            self, with_nan(X), with_nan(y), dtype=np.float64, y_numeric=True
        )
        scaling = LabelScaling(*self.label_bounds)
        self._learn(features, scaling.apply(labels.astype(np.float64)))
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """(n,) predictions within ``label_bounds``."""
        return LabelScaling(*self.label_bounds).invert(self._outputs(X).ravel())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # labels beyond public bounds are clipped
        return tags


@dataclass(eq=False, repr=False)
class PrivateRidge(BoundedRegressor, _PrivateLinearModel):
    """Ridge regression under ε-DP, for labels within public ``label_bounds``."""

    @property
    def _loss(self) -> Loss:
        return ridge_loss(self.alpha)


@dataclass(eq=False, repr=False)
class PrivateHuberRegressor(BoundedRegressor, _PrivateLinearModel):
    """Regression with the Huber loss, its knee at a quarter of the labels' range, ε-DP."""

    _loss = Huber(0.5)
