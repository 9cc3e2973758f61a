"""True labels of matched events, and errors against them: a simulation alone has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.arrays import Floats
from labelveil.common.errors import DataError
from labelveil.common.release.event_keys import canonical_keys
from labelveil.feature_party.evaluation.breakdown import number
from labelveil.feature_party.evaluation.fitting import measure_fitting, true_sentence
from labelveil.feature_party.tables import SOURCE, Table, collect_table
from labelveil.feature_party.training.events import Events


def match_true_labels(
    keys: pl.Series,
    labels: Table,
    label: str,
    ends: tuple[float, float],
    missing: float,
    label_key: str | None = None,
    source: str = "",
) -> Floats:
    """(m,) true labels of events with these keys, completed and clipped as by the labels party.

    ``labels`` is a table with the column ``label``, whose bounds are ``ends``; an event without one
    has the label ``missing``. Its key column is by default ``keys``' name, or the only other
    column. Where a column says whose each label is, those of the labels party ``source`` are taken.
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
    matched = left.join(right, on="key", how="left", maintain_order="left")["label"]
    values = matched.fill_null(np.nan).to_numpy()
    values = np.where(np.isfinite(values), values, missing)  # as the labels party reads them
    return np.asarray(np.clip(values, *ends))


@dataclass(frozen=True, eq=False)
class TrueErrors:
    """Errors against true labels of held-out events, also of a model trained on such labels."""

    labels: Floats  # (h,) of those that codes were sent of; of sums all
    mse: float
    mae: float
    constant_mse: float  # of the training events' mean label
    nonprivate_mse: float | None = None
    nonprivate_mae: float | None = None
    fitting: Mapping[str, float] = field(default_factory=dict)  # what else fits, as in metrics.json

    @classmethod
    def measured(
        cls,
        points: Floats,
        truth: Floats,
        constant: float,
        nonprivate: Path | None,
        label: str,
        *,
        fitting: Mapping[str, float] | None = None,
        labels: Floats | None = None,
    ) -> TrueErrors:
        """Errors of (t,) predictions, and of a constant.

        ``nonprivate`` is the metrics file of a model that was trained on true labels.
        """
        return cls(
            truth if labels is None else labels,
            mse=float(np.mean((points - truth) ** 2)),
            mae=float(np.mean(np.abs(points - truth))),
            constant_mse=float(np.mean((constant - truth) ** 2)),
            fitting=fitting or {},
            **(_nonprivate_errors(nonprivate, label) if nonprivate else {}),
        )

    @property
    def r2(self) -> float | None:
        """What share of the variance is explained; None where labels have none."""
        return 1 - self.mse / self.constant_mse if self.constant_mse > 0 else None

    @property
    def lines(self) -> list[str]:
        """For a terminal."""
        r2 = "none, as all labels are alike" if self.r2 is None else f"{self.r2:.2f}"
        error = f"true test MSE {number(self.mse)}, MAE {number(self.mae)}, R² {r2}"
        return [error, true_sentence(self.fitting)] if self.fitting else [error]

    def to_json(self) -> dict[str, float]:
        """Under the names of ``metrics.json``."""
        errors = {
            "test_mse": self.mse,
            "test_mae": self.mae,
            "constant_mse": self.constant_mse,
            "test_r2": self.r2,
            "nonprivate_mse": self.nonprivate_mse,
            "nonprivate_mae": self.nonprivate_mae,
            **self.fitting,
        }
        return {name: error for name, error in errors.items() if error is not None}


def mean_label(labels: Floats) -> float:
    """Mean of labels, at least one; of those that are alike to the last bit."""
    return float(labels[0] + (labels - labels[0]).mean())


def true_errors(
    points: Floats,
    labels: Floats,
    events: Events,
    nonprivate: Path | None,
    label: str,
    more: tuple[Floats, Floats] | None = None,
) -> TrueErrors:
    """Errors of (h,) predictions of the held-out events against (m,) labels of all matched ones.

    ``nonprivate`` is the metrics file of a model that was trained on true labels; ``more`` has
    predictions and labels of held-out events that are in no release.
    """
    shown = truth = labels[events.holdout]
    if more is not None:
        points, truth = np.append(points, more[0]), np.append(truth, more[1])
    constant = mean_label(np.delete(labels, events.holdout))
    fitting = measure_fitting(events.problem, points, truth, constant)
    return TrueErrors.measured(
        points, truth, constant, nonprivate, label, fitting=fitting, labels=shown
    )


def _nonprivate_errors(path: Path, label: str) -> dict[str, float]:
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        if "labels" in metrics:
            metrics = next(entry for entry in metrics["labels"] if entry["name"] == label)
        return {f"nonprivate_{name}": float(metrics[f"test_{name}"]) for name in ("mse", "mae")}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise DataError(
            f"{path} holds no test errors; evaluate the model trained on true labels with"
            " --true-labels first"
        ) from error
