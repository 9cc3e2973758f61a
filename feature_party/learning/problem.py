"""What a release makes public about its labels: all that noise-aware learning may use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Booleans, Floats, Indices, Integers
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import MAX_TABLE, FiniteChannel
from labelveil.common.randomizers import NoisyPrior
from labelveil.common.randomizers.denoising import KnownMeans, denoise_histogram
from labelveil.common.randomizers.message.terms import FEW

Codes = NDArray[np.unsignedinteger[Any]]
"""Privatized labels: places among a problem's outputs."""


def sums(groups: Indices, values: Floats, count: int) -> Floats:
    """(count,) sums of (n,) values by group."""
    return np.asarray(np.bincount(groups, weights=values, minlength=count), dtype=np.float64)


_PREDICTABLE = ("squared", "absolute", "poisson")
_EVEN = 1e-3
"""Share of even mass in what a public prior is taken to be once codes contradict it: labels that it
excludes could never come back otherwise."""
_MOST_STEPS = 4_096


@dataclass(frozen=True, eq=False)
class LabelSource:
    """One of several parties, whose labels y are at (y − location) / scale on a common grid."""

    name: str  # as in the configuration
    # location, scale: in units of its labels
    location: float
    scale: float
    # first, last: grid points of the ends of its range
    first: int
    last: int
    prior: Floats  # (k,) its released prior over the common grid
    releases: int  # how many of the releases are its own; they follow each other


@dataclass(frozen=True, eq=False)
class Leg:
    """Codes that one channel sent, and what is public about the labels of their events."""

    prior: Floats  # (k,) released prior over the problem's grid, summing to 1
    rows: Floats  # (r, d) probabilities of the channel's distinct rows
    row_of: Indices  # (k,) index of each grid point's row
    outputs: Floats  # (d,) values that the codes stand for
    share: float = 1.0  # of all rows
    release: int = 0  # which of the releases sent them, oldest first
    # first and last point of the release's own range, where the grid is wider
    ends: tuple[int, int] | None = None

    @cached_property
    def channel(self) -> Floats:
        """(k, d) probabilities of every output for every grid point."""
        return self.rows[self.row_of]

    @cached_property
    def output_prior(self) -> Floats:
        """(d,) marginal probability of each output under the prior."""
        return sums(self.row_of, self.prior, self.rows.shape[0]) @ self.rows

    def at(self, points: Indices | slice) -> Leg:
        """The same with some of the grid's points, in an order of their own; no other has mass."""
        used, row_of = np.unique(self.row_of[points], return_inverse=True)
        prior, rows = self.prior[points], self.rows[used]
        return replace(self, prior=prior, rows=rows, row_of=row_of.astype(np.int64), ends=None)


