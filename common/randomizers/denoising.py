"""The histogram behind a noisy one: penalised least squares, weighed by Mallows' Cp.

Noise of the same size lies on every cell of a released histogram, and on a long grid most of what
is left of it after clipping is a spurious tail: a few cells far out with more variance than all
labels have. Real labels mostly have densities whose logarithm bends little from cell to cell, or
that are near one of the laws of a few parameters. Among estimates that assume so more or less, the
noise itself, whose variance is public, says which fit.
All of this is post-processing of the released integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from labelveil.common.arrays import Floats

MOST_CELLS = 2048
"""Longer histograms are projected only: the choice of the smoothness takes O(k²)."""

_FEWEST_CELLS = 5
_PENALTIES = 10.0 ** np.arange(6, -4, -1)
_BEND = 0.3
"""Second differences of the log density well above this are kept: heaps and steps are real."""
_REWEIGHTINGS = 6
_NEWTON_STEPS = 60
_HALVES = 0.5 ** np.arange(1, 12)[:, None]
_TOTAL_WEIGHT = 100.0
_LEAST_MASS = 0.02
_LEAST_NOISE = 1e-3
_DIGITS = 12
_PRICE = 3.0
"""What a degree of freedom costs, in units of σ². Unbiased is 2, but what an estimate errs by is
mostly a spurious tail, which counts say little of and moments much: over noisy histograms of visits
and of amounts, 3 brings the mean closer by a tenth to a third and takes it 4 to 10 % further away
on bell-shaped labels."""
_LOGARITHMS = -40.0, 15.0
_END_DEVIATIONS = 2.0
_END_PRICE = 6.0
"""What a point mass at an end costs besides: it is taken for real from about three deviations on.
Nothing moves a mean as much as noise on the cell at the far end of a tail: over noisy histograms of
visits 6 takes a fifth off the mean's error; a smaller real mass goes to the cells beside it."""
_SMOOTH = 0.5
"""Deviations from a count below which the cost of Laplace noise is smoothed to a square."""
_TEMPERATURE = 8.0
"""Difference in Cp by which an estimate's weight falls e times: 4 or more in the theory. Over noisy
histograms of visits, 8 lowers the mean's squared error by a third against the least Cp alone; of
amounts and of bell-shaped labels it changes nothing."""


def project_to_simplex(values: Floats) -> Floats:
    """Return the probability vector nearest to ``values`` in the Euclidean distance.

    Source: Duchi, Shalev-Shwartz, Singer, Chandra, *Efficient Projections onto the l1-Ball*, ICML
    2008, Figure 1.
    """
    descending = np.sort(values)[::-1]
    surplus = (np.cumsum(descending) - 1.0) / np.arange(1, values.size + 1)
    last = int(np.flatnonzero(descending > surplus)[-1])
    positive = np.maximum(values - surplus[last], 0.0)
    return np.asarray(positive / positive.sum())


@dataclass(frozen=True, eq=False)
class KnownMeans:
    """What is known of the histogram besides the noisy counts: means of functions of the label."""

    functions: Floats  # (k, r)
    means: Floats  # (r,) estimates of their means over the labels, with independent errors
    deviation: float  # standard deviation > 0 of the errors
    far_tail: bool = False  # cells with hardly any label are many, and far from the others


