"""How often the intervals of an evaluation contain the truth: ``make coverage``.

*Fixed models.* For every data set that is present and every ε one model is trained on one release.
Then the same labels are released again and again, and the model is evaluated from each release
alone: its intervals should contain R² against the true labels of the held-out events in 95 % of
them. With its predictions dealt to other events, and those pulled close to the mean as training
does that finds nothing, no more than 5 % may call it better. Codes and histogram are fresh in every
release: one histogram for several of them would make their errors one.

*Trained models.* Other events, another release of them and another training every time, evaluated
from the release that it was trained on, as anybody does; and the same with the labels of other
events.

*Tails.* Fixed models of labels with a heavy tail, and whether labels clipped below it tell more.

Models, with the histograms of their releases, and results are kept in ``out/coverage`` and taken up
again: without the results all is evaluated anew, from the same releases. Of the tables of
docs/appendix/coverage.md those are written whose results lie there.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import binomtest

from benchmarks.harness import markdown
from labelveil.common.arrays import Floats, Indices
from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.randomizers.prior import NoisyPrior, private_prior
from labelveil.feature_party.config.sections import DataSection, TrainingSection
from labelveil.feature_party.evaluation.clipped_labels import Clipped, explained_below
from labelveil.feature_party.evaluation.decoded_labels import Scored, decode_labels, tilted
from labelveil.feature_party.evaluation.explained import Explained, explained
from labelveil.feature_party.evaluation.losses import SQUARED
from labelveil.feature_party.evaluation.spread import ReleasedCodes, label_spread
from labelveil.feature_party.evaluation.unseen import Unseen, unseen
from labelveil.feature_party.learning.problem import LabelProblem, sums
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from labelveil.feature_party.training.events import TrainingSetup
from labelveil.feature_party.training.holdout import draw_holdout
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.run import train
from tests.data_sets import BIKE, CENSUS, CRITEO, DIAMONDS, HOUSING, RANDHIE, RETAIL, DataSet
from tests.one_label import one_label

EPSILONS = (0.5, 1.0, 2.0, 4.0)
FIXED = (HOUSING, CENSUS, RETAIL, RANDHIE, BIKE, DIAMONDS)
TRAINED = (DIAMONDS, HOUSING, BIKE)
TAILS = (RETAIL, RANDHIE, CRITEO)
NAMES = {"randhie": "visits", "bike": "bike sharing"}
OUT = Path("out/coverage")
PAGE = Path("docs/appendix/coverage.md")
_KEY = "event of the simulation"
_DECODINGS = 25
_DEALT = 4
"""Predictions are dealt to other events in every fourth release."""


@dataclass(frozen=True, eq=False)
class Case:
    """Events with a trained model's predictions, and how their labels are released."""

    labels: Floats  # (n,) true ones of the rows scored
    support: Support
    unseen: Unseen
    grid: Grid
    channel: FiniteChannel
    prior_epsilon: float
    own: list[ReleasedCodes]  # the release that the model was trained on
    histograms: dict[int, NoisyPrior] = field(default_factory=dict)
    """Of fresh releases so far: smoothing one takes longer than all that is measured."""

    @cached_property
    def scored(self) -> Scored:
        """Its predictions."""
        return self.unseen.judged_by(SQUARED)

    @property
    def truth(self) -> float:
        """R² of the whole model on the held-out events, beside the constant that is public."""
        return self._r2(self.scored.predicted.points, self.labels, self.own[0].problem.mean)

    def _r2(self, points: Floats, labels: Floats, centre: float) -> float:
        held = self.scored.held_out
        error = float(np.mean((points[held] - labels[held]) ** 2))
        return 1 - error / float(np.mean((centre - labels[held]) ** 2))

    def clipped(self, release: list[ReleasedCodes]) -> tuple[Clipped, float] | None:
        """What the release tells of clipped labels, and their true R²."""
        problem = release[0].problem
        found = explained_below(problem, release, self.support, self.unseen)
        if found is None:
            return None
        values = np.minimum(problem.grid, found.bound)
        below = sums(self.support.cell_of, self.support.within * values, self.support.size)
        laws = tilted(self.support)
        points = np.interp(self.scored.predicted.points, laws @ self.support.values, laws @ below)
        labels = np.minimum(self.labels, found.bound)
        return found, self._r2(points, labels, float(values @ problem.prior))

    def released(self, number: int) -> list[ReleasedCodes]:
        """Return a fresh release of the labels."""
        places, codes = self._sent(number)
        if number not in self.histograms:
            counts = np.bincount(places, minlength=len(self.grid))
            entropy = seeded_entropy(1000 + number)
            self.histograms[number] = private_prior(counts, self.prior_epsilon, entropy)
        histogram = self.histograms[number]
        problem = LabelProblem.from_channel(self.channel, histogram.probabilities)
        rows = np.arange(self.labels.size)
        return [ReleasedCodes(problem, histogram, self.grid.points, rows, codes)]

    def _sent(self, number: int) -> tuple[Indices, Indices]:
        """Labels rounded to the grid, and fresh codes of them."""
        entropy, rows = seeded_entropy(1000 + number), self.labels.size
        places = self.grid.round(self.labels, entropy.words("rounding", 0, rows))
        codes = self.channel.sample(places, entropy.words("labels", 0, rows))
        return places, codes.astype(np.int64)

    def judged(self, release: list[ReleasedCodes], scored: Scored | None = None) -> Explained:
        """Evaluate its predictions, or others, from a release."""
        scored = self.scored if scored is None else scored
        spread = label_spread(release)
        decoded = decode_labels(release, self.support, scored, spread.centre)
        return explained(release, self.support, scored, spread, decoded)

    def correlation(self) -> float:
        """The correlation that κ stands for, from true labels and the mean of many decodings."""
        (source,), scored, errors = self.own, self.scored, []
        away = scored.predicted.points - source.problem.mean
        for number in range(_DECODINGS):
            again = replace(source, codes=self._sent(number)[1])
            decoded = decode_labels([again], self.support, scored, source.problem.mean)
            errors.append(np.mean(away * (decoded.model_assisted - self.labels)))
        return float(np.mean(errors) / (np.sqrt(np.mean(away**2)) * decoded.trusted))

    def dealt(self, order: Indices, pull: float) -> Scored:
        """Return predictions of the rows ``order``, pulled to their mean."""
        found = self.scored.predicted
        points = found.points[order]
        points = points.mean() + pull * (points - points.mean())
        beliefs = found.distributions
        if beliefs is not None:
            beliefs = pull * beliefs[order] + (1 - pull) * beliefs.mean(axis=0)
        return replace(self.scored, predicted=Predictions(points, beliefs), averaging=0.0)


