"""A simulation in which sums over groups are asked for, in rounds: in one process.

The labels party's part is played by the code that adds noise to sums, and the features party's sees
its answers alone. How good the model is, sums of groups do not tell: a model may fit them and miss
every event. Two sums over the events kept do, within an interval, and their true labels exactly.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats, Indices, Integers
from labelveil.common.errors import DataError
from labelveil.common.files import writing
from labelveil.common.mechanisms.group_sums import (
    GroupQuestion,
    Lattice,
    PrivateSums,
    group_sums,
)
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.private_labels import randomize_labels
from labelveil.simulation.inputs import KEY, LABEL, Inputs
from labelveil.simulation.settings import Settings
from labelveil.simulation.workspace import Workspace

Stage = Callable[[str, str], AbstractContextManager[None]]
"""Times a part of the work, by a name and in words."""


@dataclass(frozen=True, eq=False)
class SumsRun:
    """What came of it."""

    metrics: dict[str, Any]
    answers: tuple[PrivateSums, ...]


def simulate_sums(
    workspace: Workspace,
    inputs: Inputs,
    settings: Settings,
    stage: Stage,
    reference: Callable[[], Path] | None = None,
) -> SumsRun:
    """Ask, answer and learn in rounds; score on the events kept; write the model, predictions and
    the report."""
    from labelveil.feature_party.groups.rounds import learn_in_rounds
    from labelveil.feature_party.groups.saved import SavedSums, SumsFacts
    from labelveil.feature_party.groups.scoring import FEWEST, ScoreQuestion
    from labelveil.feature_party.pipeline.sums import facts_of, scored_facts
    from labelveil.feature_party.report.sums import SumsReport, write_sums_report
    from labelveil.feature_party.schema import Stated
    from labelveil.feature_party.training.holdout import draw_holdout

    (label,), table = settings.label_columns, inputs.features.drop(inputs.key)
    truth = inputs.truth[LABEL].to_numpy()
    held = draw_holdout(truth.size, settings.holdout, settings.seed)
    if held.size < FEWEST:
        raise DataError(
            f"--holdout {settings.holdout:g} keeps {held.size} of {truth.size:,} events, and"
            f" {FEWEST} are the fewest that can be scored; keep a larger share, or give more events"
        )
    training = np.delete(np.arange(truth.size), held)
    lattice = Lattice.between(label.lower, label.upper)

    def answer(rows: Indices, question: GroupQuestion) -> PrivateSums:
        return group_sums(truth[training[rows]], question, epsilon=settings.epsilon)

    shares, stated = settings.shares or [1.0], Stated.of(inputs.columns)
    rounds = learn_in_rounds(
        table[training],
        lattice,
        settings.epsilon,
        answer,
        shares=shares,
        stated=stated,
        seed=settings.seed,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for number in range(1, len(shares) + 1):
            caught.clear()  # what the last model is warned of is what counts
            with stage(f"round_{number}", f"round {number}: ask, answer, learn"):
                learned = next(rounds)
    said = [str(warning.message) for warning in caught if warning.category is UserWarning]
    model = learned.model
    with stage("score", "predict, score with true labels, write the report"):
        predictions = model.distributions(model.encoder.encode(table)).points
        asked = ScoreQuestion.of(
            predictions[held],
            float(predictions[training].mean()),
            lattice,
            settings.epsilon,
            np.random.default_rng(settings.seed),
            model.miss,
        )
        facts = SumsFacts(
            releases=(),  # sums in this process have no manifest
            events=training.size,
            mean=float(predictions[training].mean()),
            columns=str(stated),
            seed=settings.seed,
            key=inputs.key,
            label=label.column,
            warnings=tuple(said),
        )
        SavedSums(model, facts).save(workspace.model)
        score = asked.score(group_sums(truth[held], asked.question, epsilon=settings.epsilon))
        grid = Grid.from_count(label.lower, label.upper, lattice.steps + 1)
        moved = grid.moved(truth)
        metrics = {
            **facts_of(learned.answers, model),
            **settings.decision_facts,
            "epsilon": settings.epsilon,
            "epsilon_prior": 0.0,
            "epsilon_labels": settings.epsilon,
            "rows": truth.size,
            "training_rows": training.size,
            **scored_facts(score),
            **errors(predictions[held], truth[held], float(truth[training].mean())),
            "points": len(grid),
            "labels_between": moved.between,
            "variance_added": moved.share,
            "grid": f"{grid}; {moved}",
            "warnings": said,
            "seed": settings.seed,
        }
    if settings.nonprivate:
        with stage("nonprivate", "train on true labels, to compare"):
            if reference is not None:
                ideal = json.loads(reference().read_text("utf-8"))["test_mse"]
            else:
                taught = _on_true_labels(table, truth, held, settings)
                ideal = float(np.mean((taught - truth[held]) ** 2))
        metrics["nonprivate_mse"] = ideal
    with writing(workspace.predictions):
        pl.DataFrame({KEY: inputs.truth[KEY], "prediction": predictions}).write_parquet(
            workspace.predictions
        )
    page = SumsReport(label.column, settings.labels.stem, lattice, learned.answers, metrics)
    write_sums_report(workspace.report, page)
    return SumsRun(metrics, learned.answers)


def _on_true_labels(
    table: pl.DataFrame, truth: Floats, held: Integers, settings: Settings
) -> Floats:
    """Predictions for held-out rows of networks that the other rows' true labels have taught."""
    from labelveil.feature_party.config.sections import DataSection, TrainingSection
    from labelveil.feature_party.notebook.sources import problem_of
    from labelveil.feature_party.training.events import TrainingSetup
    from labelveil.feature_party.training.in_memory import Prepared
    from labelveil.feature_party.training.run import train

    (label,) = settings.label_columns
    # its grid and its form: no code is learned from
    codes = randomize_labels(truth, lower=label.lower, upper=label.upper, epsilon=1.0)
    events = Prepared.of_table(table, codes.codes, problem_of(codes, codes.codes), held)
    section = TrainingSection(
        objective="true", learner="networks", seed=settings.seed, checkpoint=False
    )
    columns = DataSection(columns=settings.columns)
    setup = TrainingSetup(section, columns, true_labels=truth)
    model = train(events, setup)
    return model.distributions(model.encoder.encode(table[held])).points


def errors(predictions: Floats, truth: Floats, mean: float) -> dict[str, float]:
    """Errors of (n,) predictions, and of the mean of the labels that were trained on."""
    return {
        "test_mse": float(np.mean((predictions - truth) ** 2)),
        "test_mae": float(np.mean(np.abs(predictions - truth))),
        "constant_mse": float(np.mean((mean - truth) ** 2)),
    }
