"""Target charging against what it would replace, at equal budget.

Check-ins: "how many users were at this place, if at least T?", asked of every place in turn, by the
classical sparse vector with values, by a session of private tests, and with individual charging.
PATE: what an answer costs through the boundary wrapper, and by GNMax's RDP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from benchmarks.harness import markdown
from benchmarks.published import sources
from benchmarks.published.panels import panels
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import Adjacency, Unit, advanced_composition, epsilon_at
from labelveil.common.mechanisms.interactive import (
    IndividualSparseVector,
    Session,
    SparseVector,
    Terms,
    ThresholdTests,
    largest_call_epsilon,
)
from labelveil.common.mechanisms.interactive.call_count_tail import calls_until
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.pate import (
    BoundaryVote,
    GNMax,
    PriorVote,
    class_votes,
    incurred_epsilon,
    partition,
)
from labelveil.common.mechanisms.pate.teachers import train_teachers
from labelveil.common.report.figures import logarithmic, picture

DELTA = Fraction(1, 10**6)
PATE_DELTA = Fraction(1, 10**5)
BUDGETS = (1.0, 2.0, 4.0, 8.0)
LEAST_USERS = 40
PRECISION = 0.9
WITHIN = 0.25
LIMITS = (2, 4, 8, 16, 32)
OFFSETS = (5.0, 7.0, 9.0, 11.0)
"""Bars that are tried: so many noise scales above T/4, and T itself if that is more."""


@dataclass(frozen=True)
class Places:
    """A stream of questions: users of each place, in a public random order."""

    visitors: list[Integers]
    counts: Integers
    users: int


def places() -> Places:
    """BrightKite's places and who was there."""
    pairs = sources.check_ins()
    order = np.argsort(seeded_entropy(41).words("order", 0, int(pairs[:, 1].max()) + 1))
    by_place = np.argsort(pairs[:, 1], kind="stable")
    edges = np.flatnonzero(np.diff(pairs[by_place, 1])) + 1
    visitors = np.split(pairs[by_place, 0], edges)
    shuffled = [visitors[i] for i in order[order < len(visitors)].tolist()]
    counts = np.array([who.size for who in shuffled], dtype=np.int64)
    return Places(shuffled, counts, int(pairs[:, 0].max()) + 1)


Answer = Callable[[int, Entropy], dict[int, int]]
"""From a bar to the places published, with their values."""


def methods(world: Places, budget: float) -> Iterator[tuple[str, int, float, Answer]]:
    """(name, limit, scale of the noise, answers) of every method at every limit that fits."""
    for limit in LIMITS:
        vector = SparseVector.best_split(limit, Fraction(budget), Fraction(1, 3), monotone=True)
        yield "sparse vector, pure", limit, float(vector.count_scale), _sparse(world, vector)
        vector = SparseVector.refreshed(limit, Fraction(budget), DELTA, True, monotone=True)
        yield "sparse vector, (ε, δ)", limit, float(vector.count_scale), _sparse(world, vector)
        try:
            call = largest_call_epsilon(budget, DELTA, limit, grain=256)
        except PrivacyError:
            continue
        yield "target charging", limit, float(1 / call), _session(world, call, limit)
        yield "individual charging", limit, float(1 / call), _individual(world, call, limit)


def _sparse(world: Places, vector: SparseVector) -> Answer:
    def run(bar: int, entropy: Entropy) -> dict[int, int]:
        answers = vector.draw(world.counts, bar, entropy)
        assert answers.values is not None
        return {i: int(answers.values[i]) for i in np.flatnonzero(answers.above).tolist()}

    return run


def _session(world: Places, call: Fraction, hits: int) -> Answer:
    def run(bar: int, entropy: Entropy) -> dict[int, int]:
        terms = Terms(not_prior(call), hits, adjacency=Adjacency.ADD_REMOVE, unit=Unit.USER)
        session = Session(world.counts, terms, entropy)
        answers = session.run_batch(ThresholdTests(lambda c: c, bar, call, values=True))
        assert answers.values is not None
        return {i: int(answers.values[i]) for i in np.flatnonzero(answers.above).tolist()}

    return run


def _individual(world: Places, call: Fraction, hits: int) -> Answer:
    def run(bar: int, entropy: Entropy) -> dict[int, int]:
        vector = IndividualSparseVector(world.users, call, hits, entropy, Unit.USER)
        answers = vector.ask(world.visitors, bar)
        return {i: value for i, value in enumerate(answers) if value is not None}

    return run


@dataclass(frozen=True)
class Found:
    """A method's best setting at a budget: right answers with values, means over trials."""

    name: str
    budget: float
    right: float
    error: float
    published: float
    precision: float
    limit: int
    bar: int