def build(data_set: DataSet, epsilon: float, seed: int, rows: int, deal: bool = False) -> Case:
    """Draw events, release their labels and train; ``deal`` gives features to other events."""
    table = data_set.load()
    if table.height > rows:
        table = table.sample(rows, seed=seed, shuffle=True)
    labels = table[data_set.label].cast(pl.Float64).to_numpy()
    labels = np.clip(labels, data_set.lower, data_set.upper)
    rows, entropy = labels.size, seeded_entropy(seed)
    whole = table[data_set.label].dtype.is_integer()
    terms = LabelTerms(data_set.label, data_set.lower, data_set.upper, whole=whole)
    grid = terms.own_grid(rows, epsilon)
    places = grid.round(labels, entropy.words("rounding", 0, rows))
    counts = np.bincount(places, minlength=len(grid))
    both = one_label(counts, grid, epsilon, entropy)
    channel = both.channel
    codes = channel.sample(places, entropy.words("labels", 0, rows))
    features = table.drop(data_set.label)
    if deal:
        features = features.sample(fraction=1.0, shuffle=True, seed=seed)
    features = features.with_columns(pl.Series(_KEY, np.arange(rows)))
    problem = LabelProblem.from_channel(channel, both.prior.probabilities)
    events = Prepared.of_table(features, codes, problem, draw_holdout(rows, 0.2, seed), _KEY)
    data = DataSection(key=_KEY)
    model = train(events, TrainingSetup(TrainingSection(seed=seed), data))
    found = unseen(model, events)
    true = labels[found.matched]
    share, sent = float(both.epsilon_prior), found.codes.astype(np.int64)
    own = [ReleasedCodes(problem, both.prior, grid.points, np.arange(sent.size), sent)]
    kept = replace(found, table=found.table.clear())
    return Case(true, model.support, kept, grid, channel, share, own)


