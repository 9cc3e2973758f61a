"""Probes of sums over groups: questions are drawn, and so are the labels that are summed.

*Exactly.* Under one key every data set of a few labels is answered. Noise that depends on no label
is the same for all of them, so that what is left are the sums: how far one label moves them, over
the scales that are stated, is the worst log-ratio of an answer's probabilities. The noise itself is
drawn a second time, bit for bit, at the stated scales.

*By law.* Of known labels the noise is what remains. It is compared with its law for groups of every
size and width, and group with group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
from scipy.stats import binom

from labelveil.audit.attacks.exact_channel import RecordedEntropy
from labelveil.audit.attacks.laws import (
    Noise,
    detectable_probability,
    equal_chance,
    law_table,
    noise_check,
)
from labelveil.audit.attacks.one_run import draw_secrets, uniform
from labelveil.audit.certificate.sums import parsed_question
from labelveil.audit.mechanism.subject import Answered, SumsSubject
from labelveil.audit.mechanism.trial import Trial, subject_is
from labelveil.audit.verdict import GATE, Check, Power, Probes, Verdict, verdict_of
from labelveil.common.arrays import Floats, Indices, Integers
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.exact.noise import discrete_laplace_each
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice
from labelveil.common.release.question import encode_question

PROBES = Probes[Trial]()
probe = partial(PROBES.add, fits=subject_is(SumsSubject))

QUESTIONS = 12  # that are drawn, where all data sets of their labels are answered
EVENTS, GROUPS = 3, 2  # of each

SIZES = (0, 1, 2, 5, 30)  # events of a group
ALIKE = 8  # groups of one size and one width
MOST_WEIGHT = 3

MOST_SCALE = 10_000  # of noise that is compared with a table of its law

PRIMES = (2, 3, 5, 7)  # noise on every such step of the lattice, and on no other, is found


def drawn_question(
    lattice: Lattice, groups: Integers, count: int, *, weights: bool, squares: int = 0
) -> GroupQuestion:
    """Ask about events of (n,) groups with drawn widths, offsets and, if they are wanted, weights.

    Half of the widths and offsets are at an end; the last ``squares`` groups ask for squares.
    """

    def places(least: int, size: int) -> Integers:
        anywhere = least + draw_secrets(size, lattice.steps - least + 1)
        ends = np.where(draw_secrets(size) == 1, lattice.steps, least)
        return np.where(draw_secrets(size) == 1, ends, anywhere)

    offsets = np.unique(places(0, 2))
    levels = draw_secrets(groups.size, offsets.size) if offsets.size > 1 else None
    heavy = draw_secrets(groups.size, 2 * MOST_WEIGHT + 1) - MOST_WEIGHT
    heavy[0] = heavy[0] or 1
    return GroupQuestion(
        lattice, groups, places(1, count), offsets, levels, heavy if weights else None, squares
    )


def true_sums(question: GroupQuestion, places: Indices) -> Integers:
    """(…, G) sums of (…, n) labels on the lattice, counted again from a question's bytes."""
    return parsed_question(encode_question(question), len(question)).sums(places)


def _small_questions(lattice: Lattice) -> Iterator[GroupQuestion]:
    """Widths of everything and of one step, offsets at the ends, weights; then what is drawn."""
    steps, one = lattice.steps, np.zeros(EVENTS, np.int64)
    yield GroupQuestion(lattice, one, np.array([steps]))
    ends, levels = np.array([0, steps]), np.arange(EVENTS) % 2
    yield GroupQuestion(lattice, one, np.array([1]), ends, levels, levels * 4 - 3)
    apart = np.array([0, 1, NO_GROUP])
    yield GroupQuestion(lattice, apart, np.array([1, steps]), np.array([steps]))
    yield GroupQuestion(lattice, one, np.array([steps]), squares=1)
    for number in range(QUESTIONS - 4):
        groups = draw_secrets(EVENTS, GROUPS + 1)
        groups = np.where(groups == GROUPS, NO_GROUP, groups)
        groups[0] = 0
        yield drawn_question(lattice, groups, GROUPS, weights=number % 2 == 1, squares=number % 3)


