"""Many releases of one made-up set with a heavy tail: how far the worst is from the median.

Labels from 0 to 100, most below 5, with a Pareto tail; of a few events a feature is a thousand
times as large as others', and labels are ordinary. Events stay the same; noise, holdout and seed
are fresh in each release. Error: mean squared, of a quarter held out, as a share of the constant's.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from benchmarks.harness import Bench, Cell, Table
from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.feature_party.config.sections import DataSection, TrainingSection
from labelveil.feature_party.learning.problem import LabelProblem, prior_given_codes
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.run import train
from tests.one_label import one_label

ROWS, RELEASES, HELD_OUT = 9_000, 20, 0.25
EPSILONS = (0.5, 1.0)


def run(bench: Bench) -> Table:
    table, rows = sales(max(bench.size(ROWS), 1_000)), list[list[Cell]]()
    releases = max(bench.size(RELEASES), 1)
    for epsilon in EPSILONS:
        for shuffled in (False, True):
            errors = [one(table, epsilon, seed, shuffled) for seed in range(releases)]
            what, median, worst = (
                "shuffled" if shuffled else "as made",
                np.median(errors),
                max(errors),
            )
            rows.append([epsilon, what, float(median), worst, float(worst / median)])
    columns = ["ε", "features", "median error", "worst", "worst / median"]
    return Table(f"{releases} releases of sales with a heavy tail", columns, rows)


def sales(rows: int) -> pl.DataFrame:
    """Events with their label, ``sales``."""
    rng = np.random.default_rng(11)
    x, group, effects = (
        rng.normal(size=(rows, 3)),
        rng.integers(0, 30, rows),
        rng.normal(0, 0.5, 30),
    )
    odd = rng.random(rows) < 0.006
    size = np.where(odd, np.exp(rng.normal(7.5, 0.6, rows)), np.exp(rng.normal(1, 1, rows)))
    mean = np.exp(0.3 + 0.4 * x[:, 0] + effects[group] + 0.5 * np.log(np.minimum(size, 60) / 2.7))
    mean = np.where(odd, 10 * np.exp(0.3 * effects[group]), mean)
    sold = np.clip(mean * (rng.pareto(2.2, rows) + 0.4), 0, 100).round()
    columns = {f"x{number}": values.round(3) for number, values in enumerate(x.T)}
    return pl.DataFrame(
        {
            "event": np.arange(rows),
            **columns,
            "group": [f"g{number}" for number in group],
            "size": size.round(1),
            "sales": sold,
        }
    )


def one(table: pl.DataFrame, epsilon: float, seed: int, shuffled: bool) -> float:
    """Error of one release."""
    labels, rows = table["sales"].to_numpy(), table.height
    if shuffled:
        labels = np.random.default_rng(seed).permutation(labels)
    grid = LabelTerms("sales", 0, 100, whole=True).own_grid(rows, epsilon)
    entropy = seeded_entropy(seed + 1)
    places = grid.round(labels, entropy.words("rounding", 0, rows))
    made = one_label(np.bincount(places, minlength=len(grid)), grid, epsilon, entropy)
    channel = made.channel
    codes = channel.sample(places, entropy.words("labels", 0, rows))
    held = draw_holdout(rows, HELD_OUT, seed)
    counts = np.bincount(np.delete(codes, held), minlength=channel.outputs.size)
    prior = prior_given_codes(made.prior, channel.probabilities, counts)
    problem, features = LabelProblem.from_channel(channel, prior), table.drop("sales")
    prepared = Prepared.of_table(features, codes, problem, held, "event")
    section = TrainingSection(seed=seed, checkpoint=False)
    model = train(prepared, TrainingSetup(section, DataSection(key="event")))
    found, truth = model.predict(features[held])["prediction"].to_numpy(), labels[held]
    constant = np.delete(labels, held).mean()
    return float(np.mean((found - truth) ** 2) / np.mean((constant - truth) ** 2))
