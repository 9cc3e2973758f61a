"""How often the intervals of an evaluation contain the truth: ``make coverage``.

For every data set that is present and every ε one model is trained on one release. Then the same
labels are released again and again, and the model is evaluated from each release alone: its
intervals should contain R² against the true labels of the held-out events in 95 % of them. With its
predictions dealt to other events, and those pulled close to the mean as training does that finds
nothing, no more than 5 % may call it better. Codes and histogram are fresh in every release: one
histogram for several of them would make their errors one.
"""

from __future__ import annotations

import argparse
import json
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from common.arrays import Floats, Indices
from common.entropy import seeded_entropy
from common.exact.channel import FiniteChannel
from common.randomizers.grid import Grid
from common.randomizers.prior import NoisyPrior, private_prior
from common.randomizers.two_step import Recipe, two_step
from feature_party.config import DataSection, TrainingSection
from feature_party.evaluation.decoded_labels import Scored, decode_labels
from feature_party.evaluation.explained import Explained, explained
from feature_party.evaluation.losses import SQUARED
from feature_party.evaluation.spread import ReleasedCodes, label_spread
from feature_party.evaluation.unseen import unseen
from feature_party.join.in_memory import Joined
from feature_party.join.matches import MatchCounts
from feature_party.learning.problem import LabelProblem
from feature_party.learning.support import Support
from feature_party.model.model import Predictions
from feature_party.training.examples import Prepared
from feature_party.training.holdout import split_holdout
from feature_party.training.run import train
from label_party.config.sections import DomainSection
from tests.data_sets import BIKE, CENSUS, HOUSING, RANDHIE, RETAIL, DataSet

EPSILONS = (0.5, 1.0, 2.0, 4.0)
DATA_SETS = (HOUSING, CENSUS, RETAIL, RANDHIE, BIKE)
OUT = Path("out/coverage")
_MOST_ROWS = 40_000
_KEY = "event of the simulation"


@dataclass(frozen=True, eq=False)
class Case:
    """A data set at one ε, with a trained model's predictions.

    Attributes
    ----------
    labels
        (n,) true labels of the rows scored.
    truth
        R² of the whole model on the held-out events.
    support, scored
        What the model predicted.
    grid, channel, prior_epsilon
        How labels are released.
    """

    labels: Floats
    truth: float
    support: Support
    scored: Scored
    grid: Grid
    channel: FiniteChannel
    prior_epsilon: float

    def evaluate(self, release: int, order: Indices | None = None, pull: float = 1.0) -> Explained:
        """Evaluate from a fresh release.

        Parameters
        ----------
        order
            (n,) the row whose predictions each row gets; None for its own.
        pull
            What is left of the distance of predictions from their mean.
        """
        entropy, rows = seeded_entropy(1000 + release), self.labels.size
        histogram = self._histogram(release)
        places = self.grid.round(self.labels, entropy.words("rounding", 0, rows))
        codes = self.channel.sample(places, entropy.words("labels", 0, rows)).astype(np.int64)
        problem = LabelProblem.from_channel(self.channel, histogram.probabilities)
        sources = [ReleasedCodes(problem, histogram, self.grid.points, np.arange(rows), codes)]
        scored = self.scored if order is None else _dealt(self.scored, order, pull, self.support)
        spread = label_spread(sources)
        decoded = decode_labels(sources, self.support, scored, spread.centre)
        return explained(sources, self.support, scored, spread, decoded)

    def _histogram(self, number: int) -> NoisyPrior:
        entropy, rows = seeded_entropy(10**6 + number), self.labels.size
        places = self.grid.round(self.labels, entropy.words("rounding", 0, rows))
        counts = np.bincount(places, minlength=len(self.grid))
        return private_prior(counts, self.prior_epsilon, entropy)


def _dealt(scored: Scored, order: Indices, pull: float, support: Support) -> Scored:
    found = scored.predicted
    points = found.points[order]
    points = points.mean() + pull * (points - points.mean())
    beliefs = found.distributions
    if beliefs is not None:
        beliefs = pull * beliefs[order] + (1 - pull) * beliefs.mean(axis=0)
    return replace(scored, predicted=Predictions(points, beliefs), averaging=0.0)


