"""What rows say of each other's labels."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.audit.attacks.rows_apart import influence, words_check
from labelveil.audit.verdict import Verdict


@pytest.mark.parametrize("follows", [False, True])
def test_outputs_that_do_not_vary_say_nothing_of_other_rows(follows: bool) -> None:
    bits = np.arange(1000) % 2
    outputs = bits.astype(float) if follows else np.zeros(1000)
    assert influence(outputs, bits).size == 0.0


def test_a_label_that_shows_in_another_row_is_found() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 2000)
    found = influence(np.roll(bits, 3).astype(float), bits)
    assert found.size > found.threshold
    right = influence(rng.integers(0, 2, 2000).astype(float), bits)
    assert right.size < right.threshold


@pytest.mark.parametrize("rows", [1000, 1009])
def test_words_of_constant_outputs_decide_nothing(rows: int) -> None:
    check = words_check("words", np.zeros(rows), claim="", tried="")
    assert check.verdict is Verdict.NOT_CHECKABLE
    again = np.resize(np.random.default_rng(0).integers(0, 2, rows // 4), rows)
    assert words_check("words", again, claim="", tried="").verdict is Verdict.FAIL
