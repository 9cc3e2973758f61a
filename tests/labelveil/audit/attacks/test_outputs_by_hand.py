"""What outputs tell of labels and rows of each other, worked out a second time by enumeration or
loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.audit.attacks.every_label import (
    Counts,
    all_runs,
    every_label,
    pair_suspects,
    pilot_runs,
    rare_suspects,
)
from labelveil.audit.attacks.laws import same_noise_check
from labelveil.audit.attacks.one_run import (
    OneRun,
    bit_patterns,
    lowest_set_bit,
    views_of,
)
from labelveil.audit.attacks.rows_apart import (
    Rows,
    agreement,
    cells_of,
    commonest_share,
    find_repeat,
    influence,
    influence_in_calls,
    largest_sum,
    window_rows,
)
from labelveil.audit.mechanism.cold_start import seeds_check
from labelveil.audit.mechanism.exact import correlation
from labelveil.audit.power import (
    bernstein_threshold,
    clopper_pearson_upper,
    guess_probability,
)
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN

RNG = np.random.default_rng


def test_starts_that_repeat_are_counted() -> None:
    digests = [b"a"] * 3 + [b"b"] * 2 + [bytes([n]) for n in range(20)]
    found = seeds_check(digests, 64, "forks")
    assert (found.verdict, found.bound) == (FAIL, math.inf)
    assert found.details == {"starts": 25, "repeated": 3}
    assert "3 of them repeat another's noise, one up to 3 times" in found.found
    seeds = float(found.found.rpartition("about ")[2].split()[0].replace(",", ""))
    # as many seeds as are expected to show three repeats
    assert 25 - seeds * (1 - (1 - 1 / seeds) ** 25) == pytest.approx(3, abs=0.1)
    right = seeds_check([bytes([n]) for n in range(100)], 64, "forks")
    assert (right.verdict, right.bound, right.found) == (PASS, 0.0, "No two drew the same noise.")
    # 100 starts show N seeds twice with 95 % where 100 · 99 / (2 ln 20) ≥ N
    assert right.power[0].least == math.floor(math.log2(100 * 99 / (2 * math.log(20))))


def test_a_stretch_of_equal_rows_is_longer_than_chance_makes_it() -> None:
    share = float(guess_probability(1.0, 3))
    rows = randomized_response_rows(3, 1.0)
    channel = FiniteChannel(np.arange(3.0), np.arange(3.0), rows)
    books: Any = type("Book", (), {"channels": [channel]})()
    rng = RNG(2)
    codes = rng.integers(0, 3, 5000)
    chance = math.ceil(math.log(5000 / 1e-6) / -math.log(share))
    for stretch in (chance - 1, chance):
        again = (codes + 1) % 3
        again[100 : 100 + stretch] = codes[100 : 100 + stretch]
        found = same_noise_check(codes, again, books)
        assert found.verdict is (FAIL if stretch >= chance else PASS)
        assert found.found == f"The longest stretch of equal outputs is {stretch:,} rows."
        assert found.power[0].least == chance
    few = math.ceil(math.log(20 / 1e-6) / -math.log(share))  # of twenty rows, more than there are
    assert few > 20
    assert same_noise_check(codes[:20], codes[:20], books).verdict is UNKNOWN
    assert same_noise_check(codes, (codes + 1) % 3, books).found.endswith("is 0 rows.")


def test_noise_that_goes_with_a_row_is_named() -> None:
    rng = RNG(3)
    noise = rng.integers(-40, 41, (600, 3))
    outputs = rng.integers(0, 2, (600, 5))
    assert not correlation(noise, outputs).exceeds
    outputs[:, 4] = noise[:, 1] > 0
    found = correlation(noise, outputs)
    assert found.exceeds
    assert found.where == "row 4 and the sign of the noise on cell 1"
    assert found.sums == 3 * 3 * 5
    outputs[:, 4] = noise[:, 2] % 2
    assert correlation(noise, outputs).where == "row 4 and whether the noise is odd on cell 2"
    outputs[:, 4] = np.abs(noise[:, 0]) > np.median(np.abs(noise))
    assert correlation(noise, outputs).where == "row 4 and whether the noise is large on cell 0"


def test_outputs_are_looked_at_as_they_are_sent() -> None:
    floats = np.array([0.0, -0.0, 1.0, np.nan])
    assert len(np.unique(bit_patterns(floats))) == 4
    assert bit_patterns(np.array([1, 2])).tolist() == [1, 2]
    few = np.resize(np.arange(5), 400)
    views = {view.name: view for view in views_of(few)}
    assert [*views] == ["output"]
    assert views["output"].encode(np.array([4, 0, 9, -1])).tolist() == [4, 0, 5, 5]
    assert views["output"].size == 6
    many = RNG(4).random(1000)
    named = {view.name: view for view in views_of(many)}
    assert [*named] == ["quantile", "lowest set bit"]
    codes = named["quantile"].encode(many)
    assert named["quantile"].size == 64
    assert np.bincount(codes, minlength=64).max() <= 17
    assert np.array_equal(np.argsort(many)[:15], np.argsort(codes * 1.0 + many / 10)[:15])
    repeated = np.repeat(np.arange(100.0), 8)
    assert [view.name for view in views_of(repeated)] == ["output", "quantile", "lowest set bit"]
    assert "output" not in {view.name for view in views_of(np.arange(100.0))}


@pytest.mark.parametrize(
    ("value", "bit"),
    [(1.0, 0), (3.0, 0), (6.0, 1), (0.5, -1), (0.75, -2), (-40.0, 3), (1 + 2**-52, -52)],
)
def test_the_lowest_bit_of_a_float(value: float, bit: int) -> None:
    assert lowest_set_bit(np.array([value])).tolist() == [100 + bit]
    assert lowest_set_bit(np.array([2.0**60, 2.0**-200])).tolist() == [129, 0]


def test_labels_are_ranked_by_what_tells_them_apart() -> None:
    """Label 2 of four gives output 1 more often, and label 3 alone a rare one."""
    view = views_of(np.resize(np.arange(3), 100))[0]
    counts = Counts([view], 4)
    for label, (zeros, ones, twos) in enumerate(
        [(500, 500, 0), (500, 500, 0), (200, 800, 0), (495, 495, 10)]
    ):
        outputs = np.repeat([0, 1, 2], [zeros, ones, twos])
        for half in (outputs[::2], outputs[1::2]):
            counts.add(np.full(500, label), half)
    assert counts.runs.tolist() == [1000] * 4
    assert counts.tables[0][2].tolist() == [200, 800, 0, 0]
    best = pair_suspects(counts, 100_000)
    pairs = [(int(each.likely[0]), int(each.unlikely[0])) for each in best]
    assert len(pairs) == len(set(pairs))
    assert {(0, 3), (3, 0)} <= set(pairs)  # the outermost are always among them
    by_pair = dict(zip(pairs, best, strict=True))
    told = by_pair[0, 2] if (0, 2) in by_pair else by_pair[1, 2]
    assert told.members.tolist()[:2] == [True, False]
    # of 100,000 runs half are of either label: the bound at the gate that these rates give
    right, wrong = 50_000 * 500.5 / 1001, 50_000 * 200.5 / 1001
    lower = stats.beta.ppf(1e-6, right, wrong + 1)
    assert told.score == pytest.approx(math.log(lower / (1 - lower)), rel=0.01)
    assert [each.score for each in best] == sorted((each.score for each in best), reverse=True)
    rare = rare_suspects(counts, 1.0)[0]
    assert rare.likely.tolist() == [3]
    assert rare.unlikely.tolist() == [0, 1, 2]
    assert rare.members.tolist() == [False, False, True, False]
    odds = math.e / 3
    assert rare.score == pytest.approx(-math.log(stats.binom.sf(9, 10, odds / (1 + odds))))


def test_pilots_grow_with_labels_and_no_more_than_twentyfold() -> None:
    assert pilot_runs(1_000_000, 2) == 1_000_000
    assert pilot_runs(1_000_000, 10) == 1_500_000
    assert pilot_runs(1_000_000, 400) == 20_000_000
    assert pilot_runs(10_000, 400) == 200_000
    assert all_runs(1000, 2) == 1000 + 3 * 1000 + 1500


def test_what_tells_labels_fully_is_found_with_its_runs() -> None:
    drawn: list[int] = []

    def sent(labels: Any) -> Any:
        drawn.append(labels.size)
        return labels.astype(np.int64)

    found = every_label(sent, np.arange(3.0), 1.0, 2001)
    assert drawn == [2001, 2001, 2001, 2001, 3001]
    assert sum(drawn) == all_runs(2001, 3)
    assert (found.pilot, found.piloted.tolist()) == (2001, [0, 1, 2])
    assert len(found.tested) == 3
    (suspect, run), *others = found.tested
    assert found.bound == run.bound > 3
    assert all(other.bound <= run.bound for _, other in others)
    assert run.correct == run.guesses
    assert run.tests == 3
    assert found.shown == max(each.shown for _, each in found.tested)
    assert suspect.members.any()
    assert [power.fault.split()[0] for power in found.power] == ["excess", *["probability"] * 2]
    assert all(power.least > 0 for power in found.power)
    assert isinstance(run, OneRun)


def test_of_many_labels_a_random_sample_is_piloted() -> None:
    """With the outermost two, each at its own place."""
    asked: set[float] = set()

    def sent(labels: Any) -> Any:
        asked.update(labels.tolist())
        return (labels >= 700).astype(np.int64)

    labels = np.arange(402.0) * 2
    found = every_label(sent, labels, 1.0, 1000)
    piloted = found.piloted.tolist()
    assert (len(piloted), len(set(piloted)), piloted[0], piloted[-1]) == (400, 400, 0, 401)
    assert piloted == sorted(piloted)
    assert asked <= set(labels[piloted].tolist())
    assert found.bound > 1
    every = every_label(sent, labels[:400], 1.0, 1000)
    assert every.piloted.tolist() == [*range(400)]


def test_outputs_are_put_in_cells() -> None:
    assert cells_of(np.array([5, 5, 9, -1])).tolist() == [1, 1, 2, 0]
    assert cells_of(np.arange(8)).tolist() == [*range(8)]
    many = cells_of(np.arange(800) * 0.5)
    assert np.bincount(many).tolist() == [100] * 8
    kinds = np.array([0, 0, 1, 1, 1, 1])
    rows = Rows.from_outputs(np.array([3, 4, 4, 4, 4, 3]), kinds)
    assert rows.laws.tolist() == [[0.5, 0.5], [0.25, 0.75]]
    assert rows.centred(np.array([0.0, 1.0])).tolist() == [-0.5, 0.5, 0.25, 0.25, 0.25, -0.75]
    assert rows.variance(np.array([0.0, 1.0])) == pytest.approx(2 * 0.25 + 4 * 0.1875)
    order = np.array([5, 0, 1, 2, 3, 4])
    assert rows.reordered(order).cells.tolist() == [0, 0, 1, 1, 1, 1]
    stated = Rows.by_laws(np.arange(16), np.zeros(16, np.int64), np.full((1, 16), 1 / 16))
    assert stated.laws.tolist() == [[0.125] * 8]
    assert stated.cells.tolist() == [at // 2 for at in range(16)]
    assert stated.stated
    assert not rows.stated


def test_agreement_is_the_largest_autocovariance() -> None:
    """By a loop over all lags, against Freedman's threshold for counted laws."""
    rng = RNG(5)
    codes, n = rng.integers(0, 3, 300), 300
    rows = Rows.from_outputs(codes)
    found = agreement(rows)
    law = np.bincount(codes, minlength=3) / n
    centred = np.eye(3)[codes] - law
    sums = [abs(float((centred[:-lag] * centred[lag:]).sum())) for lag in range(1, n)]
    assert found.size == pytest.approx(max(sums), rel=1e-3)
    assert found.where == f"lag {int(np.argmax(sums)) + 1:,}"
    assert found.sums == n - 1
    spread = np.diag(law) - np.outer(law, law)
    level = 1e-6 / (4 * (n - 1))
    variance = 1.02 * n * float((spread**2).sum())
    apart = 1 + 2 * math.sqrt(-math.log(level))
    threshold = float(bernstein_threshold(variance, 2.0, level)) + 3 * apart**2
    assert found.threshold == pytest.approx(threshold)
    stated = agreement(Rows.by_laws(codes, np.zeros(n, np.int64), law[None]))
    assert stated.threshold == pytest.approx(threshold - 3 * apart**2)
    needed = threshold + stats.norm.isf(0.05) * math.sqrt(variance)
    # a word that comes again gives the same output: Σ p (1 - p) of agreement
    certain = n * float((law * (1 - law)).sum())
    assert found.least_share == pytest.approx(needed / certain if needed <= certain else math.inf)