def stream(budget: float, trials: int) -> list[Found]:
    """Each method at its best limit and bar, chosen in hindsight, alike for all.

    An answer is right if the place has at least T users and the value is within a quarter of the
    truth. Settings with a precision below 90% are left out.
    """
    world = places()
    best: dict[str, Found] = {}
    for name, limit, scale, run in methods(world, budget):
        for bar in sorted({max(LEAST_USERS, round(10 + o * scale)) for o in OFFSETS}):
            found = _measure(world, run, bar, trials, (name, budget, limit))
            old = best.get(name)
            if found.precision >= PRECISION and (old is None or found.right > old.right):
                best[name] = found
    return list(best.values())


def _measure(
    world: Places, run: Answer, bar: int, trials: int, label: tuple[str, float, int]
) -> Found:
    right, published, true = [], [], 0
    for trial in range(trials):
        shown = run(bar, seeded_entropy(1000 + trial))
        where = np.array(list(shown), dtype=np.int64)
        values = np.array(list(shown.values()), dtype=np.float64)
        truth = world.counts[where]
        enough = truth >= LEAST_USERS
        true += int(enough.sum())
        published.append(where.size)
        right.append(int(np.sum(enough & (np.abs(values - truth) <= WITHIN * truth))))
    precision = true / max(1, sum(published))
    error = float(np.std(right) / np.sqrt(trials))
    name, budget, limit = label
    return Found(
        name, budget, float(np.mean(right)), error, float(np.mean(published)), precision, limit, bar
    )


def stream_table(found: list[Found]) -> str:
    """Markdown of :func:`stream`."""
    rows = [
        [f"{f.budget:g}", f.name, f"{f.right:.1f} ± {f.error:.1f}", f"{f.published:.1f}",
         f"{f.precision:.2f}", str(f.limit), str(f.bar)]
        for f in found
    ]  # fmt: skip
    head = "ε", "method", "right, with value", "published", "precision", "limit c or τ", "bar"
    return markdown(head, rows)


def stream_plot(found: list[Found], path: Path) -> None:
    """Right answers against the budget."""
    with picture(path, 7, 4.5) as figure:
        axis = figure.subplots()
        for name in dict.fromkeys(f.name for f in found):
            row = [f for f in found if f.name == name]
            right, errors = [f.right for f in row], [f.error for f in row]
            axis.errorbar([f.budget for f in row], right, errors, label=name, marker="o", ms=4)
        logarithmic(axis, "x", "ε of the whole stream, per user (δ = 1e-6)")
        axis.set_xticks(BUDGETS)
        axis.set_ylabel(f"places with at least {LEAST_USERS} users,\nfound with a value within 25%")
        axis.legend()


def published_calls(hits: int, q: Fraction, failure: float) -> int:
    """The paper's m: ``(1 + a) τ/q`` with ``exp(−a² τ / (2(1 + a))) = δ*``, solved for a."""
    x = -math.log(failure) / hits
    a = x + math.sqrt(x * x + 2 * x)
    return math.ceil((1 + a) * hits / float(q))


def calls_table(counts: Sequence[int] = (10, 30, 100, 1000)) -> str:
    """Calls until τ hits: the paper's bound and the exact tail; ε of the whole by each route."""
    head = ("ε of a call", "τ", "calls, paper", "calls, exact", "ε, paper + advanced",
            "tail, advanced", "tail, optimal", "hit cost (RDP)", "optimum")  # fmt: skip
    rows = []
    for call in (Fraction(1, 10), Fraction(1)):
        target = not_prior(call)
        for hits in counts:
            half = float(DELTA) / 2
            m = published_calls(hits, target.probability, half)
            paper = float(advanced_composition(call, m, half))
            routes = Terms(target, hits).routes(DELTA)
            names = ("tail, advanced", "tail, optimal", "hit cost", "game")
            totals = [f"{routes[name].epsilon:.2f}" for name in names]
            exact = calls_until(hits, target.probability, half)
            rows.append([*map(str, (call, hits, m, exact)), f"{paper:.2f}", *totals])
    return markdown(head, rows)


@dataclass(frozen=True)
class Votes:
    """Votes of a task's teachers, the true classes, and the queries' public features."""

    name: str
    counts: Integers
    truth: Integers
    features: Floats

    @property
    def ceiling(self) -> float:
        """Accuracy of the noise-free votes."""
        return float(np.mean(self.counts.argmax(axis=1) == self.truth))

    def longer(self, queries: int) -> Votes:
        """A stream of any length: queries drawn again and again."""
        words = seeded_entropy(53).words("queries", 0, queries)
        rows = (words % np.uint64(len(self.counts))).astype(np.int64)
        return Votes(self.name, self.counts[rows], self.truth[rows], self.features[rows])


def votes_of(task: sources.Task, classes: int, teachers: int) -> Votes:
    """Nearest-neighbour teachers on disjoint shards; all public and test points are queries."""
    from sklearn.neighbors import KNeighborsClassifier

    x, y = task.private
    models = train_teachers(
        lambda: KNeighborsClassifier(1), x, y, partition(len(x), teachers, seeded_entropy(31))
    )
    queries = np.concatenate([task.public[0], task.test[0]])
    truth = np.concatenate([task.public[1], task.test[1]])
    votes = class_votes(models, queries, classes)
    return Votes(f"{task.name}, {teachers} teachers", votes, truth, queries)


