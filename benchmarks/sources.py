"""One model of five labels parties against one labels party with all of their events.

Housing prices are cut into five samples of 4,000, each multiplied by a factor of its own. Shown is
R² against true labels of held-out events, averaged over the samples: of a model of each sample
alone, of one model of all, and of one labels party with 20,000 events in one unit.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from benchmarks.harness import Bench, Table
from labelveil.common.arrays import Floats, Integers
from labelveil.common.randomizers.message.private_labels import randomize_labels
from labelveil.feature_party.config.sections import TrainingSection
from labelveil.feature_party.join.tasks import with_source
from labelveil.feature_party.learning.problem import LabelProblem, first_codes
from labelveil.feature_party.learning.sources import join_sources
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.run import train
from tests.data_sets import HOUSING

FACTORS = {"a": 0.5, "b": 1.0, "c": 2.5, "d": 8.0, "e": 20.0}
EPSILONS = (1.0, 4.0)
EACH = 4_000
HELD_OUT = 0.2


def run(bench: Bench) -> Table:
    each, table = bench.size(EACH), HOUSING.load()
    rows = []
    for split in range(1 if bench.quick else bench.repeat):
        rng = np.random.default_rng(split)
        sample = table[rng.permutation(table.height)[: each * len(FACTORS)]]
        held = np.sort(rng.choice(sample.height, round(HELD_OUT * sample.height), replace=False))
        features, labels = sample.drop(HOUSING.label), sample[HOUSING.label].to_numpy()
        for epsilon in EPSILONS[:1] if bench.quick else EPSILONS:
            study = _Study(features, labels.astype(np.float64), held, epsilon, split)
            rows.append([epsilon, split, study.alone(), study.together(), study.one()])
    return Table(
        f"R² of five labels parties with {each:,} events each",
        ["ε", "split", "each alone", "one model of all", "one labels party with all events"],
        rows,
        "Labels of the five are the same up to their factors: "
        + ", ".join(map(str, FACTORS.values())),
    )


class _Study:
    def __init__(
        self, features: pl.DataFrame, labels: Floats, held: Integers, epsilon: float, seed: int
    ) -> None:
        self.features, self.labels, self.held, self.epsilon = features, labels, held, epsilon
        self.parts = np.split(np.arange(labels.size), len(FACTORS))
        self.section = TrainingSection(seed=seed, checkpoint=False)

    def alone(self) -> float:
        shares = []
        for rows, factor in zip(self.parts, FACTORS.values(), strict=True):
            problem, codes = self._release(rows, factor)
            inside = np.flatnonzero(np.isin(rows, self.held))
            model = self._train(self.features[rows], problem, codes, inside)
            shares.append(self._explained(model, rows[inside], factor))
        return float(np.mean(shares))

    def together(self) -> float:
        made = [
            self._release(rows, factor)
            for rows, factor in zip(self.parts, FACTORS.values(), strict=True)
        ]
        problems, names = [problem for problem, _ in made], list(FACTORS)
        first = first_codes(problems)[:-1]
        sent = zip(made, first, strict=True)
        codes = np.concatenate([codes.astype(np.int64) + start for (_, codes), start in sent])
        problem = join_sources(problems, [rows.size for rows in self.parts], names)
        table = with_source(self.features, codes, first.tolist(), names)
        model = self._train(table, problem, codes, self.held)
        return float(
            np.mean(
                [
                    self._explained(model.for_source(name), rows[np.isin(rows, self.held)], factor)
                    for rows, (name, factor) in zip(self.parts, FACTORS.items(), strict=True)
                ]
            )
        )

    def one(self) -> float:
        problem, codes = self._release(np.arange(self.labels.size), 1.0)
        model = self._train(self.features, problem, codes, self.held)
        return float(
            np.mean([self._explained(model, p[np.isin(p, self.held)]) for p in self.parts])
        )

    def _release(self, rows: Integers, factor: float) -> tuple[LabelProblem, Integers]:
        labels = self.labels[rows] * factor
        bounds = {"lower": HOUSING.lower * factor, "upper": HOUSING.upper * factor}
        made = randomize_labels(labels, epsilon=self.epsilon, **bounds)
        return LabelProblem.from_channel(made.channel, made.prior, made.loss), made.codes

    def _train(
        self, table: pl.DataFrame, problem: LabelProblem, codes: Integers, held: Integers
    ) -> Model:
        events = Prepared.of_table(table, codes, problem, held)
        return train(events, TrainingSetup(self.section))

    def _explained(self, model: Model, rows: Integers, factor: float = 1.0) -> float:
        labels = self.labels[rows] * factor
        points = model.predict(self.features[rows])["prediction"].to_numpy()
        return float(1 - np.mean((points - labels) ** 2) / labels.var())
