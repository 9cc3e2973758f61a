"""Sums over groups, broken in one way each. All claim ε = 1."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from labelveil.audit.mechanism.run import PROBES
from labelveil.audit.mechanism.subject import Answered, SumsSubject
from labelveil.audit.mechanism.trial import Sizes, Trial
from labelveil.audit.verdict import Check
from labelveil.common.arrays import Floats, Indices, Integers
from labelveil.common.entropy import Entropy, seeded_entropy
from labelveil.common.errors import DataError
from labelveil.common.exact.noise import discrete_laplace_each
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, NoisySums
from labelveil.common.randomizers.base import ROUNDING_STREAM
from tests.labelveil.audit.twins.library import SMALL, Twin, twin

Scales = tuple[Integers, int]


class Sums(Twin):
    """Right in every step; a twin does one of them wrong.

    Attributes
    ----------
    sizes
        How hard it is tried.
    """

    labels: ClassVar[Floats] = np.arange(5.0)
    epsilon: ClassVar[float] = 1.0
    sizes: ClassVar[Sizes] = replace(SMALL, runs=100_000)

    def __call__(
        self, labels: Floats, question: GroupQuestion, epsilon: Fraction, entropy: Entropy
    ) -> Answered:
        """Answer a question."""
        noisy = self.noisy(question, epsilon)
        sums = self.sums(labels, question, entropy)
        noise = self.noise(noisy, sums, labels, entropy)
        return Answered(sums + noise, self.stated(noisy), noisy.variances, noisy.epsilon)

    def noisy(self, question: GroupQuestion, epsilon: Fraction) -> NoisySums:
        """What the noise is planned to be."""
        return NoisySums(question, epsilon)

    def stated(self, noisy: NoisySums) -> Scales:
        """Scales that are stated."""
        return noisy.scale_terms

    def places(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Indices:
        """Labels on the lattice."""
        coins = entropy.coins(ROUNDING_STREAM, 0, labels.size)
        return question.lattice.round(labels, coins)

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        """Without noise."""
        return question.sums(self.places(labels, question, entropy))

    def scales(self, noisy: NoisySums, sums: Integers) -> Scales:
        """Scales of the noise that is drawn."""
        return self.stated(noisy)

    def stream(self, noisy: NoisySums) -> str:
        """Name of the noise's."""
        return noisy.stream

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        """Of every group."""
        source = entropy.source(self.stream(noisy))
        return discrete_laplace_each(*self.scales(noisy, sums), source)

    def trial(self) -> Trial:
        """The twin as the audit sees it."""
        target = f"{type(self).__module__}:{type(self).__name__}"
        return Trial(SumsSubject(target, self.labels, self.epsilon), self.sizes)

    def audit(self) -> Check:
        """Hold the probe against it."""
        trial = self.trial()
        return next(p for p in PROBES.fitting(trial) if p.name == self.caught_by)(trial)


RIGHT = Sums()


# what is summed


class Summed(Sums):
    """What is summed is moved by one label further than is paid for."""

    caught_by = "exact ε of sums"


@twin
class ClippedAfterTheSum(Summed):
    """A group's sum is clipped to what it could be at most, and no label is."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        wide = np.full_like(question.half_widths, question.lattice.steps)
        most = question.half_widths.astype(np.int64) * question.sizes * question.largest_weight
        wide = np.where(question.squared, question.half_widths, wide)
        most = np.where(question.squared, 1 << 62, most)
        return np.clip(
            super().sums(labels, replace(question, half_widths=wide), entropy), -most, most
        )


@twin
class WidthsOfAnotherGroup(Summed):
    """Each group's labels are clipped to the next one's width."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        turned = replace(question, half_widths=np.roll(question.half_widths, 1))
        return super().sums(labels, turned, entropy)


@twin
class BoundsNotKept(Summed):
    """Labels beyond the bounds are summed as they are."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        beyond = labels - np.clip(labels, question.lattice.lower, question.lattice.upper)
        asked = question.groups != NO_GROUP
        more = np.rint(beyond[asked]).astype(np.int64)
        sums = super().sums(labels, question, entropy)
        np.add.at(sums, question.groups[asked].astype(np.int64), more)
        return sums


@twin
class InTwoGroups(Summed):
    """An event counts in the next group, too."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        sums = super().sums(labels, question, entropy)
        return sums + np.roll(sums, 1)


