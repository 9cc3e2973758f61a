"""How well two sums tell R² after rounds of codes, and how often they hold: some minutes a row.

One model of half of a data set's true labels is judged again and again, as after rounds: events are
drawn from the other half, codes of a first round's share say what is known beforehand, and two sums
about those that are held out of later rounds tell R², where the pipeline would ask for them. Beside
it stands what one message of all events tells of the same model. Everything is drawn afresh:
events, rounding and the noise of sums in every run, histogram and codes in every fifth.

    python -m benchmarks.score_coverage housing bike diamonds --epsilon 1 0.5 --runs 200
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl
import polars.selectors as cs

from benchmarks.harness import markdown
from labelveil.common.arrays import Floats
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.group_sums import Lattice, NoisySums, PrivateSums
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.feature_party.evaluation.decoded_labels import Scored, decode_labels
from labelveil.feature_party.evaluation.explained import Explained, explained
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.evaluation.spread import ReleasedCodes, Spread, label_spread
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from labelveil.feature_party.pipeline.score import Judged, ask_score, read_score
from tests.data_sets import BIKE, DIAMONDS, HOUSING, DataSet
from tests.one_label import one_label

SETS = {one.name: one for one in (HOUSING, BIKE, DIAMONDS)}
EVENTS, HELD, FIRST, EACH = 20_000, 0.2, 0.15, 5
"""Events, shares held out and of a first round; draws of what is held out after each of these."""


@dataclass(frozen=True, eq=False)
class Judging:
    """Events that a model was not trained on: its predictions, and the true labels."""

    points: Floats
    labels: Floats
    terms: LabelTerms

    @classmethod
    def from_data_set(cls, data_set: DataSet) -> Judging:
        from sklearn.ensemble import HistGradientBoostingRegressor

        table = data_set.load().sample(fraction=1.0, shuffle=True, seed=0)
        labels = np.clip(
            table[data_set.label].cast(pl.Float64).to_numpy(), data_set.lower, data_set.upper
        )
        words = (~cs.numeric()).cast(pl.String).rank("dense")
        features = table.drop(data_set.label).with_columns(words).cast(pl.Float64).to_numpy()
        half = labels.size // 2
        model = HistGradientBoostingRegressor(random_state=0).fit(features[:half], labels[:half])
        points = model.predict(features[half:])
        whole = table[data_set.label].dtype.is_integer()
        terms = LabelTerms(data_set.label, data_set.lower, data_set.upper, whole=whole)
        return cls(np.clip(points, data_set.lower, data_set.upper), labels[half:], terms)

    @property
    def r2(self) -> float:
        """Of all these events, which runs draw theirs from."""
        error = np.mean((self.points - self.labels) ** 2)
        return 1 - float(error / np.mean((self.labels - self.labels.mean()) ** 2))

    def by_codes(
        self, points: Floats, labels: Floats, epsilon: float, seed: int
    ) -> tuple[Explained, Spread, LabelProblem]:
        """What one message of all these events tells of predictions for them."""
        rows, entropy = labels.size, seeded_entropy(seed)
        grid = self.terms.own_grid(rows, epsilon)
        places = grid.round(labels, entropy.words("rounding", 0, rows))
        both = one_label(np.bincount(places, minlength=len(grid)), grid, epsilon, entropy)
        channel = both.channel
        codes = channel.sample(places, entropy.words("labels", 0, rows)).astype(np.int64)
        problem = LabelProblem.from_channel(channel, both.prior.probabilities)
        release = [ReleasedCodes(problem, both.prior, grid.points, np.arange(rows), codes)]
        support = Support.from_problem(problem)
        scored = Scored(Predictions(points, None), np.ones(rows, dtype=np.bool_))
        spread = label_spread(release)
        decoded = decode_labels(release, support, scored, spread.centre)
        known = label_spread(release, centre=float(points.mean()))
        return explained(release, support, scored, spread, decoded), known, problem

    def first_round(self, epsilon: float, seed: int) -> Judged:
        """What the codes of a first round say beforehand."""
        rows = np.random.default_rng(seed).integers(0, self.labels.size, round(FIRST * EVENTS))
        found = self.by_codes(self.points[rows], self.labels[rows], epsilon, seed)
        return Judged.from_evaluation(*found, self.terms.whole)

    def run(self, judged: Judged, epsilon: float, seed: int) -> Measured | None:
        """What sums tell after it; None if they are not asked for."""
        rng = np.random.default_rng((seed, 1))
        lattice = Lattice.between(self.terms.lower, self.terms.upper)
        kept = rng.integers(0, self.labels.size, round(HELD * (1 - FIRST) * EVENTS))
        points, labels = self.points[kept], self.labels[kept]
        asked = ask_score(judged, points, lattice, Fraction(str(epsilon)), seed)
        if asked is None:
            return None
        noisy, entropy = NoisySums(asked.question, Fraction(str(epsilon))), seeded_entropy(seed)
        places = lattice.round(labels, entropy.words("rounding", 0, labels.size))
        score = read_score(PrivateSums(noisy, noisy.draw(places, entropy)), points, judged)
        return None if score is None else score.r2

    def one_message(self, epsilon: float, seed: int) -> Measured:
        """What codes of all events tell."""
        rows = np.random.default_rng(seed).integers(0, self.labels.size, EVENTS)
        return self.by_codes(self.points[rows], self.labels[rows], epsilon, seed)[0].share


def half(share: Measured) -> float:
    """Half of an interval, below the estimate where it is cut off at 1."""
    return (min(share.high, 1.0) - max(share.low, 0.0)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*SETS])
    parser.add_argument("--epsilon", type=float, nargs="*", default=(1.0, 0.5))
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    head = ("", "R²", "ε", "half-width: sums", "largest", "holds in", "not asked", "V known to",
            "half-width: first round's codes", "one message")  # fmt: skip
    lines = list[tuple[str, ...]]()
    for name in options.names:
        judging = Judging.from_data_set(SETS[name])
        for epsilon in options.epsilon:
            firsts = [judging.first_round(epsilon, seed) for seed in range(options.runs // EACH)]
            runs = [
                judging.run(firsts[seed // EACH], epsilon, seed)
                for seed in range(len(firsts) * EACH)
            ]
            sums = [told for told in runs if told is not None]
            hits = [share.low <= judging.r2 <= share.high for share in sums]
            whole = [half(judging.one_message(epsilon, seed)) for seed in range(1000, 1005)]
            known = np.median([first.known.error / first.known.value for first in firsts])
            codes = np.median([first.half_width for first in firsts])
            widths = [half(share) for share in sums]
            lines.append((
                name, f"{judging.r2:.2f}", f"{epsilon:g}", f"{np.mean(widths):.3f}",
                f"{max(widths):.3f}", f"{np.mean(hits):.1%} of {len(hits)}",
                f"{len(runs) - len(sums)}", f"{known:.1%}", f"{codes:.3f}",
                f"{np.median(whole):.3f}",
            ))  # fmt: skip
            print(markdown(head, lines[-1:]), flush=True)
    print(markdown(head, lines))


if __name__ == "__main__":
    main()
