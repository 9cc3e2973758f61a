"""Ridges on random features of privatized labels: for what hangs smoothly on a few columns.

Waves run along the numeric columns and along one column for each frequent value of a category, each
of which has a scale. The codes' marginal likelihood decides scales and how large coefficients are
expected to be (:mod:`labelveil.feature_party.ridge.fit`), of labels that are normal around their
mean, on the axis of their law: so few numbers need few rows. Of the same waves the parameters of
any law are then linear functions (:mod:`labelveil.feature_party.training.linear`), which one model
a fold leaves out. Its scales must not know that fold either: of many columns they fit noise. They
come from the folds of the other half, so that there are two sets of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import torch

from labelveil.common.arrays import Floats, Indices, Singles
from labelveil.feature_party.learning.derivatives import Derivatives
from labelveil.feature_party.learning.heads import LocationScaleHead, log_axis
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoded
from labelveil.feature_party.model.random_features import RandomFeatures, RandomFeaturesShape
from labelveil.feature_party.ridge.codes import CodeRows
from labelveil.feature_party.ridge.columns import columns_of, values_of
from labelveil.feature_party.ridge.fit import RidgeFit
from labelveil.feature_party.ridge.law import SumRows
from labelveil.feature_party.ridge.ridge import compressed
from labelveil.feature_party.training.fitting import EpochRecord, Fit
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.linear import Coefficients, Design, LinearModels, fit_path

MOST_COLUMNS = 64
"""With more, values of categories included, scales take longer than all else, and of census with
446 they gained nothing."""
WAVES = 300
_ROWS, _ROWS_TRIED = 4_000, 1_500
"""By which scales are learned, each time, and at a first trial."""
_STEPS = 30, 10
_ALONG = 0.5
"""Share of the columns that a wave runs along."""
_PENALTIES = (1.0, 8), (0.25, 4)
"""In units of what is expected of coefficients before anything is known, and steps with each. The
first is the likeliest. It is not come to from stronger ones: under these a law explains by its
width what columns say, and stays there."""
_ROWS_AT_ONCE = 1 << 12
_LOGARITHMIC = ("log-normal", "gamma", "negative-binomial")
"""Heads whose labels are looked at on a logarithmic axis."""


_Found = tuple[Coefficients, list[EpochRecord], list[Floats]]
"""Best coefficients, what happened, and each model's (v, p) outputs for the rows of its fold."""


@dataclass(frozen=True, eq=False)
class _Group:
    """Models of some folds, and the waves that they have in common."""

    rows: FoldedRows
    """All, of which these folds are left out."""
    waves: RandomFeatures
    """Of no member."""
    amplitudes: Floats
    """(q,) sizes of plain columns beside waves, whose coefficients are alike in what is expected of
    them."""
    precision: float
    """Of these coefficients, in units of a law's outputs."""
    design: Design
    near: Floats
    """(n,) expected labels, of a ridge that has seen no code of these folds."""

    @classmethod
    def learned(
        cls, rows: FoldedRows, mine: Indices, support: Support, head: str, seed: int, most: int
    ) -> Self:
        """Learn scales from ``most`` of the (r,) rows that are ``mine``, on a ``head``'s axis."""
        encoder, inputs = rows.encoder, rows.encoder.plain_inputs
        # a number's pieces are left out: a wave bends by itself
        every = [*inputs, *(at for some in values_of(encoder) for at in some)]
        some = np.sort(np.random.default_rng(seed).permutation(mine)[:most])
        part = Encoded(rows.inputs.numeric[some], rows.inputs.categories[some])
        axis = _axis(support, head)
        mean, legs = float(support.prior @ axis), enumerate(support.shares)
        channels = [support.likelihood[:, support.channel_of == leg] / share for leg, share in legs]
        fit = RidgeFit(
            compressed(columns_of(encoder, part)[:, every]),
            SumRows.none(),
            float(axis[0]),
            float(axis[-1]),
            seed,
            codes=CodeRows(np.arange(some.size), rows.codes[some], axis, channels, mean),
            along=_ALONG,
            waves=WAVES,
            steps=_STEPS,
        )
        ridge, width = fit.run(), len(inputs)
        waves = RandomFeatures(RandomFeaturesShape(inputs, encoder.cardinalities, WAVES, 0, (0,)))
        waves.phases.data[0] = ridge.phases
        scaled = ridge.scales[:, None] * ridge.frequencies
        waves.frequencies.data[0, :width] = scaled[:width]
        first, at = width, width
        for own, count in zip(values_of(encoder), encoder.cardinalities, strict=True):
            # an unknown value, and rare ones, have no column
            values = slice(first + 1, first + 1 + len(own))
            waves.frequencies.data[0, values] = scaled[at : at + len(own)]
            first, at = first + count, at + len(own)
        size = np.sqrt(2 / WAVES)  # of a wave, where their sum over all has the deviation 1
        amplitudes = ridge.linear * ridge.scales[:width].double().numpy() / size
        deviation = float(np.sqrt(support.prior @ (axis - mean) ** 2))
        precision = (deviation / (fit.amplitude * size)) ** 2
        design = Design(rows, _numbers(waves, rows.inputs, amplitudes))
        near = np.empty(len(rows.inputs))
        for start in range(0, len(near), _ROWS_AT_ONCE):
            at_once = slice(start, start + _ROWS_AT_ONCE)
            part = Encoded(rows.inputs.numeric[at_once], rows.inputs.categories[at_once])
            near[at_once] = ridge.predict(compressed(columns_of(encoder, part)[:, every]))
        near = np.interp(near, axis, support.values)
        return cls(rows, waves, amplitudes, float(precision), design, near)

    def fit(
        self,
        objective: LikelihoodObjective,
        table: Derivatives,
        on_epoch: Callable[[EpochRecord], None],
    ) -> _Found:
        models = LinearModels(self.design, self.rows, table, self.precision)
        if isinstance(law := objective.family, LocationScaleHead):
            # from a constant a law explains by its width what codes say, and stays there
            location = np.interp(self.near, objective.support.values, law.axis.numpy())
            models.start(0, location, _PENALTIES[0][0])
        return fit_path(models, _PENALTIES, on_epoch)