@twin
class CountedTwice(Summed):
    """The first event's row is there twice."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        first = np.where(np.arange(len(question)) == 0, question.groups, NO_GROUP)
        sums = super().sums(labels, question, entropy)
        return sums + super().sums(labels, replace(question, groups=first), entropy)


@twin
class SnappedAfterTheSum(Summed):
    """Labels between the lattice's points are summed as they are: fractions stay."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        lattice = question.lattice
        low = np.floor(np.clip(labels, lattice.lower, lattice.upper) - lattice.lower).astype(int)
        over = np.clip(labels, lattice.lower, lattice.upper) - lattice.lower - low
        sums = question.sums(low).astype(np.float64)
        asked = question.groups != NO_GROUP
        np.add.at(sums, question.groups[asked].astype(np.int64), over[asked])
        return sums  # type: ignore[return-value]


@twin
class BoundsOffTheLattice(Summed):
    """Labels are clipped to .3 of a step above the lowest."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        sums = super().sums(labels, question, entropy).astype(np.float64)
        lowest = (labels <= question.lattice.lower) & (question.groups != NO_GROUP)
        np.add.at(sums, question.groups[lowest].astype(np.int64), 0.3)
        return sums  # type: ignore[return-value]


@twin
class WidthsOfTheData(Summed):
    """Widths, and with them the noise, are as large as the largest label."""

    def __call__(
        self, labels: Floats, question: GroupQuestion, epsilon: Fraction, entropy: Entropy
    ) -> Answered:
        most = int(max(self.places(labels, question, entropy).max(), 1))
        widths = np.full_like(question.half_widths, most)
        return super().__call__(labels, replace(question, half_widths=widths), epsilon, entropy)


@twin
class Refuses(Summed):
    """Labels that are all alike are refused."""

    def sums(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Integers:
        if np.ptp(labels) == 0:
            raise DataError("labels are all the same")
        return super().sums(labels, question, entropy)


# how much noise


@twin
class WeightsAreForgotten(Summed):
    """Noise is of labels of weight 1."""

    def stated(self, noisy: NoisySums) -> Scales:
        return NoisySums(replace(noisy.question, weights=None), noisy.epsilon).scale_terms


@twin
class ScaleRoundedDown(Summed):
    """To 1/4,096 of a step, and one less."""

    def stated(self, noisy: NoisySums) -> Scales:
        numerators, denominator = noisy.scale_terms
        return numerators * (1 << 12) // denominator - 1, 1 << 12


@twin
class FloatEpsilon(Summed):
    """ε = 0.1 is the float, which is 5.6e-18 more."""

    epsilon = 0.1

    def noisy(self, question: GroupQuestion, epsilon: Fraction) -> NoisySums:
        return NoisySums(question, Fraction(float(epsilon)))


@twin
class HalfOfTheSpan(Summed):
    """A width is taken for what it spans."""

    def stated(self, noisy: NoisySums) -> Scales:
        numerators, denominator = noisy.scale_terms
        return numerators, 2 * denominator


@twin
class SquaresLikeSums(Summed):
    """A square is taken to move a sum by no more than what it is of."""

    def stated(self, noisy: NoisySums) -> Scales:
        return NoisySums(replace(noisy.question, squares=0), noisy.epsilon).scale_terms


class Noise(Sums):
    """Noise is not what is stated."""

    caught_by = "noise of sums"


@twin
class HalfTheScale(Noise):
    """Half of what is stated is drawn."""

    def scales(self, noisy: NoisySums, sums: Integers) -> Scales:
        numerators, denominator = noisy.scale_terms
        return numerators, 2 * denominator


@twin
class LargeGroupsAreExact(Noise):
    """No noise is added to groups of many events."""

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        return np.where(noisy.question.sizes < 20, super().noise(noisy, sums, labels, entropy), 0)


@twin
class EmptyGroupsAreExact(Noise):
    """Nor to those of none."""

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        return np.where(noisy.question.sizes > 0, super().noise(noisy, sums, labels, entropy), 0)


@twin
class OneGroupIsExact(Noise):
    """Nor to one, of two events."""

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        noise = super().noise(noisy, sums, labels, entropy)
        noise[np.flatnonzero(noisy.question.sizes == 2)[:1]] = 0
        return noise


@twin
class ScaleBySize(Noise):
    """The mean of a group is given the noise of one label."""

    def scales(self, noisy: NoisySums, sums: Integers) -> Scales:
        numerators, denominator = noisy.scale_terms
        each = 64 * numerators // np.maximum(noisy.question.sizes, 1)
        return np.maximum(each, 1), 64 * denominator


@twin
class ScaleBySum(Summed):
    """A small sum gets a tenth of the noise."""

    def scales(self, noisy: NoisySums, sums: Integers) -> Scales:
        numerators, denominator = noisy.scale_terms
        return np.where(np.abs(sums) > 3, 10, 1) * numerators, 10 * denominator


@twin
class SeedOfTheLabels(Summed):
    """The noise's key is a digest of the labels."""

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        seed = int.from_bytes(hashlib.sha256(labels.tobytes()).digest()[:8], "big")
        return super().noise(noisy, sums, labels, seeded_entropy(seed))


