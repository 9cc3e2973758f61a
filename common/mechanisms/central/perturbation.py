"""Private empirical risk minimisation: input, output and objective perturbation, ε or (ε, δ)-DP.

The risk is ``J(w) = (1/n) Σ ℓ(x_iᵀw, y_i) + (λ/2)‖w‖²`` with ‖x_i‖ <= 1, |ℓ'| <= L, 0 <= ℓ'' <= c.
Neighbours replace one record, features and label; n is public.

**Output perturbation** (Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1). The minimisers of
neighbours are at most ``2L/(nλ)`` apart, and computed ones with ``‖∇J‖ <= γ`` at most
``Δ = 2L/(nλ) + 2γ/λ``; noise of density ∝ ``exp(-ε‖b‖/Δ)`` is added.

**Objective perturbation** (ibid., Algorithm 2): the minimiser w of ``J(w) + bᵀw/n + ((Λ-λ)/2)‖w‖²``
with b of density ∝ ``exp(-ε'‖b‖/(2L))``. Given w, b is ``-n∇J(w) - n(Λ-λ)w``, and

- neighbours' b differ by at most 2L, which costs ε';
- the density of w has the factor ``|det ∂b/∂w|``. Removing the record that differs leaves a matrix
  B ⪰ nΛI; each neighbour adds one matrix h x xᵀ with 0 <= h <= c, hence multiplies ``det B`` by
  ``1 + h xᵀB⁻¹x``, which lies in ``1 … 1 + c/(nΛ)``. The ratio costs ``ln(1 + c/(nΛ))``.

So ``ε' = ε₁ - ln(1 + c/(nΛ))``. (The paper charges twice that logarithm, ``ln(1 + 2c/(nλ) +
c²/(n²λ²))``, as if the old record's removal could raise the determinant too.) Λ is λ, or more where
that would leave less than ε₁/2: ``Λ = max(λ, c/(n(e^{ε₁/2} - 1)))``. Second derivatives may jump on
a set of measure zero: b is a Lipschitz function of w all the same, and densities transform so.

**With δ > 0** noise is Gaussian, and shrinks with √d in place of d. The output's is that of Balle
and Wang (ICML 2018) for Δ. In the objective b ~ N(0, σ²I) (Kifer, Smith, Thakurta, *Private Convex
Empirical Risk Minimization and High-dimensional Regression*, COLT 2012, Algorithm 1), and with

    u t + u²/2 = ε₁ - ln(1 + c/(nΛ)),   t = √(2 ln(1/δ)),   σ = 2L/u,

it is (ε₁, δ)-DP: neighbours' b differ by a vector v(w) of length 2L at most in the span of the two
records x, x', so that their log density ratio ``(2 bᵀv + ‖v‖²)/(2σ²)`` is ``2L‖Pb‖/σ² + 2L²/σ²`` at
most, P projecting on that plane; and ``P[‖Pb‖ > σt] = e^{-t²/2} = δ`` in two dimensions, less in
one.

Exact minimisers do not exist in floats, and the proof needs them. The remedy is that of
approximate minima perturbation (Iyengar et al., *Towards Practical Differentially Private Convex
Optimization*, S&P 2019, Algorithm 2): the computed w̃ lies within ``r = γ/Λ`` of the exact w. Think
of w as released for ε₁; then ``w̃ - w`` has sensitivity 2r, and exact discrete Laplace noise on a
fine grid hides it for ε₂ = ε/128. Rounding b to a grid moves the gradient by a known amount and is
part of γ.

**Function perturbation:** the functional mechanism (Zhang, Zhang, Xiao, Yang, Winslett, VLDB 2012)
minimises a randomised approximation of the objective,

    Ĵ(w) = (s ĝᵀw + (c/2) wᵀĤw)/n + (λ/2)‖w‖²,  ĝ ≈ Σ x ℓ'(0, y)/s,  Ĥ ≈ Σ x xᵀ 1[ℓ''(0, y) > 0],

the second-order Taylor polynomial at 0 with noisy coefficients, s the largest |ℓ'(0, y)|; for the
ridge's loss it is J itself, and where ℓ''(0, y) = 0, as for the hinge, it is linear. Replacing a
record moves (ĝ, upper half of Ĥ) by √5 at most: rows of norm 1 at an angle of cosine m move them by
``4 + 2|m| - 2m² <= 4.5`` in square, and by 4 + 1 if one of them has no curvature. Noise as for the
output. Four deviations of Ĥ's noise are added to λ, as there, and eigenvalues below 0 count as 0.

**Input perturbation:** local DP. Every record is made private by itself, before any curator: the
vector ``y x`` for a loss of the margin, ``(x, y)`` for one of the residual, truncated to a grid,
with discrete Laplace noise for its L1 diameter, or discrete Gaussian noise for its L2 diameter. The
model is post-processing: the loss itself on noisy margins, and for residuals ridge regression on
moments from which the noise's known variance is taken out.

All noise is exact (:mod:`labelveil.common.exact.radial_noise`,
:mod:`labelveil.common.exact.noise`), so that no float rounding is left in what is released. What
remains: the time that a fit takes depends on the data, and so does whether the solver reaches its
certificate (an error otherwise; at the tolerances used here it has not been seen).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.entropy import Entropy, WordSource
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.noise import discrete_gaussian, discrete_laplace
from labelveil.common.exact.radial_noise import gaussian_vector, radial_laplace
from labelveil.common.exact.rational import rational
from labelveil.common.exact.rounding import above, below, float_below, multiple_above
from labelveil.common.guarantees import Adjacency, ApproximateDP, PureDP, largest_rho
from labelveil.common.guarantees.gaussian import gaussian_sigma
from labelveil.common.guarantees.limits import positive, within
from labelveil.common.mechanisms.central.risk import Loss, Risk, least_tolerance, minimise
from labelveil.common.mechanisms.clipping import checked_labels, clip_rows

PERTURBATIONS = ("objective", "output", "function", "input")

_SHARE_OF_ROUNDING = Fraction(1, 128)
"""Share of objective perturbation's ε that hides how far the computed minimiser is off."""
_RECORD_GRID = 1 << 10
_SCALE_GRAIN = 1 << 10