class KernelFit:
    """Waves along the columns of rows, on the axis that suits a ``head``, for models of any law."""

    def __init__(self, rows: FoldedRows, support: Support, head: str) -> None:
        self.rows, self.support, self.head = rows, support, head
        self._halves = np.array_split(np.arange(len(rows.folds)), min(2, len(rows.folds)))
        self._groups = list[_Group]()

    def first_losses(
        self,
        objective: LikelihoodObjective,
        table: Derivatives,
        on_epoch: Callable[[EpochRecord], None],
    ) -> Floats:
        """(u,) losses of the first of all rows out of fold: those of models of half of the folds,
        whose scales are learned by fewer rows. They tell whether others are worth while."""
        group = self._group(0, _ROWS_TRIED)
        best, history, outputs = group.fit(objective, table, on_epoch)
        learned = self._model([group], [best], objective.outputs)
        return group.rows.fit(objective, learned, history, outputs).losses

    def fit(
        self,
        objective: LikelihoodObjective,
        table: Derivatives,
        on_epoch: Callable[[EpochRecord], None],
    ) -> Fit:
        """Fit linear models for a law, which has a table; one leaves each fold out."""
        if not self._groups:
            self._groups = [self._group(number, _ROWS) for number in range(len(self._halves))]
        found = [group.fit(objective, table, on_epoch) for group in self._groups]
        outputs = [each for _, _, of_group in found for each in of_group]
        learned = self._model(self._groups, [best for best, _, _ in found], objective.outputs)
        return self.rows.fit(objective, learned, found[-1][1], outputs)

    def _group(self, number: int, most: int) -> _Group:
        """Models that leave one half of the folds out, whose waves rows of the others teach."""
        rows, half = self.rows, self._halves[number]
        mine = np.flatnonzero(~np.isin(rows.fold_of, half))
        of_half, seed = replace(rows, folds=rows.folds[half]), 2 * rows.seed + number
        return _Group.learned(of_half, mine, self.support, self.head, seed, most)

    def _model(
        self, groups: Sequence[_Group], coefficients: list[Coefficients], outputs: int
    ) -> RandomFeatures:
        """What predicts, of each member's slopes in its design's columns, and its bias."""
        sizes, inputs = self.rows.encoder.cardinalities, self.rows.encoder.plain_inputs
        members = tuple(map(len, coefficients))
        learned = RandomFeatures(RandomFeaturesShape(inputs, sizes, WAVES, outputs, members))
        column, width, at = np.repeat(np.arange(len(sizes)), sizes), len(inputs), 0
        single = partial(torch.as_tensor, dtype=torch.float32)
        for number, (group, own) in enumerate(zip(groups, coefficients, strict=True)):
            learned.phases.data[number] = group.waves.phases[0]
            learned.frequencies.data[number] = group.waves.frequencies[0]
            for (slopes, bias), encoding in zip(own, group.rows.encodings, strict=True):
                of_waves, numbers, words = np.split(slopes, [WAVES, WAVES + width])
                learned.of_waves.data[at] = single(of_waves)
                learned.slopes.data[at, :width] = single(numbers * group.amplitudes[:, None])
                learned.slopes.data[at, width:] = single(encoding[:, None] * words[column])
                learned.biases.data[at, 0] = single(bias)
                at += 1
        return learned


def columns(rows: FoldedRows) -> int:
    """How many columns waves would run along."""
    encoder = rows.encoder
    return len(encoder.plain_inputs) + sum(map(len, values_of(encoder)))


def _numbers(waves: RandomFeatures, inputs: Encoded, amplitudes: Floats) -> Singles:
    """(n, D + q) waves, and plain columns in their sizes, of all rows."""
    numbers = np.empty((len(inputs), WAVES + amplitudes.size), np.float32)
    for start in range(0, len(inputs), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        plain = inputs.numeric[part][:, list(waves.shape.inputs)]
        values = torch.as_tensor(inputs.categories[part].astype(np.int64))
        numbers[part, :WAVES] = waves.waves(0, torch.as_tensor(plain), values).numpy()
        numbers[part, WAVES:] = plain * amplitudes
    return numbers


def _axis(support: Support, head: str) -> Floats:
    """(m,) places of the support's cells, ascending."""
    if head in _LOGARITHMIC and support.values[0] >= 0:
        return log_axis(support.values, support.prior)
    return support.values
