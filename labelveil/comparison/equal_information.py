"""A reference for learners: true labels with as much noise as makes them tell what a release tells.

Of a release that explains a share I of the label's variance (``informativeness``), n labels say
about as much about a mean as n true labels plus Gaussian noise of variance Var(y) (1/I − 1). A
learner that knows the channel should not do worse on the release than plain ones on those. It is no
bound: information at the prior is not information at every x.
"""

from __future__ import annotations

import numpy as np

from common.arrays import Floats
from feature_party.model.encoding import Encoded
from feature_party.training.trees import lightgbm

LEAVES = (4, 8, 16)
_ROUNDS, _PATIENCE, _FOLDS = 500, 20, 5


def equally_noisy(labels: Floats, informativeness: float, seed: int) -> Floats:
    """(n,) labels plus noise that leaves them a share ``informativeness``, in (0, 1], of it all."""
    deviation = np.sqrt(np.var(labels) * (1 / informativeness - 1))
    noise = np.random.default_rng([seed, 7]).normal(size=labels.size)
    return np.asarray(labels + deviation * noise)


def tree_predictions(inputs: Encoded, labels: Floats, queries: Encoded, seed: int) -> Floats:
    """Plain boosted trees under squared loss, their leaves and rounds by cross-validation."""
    table, queried = (
        np.concatenate([of.numeric, of.categories], axis=1) for of in (inputs, queries)
    )
    categories = list(range(inputs.numeric.shape[1], table.shape[1]))
    best: tuple[float, int, dict[str, object]] = (np.inf, 0, {})
    for leaves in LEAVES:
        parameters: dict[str, object] = {
            "objective": "l2",
            "num_leaves": leaves,
            "learning_rate": 0.05,
            "seed": seed,
            "verbosity": -1,
        }
        data = lightgbm().Dataset(table, labels, categorical_feature=categories)
        stop = lightgbm().early_stopping(_PATIENCE, verbose=False)
        folds = {"nfold": _FOLDS, "stratified": False, "seed": seed, "callbacks": [stop]}
        losses = lightgbm().cv(parameters, data, _ROUNDS, **folds)["valid l2-mean"]
        best = min(best, (losses[-1], len(losses), parameters), key=lambda tried: tried[0])
    _, rounds, parameters = best
    data = lightgbm().Dataset(table, labels, categorical_feature=categories)
    predicted: Floats = lightgbm().train(parameters, data, rounds).predict(queried)
    return predicted
