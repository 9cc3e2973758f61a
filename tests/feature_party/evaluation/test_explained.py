"""How good a model is, from codes alone: right, as sure as it says, and never better by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.feature_party.evaluation.decoded_labels import Scored, believed, decode_labels
from labelveil.feature_party.evaluation.explained import explained
from labelveil.feature_party.evaluation.intervals import Measured
from labelveil.feature_party.evaluation.sentences import (
    error_words,
    share_words,
    summary,
    verdict_sentence,
)
from labelveil.feature_party.evaluation.spread import label_spread
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions
from tests.effort import some_of
from tests.feature_party.evaluation.simulated import (
    GRID,
    RELEASES,
    ROWS,
    compared,
    evaluate,
    events,
    gaussian,
    share_explained,
    sources,
)
from tests.feature_party.worlds import thresholds_channel
from tests.statistics import binomial_range, covers, mean_fits


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("epsilon", "width"),
    some_of(2, [(1.0, 0.5), (3.0, 0.5), (1.0, None), (1.0, 2.0)]),
    ids=str,
)
def test_both_intervals_contain_the_truth(epsilon: float, width: float | None) -> None:
    """With a model whose distributions are right, or have none, or are four times too wide."""
    means, labels = events()
    truth = share_explained(means, labels)
    found = [evaluate(means, labels, epsilon, seed, width) for seed in range(RELEASES)]
    least = binomial_range(RELEASES, 0.95)[0]
    for name in ("share", "assumption_free"):
        shares = [getattr(one, name) for one, _ in found]
        assert sum(s.low <= truth <= s.high for s in shares) >= least
        off = truth + np.median([s.high - s.low for s in shares])
        assert sum(s.low <= off <= s.high for s in shares) < least
    losses = np.array([one.assumption_free_loss.value for one, _ in found])
    error = float(np.mean((means - labels) ** 2))
    assert mean_fits(losses[:20], error)  # later ones share their histograms
    assert not mean_fits(losses[:20] + 3 * losses.std(), error)


@pytest.mark.slow
@pytest.mark.statistical
def test_what_assumes_nothing_covers_and_a_fifth_narrower_would_not() -> None:
    """It counts the codes' noise alone; of 1,000 the twin's 87% pass once in 100,000 times."""
    means, labels = events()
    truth = share_explained(means, labels)
    found = [evaluate(means, labels, 1.0, seed, None)[0].assumption_free for seed in range(1000)]
    assert covers(truth, found)
    assert not covers(truth, found, width=0.8)


@pytest.mark.slow
@pytest.mark.statistical
def test_the_spread_of_the_labels_is_unbiased_and_as_sure_as_it_says() -> None:
    labels = GRID.points[np.abs(events()[1][:, None] - GRID.points).argmin(axis=1)]
    channel = thresholds_channel(GRID.points, 1.0)
    gap = (
        GRID.points[1] - GRID.points[0]
    ) ** 2 / 6  # taken off for rounding, of which there is none
    scores, least = [], 0
    for seed in range(20):
        spread = label_spread(sources(labels, channel, seed))
        truth = float(np.mean((labels - spread.centre) ** 2)) - gap
        scores.append((spread.value - truth) / spread.error)
        least += spread.least < truth
    assert mean_fits(np.array(scores), 0.0, 1.0)
    assert not mean_fits(np.array(scores) + 2.5, 0.0, 1.0)
    assert 0.5 < np.std(scores) < 1.3  # it counts the sampling of labels, which are fixed here
    assert least >= binomial_range(20, 0.975)[0]


@pytest.mark.parametrize("centre", [0.0, 2.5, 5.0])
def test_the_loss_of_a_constant_that_is_given_is_told(centre: float) -> None:
    labels = events()[1]
    spread = label_spread(sources(labels, thresholds_channel(GRID.points, 3.0), 0), centre=centre)
    assert spread.centre == centre
    assert spread.error < 0.5  # of losses that are 5.5, 0.9 and 8.8
    assert abs(spread.value - np.mean((labels - centre) ** 2)) < 4 * spread.error


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("pull", [1.0, 0.05])
def test_a_model_of_other_events_is_not_called_better(pull: float) -> None:
    means, labels = events()
    rng = np.random.default_rng(3)
    verdicts = []
    for seed in range(RELEASES):
        dealt = means.mean() + pull * (rng.permutation(means) - means.mean())
        verdicts.append(evaluate(dealt, labels, 1.0, seed)[0].verdict)
    assert verdicts.count("better") <= binomial_range(RELEASES, 0.05)[1]
    assert all(evaluate(means, labels, 2.0, seed)[0].verdict == "better" for seed in range(9))


@pytest.mark.slow
@pytest.mark.statistical
def test_a_channel_that_merges_labels_widens_the_assumption_free_interval() -> None:
    means, labels = events()
    row_of = np.minimum(np.arange(11) // 4, 2)
    channel = FiniteChannel(
        GRID.points, [0.75, 2.75, 4.5], randomized_response_rows(3, 2.0), row_of
    )
    truth = share_explained(means, labels)
    found = [evaluate(means, labels, 2.0, seed, channel=channel)[0] for seed in range(RELEASES)]
    assert {one.assumption_free_loss.method for one in found} == {"bounded-bias"}
    least = binomial_range(RELEASES, 0.95)[0]
    for name in ("share", "assumption_free"):
        assert sum(getattr(s, name).low <= truth <= getattr(s, name).high for s in found) >= least
    plain = evaluate(means, labels, 2.0, 0)[0].assumption_free
    assert found[0].assumption_free.high - found[0].assumption_free.low > plain.high - plain.low


@pytest.mark.slow
def test_rows_that_are_not_held_out_count_too() -> None:
    means, labels = events()
    held = np.arange(ROWS) < ROWS // 5
    few, _ = evaluate(means[held], labels[held], 1.0, 1)
    all_rows, _ = evaluate(means, labels, 1.0, 1, held_out=held)
    of_all, of_few = all_rows.assumption_free, few.assumption_free
    assert of_all.high - of_all.low < 0.7 * (of_few.high - of_few.low)


def test_a_constant_is_not_better_and_few_events_cannot_tell() -> None:
    means, labels = events()
    nothing = evaluate(np.full(ROWS, labels.mean()), labels, 2.0, 1)[0]
    assert nothing.verdict == "not better"
    (drawn,) = sources(labels, thresholds_channel(GRID.points, 2.0), 1)
    for some in (0, ROWS // 2):  # these are predicted as the very constant does
        alike = np.where(np.arange(ROWS) < some, means, drawn.problem.mean)
        found = evaluate(alike, labels, 2.0, 1)[0]
        assert found.verdict == ("better" if some else "not better")
        assert found.share.value == pytest.approx(share_explained(alike, labels), abs=0.05)
    assert "no, less than 1%" in verdict_sentence(nothing, 2.0, ROWS)
    unsure = evaluate(means[:60], labels[:60], 0.5, 2)[0]
    assert unsure.verdict == "cannot tell"
    assert unsure.events is not None
    assert unsure.events > 60
    lines = summary(unsure, None, 0.5, 60, 60)
    assert lines[1].startswith("better than a constant: cannot tell at ε = 0.5 with 60 events")
    assert "events, or ε =" in lines[1]


def test_there_is_one_estimate_and_the_impossible_is_not_said() -> None:
    means, labels = events()
    for seed in range(2):
        found = evaluate(means, labels, 0.5, seed)[0]
        value = found.share.value
        assert found.error.value == pytest.approx(found.constant * (1 - value))
        for share in (found.assumption_free, found.share, found.error):
            assert share.low <= share.value <= share.high
    far = replace(found, share=Measured(1.0, 0.3, 1.0))
    assert not far.possible
    for words in (share_words(far), error_words(far)):
        assert words.endswith("(95%)")
    assert share_words(found).startswith(f"{found.share.value:.2f} (95%: ")


def test_an_event_of_another_network_is_worth_what_averaging_adds() -> None:
    means, labels = events()
    drawn = sources(labels, thresholds_channel(GRID.points, 2.0), 1)
    support, held = Support.from_problem(drawn[0].problem), np.arange(ROWS) < ROWS // 4
    scored = Scored(Predictions(means, gaussian(means, 0.5, support)), held)
    plain = compared(drawn, support, scored)[0].loss
    more = compared(drawn, support, replace(scored, averaging=0.2))[0].loss
    assert plain.value - more.value == pytest.approx(0.75 * 0.2)


def test_the_word_of_a_model_counts_less_the_less_it_knows() -> None:
    """Noise in predictions, or distributions made of their means, widen the assisted interval."""
    means, labels = events()
    drawn = sources(labels, thresholds_channel(GRID.points, 1.0), 1)
    support = Support.from_problem(drawn[0].problem)
    held = np.ones(ROWS, np.bool_)
    knowing = Scored(Predictions(means, gaussian(means, 0.5, support)), held)
    noisy, pointed = replace(knowing, echo=9.0), Scored(Predictions(means, None), held)
    assert noisy.noise(0.0) == 1.0
    assert noisy.misfit(0.0) == pytest.approx(np.sqrt(3) * knowing.misfit(0.0))
    widths = []
    for scored in (knowing, noisy, pointed):
        share = compared(drawn, support, scored)[0].share
        widths.append(share.high - share.low)
    assert widths[0] < 0.9 * min(widths[1:])


def test_a_tilted_prior_has_the_mean_that_is_predicted() -> None:
    support = Support.from_problem(
        sources(events()[1], thresholds_channel(GRID.points, 1.0), 0)[0].problem
    )
    points = np.linspace(0.4, 4.5, 50)
    beliefs = believed(support, Predictions(points, None))
    assert beliefs.min() >= 0
    assert beliefs.sum(axis=1) == pytest.approx(1)
    assert beliefs @ support.values == pytest.approx(points)


def test_where_labels_hardly_differ_no_number_of_events_is_advised() -> None:
    means, labels = events()
    drawn = sources(labels, thresholds_channel(GRID.points, 1.0), 0)
    support = Support.from_problem(drawn[0].problem)
    dealt = np.random.default_rng(3).permutation(means) - means.mean()
    scored = Scored(
        Predictions(means.mean() + 0.01 * dealt, None), np.ones(labels.size, dtype=np.bool_)
    )
    spread = replace(label_spread(drawn), value=0.0, shown=1e-300, least=1e-300)
    decoded = decode_labels(drawn, support, scored, spread.centre)
    found = explained(drawn, support, scored, spread, decoded)
    assert (found.verdict, found.events, found.epsilon) == ("cannot tell", None, None)
