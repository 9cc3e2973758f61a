"""True labels of matched events: a simulation alone has them."""

from __future__ import annotations

import numpy as np
import polars as pl

from common.arrays import Floats
from common.errors import DataError
from common.release.event_keys import canonical_keys
from feature_party.learning.problem import LabelProblem
from feature_party.tables import SOURCE, Table, collect_table


def match_true_labels(
    keys: pl.Series,
    labels: Table,
    label: str,
    problem: LabelProblem,
    missing: float,
    label_key: str | None = None,
    source: str = "",
) -> Floats:
    """(m,) true labels of matched events, completed and clipped as the labels party does it.

    Parameters
    ----------
    keys
        (m,) keys of matched events.
    labels, label
        Table of true labels and its label column; simulations alone have one.
    missing
        Label of an event without one.
    label_key
        Key column of ``labels``; the default is ``keys``' name, or the only other column.
    source
        Labels party whose labels to take, where a column says whose each is.
    """
    truth = collect_table(labels)
    if source and SOURCE in truth.columns:
        truth = truth.filter(pl.col(SOURCE) == source).drop(SOURCE)
    if label_key is None:
        others = [name for name in truth.columns if name != label]
        label_key = keys.name if keys.name in truth.columns or len(others) != 1 else others[0]
    for column in (label_key, label):
        if column not in truth.columns:
            raise DataError(
                f"the true labels have no column {column!r}; columns: {', '.join(truth.columns)}"
            )
    right = pl.DataFrame(
        {"key": canonical_keys(truth[label_key]), "label": truth[label].cast(pl.Float64)}
    )
    if right["key"].n_unique() != right.height:
        raise DataError(f"keys occur more than once in column {label_key!r} of the true labels")
    left = pl.DataFrame({"key": canonical_keys(keys)})
    found = left.join(right, on="key", how="left", maintain_order="left")["label"]
    values = found.fill_nan(None).fill_null(missing).to_numpy()
    return np.asarray(np.clip(values, problem.grid[0], problem.grid[-1]))