def test_influence_is_the_largest_circular_sum() -> None:
    rng = RNG(6)
    n = 240
    bits = rng.integers(0, 2, n)
    outputs = (rng.random(n) < 0.3 + 0.4 * bits).astype(np.int64)
    rows = Rows.from_outputs(outputs, bits)
    signs = np.array([[-1.0, 1.0]])
    found = influence(rows, signs, np.zeros(2, np.int64), [(2, 5)])
    centred = rows.centred(np.array([0.0, 1.0]))
    label = signs[0][bits]
    agree = label * np.roll(label, -2) * np.roll(label, -5)
    best = {}
    for name, feature in (("the label", label), ("whether labels 2 and 5 apart agree,", agree)):
        for lag in range(n):
            best[name, lag] = abs(float(centred @ np.roll(feature, lag)))
    (name, lag), size = max(best.items(), key=lambda each: each[1])
    assert found.size == pytest.approx(size, rel=1e-3)
    where = f"{lag:,} rows before" if lag <= n // 2 else f"{n - lag:,} rows behind"
    assert found.where == f"{name} {where}"
    assert found.sums == 2 * n
    level = 1e-6 / (2 * n * 2)
    variance = 1.02 * float(centred @ centred)
    slack = (math.sqrt(2) + math.sqrt(-8 * math.log(level))) ** 2 / 2
    largest = float(np.abs(centred).max())
    threshold = float(bernstein_threshold(variance, largest, level)) + slack
    assert found.threshold == pytest.approx(threshold)
    needed = threshold + stats.norm.isf(0.05) * math.sqrt(variance)
    assert found.least_share == pytest.approx(needed / (n / 2) if needed <= n / 2 else math.inf)


