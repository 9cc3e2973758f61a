"""What a release makes public about its labels: all that noise-aware learning may use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
class LabelProblem:
    """The public facts about randomized labels."""

    # (k,) label values, ascending; of one label among several on common cells, with ties
    grid: Floats
    prior: Floats  # (k,) released prior over the grid, summing to 1
    rows: Floats  # (r, d) probabilities of the channel's distinct rows
    row_of: Indices  # (k,) index of each grid point's row
    outputs: Floats  # (d,) values that the codes stand for
    # ``squared``, ``absolute`` or ``poisson``: what predictions are judged by
    loss: str = "squared"
    # of several releases, each one's facts over the common grid: see
    # :mod:`labelveil.feature_party.learning.several_releases`
    parts: tuple[LabelProblem, ...] = ()
    # of one release in strata, the facts of each: its events went through a channel of its own
    strata: tuple[LabelProblem, ...] = ()
    # (e,) the releases', or the strata's, shares of the rows, summing to 1
    shares: Floats = field(default_factory=lambda: np.ones(1))
    # whether labels are values of their own, two or a few classes, and not places on a range
    discrete: bool = False
    # first and last point of a release's own range, where a common grid is wider
    ends: tuple[int, int] | None = None
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
        rows, inverse = np.unique(channel.row_probabilities, axis=0, return_inverse=True)
        return cls(
            grid=channel.inputs,
            prior=weights / weights.sum(),
            rows=rows,
            row_of=inverse.reshape(-1)[channel.row_of].astype(np.int64),
            outputs=channel.outputs,
            # A custom loss has no name on the wire; the mean serves most of them.
            loss=loss if loss in _PREDICTABLE else "squared",
            discrete=alone,
        )

    @property
    def releases(self) -> tuple[LabelProblem, ...]:
        """The facts of each release, oldest first."""
        return self.parts or (self,)

    @property
    def by_channel(self) -> list[tuple[float, LabelProblem]]:
        """What went through one channel each, in the order of the codes, with its share of rows."""
        if not (self.parts or self.strata):
            return [(1.0, self)]
        each = zip(self.shares.tolist(), self.parts or self.strata, strict=True)
        return [(share * inner, leaf) for share, part in each for inner, leaf in part.by_channel]

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
        first = first_codes(self.parts)
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
        rows, row_of, outputs = self.rows, self.row_of, self.outputs
        if self.parts or self.strata:
            rows, row_of = np.ones((1, 1)), np.zeros(self.grid.size, dtype=np.int64)
            outputs = np.array([self.mean])
        arrays: dict[str, NDArray[Any]] = {"grid": self.grid, "prior": self.prior}
        arrays |= {"rows": rows, "row_of": row_of, "outputs": outputs}
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
            prior,
            rows,
            row_of,
            outputs,
            data["loss"],
            discrete=bool(data["values_alone"]),
            sources=tuple(
                LabelSource(**{**source, "prior": np.asarray(source["prior"], np.float64)})
                for source in data["sources"]
            ),
            joint_values=None if joint is None else np.asarray(joint, np.float64),
        )


def first_codes(parts: Sequence[LabelProblem]) -> Indices:
    """(e + 1,) first code of each release among the codes of all, and their number."""
    return np.concatenate([[0], np.cumsum([part.outputs.size for part in parts])]).astype(np.int64)


def pooled(parts: Sequence[LabelProblem], rows: Sequence[float] | Floats) -> LabelProblem:
    """Make one problem of releases over one grid, each with its number of rows."""
    if len(parts) == 1:
        return parts[0]
    shares = np.asarray(rows, dtype=np.float64) / (float(np.sum(rows)) or 1.0)
    columns = np.concatenate(
        [share * part.channel for share, part in zip(shares, parts, strict=True)], axis=1
    )
    distinct, row_of = np.unique(columns, axis=0, return_inverse=True)
    prior = np.asarray(sum(share * p.prior for share, p in zip(shares, parts, strict=True)))
    common = all(part.joint_values is not None for part in parts)
    return LabelProblem(
        grid=parts[0].grid,
        prior=prior / prior.sum(),
        rows=distinct,
        row_of=row_of.reshape(-1).astype(np.int64),
        outputs=np.concatenate([part.outputs for part in parts]),
        loss=parts[0].loss,
        parts=tuple(parts),
        shares=shares,
        discrete=all(part.discrete for part in parts),
        joint_values=parts[0].joint_values if common else None,
    )


def stratified(parts: Sequence[LabelProblem], rows: Sequence[float]) -> LabelProblem:
    """Make one problem of a release's strata over one grid, each with its number of rows."""
    if len(parts) == 1:
        return parts[0]
    return replace(pooled(parts, rows), parts=(), strata=tuple(parts))


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
    if histogram.decoded is not None or not rows:  # the histogram is these codes, or there are none
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
    right. A prior within three deviations of that is left as it is. Otherwise expectation
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
