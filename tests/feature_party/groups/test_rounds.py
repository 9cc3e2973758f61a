"""Rounds of questions ask about every event once, and refuse to ask about none."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    assert np.array_equal(first.rows, seen[0])
    assert np.array_equal(second.rows, np.concatenate(seen))
    assert np.array_equal(np.sort(second.rows), np.arange(900))
    model = second.model
    predicted = model.distributions(model.encoder.encode(table)).points
    # noise is next to nothing at this ε: what is not learned would be that rows were mixed up
    assert np.mean((predicted - labels) ** 2) < 0.1 * labels.var()
    # one ridge's waves run along some columns, the other's along all
    along = [float((ridge.frequencies != 0).float().mean()) for ridge in model.ridges]
    assert along[0] < 0.9
    assert along[1] == 1


@settings(max_examples=20, deadline=None)
@given(st.integers(100, 300), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_rounds_ask_of_further_events_and_learn_from_all_before(
    rows: int, parts: list[int]
) -> None:
    """Whatever is learned: which events each question is about, and each model has learned from."""
    table = pl.DataFrame({"row": range(rows)})
    asked = list[Indices]()

    def fit(table: pl.DataFrame, answers: list[int], **named: Any) -> SimpleNamespace:
        def ask(table: pl.DataFrame, epsilon: float, rng: object) -> Any:
            return len(answers), table, epsilon

        return SimpleNamespace(ask=ask, table=table, answers=tuple(answers), named=named)

    def ask_first(table: pl.DataFrame, lattice: Lattice, epsilon: float, *more: object) -> Any:
        return 0, table, epsilon

    def answer(events: Indices, question: Any) -> Any:
        known, of, epsilon = question
        assert (known, of["row"].to_list(), epsilon) == (len(asked), events.tolist(), 0.5)
        asked.append(events)
        return len(asked)

    shares = [part / sum(parts) for part in parts]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("labelveil.feature_party.groups.rounds.SumsModel.fit", fit)
        patched.setattr("labelveil.feature_party.groups.rounds.ask_first", ask_first)
        for number, each in enumerate(
            learn_in_rounds(table, LATTICE, 0.5, answer, shares=shares, seed=5), 1
        ):
            model: Any = each.model
            assert each.answers == model.answers == tuple(range(1, number + 1))
            assert each.rows.tolist() == model.table["row"].to_list()
            assert each.rows.tolist() == np.concatenate(asked).tolist()
            assert model.named["seed"] == 5
    assert sorted(each.rows.tolist()) == list(range(rows))
    assert [of.size for of in asked] == pytest.approx(np.multiply(shares, rows), abs=1.01)


def test_a_round_without_events_is_refused() -> None:
    table = pl.DataFrame({"x": [1.0, 2.0, 3.0]})

    def answer(rows: Indices, question: GroupQuestion) -> PrivateSums:
        raise AssertionError("nothing is asked")

    with pytest.raises(DataError, match="none of 3 events is left for round 1"):
        next(learn_in_rounds(table, LATTICE, 1, answer, shares=(0.1, 0.9)))