def record(found: Explained, truth: float) -> dict[str, Any]:
    """What one evaluation said, beside the truth."""
    told: dict[str, Any] = {"truth": truth, "verdict": found.verdict}
    told["associated"] = bool(found.associated)
    for name, share in (("assumption-free", found.assumption_free), ("assisted", found.share)):
        told[name] = [max(share.low, -9.0), share.value, share.high]
    return told


def fixed(case: Case, releases: int) -> list[dict[str, Any]]:
    """One model, evaluated from fresh releases."""
    rng, found = np.random.default_rng(0), []
    for number in range(releases):
        release = case.released(number)
        found.append(record(case.judged(release), case.truth))
        if number % _DEALT == 0:
            order = rng.permutation(case.labels.size)
            dealt = case.dealt(order, (0.1, 1.0)[number // _DEALT % 2])
            found[-1]["dealt"] = case.judged(release, dealt).verdict
    return found


def tails(case: Case, releases: int) -> list[dict[str, Any]]:
    """The same of a heavy tail, with what its clipped labels tell."""
    rng, found = np.random.default_rng(0), []
    for number in range(releases):
        release = case.released(number)
        found.append(record(case.judged(release), case.truth))
        other = case.judged(release, case.dealt(rng.permutation(case.labels.size), 1.0))
        found[-1] |= {"dealt": other.verdict, "dealt associated": bool(other.associated)}
        if (told := case.clipped(release)) is not None:
            clipped, truth = told
            found[-1]["clipped"] = record(clipped.explained, truth) | {"bound": clipped.bound}
    return found


def trained(case: Case) -> list[dict[str, Any]]:
    """One model, evaluated from the release that it was trained on."""
    return [{**record(case.judged(case.own), case.truth), "correlation": case.correlation()}]


def main() -> None:
    """Run what is present."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("fixed", "trained", "dealt", "tails", "table"))
    parser.add_argument("names", nargs="*", help="data sets; all that are present if none is named")
    parser.add_argument("--epsilon", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--rows", type=int, default=40_000, help="events at most")
    parser.add_argument("--releases", type=int, default=200, help="of a fixed model (200)")
    parser.add_argument("--trainings", type=int, help="models (20; of fixed ones 1)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing later than this")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    one_model = options.what in ("fixed", "tails")
    began, trainings = time.monotonic(), options.trainings or (1 if one_model else 20)
    sets = {"fixed": FIXED, "tails": TAILS}.get(options.what, TRAINED)
    present = [one for one in sets if not one.missing]
    jobs = [
        (options.out / f"{options.what}-{one.name}-{epsilon:g}-{options.rows}-{seed}", one, epsilon)
        for seed in range(1, trainings + 1)
        for one in present
        for epsilon in options.epsilon
        if options.what != "table" and (not options.names or one.name in options.names)
    ]
    for place, data_set, epsilon in jobs:
        if time.monotonic() - began > 60 * options.minutes:
            break
        model, result = (place.with_name(f"{place.name}.{end}") for end in ("pickle", "json"))
        if not model.exists():
            seed = int(place.name.rpartition("-")[2])
            made = build(data_set, epsilon, seed, options.rows, options.what == "dealt")
            model.write_bytes(pickle.dumps(made))
        if not result.exists():
            case = pickle.loads(model.read_bytes())
            again = {"fixed": fixed, "tails": tails}.get(options.what)
            found = trained(case) if again is None else again(case, options.releases)
            result.write_text(json.dumps(found))
            model.write_bytes(pickle.dumps(case))
            print(place.name, *(_tail if options.what == "tails" else _cells)(found), flush=True)
    page = PAGE.read_text("utf-8")
    for what, table in _tables(options.out).items():
        head, begin, rest = page.partition(f"<!-- begin: {what}, written by make coverage -->\n")
        assert begin, f"{PAGE} has no place for {what}"
        page = f"{head}{begin}{table}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    PAGE.write_text(page, "utf-8")


def _tables(out: Path) -> dict[str, str]:
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for path in sorted(out.glob("*.json")):
        what, name, epsilon, rows, _ = path.stem.split("-")
        found.setdefault((what, name, epsilon, rows), []).extend(json.loads(path.read_text()))
    order = [one.name for one in (*FIXED, CRITEO)]
    tables = dict[str, str]()
    for what, columns in _HEADS.items():
        title = "releases" if what in ("fixed", "tails") else "trainings"
        keys = sorted((k for k in found if k[0] == what), key=lambda k: (order.index(k[1]), k[2]))
        head = ["data set", "ε", "events ≤", title, "R²", *columns]
        lines = list[tuple[str, ...]]()
        for key in keys:
            name, most = NAMES.get(key[1], key[1]), f"{int(key[3]):,}"
            told = (_tail if what == "tails" else _cells)(found[key])
            lines.append((name, key[2], most, str(len(found[key])), *told, "–")[: len(head)])
        if lines:
            tables[what] = markdown(head, lines)
    return tables


_INTERVALS = ("assumption-free: coverage, half-width", "model-assisted: coverage, half-width")
_HEADS = {
    "fixed": (*_INTERVALS, "better", "dealt"),
    "trained": (*_INTERVALS, "better", "κ: root mean square, largest"),
    "dealt": (*_INTERVALS, "better"),
    "tails": ("better", "associated", "dealt: better, associated", "clipped at", "its R²",
              *_INTERVALS, "better"),
}  # fmt: skip


def _cells(found: Sequence[dict[str, Any]]) -> list[str]:
    """True R², coverage and half-width of both intervals, and how often the verdict is *better*."""
    cells = [f"{np.mean([one['truth'] for one in found]):.2f}"]
    for name in ("assumption-free", "assisted"):
        hits = sum(one[name][0] <= one["truth"] <= one[name][2] for one in found)
        half = np.median([(one[name][2] - one[name][0]) / 2 for one in found])
        cells.append(f"{_share(hits, len(found))}, {half:.2f}")
    verdicts = [one["verdict"] for one in found]
    dealt = [one["dealt"] for one in found if "dealt" in one]
    several = filter(None, (verdicts, dealt))
    cells += [_share(one.count("better"), len(one)) for one in several]
    if all("correlation" in one for one in found):
        trust = np.abs([one["correlation"] for one in found])
        cells.append(f"{np.sqrt(np.mean(trust**2)):.2f}, {trust.max():.2f}")
    return cells


def _tail(found: Sequence[dict[str, Any]]) -> list[str]:
    """What is told of whole labels, in shares, and of clipped ones, as in ``_cells``."""
    every, count = len(found), sum
    cells = [f"{found[0]['truth']:.2f}", _share(count(_better(one) for one in found), every)]
    cells.append(_share(count(one["associated"] for one in found), every))
    dealt = (count(one["dealt"] == "better" for one in found),
             count(one["dealt associated"] for one in found))  # fmt: skip
    cells.append(" and ".join(_share(each, every) for each in dealt))
    clipped = [one["clipped"] for one in found if "clipped" in one]
    if not clipped:
        return [*cells, *["–"] * 5]
    bounds = sorted(one["bound"] for one in clipped)
    return [*cells, f"{bounds[0]:.3g}–{bounds[-1]:.3g} ({len(bounds)})", *_cells(clipped)]


def _better(one: dict[str, Any]) -> bool:
    return bool(one["verdict"] == "better")


def _share(hits: int, of: int) -> str:
    """A share with its 95% interval (Clopper and Pearson)."""
    interval = binomtest(hits, of).proportion_ci(0.95)
    return f"{hits / of:.0%} ({interval.low:.0%}–{interval.high:.0%})"


if __name__ == "__main__":
    main()
