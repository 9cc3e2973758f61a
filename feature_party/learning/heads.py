"""Heads: what the network's outputs mean, as a distribution over the cells of a support.

Every head maps p outputs to m logits; zero outputs give the head's best fit to the released prior,
so that learning starts from what is known without features. The families:

======================  =========================================================================
``softmax``             free logits, relative to the prior
``bernoulli``           the same for two labels: the logit of the higher one
``gaussian``            N(y; μ, σ) at each cell, normalised over the cells
``log-normal``          the same on the axis ln(y − y_1 + c)
``gamma``               y^{a−1} e^{−a y / μ}, normalised over the cells
``prior-tilt``          p(y) exp(a s + b s²), s the standardised label
``canonical``           p(y) exp(Σ_i a_i σ_i h_i(y)), h_i what the channel tells apart best
``poisson``             λ^y e^{−λ} / y!, normalised over the cells
``negative-binomial``   NB(y; μ, r), normalised over the cells
``joint``               the canonical one of several labels that are sent together
``mean``                p(y) exp(a y), a such that the output is the mean
======================  =========================================================================

Parametric families get one more output for a point mass at either end of the grid where the prior
shows one; the tilted ones inherit it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.names import HEAD_NAMES
from labelveil.feature_party.learning.support import Support

_LIMIT = 8.0
_DIRECTIONS = 6
_VISIBLE = 0.02
"""Least share of the first direction's information that a further one must have."""
_STEEPEST = 6.0
_NOTHING = 1e-9
_FEW = 16
"""Cells of fewer than a processor's vectors hold in single precision."""
_STEEP, _TILTS = 6.0, 257
"""How far a mean may be tilted, on an inverse hyperbolic sine, and at how many places."""
_MOST_COUNTS = 128
"""Whole numbers up to here are taken for counts; larger ones are more often amounts."""


def _over_cells(function: Callable[[Tensor, int], Tensor], logits: Tensor) -> Tensor:
    """torch's function of (…, m) logits over the cells: one after another it takes rows of few
    cells, which takes several times as long as many rows at once."""
    if logits.shape[-1] >= _FEW:
        return function(logits, -1)
    return function(logits.movedim(-1, 0).contiguous(), 0).movedim(0, -1)


class Head(ABC):
    """A family of distributions over a support's cells, with p network ``outputs``."""

    name: str
    outputs: int

    @abstractmethod
    def logits(self, raw: Tensor) -> Tensor:
        """Unnormalised log probabilities: (…, p) network outputs to (…, m)."""

    def log_probabilities(self, raw: Tensor) -> Tensor:
        """Log probabilities of the cells, (…, m), for (…, p) network outputs."""
        return _over_cells(torch.log_softmax, self.logits(raw))

    def probabilities(self, raw: Tensor) -> Tensor:
        """Probabilities of the cells, (…, m), for (…, p) network outputs."""
        return _over_cells(torch.softmax, self.logits(raw))

    @property
    def device(self) -> torch.device:
        return next(value.device for value in vars(self).values() if isinstance(value, Tensor))

    def to(self, device: torch.device) -> Head:
        """Move the head's constants to a device, in place."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
            elif isinstance(value, Head):
                value.to(device)
        return self


class LinearHead(Head):
    """Exponential tilts of a base measure: logits = base + T · outputs."""

    def __init__(self, name: str, base: Floats, statistics: Floats | None) -> None:
        self.name = name
        self.base = _tensor(base)
        self.statistics = None if statistics is None else _tensor(statistics.T)
        self.outputs = base.size if statistics is None else statistics.shape[1]

    def logits(self, raw: Tensor) -> Tensor:
        if self.statistics is None:
            return self.base + raw
        return self.base + _soft_clamp(raw) @ self.statistics.to(raw.dtype)


class LocationScaleHead(Head):
    """A normal density on a transformed label axis, times the cells' width on that axis."""

    outputs = 2

    def __init__(self, name: str, axis: Floats, widths: Floats, prior: Floats) -> None:
        self.name = name
        centre = float(prior @ axis)
        scale = max(float(prior @ (axis - centre) ** 2) ** 0.5, 1e-6)
        self.axis = _tensor((axis - centre) / scale)
        self.log_widths = _tensor(np.log(widths))
        # Narrower than half the finest cell, a density only says which cell it is.
        self.floor = float(np.log(max(0.5 * np.min(np.diff(axis)) / scale, 1e-3)))

    def logits(self, raw: Tensor) -> Tensor:
        location = _soft_clamp(raw[..., :1])
        spread = torch.clamp(_soft_clamp(raw[..., 1:2]), min=self.floor)
        narrow = torch.exp(-spread)
        # most of a prediction's time: each operation goes once through all cells of all rows
        distance = torch.addcmul(-location * narrow, self.axis.to(raw.dtype), narrow)
        return torch.addcmul(self.log_widths.to(raw.dtype), distance, distance, value=-0.5)


