"""What figures are called, how they are rounded, and the textbook's numbers behind them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from labelveil.common.errors import DataError
from labelveil.feature_party.evaluation.breakdown import (
    Segment,
    groups_by,
    number,
    segments,
    tenths,
)
from labelveil.feature_party.evaluation.clipped_labels import Clipped
from labelveil.feature_party.evaluation.decoded_labels import DecodedLabels, Scored
from labelveil.feature_party.evaluation.explained import Explained
from labelveil.feature_party.evaluation.intervals import (
    Estimate,
    Measured,
    compared,
    half_width,
    mean_error,
    noise_beyond,
    noisy_half_width,
)
from labelveil.feature_party.evaluation.scores import labels_json
from labelveil.feature_party.evaluation.sentences import (
    association_sentence,
    calibration_lines,
    clipped_sentence,
    error_words,
    figure_words,
    importance_line,
    interval_words,
    segment_lines,
    source_words,
    summary,
    verdict_sentence,
)
from labelveil.feature_party.evaluation.spread import Spread
from labelveil.feature_party.evaluation.true_labels import TrueErrors
from labelveil.feature_party.learning.calibration import Slope
from labelveil.feature_party.model.model import Predictions
from labelveil.feature_party.schema import ColumnMeaning
from tests.refusals import check_refused

FOUND = Explained(
    share=Measured(0.35, 0.27, 0.43),
    assumption_free=Measured(0.33, -0.1, 0.47),
    loss=Estimate(5.1, 4.2, 6.0, "model-assisted"),
    assumption_free_loss=Estimate(5.3, 4.0, 6.5),
    constant=8.0,
    association=2.5,
    events=None,
    epsilon=None,
)
VAGUE = replace(FOUND, share=Measured(0.1, -0.2, 0.4))
CLIPPED = Clipped(20.0, 0.034, FOUND)
WITH_SUMS = FOUND.by_sums(Measured(0.5, 0.4, 0.6), Measured(4.0, 3.0, 5.0), 9.0, 1200)


def test_a_summary_says_what_decides_and_on_how_many_events_it_rests() -> None:
    first, second, third, fourth, fifth = summary(FOUND, None, 0.5, 3000, 3000)
    assert first == "the features predict the label: yes (p = 0.0062)"
    assert second == "better than a constant: yes"
    assert third == (
        "R², the share of the label's variance that is explained: 0.35 (95%: 0.27 … 0.43);"
        " assumption-free 0.00 … 0.47"
    )
    assert fourth == "estimated test MSE 5.2 (95%: 4.2 … 6), of always predicting the mean 8"
    assert fifth == "all from the privatized labels of 3,000 events not trained on"
    *_, fifth = summary(FOUND, CLIPPED, 0.5, 3001, 3000)
    assert fifth.endswith("on (3,000 held out, others by networks that left them out)")
    assert clipped_sentence(CLIPPED) in summary(FOUND, CLIPPED, 0.5, 3001, 3000)


def test_a_summary_of_sums_says_so() -> None:
    first, second, third, fourth, fifth = summary(WITH_SUMS, CLIPPED, 0.5, 3000, 700)
    assert first == "the features predict the label: yes (1,200 events' sums)"
    assert second == "better than a constant: yes"
    assert third.endswith("0.50 (95%: 0.40 … 0.60); from codes alone 0.27 … 0.43")
    assert fourth == "estimated test MSE 4.5 (95%: 3 … 5), of always predicting the mean 9"
    assert "by two sums over 1,200 held-out events that no code was sent of" in fifth
    assert fifth.endswith("labels of 3,000 events not trained on")
    nothing = replace(WITH_SUMS, share=Measured(0.1, 0.0, 0.2), association=1.0)
    assert association_sentence(nothing) == "the features predict the label: not seen (p = 0.16)"
    assert not nothing.associated
    assert replace(nothing, share=Measured(0.1, 1e-9, 0.2)).associated
    vague = replace(nothing, sums=1200, share=Measured(0.1, -1.0, 0.2))
    assert summary(vague, None, 0.5, 3000, 700)[1].endswith("ε = 0.5 with 1,200 events")


@pytest.mark.parametrize(
    ("association", "said"),
    [
        (stats.norm.isf(1e-6) - 1e-4, "yes (p = 1e−06)"),
        (stats.norm.isf(1e-6) + 1e-3, "yes (p < 0.000001)"),
        (1.9599, "not seen (p = 0.025)"),
        (1.9600, "yes (p = 0.025)"),
    ],
)
def test_an_association_is_seen_where_chance_shows_one_in_forty_times(
    association: float, said: str
) -> None:
    assert association_sentence(replace(FOUND, association=association)).endswith(said)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        ((0.2, 1e-9, 0.3), "better"),
        ((0.2, 0.0, 0.3), "cannot tell"),
        ((0.0, -0.1, 0.0099), "not better"),
        ((0.0, -0.1, 0.01), "cannot tell"),
    ],
)
def test_verdicts_end_where_an_interval_does(
    share: tuple[float, float, float], verdict: str
) -> None:
    found = replace(FOUND, share=Measured(*share))
    assert compared(found.share) == found.verdict == verdict
    assert found.to_json()["verdict"] == verdict
    said = {
        "better": "better than a constant: yes",
        "not better": "better than a constant: no, less than 1% of the label's variance explained",
        "cannot tell": "better than a constant: cannot tell at ε = 0.5 with 3,000 events",
    }
    assert verdict_sentence(found, 0.5, 3000) == said[verdict]


@pytest.mark.parametrize(
    ("events", "shown"),
    [(7, "7"), (96, "96"), (124, "120"), (12_499, "12,000"), (1_260_000, "1,300,000")],
)
def test_advice_has_two_digits(events: int, shown: str) -> None:
    found = replace(VAGUE, events=events, epsilon=3.0)
    said = verdict_sentence(found, 0.5, 3000)
    assert said.endswith(f"; about {shown} events, or ε = 1.5, would tell")
    for lacking in (replace(found, events=None), replace(found, epsilon=None)):
        assert verdict_sentence(lacking, 0.5, 3000).endswith("with 3,000 events")


def test_figures_are_shown_with_their_intervals_or_these_alone() -> None:
    assert figure_words(Measured(0.35, 0.27, 0.43), ".0%") == "35% (95%: 27% … 43%)"
    assert figure_words(Measured(0.27, 0.27, 0.43)) == (
        "0.27 … 0.43 (95%; the estimate is its lower end)"
    )
    assert figure_words(Measured(0.43, 0.27, 0.43)) == (
        "0.27 … 0.43 (95%; the estimate is its upper end)"
    )
    assert figure_words(Measured(1.0, 0.27, 1.0)) == "0.27 … 1.00 (95%)"
    assert figure_words(Measured(0.2, -0.3, 0.4)) == "0.20 (95%: 0.00 … 0.40)"
    assert interval_words(Measured(0.2, -0.3, 0.4), ".0%") == "0% … 40%"
    assert error_words(FOUND) == "5.2 (95%: 4.2 … 6)"
    beyond = replace(FOUND, share=Measured(1.1, 0.9, 1.2))
    assert error_words(beyond) == "−0.8 … 6 (95%)"  # constant · (1 − R²)
    assert source_words(FOUND, ".0%") == "assumption-free 0% … 47%"


def test_the_error_is_that_of_the_share_and_inside_its_interval() -> None:
    assert (FOUND.error.value, FOUND.error.low, FOUND.error.high) == (5.2, 4.2, 6.0)
    assert FOUND.error.method == "model-assisted"
    far = replace(FOUND, share=Measured(0.0, 0.0, 0.1), loss=Estimate(5.1, -2.0, 6.0))
    assert (far.error.low, far.error.high) == (0.0, 8.0)
    small = replace(FOUND, share=Measured(0.9, 0.8, 0.95))
    assert small.error.low == pytest.approx(0.8)


def test_what_sums_tell_takes_the_place_of_what_codes_told() -> None:
    assert WITH_SUMS.codes == FOUND.share
    assert WITH_SUMS.loss == Estimate(4.0, 3.0, 5.0, "unbiased")
    data = WITH_SUMS.to_json()
    assert (data["told_by"], data["codes_r2"], data["codes_r2_low"]) == ("sums", 0.35, 0.27)
    assert (data["estimated_constant_mse"], data["estimated_mse"]) == (9.0, 4.5)
    assert (data["estimated_r2"], data["estimated_r2_high"]) == (0.5, 0.6)
    alone = FOUND.to_json()
    assert alone["told_by"] == "codes"
    assert "codes_r2" not in alone
    assert (alone["assumption_free_r2_low"], alone["assumption_free_mse_high"]) == (-0.1, 6.5)
    assert CLIPPED.to_json() == {"bound": 20.0, "share_above": 0.034, **alone}
    nan = math.nan
    ends = [(0.35, 0.27, 0.43), (1.0, 0.3, 1.0), (0.0, 0.0, 0.2), (nan, nan, nan)]
    said = [replace(FOUND, share=Measured(*share)).to_json() for share in ends]
    assert [one["estimated_r2_is_bound"] for one in said] == [False, True, True, False]


def test_clipped_labels_are_called_so() -> None:
    assert clipped_sentence(CLIPPED, ".0%") == (
        "of labels clipped at 20, which 3.4% exceed: R² 35% (95%: 27% … 43%); better than a"
        " constant: yes"
    )


def test_columns_that_matter_are_ranked_and_others_counted() -> None:
    effects = {f"c{i}": Measured(0.1 * i, 0.1 * i - 0.12, 0.1 * i + 0.12) for i in range(8)}
    assert importance_line(effects) == (
        "columns that matter, by the R² lost when their values are shuffled: c7 0.7 ± 0.1,"
        " c6 0.6 ± 0.1, c5 0.5 ± 0.1, c4 0.4 ± 0.1, c3 0.3 ± 0.1; the effect of 2 others cannot be"
        " distinguished from noise"
    )
    one = importance_line({"a": Measured(0.5, 0.4, 0.6), "b": Measured(0.5, 0.0, 1.0)})
    assert one.endswith("a 0.5 ± 0.1; the effect of 1 other cannot be distinguished from noise")
    assert importance_line({"a": Measured(0.5, 0.4, 0.6)}).endswith("a 0.5 ± 0.1")
    assert importance_line({"b": Measured(0.5, 0.0, 1.0)}) == (
        "no column's effect can be distinguished from noise"
    )


def test_tenths_are_not_listed_where_nothing_can_be_told() -> None:
    tenth = Segment("1 … 2", 1200, 1.5, Measured(1.4, -0.5, 9.0), Measured(0, 0, 0))
    sure, unsure = Slope(0.9, 0.1), Slope(1.0, 0.6)
    coverage = {0.5: Measured(0.48, -0.45, 0.51), 0.95: Measured(0.9, 0.88, 1.02)}
    lines = calibration_lines(sure, [tenth], coverage, (0.0, 4.0))
    assert lines == [
        "by prediction, in tenths:",
        "         events  predicted  mean label (95% for all together)",
        "  1 … 2   1,200        1.5  1.4 (0 … 4)",
        "labels rise by 0.90 per unit predicted (95%: 0.70 … 1.10; 1 is right)",
        "the model's own intervals of 50% hold 48% (0% … 51%), of 95% hold 90% (88% … 100%) of the"
        " labels",
    ]
    assert calibration_lines(unsure, [tenth], {}, (0.0, 4.0)) == [
        "whether predictions are right on average cannot be told",
        "labels rise by 1.00 per unit predicted (95%: -0.18 … 2.18; 1 is right)",
    ]
    for edge in (Slope(1.9, 0.6), Slope(0.5, 0.6)):  # only one side is open
        assert calibration_lines(edge, [tenth], {}, (0.0, 4.0))[0] == "by prediction, in tenths:"
    assert calibration_lines(None, [], {}, (0.0, 4.0)) == []


def test_segments_that_are_off_are_marked() -> None:
    def segment(predicted: float) -> Segment:
        return Segment("a\nb", 30, predicted, Measured(2.0, 1.0, 3.0), Measured(0, 0, 0))

    for predicted, off in ((0.99, True), (1.0, False), (3.0, False), (3.01, True)):
        assert segment(predicted).off == off
        line = segment_lines("shop", [segment(predicted)], (0.0, 9.0))[-1]
        assert line.endswith("2 (1 … 3)  predictions are off") == off
        assert line.startswith("  a\\nb")


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (math.nan, 4, "–"), (math.inf, 4, "–"), (-12.345678, 4, "−12.35"), (999.96, 4, "1000"),
        (1000.0, 4, "1,000"), (1234567.8, 4, "1,234,568"), (-99.96, 3, "−100"), (100.4, 3, "100"),
        (1e-4, 4, "0.0001"), (9.99951e-5, 4, "0.0001"), (1.23456e-5, 4, "1.23e−05"),
    ],
)  # fmt: skip
def test_numbers_have_few_digits(value: float, digits: int, shown: str) -> None:
    assert number(value, digits) == shown


def test_intervals_of_means_and_their_names() -> None:
    terms = np.array([1.0, 2.0, 4.0, 9.0])
    error = float(np.std(terms, ddof=1) / 2)
    assert mean_error(terms) == pytest.approx(error)
    found = Measured.of_terms(terms, extra=0.5, level=2.0)
    half = 2 * math.hypot(error, 0.5)
    assert (found.value, found.low, found.high) == pytest.approx((4.0, 4 - half, 4 + half))
    whole = Measured.of_terms(terms)
    assert whole.high - 4 == pytest.approx(stats.norm.isf(0.025) * error)
    assert Measured(5.0, -1.0, 9.0).within(0.0, 4.0) == Measured(4.0, 0.0, 4.0)
    said = Measured(1.0, math.nan, 3.0).to_json("x")
    assert said == {"x": 1.0, "x_low": None, "x_high": 3.0}
    back = Measured.of_json(said, "x")
    assert (back.value, math.isnan(back.low), back.high) == (1.0, True, 3.0)
    assert Estimate(1.0, 0.0, 2.0, "model").to_json("mse")["mse_method"] == "model"


@pytest.mark.parametrize("bias", [0.0, 0.3, 1.0, 4.9, 5.1, 50.0])
def test_an_interval_with_room_for_a_bias_is_the_quantile_of_both(bias: float) -> None:
    half = half_width(2.0, 2.0 * bias)
    inside = stats.norm.cdf(half / 2 - bias) - stats.norm.cdf(-half / 2 - bias)
    assert inside == pytest.approx(0.95, abs=1e-7)


@pytest.mark.parametrize("chance", [0.05, 0.001])
@pytest.mark.parametrize(
    ("error", "scale"),
    [(1.0, 1.5e-3), (1.0, 5e-4), (1.5e-3, 1.0), (5e-4, 1.0), (2.0, 3.0), (1.0, 0.5), (0.1, 1.0)],
)
def test_noise_and_error_together_reach_so_far(error: float, scale: float, chance: float) -> None:
    """Both laws convolved on a grid; where one is next to nothing, too."""
    normal, noise = stats.norm(0, error), stats.laplace(0, scale)
    half = noisy_half_width(error, scale, chance=chance)
    wide, narrow = (noise, normal) if scale > error else (normal, noise)
    step = 40 * narrow.std() / 4000
    at = np.arange(-2000, 2001) * step
    weight = narrow.pdf(at) * step
    outside = float(weight @ (wide.sf(half - at) + wide.cdf(-half - at)))
    assert outside == pytest.approx(chance, rel=4e-3)
    alone = noisy_half_width(error, 0.0, chance=chance), noisy_half_width(0.0, scale, chance=chance)
    assert alone == pytest.approx((normal.isf(chance / 2), noise.isf(chance / 2)))


def of_one_laplace(reach: float, error: float, scale: float) -> float:
    """Chance that a normal error and one Laplace noise are off by more, in closed form."""
    z, ratio = reach / error, error / scale
    down = np.exp(ratio**2 / 2 - reach / scale + stats.norm.logcdf(z - ratio))
    up = np.exp(ratio**2 / 2 + reach / scale + stats.norm.logcdf(-z - ratio))
    return float(2 * stats.norm.sf(z) + down - up)


@pytest.mark.parametrize("reach", [0.3, 2.0, 6.0, 14.0])
@pytest.mark.parametrize("error", [0.05, 1.0])
@pytest.mark.parametrize("scales", [(1.0,), (1.0, -0.5), (0.4, 1.0, 0.7), (1.0, 0.9, 0.8, 0.1)])
def test_several_noises_are_off_together_as_partial_fractions_say(
    scales: tuple[float, ...], error: float, reach: float
) -> None:
    """1 / Π (1 - b²s²) is Σ w / (1 - b²s²): a mixture, of weights of either sign."""
    squares = np.square(scales)
    apart = 1 - squares / squares[:, None] + np.eye(len(scales))
    weights = 1 / apart.prod(axis=1)
    wanted = sum(
        w * of_one_laplace(reach, error, abs(b)) for w, b in zip(weights, scales, strict=True)
    )
    assert noise_beyond(reach, error, *scales) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("chance", [0.05, 1e-3, 5e-5])
def test_two_equal_noises_reach_further_than_one_with_the_others_variance(chance: float) -> None:
    """(1 + t/2) exp(-t): if one is taken for normal, 1.1 to 2.4 times as often as it should."""
    half = noisy_half_width(0.0, 3.0, -3.0, chance=chance) / 3
    assert (1 + half / 2) * np.exp(-half) == pytest.approx(chance, rel=1e-6)
    twin = noisy_half_width(np.sqrt(2), 1.0, chance=chance)
    assert (1 + twin / 2) * np.exp(-twin) > 1.1 * chance


def test_no_noise_is_off_by_nothing() -> None:
    assert [noise_beyond(reach, 0.0, 0.0) for reach in (-1.0, 0.0, 1e-9)] == [1.0, 1.0, 0.0]
    assert noisy_half_width(0.0) == 0.0
    assert noise_beyond(0.0, 1.0, 2.0) == 1.0
    assert noise_beyond(500.0, 1.0, 2.0) == 0.0


@pytest.mark.parametrize("bias", [0.0, 0.3])
@pytest.mark.parametrize(
    ("value", "shown", "mean", "error", "least"),
    [
        (4.0, 4.0, 1.2, 0.3, 2.0),
        (4.0, 4.0, -1.5, 0.3, 2.0),
        (4.0, 0.4, -1.5, 0.3, 2.0),  # the prior's own variance, of which an estimate is a share
        (4.0, 1.0, 2.9, 0.3, 2.0),
        (4.0, 4.0, 6.0, 0.05, 3.5),  # more than all of it
        (1.0, 1.5, 1.2, 1.0, 0.2),  # which may be next to nothing
        (0.5, 1.5, 0.1, 1.0, 0.02),
        (-0.5, 1.5, 1.2, 1.0, 0.2),
    ],
)
def test_a_share_is_all_that_mean_and_variance_may_have_for_ratio(
    value: float, shown: float, mean: float, error: float, least: float, bias: float
) -> None:
    """Ratios one by one, as Fieller has it, cut off at a variance that there surely is."""
    spread = Spread(0.0, value, shown, np.array([-0.2, 0.0, 0.2]), error, least)
    variance, together, z = 0.04, 0.01, stats.norm.isf(0.025)
    found = spread.share(mean, variance, together, bias, most=1.0)
    each = np.linspace(-40, 40, 800_001)

    def squared(ratio: Any) -> Any:
        deviation = math.hypot(error, 0.2 / 3**0.5)
        return variance - 2 * ratio * together + (ratio * deviation) ** 2

    def half(squares: float) -> float:
        law = stats.foldnorm(bias / squares**0.5, scale=squares**0.5)
        return float(law.ppf(0.95))

    usual = squared(min(max(mean / shown, 0.0), 1.0))
    room = half(usual) ** 2 - z**2 * usual
    there = each[(mean - each * value) ** 2 <= z**2 * squared(each) + room]
    if value < 1.5 and (there < 0).any() and not (there == 0).any():
        there = there[there > 0]  # of two parts without an end that of the mean's sign
    low = max(there.min(), min(mean - half(variance), 0.0) / least)
    high = min(there.max(), max(mean + half(variance), 0.0) / least, 1.0)
    low = min(low, high)
    middle = float(np.clip(mean / shown, low, high))
    assert (found.value, found.low, found.high) == pytest.approx((middle, low, high), abs=2e-4)


def test_segments_are_means_with_room_for_all_of_them() -> None:
    rng = np.random.default_rng(0)
    points, unbiased = rng.uniform(0, 4, 60), rng.normal(2, 1, 60)
    zero = np.zeros(60)
    labels = DecodedLabels(unbiased, zero, zero, zero, zero, *[0.0] * 5)
    groups = [("a", np.arange(20)), ("b", np.arange(20, 60))]
    truth = np.arange(60.0)
    first, second = segments(groups, points, labels, 1.5, 2.5, truth)
    for found, rows in ((first, slice(0, 20)), (second, slice(20, 60))):
        own = unbiased[rows]
        level = stats.norm.isf(0.025 / 2)
        half = level * own.std(ddof=1) / own.size**0.5
        assert found.events == own.size
        assert found.predicted == pytest.approx(points[rows].mean())
        assert (found.label.low, found.label.high) == pytest.approx(
            (own.mean() - half, own.mean() + half)
        )
        saved = ((own - 1.5) ** 2 - (own - points[rows]) ** 2) / 2.5
        assert found.gain.value == pytest.approx(saved.mean())
        assert found.actual == truth[rows].mean()
    assert segments(groups, points, labels, 1.5, 2.5)[0].actual is None


@pytest.mark.parametrize(
    ("events", "groups"), [(2, 1), (3, 1), (5, 2), (19, 9), (20, 10), (400, 10)]
)
def test_tenths_are_ten_where_each_has_two(events: int, groups: int) -> None:
    points = np.random.default_rng(1).normal(size=events)
    found = tenths(points)
    assert len(found) == groups
    order = np.concatenate([rows for _, rows in found])
    assert np.array_equal(points[order], np.sort(points))
    sizes = [rows.size for _, rows in found]
    assert max(sizes) - min(sizes) <= 1
    assert found[0][0].startswith(number(points.min()))


def test_values_are_groups_up_to_twenty_and_from_thirty_rows_on() -> None:
    category = ColumnMeaning("c", "category")
    texts = pl.Series([f"v{i:02}" for i in range(22) for _ in range(30 + (i == 5))])
    found = groups_by(texts, category)
    assert [name for name, _ in found] == [
        "v05",
        *(f"v{i:02}" for i in range(20) if i != 5),
        "others",
    ]
    assert found[-1][1].size == 60
    rare = pl.Series(["a"] * 30 + ["b"] * 29 + [None] * 30)
    assert {name: rows.size for name, rows in groups_by(rare, category)} == {
        "a": 30, "missing": 30, "others": 29,
    }  # fmt: skip
    single = pl.Series(["a"] * 30 + ["b"])  # one row alone is no group
    assert [name for name, _ in groups_by(single, category)] == ["a"]
    assert [name for name, _ in groups_by(single, category, fewest=1)] == ["a", "b"]
    few, many = pl.Series(range(20)), pl.Series(range(21))
    number_ = ColumnMeaning("n", "number")
    assert [rows.size for _, rows in groups_by(few, number_)] == [20]  # all of them rare
    assert [rows.size for _, rows in groups_by(many, number_)] == [5, 4, 4, 4, 4]


def scored(points: list[float], held: list[bool], echo: float, law: Any = None) -> Scored:
    return Scored(Predictions(np.array(points), law), np.array(held), 0.0, echo)


def test_the_noise_of_other_rows_counts_as_a_share_of_what_predictions_vary() -> None:
    some = scored([1.0, 3.0, 5.0, 7.0], [True, False, False, False], 2.0)
    # E (f − 4)² = (9 + 1 + 1 + 9) / 4
    assert some.noise(4.0) == pytest.approx(0.4)
    assert some.dependence(4.0) == pytest.approx(1 + 0.75 * 0.4)
    assert some.misfit(4.0) == pytest.approx(0.24 * math.sqrt(1.8))
    law = np.full((4, 2), 0.5)
    with_law = scored([1.0, 3.0, 5.0, 7.0], [True] * 4, 2.0, law)
    assert with_law.misfit(4.0) == pytest.approx(0.12 * math.sqrt(1.8))
    assert with_law.dependence(4.0) == 1.0
    assert scored([4.0, 4.0], [True, False], 1.0).noise(4.0) == 1.0


def test_errors_against_true_labels_are_told_and_written() -> None:
    errors = TrueErrors(np.zeros(2), 2.0, 1.0, 8.0, None, 0.5, {"test_auc": 0.8, "constant_x": 3})
    assert errors.r2 == 0.75
    assert errors.lines == ["true test MSE 2, MAE 1, R² 0.75", "true AUC 0.8; the constant's x 3"]
    assert errors.to_json() == {
        "test_mse": 2.0, "test_mae": 1.0, "constant_mse": 8.0, "test_r2": 0.75,
        "nonprivate_mae": 0.5, "test_auc": 0.8, "constant_x": 3,
    }  # fmt: skip
    alike = replace(errors, constant_mse=0.0, fitting={})
    assert alike.r2 is None
    assert alike.lines == ["true test MSE 2, MAE 1, R² none, as all labels are alike"]
    assert "test_r2" not in alike.to_json()


@pytest.mark.parametrize(
    ("text", "label", "said"),
    [
        ('{"test_mse": 4, "test_mae": 1.5}', "", ""),
        ('{"labels": [{"name": "a"}, {"name": "b", "test_mse": 4, "test_mae": 1.5}]}', "b", ""),
        (
            '{"labels": [{"name": "a", "test_mse": 4, "test_mae": 1.5}]}',
            "b",
            "holds no test errors",
        ),
        ('{"test_mse": 4}', "", "holds no test errors"),
        ('{"test_mse": null, "test_mae": 1}', "", "holds no test errors"),
        ("{", "", "holds no test errors"),
        (None, "", "metrics.json cannot be read: No such file"),
    ],
)
def test_a_model_of_true_labels_is_known_by_its_metrics(
    tmp_path: Path, text: str | None, label: str, said: str
) -> None:
    path = tmp_path / "metrics.json"
    if text is not None:
        path.write_text(text, "utf-8")

    def measured() -> TrueErrors:
        return TrueErrors.measured(np.array([1.0, 2.0]), np.array([3.0, 1.0]), 0.0, path, label)

    if said:
        check_refused(measured, DataError, said)
        return
    found = measured()
    assert (found.mse, found.mae, found.constant_mse) == (2.5, 1.5, 5.0)
    assert (found.nonprivate_mse, found.nonprivate_mae, found.fitting) == (4.0, 1.5, {})
    assert found.labels.tolist() == [3.0, 1.0]


def test_metrics_of_several_labels_say_what_they_have_in_common_once() -> None:
    def scores(**changes: Any) -> Any:
        metrics = {"rows": 9, "epsilon": 1.0, "epoch": "e", "estimated_mse": 2.0, **changes}
        return SimpleNamespace(to_json=lambda: metrics, warnings=changes.get("warnings", []))

    one = scores(warnings=["few"])
    assert labels_json({"": one}) == one.to_json()
    other = scores(epoch="f", estimated_mse=2.0)
    found = labels_json({"a": one, "b": other})
    assert {name: found[name] for name in ("rows", "epsilon")} == {"rows": 9, "epsilon": 1.0}
    assert "epoch" not in found
    assert "estimated_mse" not in found
    assert [label["name"] for label in found["labels"]] == ["a", "b"]
    assert found["labels"][1] == {"name": "b", **other.to_json()}
    assert found["warnings"] == ["a: few"]