def _labels(lattice: Lattice) -> tuple[Floats, Indices]:
    """Labels at both ends, inside, far outside and half-way, and their places: -1 for half-way."""
    inner = 1 + int(draw_secrets(1, max(lattice.steps - 1, 1))[0])
    places = np.unique([0, min(inner, lattice.steps), lattice.steps])
    span = lattice.upper - lattice.lower
    below, above = (1 + 20 * uniform(2)) * span
    half = lattice.points(places[:1]) + lattice.step / 2
    far = np.array([lattice.lower - below, lattice.upper + above])
    labels = np.concatenate([lattice.points(places), far, half])
    return labels, np.concatenate([places, [0, lattice.steps, -1]])


def _whole(answered: Answered) -> bool:
    return bool((np.asarray(answered.sums) % 1 == 0).all())


@probe(
    "exact ε of sums",
    "Does one label move the sums by no more than their noise pays for, exactly?",
    not_looked_at="Questions about more than a few events; the argument for them is the same.",
)
def sensitivity_check(trial: Trial) -> Check:
    subject, lattice = trial.sums, trial.sums.lattice
    labels, places = _labels(lattice)
    chosen = np.indices((labels.size,) * EVENTS).reshape(EVENTS, -1).T
    worst, faults, sets = Fraction(0), dict[str, int](), 0
    unbounded = False  # noise or scales that depend on labels may tell anything
    for question in _small_questions(lattice):
        key = system_entropy().key
        answers = []
        for data in labels[chosen]:
            try:
                answers.append(subject.answer(data, question, Entropy(key, secure=False)))
            except Exception as refusal:  # anybody's code may refuse in any way
                faults.setdefault(f"refused, as labels were {data.tolist()}: {refusal}", 1)
        if len(answers) < len(chosen):
            continue
        sets += len(answers)
        again = subject.answer(labels[chosen[0]], question, Entropy(key, secure=False))
        if not np.array_equal(again.sums, answers[0].sums):
            return Check(
                Verdict.NOT_CHECKABLE,
                "One data set was answered twice under one key.",
                "The noise was another: it is not drawn from the entropy that is passed.",
                claim="One label moves the sums by no more than their noise pays for.",
            )
        sums = np.array([answered.sums for answered in answers])
        known = (places[chosen] >= 0).all(axis=1)
        noise = sums[known] - true_sums(question, places[chosen[known]])
        numerators = np.array([answered.scales[0] for answered in answers])
        noise_moves = bool((noise != noise[0]).any())
        scales_move = bool((numerators != numerators[0]).any())
        unbounded |= noise_moves or scales_move
        found = {
            "a sum is no whole number of steps": not all(map(_whole, answers)),
            "noise, or what is summed, depends on labels": noise_moves,
            "the stated scales depend on labels": scales_move,
            "more ε is stated than is claimed": answers[0].epsilon > subject.exact,
        }
        faults |= {what: faults.get(what, 0) + 1 for what, holds in found.items() if holds}
        scales = numerators.min(axis=0).tolist(), min(each.scales[1] for each in answers)
        worst = max(worst, _worst_loss(sums.reshape((labels.size,) * EVENTS + (-1,)), scales))
    too_much = worst > subject.exact
    return Check(
        verdict_of(not faults and not too_much),
        f"{QUESTIONS} questions were drawn, and all {sets:,} data sets of {EVENTS} labels (at both"
        " ends, inside, far outside, half-way between two points) answered under one key each; the"
        " sums of all neighbours were compared, over the stated scales, in fractions.",
        f"The worst log-ratio is {float(worst):.10g}"
        + (f", which is {float(worst - subject.exact):.3g} too much" if too_much else "")
        + "".join(f"; {what} ({times} of the questions)" for what, times in faults.items())
        + ".",
        claim=f"All sums together spend at most ε = {subject.epsilon:g} on one label, and are"
        f" those asked"
        " for.",
        claimed=subject.epsilon,
        bound=math.inf if unbounded else float(worst),
    )