class GammaHead(Head):
    """A gamma density by its mean and shape, relative to the prior's."""

    outputs = 2

    def __init__(self, values: Floats, widths: Floats, prior: Floats) -> None:
        self.name = "gamma"
        mean = max(float(prior @ values), 1e-9)
        variance = max(float(prior @ (values - mean) ** 2), 1e-9 * mean**2)
        # The first cell's value may be 0, where the density has no finite logarithm.
        positive = np.maximum(values, widths / 4) / mean
        self.log_widths = _tensor(np.log(widths))
        self.values, self.log_values = _tensor(positive), _tensor(np.log(positive))
        self.log_shape = float(np.clip(np.log(mean**2 / variance), -3, 6))

    def logits(self, raw: Tensor) -> Tensor:
        mean = _soft_clamp(raw[..., :1])
        shape = torch.exp(self.log_shape + _soft_clamp(raw[..., 1:2], 6.0))
        power = shape * (self.log_values - mean - self.values * torch.exp(-mean))
        return self.log_widths - self.log_values + power


class PoissonHead(Head):
    """Counts with one rate; the rate is relative to the prior's mean."""

    outputs = 1

    def __init__(self, values: Floats, widths: Floats, prior: Floats) -> None:
        self.name = "poisson"
        self.values = _tensor(values)
        self.constant = _tensor(np.log(widths)) - torch.lgamma(_tensor(values) + 1)
        self.log_mean = float(np.log(max(float(prior @ values), 1e-6)))

    def logits(self, raw: Tensor) -> Tensor:
        return self.constant + self.values * (self.log_mean + _soft_clamp(raw))


class NegativeBinomialHead(Head):
    """Counts with a rate and a dispersion r, both relative to the prior's."""

    outputs = 2

    def __init__(self, values: Floats, widths: Floats, prior: Floats) -> None:
        self.name = "negative-binomial"
        mean = max(float(prior @ values), 1e-6)
        variance = max(float(prior @ (values - mean) ** 2), 1.05 * mean)
        self.values = _tensor(values)
        self.constant = _tensor(np.log(widths)) - torch.lgamma(_tensor(values) + 1)
        self.log_mean = float(np.log(mean))
        self.log_size = float(np.clip(np.log(mean**2 / (variance - mean)), -5, 5))

    def logits(self, raw: Tensor) -> Tensor:
        log_mean = self.log_mean + _soft_clamp(raw[..., :1])
        log_size = self.log_size + _soft_clamp(raw[..., 1:2], 5.0)
        size = torch.exp(log_size)
        # ln(μ / (μ + r)), stable for rates far apart
        log_share = -torch.nn.functional.softplus(log_size - log_mean)
        return self.constant + torch.lgamma(self.values + size) + self.values * log_share


class MeanHead(Head):
    """The prior tilted to an expected estimate: for what learns nothing but what codes say of a
    mean. Of all laws under which codes say that much it is the nearest to the prior.

    ``axis`` are the (m,) expectations of :class:`.support.Estimates`. They bend where labels are
    skewed: a mean that is read off them without a law is then too far from the prior's.

    Source: Csiszár, *I-Divergence Geometry of Probability Distributions*, 1975.
    """

    outputs = 1

    def __init__(self, axis: Floats, prior: Floats) -> None:
        self.name = "mean"
        self.base, self.axis = _tensor(np.log(prior)), _tensor(axis)
        axis = self.axis.double().numpy()  # as it is kept with a model
        tilts = np.sinh(np.linspace(-_STEEP, _STEEP, _TILTS))
        laws = np.log(prior) + tilts[:, None] * axis
        laws = np.exp(laws - laws.max(axis=1, keepdims=True))
        means = laws @ axis / laws.sum(axis=1)
        kept = np.flatnonzero(np.diff(means, prepend=-np.inf) > 1e-6)
        self.tilts, self.means = _tensor(tilts[kept]), _tensor(means[kept])
        self.lowest, self.highest = float(self.means[0]), float(self.means[-1])

    def logits(self, raw: Tensor) -> Tensor:
        known, tilts = self.means.to(raw.dtype), self.tilts.to(raw.dtype)
        means = raw.clamp(self.lowest, self.highest)
        if torch.compiler.is_compiling():  # in operations that every runtime of an export has
            after = (known < means).sum(-1, keepdim=True)
        else:
            after = torch.searchsorted(known, means.contiguous())
        after = after.clamp(1, len(known) - 1)
        low, high = known[after - 1], known[after]
        share = (means - low) / (high - low)
        tilt = tilts[after - 1] + share * (tilts[after] - tilts[after - 1])
        return self.base + tilt * self.axis