def denoise_histogram(
    noisy: Floats,
    rows: int,
    deviation: float,
    means: KnownMeans | None = None,
    shape: tuple[int, ...] = (),
    start: Floats | None = None,
) -> Floats:
    """Estimate the histogram of ``rows`` labels from noisy counts.

    Candidates are the projection onto the histograms of that many rows, which assumes nothing, and
    ``exp θ`` minimising ``Σ (c_i − e^θ_i)²/σ² + λ Σ ω_j (Δ²θ)_j²`` under the known total for a
    range of λ, where ω_j takes the weight off bends that the counts insist on; and those with θ a
    parabola in the cells' numbers i, in ln(1 + i), or linear in both, as the normal, log-normal and
    gamma laws have it. All but the first come without and with a point mass at either end, if that
    cell is two deviations away from those beside it. Each has
    Cp = ‖c − ĉ‖²/σ² + 2·df, whose expectation is its squared distance to the true histogram, up to
    a constant; here with 3 in place of 2, and 6 for a point mass besides. Their average with
    weights exp(−Cp/8) is returned: the least Cp alone is often that of an estimate which noise has
    flattered.

    Over cells of several labels there are second differences along each label and across each pair,
    which are 0 where labels are independent; no laws, and point masses at the ends of all lines.

    Source: Mallows, *Some Comments on Cp*, Technometrics 1973; Stein, *Estimation of the Mean of a
    Multivariate Normal Distribution*, Annals of Statistics 1981, for the degrees of freedom; Leung
    and Barron, *Information Theory and Mixing Least-Squares Regressions*, IEEE Transactions on
    Information Theory 2006, for the weights.

    Takes (k,) counts, possibly negative, and the deviation σ >= 0 of the noise on each; over cells,
    ``shape`` is the number of values of each label, the last label's cells side by side. Returns
    (k,) probabilities >= 0, summing to 1. Where more is known, every misfit ‖c − ĉ‖²/σ² above has
    that of the ``means`` added; of one label it is 2√2 Σ |c_i − ĉ_i|/σ, as the law of Laplace has
    it, and what a degree of freedom costs depends on the tail, as does where θ may bend. What
    channels are designed from, without it, stays as it is. ``start`` is a (k,) public prior: one
    candidate more, which has no degree of freedom, so that it holds where the counts do not
    contradict it.
    """
    if deviation < _LEAST_NOISE:
        return project_to_simplex(noisy / rows)
    shape = shape or noisy.shape
    one_label = len(shape) == 1
    counts, total = noisy / deviation, rows / deviation
    fit = _Fit(counts, total, shape, means)
    projected = project_to_simplex(noisy / rows) if means is None else fit.projected()
    few_or_many = max(shape) < _FEWEST_CELLS or noisy.size > MOST_CELLS
    # too few cells have no smoothness to find, and too many take too long
    if few_or_many and start is None:
        return projected
    # a projection has as many degrees of freedom as cells that it leaves above 0, less the total
    freedom = int(np.count_nonzero(projected)) - 1
    misfit = fit.misfit(total * projected, besides_total=True)
    estimates, criteria = [projected], [misfit + fit.noise.price * freedom]
    if start is not None:
        estimates.append(start)
        criteria.append(fit.misfit(total * start, besides_total=True))
    sides = fit.plausible_ends() if one_label else [(True,)] * 2
    for ends in () if few_or_many else itertools.product(*sides):
        fit = _Fit(counts, total, shape, means, ends)
        price = fit.noise.end_price * sum(ends) if one_label else 0.0
        for estimate, freedom_used in fit.candidates(laws=one_label):
            estimates.append(estimate / estimate.sum())
            misfit = fit.misfit(estimate, besides_total=True)
            criteria.append(misfit + fit.noise.price * freedom_used + price)
    # averaged, as the least criterion is often that of an estimate which noise has flattered
    weights = np.exp((min(criteria) - np.array(criteria)) / _TEMPERATURE)
    average = weights @ np.array(estimates)
    # Far below the noise, and coarse enough that every machine rounds to the same numbers.
    rounded = np.round(average / average.sum(), _DIGITS)
    return np.asarray(rounded / rounded.sum())