def _worst_loss(sums: Integers, scales: tuple[list[int], int]) -> Fraction:
    """max Σ |S_g - S'_g| / scale_g over neighbours, of (k, …, k, G) sums: an axis a label."""
    numerators, denominator = scales
    worst = Fraction(0)
    for axis in range(sums.ndim - 1):
        of_label = np.moveaxis(sums, axis, 0)
        for at in range(1, len(of_label)):
            moved = np.abs(of_label[at:] - of_label[:-at]).reshape(-1, sums.shape[-1])
            for row in np.unique(moved, axis=0).tolist():
                pairs = zip(row, numerators, strict=True)
                worst = max(
                    worst, sum((Fraction(m) * denominator / n for m, n in pairs), worst * 0)
                )
    return worst


@probe(
    "exact noise of sums",
    "Is the noise drawn at the stated scales, bit for bit, and is the exact variance stated?",
    "Every sum has discrete Laplace noise of the stated scale, whose variance is stated.",
)
def exact_noise_check(trial: Trial) -> Check:
    subject = trial.sums
    question = _big_question(subject.lattice, subject.epsilon, weights=True)
    places = draw_secrets(len(question), subject.lattice.steps + 1)
    entropy = RecordedEntropy(system_entropy().key)
    answered = subject.answer(subject.lattice.points(places), question, entropy)
    noise = answered.sums - true_sums(question, places)
    numerators, denominator = answered.scales
    exact = any(
        np.array_equal(
            noise,
            discrete_laplace_each(
                numerators, denominator, Entropy(entropy.key, secure=False).source(stream)
            ),
        )
        for stream in entropy.drawn
    )
    scales, at = np.unique(np.asarray(numerators) / denominator, return_inverse=True)
    table = np.array([_table_variance(scale) for scale in scales.tolist()])[at]
    off = float(np.abs(np.asarray(answered.variances) / table - 1).max())
    told = off <= 1e-6
    # another's own sampler may be as right as ours: its law is compared with runs
    unknown = told and not exact and not subject.own
    return Check(
        Verdict.NOT_CHECKABLE if unknown else verdict_of(exact and told),
        f"The noise on {noise.size} sums was drawn a second time at the stated scales by the exact"
        " sampler, and the stated variances compared with sums over tables of the law.",
        f"It is {'the same' if exact else 'another'}; the variances differ by {off:.2g} at most.",
    )


def _table_variance(scale: float) -> float:
    values = np.arange(int(60 * scale) + 60)
    table = np.exp(-values / scale)
    return float(2 * (values**2 @ table) / (2 * table.sum() - 1))


@probe(
    "two questions",
    "Have two questions under one key noise of their own, whatever it is that they differ in?",
    "The noise belongs to the whole question: two of them never share it.",
)
def two_questions_check(trial: Trial) -> Check:
    subject, lattice = trial.sums, trial.sums.lattice
    question = _big_question(lattice, subject.epsilon, weights=True)
    others = dict(_others(question))
    places = draw_secrets(len(question), lattice.steps + 1)
    key, drawn, noises = system_entropy().key, dict[str, set[str]](), dict[str, Integers]()
    for name, other in ({"": question} | others).items():
        entropy = RecordedEntropy(key)
        # it is the bytes of what is asked that differ, and the labels are the same ones
        labels = other.lattice.points(np.minimum(places, other.lattice.steps))
        answered = subject.answer(labels, other, entropy)
        drawn[name] = entropy.drawn
        on_it = other.lattice.places(labels, "label")
        noises[name] = np.asarray(answered.sums - true_sums(other, on_it))
    entropy = RecordedEntropy(key)
    more = replace(subject, epsilon=subject.epsilon * 2 if subject.epsilon < 10 else 1.0)
    more.answer(lattice.points(places), question, entropy)
    drawn["ε"] = entropy.drawn
    shared = [name for name in drawn if name and drawn[name] & drawn[""]]
    equal = equal_chance(np.asarray(answered.scales[0]) / answered.scales[1])
    distinct = float(equal.prod()) * len(others) < GATE  # whether so little noise differs anyway
    shared += [name for name in others if distinct and np.array_equal(noises[name], noises[""])]
    unseen = not (shared or distinct or drawn[""])
    return Check(
        Verdict.NOT_CHECKABLE if unseen else verdict_of(not shared),
        f"{len(drawn) - 1} questions that differ from another one in one thing alone"
        f" ({', '.join(name for name in drawn if name)}) were answered under its key; streams of"
        " words were compared, and the noise.",
        f"Noise is shared by questions that differ in {', '.join(dict.fromkeys(shared))}: the"
        " difference of two answers has none."
        if shared
        else "None is shared.",
        bound=math.inf if shared else 0.0,
    )


