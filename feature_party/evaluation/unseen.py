"""Predictions for rows that the networks which make them have not seen.

The whole model has not seen the holdout. And each group of its networks leaves out a fold of the
training rows, which that group can predict. Fewer networks are averaged there, so their squared
error is larger: by the mean of (f_g − f)², f_g the group's prediction and f the whole model's,
which takes no label to know. Of other losses it is the divergence, if f is right on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from labelveil.common.arrays import Booleans, Floats, Indices
from labelveil.common.errors import DataError
from labelveil.feature_party.evaluation.decoded_labels import Scored
from labelveil.feature_party.evaluation.losses import MeanLoss
from labelveil.feature_party.learning.problem import Codes
from labelveil.feature_party.model.drift import check_cells
from labelveil.feature_party.model.encoding import Encoded
from labelveil.feature_party.model.model import Model, Predictions
from labelveil.feature_party.training.batches import BatchPlan
from labelveil.feature_party.training.encoded_shards import MOST_HELD_OUT
from labelveil.feature_party.training.events import Events
from labelveil.feature_party.training.in_memory import Prepared

_DEALT = 1 << 12
"""Rows among which a column's values are dealt, and those that are predicted together."""
_COMPARED = 1 << 14
"""Held-out rows on which groups are compared with the whole model."""


@dataclass(frozen=True, eq=False)
class Unseen:
    """(n,) rows with such predictions, the held-out ones first."""

    table: pl.DataFrame  # their features, key column included
    codes: Codes  # their privatized labels
    matched: Indices  # their places among all matched events
    scored: Scored
    folds: Sequence[tuple[Indices, slice]]  # rows, with the networks that predict them
    alone: Floats  # (g, m) what g groups of networks predict for the first m rows

    def select(self, chosen: Booleans) -> Unseen:
        """Some of the rows."""
        place = np.cumsum(chosen) - 1
        folds = [(place[rows[chosen[rows]]], members) for rows, members in self.folds]
        scored = replace(
            self.scored,
            predicted=self.scored.predicted.select(chosen),
            held_out=self.scored.held_out[chosen],
        )
        alone = self.alone
        if alone.size:
            alone = alone[:, chosen[: alone.shape[1]]]
        table = self.table.filter(pl.Series(chosen))
        return Unseen(table, self.codes[chosen], self.matched[chosen], scored, folds, alone)

    def judged_by(self, loss: MeanLoss) -> Scored:
        """The predictions, with what averaging all networks saves of a loss.

        Of g groups that each leave out a fold, f_g − f has one g-th of the variance that the folds'
        noise gives to f_g: with noise a_k of fold k, f_g is the mean of all a_k but a_g, and f the
        mean of all.
        """
        if not self.alone.size:
            return self.scored
        whole = self.scored.predicted.points[: self.alone.shape[1]]
        saved = float(loss.divergence(whole, self.alone).mean())
        echo = self.alone.shape[0] * float(np.mean((self.alone - whole) ** 2))
        return replace(self.scored, averaging=saved, echo=echo)

    def dealt(self, model: Model) -> tuple[Indices, dict[str, Floats]]:
        """Some (s,) rows, and predictions for them with each column's values dealt anew."""
        step = max(1, self.codes.size // _DEALT)
        sampled = [(rows[::step], members) for rows, members in self.folds]
        chosen = np.concatenate([rows for rows, _ in sampled])
        inputs = model.encoder.encode(self.table[chosen])
        order = pl.Series(np.arange(chosen.size)).shuffle(seed=0).to_numpy()
        columns, dealt = model.encoder.columns, np.empty((len(model.encoder.columns), chosen.size))
        start = 0
        for rows, members in sampled:
            part, start = slice(start, start + rows.size), start + rows.size
            # several columns in one call of the model, as many as rows allow in memory
            together = max(1, _DEALT // max(rows.size, 1))
            for first in range(0, len(columns), together):
                some = range(first, min(first + together, len(columns)))
                numeric = np.tile(inputs.numeric[part], (len(some), 1, 1))
                categories = np.tile(inputs.categories[part], (len(some), 1, 1))
                for place, column in enumerate(some):
                    numbers, words = model.encoder.inputs_of(columns[column])
                    numeric[place][:, numbers] = inputs.numeric[order[part]][:, numbers]
                    categories[place][:, words] = inputs.categories[order[part]][:, words]
                count = len(some) * rows.size
                changed = Encoded(
                    numeric.reshape(count, numeric.shape[2]),
                    categories.reshape(count, categories.shape[2]),
                )
                points = model.distributions(changed, members).points
                dealt[first : some.stop, part] = points.reshape(len(some), rows.size)
        return chosen, dict(zip(columns, dealt, strict=True))


def unseen(model: Model, events: Events) -> Unseen:
    """Predict the holdout, and the training rows too where they are in memory.

    ``DataError`` if too few are held out, or no cell of a column is what the model was trained
    with, in memory or, of shards, among those held out.
    """
    if events.holdout.size < 2:
        raise DataError(
            f"{events.holdout.size} held-out events cannot be scored; raise [training] holdout"
        )
    table, codes = events.held_out()
    check_cells(model.encoder, events.table if isinstance(events, Prepared) else table)
    predicted = [model.distributions(model.encoder.encode(table))]
    tables, labels, matched = [table], [codes], [events.holdout]
    folds, alone = [(np.arange(len(table)), slice(None))], []
    if isinstance(events, Prepared):
        few = model.encoder.encode(table[:_COMPARED])
        for members, fold in _folds(model):
            rows = events.training_of(fold)
            tables.append(events.table[rows])
            labels.append(events.codes[rows])
            matched.append(rows)
            predicted.append(model.distributions(model.encoder.encode(tables[-1]), members))
            folds.append((folds[-1][0][-1] + 1 + np.arange(rows.size), members))
            alone.append(model.distributions(few, members).points)
    points = np.concatenate([part.points for part in predicted])
    laws = [part.distributions for part in predicted if part.distributions is not None]
    whole = Predictions(points, np.concatenate(laws) if laws else None)
    scored = Scored(whole, held_out=np.arange(points.size) < len(table))
    table, codes, rows = pl.concat(tables), np.concatenate(labels), np.concatenate(matched)
    return Unseen(table, codes, rows, scored, folds, np.array(alone))


def _folds(model: Model) -> list[tuple[slice, Indices]]:
    """Groups of networks, each with the training rows that it left out; each row once."""
    settings, rows = model.facts.settings, model.facts.training_rows
    if settings.members == 1 or rows > MOST_HELD_OUT:
        return []
    plan = BatchPlan(settings, (rows,))
    folds = plan.folds(0)[1][:: plan.group].numpy()
    _, first = np.unique(folds[:, 0], return_index=True)
    return [
        (slice(group * plan.group, (group + 1) * plan.group), np.sort(folds[group]))
        for group in np.sort(first)
    ]
