"""Two rounds: a model of the first one's codes asks the events of the second."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import labelveil as lv
from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.notebook.sources import problem_of
from tests.statistics import mean_fits, repeatable_entropy

pytest.importorskip("torch")

NOISE = 9.0  # the label's variance that no feature explains
BOUNDS = {"lower": 0, "upper": 100}
FIRST, REST, TEST = slice(0, 2000), slice(2000, 8000), slice(8000, None)


@pytest.fixture(scope="module")
def events() -> tuple[Floats, Floats]:
    """Eight features that explain nearly all of the label."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(10_000, 8))
    labels = 50 + x @ np.linspace(8, 4, 8) + NOISE**0.5 * rng.normal(size=10_000)
    return x, labels.clip(0, 100)


@pytest.fixture(scope="module")
def rounds(events: tuple[Floats, Floats]) -> tuple[lv.LabelDPRegressor, list[lv.PrivateLabels]]:
    x, labels = events
    model = lv.LabelDPRegressor(learner="networks", head="gaussian", ensemble=4)
    with repeatable_entropy():
        first = lv.randomize_labels(labels[FIRST], epsilon=1, **BOUNDS)
        question = model.fit(x[FIRST], first).ask(x[REST])
        rest = lv.randomize_labels(labels[REST], epsilon=1, question=question, **BOUNDS)
    return model, [first, rest]


Rounds = tuple[lv.LabelDPRegressor, list[lv.PrivateLabels]]
Events = tuple[Floats, Floats]


@pytest.mark.slow
def test_what_is_asked_where_it_is_in_doubt_teaches_more(events: Events) -> None:
    x, labels = events
    model, one = lv.LabelDPRegressor(), lv.LabelDPRegressor()
    with repeatable_entropy():
        first = lv.randomize_labels(labels[FIRST], epsilon=0.5, **BOUNDS)
        question = model.fit(x[FIRST], first).ask(x[REST])
        rest = lv.randomize_labels(labels[REST], epsilon=0.5, question=question, **BOUNDS)
        alone = lv.randomize_labels(labels[:8000], epsilon=0.5, **BOUNDS)
    assert all(sent.guarantee.exact_epsilon <= Fraction(1, 2) for sent in (first, rest, alone))
    excess = [
        np.mean((fitted.predict(x[TEST]) - labels[TEST]) ** 2) - NOISE
        for fitted in (model.fit(x[:8000], [first, rest]), one.fit(x[:8000], alone))
    ]
    assert excess[0] < 0.75 * excess[1]


@pytest.mark.slow
def test_strata_are_of_like_predictions(events: Events, rounds: Rounds) -> None:
    x, _ = events
    model, _ = rounds
    question = model.ask(x[REST], strata=5)
    predicted = model.predict(x[REST])
    by_stratum = [predicted[question.strata == s] for s in range(5)]
    assert all(part.size > 300 for part in by_stratum)
    assert len(question.grid) == 101  # a point for each whole number, as it is without a histogram
    ends = [end for part in by_stratum for end in (part.min(), part.max())]
    assert ends == sorted(ends)
    means = question.laws @ question.grid.points / question.laws.sum(axis=1)
    # 5 % of each law is the prior's
    expected = [0.95 * part.mean() + 0.05 * model.model_.problem.mean for part in by_stratum]
    assert np.allclose(means, expected, atol=1.0)


@pytest.mark.slow
def test_decoded_labels_are_without_bias_in_every_stratum(events: Events, rounds: Rounds) -> None:
    _, labels = events
    _, (_, rest) = rounds
    problem = problem_of(rest)
    decoded = decoder(problem, problem.grid)
    assert decoded.exact
    errors = decoded.values[rest.codes, 0] - labels[REST]
    starts = np.array(rest.events.message.codebooks.starts)
    strata = np.searchsorted(starts, rest.codes, side="right") - 1
    for stratum in range(16):
        assert mean_fits(errors[strata == stratum], 0.0)


@pytest.mark.slow
def test_what_cannot_be_asked_is_said(events: Events, rounds: Rounds) -> None:
    x, labels = events
    model, (first, rest) = rounds
    with pytest.raises(ConfigError, match="strata=33 must be 1 … 32"):
        model.ask(x[REST], strata=33)
    with pytest.raises(ConfigError, match="events in 16 strata have a channel each"):
        _ = rest.channel
    with pytest.raises(ValueError, match="inconsistent numbers"):
        model.fit(x[REST], [first, rest])
    two = lv.randomize_labels(labels[FIRST] > 50, lower=0, upper=1, epsilon=4)
    clicks = lv.LabelDPRegressor(learner="linear").fit(x[FIRST], two)
    with pytest.raises(ConfigError, match="labels of 2 values"):
        clicks.ask(x[REST])
    three = lv.randomize_labels(labels[FIRST] // 40, lower=0, upper=2, epsilon=4, values=[0, 1, 2])
    stars = lv.LabelDPRegressor(learner="linear").fit(x[FIRST], three)
    with pytest.raises(ConfigError, match="labels of 3 values"):
        stars.ask(x[REST])
