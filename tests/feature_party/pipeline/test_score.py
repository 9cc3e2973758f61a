"""When a score is asked for after rounds of codes, and whose predictions it is about."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.group_sums import Lattice, NoisySums, PrivateSums
from labelveil.common.release.question import decode_question, encode_question
from labelveil.feature_party.groups.scoring import Known
from labelveil.feature_party.pipeline.score import Judged, ask_score, read_score

LATTICE = Lattice(-3.0, 3.0, 511)
RNG = np.random.default_rng(0)
POINTS = RNG.normal(0, 0.9, 4_000).clip(-3, 3)
LABELS = (POINTS + RNG.normal(0, 0.4, 4_000)).clip(-3, 3)
JUDGED = Judged(centre=0.0, miss=0.4, known=Known(0.95, 0.1), half_width=0.5)


def test_it_is_asked_where_it_will_tell_more_than_codes() -> None:
    asked = ask_score(JUDGED, POINTS, LATTICE, Fraction(1), 0)
    assert asked is not None
    wide = asked.expected(Fraction(1))
    assert 0 < wide.high - wide.low < 0.2
    sure = replace(JUDGED, half_width=(wide.high - wide.low) / 4)
    assert ask_score(sure, POINTS, LATTICE, Fraction(1), 0) is None


def test_sums_tell_of_the_predictions_that_they_were_asked_about_alone() -> None:
    asked = ask_score(JUDGED, POINTS, LATTICE, Fraction(1), 0)
    assert asked is not None
    question = decode_question(encode_question(asked.question), POINTS.size)
    assert question.digest == asked.question.digest
    noisy = NoisySums(asked.question, Fraction(1))
    places = LATTICE.round(LABELS, RNG.integers(0, 1 << 64, LABELS.size, dtype=np.uint64))
    answer = PrivateSums(noisy, noisy.draw(places, seeded_entropy(1)))
    told = read_score(answer, POINTS, JUDGED)
    assert told is not None
    r2 = 1 - np.mean((LABELS - POINTS) ** 2) / np.mean(LABELS**2)
    assert abs(told.r2.value - r2) < 2 * (told.r2.high - told.r2.low)
    assert read_score(answer, POINTS[::-1].copy(), JUDGED) is None
