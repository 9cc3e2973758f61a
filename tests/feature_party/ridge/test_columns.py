"""Columns of encoded rows: numbers as they are, and one for each frequent value of a category."""

from __future__ import annotations

import numpy as np
import polars as pl

from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.ridge.columns import columns_of, values_of

WORDS = ["a"] * 40 + ["b"] * 30 + ["c"] * 20
KINDS = ["x", "y"] * 45


def test_frequent_values_have_columns_and_others_none() -> None:
    numbers = np.linspace(-1, 1, 90)
    encoder = Encoder.fit(pl.DataFrame({"word": WORDS, "kind": KINDS, "number": numbers}))
    words, kinds = ["c", "a", "new", "b", None], ["y", "new", "x", "y", "x"]
    encoded = encoder.encode(
        pl.DataFrame({"word": words, "kind": kinds, "number": [0.0, 1.0, -1.0, 0.5, 0.25]})
    )
    width = encoder.inputs
    assert [len(each) for each in values_of(encoder)] == [
        size - 1 for size in encoder.cardinalities
    ]
    for most in (64, 2):
        found = columns_of(encoder, encoded, most)
        np.testing.assert_array_equal(found[:, :width], encoded.numeric)
        sizes, at, expected = [], width, []
        for values, codes in zip(encoder.cardinalities, encoded.categories.T, strict=True):
            sizes.append(min(most, values - 1))  # all but the unknown one
            expected.append(np.eye(values)[codes][:, 1 : 1 + sizes[-1]])
            at += sizes[-1]
        assert found.shape[1] == at
        assert [len(each) for each in values_of(encoder, most)] == sizes
        np.testing.assert_array_equal(found[:, width:], np.hstack(expected))
    # the most frequent word is the first
    place = encoder.categorical.index("word") if "word" in encoder.categorical else 0
    first = values_of(encoder)[place].start
    assert columns_of(encoder, encoded)[:, first].tolist() == [0, 1, 0, 0, 0]
