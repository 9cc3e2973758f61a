"""A release for anybody's model: losses, objectives, decoded labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from labelveil.feature_party.notebook.boosting import (
        CatBoostObjective,
        LightGBMObjective,
        XGBoostObjective,
    )
    from labelveil.feature_party.notebook.clear_labels import ClearLabels
    from labelveil.feature_party.notebook.sources import Source
    from labelveil.feature_party.notebook.targets import Targets
    from labelveil.feature_party.notebook.torch_loss import ReleaseLoss


def clear_labels(labels: ArrayLike, release: Source) -> ClearLabels:
    """Say known labels of some events in terms of a release, to learn from both together.

    ::

        known = lv.clear_labels(y_panel, private)
        model = lv.LabelDPRegressor().fit(pd.concat([X, X_panel]), [private, known])

    They enter the same likelihood as codes without noise, so each counts for what it tells. Nothing
    protects them: a model may show any of them.

    Parameters
    ----------
    labels
        (n,) numbers, clipped to the release's bounds. An event may have a code besides.
    release
        As of :func:`torch_loss`.

    Raises
    ------
    DataError
        If the labels are no finite numbers.
    """
    from labelveil.feature_party.notebook.clear_labels import ClearLabels
    from labelveil.feature_party.notebook.sources import problem_of

    return ClearLabels.from_labels(labels, problem_of(release))


def torch_loss(release: Source, head: str = "auto") -> ReleaseLoss:
    """Return a loss for PyTorch: raw outputs and codes in, mean −ln P(code | outputs) out.

    ::

        loss = lv.torch_loss("release")
        network = nn.Linear(8, loss.outputs)
        loss(network(x), codes).backward()
        loss.predict(network(x))  # expected labels

    Parameters
    ----------
    release
        A release, its folder, what ``lv.randomize_labels`` returned, or a manifest.
    head
        Law of the label given the features, as in ``[training] head``. ``auto`` takes the
        probabilities of few values, the log-normal law for skewed labels >= 0, else the normal law.

    Raises
    ------
    ConfigError
        For an unknown head, or what is no release.
    """
    from labelveil.feature_party.notebook.sources import problem_of
    from labelveil.feature_party.notebook.torch_loss import ReleaseLoss

    return ReleaseLoss(problem_of(release), head)


def lightgbm_objective(release: Source, head: str = "auto") -> LightGBMObjective:
    """Return an objective for LightGBM, which is given the codes as labels.

    Parameters and errors are those of :func:`torch_loss`. Boosting goes on from another model's
    predictions with its ``start`` as ``init_score``.

    ::

        likelihood = lv.lightgbm_objective("release")
        trees = lightgbm.train({**likelihood.parameters, "num_leaves": 12}, Dataset(x, codes))
        likelihood.predict(trees.predict(x, raw_score=True))  # expected labels

        trees = lightgbm.LGBMRegressor(**likelihood.parameters).fit(x, codes)
        likelihood.predict(trees.predict(x))
    """
    from labelveil.feature_party.notebook.boosting import LightGBMObjective
    from labelveil.feature_party.notebook.sources import problem_of

    return LightGBMObjective(problem_of(release), head)


def xgboost_objective(release: Source, head: str = "auto") -> XGBoostObjective:
    """Return an objective for XGBoost, which is given the codes as labels.

    Parameters and errors are those of :func:`torch_loss`. Boosting goes on from another model's
    predictions with its ``start`` as ``base_margin``.

    ::

        likelihood = lv.xgboost_objective("release")
        trees = xgboost.train(
            {**likelihood.parameters, "max_depth": 4}, DMatrix(x, codes), obj=likelihood.objective
        )
        likelihood.predict(trees.predict(DMatrix(x), output_margin=True))  # expected labels

        trees = xgboost.XGBRegressor(objective=likelihood.objective, **likelihood.parameters)
        likelihood.predict(trees.fit(x, codes).predict(x, output_margin=True))
    """
    from labelveil.feature_party.notebook.boosting import XGBoostObjective
    from labelveil.feature_party.notebook.sources import problem_of

    return XGBoostObjective(problem_of(release), head)


def catboost_objective(release: Source, head: str = "auto") -> CatBoostObjective:
    """Return an objective for CatBoost, which is given the codes as labels.

    Parameters and errors are those of :func:`torch_loss`; the law must have one output, as
    ``poisson`` and ``mean`` have, and ``auto`` of two values.

    ::

        likelihood = lv.catboost_objective("release", "poisson")
        trees = CatBoostRegressor(**likelihood.parameters, depth=4).fit(x, codes)
        likelihood.predict(trees.predict(x))  # expected labels
    """
    from labelveil.feature_party.notebook.boosting import CatBoostObjective
    from labelveil.feature_party.notebook.sources import problem_of

    return CatBoostObjective(problem_of(release), head)


def decoded_labels(
    release: Source,
    codes: ArrayLike | None = None,
    method: Literal["unbiased", "low-variance"] = "unbiased",
    around: ArrayLike | None = None,
) -> Targets:
    """Return numbers in place of codes, and their weights, for anything that fits numbers.

    Parameters
    ----------
    release
        As in :func:`torch_loss`.
    codes
        (n,) codes to decode; by default the release's own, in its order.
    method
        ``unbiased``: right on average for every single label. ``low-variance``: right on average
        over all labels, with the least noise that can be.
    around
        (n,) predictions of the labels, out of fold: targets of least noise for labels that are
        near them, whatever ``method`` is, with weights by how much a code says there. A model that
        is fitted to these comes close to one that is trained by the likelihood.

    Raises
    ------
    ConfigError
        If there are no codes, or for another method.
    DataError
        If there are not as many predictions as codes.
    """
    from labelveil.common.arrays import finite
    from labelveil.common.errors import ConfigError, DataError
    from labelveil.feature_party.notebook.sources import check_codes, problem_of
    from labelveil.feature_party.notebook.targets import decode_targets

    sent: Any = getattr(release, "codes", None) if codes is None else codes
    if sent is None:
        raise ConfigError(
            f"{type(release).__name__} holds no codes; give them, or a release that was read"
        )
    problem = problem_of(release)
    checked = check_codes(sent, problem)
    points = None if around is None else finite(around, "around")
    if points is not None and points.shape != checked.shape:
        raise DataError(f"around={points.shape} must be a prediction for each of {checked.shape}")
    return decode_targets(problem, checked, method, points)
