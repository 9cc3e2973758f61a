"""What to ask of groups of events, of a table at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labelveil.common.arrays import Floats, is_number
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.randomizers.base import check_epsilon

if TYPE_CHECKING:
    from labelveil.estimators import LabelDPRegressor
    from labelveil.feature_party.groups.means import MeansQuestion
    from labelveil.feature_party.groups.scoring import ScoreQuestion


def ask_groups(
    X: Any,
    *,
    epsilon: float,
    lower: float | None = None,
    upper: float | None = None,
    model: LabelDPRegressor | None = None,
    random_state: int | np.random.RandomState | None = 0,
) -> GroupQuestion:
    """Say which sums of labels to ask for, of events whose labels nobody has asked about.

    ::

        first = lv.group_sums(y_first, lv.ask_groups(X_first, epsilon=0.1, lower=0, upper=1000),
                              epsilon=0.1)
        model = lv.LabelDPRegressor().fit(X_first, first)
        rest = lv.group_sums(y_rest, lv.ask_groups(X_rest, epsilon=0.1, model=model), epsilon=0.1)
        model.fit(pd.concat([X_first, X_rest]), [first, rest])

    Noise is paid for once a group, and so sums say far more than randomized labels where ε is small
    or events are many. Each label is read in one round alone. The question tells whoever answers it
    the groups, and a model's predictions, roughly.

    Parameters
    ----------
    X
        (n, …) features of the events, as of :meth:`LabelDPRegressor.fit`.
    epsilon
        What the answer will spend, 0 < epsilon <= 40: it decides how large groups are.
    lower, upper
        Public bounds of the labels, chosen without looking at them; with a model they are its own.
    model
        A regressor that has learned from sums of other events' labels: then what is left of labels
        after its predictions is summed, which says more.
    random_state
        Chooses the groups, among those of like events.

    Raises
    ------
    ConfigError, PrivacyError, DataError
        For bounds, an ε or features that cannot be.
    """
    from labelveil.estimators import LabelDPRegressor, seed_of
    from labelveil.feature_party.groups.model import SumsModel, ask_first

    check_epsilon(epsilon)
    rng = np.random.default_rng(seed_of(random_state))
    learned = None if model is None else getattr(model, "model_", None)
    if model is not None and not isinstance(learned, SumsModel):
        raise ConfigError(
            "the model has learned from no sums: fit it on what lv.group_sums returned, or leave it"
            " out"
        )
    table = (model or LabelDPRegressor())._table(X, reset=model is None)
    if not table.height:
        raise DataError("X has no rows; ask about at least one event")
    if isinstance(learned, SumsModel):
        _agree(learned.lattice, lower, upper)
        return learned.ask(table, epsilon, rng)
    return ask_first(table, _lattice(lower, upper), epsilon, rng)


def ask_score(
    model: Any,
    X: Any,
    *,
    epsilon: float,
    lower: float | None = None,
    upper: float | None = None,
    reference: Any = None,
    random_state: int | np.random.RandomState | None = 0,
) -> ScoreQuestion:
    """Say which sums of labels tell how good a model is, on events that it has not seen.

    ::

        asked = lv.ask_score(model, X_test, epsilon=0.5)
        score = asked.score(lv.group_sums(y_test, asked.question, epsilon=0.5))
        score.r2.value, score.r2.low, score.r2.high

    Two sums tell R², the share of a constant's squared error that the model saves, or of another
    model's, with a 95% interval. A label that is asked about has paid ε, and is asked nothing else.

    Parameters
    ----------
    model
        Anything with ``predict(X)``, a fitted :class:`LabelDPRegressor` or a model of your own; or
        (n,) predictions.
    X
        (n, …) features of n >= 20 events whose labels the model has not learned from; the more, the
        closer the answer.
    epsilon
        What the answer will spend, 0 < epsilon <= 40: it decides which sums are asked.
    lower, upper
        Public bounds of the labels, to which labels and predictions are clipped; with a
        :class:`LabelDPRegressor` they are its own.
    reference
        What the model is compared with: another model, (n,) predictions or a number; by default the
        mean that is expected of labels.
    random_state
        Deals the events to the two sums.

    Raises
    ------
    ConfigError, PrivacyError, DataError
        For bounds, an ε or predictions that cannot be.
    """
    from labelveil.estimators import LabelDPRegressor, seed_of
    from labelveil.feature_party.groups.scoring import ScoreQuestion

    check_epsilon(epsilon)
    points = _predicted(model, X)
    lattice, mean, miss = _of_labels(model if isinstance(model, LabelDPRegressor) else None, points)
    if lattice is None:
        lattice = _lattice(lower, upper)
    else:
        _agree(lattice, lower, upper)
    beside = mean if reference is None else _predicted(reference, X)
    if np.ndim(beside) and np.shape(beside) != points.shape:
        raise DataError(
            f"the reference predicts {np.size(beside):,} events, and the model {points.size:,};"
            " give both the same"
        )
    rng = np.random.default_rng(seed_of(random_state))
    return ScoreQuestion.from_predictions(points, beside, lattice, epsilon, rng, miss)


def ask_means(X: Any, by: str | Sequence[str], *, lower: float, upper: float) -> MeansQuestion:
    """Say which sums of labels tell mean labels by columns, such as a campaign.

    ::

        asked = lv.ask_means(X, "arm", lower=0, upper=400)
        asked.means(lv.group_sums(y, asked.question, epsilon=0.1), control="no_ad")

    A group's mean is off by noise of scale ``(upper - lower)/(ε n)`` for its n events. From a
    release of codes ``feature-party means`` tells the same, with far more noise.

    Parameters
    ----------
    X
        (n, …) features with names: of pandas, Polars or Arrow.
    by
        A column, or several: then there is a group for each combination of their values.
    lower, upper
        Public bounds of the labels, chosen without looking at them.

    Raises
    ------
    ConfigError, DataError
        For bounds or columns that cannot be.
    """
    from labelveil.feature_party.groups.means import MeansQuestion
    from labelveil.feature_party.tables import collect_table

    if not hasattr(X, "columns"):
        raise DataError("X has no names of columns: give a table of pandas, Polars or Arrow")
    names = [by] if isinstance(by, str) else list(by)
    return MeansQuestion.by_columns(collect_table(X), names, _lattice(lower, upper))


def _predicted(model: Any, X: Any) -> Floats:
    """(n,) predictions of a model, or numbers as they are."""
    found = model.predict(X) if hasattr(model, "predict") else model
    return np.asarray(found, dtype=np.float64)


def _of_labels(
    model: LabelDPRegressor | None, points: Floats
) -> tuple[Lattice | None, float, float | None]:
    """What a model knows of labels: their lattice, mean, and deviation from its predictions."""
    from labelveil.feature_party.groups.model import SumsModel

    mean, learned = float(np.mean(points)) if points.size else 0.0, getattr(model, "model_", None)
    if isinstance(learned, SumsModel):
        return learned.lattice, mean, learned.miss
    if learned is None:
        return None, mean, None
    problem = learned.problem
    left = problem.deviation**2 - float(np.mean((points - problem.mean) ** 2))
    miss = max(left, 0.05 * problem.deviation**2) ** 0.5
    return _lattice(float(problem.grid[0]), float(problem.grid[-1])), problem.mean, miss


def _agree(lattice: Lattice, lower: float | None, upper: float | None) -> None:
    if (lower, upper) not in ((None, None), (lattice.lower, lattice.upper)):
        raise ConfigError(
            f"the model is of labels in {lattice.lower:g} … {lattice.upper:g}; leave lower and"
            " upper out"
        )


def _lattice(lower: float | None, upper: float | None) -> Lattice:
    if lower is None or upper is None:
        raise ConfigError("lower and upper are missing: name public bounds of the labels")
    for name, bound in {"lower": lower, "upper": upper}.items():
        if not is_number(bound):
            raise ConfigError(f"{name}={bound!r:.100} must be a number, a bound of the labels")
    return Lattice.between(lower, upper)