class AtomHead(Head):
    """Another head over the inner cells, with a free point mass at one or both ends."""

    def __init__(self, inner: Head, prior: Floats, low: bool, high: bool) -> None:
        self.name, self.inner, self.low, self.high = inner.name, inner, low, high
        self.ends = int(low) + int(high)
        self.outputs = inner.outputs + self.ends
        masses = [float(prior[0])] * low + [float(prior[-1])] * high
        rest = max(1 - sum(masses), 1e-6)
        self.log_odds = _tensor(np.log(np.maximum(masses, 1e-6) / rest))

    def logits(self, raw: Tensor) -> Tensor:
        ends = self.log_odds + raw[..., : self.ends]
        middle = self.inner.log_probabilities(raw[..., self.ends :])
        parts = [ends[..., :1]] * self.low + [middle] + [ends[..., -1:]] * self.high
        return torch.cat(parts, dim=-1)

    def probabilities(self, raw: Tensor) -> Tensor:
        odds = self.log_odds + raw[..., : self.ends]
        odds = torch.cat([torch.zeros_like(odds[..., :1]), odds], dim=-1)
        weights = _over_cells(torch.softmax, odds)
        middle = weights[..., :1] * self.inner.probabilities(raw[..., self.ends :])
        parts = [weights[..., 1:2]] * self.low + [middle] + [weights[..., -1:]] * self.high
        return torch.cat(parts, dim=-1)


def _with_atoms(support: Support, build: Callable[[Floats, Floats, Floats], Head]) -> Head:
    low, high = support.low_atom, support.high_atom
    inner = slice(int(low), support.size - int(high))
    prior = support.prior[inner] / support.prior[inner].sum()
    head = build(support.values[inner], support.widths[inner], prior)
    return AtomHead(head, support.prior, low, high) if low or high else head


def log_axis(values: Floats, prior: Floats) -> Floats:
    """ln(y − y_1 + c), c a fraction of the prior's median distance from the lowest label."""
    above = values - values[0]
    median = above[np.searchsorted(np.cumsum(prior), 0.5)]
    return np.asarray(np.log(above + max(0.25 * float(median), 1e-3 * float(above[-1]), 1e-300)))


def _tilts(axis: Floats, prior: Floats) -> Floats:
    """(m, 2) columns s and s², standardised under the prior, s² made orthogonal to s."""
    s = axis - prior @ axis
    s = s / max(float(prior @ s**2) ** 0.5, 1e-12)
    s = s * min(1.0, 4.0 / float(np.abs(s).max()))
    square = s**2 - prior @ s**2
    square = square - (prior @ (square * s)) / (prior @ s**2) * s
    square = square / max(float(prior @ square**2) ** 0.5, 1e-12)
    square = square * min(1.0, 4.0 / float(np.abs(square).max()))
    return np.stack([s, square], axis=1)