class Coarse(Noise):
    """Noise is on some steps of the lattice only."""

    apart: ClassVar[int]

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        return self.apart * super().noise(noisy, sums, labels, entropy)

    def scales(self, noisy: NoisySums, sums: Integers) -> Scales:
        numerators, denominator = noisy.scale_terms
        return numerators, self.apart * denominator


@twin
class Even(Coarse):
    """On every second."""

    apart = 2


@twin
class OnEveryThird(Coarse):
    """Coarser than labels."""

    apart = 3


@twin
class Positive(Noise):
    """None is below 0."""

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        return np.abs(super().noise(noisy, sums, labels, entropy))


@twin
class ContinuousVariance(Sums):
    """The variance is said to be that of the continuous law."""

    caught_by = "exact noise of sums"

    def __call__(
        self, labels: Floats, question: GroupQuestion, epsilon: Fraction, entropy: Entropy
    ) -> Answered:
        answered = super().__call__(labels, question, epsilon, entropy)
        numerators, denominator = answered.scales
        return replace(answered, variances=2 * (numerators / denominator) ** 2)


# whose noise


@twin
class OneNoiseForTwo(Sums):
    """Each two groups have one noise."""

    caught_by = "noise of other groups"

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        noise = super().noise(noisy, sums, labels, entropy)
        return np.repeat(noise[::2], 2)[: noise.size]


@twin
class OppositeNoise(Sums):
    """A group has the opposite of another's."""

    caught_by = "noise of other groups"

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        noise = super().noise(noisy, sums, labels, entropy)
        noise[-1] = -noise[0]
        return noise


class Stream(Sums):
    """The noise is bound to less than all that is asked and paid."""

    caught_by = "two questions"

    def stream(self, noisy: NoisySums) -> str:
        return hashlib.sha256(self.bound(noisy)).hexdigest()

    def bound(self, noisy: NoisySums) -> bytes:
        """What it is bound to."""
        raise NotImplementedError


@twin
class StreamOfTheEpoch(Stream):
    """To nothing."""

    def bound(self, noisy: NoisySums) -> bytes:
        return b""


@twin
class StreamWithoutGroups(Stream):
    """To widths, offsets and ε."""

    def bound(self, noisy: NoisySums) -> bytes:
        question = noisy.question
        return question.half_widths.tobytes() + question.offsets.tobytes()


@twin
class StreamWithoutWeights(Stream):
    """To all but weights."""

    def bound(self, noisy: NoisySums) -> bytes:
        plain = replace(noisy.question, weights=None).digest
        return plain + str(noisy.epsilon).encode()


@twin
class StreamWithoutEpsilon(Stream):
    """To the question alone."""

    def bound(self, noisy: NoisySums) -> bytes:
        return noisy.question.digest


@twin
class StreamWithoutLevels(Stream):
    """To all but which offset is whose."""

    def bound(self, noisy: NoisySums) -> bytes:
        question = noisy.question
        if question.levels is not None:
            question = replace(question, levels=np.zeros_like(question.levels))
        return question.digest + str(noisy.epsilon).encode()


# as any mechanism's


@twin
class NoiseIsKept(Sums):
    """Every start draws the same noise."""

    caught_by = "cold starts"
    slow = True

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        return super().noise(noisy, sums, labels, seeded_entropy(0))


@twin
class FloatNoise(Sums):
    """Continuous noise, of numbers that are no labels' sums but for one label."""

    caught_by = "float mantissa"

    def noise(self, noisy: NoisySums, sums: Integers, labels: Floats, entropy: Entropy) -> Integers:
        words = entropy.words("float", 0, sums.size)
        uniform = (words.astype(np.float64) + 0.5) / 2.0**64 - 0.5
        noise = -np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) * noisy.scales
        return noise  # type: ignore[return-value]
