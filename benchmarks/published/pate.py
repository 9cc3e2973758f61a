"""PATE: the least ε at which each aggregator's student is as good as a target.

Published: Papernot et al., ICLR 2018 (multi-class); Zhu and Wang, AISTATS 2022 (multi-label).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import markdown
from benchmarks.published import sources
from benchmarks.published.panels import panels
from labelveil.common.arrays import Booleans
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError
from labelveil.common.guarantees import epsilon_at
from labelveil.common.mechanisms.pate import (
    BinaryVote,
    ClippedVote,
    ConfidentGNMax,
    FullVote,
    GNMax,
    Norm,
    StableMajority,
    StableVote,
    class_votes,
    incurred_epsilon,
    label_votes,
    partition,
    train_student,
    train_teachers,
)
from labelveil.common.mechanisms.selection import Law
from labelveil.common.report.figures import logarithmic

DELTA = 1e-5
TEACHERS = 100
SEEDS = 5
MODELS: dict[str, str | None] = {
    "unequal": None,
    "chest": "nih_chestxray14_labels.parquet",
    "letters": "letter_recognition.parquet",
    "yeast": "mulan_yeast.parquet",
}
"""Of teachers, and the file that each needs."""

Aggregator = StableVote | StableMajority | FullVote | ClippedVote


@dataclass(frozen=True)
class Point:
    """One aggregator at one noise level.

    ``epsilon`` is guaranteed, ``incurred`` is data-dependent (NaN where there is none), ``quality``
    is the student's accuracy, or the released labels' where there is no student.
    """

    task: str
    aggregator: str
    epsilon: float
    incurred: float
    quality: float
    answered: int


@dataclass(frozen=True)
class Outcome:
    """All points of a task, and the quality that noise-free votes reach."""

    task: str
    ceiling: float
    points: list[Point]

    def least(self, slack: float = 0.02) -> dict[str, Point]:
        """Each aggregator's cheapest point within ``slack`` of the ceiling."""
        good = [p for p in self.points if p.quality >= self.ceiling - slack]
        names = dict.fromkeys(p.aggregator for p in self.points)
        return {
            name: min((p for p in good if p.aggregator == name), key=lambda p: p.epsilon)
            for name in names
            if any(p.aggregator == name for p in good)
        }