@dataclass(frozen=True)
class Cost:
    """What answering a stream of queries costs, at equal accuracy of the answers."""

    task: str
    queries: int
    method: str
    epsilon: float
    answered: int
    accuracy: float
    setting: str


RATES = tuple(Fraction(n, 100) for n in (7, 10, 14, 20, 28, 40, 56, 80))
QUERIES = (100, 1000, 5000)
DEVIATIONS = (50, 40, 32, 26, 20, 16, 13, 10, 8, 6, 5, 4, 3)


def costs(votes: Votes, queries: int, slack: float = 0.02) -> list[Cost]:
    """The cheapest setting of each method whose answers are nearly as right as noise-free votes.

    Noise levels and τ are chosen in hindsight, alike for all; the wrapper leaves queries at the
    boundary open, and its accuracy is that of the answers it gives.
    """
    asked = votes.longer(queries)
    wanted = asked.ceiling - slack
    found = []
    for deviation in DEVIATIONS:
        answers = GNMax(Fraction(deviation**2)).draw(asked.counts, seeded_entropy(deviation))
        accuracy = float(np.mean(answers.labels == asked.truth))
        if accuracy >= wanted:
            assert answers.incurred is not None
            guaranteed = epsilon_at(answers.guarantee, PATE_DELTA)
            incurred = min(guaranteed, incurred_epsilon(answers.incurred, PATE_DELTA))
            setting = f"σ = {deviation}"
            for name, epsilon in (
                ("GNMax, guaranteed", guaranteed),
                ("GNMax, data-dependent", incurred),
            ):
                found.append(Cost(votes.name, queries, name, epsilon, queries, accuracy, setting))
            break
    for method, run in (("boundary wrapper", _boundary), ("student as prior", _surprises)):
        options: list[Cost] = []
        for rate in RATES:
            if options and options[-1].epsilon > 1.5 * options[0].epsilon:
                break  # further ones cost more
            labels, spent = run(asked, rate)
            kept = labels >= 0
            accuracy = float(np.mean(labels[kept] == asked.truth[kept])) if kept.any() else 0.0
            if accuracy < wanted:
                continue
            hits = max(1, round(spent + 3 * spent**0.5))  # enough for other noise, too
            terms = (BoundaryVote if run is _boundary else PriorVote)(rate, hits).terms
            epsilon = terms.approximate(PATE_DELTA).epsilon
            setting = f"ε = {float(rate):g}, τ = {hits}"
            answered = int(kept.sum())
            options.append(Cost(votes.name, queries, method, epsilon, answered, accuracy, setting))
        if options:
            found.append(min(options, key=lambda cost: cost.epsilon))
    return found


def _boundary(votes: Votes, rate: Fraction) -> tuple[Integers, int]:
    """Answers, and how many queries were at the boundary."""
    whole = BoundaryVote(rate, len(votes.counts) + 1).draw(votes.counts, seeded_entropy(7))
    return whole.labels, int(np.sum(whole.labels < 0))


def _surprises(votes: Votes, rate: Fraction) -> tuple[Integers, int]:
    """Answers, and how often they were not what the student expected.

    The student knows the answers so far, and expects that of the nearest query.
    """
    expected: list[int] = []

    def expect(query: int, answers: Integers) -> int:
        distances = np.square(votes.features[:query] - votes.features[query]).sum(axis=1)
        expected.append(int(answers[distances.argmin()]) if query else 0)
        return expected[-1]

    vote = PriorVote(rate, len(votes.counts) + 1)
    labels = vote.draw(votes.counts, expect, seeded_entropy(7)).labels
    return labels, int(np.sum(labels != expected))


def costs_table(rows: list[Cost]) -> str:
    """Markdown of :func:`costs`."""
    head = ("task", "queries", "method", "ε, δ = 1e-5", "ε per 1,000 answers", "answered",
            "accuracy", "setting")  # fmt: skip
    cells = [
        [r.task, str(r.queries), r.method, f"{r.epsilon:.2f}",
         f"{1000 * r.epsilon / r.answered:.3g}", str(r.answered), f"{r.accuracy:.3f}", r.setting]
        for r in rows
    ]  # fmt: skip
    return markdown(head, cells)


def costs_plot(rows: list[Cost], path: Path) -> None:
    """ε against the number of queries, a panel a task."""
    by_task = {r.task: [row for row in rows if row.task == r.task] for r in rows}
    with panels(path, by_task) as axes:
        for task, axis in axes.items():
            for method in dict.fromkeys(row.method for row in rows):
                line = [row for row in by_task[task] if row.method == method]
                queries, epsilons = [r.queries for r in line], [r.epsilon for r in line]
                axis.plot(queries, epsilons, label=method, marker="o", ms=3)
            logarithmic(axis, "x", "queries")
            logarithmic(axis, "y", "ε of all answers")
        next(iter(axes.values())).legend(fontsize=8)
