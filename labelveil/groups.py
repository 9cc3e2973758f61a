"""What to ask of groups of events, of a table at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.guarantees.limits import within
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice

if TYPE_CHECKING:
    from labelveil.estimators import LabelDPRegressor


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

    within("(0, 40]", epsilon=epsilon)
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
        if (lower, upper) not in ((None, None), (learned.lattice.lower, learned.lattice.upper)):
            raise ConfigError(
                f"the model is of labels in {learned.lattice.lower:g} … {learned.lattice.upper:g};"
                " leave lower and upper out"
            )
        return learned.ask(table, epsilon, rng)
    if lower is None or upper is None:
        raise ConfigError("lower and upper are missing: name public bounds of the labels")
    return ask_first(table, Lattice.between(lower, upper), epsilon, rng)