def _log_normal(values: Floats, widths: Floats, prior: Floats) -> Head:
    axis = log_axis(values, prior)
    gaps = np.diff(axis)
    widths = np.concatenate([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
    return LocationScaleHead("log-normal", axis, widths, prior)


def canonical_tilts(prior: Floats, likelihood: Floats) -> Floats:
    """Directions in which a channel tells labels apart, the clearest first.

    ``prior`` has (m,) probabilities > 0 of labels, ``likelihood`` (m, d) of outputs given each.

    The singular functions of the joint law of label and output: of all functions of the label with
    variance 1 under the prior, h_1 is the one that correlates most with a function of the output,
    h_2 the next among those uncorrelated with it, and so on; σ_i are the correlations. For a small
    tilt p · (1 + Σ_i a_i h_i) the Fisher information of one output about a is diag(σ_i²), so that
    what a head with these tilts can express is what the release can tell, and nothing else: it
    keeps the prior's shape wherever the channel does not look.

    Source: Hirschfeld, *A Connection between Correlation and Contingency*, 1935; Greenacre, *Theory
    and Applications of Correspondence Analysis*, 1984, chapter 4.

    Returns
    -------
    (m, r) columns σ_i h_i / σ_1, 1 <= r <= 6, each within ±6.
    """
    root = np.sqrt(prior)
    marginal = np.maximum(prior @ likelihood, 1e-300)
    # P(y, z) / √(P(y) P(z)) less its first singular pair, which are the constants
    joint = root[:, None] * (likelihood - marginal) / np.sqrt(marginal)
    functions, correlations, _ = np.linalg.svd(joint, full_matrices=False)
    share = correlations / max(float(correlations[0]), 1e-300)
    seen = np.flatnonzero(share**2 >= _VISIBLE)[:_DIRECTIONS]
    if correlations[0] < _NOTHING:
        return np.zeros((prior.size, 1))
    tilts = functions[:, seen] * share[seen] / root[:, None]
    largest = np.abs(tilts).argmax(axis=0)
    tilts = tilts * np.sign(tilts[largest, np.arange(seen.size)])
    return np.asarray(tilts * np.minimum(1.0, _STEEPEST / np.abs(tilts).max(axis=0)))


_FAMILIES: dict[str, Callable[[Floats, Floats, Floats], Head]] = {
    "gaussian": partial(LocationScaleHead, "gaussian"),
    "log-normal": _log_normal,
    "gamma": GammaHead,
    "poisson": PoissonHead,
    "negative-binomial": NegativeBinomialHead,
}
"""Parametric families, from (m,) values, widths and prior of the cells."""
_NON_NEGATIVE = ("gamma", "poisson", "negative-binomial")


def build_head(name: str, support: Support, tilts: Floats | None = None) -> Head:
    """Build one of ``HEAD_NAMES`` for a support.

    ``tilts``, (m, r), are those of a ``canonical`` or ``mean`` head that has been trained; None
    finds them. They are kept with a model, which need not have the channel, and a singular vector
    is only defined up to what the last digit decides.

    ``ConfigError`` for an unknown name, or a family of other labels than the support's.
    """
    prior, values = support.prior, support.values
    base = np.log(prior)
    if name in _NON_NEGATIVE and values[0] < 0:
        raise ConfigError(
            f"head={name!r} needs labels >= 0, but the grid starts at {values[0]:g}; use gaussian"
        )
    if name in _FAMILIES:
        return _with_atoms(support, _FAMILIES[name])
    if name == "softmax":
        return LinearHead(name, base, None)
    if name == "bernoulli":
        if support.size != 2:
            raise ConfigError(
                f"head='bernoulli' is for two labels, not for {support.size}; use softmax"
            )
        return LinearHead(name, base, np.array([[0.0], [1.0]]))
    if name == "mean":
        return MeanHead(support.estimates.overall if tilts is None else tilts[:, 0], prior)
    if name == "prior-tilt":
        return LinearHead(name, base, _tilts(values, prior))
    if name == "canonical":
        if tilts is None:
            tilts = canonical_tilts(support.prior, support.likelihood)
        return LinearHead(name, base, tilts)
    raise ConfigError(f"head={name!r} must be auto or one of {', '.join(HEAD_NAMES)}")


def candidate_heads(support: Support, counts: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Heads worth trying for a prior; ``counts`` says that the grid is whole numbers from 0 on.

    First plain heads, which are trusted unless the privatized labels speak against them, the first
    most; then flexible ones, which must prove themselves: under much noise they fit it, and the
    likelihood of held-out privatized labels is too blunt to show it.
    """
    if support.discrete:
        # A law over a range has nothing to say of two labels, nor of a few that are classes.
        return ("bernoulli" if support.size == 2 else "softmax",), ()
    if support.heavy_tailed:
        # No free tilt of the prior: it moves the far tail by more than the bulk tells of it, and so
        # do the families where they cannot be checked.
        short = counts and support.values[-1] < _MOST_COUNTS
        return ("canonical", "log-normal", "negative-binomial" if short else "gamma"), ()
    if support.values[0] >= 0:
        return ("gaussian", "log-normal"), ("prior-tilt", "softmax")
    return ("gaussian",), ("prior-tilt", "softmax")


def _soft_clamp(raw: Tensor, limit: float = _LIMIT) -> Tensor:
    """Bound outputs smoothly: the identity near 0, never beyond ±limit."""
    return limit * torch.tanh(raw / limit)


def _tensor(values: Floats) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)
