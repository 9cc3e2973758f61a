"""Ridge regression on random features from noisy sums, with a scale of each column learned.

Sums are linear in predictions (:mod:`labelveil.feature_party.ridge.law`), and these nearly so in
what is linear in features (:mod:`labelveil.feature_party.ridge.links`), so that the marginal
likelihood has a closed form; its gradient finds the scale of each column, the amplitudes and the
labels' own deviation. Which columns matter decides everything: noise leaves few sums to learn from.

Waves run along all columns, or each along about half of them, drawn at random. Over such draws
the kernel is the product of ``(1 + k)/2`` over columns, with k a squared-exponential of that
column: the sum over all sets of columns of a kernel of these alone. What hangs on a few columns at
a time then takes fewer sums to learn than what hangs on all of them together.

Source: scales by marginal likelihood as in Rasmussen and Williams, *Gaussian Processes for Machine
Learning*, 2006, section 5.4.1; sums of Gaussian processes as in Law et al., *Variational Learning
on Aggregate Outputs with Gaussian Processes*, NeurIPS 2018; kernels of all sets of columns as in
Duvenaud, Nickisch and Rasmussen, *Additive Gaussian Processes*, NeurIPS 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import scipy
import torch

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.learning.optimizers import Optimizer
from labelveil.feature_party.ridge.codes import CodeRows
from labelveil.feature_party.ridge.evidence import Posterior, Seen, falling
from labelveil.feature_party.ridge.law import SumRows, as_normal
from labelveil.feature_party.ridge.links import Line, Link
from labelveil.feature_party.ridge.ridge import (
    IN_CACHE,
    Ridge,
    Rows,
    Sparse,
    dense,
    features_of_rows,
)
from labelveil.feature_party.ridge.wave_sums import SummedRows, WaveSums

FEATURES = 300
_WEIGHINGS = 4
"""How often sums are weighed by how far they are off, before coefficients are final."""
STEPS = (45, 20)
_RATE = 0.1
_EVENTS, _CELLS = 40_000, 2_000_000
"""Events by which scales are learned, and their numbers in all columns, at most; about as many of
each group. Coefficients take all."""
_SUMS = 2_500
"""Sums by which scales are learned, at most: what a step costs grows with their number, and so
many tell scales as well. Coefficients take all."""
_CODES = 10_000
"""Codes by which scales are learned; coefficients take all."""
_ROWS_AT_ONCE = 1 << 16
_SPREAD = 1.0
"""Deviation, before anything is known, of each logarithm that is learned."""
_DIRECTIONS = 20
"""In which what is not known of predictions is told apart."""
_SAMPLE = 2_000
"""Rows by which it is measured how sure predictions are."""
_DEVIATION = 1 / 8
"""Of labels around predictions: what is expected, as a share of the range."""
_QUARTERS = range(-11, 10)
"""Deviations that are tried, as quarters of a doubling from what is expected: every other one, up
and down as long as sums get likelier, and then the best one's neighbours."""
_DEVIATIONS = tuple(_DEVIATION * 2.0 ** (quarter / 4) for quarter in _QUARTERS[1::2])


def _most_of_each(sizes: Indices, total: int) -> int:
    """How many events of each group may be taken so that they are about ``total`` in all."""
    ascending = np.sort(sizes)
    smaller = np.cumsum(ascending) - ascending  # all events of the smaller groups
    left = (total - smaller) / np.arange(sizes.size, 0, -1)  # for each that is not smaller
    return max(1, int(left[np.argmax(left < ascending)]))


