"""How often intervals of means by group hold that are told from codes, on the data sets here.

Groups are by up to six columns of each set, sixty values at most of each, and each release
has noise of its own. Shown are the shares of 95 % intervals for one group that have the mean of its
labels, of groups with fewer than 30 events and with more; the shares of columns whose intervals for
all groups together have all means; and the half-width for a group of 1,000 events or more, times
the square root of its events, as a share of the labels' range, beside that of codes that are
decoded without bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from benchmarks.harness import Bench, Cell, Table
from labelveil.common.randomizers.message.private_labels import randomize_labels
from labelveil.feature_party.evaluation.code_means import GroupCodes
from labelveil.feature_party.evaluation.group_means import grouped
from labelveil.feature_party.evaluation.intervals import NORMAL_95
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.schema_search import find_schema
from tests import data_sets
from tests.data_sets import DataSet

EPSILONS = (0.5, 1.0, 2.0, 4.0)
MOST, COLUMNS, GROUPS = 20_000, 6, 60
FEW, MANY = 30, 1_000


def run(bench: Bench) -> Table:
    sets = [each for each in vars(data_sets).values() if isinstance(each, DataSet)]
    rows = [
        _Study(each, epsilon).row(1 if bench.quick else bench.repeat)
        for each in sets
        if not each.missing
        for epsilon in (EPSILONS[1:2] if bench.quick else EPSILONS)
    ]
    return Table(
        "Means by group from codes",
        [
            "data, events",
            "ε",
            f"hold, fewer than {FEW} events",
            f"hold, {FEW} and more",
            "columns whose intervals all hold",
            "half-width · √n / range",
            "without bias",
        ],
        rows,
        f"{len(sets)} data sets at most; those that are not here are left out.",
    )


@dataclass
class _Study:
    data_set: DataSet
    epsilon: float
    few: list[bool] = field(default_factory=list)
    many: list[bool] = field(default_factory=list)
    together: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    unbiased: list[float] = field(default_factory=list)

    def row(self, releases: int) -> list[Cell]:
        table = self.data_set.load()
        table = table.sample(min(MOST, table.height), shuffle=True, seed=1)
        lower, upper = self.data_set.lower, self.data_set.upper
        labels = np.clip(table[self.data_set.label].to_numpy().astype(float), lower, upper)
        features = table.drop(self.data_set.label)
        schema = find_schema([features], features.height).schema
        names = [name for name in features.columns if schema.meaning(name).kind != "other"]
        for release in range(releases):
            sent = randomize_labels(labels, epsilon=self.epsilon, lower=lower, upper=upper)
            problem = LabelProblem.from_channel(sent.channel, sent.prior)
            codes = GroupCodes.from_codes(problem, sent.codes, [False])
            plain = decoder(problem, problem.grid).values[:, 0]
            variance = problem.output_prior @ (plain - problem.output_prior @ plain) ** 2
            self.unbiased.append(NORMAL_95 * math.sqrt(variance) / (upper - lower))
            for name in np.random.default_rng(release).permutation(names)[:COLUMNS]:
                groups = grouped({name: features[name]}, {name: schema.meaning(name)})[:GROUPS]
                level = -float(ndtri(0.025 / len(groups)))
                held = True
                for _, rows in groups:
                    value, error = codes.mean(rows)
                    off = abs(value - labels[rows].mean())
                    kind = self.few if rows.size < FEW else self.many
                    kind.append(off <= NORMAL_95 * error)
                    held &= off <= level * error  # nothing that clips an interval has a label
                    if rows.size >= MANY:
                        self.widths.append(NORMAL_95 * error * math.sqrt(rows.size))
                self.together.append(held)
        return [
            f"{self.data_set.name}, {table.height:,}",
            self.epsilon,
            _share(self.few),
            _share(self.many),
            f"{sum(self.together)} of {len(self.together)}",
            round(float(np.median(self.widths)) / (upper - lower), 2) if self.widths else "–",
            round(float(np.median(self.unbiased)), 2),
        ]


def _share(held: list[bool]) -> str:
    return f"{100 * sum(held) / len(held):.0f} % of {len(held)}" if held else "–"
