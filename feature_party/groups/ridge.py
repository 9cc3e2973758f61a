"""Ridge regression on random features from noisy sums, with a scale of each column learned.

The prediction is ``f(x) = m + a·(s x) + Σ_j b_j cos(ω_j·(s x) + φ_j)`` with normal coefficients: a
Gaussian process with a linear and a squared-exponential kernel on columns scaled by s, in random
features. Sums are linear in f (:mod:`labelveil.feature_party.groups.law`), so that their marginal
likelihood has a closed form; its gradient finds the scale of each column, the amplitudes and the
labels' own deviation. Which columns matter decides everything: noise leaves few sums to learn from.

Each wave runs along about half of the columns, drawn at random. Over such draws its kernel is the
product of ``(1 + k)/2`` over columns, with k a squared-exponential of that column: the sum over all
sets of columns of a kernel of these alone. What hangs on a few columns at a time takes fewer sums
to learn than what hangs on all of them together.

Source: Rahimi and Recht, *Random Features for Large-Scale Kernel Machines*, NeurIPS 2007; scales by
marginal likelihood as in Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006,
section 5.4.1; sums of Gaussian processes as in Law et al., *Variational Learning on Aggregate
Outputs with Gaussian Processes*, NeurIPS 2018; kernels of all sets of columns as in Duvenaud,
Nickisch and Rasmussen, *Additive Gaussian Processes*, NeurIPS 2011.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.groups.codes import CodeRows
from labelveil.feature_party.groups.law import SumRows

FEATURES = 300
STEPS, STEPS_AGAIN = 45, 20
_ALONG = 0.5
"""Share of the columns that a wave runs along."""
_RATE = 0.1
_EVENTS = 40_000
"""Events by which scales are learned, about as many of each group; coefficients take all."""
_CODES = 10_000
"""Codes by which scales are learned; coefficients take all."""
_ROWS_AT_ONCE = 1 << 16
_SPREAD = 1.0
"""Deviation, before anything is known, of each logarithm that is learned."""
_DIRECTIONS = 20
"""In which what is not known of predictions is told apart."""
_SAMPLE = 2_000
"""Rows by which it is measured how sure predictions are."""
_DEVIATION, _AMPLITUDE = 1 / 8, 1 / 4
"""Of labels around predictions, and of predictions: what is expected, as shares of the range."""
_DEVIATIONS = tuple(_DEVIATION * 2.0 ** (half / 2) for half in range(-5, 5))
"""Deviations that are tried; then between the best one and its neighbours."""


@dataclass(frozen=True, eq=False)
class Ridge:
    """What was learned: predictions in units of the label, and how likely the sums are."""

    scales: torch.Tensor  # (F,)
    frequencies: torch.Tensor  # (F, D)
    phases: torch.Tensor  # (D,)
    linear: float  # amplitude of linear features, relative to the others'
    coefficients: torch.Tensor  # (1 + F + D,) float64: labels may be of any size
    deviation: float  # of labels around what could be predicted of them
    doubt: float  # deviation of predictions from that, a posteriori
    gain: float  # log of how much likelier the sums are than under one constant prediction
    unknown: torch.Tensor  # (1 + F + D, K) float64: features of what is not known of predictions

    @property
    def miss(self) -> float:
        """Deviation of labels from predictions."""
        return math.hypot(self.deviation, self.doubt)

    def predict(self, inputs: Floats) -> Floats:
        """(n,) expected labels of (n, F) rows; not clipped to any bounds."""
        return self._of_features(inputs, self.coefficients)

    def doubts(self, inputs: Floats) -> Floats:
        """(n, K) what is not known of predictions of (n, F) rows, in units of the label.

        The product of two rows is the posterior covariance of their predictions, nearly.
        """
        return self._of_features(inputs, self.unknown)

    def _of_features(self, inputs: Floats, factors: torch.Tensor) -> Floats:
        parts = []
        with torch.no_grad():
            for start in range(0, max(len(inputs), 1), _ROWS_AT_ONCE):
                x = torch.as_tensor(inputs[start : start + _ROWS_AT_ONCE], dtype=torch.float32)
                features = _features(x, self.scales, self.frequencies, self.phases, self.linear)
                parts.append((features.double() @ factors).numpy())
        return np.concatenate(parts)


def _features(
    x: torch.Tensor,
    scales: torch.Tensor,
    frequencies: torch.Tensor,
    phases: torch.Tensor,
    linear: torch.Tensor | float,
) -> torch.Tensor:
    """(n, 1 + F + D) features of (n, F) rows."""
    scaled = x * scales
    waves = math.sqrt(2 / phases.numel()) * torch.cos(scaled @ frequencies + phases)
    return torch.cat([torch.ones(len(x), 1), linear * scaled, waves], dim=1)


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
    """

    def __init__(
        self,
        inputs: Floats,
        data: SumRows,
        lower: float,
        upper: float,
        seed: int,
        start: float = 1.0,
        codes: CodeRows | None = None,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        count = inputs.shape[1]
        self.data, self.range = data, upper - lower
        self.inputs = torch.as_tensor(inputs, dtype=torch.float32)
        along = torch.rand(count, FEATURES, generator=draw) < _ALONG
        along |= ~along.any(dim=0)  # a wave along no column would be a constant
        self.frequencies = torch.randn(count, FEATURES, generator=draw) * along
        self.phases = 2 * math.pi * torch.rand(FEATURES, generator=draw)
        spread = float(inputs.std(axis=0).mean()) or 1.0
        self.first = math.log(start / (spread * math.sqrt(count)))
        self.log_scales = torch.full((count,), self.first).requires_grad_()
        # amplitude of the waves, and that of linear features relative to it
        self.logs = torch.log(torch.tensor([_AMPLITUDE, 0.5])).requires_grad_()
        self.centre = self.logs.detach().clone()
        self.deviation = _DEVIATION  # as a share of the range
        self.draw = draw
        # an offset is what was once predicted; where labels are not clipped it does not matter
        self.first_predictions = np.full(len(inputs), np.nan)
        self.first_predictions[data.rows] = data.offsets
        self.codes = codes
        if codes is not None:
            self.first_predictions[codes.rows] = codes.mean
            order = torch.randperm(codes.rows.size, generator=draw)
            self.few_codes, self.all_codes = order[:_CODES], torch.arange(codes.rows.size)

    def run(self) -> Ridge:
        """Learn scales, then the coefficients, around what was predicted and then around that."""
        constant = self._constant_evidence()
        self.predictions = self.first_predictions
        again = self.codes is not None or not self.data.open_ended.all()
        for steps in (STEPS, STEPS_AGAIN, 0) if again else (STEPS,):
            picked = self._picked()
            self._linearize()
            self._learn(steps, picked)
            self._learn_deviation(picked)
            ridge = self._solved(constant)
            self.predictions = ridge.predict(self.inputs.numpy())
        return ridge

    def _linearize(self) -> None:
        """Sums as linear functions of predictions, in units of the labels' range."""
        deviation = self.deviation * self.range
        mean, variance, slope = self.data.moments(self.predictions, deviation)
        around = mean - slope * self.predictions[self.data.rows]
        rest = (self.data.sums - self.data.by_group(around)) / self.range
        self.targets = torch.as_tensor(rest)
        self.slopes = torch.as_tensor(slope, dtype=torch.float32)
        noise = self.data.by_group(variance) + self.data.noise
        self.variance = torch.as_tensor(noise / self.range**2)
        if self.codes is not None:
            near = self.predictions[self.codes.rows]
            seen, variance, likelier = self.codes.seen(near, deviation)
            told = seen / self.range, variance / self.range**2, likelier
            self.seen, self.seen_variance, self.likelier = map(torch.as_tensor, told)

    def _learn_deviation(self, picked: torch.Tensor) -> None:
        """Take the deviation under which the sums are likeliest, clipped ones included."""

        def evidence(deviation: float) -> float:
            self.deviation = deviation
            self._linearize()
            with torch.no_grad():
                return float(self._evidence(picked)[0])

        tried = {d: evidence(d) for d in _DEVIATIONS}
        best = max(tried, key=tried.__getitem__)
        tried |= {d: evidence(d) for d in (best * 2**-0.25, best * 2**0.25)}
        self.deviation = max(tried, key=tried.__getitem__)
        self._linearize()

    def _constant_evidence(self) -> float:
        """Log of the sums' likelihood if predictions were one constant, at its best deviation."""
        found = []
        self.predictions = self.first_predictions
        for self.deviation in _DEVIATIONS:
            self._linearize()
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

    def _learn(self, steps: int, picked: torch.Tensor) -> None:
        optimizer = torch.optim.Adam([self.log_scales, self.logs], lr=_RATE)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = -self._evidence(picked)[0]
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def _picked(self) -> torch.Tensor:
        """Events by which scales are learned: all, or as many of each group as there may be."""
        groups = self.data.groups
        if groups.size <= _EVENTS:
            return torch.arange(groups.size)
        order = torch.randperm(groups.size, generator=self.draw).numpy()
        by_group = order[np.argsort(groups[order], kind="stable")]
        sizes = np.bincount(groups, minlength=self.data.sums.size)
        ranks = np.arange(groups.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        most = _most_of_each(sizes, _EVENTS)
        return torch.as_tensor(by_group[ranks < most])

    def _sums(self, events: torch.Tensor) -> torch.Tensor:
        """(G, 1 + F + D) sums of features by group, each event's times its slope.

        Of a group of which not all events are there, those stand for the others.
        """
        count, width = self.data.sums.size, 1 + self.inputs.shape[1] + FEATURES
        total = torch.zeros(count, width)
        rows = torch.as_tensor(self.data.rows)[events]
        groups = torch.as_tensor(self.data.groups)[events]
        there = torch.bincount(groups, minlength=count).clamp(min=1)
        shares = torch.bincount(torch.as_tensor(self.data.groups), minlength=count) / there
        for start in range(0, len(events), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            features = self._of_rows(rows[part])
            weighed = features * self.slopes[events[part], None]
            total = total.index_add(0, groups[part], weighed)
        return total * shares[:, None]

    def _evidence(
        self, events: torch.Tensor, *, every_code: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log of the sums' marginal likelihood and of what was expected of what is learned.

        Also a factor of the coefficients' precision, in units of :attr:`_sizes`, and what it is to
        be solved for, both (1 + F + D, …).
        """
        deviations = self.variance.sqrt()
        matrix = self._sums(events).double() * self._sizes / deviations[:, None]
        whitened = self.targets / deviations
        inner = matrix.T @ matrix + torch.eye(matrix.shape[1], dtype=torch.float64)
        pulled, square = (matrix.T @ whitened)[:, None], whitened @ whitened
        sizes, likelier = torch.log(deviations).sum(), torch.zeros(())
        if self.codes is not None:
            for part in torch.split(
                self.all_codes if every_code else self.few_codes, _ROWS_AT_ONCE
            ):
                deviations = self.seen_variance[part].sqrt()
                rows = self._of_rows(torch.as_tensor(self.codes.rows)[part])
                matrix = rows.double() * self._sizes / deviations[:, None]
                whitened = self.seen[part] / deviations
                inner = inner + matrix.T @ matrix
                pulled, square = (
                    pulled + (matrix.T @ whitened)[:, None],
                    square + whitened.square().sum(),
                )
                sizes, likelier = (
                    sizes + torch.log(deviations).sum(),
                    likelier + self.likelier[part].sum(),
                )
        factor = torch.linalg.cholesky(inner)
        solved = torch.linalg.solve_triangular(factor, pulled, upper=False)
        fit = square - solved.square().sum()
        log_det = 2 * (torch.log(torch.diagonal(factor)).sum() + sizes)
        prior = (self.log_scales - self.first).square().sum()
        prior = prior + (self.logs - self.centre).square().sum()
        prior = prior + math.log(self.deviation / _DEVIATION) ** 2
        return likelier - 0.5 * (fit + log_det + prior / _SPREAD**2), factor, pulled

    def _of_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, 1 + F + D) features of some rows."""
        return _features(
            self.inputs[rows],
            self.log_scales.exp(),
            self.frequencies,
            self.phases,
            self.logs[1].exp(),
        )

    @property
    def _sizes(self) -> torch.Tensor:
        """(1 + F + D,) what deviation coefficients are expected to have; the constant's is 1: the
        whole range."""
        width = self.inputs.shape[1] + FEATURES
        return torch.cat([torch.ones(1), self.logs[0].exp().expand(width)]).double()

    def _solved(self, constant: float) -> Ridge:
        sample = self.inputs[:: -(-len(self.inputs) // _SAMPLE)]
        with torch.no_grad():
            every = torch.arange(self.data.groups.size)
            evidence, factor, pulled = self._evidence(every, every_code=True)
            coefficients = self._sizes * torch.cholesky_solve(pulled, factor)[:, 0]
            features = _features(
                sample, self.log_scales.exp(), self.frequencies, self.phases, self.logs[1].exp()
            )
            weighed = (features.double() * self._sizes).T
            spread = torch.linalg.solve_triangular(factor, weighed, upper=False)
            moments = spread @ spread.T / spread.shape[1]
            _, axes = torch.linalg.eigh(moments)
            axes = axes[:, -_DIRECTIONS:]
            unknown = torch.linalg.solve_triangular(factor.T, axes, upper=True)
            unknown = unknown * self._sizes[:, None] * self.range
        return Ridge(
            self.log_scales.detach().exp(),
            self.frequencies,
            self.phases,
            float(self.logs[1].detach().exp()),
            coefficients * self.range,
            self.deviation * self.range,
            float(spread.square().sum(dim=0).mean().sqrt()) * self.range,
            float(evidence) - constant,
            unknown,
        )
