"""A worker of ``labelveil compare``: one line of JSON in, one line out, a model trained in between.

Run as ``python -m feature_party.baselines.worker``. The first line describes the data set, with the
true labels: this is a simulation in one process, in which the labels party's part is played by the
same library code that a release runs. Every further line is a job.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TextIO

import numpy as np
import polars as pl

from common.arrays import Floats
from common.entropy import system_entropy
from common.errors import LabelveilError
from common.mechanisms.central.names import CENTRAL, EQUAL_INFORMATION
from common.randomizers import Recipe
from common.randomizers.grid import Grid
from common.randomizers.private_labels import PrivateLabels, randomize
from feature_party.baselines.central import central_predictions
from feature_party.baselines.equal_information import equally_noisy, tree_predictions
from feature_party.config import DataSection, TrainingSection
from feature_party.join.in_memory import Joined
from feature_party.join.matches import MatchCounts
from feature_party.learning.problem import LabelProblem
from feature_party.training.examples import Prepared
from feature_party.training.holdout import split_holdout
from feature_party.training.run import train

_BASELINE_EPSILON = 1.0
"""For the reference on true labels, which uses the grid of a release but none of its codes."""


class Experiment:
    """One data set on which jobs are run.

    Parameters
    ----------
    spec
        ``features`` and ``truth`` (Parquet files with the same events in the same order), ``key``,
        ``lower``, ``upper``, ``loss``, ``holdout`` and ``training``.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.columns = spec, DataSection(key=spec["key"])
        self.features = pl.read_parquet(spec["features"])
        truth = pl.read_parquet(spec["truth"])
        self.truth: Floats = np.clip(truth["label"].to_numpy(), spec["lower"], spec["upper"])
        self._simulate = lru_cache(maxsize=1)(self._release)

    def _release(self, randomizer: str, epsilon: float, run: int) -> PrivateLabels:
        """Randomize all labels with fresh noise; jobs that differ in learning alone share it."""
        spec = self.spec
        grid = Grid.default(spec["lower"], spec["upper"], self.truth.size, epsilon)
        entropy = system_entropy()
        found = randomize(self.truth, grid, epsilon, entropy, Recipe(randomizer, spec["loss"]))
        entropy.destroy()
        return found

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Randomize, train and score; returns the figures that a comparison shows."""
        begun = time.monotonic()
        if job["randomizer"] in CENTRAL:
            return {**self._central(job), "seconds": round(time.monotonic() - begun, 3)}
        if job["randomizer"] == EQUAL_INFORMATION:
            return {**self._equal_information(job), "seconds": round(time.monotonic() - begun, 3)}
        reference = job["objective"] == "true"
        name = "rr-on-bins" if reference else job["randomizer"]
        simulated = self._simulate(name, job["epsilon"] or _BASELINE_EPSILON, job["run"])
        section = self._training(job)
        events, labels = self._events(simulated, section), self.truth if reference else None
        training, holdout = events.training, events.holdout
        model = train(events, section, self.columns, true_labels=labels)
        encoded = model.encoder.encode(self.features[holdout])
        error = model.distributions(encoded).points - self.truth[holdout]
        sent = self.truth if reference else simulated.channel.outputs[simulated.codes]
        constant = self.truth[training].mean() - self.truth[holdout]
        return {
            "label_mse": float(np.mean((sent - self.truth) ** 2)),
            "test_mse": float(np.mean(error**2)),
            "test_mae": float(np.mean(np.abs(error))),
            "constant_mse": float(np.mean(constant**2)),
            "outputs": int(simulated.channel.outputs.size),
            "chosen": f"{simulated.made.randomizer.name}, {model.facts.head}",
            "seconds": round(time.monotonic() - begun, 3),
        }

    def _equal_information(self, job: dict[str, Any]) -> dict[str, Any]:
        """Networks and trees on labels as noisy as the default release; the better of the two."""
        simulated = self._simulate("auto", job["epsilon"], job["run"])
        section = self._training({**job, "objective": "true", "head": "auto"})
        events = self._events(simulated, section)
        training, holdout = events.training, events.holdout
        labels = equally_noisy(self.truth, events.problem.informativeness, job["run"])
        model = train(events, section, self.columns, true_labels=labels)
        seen, asked = (model.encoder.encode(self.features[part]) for part in (training, holdout))
        predictions = {
            "networks": model.distributions(asked).points,
            "trees": tree_predictions(seen, labels[training], asked, job["run"]),
        }
        truth = self.truth[holdout]
        errors = {name: float(np.mean((f - truth) ** 2)) for name, f in predictions.items()}
        best = min(errors, key=lambda name: errors[name])
        return {
            "label_mse": None,
            "test_mse": errors[best],
            "test_mae": float(np.mean(np.abs(predictions[best] - truth))),
            "constant_mse": float(np.mean((self.truth[training].mean() - truth) ** 2)),
            "outputs": None,
            "chosen": best,
        }

    def _events(self, simulated: PrivateLabels, section: TrainingSection) -> Prepared:
        problem = LabelProblem.from_channel(simulated.channel, simulated.prior, simulated.loss)
        rows = self.truth.size
        split = split_holdout(rows, section.holdout, section.seed)
        matches = MatchCounts(rows, rows, rows)
        joined = Joined(self.features, simulated.codes, matches, np.arange(rows))
        return Prepared(joined, *split, problem, "comparison", self.columns.key)

    def _central(self, job: dict[str, Any]) -> dict[str, Any]:
        """What a trusted curator would reach; there is no randomized label."""
        section, spec = self._training({**job, "objective": "auto", "head": "auto"}), self.spec
        training, holdout = split_holdout(self.truth.size, section.holdout, section.seed)
        found = central_predictions(
            job["randomizer"],
            self.features[training],
            self.truth[training],
            self.features[holdout],
            data=self.columns,
            hidden=section.hidden,
            bounds=(spec["lower"], spec["upper"]),
            epsilon=job["epsilon"],
            delta=spec.get("delta"),
        )
        error = found.predictions - self.truth[holdout]
        constant = self.truth[training].mean() - self.truth[holdout]
        return {
            "label_mse": None,
            "test_mse": float(np.mean(error**2)),
            "test_mae": float(np.mean(np.abs(error))),
            "constant_mse": float(np.mean(constant**2)),
            "outputs": None,
            "chosen": found.chosen,
            "guarantee": found.guarantee.to_json(),
        }

    def _training(self, job: dict[str, Any]) -> TrainingSection:
        section = {
            **self.spec["training"],
            "objective": job["objective"],
            "head": job["head"],
            "holdout": self.spec["holdout"],
            "seed": job["run"],
            "checkpoint": False,
        }
        return TrainingSection.model_validate(section)


def serve(lines: Iterable[str], answers: TextIO) -> None:
    """Answer every line; a job that its randomizer or head refuses is answered with the reason."""
    experiment: Experiment | None = None
    for line in lines:
        message = json.loads(line)
        if experiment is None:
            experiment = Experiment(message)
            answer: dict[str, Any] = {"ready": True}
        else:
            try:
                answer = experiment.run(message)
            except LabelveilError as error:
                answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
