"""Events that one learner suits, and how much of their means a model leaves unexplained."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers import build_randomizer
from labelveil.feature_party.config.sections import DataSection, FeaturePartyConfig, TrainingSection
from labelveil.feature_party.learning.objectives import LikelihoodObjective, build_objective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.settings import resolve_settings
from tests.feature_party.learn import train

GRID = np.arange(31.0)
ROWS = 6000


def events(table: pl.DataFrame, means: np.ndarray, epsilon: float = 2.0) -> Prepared:
    """Labels around (n,) means, privatized, with the table as features."""
    rng = np.random.default_rng(1)
    labels = np.clip(np.rint(means + rng.normal(size=means.size)), 0, 30)
    prior = np.bincount(labels.astype(int), minlength=GRID.size) + 1.0
    built = build_randomizer(
        "randomized-thresholds", labels=GRID, prior=prior / prior.sum(), epsilon=epsilon
    )
    codes = built.randomize(labels, seeded_entropy(1))
    problem = LabelProblem.from_channel(built.channel, prior)
    return Prepared.of_table(table, codes, problem, draw_holdout(means.size, 0.2, 0))


def interaction(rows: int = ROWS) -> tuple[Prepared, np.ndarray]:
    """Numbers that matter together alone, and a category with 300 values."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(rows, 3))
    shop = rng.integers(300, size=rows)
    means = 15 + 6 * np.sign(x[:, 0] * x[:, 1]) + 3 * rng.normal(size=300)[shop]
    table = pl.DataFrame({f"x{i}": x[:, i] for i in range(3)} | {"shop": shop.astype(str)})
    return events(table, means), means


def configured(**training: object) -> FeaturePartyConfig:
    section = {"ensemble": 4, "epochs": 2, "hidden": [16, 8], **training}
    return FeaturePartyConfig.model_validate({"data": {"key": "event"}, "training": section})


def fitted(data: Prepared, **training: object) -> Model:
    return train(data, configured(**training))


def unexplained(model: Model, data: Prepared, means: np.ndarray) -> float:
    predicted = model.predict(data.table[data.holdout])["prediction"].to_numpy()
    truth = means[data.holdout]
    return float(np.mean((predicted - truth) ** 2) / np.var(truth))


def folded(data: Prepared, **training: Any) -> tuple[FoldedRows, Support, LikelihoodObjective]:
    """Rows in folds, and a normal law of their labels."""
    section = TrainingSection(**training)
    rows = data.encoded(TrainingSetup(section, DataSection()), lambda table: Encoder.fit(table))
    support = Support.from_problem(data.problem)
    law = build_objective("likelihood", data.problem, support, "gaussian")
    assert isinstance(law, LikelihoodObjective)
    settings = resolve_settings(section, data.training_rows)
    return rows.folded(data.problem, settings), support, law
