"""Categories by what privatized labels say of their rows."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_common_categories_are_alike_in_all_folds_and_rare_ones_never_see_their_own() -> None:
    """A hundred rows besides those left out are common; the mean of fewer leaves a fold out."""
    rng = np.random.default_rng(0)
    categories = np.repeat([0, 1, 2], [400, 132, 40]).astype(np.int32)
    folds, scores = np.arange(572) % 4, rng.normal(size=572) + 10 * categories
    coded = TargetEncoding(categories[:, None], [3], scores - scores.mean(), folds)
    told = coded.rows(3)[:, 0]
    for category, kinds in ((0, 1), (1, 4), (2, 4)):  # 132 of which 99 are in other folds
        assert np.unique(told[categories == category]).size == kinds
    np.testing.assert_array_equal(told[folds == 3], coded.encoding(3)[categories[folds == 3]])
    own = (categories == 2) & (folds == 1)
    others = (categories == 2) & np.isin(folds, [0, 2])
    alone = coded.sums[[0, 2], 2].sum() / (others.sum() + coded.strength[2])
    assert told[own] == pytest.approx(np.full(own.sum(), alone))