class RidgeFit:
    """One fit, with random features of its own.

    Parameters
    ----------
    inputs
        (n, F) columns of all rows.
    data
        Sums over some of them.
    lower, upper
        The labels' bounds.
    seed
        Of the random features.
    codes
        Codes of others of them, if any.
    start
        Length over which predictions are first taken to change, as a multiple of √F.
    along
        Share of the columns that a wave runs along.
    waves
        How many there are.
    steps
        In which scales are learned, and in which they are learned on around what was then
        predicted.
    link
        How predictions follow from what is linear in features; they are that themselves by default.
    """

    def __init__(
        self,
        inputs: Rows,
        data: SumRows,
        lower: float,
        upper: float,
        seed: int,
        start: float = 1.0,
        codes: CodeRows | None = None,
        along: float = 1.0,
        waves: int | None = None,
        steps: Sequence[int] | None = None,
        link: Link | None = None,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        count = inputs.shape[1]
        self.all_sums = self.data = data
        self.few_sums, self.places = data, np.arange(data.sums.size)
        self.range = upper - lower
        self.link = link or Line(self.range)
        self.inputs = inputs if isinstance(inputs, Sparse) else dense(inputs)
        self.steps, waves = steps or STEPS, waves or FEATURES
        kept = torch.rand(count, waves, generator=draw) < along
        kept |= ~kept.any(dim=0)  # a wave along no column would be a constant
        self.frequencies = torch.randn(count, waves, generator=draw) * kept
        self.phases = 2 * math.pi * torch.rand(waves, generator=draw)
        rows = inputs.shape[0]
        some = dense(inputs[:: -(-max(rows, 1) // _EVENTS)]).numpy()
        spread = float(some.std(axis=0, dtype=np.float64).mean()) or 1.0
        self.first = math.log(start / (spread * math.sqrt(count)))
        self.log_scales = torch.full((count,), self.first).requires_grad_()
        # amplitude of the waves, and that of linear features relative to it
        self.logs = torch.log(torch.tensor([self.link.amplitude, 0.5])).requires_grad_()
        self.centre = self.logs.detach().clone()
        self.deviation = _DEVIATION  # as a share of the range
        self.draw = draw
        # an offset is what was once predicted, unless labels are not clipped
        self.first_predictions = np.full(rows, np.nan)
        level = self.link.mean(np.zeros(1))
        self.first_predictions[data.rows] = np.where(data.open_ended, level, data.offsets)
        self.far: Floats | None = None  # (G,) how far sums are from predicted ones
        if data.sums.size > _SUMS:
            drawn = torch.randperm(data.sums.size, generator=draw)[:_SUMS]
            self.places = np.sort(drawn.numpy())
            self.few_sums = data.select(self.places)
        self.codes = codes
        self.all_codes = self.few_codes = torch.arange(0 if codes is None else codes.rows.size)
        if codes is not None:
            self.first_predictions[codes.rows] = codes.mean
            self.few_codes = torch.randperm(codes.rows.size, generator=draw)[:_CODES]

    def run(
        self, constant: float | None = None, after_step: Callable[[], object] = lambda: None
    ) -> Ridge:
        """Learn scales, then the coefficients, around what was predicted and then around that.

        ``constant`` is what :meth:`constant_evidence` is, of any fit to the same data;
        ``after_step`` is called after each step of scales, and may raise.
        """
        if constant is None:
            constant = self.constant_evidence()
        many = self.few_sums is not self.all_sums
        self.data = self.few_sums
        of_few = self.constant_evidence() if many else constant
        self.z, self.far = self.link.inverse(self.first_predictions.copy()), None
        some = len(self._picked()) < self.all_sums.groups.size
        weighed = not self.all_sums.open_ended.all()
        curved = not isinstance(self.link, Line)
        again = some or weighed or curved or self.codes is not None
        for steps in self.steps if again else self.steps[:1]:
            self._learn_by_few(steps, after_step)
            ridge = self._solved(of_few, weighed)
            if again:
                self._predict(ridge)
        if again:
            self._learn_by_few(0, after_step)
            self.data = self.all_sums
            if many:  # it has predicted the events of few sums alone
                self._predict(ridge)
            ridge = self._solved(constant, weighed)
        return ridge

    @property
    def amplitude(self) -> float:
        """Deviation that coefficients are expected to have."""
        return float(self.logs[0].detach().exp()) * self.link.unit

    @property
    def _waves(self) -> int:
        return self.phases.numel()

    @property
    def misses(self) -> Floats | None:
        """(G,) by how much sums miss what is predicted, and what is not known of that, in units of
        the label; None where only labels as they are were summed."""
        return None if self.far is None else self.far * self.range

    def _learn_by_few(self, steps: int, after_step: Callable[[], object]) -> None:
        """Scales and the deviation, by some events of some sums."""
        picked = self._picked()
        self._linearize(picked)
        self._learn(steps, picked, after_step)
        self._learn_deviation(picked)

    def _predict(self, ridge: Ridge) -> None:
        """Take what a ridge predicts, of all events that have a part in what is solved next."""
        all_rows = self.data is self.all_sums or self.codes is not None
        rows = slice(None) if all_rows else self.data.rows
        self.z[rows] = ridge.linear_part(self._of(rows))

    @property
    def _own(self) -> Indices | slice:
        """Which of all sums are those that are learned from now."""
        return slice(None) if self.data is self.all_sums else self.places

    def _linearize(self, picked: torch.Tensor | None = None, link: Link | None = None) -> None:
        """Sums as linear functions of z, which is measured in the link's unit, all of them in units
        of the labels' range.

        Where only some events are ``picked`` those stand for all by what new predictions differ
        from these in, and not by these.
        """
        link, deviation = link or self.link, self.deviation * self.range
        deviations = deviation * link.relative_deviation(self.z)
        mean, variance, slope = self.data.moments(link.mean(self.z), deviations)
        z = self.z[self.data.rows]
        slope = slope * link.slope(z)
        linear = slope * z
        if picked is not None:
            events, groups = picked.numpy(), self.data.groups
            there = np.bincount(groups[events], minlength=self.data.sums.size)
            shares = np.bincount(groups, minlength=there.size) / np.maximum(there, 1)
            some = np.zeros_like(linear)
            some[events] = linear[events] * shares[groups[events]]
            linear = some
        rest = (self.data.sums - self.data.by_group(mean - linear)) / self.range
        self.targets = torch.as_tensor(rest)
        self.slopes = torch.as_tensor(slope * (link.unit / self.range), dtype=torch.float32)
        self.within = self.data.by_group(variance) / self.range**2
        self._weigh()
        if self.codes is not None:
            near = self.z[self.codes.rows]
            mean, slope = link.mean(near), link.slope(near)
            seen, variance, likelier = self.codes.seen(
                mean, lambda labels: deviation * link.relative_deviation(link.inverse(labels))
            )
            # near there a number that was seen is one of z, of another density
            told = (near + (seen - mean) / slope) / link.unit, variance / (link.unit * slope) ** 2
            likelier = likelier - np.log(slope * (link.unit / self.range))
            self.seen, self.seen_variance, self.likelier = map(torch.as_tensor, (*told, likelier))

    def _weigh(self) -> None:
        """Sums as normal numbers: of their own variance, or of one by how far they are off."""
        noise, more = self.data.noise / self.range**2, 0.0
        variance = self.within + noise
        if self.far is not None:
            far = self.far[self._own]
            known = ~np.isnan(far)
            variance[known], likelier = as_normal(far[known], self.within[known], noise[known])
            more = float(likelier.sum())
        self.variance, self.sums_likelier = torch.as_tensor(variance), more

    def _learn_deviation(self, picked: torch.Tensor) -> None:
        """Take the deviation under which the sums are likeliest, clipped ones included."""
        with torch.no_grad():  # all that a deviation changes is what features are multiplied by
            features = self._summed(self._each(self._rows(picked)))
            coded = self._of_codes(self._parts_of_codes(self.few_codes))
        tried = dict[int, float]()

        def evidence(quarter: int) -> float:
            if quarter not in tried:
                self.deviation = _DEVIATION * 2 ** (quarter / 4)
                self._linearize(picked)
                with torch.no_grad():
                    groups, weights, count = self._weighed(picked)
                    sums = torch.zeros(count, features.shape[1])
                    sums.index_add_(0, groups, features * weights[:, None])
                    tried[quarter] = self._posterior(sums, coded).evidence
            return tried[quarter]

        best = round(4 * math.log2(self.deviation / _DEVIATION))
        for by in (2, -2, 1, -1):
            while best + by in _QUARTERS and evidence(best + by) > evidence(best):
                best += by
        self.deviation = _DEVIATION * 2 ** (best / 4)

    def constant_evidence(self) -> float:
        """Log of the sums' likelihood if predictions were one constant, at its best deviation."""
        found, line = [], Line(self.range)
        self.z, self.far = self.first_predictions, None
        for self.deviation in _DEVIATIONS:
            self._linearize(link=line)
            whitened, size = self.targets.numpy(), self.variance.numpy()
            constant = self.data.by_group(self.slopes.double().numpy())
            likelier = 0.0
            if self.codes is not None:
                whitened = np.append(whitened, self.seen.numpy())
                size = np.append(size, self.seen_variance.numpy())
                constant = np.append(constant, np.ones(self.codes.rows.size))
                likelier = float(self.likelier.sum())
            precision = 1 + np.sum(constant**2 / size)
            fit = np.sum(whitened**2 / size) - np.sum(constant * whitened / size) ** 2 / precision
            log_det = math.log(precision) + np.log(size).sum()
            prior = (math.log(self.deviation / _DEVIATION) / _SPREAD) ** 2
            found.append(float(-0.5 * (fit + log_det + prior)) + likelier)
        self.deviation = _DEVIATION
        return max(found)

    def _learn(self, steps: int, picked: torch.Tensor, after_step: Callable[[], object]) -> None:
        learned = [self.log_scales, self.logs]
        optimizer = Optimizer("adamw", [(learned, 0.0)], _RATE, beta2=0.999)
        summed, codes = self._part(picked), self._parts_of_codes(self.few_codes)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = self._falling(self._summed(summed), self._of_codes(codes))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            after_step()

    def _picked(self) -> torch.Tensor:
        """Events by which scales are learned: all, or as many of each group as there may be.

        Group by group.
        """
        groups = self.few_sums.groups
        order = torch.randperm(groups.size, generator=self.draw).numpy()
        by_group = order[np.argsort(groups[order], kind="stable")]
        events = max(1, min(_EVENTS, _CELLS // self.inputs.shape[1]))
        if groups.size <= events:
            return torch.as_tensor(by_group)
        sizes = np.bincount(groups, minlength=self.few_sums.sums.size)
        ranks = np.arange(groups.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        most = _most_of_each(sizes, events)
        return torch.as_tensor(by_group[ranks < most])

    def _weighed(self, events: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Groups of some events, what each counts for in its sum, and how many groups there are.

        Of a group of which not all events are there, those stand for the others.
        """
        count = self.data.sums.size
        groups = torch.as_tensor(self.data.groups)
        there = torch.bincount(groups[events], minlength=count).clamp(min=1)
        shares = torch.bincount(groups, minlength=count) / there
        groups = groups[events]
        return groups, self.slopes[events] * shares[groups], count

    def _of(self, rows: Indices | slice) -> torch.Tensor | Sparse:
        """(n, F) columns of some rows."""
        return self.inputs[rows]

    def _rows(self, events: torch.Tensor) -> torch.Tensor | Sparse:
        """(n, F) columns of some events."""
        return self._of(self.data.rows[events.numpy()])

    def _part(self, events: torch.Tensor) -> SummedRows:
        """Some events of sums."""
        return SummedRows.from_rows(self._rows(events), *self._weighed(events), self._waves)

    def _each(self, rows: torch.Tensor | Sparse) -> SummedRows:
        """Rows each of which is a group of its own."""
        count = rows.shape[0]
        given = torch.arange(count), torch.ones(count), count, self._waves
        return SummedRows.from_rows(rows, *given)

    def _parts_of_codes(self, codes: torch.Tensor) -> list[tuple[torch.Tensor, SummedRows]]:
        """Some codes and their events, part by part."""
        if self.codes is None:
            return []
        rows = self.codes.rows
        parts = torch.split(codes, _ROWS_AT_ONCE)
        return [(part, self._each(self._of(rows[part.numpy()]))) for part in parts]

    def _of_codes(
        self, parts: Sequence[tuple[torch.Tensor, SummedRows]]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Codes and the (n, 1 + F + D) features of their events."""
        return [(codes, self._summed(part)) for codes, part in parts]

    def _seen(
        self,
        sums: torch.Tensor,
        coded: Sequence[tuple[torch.Tensor, torch.Tensor]],
        of_codes: torch.dtype = torch.float64,
    ) -> Iterator[Seen]:
        """What (G, 1 + F + D) sums of features tell, and (n, 1 + F + D) features of codes."""
        sizes = self._sizes
        yield from Seen.parts(sums, sizes, self.targets, self.variance)
        for part, rows in coded:
            told = self.seen[part], self.seen_variance[part]
            yield from Seen.parts(rows, sizes, *told, of_codes)

    def _posterior(
        self, sums: torch.Tensor, coded: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> Posterior:
        """Of coefficients in units of :attr:`_sizes`; what was expected of scales and of the
        deviation is in the evidence."""
        found = Posterior.of(self._seen(sums, coded), sums.shape[1])
        likelier = self.sums_likelier + sum(float(self.likelier[part].sum()) for part, _ in coded)
        return replace(found, evidence=likelier + found.evidence - float(self._unlikely()))

    def _unlikely(self) -> torch.Tensor:
        """Log of how much less likely than expected what is learned was beforehand."""
        unlikely = (self.log_scales - self.first).square().sum()
        unlikely = unlikely + (self.logs - self.centre).square().sum()
        return 0.5 * (unlikely + math.log(self.deviation / _DEVIATION) ** 2) / _SPREAD**2

    def _falling(
        self, sums: torch.Tensor, coded: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Loss whose slope in what is learned is minus the evidence's."""
        return self._unlikely() + falling([*self._seen(sums, coded, torch.float32)])

    def _summed(self, part: SummedRows) -> torch.Tensor:
        """(count, 1 + F + D) sums of features of some rows by group, times their weights."""
        scales, linear = self.log_scales.exp(), self.logs[1].exp()
        waves = WaveSums.apply(  # type: ignore[no-untyped-call]
            *(scales, part.rows, part.weights, part.groups, part.count),
            *(self.frequencies, self.phases, part.angles if torch.is_grad_enabled() else None),
        )
        return torch.cat([part.constants, linear * scales * part.columns, waves], dim=1)

    def _summed_all(self) -> torch.Tensor:
        """(G, 1 + F + D) sums of the features of all events by group, times their slopes."""
        rows, groups = self.data.rows, torch.as_tensor(self.data.groups)
        ridge = self.log_scales.exp(), self.frequencies, self.phases, self.logs[1].exp()
        total = torch.zeros(self.data.sums.size, 1 + self.inputs.shape[1] + self._waves)
        for start in range(0, len(rows), IN_CACHE):
            part = slice(start, start + IN_CACHE)
            features = features_of_rows(self._of(rows[part]), *ridge)
            total.index_add_(0, groups[part], features.mul_(self.slopes[part, None]))
        return total

    @property
    def _sizes(self) -> torch.Tensor:
        """(1 + F + D,) what deviation coefficients are expected to have; the constant's is 1: the
        whole range."""
        width = self.inputs.shape[1] + self._waves
        return torch.cat([torch.ones(1), self.logs[0].exp().expand(width)]).double()

    def _solved(self, constant: float, around: bool) -> Ridge:
        sample = self.inputs[:: -(-self.inputs.shape[0] // _SAMPLE)]
        with torch.no_grad():
            self._linearize()
            sums = self._summed_all()
            coded = self._of_codes(self._parts_of_codes(self.all_codes))
            for _ in range(_WEIGHINGS if around else 0):
                if self.far is None:
                    self.far = np.full(self.all_sums.sums.size, np.nan)
                of_sums = self._seen(sums, [])
                self.far[self._own] = self._posterior(sums, coded).misses(of_sums)
                self._weigh()
            known = self._posterior(sums, coded)
            factor = known.factor
            coefficients = self._sizes * known.mean[:, 0] * self.link.unit
            features = features_of_rows(
                sample, self.log_scales.exp(), self.frequencies, self.phases, self.logs[1].exp()
            )
            z = (features.double() @ coefficients).numpy()
            slopes = torch.as_tensor(self.link.slope(z) * self.link.unit)
            weighed = (slopes[:, None] * features.double() * self._sizes).T
            spread = torch.linalg.solve_triangular(factor, weighed, upper=False)
            moments = spread @ spread.T / spread.shape[1]
            _, axes = torch.linalg.eigh(moments)
            axes = axes[:, -_DIRECTIONS:]
            unknown = torch.linalg.solve_triangular(factor.T, axes, upper=True)
            unknown = unknown * self._sizes[:, None] * self.link.unit
            relative = self.link.relative_deviation(z)
            deviation = self.deviation * self.range * float(np.sqrt(np.mean(relative**2)))
            # the mean of this and of one constant, by how likely the sums are under each
            share = float(scipy.special.expit(known.evidence - constant))
            average = float(z.mean())
            coefficients = share * coefficients
            coefficients[0] += (1 - share) * average
        return Ridge(
            link=self.link,
            scales=self.log_scales.detach().exp(),
            frequencies=self.frequencies,
            phases=self.phases,
            linear=float(self.logs[1].detach().exp()),
            coefficients=coefficients,
            deviation=deviation,
            doubt=float(spread.square().sum(dim=0).mean().sqrt()),
            gain=known.evidence - constant,
            unknown=unknown,
        )
