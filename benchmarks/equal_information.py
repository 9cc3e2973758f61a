"""A reference for learners: true labels with as much noise as makes them tell what a release tells.

Of a release that explains a share I of the label's variance (``informativeness``), n labels say
about as much about a mean as n true labels plus Gaussian noise of variance Var(y) (1/I − 1). A
learner that knows the channel should not do worse on the release than plain ones on those. It is no
bound: information at the prior is not information at every x.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.comparison import Job, Method
from labelveil.comparison.worker import Experiment
from labelveil.feature_party.model.encoding import Encoded
from labelveil.feature_party.training.trees import lightgbm

REFERENCE = Method("equal-information")
"""Trains on true labels with noise that leaves them what a release tells."""

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


class Reference(Experiment):
    """The same data set, splits and training as a comparison's jobs."""

    def run(self, job: Job) -> dict[str, Any]:
        """Networks and trees on labels as noisy as the default release; the better of the two."""
        (label,) = self._simulate("auto", (), job.epsilon, job.run)
        section = self._training(job, replace(REFERENCE, objective="true"))
        events, _ = self._events(label, section)
        training, holdout = events.training, events.holdout
        labels = equally_noisy(self.truth, events.problem.informativeness, job.run)
        model = self._trained(events, section, labels)
        seen, queries = (model.encoder.encode(self.features[part]) for part in (training, holdout))
        predictions = {
            "networks": model.distributions(queries).points,
            "trees": tree_predictions(seen, labels[training], queries, job.run),
        }
        scores = {
            name: self._scores(points, self.truth, training, holdout)
            for name, points in predictions.items()
        }
        best = min(scores, key=lambda name: float(scores[name]["test_mse"]))
        return {**scores[best], "chosen": best}


def reference(spec: dict[str, Any], job: Job, folder: Path) -> dict[str, Any]:
    """The record of a job, kept in a folder so that it is not run again."""
    path = folder / f"{REFERENCE.randomizer}-{job.epsilon:g}-{job.run}.json"
    if not path.exists():
        path.write_text(json.dumps({**job.to_json(), **Reference(spec).run(job)}))
    record: dict[str, Any] = json.loads(path.read_text())
    return record
