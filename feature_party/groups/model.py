"""A model of noisy sums: a mean of ridges, of which any may be the one that fits, and of trees.

What groups and kernels compare are encoded rows as columns of numbers, all of about one size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats, Indices, Singles
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, PrivateSums
from labelveil.feature_party.groups.asking import Expected, first_question
from labelveil.feature_party.groups.boosting import Boosted, boost
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.model.encoding import Encoded, Encoder
from labelveil.feature_party.model.model import Predictions
from labelveil.feature_party.ridge.codes import CodeRows
from labelveil.feature_party.ridge.columns import MOST_VALUES, columns_of, values_of
from labelveil.feature_party.ridge.fit import RidgeFit
from labelveil.feature_party.ridge.law import SumRows
from labelveil.feature_party.ridge.links import Cube
from labelveil.feature_party.ridge.ridge import Ridge, Rows, compressed
from labelveil.feature_party.schema import NOTHING, Stated
from labelveil.feature_party.threads import side_by_side, threads_for


def encoder_of(table: pl.DataFrame, stated: Stated) -> Encoder:
    """How rows are encoded for these columns.

    A number that many rows have says something else than the ones next to it: no wage, nobody
    employed. A wave has no such step unless its scale is so large that it says little of all other
    numbers, so that there is a column for it.
    """
    return Encoder.fit(table, stated=stated, pieces=1)


class _Kind(NamedTuple):
    """Of a ridge."""

    along: float
    """Share of the columns that a wave runs along."""
    by_factors: bool
    """Whether predictions differ by factors, as of amounts and counts, or by terms."""


_KINDS = (_Kind(0.5, True), _Kind(1.0, True), _Kind(0.5, True), _Kind(1.0, False))
"""Which is better differs from set to set and from split to split, and so do two of a kind; their
mean, by how likely the sums are under each, is as good as the best one."""
_MANY_SUMS = 5_000
"""By which one ridge is learned alone, beside trees: these count for five sixths by then, and more
ridges predict no better."""
_LIKELIER = 10.0
"""By how much sums must be likelier under one ridge than under another, in logarithms, for it to
count e times as much. Ridges that predict equally well differ by a few, by the draw of their
features alone."""
_STARTS = (1.0, 0.3)
"""Lengths over which predictions are first taken to change, as multiples of √F. With another one
scales are sometimes found that the first one leads past."""
_FOUND = 3.0
"""By how much sums must be likelier, in logarithms, than if predictions were one constant, for no
other start to be tried."""
_SHOWN = 5.0
"""And for them to show that a column matters. 40 sums of noise alone exceeded 3 in two of 100 fits,
and in one of twelve others, 4.6 in one, and 5 in none. The sums are exp(4.6) times as likely under
a ridge that was named beforehand in no more than one of a hundred."""
_LEAST_SUMS = 150
"""That trees take: fewer tell no branches apart."""


@dataclass(frozen=True, eq=False)
class SumsModel:
    """What was learned of labels from sums over groups of events."""

    encoder: Encoder
    """How columns are read."""
    ridges: tuple[Ridge, ...]
    lattice: Lattice
    """Of the labels that were asked about."""
    boosted: Boosted | None = None
    """Trees beside the ridges; none where sums are few, or codes were learned from as well."""
    most_values: int = MOST_VALUES
    """Values of a category that have a column of their own."""

    problem: ClassVar[None] = None
    """There is no channel that labels went through."""

    @classmethod
    def fit(
        cls,
        table: pl.DataFrame,
        answers: Sequence[PrivateSums],
        *,
        codes: tuple[LabelProblem, Indices] | None = None,
        stated: Stated = NOTHING,
        seed: int = 0,
    ) -> Self:
        """Learn from answers about the table's rows, of several questions one after another.

        ``codes``, with the facts of their channels, are of the rows behind those. It warns where
        nothing shows that any column matters. ``ConfigError`` if answers or codes are about labels
        of different bounds, ``DataError`` if not about as many rows.
        """
        lattice = _common_lattice(answers)
        asked = summed = sum(len(answer.question) for answer in answers)
        beside = None
        if codes is not None:
            _check_bounds(codes[0], lattice)
            asked += codes[1].size
            beside = CodeRows.from_problem(*codes, np.arange(summed, asked))
        if asked != table.height:
            raise DataError(
                f"X has {table.height:,} rows, and the sums are about {asked:,} events; give the"
                " features of these, in the order of the answers"
            )
        encoder, data = encoder_of(table, stated), SumRows.from_answers(answers)
        inputs = columns_of(encoder, encoder.encode(table))
        ends, rows = (lattice.lower, lattice.upper), compressed(inputs)

        cube = Cube.around(data.average if beside is None else beside.mean, *ends)

        def fit(number: int, start: float, kind: _Kind) -> RidgeFit:
            link = cube if kind.by_factors else None
            return RidgeFit(rows, data, *ends, number, start, beside, kind.along, link=link)

        with threads_for(table.height):
            many = beside is None and data.sums.size >= _MANY_SUMS
            kinds = _KINDS[:1] if many else _KINDS
            ridges, misses = zip(*_fit_ridges(fit, seed, kinds), strict=True)
            model = cls(encoder, ridges, lattice)
            if beside is None and model.learned and data.sums.size >= _LEAST_SUMS:
                model = model._with_trees(inputs, rows, data, misses, seed)
        if not model.learned:
            warnings.warn(
                f"{data.sums.size:,} sums do not show that any column matters, so that predictions"
                " are hardly better than a constant: ask about more events, or with a larger ε",
                stacklevel=2,
            )
        return model

    def _with_trees(
        self,
        inputs: Singles,
        rows: Rows,
        data: SumRows,
        misses: Sequence[Floats | None],
        seed: int,
    ) -> Self:
        """The same with trees beside the ridges, which say how far each sum is off; a warning where
        none can be boosted."""
        known = [miss for miss in misses if miss is not None]
        far = self.weights @ known if known else None
        try:
            near = self._clipped(self._of_ridges(rows))
            deviations = self._deviations(near)
            trees = boost(inputs, data, near, deviations, seed, far, values_of(self.encoder))
        except ConfigError as error:
            warnings.warn(str(error), stacklevel=3)
            return self
        return replace(self, boosted=trees)

    @property
    def learned(self) -> bool:
        """Whether the sums show that a column matters; those of noise alone do once in about a
        hundred fits."""
        return max(ridge.gain for ridge in self.ridges) >= _SHOWN

    @property
    def weights(self) -> Floats:
        """What each ridge counts for in the mean, by how likely sums are under it; 1 in all."""
        gains = np.array([ridge.gain for ridge in self.ridges])
        weights = np.exp((gains - gains.max()) / _LIKELIER)
        return np.asarray(weights / weights.sum())

    @property
    def share_of_trees(self) -> float:
        """What trees count for in predictions, 0 … 1."""
        return 0.0 if self.boosted is None else self.boosted.share

    @property
    def miss(self) -> float:
        """Deviation of labels from predictions, as the model expects it."""
        return float(self.weights @ [ridge.miss for ridge in self.ridges])

    @property
    def scales(self) -> Floats:
        """(F,) how much predictions change with each column."""
        squares = [ridge.scales.double().numpy() ** 2 for ridge in self.ridges]
        return np.asarray(np.sqrt(self.weights @ squares))

    def distributions(self, inputs: Encoded) -> Predictions:
        """(n,) expected labels of encoded rows, within their bounds; no distributions."""
        columns = self.columns(inputs)
        points = self._with_boosted(self._of_ridges(compressed(columns)), columns)
        return Predictions(self._clipped(points), None)

    def columns(self, inputs: Encoded) -> Singles:
        """(n, F) numbers of encoded rows, as ridges and trees take them."""
        return columns_of(self.encoder, inputs, self.most_values)

    def ask(self, table: pl.DataFrame, epsilon: float, rng: np.random.Generator) -> GroupQuestion:
        """Ask about further events, whose labels this model has not learned from."""
        inputs = self.columns(self.encoder.encode(table))
        rows, mean, doubts = compressed(inputs), np.zeros(len(inputs)), []
        for weight, ridge in zip(self.weights, self.ridges, strict=True):
            points, unknown = ridge.predict_with_doubts(rows)
            mean += weight * points
            doubts.append((np.sqrt(weight) * unknown).astype(np.float32))
        mean = self._clipped(self._with_boosted(mean, inputs))
        inputs *= self.scales.astype(np.float32)
        expected = Expected(inputs, np.column_stack(doubts), mean, self.miss)
        return expected.question(self.lattice, epsilon, rng)

    def _of_ridges(self, rows: Rows) -> Floats:
        """(n,) what ridges expect, of (n, F) rows in either form."""
        mean = np.zeros(rows.shape[0])
        for weight, ridge in zip(self.weights, self.ridges, strict=True):
            mean += weight * ridge.predict(rows)
        return mean

    def _deviations(self, near: Floats) -> Floats:
        """(n,) how labels deviate from these predictions."""
        found = np.zeros(near.size)
        for weight, ridge in zip(self.weights, self.ridges, strict=True):
            relative = ridge.link.relative_deviation(ridge.link.inverse(near))
            found += weight * ridge.deviation * relative / np.sqrt(np.mean(relative**2))
        return found

    def _with_boosted(self, mean: Floats, inputs: Singles) -> Floats:
        """(n,) what ridges and trees expect, of what ridges do."""
        if self.boosted is None:
            return mean
        share = self.share_of_trees
        return (1 - share) * mean + share * self.boosted.predict(inputs)

    def _clipped(self, points: Floats) -> Floats:
        """(n,) expected labels within their bounds."""
        return np.asarray(np.clip(points, self.lattice.lower, self.lattice.upper))


def _common_lattice(answers: Sequence[PrivateSums]) -> Lattice:
    lattice = answers[0].question.lattice
    for answer in answers[1:]:
        if answer.question.lattice != lattice:
            raise ConfigError(
                f"answers are about labels on {answer.question.lattice} and on {lattice}; name"
                " the same bounds in all rounds"
            )
    return lattice


def _check_bounds(problem: LabelProblem, lattice: Lattice) -> None:
    if (ends := (problem.grid[0], problem.grid[-1])) != (lattice.lower, lattice.upper):
        raise ConfigError(
            f"codes are of labels in {ends[0]:g} … {ends[1]:g}, and sums of labels in"
            f" {lattice.lower:g} … {lattice.upper:g}; name the same bounds for both"
        )


def _fit_ridges(
    fit: Callable[[int, float, _Kind], RidgeFit], seed: int, kinds: Sequence[_Kind]
) -> list[tuple[Ridge, Floats | None]]:
    """Each ridge, from the start under which sums are likelier, and by how much sums miss it.

    ``fit`` makes one of the number of its random features, its start, and its kind.
    """
    numbers = range(len(_KINDS) * seed, len(_KINDS) * seed + len(kinds))
    constant = fit(numbers[0], _STARTS[0], kinds[0]).constant_evidence()
    with side_by_side() as (threads, go_on):

        def best(number: int, kind: _Kind) -> tuple[Ridge, Floats | None]:
            found = list[tuple[Ridge, Floats | None]]()
            for start in _STARTS:
                one = fit(number, start, kind)
                found.append((one.run(constant, go_on), one.misses))
                if found[-1][0].gain >= _FOUND:
                    break
            return max(found, key=lambda each: each[0].gain)

        return list(threads.map(best, numbers, kinds))


def ask_first(
    table: pl.DataFrame,
    lattice: Lattice,
    epsilon: float,
    rng: np.random.Generator,
    stated: Stated = NOTHING,
) -> GroupQuestion:
    """Ask about events of whose labels nothing is known."""
    encoder = encoder_of(table, stated)
    return first_question(columns_of(encoder, encoder.encode(table)), lattice, epsilon, rng)