def build(data_set: DataSet, epsilon: float, seed: int, deal: bool = False) -> Case:
    """Train on one release; ``deal`` deals the features to other events first."""
    table = data_set.load()
    if table.height > _MOST_ROWS:
        table = table.sample(_MOST_ROWS, seed=0, shuffle=True)
    labels = table[data_set.label].cast(pl.Float64).to_numpy()
    labels = np.clip(labels, data_set.lower, data_set.upper)
    rows, entropy = labels.size, seeded_entropy(seed)
    grid = DomainSection(lower=data_set.lower, upper=data_set.upper).build(rows, epsilon)
    places = grid.round(labels, entropy.words("rounding", 0, rows))
    counts = np.bincount(places, minlength=len(grid))
    both = two_step(counts, grid, epsilon, entropy, Recipe())
    channel = both.randomizer.channel
    codes = channel.sample(places, entropy.words("labels", 0, rows))
    features = table.drop(data_set.label).with_columns(pl.Series(_KEY, np.arange(rows)))
    if deal:
        features = features.sample(fraction=1.0, shuffle=True, seed=seed)
    joined = Joined(features, codes, MatchCounts(rows, rows, rows), np.arange(rows))
    problem = LabelProblem.from_channel(channel, both.prior.probabilities)
    split = split_holdout(rows, 0.2, seed)
    events = Prepared(joined, *split, problem, "simulation", _KEY)
    model = train(events, TrainingSection(seed=seed), DataSection(key=_KEY))
    found = unseen(model, events)
    scored = found.judged_by(SQUARED)
    true, held = labels[found.matched], scored.held_out
    error = float(np.mean((scored.predicted.points - true)[held] ** 2))
    constant = float(np.mean((labels[events.training].mean() - true[held]) ** 2))
    share = float(both.split.prior)
    return Case(true, 1 - error / constant, model.support, scored, grid, channel, share)


def measure(case: Case, releases: range) -> dict[str, float]:
    """Coverage, half-widths and how often the verdict is which, over some releases."""
    found = [case.evaluate(release) for release in releases]
    rng = np.random.default_rng(0)
    dealt = [
        case.evaluate(release, rng.permutation(case.labels.size), pull=(0.1, 1.0)[release % 2])
        for release in releases
    ]
    numbers: dict[str, float] = {"truth": case.truth}
    for name in ("free", "assisted"):
        shares = [getattr(one, name) for one in found]
        numbers |= {
            f"{name} mean": float(np.mean([one.value for one in shares])),
            f"{name} coverage": float(np.mean([s.low <= case.truth <= s.high for s in shares])),
            f"{name} half-width": float(np.median([(s.high - s.low) / 2 for s in shares])),
        }
    for name, several in (("better", found), ("better, dealt", dealt)):
        numbers[name] = float(np.mean([one.verdict == "better" for one in several]))
    return numbers


def main() -> None:
    """Run what is present; every case's model and result are kept and taken up again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="data sets; all that are present if none is named")
    parser.add_argument("--releases", type=int, default=200, help="releases a case (200)")
    parser.add_argument("--epsilon", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for data_set in DATA_SETS:
        if data_set.missing or (options.names and data_set.name not in options.names):
            continue
        for epsilon in options.epsilon:
            place = options.out / f"{data_set.name}-{epsilon:g}"
            model, result = place.with_suffix(".pickle"), place.with_suffix(".json")
            if not model.exists():
                model.write_bytes(pickle.dumps(build(data_set, epsilon, seed=1)))
            if not result.exists():
                case = pickle.loads(model.read_bytes())
                result.write_text(json.dumps(measure(case, range(options.releases))))
            numbers = json.loads(result.read_text())
            rows.append({"data set": data_set.name, "ε": epsilon, **numbers})
            print(rows[-1], flush=True)
    if rows:
        (options.out / "coverage.md").write_text(_markdown(rows))


def _markdown(rows: list[dict[str, float | str]]) -> str:
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