def test_rows_of_small_calls_are_compared_pair_by_pair() -> None:
    """Row 3's output is whether rows 0 and 2 agree; then it is row 5's label."""
    rng = RNG(7)
    calls, size = 3000, 8
    bits = rng.integers(0, 2, (calls, size))
    outputs = rng.integers(0, 2, (calls, size))
    signs = np.array([-1.0, 1.0])

    def found(outputs: Any) -> Any:
        return influence_in_calls(Rows.from_outputs(outputs.ravel(), bits.ravel()), calls, signs)

    right = found(outputs)
    assert not right.exceeds
    # of one set of cells: every row with 8 labels, and with 7, 6, 5 and 4 pairs of them
    assert right.sums in (8 * (8 + 7 + 6 + 5 + 4), 2 * 8 * (8 + 7 + 6 + 5 + 4))
    agree = outputs.copy()
    agree[:, 3] = bits[:, 0] == bits[:, 2]
    assert found(agree).where == "the output of row 3 of a call, and whether rows 0 and 2 agree"
    other = outputs.copy()
    other[:, 3] = bits[:, 5]
    assert found(other).where == "the output of row 3 of a call, and row 5's label"
    own = outputs.copy()
    own[:, 3] = bits[:, 3]
    assert not found(own).exceeds


def test_the_largest_sum_is_of_all_pairs_that_are_not_skipped() -> None:
    rng = RNG(8)
    centred = rng.choice([-1.0, 1.0], (500, 3))
    feature = rng.choice([-1.0, 1.0], (500, 4))
    feature[:, 2] = centred[:, 1]
    words = lambda name, row, column: f"{name} {row} {column}"  # noqa: E731
    found = largest_sum(centred, {"f": feature}, words)
    assert (found.size, found.where, found.sums) == (500.0, "f 1 2", 12)
    threshold = float(bernstein_threshold(1.02 * 500, 1.0, 1e-6 / 24))
    assert found.threshold == pytest.approx(threshold)
    needed = threshold + stats.norm.isf(0.05) * math.sqrt(1.02 * 500)
    assert found.least_share == pytest.approx(needed / 250)
    skipped = largest_sum(
        centred, {"f": feature}, words, 1e-6, lambda name, row, other: (row == 1) & (other == 2)
    )
    assert skipped.size < 100
    assert str(found).startswith(f"The largest is {500 / threshold:.2f} of what")


