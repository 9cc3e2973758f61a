"""The scikit-learn estimators: scikit-learn's own checks, scaling, a fitted model's guarantee."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from labelveil.common.entropy import seeded_entropy, system_entropy
from labelveil.common.errors import ConfigError, PrivacyError
from labelveil.common.guarantees import Adjacency, PureDP
from labelveil.common.mechanisms.central.estimators import (
    PrivateHuberClassifier,
    PrivateHuberRegressor,
    PrivateLogisticRegression,
    PrivateRidge,
)
from labelveil.common.mechanisms.central.perturbation import PERTURBATIONS
from labelveil.common.mechanisms.clipping import LabelScaling, scaled_rows
from tests.common.mechanisms.central.test_minimiser import uniforms

CLASSIFIERS = (PrivateLogisticRegression, PrivateHuberClassifier)
REGRESSORS = (PrivateRidge, PrivateHuberRegressor)


def _expected_failures(estimator: Any) -> dict[str, str]:
    """Checks that no ε-DP estimator can keep at this ε, with the reason."""
    failures = {}
    too_few = "asks for 83% accuracy from 200 records, which this ε does not allow"
    if isinstance(estimator, CLASSIFIERS) and estimator.perturbation == "input":
        failures["check_classifiers_train"] = too_few
    return failures


@pytest.mark.slow
@parametrize_with_checks(
    [
        # a fixed seed, because most checks fit twice and compare: fresh noise can keep none of them
        estimator(epsilon=epsilon, perturbation=name, entropy=seeded_entropy(0))
        for estimator, name, epsilon in (
            (PrivateLogisticRegression, "objective", 1.0),
            (PrivateLogisticRegression, "input", 1.0),
            (PrivateHuberClassifier, "output", 1.0),
            (PrivateHuberClassifier, "output", 1e3),
            (PrivateRidge, "function", 1.0),
            (PrivateHuberRegressor, "output", 1.0),
        )
    ],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_what_a_mask_hides_is_missing_as_pandas_na_is_and_an_epsilon_may_be_of_numpys() -> None:
    features = np.random.default_rng(0).normal(size=(200, 2))
    labels = features[:, 0]
    model = PrivateRidge(epsilon=np.float32(1), bounds=(-1, 1))  # type: ignore[arg-type]
    assert model.fit(features, np.ma.array(labels, mask=False)).guarantee_.epsilon == 1
    for which, hidden in (
        ("y", (features, np.ma.array(labels, mask=labels > 1))),
        ("X", (np.ma.array(features, mask=features > 1), labels)),
        ("X", (np.where(features > 1, pd.NA, features.astype(object)), labels)),
    ):
        with pytest.raises(ValueError, match=f"Input {which} contains NaN"):
            model.fit(*hidden)


def test_fresh_noise_breaks_exactly_the_checks_that_compare_two_fits() -> None:
    """What the seed above hides is recorded here: repeatability, which privacy forbids."""
    from sklearn.utils.estimator_checks import check_estimator

    results = check_estimator(PrivateRidge(), on_fail=None)
    failed = {r["check_name"] for r in results if r["status"] == "failed"}
    assert failed == {
        "check_fit_idempotent",
        "check_supervised_y_2d",
        "check_regressors_int",
        "check_regressor_data_not_an_array",
    }


def _problem(n: int = 4000) -> tuple[Any, Any, Any]:
    features = 50 + 10 * uniforms(1, n, 2)  # within the public bounds 40 … 60
    truth = (features[:, 0] - 50) / 10
    return features, np.where(truth > 0, "yes", "no"), 100 + 20 * truth


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_models_learn_and_say_what_they_guarantee(name: str) -> None:
    features, classes, numbers = _problem()
    for kind in CLASSIFIERS:
        model = kind(10.0, perturbation=name, bounds=(40, 60), alpha=0.001)
        assert clone(model).get_params()["perturbation"] == name
        model.fit(features, classes)
        assert model.score(features, classes) > 0.85
        assert model.guarantee_ == PureDP.of(10.0, Adjacency.REPLACE_RECORD)
    for regressor in REGRESSORS:
        model = regressor(
            50.0, perturbation=name, bounds=(40, 60), alpha=0.01, label_bounds=(80, 120)
        )
        model.fit(features, numbers)
        error = np.mean((model.predict(features) - numbers) ** 2)
        assert error < 0.5 * np.var(numbers)


def test_probabilities_belong_to_the_classes() -> None:
    features, classes, _ = _problem()
    model = PrivateLogisticRegression(20.0, bounds=(40, 60), alpha=1e-3).fit(features, classes)
    chances = model.predict_proba(features)
    assert np.allclose(chances.sum(axis=1), 1)
    likelier = model.classes_[chances.argmax(axis=1)]
    assert np.array_equal(likelier, model.predict(features))
    outputs = model.decision_function(features)
    assert np.array_equal(outputs > 0, likelier == "yes")
    assert chances[:, 1] == pytest.approx(1 / (1 + np.exp(-outputs)))


def test_two_fits_do_not_share_noise() -> None:
    features, _, numbers = _problem(100)
    model = PrivateRidge(1.0, bounds=(40, 60), label_bounds=(80, 120))
    first = model.fit(features, numbers).coef_
    assert not np.array_equal(first, model.fit(features, numbers).coef_)
    with pytest.raises(PrivacyError, match="entropy must be None"):
        model.set_params(entropy=system_entropy()).fit(features, numbers)


def test_scaling_is_the_same_whatever_the_other_rows_are() -> None:
    """Nothing is learned from data: a row's image does not depend on its company."""
    features = 100 * uniforms(5, 40, 3)
    for scaling in (
        scaled_rows,
        partial(scaled_rows, bounds=(-10, 10)),
        partial(scaled_rows, bounds=([-1, -2, -3], [1, 2, 3]), norm_bound=0.5),
        partial(scaled_rows, bounds=(-50, 50), norm_bound=1.0, intercept=False),
    ):
        together = scaling(features)
        assert np.linalg.norm(together, axis=1).max() <= 1
        alone = np.vstack([scaling(row[None]) for row in features])
        assert np.array_equal(together, alone)
        pipeline = make_pipeline(FunctionTransformer(scaling))
        assert np.array_equal(pipeline.fit_transform(features), together)
    assert scaled_rows(np.array([[10.0, -30.0]]), (-10, 10), intercept=False) == pytest.approx(
        np.array([[1, -1]]) / 2**0.5
    )


def test_labels_are_mapped_from_their_public_bounds() -> None:
    scaling = LabelScaling(0, 10)
    assert scaling.apply(np.array([0.0, 5, 10, 99, -7])).tolist() == [-1, 0, 1, 1, -1]
    assert scaling.invert(np.array([-1.0, 0, 1, 3])).tolist() == [0, 5, 10, 10]


def test_impossible_bounds_are_refused() -> None:
    features = np.ones((2, 2))
    with pytest.raises(ConfigError, match="lower bound below"):
        scaled_rows(features, (1, 1))
    with pytest.raises(PrivacyError, match="norm_bound=0"):
        scaled_rows(features, norm_bound=0)
    with pytest.raises(ConfigError, match="label_bounds"):
        LabelScaling(1, 1)