@dataclass(frozen=True)
class Perturbation:
    """A linear model of n records, learned in private for replacing one of them."""

    kind: str  # one of PERTURBATIONS
    loss: Loss
    ridge: float  # λ > 0, chosen without looking at the data
    epsilon: float | Fraction  # ε > 0, a float taken at its exact value
    delta: float = 0.0  # 0 takes noise that needs none; above 0 it is Gaussian

    def __post_init__(self) -> None:
        if self.kind not in PERTURBATIONS:
            raise ConfigError(
                f"perturbation={self.kind!r} must be one of {', '.join(PERTURBATIONS)}"
            )
        positive(epsilon=self.epsilon, alpha=self.ridge)
        within("[0, 1)", delta=self.delta)

    @property
    def guarantee(self) -> PureDP | ApproximateDP:
        """ε-DP, or (ε, δ)-DP, for replacing one record."""
        if self.delta == 0:
            return PureDP.of(self.epsilon, Adjacency.REPLACE_RECORD)
        return ApproximateDP.of(self.epsilon, self.delta, Adjacency.REPLACE_RECORD)

    def draw(self, rows: Floats, labels: Floats, entropy: Entropy) -> Floats:
        """(d,) weights, learned from (n, d) features and (n,) labels.

        Longer rows than 1 are shrunk to it; labels are ±1 for a loss of the margin, otherwise
        clipped to -1 … 1. Entropy must be fresh: two fits under one key would share their noise.
        """
        clipped = checked_labels(rows, labels)
        if self.loss.margin and not np.all(np.abs(labels) == 1):
            raise DataError("labels must be -1 or 1 for a loss of the margin")
        clean = clip_rows(np.asarray(rows, dtype=np.float64))
        none = np.zeros(rows.shape[1])
        risk = Risk(self.loss, clean, clipped, self.ridge, none)
        perturbed = {
            "objective": self._objective,
            "output": self._output,
            "function": self._function,
            "input": self._input,
        }
        return perturbed[self.kind](risk, entropy.source(f"{self.kind} perturbation"), entropy)

    def _output(self, risk: Risk, source: WordSource, entropy: Entropy) -> Floats:
        n, d = risk.rows.shape
        steep = risk.loss.lipschitz
        tolerance = 1e-4 * steep / n + least_tolerance(n, d, steep)
        scale = self._scale(output_sensitivity(risk.loss, n, risk.ridge, tolerance))
        return self._noisy(minimise(risk, tolerance), scale, 20, source)[0]

    def _scale(self, apart: Fraction) -> Fraction:
        """Scale or σ of the noise that hides a vector that neighbours have so far apart."""
        epsilon = rational(self.epsilon)
        if self.delta == 0:
            return apart / epsilon
        return apart * Fraction(above(gaussian_sigma(float_below(epsilon), self.delta)))

    def _function(self, risk: Risk, source: WordSource, entropy: Entropy) -> Floats:
        n, d = risk.rows.shape
        terms, steep = taylor_terms(risk.loss, risk.rows, risk.labels)
        scale = self._scale(Fraction(above(math.sqrt(5))))
        noisy, _ = self._noisy(terms, scale, 20, source)
        half = np.zeros((d, d))
        half[np.triu_indices(d)] = noisy[d:]
        bend = risk.loss.smoothness / n
        spread = float(scale) * (1 if self.delta else math.sqrt(terms.size + 1))  # a coefficient's
        moments = bend * (half + np.triu(half, 1).T)
        return _quadratic(moments, -steep / n * noisy[:d], risk.ridge + 4 * bend * spread)

    def _objective(self, risk: Risk, source: WordSource, entropy: Entropy) -> Floats:
        n, d = risk.rows.shape
        epsilon, steep = rational(self.epsilon), risk.loss.lipschitz
        hiding = epsilon * _SHARE_OF_ROUNDING
        strong, scale = objective_noise(risk.loss, n, risk.ridge, epsilon - hiding, self.delta)
        b, exponent = self._noisy(np.zeros(d), scale, 40, source)
        tolerance = 1e-5 * steep / n + least_tolerance(n, d, steep)
        rounding = Fraction(2) ** exponent * (math.isqrt(d) + 1) / 2 / n
        noisy = Risk(risk.loss, risk.rows, risk.labels, strong, b / n)
        apart = 2 * (Fraction(tolerance) + rounding) / Fraction(strong)
        return _hidden(minimise(noisy, tolerance), apart, hiding, entropy.source("rounding"))

    def _input(self, risk: Risk, source: WordSource, entropy: Entropy) -> Floats:
        n, d = risk.rows.shape
        epsilon, margin = rational(self.epsilon), risk.loss.margin
        records = risk.rows * risk.labels[:, None] if margin else np.column_stack(
            [risk.rows, risk.labels]
        )  # fmt: skip
        if self.delta == 0:
            grid, reach = _RECORD_GRID, 2 * (math.isqrt(d - 1) + 1) + (0 if margin else 2)
            scale = multiple_above(reach * grid / epsilon, _SCALE_GRAIN)
            noise = discrete_laplace(scale, records.size, source)
            b = -1 / float(scale)
            variance = 2 * math.exp(b) / math.expm1(b) ** 2
        else:
            rho = largest_rho(float_below(epsilon), self.delta)
            square = Fraction(4 if margin else 8) / (2 * rho)
            # a power of two of steps: Gaussian noise of about 2^9 of them is fast, and fine enough
            grid = int(min(max(2 ** round(9 - math.log2(square) / 2), 1), _RECORD_GRID))
            exact = multiple_above(square * grid**2)
            noise, variance = discrete_gaussian(exact, records.size, source), float(exact)
        # truncation towards zero keeps every row inside its ball; the L1 norm is at most √d the L2
        steps = np.trunc(records * grid).astype(np.int64)
        sent = (steps + noise.reshape(steps.shape)) / float(grid)
        if margin:
            return minimise(Risk(risk.loss, sent, np.ones(n), risk.ridge, risk.linear))
        return _debiased_ridge(sent[:, :-1], sent[:, -1], variance / grid**2, risk.ridge)

    def _noisy(
        self, centre: Floats, scale: Fraction, bits: int, source: WordSource
    ) -> tuple[Floats, int]:
        """Add radial or Gaussian noise on a grid ``bits`` binary digits finer; return its pitch."""
        exponent = _exponent(scale, bits)
        noise = gaussian_vector if self.delta else radial_laplace
        return _multiples(noise(centre, scale, exponent, source), exponent), exponent