def _others(question: GroupQuestion) -> Iterator[tuple[str, GroupQuestion]]:
    """The same question but for one thing, and what that is."""
    groups, lattice = question.groups.astype(np.int64), question.lattice
    steps = lattice.steps
    swapped = groups.copy()
    last = int(np.flatnonzero(groups != groups[0])[-1])
    swapped[[0, last]] = swapped[[last, 0]]
    left_out = groups.copy()
    left_out[-1] = NO_GROUP
    yield "an event's group", replace(question, groups=swapped)
    yield "whether an event is asked about", replace(question, groups=left_out)
    if question.weights is not None:
        weights = question.weights.copy()
        weights[0] *= -1
        yield "a weight", replace(question, weights=weights)
    if steps > 1:
        widths = question.half_widths.copy()
        widths[0] = widths[0] - 1 or 2
        yield "a width", replace(question, half_widths=widths)
    offsets = question.offsets.copy()
    offsets[0] = offsets[0] + 1 if offsets[0] < steps else offsets[0] - 1
    if np.unique(offsets).size == offsets.size:
        yield "an offset", replace(question, offsets=offsets)
    if question.levels is not None:
        levels = question.levels.copy()
        levels[0] = 1 - levels[0]
        yield "an event's offset", replace(question, levels=levels)
    yield "whether it is of squares", replace(question, squares=question.squares - 1)
    bounds = Lattice(lattice.lower, lattice.upper + lattice.step * steps, steps)
    yield "the bounds", replace(question, lattice=bounds)


def _big_question(lattice: Lattice, epsilon: float, *, weights: bool) -> GroupQuestion:
    """Groups of every size, as many of each: they ask for sums, and as many more for squares.

    Widths are such that a table of the noise's law is not too long.
    """
    sizes = np.tile(np.repeat(SIZES, ALIKE), 2)
    groups, squares = np.repeat(np.arange(sizes.size), sizes), sizes.size // 2
    question = drawn_question(lattice, groups, sizes.size, weights=weights, squares=squares)
    reach = MOST_SCALE * epsilon / MOST_WEIGHT
    most = np.where(question.squared, math.isqrt(max(int(reach), 1)), max(int(reach / 2), 1))
    return replace(question, half_widths=np.minimum(question.half_widths, most))


