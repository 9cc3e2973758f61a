"""Label noise, which only somebody who sees both the true labels and the release can measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.arrays import Floats
from common.errors import DataError
from common.randomizers.grid import Grid
from common.release.event_keys import hash_keys
from common.release.folder import POPULATION_FILE
from common.release.rows import keys_column
from common.release.sections import LabelSection
from common.release.table import read_release
from labelveil.simulation.inputs import KEY, LABEL


def label_error(releases: Sequence[Path], truth: pl.DataFrame, secret: bytes) -> float:
    """Mean squared difference between the values sent and the true labels, over all releases.

    ``truth`` is that of :class:`Inputs`; ``secret`` is what both parties hash their keys under.
    """
    known = pl.DataFrame({"key": keys_column(hash_keys(truth[KEY], secret)), "true": truth[LABEL]})
    sent = pl.concat(map(_sent, releases))
    both = sent.join(known, on="key", how="inner", validate="1:1")
    unknown = sent.height - both.height
    if unknown:
        raise DataError(
            f"{unknown:,} rows of the release are of unknown events; labels and population must be"
            " the files that the release was made from"
        )
    return float(np.mean((both["label"] - both["true"]).to_numpy() ** 2))


def placed(label: LabelSection, truth: Floats) -> dict[str, Any]:
    """What placing (n,) true labels on their public grid does to them, in numbers and in words."""
    grid = Grid.from_edges(label.grid)
    moved = grid.moved(truth)
    return {
        "points": len(grid),
        "labels_between": moved.between,
        "variance_added": moved.share,
        "grid": f"{grid}; {moved}",
    }


def _sent(folder: Path) -> pl.DataFrame:
    """What a release sent of each event, with its key, which was submitted if it has none."""
    labels = read_release(folder).labels.select("key", "label")
    submitted = folder / POPULATION_FILE
    if not submitted.is_file():
        return labels
    return labels.with_columns(keys_column(submitted.read_bytes()))