def test_windows_are_long_enough_to_mean_something() -> None:
    for share, pairs in ((0.5, 1e6), (0.9, 1e3), (0.99, 1e9)):
        window = window_rows(share, pairs)
        assert pairs * share**window <= 1e-6 < pairs * share ** (window // 2)
        assert window & (window - 1) == 0
    assert window_rows(1.0, 10) == window_rows(0.5, 0.5) == 0
    outputs, kinds = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 0, 0, 1, 1])
    assert commonest_share(outputs) == clopper_pearson_upper(3, 6, 1e-6)
    assert commonest_share(outputs, kinds) == max(
        clopper_pearson_upper(3, 4, 1e-6), clopper_pearson_upper(1, 2, 1e-6)
    )


@pytest.mark.parametrize("lag", [200, 1111, 3000])
def test_the_first_window_that_comes_again_is_named(lag: int) -> None:
    outputs = RNG(9).integers(0, 4, 6000)
    assert not find_repeat(outputs).exists
    window = find_repeat(outputs).window
    share = commonest_share(outputs)
    assert window == window_rows(share, 6000**2 / 2)
    outputs[1000 + lag : 1000 + lag + window] = outputs[1000 : 1000 + window]
    found = find_repeat(outputs)
    assert (found.lag, found.window) == (lag, window)
    assert 1000 - 3 <= found.first <= 1000
    assert find_repeat(outputs[: window * 16 - 1]).window == 0