def distinct_rows(table: NDArray[Any]) -> tuple[NDArray[Any], Indices]:
    """(r, d) distinct rows of a (k, d) table, and (k,) which of them each row is."""
    rows, row_of = np.unique(table, axis=0, return_inverse=True)
    return rows, row_of.reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LabelProblem:
    """The public facts about randomized labels: one grid, and a leg for each channel.

    Codes of a leg stand behind those of the legs before it.
    """

    # (k,) label values, ascending; of one label among several on common cells, with ties
    grid: Floats
    # one for each release, or for each of its strata; those of a release follow each other
    legs: tuple[Leg, ...]
    # ``squared``, ``absolute`` or ``poisson``: what predictions are judged by
    loss: str = "squared"
    # whether labels are values of their own, two or a few classes, and not places on a range
    discrete: bool = False
    # the parties that the labels are from, if they are several: see
    # :mod:`labelveil.feature_party.learning.sources`
    sources: tuple[LabelSource, ...] = ()
    # (k, m) values of all labels of an event that one channel sends together, this one among them:
    # see :mod:`labelveil.feature_party.learning.several_labels`. None where it sends one.
    joint_values: Floats | None = None

    @classmethod
    def from_channel(
        cls, channel: FiniteChannel, prior: ArrayLike, loss: str = "squared"
    ) -> LabelProblem:
        """Take the facts from a channel and a prior over its inputs.

        Two labels are values of their own, and so are a few that are sent as they are.
        """
        k = channel.inputs.size
        alone = k == 2 or (k <= FEW and np.array_equal(channel.inputs, channel.outputs))
        weights = np.asarray(prior, dtype=np.float64)
        rows, row_of = distinct_rows(channel.row_probabilities)
        leg = Leg(weights / weights.sum(), rows, row_of[channel.row_of], channel.outputs)
        # A custom loss has no name on the wire; the mean serves most of them.
        loss = loss if loss in _PREDICTABLE else "squared"
        return cls(channel.inputs, (leg,), loss, discrete=alone)

    @cached_property
    def prior(self) -> Floats:
        """(k,) released prior over the grid, summing to 1: over all rows."""
        if len(self.legs) == 1:
            return self.legs[0].prior
        prior = np.asarray(sum(leg.share * leg.prior for leg in self.legs))
        return np.asarray(prior / prior.sum())

    def with_prior(self, prior: Floats) -> LabelProblem:
        """The same, with all labels expected as a (k,) prior says."""
        return replace(self, legs=tuple(replace(leg, prior=prior) for leg in self.legs))

    @cached_property
    def outputs(self) -> Floats:
        """(d,) values that the codes of all legs stand for."""
        return np.concatenate([leg.outputs for leg in self.legs])

    @cached_property
    def _joint(self) -> tuple[Floats, Indices]:
        """Rows of the joint channel ``K[y, (e, z)] = w_e K_e[y, z]``, w_e the share of leg e."""
        if len(self.legs) == 1:
            return self.legs[0].rows, self.legs[0].row_of
        columns = [leg.share * leg.channel for leg in self.legs]
        return distinct_rows(np.concatenate(columns, axis=1))

    @property
    def rows(self) -> Floats:
        """(r, d) probabilities of the joint channel's distinct rows."""
        return self._joint[0]

    @property
    def row_of(self) -> Indices:
        """(k,) index of each grid point's row."""
        return self._joint[1]

    @cached_property
    def releases(self) -> tuple[LabelProblem, ...]:
        """The facts of each release, oldest first."""
        last = self.legs[-1].release
        return tuple(self.some_releases(r, r + 1) for r in range(last + 1)) if last else (self,)

    def some_releases(self, start: int, stop: int) -> LabelProblem:
        """The facts of some releases that follow each other, as of one labels party."""
        own = [leg for leg in self.legs if start <= leg.release < stop]
        whole = sum(leg.share for leg in own)
        shares = [leg.share / whole if whole else 1 / len(own) for leg in own]
        legs = [
            replace(leg, share=share, release=leg.release - start)
            for leg, share in zip(own, shares, strict=True)
        ]
        return replace(self, legs=tuple(legs), sources=())

    def by_release(
        self, codes: NDArray[np.integer]
    ) -> Iterator[tuple[LabelProblem, Booleans, Indices]]:
        """Yield each release, which of (n,) codes are its own, and those as it sent them."""
        first = first_codes(self.releases)
        for part, start, stop in zip(self.releases, first, first[1:], strict=False):
            mine = (start <= codes) & (codes < stop)
            yield part, mine, codes[mine].astype(np.int64) - start

    def source(self, name: str) -> tuple[LabelSource, int]:
        """The source of this name, and the place of its first release among all.

        ``ConfigError`` if there is none.
        """
        for source, start in self.each_source():
            if source.name == name:
                return source, start
        known = ", ".join(self.names) if self.sources else "one without a name"
        raise ConfigError(
            f"source={name!r} must be a labels party that was learned from: {known}; pass --source"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The sources' names; an empty one if there is just one."""
        return tuple(source.name for source in self.sources) or ("",)

    def each_source(self) -> Iterator[tuple[LabelSource, int]]:
        """Yield the sources, if they are several, with the place of their first release."""
        start = 0
        for source in self.sources:
            yield source, start
            start += source.releases

    def codes_of(self, source: str) -> range:
        """The codes of one source among those of all."""
        own, start = self.source(source)
        first = first_codes(self.releases)
        return range(int(first[start]), int(first[start + own.releases]))

    @cached_property
    def channel(self) -> Floats:
        """(k, d) probabilities of every output for every grid point."""
        return self.rows[self.row_of]

    @cached_property
    def values(self) -> Floats:
        """The label values that there are, ascending, each once."""
        return np.unique(self.grid)

    @cached_property
    def value_of(self) -> Indices:
        """(k,) place of each grid point's label among :attr:`values`."""
        return np.searchsorted(self.values, self.grid)

    @cached_property
    def output_prior(self) -> Floats:
        """(d,) marginal probability of each output under the prior."""
        return sums(self.row_of, self.prior, self.rows.shape[0]) @ self.rows

    @property
    def mean(self) -> float:
        """Prior mean of the label."""
        return float(self.prior @ self.grid)

    @property
    def deviation(self) -> float:
        """Prior standard deviation of the label, > 0 even for a prior with one atom."""
        variance = float(self.prior @ (self.grid - self.mean) ** 2)
        return math.sqrt(max(variance, 1e-6 * float(self.grid[-1] - self.grid[0]) ** 2))

    @cached_property
    def informativeness(self) -> float:
        """Share of the label's variance that one privatized label explains, in 0 … 1.

        Var(E[y | z]) / Var(y) under the prior: n privatized labels say about as much about a mean
        as that share of n true ones.
        """
        joint = self.prior @ (self.channel * (self.grid - self.mean)[:, None])
        marginal = np.maximum(self.output_prior, 1e-300)
        explained = float(np.sum(joint**2 / marginal))
        return min(explained / self.deviation**2, 1.0)

    @property
    def evenness(self) -> float:
        """How much a value tells, as a share of what it would if all were as likely, in 0 … 1.

        Of two values with probabilities p and 1 − p a label has the information p (1 − p) about its
        logit: a rare one tells little, however many others there are. 1 for a range.
        """
        k = self.values.size
        each = sums(self.value_of, self.prior, k)
        return float((1 - each @ each) * k / (k - 1)) if self.discrete else 1.0

    def to_json(self) -> dict[str, Any]:
        """What a trained model needs: everything, or of several releases grid and prior alone.

        Their channels would be most of its file; one that says nothing stands for them.
        """
        leg = self.legs[0] if len(self.legs) == 1 else silent_leg(self.grid, self.prior)
        arrays: dict[str, NDArray[Any]] = {"grid": self.grid, "prior": self.prior}
        arrays |= {"rows": leg.rows, "row_of": leg.row_of, "outputs": leg.outputs}
        return {name: array.tolist() for name, array in arrays.items()} | {
            "loss": self.loss,
            "values_alone": self.discrete,
            "sources": [
                {**vars(source), "prior": source.prior.tolist()} for source in self.sources
            ],
            "together": None if self.joint_values is None else self.joint_values.tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LabelProblem:
        """Read what :meth:`to_json` wrote; ``ValueError`` if parts of it do not fit each other."""
        grid, prior, rows, outputs = (
            np.asarray(data[name], np.float64) for name in ("grid", "prior", "rows", "outputs")
        )
        joint, row_of = data["together"], np.asarray(data["row_of"], np.int64)
        if not len(grid) == len(prior) == len(row_of) or rows.shape[1:] != outputs.shape:
            raise ValueError(f"{rows.shape} probabilities for {grid.shape} and {outputs.shape}")
        if grid.size * outputs.size > MAX_TABLE:  # few rows may stand for any number of points
            raise ValueError(f"{grid.size:,} × {outputs.size:,} probabilities")
        return cls(
            grid,
            (Leg(prior, rows, row_of, outputs),),
            data["loss"],
            discrete=bool(data["values_alone"]),
            sources=tuple(
                LabelSource(**{**source, "prior": np.asarray(source["prior"], np.float64)})
                for source in data["sources"]
            ),
            joint_values=None if joint is None else np.asarray(joint, np.float64),
        )


def silent_leg(grid: Floats, prior: Floats) -> Leg:
    """A leg of labels of which nothing is known but a prior."""
    silent = np.ones((1, 1)), np.zeros(grid.size, dtype=np.int64)
    return Leg(prior, *silent, np.array([prior @ grid]))


def first_codes(problems: Sequence[LabelProblem]) -> Indices:
    """(e + 1,) first code of each release among the codes of all, and their number."""
    sizes = np.cumsum([problem.outputs.size for problem in problems])
    return np.concatenate([[0], sizes]).astype(np.int64)


def join_legs(
    parts: Sequence[LabelProblem], rows: Sequence[float] | Floats, *, strata: bool = False
) -> LabelProblem:
    """Make one problem of releases over one grid, or of the strata of one, each with its number of
    rows."""
    if len(parts) == 1:
        return parts[0]
    shares = np.asarray(rows, dtype=np.float64) / (float(np.sum(rows)) or 1.0)
    legs = [
        replace(leg, share=share * leg.share, release=0 if strata else release)
        for release, (part, share) in enumerate(zip(parts, shares.tolist(), strict=True))
        for leg in part.legs
    ]
    return LabelProblem(
        grid=parts[0].grid,
        legs=tuple(legs),
        loss=parts[0].loss,
        discrete=all(part.discrete for part in parts),
        joint_values=(
            parts[0].joint_values if all(p.joint_values is not None for p in parts) else None
        ),
    )


def prior_given_codes(histogram: NoisyPrior, channel: Floats, counts: Integers) -> Floats:
    """(k,) distribution of labels that explains a noisy histogram and codes, by post-processing.

    Both are about the same labels, or cells of several. The histogram has noise of a known variance
    on every cell. Codes went through a known channel, and tell means of the functions h_1, h_2, …
    of the label that it tells apart best
    (:func:`labelveil.feature_party.learning.heads.canonical_tilts`): with g_j such that E[g_j(z) |
    y] = σ_j h_j(y), the mean of g_j over n codes estimates that of σ_j h_j over the labels with a
    standard error of 1/√n, and is uncorrelated with the others under the prior. ``channel`` has the
    (k, d) probability of each output, and ``counts`` how many codes there are of each.
    """
    prior, rows = histogram.probabilities, int(counts.sum())
    if histogram.public and rows:
        return expected_given_codes(prior, channel, counts)
    if not histogram.noisy or not rows:  # the histogram is these codes, or there are none
        return prior
    decoded = (_seen(prior, channel, rows) / np.sqrt(prior @ channel)).T
    centred = np.arange(prior.size) - prior @ np.arange(prior.size)
    far_tail = bool(prior @ centred**3 > 2 * (prior @ centred**2) ** 1.5)  # a skewness above 2
    means = KnownMeans(channel @ decoded, counts @ decoded / rows, rows**-0.5, far_tail)
    noisy = histogram.noisy_counts.astype(np.float64)
    start = histogram.expected
    return denoise_histogram(
        noisy, histogram.rows, histogram.deviation, means, histogram.shape, start
    )


def expected_given_codes(prior: Floats, channel: Floats, counts: Integers) -> Floats:
    """(k,) distribution of labels near a public prior, which may be wrong, that explains codes.

    Of the r functions of the label that codes tell enough of under a law to be seen, n times the
    square of what the codes have beyond the law is χ² with r degrees of freedom if the law is
    right. A prior within two deviations of that is left as it is. Otherwise expectation
    maximisation goes up the codes' likelihood from there, smooth features of the law first, as far
    as this expectation.

    Parameters are those of :func:`prior_given_codes`, ``prior`` being (k,) weights that sum to 1.
    """
    misfit, seen = _misfit(prior, channel, counts)
    if misfit <= seen + 2 * math.sqrt(2 * seen):
        return prior
    law, steps = (1 - _EVEN) * prior + _EVEN / prior.size, 1
    while misfit > seen / 2 and steps <= _MOST_STEPS:
        for _ in range(steps):
            law = law * (channel @ (counts / (law @ channel)))
            law /= law.sum()
        (misfit, seen), steps = _misfit(law, channel, counts), 2 * steps
    return law


def _seen(law: Floats, channel: Floats, rows: int) -> Floats:
    """(r, d) functions of the codes, times the roots of their probabilities, that tell of labels.

    Others say less of as many labels than the law's own guess.
    """
    marginal = np.maximum(law @ channel, 1e-300)
    joint = np.sqrt(law)[:, None] * (channel - marginal) / np.sqrt(marginal)
    _, correlations, functions = np.linalg.svd(joint, full_matrices=False)
    return np.asarray(functions[rows * correlations**2 > 1])


def _misfit(law: Floats, channel: Floats, counts: Integers) -> tuple[float, int]:
    """χ² of what codes say beyond a law, and its degrees of freedom."""
    rows, marginal = int(counts.sum()), np.maximum(law @ channel, 1e-300)
    functions = _seen(law, channel, rows)
    beyond = functions @ ((counts / rows - marginal) / np.sqrt(marginal))
    return rows * float(beyond @ beyond), len(functions)