@dataclass(frozen=True, eq=False)
class _Bends:
    """Weighed second differences of cells: along one label, or across two."""

    near: int  # steps to the next value of the label, or of the first of two
    far: int  # the same, or of the second
    weights: Floats  # (k − near − far,) what the difference from each cell counts; 0 for none

    @classmethod
    def from_shape(
        cls, shape: tuple[int, ...], theta: Floats, ends: tuple[bool, ...], stiffness: Floats
    ) -> list[_Bends]:
        """Take the weight off bends that ``theta`` has, and off ends of lines with point masses;
        what is left of it is multiplied by the (k,) ``stiffness`` of the cell that bends."""
        places = np.arange(theta.size).reshape(shape)
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        all_bends = []
        for i, j in itertools.combinations_with_replacement(range(len(shape)), 2):
            if i == j and shape[i] < _FEWEST_CELLS:
                continue
            # second differences along axis i, or the mixed one across i and j, at every place from
            # which both steps stay on the grid
            ahead = np.bincount([i, j], minlength=len(shape))
            first = places[tuple(map(slice, shape - ahead))]
            bends = cls(steps[i], steps[j], np.zeros(theta.size - steps[i] - steps[j]))
            weights = 1 / (1 + (bends.bent(theta)[first] / _BEND) ** 2)
            if i == j:
                lines = np.moveaxis(weights, i, 0)
                lines[0] *= not ends[0]
                lines[-1] *= not ends[1]
            bends.weights[first] = weights * stiffness[first + steps[i]]
            all_bends.append(bends)
        return all_bends

    @cached_property
    def factors(self) -> dict[int, int]:
        """How far each cell of a difference is from its first, and what it is multiplied by."""
        if self.near == self.far:
            return {0: 1, self.near: -2, 2 * self.near: 1}
        return {0: 1, self.far: -1, self.near: -1, self.near + self.far: 1}

    def bent(self, theta: Floats) -> Floats:
        """Differences that begin at each cell; ``np.diff`` takes ten times as long."""
        slopes = theta[..., self.far :] - theta[..., : -self.far]
        return np.asarray(slopes[..., self.near :] - slopes[..., : -self.near])

    def cost(self, theta: Floats) -> Floats:
        """(…) cost of each (…, k) θ."""
        return np.asarray(np.add.reduce(self.weights * self.bent(theta) ** 2, -1))

    def gradient(self, theta: Floats) -> Floats:
        """(k,) derivatives of half the cost."""
        bent, out = self.weights * self.bent(theta), np.zeros(theta.size)
        for at, times in self.factors.items():
            out[at : at + bent.size] += bent if times == 1 else times * bent
        return out

    @classmethod
    def matrix(cls, bends: Sequence[_Bends], k: int) -> Floats:
        """Upper bands (b, k) of the matrix of all their costs, as LAPACK wants them."""
        bands = np.zeros((max(each.near + each.far for each in bends) + 1, k))
        for each in bends:
            parts = itertools.combinations_with_replacement(each.factors.items(), 2)
            for (first, times), (second, times_too) in parts:
                band = bands[first - second - 1, second : second + each.weights.size]
                band += times * times_too * each.weights
        return bands


@dataclass(frozen=True)
class _Misfit:
    """What a deviation u from a count costs, in units of σ: (r u)², half its derivative being w u.

    r = w = 1 is the square, as the logarithm of normal noise has it. That of ``laplace`` noise is
    2√2 |u|, here smoothed near 0.
    """

    tolerance: float  # relative, at which Newton's method ends
    information: float  # of a count about its mass, in 1/σ²
    price: float  # of a degree of freedom, in units of σ²
    end_price: float  # what a point mass at an end costs besides
    laplace: bool = True
    far_tail: bool = False  # whether bends cost more on cells far from the first ones

    def ratios(self, u: Floats) -> tuple[Floats | float, Floats | float]:
        """r and w."""
        if not self.laplace:
            return 1.0, 1.0
        long = np.hypot(u, _SMOOTH)
        return (8**0.5 / (long + _SMOOTH)) ** 0.5, 2**0.5 / long

    def stiffness(self, cells: int) -> Floats:
        """(k,) how much more a bend at each cell costs than elsewhere.

        Labels with a far tail are smooth in u = ln(1 + i), not in the cells' numbers i:
        ∫ (d²θ/du²)² du is Σ (1 + i)³ (Δ²θ_i)² but for the slopes' part. One smoothness for all
        cells, as free as the first ones need it, takes noise on the last ones for a hump of labels.
        """
        if not self.far_tail:
            return np.ones(cells)
        return np.asarray(((1.0 + np.arange(cells)) / cells**0.5) ** 3)