def classes(task: sources.Task, classes: int, student: Callable[[], Any]) -> Outcome:
    """GNMax and Confident-GNMax with nearest-neighbour teachers."""
    from sklearn.neighbors import KNeighborsClassifier

    x, y = task.private
    shards = partition(len(x), TEACHERS, seeded_entropy(31))
    teachers = train_teachers(lambda: KNeighborsClassifier(1), x, y, shards)
    queries, truth = task.public
    votes = class_votes(teachers, queries, classes)

    def report(answers: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return train_student(student, queries, answers, *task.test, DELTA, truth)

    clean = report(GNMax(Fraction(1, 4096)).draw(votes, seeded_entropy(0)))
    points = []
    for sigma in (2, 3, 4, 6, 8, 10, 13, 16, 20, 26, 34):
        variance = Fraction(sigma * sigma)
        aggregators: dict[str, GNMax | ConfidentGNMax] = {
            "GNMax": GNMax(variance),
            "Confident-GNMax": ConfidentGNMax(TEACHERS // 2, 3 * variance, variance, len(queries)),
        }
        for name, aggregator in aggregators.items():
            answers = aggregator.draw(votes, seeded_entropy(sigma))
            try:
                result = report(answers)
            except DataError:
                continue
            points.append(
                Point(
                    task.name,
                    name,
                    result.privacy.epsilon,
                    result.incurred_epsilon or float("nan"),
                    result.accuracy,
                    result.answered,
                )
            )
    return Outcome(task.name, clean.accuracy, points)


def clipped(variance: Fraction, labels: int, replacing: bool) -> Iterator[tuple[str, Aggregator]]:
    """PATE-τ in each norm, with the τ that leaves votes for so many labels as they are."""
    for norm in (Norm.L2, Norm.L1, Norm.L0):
        tau = Fraction(labels**0.5).limit_denominator(64) if norm == Norm.L2 else Fraction(labels)
        yield f"PATE-τ, {norm.name}", ClippedVote(variance, tau, norm, replacing=replacing)


def aggregators(queries: int, replacing: bool) -> Iterator[tuple[str, Aggregator]]:
    """Every multi-label aggregator at a ladder of noise levels; PATE-τ at every τ worth trying."""
    failure = Fraction(DELTA) / 4 / queries
    for step in range(15):
        rho = Fraction(2 * 0.6**step).limit_denominator(1 << 20)
        variance = Fraction(2 * 1.6**step).limit_denominator(64)
        yield "StableTopK", StableVote(rho, failure, replacing=replacing)
        yield "stable majority", StableMajority(rho, failure, replacing=replacing)
        yield "PATE", FullVote(variance, replacing=replacing)
        for labels in (1, 2, 3, 4):
            yield from clipped(variance, labels, replacing)
        yield "binary", BinaryVote(variance, replacing=replacing)


def label_sets(task: sources.Task, replacing: bool, student: Callable[[], Any]) -> Outcome:
    """Multi-label aggregators with teachers of the student's kind; quality is micro-F1."""
    x, y = task.private
    shards = partition(len(x), TEACHERS // 2, seeded_entropy(37))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        teachers = train_teachers(student, x, y, shards)
        queries, truth = task.public
        votes = label_votes(teachers, queries)

        def quality(answers: Any) -> float:
            model = train_student(student, queries, answers, *task.test, 0.5, truth).student
            return micro_f1(np.asarray(model.predict(task.test[0])) > 0.5, task.test[1] > 0.5)

        return _sweep(task.name, votes, replacing, quality)


def micro_f1(predicted: Booleans, truth: Booleans) -> float:
    """Harmonic mean of precision and recall over all labels together."""
    both = 2 * int(np.sum(predicted & truth))
    return both / max(1, int(predicted.sum() + truth.sum()))


def on_vectors(
    name: str, vectors: Booleans, recall: float, replacing: bool, queries: int = 300
) -> Outcome:
    """Released label vectors; there are no features, so quality is the share of exact vectors."""
    votes, truth = sources.votes_on(vectors, 2 * TEACHERS, queries, recall, 0.03)

    def quality(answers: Any) -> float:
        exact = np.all(answers.labels == truth, axis=1) & answers.answered
        return float(exact.mean())

    return _sweep(f"{name}, recall {recall:g}", votes, replacing, quality)


def many_attributes(vectors: Booleans, queries: int = 300, seed: int = 0) -> Outcome:
    """40 attributes of faces and 200 teachers; quality is the share of right attributes.

    As published: labels that the aggregator does not name are absent, so it is right about most
    attributes of a query that it leaves open. PATE-τ has τ = 1 to 10 labels, in hindsight. Each
    repetition has queries, votes and noise of its own.
    """
    votes, truth = sources.votes_on(vectors, 2 * TEACHERS, queries, 0.97, 0.03, 29 + seed)
    return _right_labels(f"{vectors.shape[1]} attributes", votes, truth, seed)


def _right_labels(name: str, votes: Booleans, truth: Booleans, seed: int) -> Outcome:
    def quality(answers: Any) -> float:
        return float(np.mean(answers.labels == truth))

    queries = len(truth)
    failure = Fraction(DELTA) / 4 / queries
    ladder: list[tuple[str, Aggregator]] = []
    for step in range(22):
        rho = Fraction(0.4 * 0.75**step).limit_denominator(1 << 20)
        variance = Fraction(8 * 1.35**step).limit_denominator(64)
        ladder.append(("PATE", FullVote(variance, replacing=False)))
        for labels in (1, 2, 4, 6, 8, 10):
            ladder += clipped(variance, labels, False)
        ladder += [
            ("stable majority", StableMajority(rho, failure, replacing=False)),
            ("StableTopK", StableVote(rho, failure, replacing=False)),
            (
                "StableTopK, Gaussian choice",
                StableVote(rho, failure, most=20, choice_law=Law.GAUSSIAN, replacing=False),
            ),
        ]
    return _sweep(name, votes, False, quality, ladder, seed)


def of_model(model: str, seed: int, queries: int = 40) -> Outcome:
    """As :func:`many_attributes`, for other models of 200 teachers, drawn or trained.

    ``unequal``: attributes of CelebA's sizes, and labels that are unequally hard; ``chest``: the
    same for findings on X-rays; ``letters``: nearest neighbour of a hundredth of the private rows,
    a vote for one of 26; ``yeast``: logistic regressions, 14 labels, fifty teachers.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier
    from sklearn.neighbors import KNeighborsClassifier

    if model in ("unequal", "chest"):
        vectors = sources.chest() if model == "chest" else sources.like_celeba()
        drawn = sources.unequally_hard(vectors, 2 * TEACHERS, queries, seed)
        return _right_labels(model, *drawn, seed)
    task = sources.letters() if model == "letters" else sources.yeast()
    teachers = 2 * TEACHERS if model == "letters" else TEACHERS // 2
    made: dict[str, Callable[[], Any]] = {
        "letters": lambda: KNeighborsClassifier(1),
        "yeast": lambda: MultiOutputClassifier(LogisticRegression(max_iter=200)),
    }
    shards = partition(len(task.private[0]), teachers, seeded_entropy(200 + seed))
    rows = slice(queries * seed, queries * (seed + 1))
    asked, truth = task.public[0][rows], task.public[1][rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = train_teachers(made[model], *task.private, shards)
        if model == "yeast":
            return _right_labels(model, label_votes(trained, asked), truth > 0, seed)
    chosen = np.array([teacher.predict(asked) for teacher in trained])
    return _right_labels(model, np.eye(26, dtype=np.bool_)[chosen], np.eye(26)[truth] > 0, seed)


def table_of_models(outcomes: dict[str, list[Outcome]]) -> str:
    """Least ε of each aggregator by model, mean and standard error over seeds; and the ceilings."""
    names = list(dict.fromkeys(p.aggregator for runs in outcomes.values() for p in runs[0].points))
    rows = []
    for model, runs in outcomes.items():
        row = [model, f"{np.mean([run.ceiling for run in runs]):.3f}"]
        for name in names:
            least = [run.least(0.01).get(name) for run in runs]
            found = [point.epsilon for point in least if point is not None]
            error = np.std(found, ddof=1) / len(found) ** 0.5 if len(found) > 1 else np.nan
            shown = f"{np.mean(found):.2f} ± {error:.2f}" if found else "never"
            missed = len(runs) - len(found)
            row.append(shown + (f" ({missed} never)" if missed and found else ""))
        rows.append(row)
    return markdown(["model", "right, noise-free", *names], rows)


def ratio(runs: list[Outcome], one: str, other: str, slack: float = 0.01) -> str:
    """The least ε of one aggregator over that of another, mean and standard error over runs."""
    pairs = [(run.least(slack).get(one), run.least(slack).get(other)) for run in runs]
    found = [a.epsilon / b.epsilon for a, b in pairs if a is not None and b is not None]
    if len(found) < 2:
        return "never"
    error = np.std(found, ddof=1) / len(found) ** 0.5
    return f"{np.mean(found):.2f} ± {error:.2f}"


def by_set_size(
    replacing: bool, sizes: tuple[int, ...] = (1, 2, 4, 8, 16), queries: int = 100
) -> list[Outcome]:
    """40 labels, 200 teachers of whom 196 agree: where does StableTopK's cost stop growing?

    PATE-τ is given the τ that fits: the size of every set.
    """
    outcomes = []
    for size in sizes:
        truth = np.zeros((queries, 40), dtype=np.bool_)
        for i in range(queries):
            truth[i, (7 * i + np.arange(size)) % 40] = True
        votes = np.repeat(truth[None], 200, axis=0)
        votes[:4] = False

        def quality(answers: Any, wanted: Booleans = truth) -> float:
            return float(np.mean(np.all(answers.labels == wanted, axis=1) & answers.answered))

        failure = Fraction(DELTA) / 4 / queries
        ladder: list[tuple[str, Aggregator]] = []
        for step in range(26):
            rho = Fraction(0.05 * 0.82**step).limit_denominator(1 << 20)
            variance = Fraction(60 * 1.2**step).limit_denominator(64)
            ladder += [
                ("StableTopK", StableVote(rho, failure, replacing=replacing)),
                ("stable majority", StableMajority(rho, failure, replacing=replacing)),
                ("PATE", FullVote(variance, replacing=replacing)),
                *clipped(variance, size, replacing),
            ]
        outcomes.append(_sweep(f"agreed sets of {size}", votes, replacing, quality, ladder))
    return outcomes


def _sweep(
    name: str,
    votes: Booleans,
    replacing: bool,
    quality: Callable[[Any], float],
    ladder: Iterable[tuple[str, Aggregator]] | None = None,
    seed: int = 0,
) -> Outcome:
    clean = FullVote(Fraction(1, 4096)).draw(votes, seeded_entropy(0))
    points = []
    for aggregator, mechanism in ladder or aggregators(votes.shape[1], replacing):
        answers = mechanism.draw(votes, seeded_entropy(41 + seed))
        try:
            reached = quality(answers)
        except DataError:
            continue
        incurred = (
            float("nan") if answers.incurred is None else incurred_epsilon(answers.incurred, DELTA)
        )
        epsilon = epsilon_at(answers.guarantee, DELTA)
        points.append(
            Point(name, aggregator, epsilon, incurred, reached, int(answers.answered.sum()))
        )
    return Outcome(name + (", replacing" if replacing else ""), quality(clean), points)


def table(outcomes: list[Outcome], slack: float = 0.02) -> str:
    """The least ε of each aggregator at equal quality, as Markdown."""
    rows = []
    for outcome in outcomes:
        cheapest = outcome.least(slack)
        for name in dict.fromkeys(p.aggregator for p in outcome.points):
            cells, point = ["never", "–", "–", "–"], cheapest.get(name)
            if point is not None:
                incurred = "–" if np.isnan(point.incurred) else f"{point.incurred:.2f}"
                quality = f"{point.quality:.3f}"
                cells = [f"{point.epsilon:.2f}", incurred, quality, str(point.answered)]
            rows.append([outcome.task, f"{outcome.ceiling:.3f}", name, *cells])
    head = ("task", "quality of noise-free votes", "aggregator", f"ε within {slack:g} of it",
            "incurred ε", "quality", "answered")  # fmt: skip
    return markdown(head, rows)


def plot(outcomes: list[Outcome], path: Path) -> None:
    """Best quality up to each ε, for every task and aggregator."""
    tasks = {outcome.task: outcome for outcome in outcomes}
    with panels(path, tasks) as axes:
        for task, axis in axes.items():
            points = tasks[task].points
            for name in dict.fromkeys(p.aggregator for p in points):
                row = sorted((p.epsilon, p.quality) for p in points if p.aggregator == name)
                best = np.maximum.accumulate([quality for _, quality in row])
                axis.plot([epsilon for epsilon, _ in row], best, label=name, marker="o", ms=3)
            axis.axhline(tasks[task].ceiling, color="grey", lw=0.8, ls="--")
            logarithmic(axis, "x", "ε at δ = 1e-5")
            axis.set_ylabel("best quality up to ε")
        next(iter(axes.values())).legend(fontsize=7)
