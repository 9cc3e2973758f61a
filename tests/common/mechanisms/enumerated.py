"""Small cases of every mechanism: data, their neighbours, and what is guaranteed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.exact import exponential_choice
from labelveil.common.exact.rounding import multiple_above
from labelveil.common.guarantees import Guarantee
from labelveil.common.mechanisms import paired_gain, thresholdout
from labelveil.common.mechanisms.central.gradient_steps import GradientSteps
from labelveil.common.mechanisms.continual import (
    FollowTheLeader,
    PrivateHedge,
    RunningSums,
    TreeNoise,
)
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice, NoisySums
from labelveil.common.mechanisms.interactive import (
    BestOfPriors,
    BetweenThresholds,
    Boundary,
    DriftTest,
    ExponentialMechanism,
    IndividualSparseVector,
    LaplaceTest,
    MixedSession,
    NoisyMaxLaplace,
    NotPrior,
    RunTwice,
    Session,
    SparseVector,
    Target,
    Terms,
    ThresholdTests,
    hit_cost,
)
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.paired_gain import NoisyAnswers, PairedGain
from labelveil.common.mechanisms.pate import (
    BinaryVote,
    BoundaryVote,
    ClippedVote,
    ConfidentGNMax,
    FullVote,
    GNMax,
    Norm,
    PriorVote,
    StableMajority,
    StableVote,
    data_dependent,
    multi_label,
    single_label,
)
from labelveil.common.mechanisms.selection import (
    ChooseRank,
    FixedStableTopK,
    GaussianTest,
    Law,
    LimitedDomain,
    NoisyMax,
    Peeling,
    Ranking,
    StableTopK,
    TopStable,
)
from labelveil.common.mechanisms.selection import LaplaceTest as LaplaceGap
from labelveil.common.mechanisms.selection.leaders import Leaders, StableLeaders
from labelveil.common.mechanisms.synthesis import (
    BLR,
    MWEM,
    ConcentratedBudget,
    LinearQueries,
    PureBudget,
    laplace_answers,
)
from labelveil.common.randomizers.prior import NoisyPrior, private_prior


def dwork_roth(cutoff: int, epsilon: Fraction, delta: Fraction = Fraction(0)) -> SparseVector:
    """Sparse: ``σ = 2c/ε``, or ``√(32 c ln(1/δ))/ε``; noise σ on the threshold, 2σ on counts.

    Their theorem for δ > 0 needs ε < 1.
    """
    sigma = 2 * cutoff / epsilon
    if delta:
        sigma = Fraction(math.sqrt(32 * cutoff * -math.log(float(delta)))) / epsilon
    scale = multiple_above(sigma)
    return SparseVector(cutoff, scale, 2 * scale, refresh=True)


Data = Any
DELTA = Fraction(1, 5)
HALF, ONE, TWO, THREE = Fraction(1, 2), Fraction(1), Fraction(2), Fraction(3)


@dataclass(frozen=True)
class Case:
    """A mechanism on neighbouring data.

    Attributes
    ----------
    target, hits
        Of a call: what is claimed of its target, and which outcomes hit it.
    long
        Whether its law takes seconds; another case of the class takes less.
    """

    of: Any  # class or function that is covered
    guarantee: Guarantee | None  # what is claimed
    draw: Callable[[Data, Entropy], Hashable]  # from data and entropy to what is seen
    pairs: tuple[tuple[Data, Data], ...]  # neighbours
    thinner: int = 2  # by what factor noise is too thin in the twin that must be found out
    target: Target | None = None
    hits: Callable[[Any], bool] = bool
    long: bool = False


def _moved(moves: Iterable[int], most: int = 2, size: int = 3) -> tuple[tuple[Data, Data], ...]:
    """Counts up to ``most``, and the same with each moved by one of ``moves``."""
    found = []
    for counts in product(range(most + 1), repeat=size):
        for step in product(tuple(moves), repeat=size):
            other = tuple(a + b for a, b in zip(counts, step, strict=True))
            if min(other) >= 0 and any(step) and sum(counts) and sum(other):
                found.append((counts, other))
    return tuple(found)


USERS = _moved((0, 1))
"""A user comes, who counts for as many candidates as he likes."""
REPLACED = _moved((-1, 0, 1))
FEW = _moved((-1, 0, 1), 2, 2)
FRONTS = tuple(
    ((lead, 0), other)
    for lead in range(1, 14)
    for other in ((lead - 1, 0), (lead - 1, 1), (lead + 1, 1))
)
"""Gaps of any width, and what replaced votes make of them; the first moves them by 1 alone."""
VOTES = tuple(
    (votes, tuple(v - (i == a) + (i == b) for i, v in enumerate(votes)))
    for votes in product(range(4), repeat=3)
    if sum(votes) == 3
    for a in range(3)
    for b in range(3)
    if a != b and votes[a]
)
"""One vote moves from a class to another."""
TABLES = tuple((one, (one[0] - 1, one[1] + 1)) for one in ((1, 0), (2, 0), (2, 1), (3, 1)))
"""One record moves from a cell to the other."""


def _array(counts: Any) -> Any:
    return np.array(counts, dtype=np.int64)


def _selected(selector: Any) -> Callable[[Data, Entropy], Hashable]:
    def draw(counts: Data, entropy: Entropy) -> Hashable:
        chosen = selector.draw(_array(counts), entropy).chosen
        return None if chosen is None else tuple(chosen.tolist())

    return draw


def _ballots(counts: tuple[int, ...], teachers: int = 3) -> Any:
    """(teachers, 1, c) votes with these counts."""
    return _array([[[voter < count for count in counts]] for voter in range(teachers)]) > 0


def _labels(vote: Any, teachers: int = 3) -> Callable[[Data, Entropy], Hashable]:
    stated = vote.guarantee(1, 2)
    object.__setattr__(vote, "guarantee", lambda *_: stated)  # it takes far longer than to draw

    def draw(counts: Data, entropy: Entropy) -> Hashable:
        answers = vote.draw(_ballots(counts, teachers), entropy)
        return answers.answered.tobytes(), answers.labels.tobytes()

    return draw


def _classes(vote: Any, **options: Any) -> Callable[[Data, Entropy], Hashable]:
    def draw(votes: Data, entropy: Entropy) -> Hashable:
        return tuple(vote.draw([votes], entropy=entropy, **options).labels.tolist())

    return draw


def selection() -> Iterator[Case]:
    for law in Law:
        size = {"variance": ONE} if law == Law.GAUSSIAN else {"epsilon": TWO}
        for monotone, pairs in ((True, USERS), (False, REPLACED)):
            made = NoisyMax(law, **size, monotone=monotone)  # type: ignore[arg-type]

            def choose(counts: Data, entropy: Entropy, made: NoisyMax = made) -> Hashable:
                return made.draw(_array(counts), entropy.source("x"))

            long = law == Law.LAPLACE and not monotone
            yield Case(NoisyMax, made.guarantee(3), choose, pairs, 3, long=long)
        if law != Law.GAUSSIAN:
            ranks = ChooseRank(NoisyMax(law, TWO), 2)

            def rank(counts: Data, entropy: Entropy, ranks: ChooseRank = ranks) -> Hashable:
                return ranks.draw(Ranking(counts), entropy.source("x"))

            yield Case(ChooseRank, ranks.guarantee(3), rank, USERS)
    for step, pairs in ((1, (*USERS, *FRONTS[::3])), (2, (*REPLACED, *FRONTS))):
        for test in (GaussianTest(ONE, DELTA, step), LaplaceGap(TWO, DELTA, step)):

            def passes(counts: Data, entropy: Entropy, test: Any = test) -> Hashable:
                ranking = Ranking(counts)
                shown = test.draw(int(ranking.padded_gaps(1)[0]), entropy.source("x"))
                return int(ranking.order[0]) if shown else None

            yield Case(type(test), test.guarantee, passes, pairs)
        for law in (Law.GAUSSIAN, Law.LAPLACE):
            stable = StableTopK(TWO, DELTA, 2, step=step, test_law=law)
            yield Case(StableTopK, stable.guarantee, _selected(stable), pairs, 8)
    peeling = Peeling(2, ONE)
    yield Case(Peeling, peeling.guarantee, _selected(peeling), USERS)
    limited = LimitedDomain(1, 2, TWO, DELTA)
    yield Case(LimitedDomain, limited.guarantee, _selected(limited), USERS, 4)
    for k in (1, 2):
        fixed = FixedStableTopK(k, TWO, DELTA)
        yield Case(FixedStableTopK, fixed.guarantee, _selected(fixed), USERS[::6], 4, long=k > 1)
    replaced = FixedStableTopK(1, TWO, DELTA, share=HALF, step=2)
    yield Case(FixedStableTopK, replaced.guarantee, _selected(replaced), REPLACED[::24], 4)
    top = TopStable(1, THREE * 2, DELTA)
    yield Case(TopStable, top.guarantee, _selected(top), FRONTS[::3], 8)
    for leaders in (Leaders(THREE * 2, 1), Leaders(THREE * 2), Leaders(THREE * 2, 1, votes=1)):

        def lead(counts: Data, entropy: Entropy, leaders: Leaders = leaders) -> Hashable:
            found = leaders.draw(_array(counts), entropy)
            return tuple(found.chosen.tolist()), tuple(found.noisy_counts.tolist())

        yield Case(Leaders, leaders.guarantee, lead, FEW, 3)
    for front in (StableLeaders(THREE, DELTA, 2), StableLeaders(THREE, DELTA, k=1)):

        def show(counts: Data, entropy: Entropy, front: StableLeaders = front) -> Hashable:
            chosen = front.draw(_array(counts), entropy)
            return None if chosen is None else tuple(chosen.tolist())

        yield Case(StableLeaders, front.guarantee, show, FRONTS, 3, long=front.k is not None)


def pate() -> Iterator[Case]:
    yield Case(GNMax, GNMax(ONE).guarantee(1), _classes(GNMax(ONE)), VOTES[::2])
    confident = ConfidentGNMax(2, HALF, HALF, 1)
    yield Case(ConfidentGNMax, confident.guarantee(1), _classes(confident), VOTES[::3])
    for agreement in (None, 2):
        boundary = BoundaryVote(HALF, 1, agreement=agreement)
        terms = boundary.terms.guarantee
        yield Case(BoundaryVote, terms, _classes(boundary), VOTES, 16)
        prior = PriorVote(HALF, 1, agreement=agreement)
        expect = {"expect": lambda query, answers: 0}
        terms = prior.terms.guarantee
        yield Case(PriorVote, terms, _classes(prior, **expect), VOTES, 8)
    for replacing in (True, False):
        pairs = tuple(
            (one, other)
            for one, other in (REPLACED if replacing else USERS)
            if max(*one, *other) <= 3
        )
        few = tuple((one[:2], other[:2]) for one, other in pairs if one[:2] != other[:2])
        kept = {"replacing": replacing}
        gaps = FRONTS if replacing else FRONTS[::3]
        for options in ({}, {"most": 1, "choice_law": Law.GAUSSIAN}):
            stable = StableVote(TWO, DELTA, **kept, **options)  # type: ignore[arg-type]
            yield Case(
                StableVote, stable.guarantee(1, 2), _labels(stable, 14), gaps, 8,
                long=replacing and bool(options),
            )  # fmt: skip
        majority = StableMajority(ONE, DELTA, **kept)
        yield Case(StableMajority, majority.guarantee(1, 2), _labels(majority, 14), gaps)
        for full in (FullVote(ONE, **kept), BinaryVote(ONE, **kept)):
            yield Case(type(full), full.guarantee(1, 2), _labels(full), few)
        # one teacher's votes, any against any other; or against none
        ballots = [_array(b) > 0 for b in product((0, 1), repeat=2)]
        for norm in (Norm.L1, Norm.L2):
            clipped = ClippedVote(Fraction(1, 4), ONE, norm, **kept)

            def clip(ballot: Data, entropy: Entropy, vote: ClippedVote = clipped) -> Hashable:
                votes = np.stack([[np.array(row) > 0] for row in ((1, 0), (0, 1), ballot)])
                return vote.draw(votes, entropy).labels.tobytes()

            against = ballots if replacing else ballots[:1]
            turned = tuple((tuple(a), tuple(b)) for a in ballots for b in against)
            yield Case(ClippedVote, clipped.guarantee(1, 2), clip, turned, 3)


def interactive() -> Iterator[Case]:
    def answer(counts: Data, source: Any) -> int:
        return ExponentialMechanism(_array, ONE).draw(counts, source)

    calls: list[tuple[Any, Callable[[Any], bool], tuple[tuple[Data, Data], ...]]] = [
        (NotPrior(answer, ONE, 0), bool, REPLACED),
        (BestOfPriors(answer, ONE, (0, 1)), bool, REPLACED),
        (RunTwice(answer, ONE), lambda both: both[0] != both[1], REPLACED),
        (BetweenThresholds(sum, 1, 3, ONE), lambda where: where == 0, FEW[:0]),
        (Boundary(ExponentialMechanism(_array, ONE)), lambda value: value is None, REPLACED),
        (Boundary(NoisyMaxLaplace(_array, THREE)), lambda value: value is None, FEW[::6]),
        (Boundary(LaplaceTest(sum, 2, ONE)), lambda value: value is None, FEW[:0]),
    ]  # fmt: skip
    one_count = tuple(((a, 0), (b, 0)) for a, b in ((0, 1), (1, 2), (2, 3), (4, 5)))
    for call, hits, pairs in calls:

        def run(data: Data, entropy: Entropy, call: Any = call) -> Hashable:
            value: Hashable = call.draw(data, entropy.source("x")).value
            return value

        long = isinstance(call, Boundary) and isinstance(call.oracle, NoisyMaxLaplace)
        yield Case(type(call), None, run, pairs or one_count, 2, call.target, hits, long)
    tests = ThresholdTests(_array, 1, TWO, values=True)

    def above(counts: Data, entropy: Entropy) -> Hashable:
        found = tests.draw(counts, entropy.source("x"))
        return int(found.values[0]) if found.above[0] else None

    single = tuple((one[:1], other[:1]) for one, other in one_count)
    yield Case(
        ThresholdTests, None, above, single, 2, tests.target, lambda value: value is not None
    )
    prior = private_prior([4, 4], 2.0, seeded_entropy(1))
    drift = DriftTest(prior, 4, TWO, tolerance=0.0, false_alarm=0.99)  # of a low threshold

    def drifted(counts: Data, entropy: Entropy) -> Hashable:
        return drift.draw(_array(counts), entropy.source("x")).value

    days = tuple(((n, 4 - n), (n + 1, 3 - n)) for n in range(4))
    yield Case(DriftTest, None, drifted, days, 2, drift.target)

    bits = Terms(not_prior(ONE), 1)

    def session(counts: Data, entropy: Entropy) -> Hashable:
        opened, seen = Session(counts, bits, entropy), []
        while not opened.halted and len(seen) < 3:
            seen.append(opened.run(NotPrior(answer, ONE, 0)))
        return tuple(seen)

    yield Case(Session, bits.guarantee, session, REPLACED[::9], 16)
    yield Case(Terms, bits.guarantee, session, REPLACED[::9], 16)
    budget = hit_cost(not_prior(ONE))

    def mixed(counts: Data, entropy: Entropy) -> Hashable:
        opened, seen = MixedSession(counts, budget, entropy), []
        while opened.hits_left(not_prior(ONE)) and len(seen) < 3:
            seen.append(opened.run(NotPrior(answer, ONE, 0)))
        return tuple(seen)

    yield Case(MixedSession, budget, mixed, REPLACED[::9], 16)
    for sparse in (
        SparseVector.best_split(1, THREE),
        SparseVector.best_split(1, THREE, monotone=True),
        SparseVector.best_split(1, THREE * 2, Fraction(1, 2)),
        dwork_roth(1, THREE),
    ):

        def stream(counts: Data, entropy: Entropy, sparse: SparseVector = sparse) -> Hashable:
            found = sparse.draw(_array(counts), 1, entropy)
            values = () if found.values is None else tuple(found.values.tolist())
            return tuple(found.above.tolist()), values

        pairs = _moved((0, 1), 2, 2) if sparse.monotone else FEW
        long = sparse.value_scale is not None
        yield Case(SparseVector, sparse.guarantee, stream, pairs, 3, long=long)

    def individual(records: Data, entropy: Entropy) -> Hashable:
        vector = IndividualSparseVector(records, ONE, 1, entropy)
        everyone = np.arange(records)
        return tuple(vector.ask([everyone, everyone], 1))

    terms = Terms(not_prior(ONE), 1).guarantee
    yield Case(IndividualSparseVector, terms, individual, ((0, 1), (1, 2), (2, 3)), 12)


def synthesis() -> Iterator[Case]:
    queries = LinearQueries(_array([[1, 0], [0, 1]]))
    blr = BLR(queries, TWO, 0.7)
    yield Case(BLR, blr.guarantee, lambda x, e: tuple(blr.draw(_array(x), e)), TABLES, 3)
    mwem = MWEM(queries, THREE * 2, 1, 1)

    def fitted(table: Data, entropy: Entropy) -> Hashable:
        return tuple((m.query, m.value) for m in mwem.draw(_array(table), entropy).measurements)

    yield Case(MWEM, mwem.guarantee, fitted, TABLES, 3)
    for budget in (PureBudget(THREE), ConcentratedBudget(TWO)):

        def measured(table: Data, entropy: Entropy, budget: Any = budget) -> Hashable:
            noise = budget.noise(budget.total, 2, entropy.source("x"))
            return tuple((_array(table) + noise).tolist())

        yield Case(type(budget), budget.guarantee, measured, TABLES, 3)

        def selected(table: Data, entropy: Entropy, budget: Any = budget) -> Hashable:
            gaps = np.array([abs(2 * table[0] - 3), 5 - 2 * table[0]])  # a record moves each by 2
            return exponential_choice.exponential_choice(
                gaps, budget.rate(budget.total), entropy.source("x")
            )

        yield Case(type(budget), budget.guarantee, selected, TABLES, 3)

    def baseline(table: Data, entropy: Entropy) -> Hashable:
        return tuple(laplace_answers(queries, _array(table), TWO, entropy).tolist())

    yield Case(laplace_answers, PureBudget(TWO).guarantee, baseline, TABLES)


def sums() -> Iterator[Case]:
    for noise in ("laplace", "gaussian"):
        tree = TreeNoise(3, 1, Fraction(1, 2), noise)  # type: ignore[arg-type]

        def run(stream: Data, entropy: Entropy, tree: TreeNoise = tree) -> Hashable:
            sums = RunningSums(tree, 1, entropy)
            return tuple(int(sums.add(_array([number]))[0]) for number in stream)

        streams = tuple(
            (one, (*one[:i], 1, *one[i + 1 :])) for one in ((0, 0, 0), (1, 0, 1)) for i in range(3)
        )
        yield Case(TreeNoise, tree.guarantee, run, streams, 3)
    rounds = tuple(((a,), (b,)) for a in (-1.0, 0.0, 1.0) for b in (-1.0, 1.0) if a != b)
    for learner, size in ((FollowTheLeader, 1), (PrivateHedge, 2)):
        claimed = learner(1, size, TWO, seeded_entropy(0)).guarantee

        def plays(losses: Data, entropy: Entropy, make: Any = learner, size: int = size) -> Any:
            made = make(1, size, TWO, entropy)
            return tuple(tuple(made.see([loss, 0.0][:size]).round(9).tolist()) for loss in losses)

        yield Case(learner, claimed, plays, rounds, 8)

    steps = GradientSteps(2, 1, 1, "laplace", "poisson", Fraction(1, 2))
    for made in (steps, GradientSteps(2, 1, 1, "laplace", "fixed", ONE)):

        def step(records: Data, entropy: Entropy, made: GradientSteps = made) -> Hashable:
            sample, noise = next(made.samples(entropy)), next(made.noises(1, entropy))
            rounded = made.rounded(np.array(records, dtype=np.float64)[:, None])
            return int(rounded[sample].sum() + noise[0])

        records = [(a, 1.0) for a in (-9.0, 0.0, 9.0, np.nan)]
        pairs = tuple((one, other) for one in records for other in records if one is not other)
        # n is public, so that a record that is not there is one of gradient 0
        zero = tuple(pair for pair in pairs if 0.0 in (pair[0][0], pair[1][0]))
        claim = made.step
        yield Case(GradientSteps, claim, step, zero if made is steps else pairs, 4)


def answers() -> Iterator[Case]:
    holdout = thresholdout.Thresholdout(THREE * 2, 1, Fraction(0))

    def ask(values: Data, entropy: Entropy) -> Hashable:
        found = holdout.draw(_array(values), 0.0, used=0, question="q", entropy=entropy)
        return found.from_holdout, round(found.value * len(values))

    records = tuple(((a, 1), (b, 1)) for a, b in ((0, 1),))
    yield Case(thresholdout.Thresholdout, holdout.guarantee, ask, records, 4)
    gain = PairedGain.of_ends(-1.0, 1.0)
    noisy = NoisyAnswers(TWO)

    def question(labels: Data, entropy: Entropy) -> Hashable:
        predictions = np.array([1.0, -1.0])
        return round(
            noisy.draw(gain, predictions, np.array(labels), question="q", entropy=entropy), 9
        )

    labels = tuple(
        ((a, 0.3), (b, 0.3))
        for a in (-1.0, 1.0, 0.2, np.nan, -np.inf)
        for b in (-1.0, 1.0)
        if a != b
    )
    yield Case(NoisyAnswers, noisy.guarantee, question, labels)

    yield from group_sums()

    def prior(counts: Data, entropy: Entropy) -> Hashable:
        return tuple(private_prior(_array(counts), 2.0, entropy).noisy_counts.tolist())

    yield Case(NoisyPrior, PureBudget(TWO).guarantee, prior, TABLES)


def group_sums() -> Iterator[Case]:
    """One group with offsets at both ends and weights of both signs, two of different widths, and
    two of which the second asks for squares.

    Four labels, 0 … 3 each; the last event is in no group.
    """
    last, weights = np.array([0, 3, 0, 0]), np.array([1, -2, 1, 1])
    mixed = GroupQuestion(
        Lattice(0.0, 3.0, 3), np.array([0, 0, 0, NO_GROUP]), np.array([2]),
        np.array([0, 3]), (last > 0).astype(np.uint8), weights,
    )  # fmt: skip
    two = GroupQuestion(
        Lattice(-1.0, 0.5, 3), np.array([0, 1, 0, NO_GROUP]), np.array([1, 3]), np.array([2])
    )
    squares = replace(two, half_widths=np.array([3, 2]), squares=1)
    labels = tuple(product(range(4), (0, 2, 3), (1,), (0, 3)))
    pairs = tuple(
        (one, other)
        for one in labels
        for other in labels
        if sum(a != b for a, b in zip(one, other, strict=True)) == 1 and one < other
    )
    for question in (mixed, two, squares):
        noisy = NoisySums(question, TWO)

        def answer(places: Data, entropy: Entropy, noisy: NoisySums = noisy) -> Hashable:
            return tuple(noisy.draw(_array(places), entropy).tolist())

        yield Case(NoisySums, noisy.guarantee, answer, pairs)


@cache
def cases() -> tuple[Case, ...]:
    """All of them."""
    rooms = selection, pate, interactive, synthesis, sums, answers
    return tuple(case for room in rooms for case in room())


def coarse(monkeypatch: Any) -> None:
    """Grids of a few steps, so that noise on them has few values."""
    monkeypatch.setattr(thresholdout, "RESOLUTION", 1)
    monkeypatch.setattr(paired_gain, "RESOLUTION", 1)
    monkeypatch.setattr("labelveil.common.mechanisms.continual._GRID", 4)
    monkeypatch.setattr("labelveil.common.mechanisms.pate.multi_label._GRAIN", 2)
    monkeypatch.setattr(GradientSteps, "grid", lambda self, size: 2)
    # what votes alone decide would be worked out again for every choice of noise
    for module in (single_label, multi_label):
        for function in (data_dependent.data_dependent_curve, data_dependent.error_probability):
            if hasattr(module, function.__name__):
                monkeypatch.setattr(module, function.__name__, _once(function))


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    def remembered(numbers: Any, other: Any) -> Any:
        key = np.shape(numbers), np.asarray(numbers).tobytes(), other
        if key not in known:
            known[key] = function(numbers, other)
        return known[key]

    return remembered
