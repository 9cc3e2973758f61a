"""Categories by what privatized labels say of their rows."""

from __future__ import annotations

import numpy as np

from labelveil.feature_party.learning.target_encoding import TargetEncoding


def test_codes_that_say_nothing_encode_every_category_alike() -> None:
    """Where noise on a histogram leaves one value possible, all scores are 0."""
    categories = np.arange(12, dtype=np.int32)[:, None] % 3
    folds = np.arange(12) % 4
    assert np.array_equal(
        TargetEncoding(categories, [3], np.zeros(12), folds).rows(0), np.zeros((12, 1))
    )
    told = TargetEncoding(categories, [3], categories[:, 0] - 1.0, folds).rows(0)
    assert np.unique(told).size > 1
