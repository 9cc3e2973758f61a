"""What a batch has cost, as far as it went."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from labelveil.common.entropy import Entropy
from labelveil.common.mechanisms.pate.single_label import ConfidentGNMax


def test_the_test_that_ends_a_batch_is_paid_for_and_none_after_it() -> None:
    """Votes that no noise can turn: a batch that stops costs what the batch until there costs."""
    mechanism = ConfidentGNMax(150, Fraction(16), Fraction(9), most_answers=2)
    sure, unsure = [200, 10, 0], [140, 60, 10]
    votes = np.array([sure, unsure, sure, sure, unsure])
    whole = mechanism.draw(votes, Entropy(bytes(32)))
    until = mechanism.draw(votes[:3], Entropy(bytes(32)))
    fewer = mechanism.draw(votes[:1], Entropy(bytes(32)))
    assert whole.labels.tolist() == [0, -1, 0, -1, -1]
    assert whole.incurred is not None
    assert until.incurred is not None
    assert fewer.incurred is not None
    np.testing.assert_array_equal(whole.incurred, until.incurred)
    assert (whole.incurred > fewer.incurred).all()
