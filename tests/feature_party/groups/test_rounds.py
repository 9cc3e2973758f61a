"""Rounds of questions ask about every event once, and refuse to ask about none."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from labelveil.common.arrays import Indices
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError
from labelveil.common.mechanisms.group_sums import (
    GroupQuestion,
    Lattice,
    NoisySums,
    PrivateSums,
)
from labelveil.feature_party.groups.rounds import learn_in_rounds

LATTICE = Lattice(0, 10, 500)


@pytest.mark.slow
def test_every_event_is_asked_once_and_answers_belong_to_their_rows() -> None:
    rng = np.random.default_rng(0)
    table = pl.DataFrame({"x": rng.normal(size=900), "z": rng.normal(size=900)})
    labels = np.clip(5 + 2 * table["x"].to_numpy(), 0, 10)
    seen = list[Indices]()

    def answer(rows: Indices, question: GroupQuestion) -> PrivateSums:
        seen.append(rows)
        noisy, entropy = NoisySums(question, Fraction(8)), seeded_entropy(len(seen))
        places = LATTICE.round(labels[rows], entropy.coins("places", 0, rows.size))
        return PrivateSums(noisy, noisy.draw(places, entropy))

    first, second = learn_in_rounds(table, LATTICE, 8, answer, shares=(0.4, 0.6), seed=3)
    assert [rows.size for rows in seen] == [360, 540]
    assert np.array_equal(first.asked, seen[0])
    assert np.array_equal(second.asked, np.concatenate(seen))
    assert np.array_equal(np.sort(second.asked), np.arange(900))
    model = second.model
    predicted = model.distributions(model.encoder.encode(table)).points
    # noise is next to nothing at this ε: what is not learned would be that rows were mixed up
    assert np.mean((predicted - labels) ** 2) < 0.1 * labels.var()
    # one ridge's waves run along some columns, the other's along all
    along = [float((ridge.frequencies != 0).float().mean()) for ridge in model.ridges]
    assert along[0] < 0.9
    assert along[1] == 1


def test_a_round_without_events_is_refused() -> None:
    table = pl.DataFrame({"x": [1.0, 2.0, 3.0]})

    def answer(rows: Indices, question: GroupQuestion) -> PrivateSums:
        raise AssertionError("nothing is asked")

    with pytest.raises(DataError, match="none of 3 events is left for round 1"):
        next(learn_in_rounds(table, LATTICE, 1, answer, shares=(0.1, 0.9)))
