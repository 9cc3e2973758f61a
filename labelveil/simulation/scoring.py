"""Label noise, which only somebody who sees both the true labels and the release can measure."""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl

from common.errors import DataError
from common.release.blocks import KEY_BYTES
from common.release.event_keys import hash_keys
from common.release.table import Release
from labelveil.simulation.inputs import KEY, LABEL


def label_error(release: Release, truth: pl.DataFrame, secret: bytes) -> float:
    """Mean squared difference between the values sent and the true labels, over a verified release.

    ``truth`` is that of :class:`Inputs`; ``secret`` is what both parties hash their keys under.
    """
    hashed = hash_keys(truth[KEY], secret)
    if not release.manifest.content.key_bytes:
        if hashlib.sha256(hashed).hexdigest() != release.manifest.population.digest:
            raise DataError("the features are not the population that the release was made from")
        return float(np.mean((release.labels["label"] - truth[LABEL]).to_numpy() ** 2))
    keys = [hashed[at : at + KEY_BYTES] for at in range(0, len(hashed), KEY_BYTES)]
    known = pl.DataFrame({"key": pl.Series(keys, dtype=pl.Binary), "true": truth[LABEL]})
    both = release.labels.join(known, on="key", how="inner", validate="1:1")
    unknown = release.labels.height - both.height
    if unknown:
        raise DataError(
            f"{unknown:,} rows of the release are of unknown events; labels and population must be"
            " the files that the release was made from"
        )
    return float(np.mean((both["label"] - both["true"]).to_numpy() ** 2))