@probe(
    "noise of sums",
    "Has every sum, of whatever group and labels, noise of the stated size and shape?",
    "Every group's sum has discrete Laplace noise of its stated scale, whole steps of the lattice.",
    not_looked_at="Groups of more events than these.",
)
def noise_law_check(trial: Trial) -> Check:
    subject, runs = trial.sums, 2 * trial.sizes.seeds
    noises: list[Noise] = []
    fractions, coarse = 0, list[str]()
    for weights in (False, True):
        question = _big_question(subject.lattice, subject.epsilon, weights=weights)
        # one width for all groups of a size, so that enough of them are alike
        widths = np.repeat(question.half_widths[::ALIKE], ALIKE)
        question = replace(question, half_widths=widths)
        answers = [_noise(subject, question, run) for run in range(runs)]
        scale = answers[0][1]
        noise = np.stack([each for each, _ in answers])
        fractions += int(np.count_nonzero(noise % 1))
        for at, (squares, size) in enumerate(product((False, True), SIZES)):
            cells = slice(at * ALIKE, (at + 1) * ALIKE)
            what = f"{'squares of ' * squares}groups of {size}{' with weights' * weights}"
            least = float(scale[cells].min())
            noises += ((what, least, each) for each in np.floor(noise[:, cells]))
            coarse += _coarse(noise[:, cells], what, least)
    check = noise_check(
        noises,
        tried=f"Two drawn questions about groups of {', '.join(map(str, SIZES))} known labels were"
        f" answered {runs} times, of labels all low, all high or anywhere.",
    )
    faults = [f"{fractions} sums are no whole steps"] * bool(fractions) + coarse
    if not faults:
        return check
    return replace(check, verdict=Verdict.FAIL, found=f"{check.found} {'; '.join(faults)}.")


def _noise(subject: SumsSubject, question: GroupQuestion, run: int) -> tuple[Integers, Floats]:
    """What remains of one answer, and the stated scales; labels are low, high or any in turn."""
    steps = subject.lattice.steps
    places = draw_secrets(len(question), steps + 1)
    places = (np.zeros_like(places), np.full_like(places, steps), places)[run % 3]
    labels = subject.lattice.points(places)
    answered = subject.answer(labels, question, system_entropy())
    numerators, denominator = answered.scales
    noise = np.asarray(answered.sums - true_sums(question, places))
    return noise, np.asarray(numerators / denominator)


def _coarse(noise: Integers, what: str, scale: float) -> list[str]:
    """Cells whose noise is always a multiple, where that is no chance."""
    values, table = law_table(scale)
    found = []
    for prime in PRIMES:
        chance = float(table[values % prime == 0].sum()) ** len(noise)
        often = (noise % prime == 0).all(axis=0) & (noise != 0).any(axis=0)
        if often.any() and chance * noise.shape[1] * len(PRIMES) * 4 * len(SIZES) < GATE:
            found.append(f"noise of {what} is always a multiple of {prime} steps")
    return found


@probe(
    "noise of other groups",
    "Has any group the noise of another, or its opposite?",
    "Every group has noise of its own.",
    not_looked_at="Noise that is shared without a common sign.",
)
def shared_noise_check(trial: Trial) -> Check:
    subject, runs = trial.sums, 4 * trial.sizes.seeds
    question = _big_question(subject.lattice, subject.epsilon, weights=False)
    signs = np.sign(np.stack([_noise(subject, question, run)[0] for run in range(runs)]))
    both, product = np.abs(signs).T @ np.abs(signs), signs.T @ signs
    pairs = np.triu_indices(len(both), 1)
    counted, agreed = both[pairs].astype(np.int64), ((both + product) / 2)[pairs].astype(np.int64)
    tails = np.minimum(binom.cdf(agreed, counted, 0.5), binom.sf(agreed - 1, counted, 0.5))
    at = int(tails.argmin())
    p = min(1.0, 2 * float(tails[at]) * tails.size)
    least = detectable_probability(int(np.median(counted)), tails.size, GATE, 0.5) - 0.5
    return Check(
        verdict_of(p >= GATE),
        f"The signs of the noise on {len(both)} groups were compared, each with each, in {runs}"
        " answers.",
        f"The farthest from chance are groups {pairs[0][at]} and {pairs[1][at]}:"
        f" {agreed[at]} of {counted[at]} agree, which has probability at most {p:.3g} in all.",
        bound=0.0 if p >= GATE else math.inf,
        confidence=1 - GATE,
        power=(Power("difference from 1/2 of how often two groups' signs agree", least),),
    )
