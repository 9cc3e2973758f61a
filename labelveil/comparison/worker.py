"""A worker of ``labelveil compare``: one line of JSON in, one line out, a model trained in between.

Run as ``python -m labelveil.comparison.worker``. The first line describes the data set, with the
true labels: this is a simulation in one process, in which the labels party's part is played by the
same library code that a release runs. Every further line is a job.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TextIO

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats, Integers
from labelveil.common.config import checked
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import LabelveilError
from labelveil.common.mechanisms.group_sums import Lattice, group_sums
from labelveil.common.randomizers.losses import get_loss
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.private_labels import PrivateLabels, randomize
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.comparison.as_published import published_predictions
from labelveil.comparison.central import central_predictions
from labelveil.comparison.names import AS_PUBLISHED, CENTRAL, GROUPS, SEPARATE, TRUE_LABELS
from labelveil.comparison.published_labels import integers, randomize_as_published
from labelveil.comparison.settings import Job, Method
from labelveil.feature_party.config.sections import DataSection, TrainingSection
from labelveil.feature_party.config.usual_shares import usual_shares
from labelveil.feature_party.groups.rounds import learn_in_rounds
from labelveil.feature_party.learning.several_labels import view_of
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.run import train

_BASELINE_EPSILON = 1.0
"""For the reference on true labels, which uses the grid of a release but none of its codes."""


class Experiment:
    """One data set on which jobs are run.

    ``spec`` has ``features`` and ``truth`` (Parquet files with the same events in the same order),
    ``key``, ``columns`` (of each label its ``column``, ``lower``, ``upper`` and whether it is one
    of ``whole`` numbers), ``loss``, ``holdout``, ``training``.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.features = pl.read_parquet(spec["features"], glob=False)
        table = pl.read_parquet(spec["truth"], glob=False)
        self.terms = [
            LabelTerms(
                label["column"],
                label["lower"],
                label["upper"],
                loss=spec["loss"],
                whole=label["whole"],
            )
            for label in spec["columns"]
        ]
        self.several = len(self.terms) > 1
        self.truths: dict[str, Floats] = {
            label.name: np.clip(table[label.name].to_numpy(), label.lower, label.upper)
            for label in self.terms
        }
        self._simulate = lru_cache(maxsize=1)(self._release)

    @property
    def truth(self) -> Floats:
        """(n,) the first label."""
        return self.truths[self.terms[0].name]

    def _release(
        self, name: str, options: tuple[tuple[str, Any], ...], epsilon: float, run: int
    ) -> list[PrivateLabels]:
        """Randomize all labels with fresh noise; jobs that differ in learning alone share it."""
        randomizer_options, terms = dict(options), self.terms
        share = randomizer_options.pop("prior_share", None)
        if not self.several:
            terms = [replace(terms[0], randomizer=name, options=randomizer_options)]
        messages = [[label] for label in terms] if name == SEPARATE else [terms]
        division: Any = name if name in ("split", "joint") else "auto"
        private = list[PrivateLabels]()
        for message in messages:
            entropy = system_entropy()
            labels = np.column_stack([self.truths[label.name] for label in message])
            budget = epsilon / len(messages)
            plan = plan_message(message, len(labels), budget, division=division, prior_share=share)
            events = randomize(labels, plan, entropy)
            private += [events[label.name] for label in message]
            entropy.destroy()
        return private

    def run(self, job: Job) -> dict[str, Any]:
        """Randomize, train and score; returns the figures that a comparison shows."""
        begun = time.monotonic()
        if job.method.randomizer in CENTRAL:
            figures = self._central(job)
        elif job.method.randomizer == GROUPS:
            figures = self._sums(job)
        elif job.method.objective == AS_PUBLISHED:
            figures = self._as_published(job)
        else:
            figures = self._released(job)
        return {**figures, "seconds": round(time.monotonic() - begun, 3)}

    def _released(self, job: Job) -> dict[str, Any]:
        """Randomize as a release does, and train as a features party does."""
        method, epsilon = job.method, job.epsilon
        reference = method.objective == "true"
        name = ("split" if self.several else "rr-on-bins") if reference else method.randomizer
        epsilon = _BASELINE_EPSILON if math.isinf(epsilon) else epsilon
        released = self._simulate(name, method.options, epsilon, job.run)
        figures = [self._of_label(label, job, reference=reference) for label in released]
        return {"labels": figures} if self.several else figures[0]

    def _of_label(self, label: PrivateLabels, job: Job, *, reference: bool) -> dict[str, Any]:
        """Train on what was sent of one label, or on the true ones."""
        truth, section = self.truths[label.name], self._training(job, job.method)
        events, outputs = self._events(label, section)
        model = self._trained(events, section, truth if reference else None)
        predicted = model.distributions(model.encoder.encode(self.features[events.holdout]))
        sent = truth if reference else outputs[events.codes]
        error = float(np.mean((sent - truth) ** 2))
        return {
            # a code of several labels stands for no value of one
            **({"name": label.name} if self.several else {"label_mse": error}),
            **self._scores(predicted.points, truth, events.training, events.holdout),
            "outputs": int(outputs.size),
            "chosen": f"{label.randomizer}, {model.facts.head}",
        }

    def _scores(
        self, predictions: Floats, truth: Floats, training: Integers, holdout: Integers
    ) -> dict[str, Any]:
        """Errors of (h,) predictions for held-out events, and of the best constant."""
        truth, mean = truth[holdout], truth[training].mean()
        loss = get_loss(self.spec["loss"])
        return {
            "test_mse": float(np.mean((predictions - truth) ** 2)),
            "test_mae": float(np.mean(np.abs(predictions - truth))),
            "test_loss": float(np.mean(loss(predictions, truth))),
            "constant_mse": float(np.mean((mean - truth) ** 2)),
        }

    def _as_published(self, job: Job) -> dict[str, Any]:
        """Labels and training of the paper: the training labels alone are randomized."""
        section, terms = self._training(job, Method(AS_PUBLISHED)), self.terms[0]
        training, holdout = self._split(section)
        labels = self.truth[training]
        name, options = job.method.randomizer, dict(job.method.options)
        continuous = options.pop("continuous", False)
        outputs: int | None = len(integers(terms.lower, terms.upper))
        if name == TRUE_LABELS:
            sent = labels
        else:
            terms = replace(terms, randomizer=name, options=options)
            entropy = system_entropy()
            made = randomize_as_published(
                labels, terms, job.epsilon, entropy, continuous=continuous
            )
            entropy.destroy()
            sent, outputs = made.sent, made.outputs
        predictions = published_predictions(
            self.features[training],
            sent,
            self.features[holdout],
            key=self.spec["key"],
            training=section,
            loss=self.spec["loss"],
            bounds=(terms.lower, terms.upper),
        )
        return {
            "label_mse": float(np.mean((sent - labels) ** 2)),
            **self._scores(predictions, self.truth, training, holdout),
            "outputs": outputs,
            "chosen": f"{name}, {AS_PUBLISHED}",
        }

    def _events(self, label: PrivateLabels, section: TrainingSection) -> tuple[Prepared, Floats]:
        """Events with what was sent of one label, and the values that its codes stand for."""
        view = view_of(label.events.message, label.name, label.events.counts)
        codes, (_, holdout) = view.codes[label.events.codes], self._split(section)
        events = Prepared.of_table(
            self.features, codes.astype(np.uint16), view.problem, holdout, self.spec["key"]
        )
        return events, view.problem.outputs

    def _trained(self, events: Prepared, section: TrainingSection, labels: Floats | None) -> Model:
        """Train on codes, or on (n,) labels in their place."""
        columns = DataSection(key=self.spec["key"])
        setup = TrainingSetup(section, columns, true_labels=labels)
        return train(events, setup)

    def _split(self, section: TrainingSection) -> tuple[Integers, Integers]:
        holdout = draw_holdout(self.truth.size, section.holdout, section.seed)
        return np.delete(np.arange(self.truth.size), holdout), holdout

    def _central(self, job: Job) -> dict[str, Any]:
        """What a trusted curator would reach; there is no randomized label."""
        section, terms = self._training(job, job.method), self.terms[0]
        training, holdout = self._split(section)
        central = central_predictions(
            job.method.randomizer,
            self.features[training],
            self.truth[training],
            self.features[holdout],
            key=self.spec["key"],
            hidden=section.hidden,
            bounds=(terms.lower, terms.upper),
            epsilon=job.epsilon,
            delta=self.spec.get("delta"),
        )
        return {
            "label_mse": None,
            **self._scores(central.predictions, self.truth, training, holdout),
            "outputs": None,
            "chosen": central.chosen,
            "guarantee": central.guarantee.to_json(),
        }

    def _sums(self, job: Job) -> dict[str, Any]:
        """Sums over groups of the training events, asked for in rounds."""
        section, terms = self._training(job, job.method), self.terms[0]
        training, holdout = self._split(section)
        labels, table = self.truth[training], self.features.drop(self.spec["key"])
        *_, learned = learn_in_rounds(
            table[training],
            Lattice.between(terms.lower, terms.upper),
            job.epsilon,
            lambda rows, question: group_sums(labels[rows], question, epsilon=job.epsilon),
            shares=usual_shares(len(self.truth), job.epsilon),
            seed=section.seed,
        )
        model = learned.model
        predicted = model.distributions(model.encoder.encode(table[holdout]))
        return {
            "label_mse": None,
            **self._scores(predicted.points, self.truth, training, holdout),
            "outputs": None,
            "chosen": f"{sum(answer.sums.size for answer in learned.answers)} sums",
        }

    def _training(self, job: Job, method: Method) -> TrainingSection:
        section = {
            **self.spec["training"],
            "objective": method.objective,
            "head": method.head,
            "holdout": self.spec["holdout"],
            "seed": job.run,
            "checkpoint": False,
        }
        return checked(TrainingSection, section, keywords=True)


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
                answer = experiment.run(Job.from_json(message))
            except LabelveilError as error:
                answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