def output_sensitivity(loss: Loss, rows: int, ridge: float, tolerance: float = 0.0) -> Fraction:
    """Δ = 2L/(nλ) + 2γ/λ, exactly."""
    gradients = 2 * Fraction(loss.lipschitz) / rows + 2 * Fraction(tolerance)
    return gradients / Fraction(ridge)


def taylor_terms(loss: Loss, rows: Floats, labels: Floats) -> tuple[Floats, float]:
    """(d + d(d + 1)/2,) exact sums ``x ℓ'(0, y)/s`` and upper halves of ``x xᵀ``, and s.

    Factors are truncated to a grid on which no float sum is rounded: records keep their bounds.
    """
    zero = np.zeros(len(rows))
    steep = float(np.abs(loss.slope(np.zeros(2), np.array([-1.0, 1.0]))).max())
    grid = 2.0 ** min(13, (53 - len(rows).bit_length()) // 2)
    steps = np.trunc(rows * grid)
    slopes = np.trunc(loss.slope(zero, labels) / steep * grid)
    products = (steps * (loss.curvature(zero, labels) > 0)[:, None]).T @ steps
    halves = products[np.triu_indices(rows.shape[1])]
    return np.append(steps.T @ slopes, halves) / grid**2, steep


def objective_noise(
    loss: Loss, rows: int, ridge: float, epsilon: Fraction, delta: float = 0.0
) -> tuple[float, Fraction]:
    """Λ, and the scale ``2L/ε'`` of b, or its σ for δ > 0, for an exact minimiser."""
    half = float(epsilon / 2)
    least = loss.smoothness / (rows * math.expm1(half)) if half < 700 else 0.0
    strong = max(ridge, above(least))
    jacobian = Fraction(above(math.log1p(loss.smoothness / (rows * strong))))
    rest = epsilon - jacobian
    if delta > 0:
        t = above(math.sqrt(-2 * math.log(delta)))
        u = 2 * float(rest) / (math.sqrt(t * t + 2 * float(rest)) + t)
        rest = Fraction(below(u))
    return strong, 2 * Fraction(loss.lipschitz) / rest


def _hidden(vector: Floats, apart: Fraction, epsilon: Fraction, source: WordSource) -> Floats:
    """A vector that neighbours know to within an L2 distance ``apart``, with ε-DP."""
    root = math.isqrt(vector.size) + 1
    exponent = _exponent(apart / root, 3)
    pitch = Fraction(2) ** exponent
    steps = [round(Fraction(value) / pitch) for value in vector.tolist()]
    # L1 in steps: √d times the L2 distance, and rounding may add one step a coordinate
    sensitivity = math.ceil(root * apart / pitch) + vector.size
    scale = multiple_above(sensitivity / epsilon, _SCALE_GRAIN)
    noise = discrete_laplace(scale, vector.size, source).tolist()
    return _multiples([step + z for step, z in zip(steps, noise, strict=True)], exponent)


def _debiased_ridge(rows: Floats, labels: Floats, variance: float, ridge: float) -> Floats:
    """Ridge regression on moments from which the noise's known variance is taken out."""
    moments = rows.T @ rows / len(rows) - variance * np.eye(rows.shape[1])
    return _quadratic(moments, rows.T @ labels / len(rows), ridge)


def _quadratic(moments: Floats, cross: Floats, ridge: float) -> Floats:
    """The w of least ``wᵀMw/2 - crossᵀw + (ridge/2)‖w‖²``, eigenvalues of M below 0 taken as 0."""
    values, vectors = np.linalg.eigh(moments)
    return np.asarray(vectors @ (vectors.T @ cross / (np.maximum(values, 0.0) + ridge)))


def _exponent(size: Fraction, bits: int) -> int:
    """Exponent of a power of two at least ``bits`` binary digits below ``size``."""
    return size.numerator.bit_length() - size.denominator.bit_length() - 1 - bits


def _multiples(steps: Iterable[int], exponent: int) -> Floats:
    pitch = Fraction(2) ** exponent
    return np.array([float(int(step) * pitch) for step in steps], dtype=np.float64)