_SQUARED = _Misfit(1e-12, 1.0, _PRICE, _END_PRICE, laplace=False)
"""Without other knowledge than the counts."""
_LAPLACE = _Misfit(1e-8, 2.0, 2.0, 10.0)
"""Twice as much weight on what many cells have in common, and less on one that stands out: of a
thousand cells with such noise, one is five deviations off."""
_FAR_TAIL = _Misfit(1e-8, 2.0, 4.0, 16.0, far_tail=True)
"""The same, with dearer degrees of freedom: what noise puts far out moves the mean by most.

Over 24 noisy histograms of 1,250 visits at ε = 1 the root mean square error of the mean is half of
that with squares, .11 deviations of the labels; bell-shaped labels want 2 as in the theory."""


class _Fit:
    """Fits to counts, to their known total and to other known means; counts in units of σ.

    ``known @ masses`` is observed as ``wanted``, with errors of variance 1; the first is the total,
    which is known better. ``ends`` says which of the two have point masses.
    """

    def __init__(
        self,
        counts: Floats,
        total: float,
        shape: tuple[int, ...],
        means: KnownMeans | None,
        ends: tuple[bool, ...] = (False, False),
    ) -> None:
        self.counts, self.shape, self.ends = counts, shape, ends
        self.noise = _SQUARED
        if means is not None and len(shape) == 1:
            self.noise = _FAR_TAIL if means.far_tail else _LAPLACE
        self.stiffness = self.noise.stiffness(counts.size)
        root = _TOTAL_WEIGHT**0.5
        self.known, self.wanted = np.full((1, counts.size), root), np.array([root * total])
        if means is not None:
            functions = means.functions.T / (total * means.deviation)
            self.known = np.concatenate([self.known, functions])
            self.wanted = np.append(self.wanted, means.means / means.deviation)
        self.unit = np.eye(self.wanted.size)
        smooth = np.apply_along_axis(  # averages of every five neighbours
            lambda line: np.convolve(np.pad(line, 2, mode="edge"), np.full(5, 0.2), "valid"),
            int(np.argmax(shape)),
            counts.reshape(shape),
        )
        self.theta: Floats = np.log(np.maximum(smooth.reshape(-1), 0.2))
        self.floor = float(np.log(_LEAST_MASS / counts.size))

    def misfit(self, masses: Floats, *, besides_total: bool = False) -> Floats:
        """(…) squared distance of each (…, k) masses to what was observed."""
        apart = (self.known @ masses[..., None] - self.wanted[:, None])[..., besides_total:, :]
        off = self.counts - masses
        own = np.add.reduce((self.noise.ratios(off)[0] * off) ** 2, -1)
        return np.asarray(own + (apart.swapaxes(-1, -2) @ apart)[..., 0, 0])

    def projected(self) -> Floats:
        """(k,) probabilities of least misfit, by Newton's method on the dual.

        With ν = L μ − w, where L is what is known of the masses and w as what it was observed,
        those of least misfit are μ = max(c − Lᵀ ν, 0), and ν minimises |μ|² + |ν|² + 2 ν · w.
        """
        dual, current = np.zeros(self.wanted.size), np.inf
        step = dual
        for _ in range(_NEWTON_STEPS):
            for halving in range(30):
                candidate = dual + step * 0.5**halving
                masses = np.maximum(self.counts - candidate @ self.known, 0.0)
                value = float(masses @ masses + candidate @ candidate + 2 * candidate @ self.wanted)
                if value < current:
                    break
            else:
                break
            dual, current = candidate, value
            # the dual's curvature: masses at 0 stay there under a small step, and bend nothing
            active = self.known[:, masses > 0]
            bend = np.eye(dual.size) + active @ active.T
            step = np.linalg.solve(bend, self.known @ masses - self.wanted - dual)
        masses = np.maximum(self.counts - dual @ self.known, 0.0)
        return np.asarray(masses / masses.sum())

    def plausible_ends(self) -> list[tuple[bool, ...]]:
        """For either end, whether there is to be no point mass, and maybe whether there is one."""
        beside = self.counts[[0, -1]] - [self.counts[1:5].mean(), self.counts[-5:-1].mean()]
        return [(False, True) if abs(apart) > _END_DEVIATIONS else (False,) for apart in beside]

    def candidates(self, *, laws: bool) -> Iterator[tuple[Floats, float]]:
        """Yield (k,) estimates, in units of σ, and their degrees of freedom."""
        for penalty in _PENALTIES:  # falling: each starts from the one before
            yield self.smooth(float(penalty))
        if not laws:
            return
        cells = np.linspace(0, 1, self.counts.size)
        logarithms = np.log1p(np.arange(self.counts.size)) / np.log(self.counts.size)
        atoms = np.eye(self.counts.size)[:, [0, -1]][:, list(self.ends)]
        for terms in ((cells, cells**2), (logarithms, logarithms**2), (logarithms, cells)):
            yield self.law(np.column_stack([np.ones_like(cells), *terms, atoms]))

    def law(self, basis: Floats) -> tuple[Floats, float]:
        """Return the (k,) estimate exp(basis @ a), and its degrees of freedom, the total aside.

        By a trust region, from a line through the counts' logarithms. (SciPy's MINPACK, method
        "lm", gives other last digits in some processes than in others, from the same arguments.)
        """
        weights = np.maximum(self.counts, 0.3)
        start = np.linalg.lstsq(basis * weights[:, None], weights * np.log(weights), rcond=None)[0]

        def masses(a: Floats) -> Floats:
            return np.asarray(np.exp(np.clip(basis @ a, *_LOGARITHMS)))

        def misfits(a: Floats) -> Floats:
            estimate = masses(a)
            off = estimate - self.counts
            weighed = self.noise.ratios(off)[0] * off
            return np.concatenate([weighed, self.known @ estimate - self.wanted])

        def slopes(a: Floats) -> Floats:
            estimate = masses(a)
            ratios, weights = self.noise.ratios(estimate - self.counts)
            moved = estimate[:, None] * basis
            return np.concatenate(
                [np.reshape(weights / ratios, (-1, 1)) * moved, self.known @ moved]
            )

        best = scipy.optimize.least_squares(misfits, start, slopes, method="trf").x
        return masses(best), basis.shape[1] - 1

    def smooth(self, penalty: float) -> tuple[Floats, float]:
        """Return the (k,) estimate, in units of σ, and its degrees of freedom."""
        bends = self._bends(np.zeros(self.counts.size))
        for _ in range(_REWEIGHTINGS):
            self._newton(penalty, bends)
            bends = self._bends(self.theta)
        return np.exp(self.theta), self._freedom(penalty, bends)

    def _bends(self, theta: Floats) -> list[_Bends]:
        return _Bends.from_shape(self.shape, theta, self.ends, self.stiffness)

    def _objective(self, theta: Floats, penalty: float, bends: Sequence[_Bends]) -> Floats:
        """(…) what is minimised, at each (…, k) θ."""
        cost = sum(each.cost(theta) for each in bends)
        return np.asarray(0.5 * (self.misfit(np.exp(theta)) + penalty * cost))

    def _newton(self, penalty: float, bends: Sequence[_Bends]) -> None:
        damping = 1e-3
        bands = penalty * _Bends.matrix(bends, self.theta.size)
        here = self._place(self.theta, penalty, bends)
        for _ in range(_NEWTON_STEPS):
            current, masses, off, weights, apart = here
            # in θ = ln μ, so that masses stay positive: each derivative is that in μ, times μ
            residual = weights * off + apart @ self.known
            slopes = sum(each.gradient(self.theta) for each in bends)
            gradient = masses * residual + penalty * slopes
            # Gauss and Newton: without what the bend of e^θ adds, which could be negative; damped,
            # as masses next to nothing have next to no curvature
            own = weights * masses**2 + damping
            step = -self._solve(masses, bands, own, gradient[:, None])[:, 0]
            # further away the quadratic model says nothing: a mass changes e² times at most
            step = np.minimum(np.maximum(step, -2.0), 2.0)
            theta = np.maximum(self.theta + step, self.floor)
            here = self._place(theta, penalty, bends)
            if not here[0] < current:  # most often at the minimum: the halved steps all at once
                thetas = np.maximum(self.theta + step * _HALVES, self.floor)
                values = self._objective(thetas, penalty, bends)
                lower = np.flatnonzero(values < current)
                if not lower.size:
                    return
                theta = thetas[lower[0]]
                here = self._place(theta, penalty, bends)
            self.theta = theta
            damping = max(damping / 3, 1e-9)
            if current - here[0] <= self.noise.tolerance * (1 + abs(here[0])):
                return

    def _place(
        self, theta: Floats, penalty: float, bends: Sequence[_Bends]
    ) -> tuple[float, Floats, Floats, Floats | float, Floats]:
        """What is minimised at a (k,) θ; masses there, by how much they are off the counts, and
        those offs' weights; (r,) by how much what is known of the masses is off."""
        masses = np.exp(theta)
        off, apart = masses - self.counts, self.known @ masses - self.wanted
        ratios, weights = self.noise.ratios(off)
        cost = sum(each.cost(theta) for each in bends)
        misfit = np.add.reduce((ratios * off) ** 2) + apart @ apart
        return float(0.5 * (misfit + penalty * cost)), masses, off, weights, apart

    def _solve(self, masses: Floats, bands: Floats, own: Floats, right: Floats) -> Floats:
        """Solve with the Gauss-Newton matrix: a few bands, and low rank from what is known."""
        # Woodbury: with B the bands and K what is known, (B + KKᵀ)⁻¹r is B⁻¹r less
        # B⁻¹K (I + KᵀB⁻¹K)⁻¹ KᵀB⁻¹r, and one banded system has both right sides
        bands = bands.copy()
        bands[-1] += own
        known = (self.known * masses).T
        # without scipy's checks, which take several times as long as the work
        _, both, failed = scipy.linalg.lapack.dpbsv(bands, np.concatenate([known, right], axis=1))
        if failed:
            raise np.linalg.LinAlgError(f"the histogram cannot be smoothed (pbsv: {failed})")
        low, inner = both[:, : known.shape[1]], both[:, known.shape[1] :]
        scale = self.unit + known.T @ low
        return np.asarray(inner - low @ np.linalg.solve(scale, known.T @ inner))

    def _freedom(self, penalty: float, bends: Sequence[_Bends]) -> float:
        """Trace of the derivative of all that is fitted over all that was observed, total aside."""
        # with J the derivative in θ of all that was observed, in its own deviations, and A the
        # Gauss-Newton matrix, what is fitted moves by J A⁻¹ Jᵀ with what was observed
        masses = np.exp(self.theta)
        information = self.noise.information
        seen = np.concatenate([information**0.5 * np.diag(masses), self.known[1:] * masses]).T
        own = information * masses**2 + 1e-9
        bands = penalty * _Bends.matrix(bends, masses.size)
        return float(np.sum(seen * self._solve(masses, bands, own, seen)))
