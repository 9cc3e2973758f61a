"""Tails, thresholds and sums of the attacks, worked out a second time by enumeration or loops."""

from __future__ import annotations

import hashlib
import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from labelveil.audit.attacks import laws
from labelveil.audit.attacks.exact_channel import WORDS, count_weights, exp_series, worst_ratio
from labelveil.audit.attacks.implementation import (
    byte_equality_check,
    mantissa_check,
    permutation_check,
    sources_of,
    static_check,
)
from labelveil.audit.attacks.one_run import (
    bound_guesses,
    draw_secrets,
    learn_guesser,
    one_run,
    rare_event,
    uniform,
)
from labelveil.audit.attacks.replay import (
    Published,
    Replay,
    function_check,
    range_check,
    replay,
    sensitivity_check,
    support_check,
)
from labelveil.audit.mechanism.exact import event_probability, histogram_event, joint_audit
from labelveil.audit.power import (
    guess_probability,
    one_run_bound,
)
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.release.manifest import Manifest
from tests.common.release.releases import make_release
from tests.effort import effort
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN

RNG = np.random.default_rng


def test_outputs_are_compared_with_each_binomial_law() -> None:
    counts = np.array([[40, 60], [75, 25]])
    stated = np.array([[0.5, 0.5], [0.5, 0.5]])
    tails = [
        min(stats.binom.cdf(n, 100, 0.5), stats.binom.sf(n - 1, 100, 0.5)) for n in (40, 60, 75, 25)
    ]
    p, label, output = laws.output_probability(counts, stated)
    assert p == pytest.approx(2 * 4 * min(tails))
    assert (label, output) in ((1, 0), (1, 1))
    assert laws.output_probability(np.array([[50, 50]]), stated[:1])[0] == 1.0
    for runs, tests, law in ((1000, 8, 0.2), (300, 2, 0.0)):
        least = laws.detectable_probability(runs, tests, 1e-6, law)
        critical = next(
            n for n in range(runs + 1) if stats.binom.sf(n - 1, runs, law) <= 1e-6 / (2 * tests)
        )
        assert stats.binom.sf(critical - 1, runs, least) == pytest.approx(0.95)
    assert laws.detectable_probability(3, 1, 1e-6, 0.5) == 1.0


def discrete_laplace(scale: float, reach: int) -> tuple[np.ndarray[Any, Any], ...]:
    values = np.arange(-reach, reach + 1)
    mass = np.exp(-np.abs(values) / scale)
    return values, mass / mass.sum()


@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_bounds_on_noise_are_the_least_exponentials(scale: float) -> None:
    """Chernoff's bound over a grid of rates, with moments summed from the law's table."""
    values, mass = discrete_laplace(scale, int(80 * scale) + 20)

    def least(total: float, cells: int, rates: np.ndarray[Any, Any]) -> float:
        moments = (mass * np.exp(np.outer(rates, np.abs(values)))).sum(axis=1)
        return float(np.exp(min(0.0, (cells * np.log(moments) - rates * total).min())))

    for factor in (0.3, 0.9, 1.2, 2.0):
        mean = float(mass @ np.abs(values))
        noise = np.full(50, factor * mean)
        little, much = laws.noise_probability(noise, scale)
        down = -np.geomspace(1e-4 / scale, 50, 1000)
        up = np.linspace(0, 0.98 / scale, 1000)
        assert little == pytest.approx(least(noise.sum(), 50, down), rel=1e-3, abs=1e-12)
        assert much == pytest.approx(least(noise.sum(), 50, up), rel=1e-3, abs=1e-12)
        assert (little == 1.0) is (factor > 1)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_shift_of_noise_to_one_side_is_improbable(sign: int) -> None:
    """By Chernoff's bound of Σ x/s, whose moments are summed from each law's table."""
    scales = np.array([0.8, 2.0, 5.0])
    noise = sign * np.array([4.0, 6.0, 30.0])
    total = float(np.abs((noise / scales).sum()))
    best = math.inf
    for rate in np.linspace(0.01, 0.99, 99):
        moment = 0.0
        for scale in scales:
            values = np.arange(-int(4000 * scale), int(4000 * scale) + 1)
            turned = np.exp((rate * values - np.abs(values)) / scale).sum()
            moment += math.log(turned / np.exp(-np.abs(values) / scale).sum())
        best = min(best, moment - rate * total)
    assert laws.shift_probability(noise, scales) == pytest.approx(2 * math.exp(best), rel=1e-3)
    assert laws.shift_probability(np.array([1.0, -1.0]), np.array([2.0, 2.0])) == 1.0


def test_each_aspect_of_noise_has_its_own_tail() -> None:
    scale = 2.5
    values, mass = discrete_laplace(scale, 400)
    noise = np.array([[0, 2, -1], [0, 4, 3], [0, -6, 5], [1, 8, -2]])
    tails = laws.noise_tails(noise, scale)
    even = float(mass[values % 2 == 0].sum())
    zero = float(mass[values == 0][0])

    def two_sided(count: int, runs: int, chance: float) -> float:
        low = sum(stats.binom.pmf(k, runs, chance) for k in range(count + 1))
        high = sum(stats.binom.pmf(k, runs, chance) for k in range(count, runs + 1))
        return min(1.0, 2 * min(low, high))

    assert tails["how many even"] == pytest.approx(two_sided(8, 12, even))
    assert tails["how many positive"] == pytest.approx(two_sided(6, 9, 0.5))
    # three of four in the first cell, of three cells
    assert tails["how often no noise in one cell"] == pytest.approx(
        min(1.0, 3 * stats.binom.sf(2, 4, zero))
    )
    assert (tails["so little"], tails["so much"]) == laws.noise_probability(noise, scale)
    same = np.full((30, 4), 1)
    places = np.minimum((8 * np.cumsum(mass)).astype(int), 7)
    where = places[values == 1][0]
    chance = float(mass[places == where].sum())
    assert laws.noise_tails(same, scale)["such a shape"] == pytest.approx(
        min(1.0, 8 * two_sided(120, 120, chance)), rel=1e-6
    )
    # of noise that nobody would wonder at several counts have none that is less likely
    usual = laws.noise_tails(np.array([[0, 1, -1, 2, -2, 4, -4, 9]]), scale)
    assert (usual["how often no noise in one cell"], usual["such a shape"]) == (1.0, 1.0)


def test_noise_that_is_too_narrow_is_found_from_the_stated_share_on() -> None:
    scale, cells = 10.0, 400
    least = laws.detectable_narrowness(cells, scale, 1e-6)
    for share, found in ((least * 1.02, True), (least * 0.98, False)):
        values, mass = discrete_laplace(scale * (1 - share), 900)
        mean = float(mass @ np.abs(values))
        spread = math.sqrt(float(mass @ values**2.0) - mean**2)
        most = mean + stats.norm.isf(0.05) * spread / math.sqrt(cells)
        assert (laws.noise_probability(np.full(cells, most), scale)[0] < 1e-6) is found
    assert math.isinf(laws.detectable_narrowness(3, scale, 1e-6))


def test_noise_of_many_tables_is_judged_at_a_shared_level() -> None:
    """Six aspects of each kind of table share a millionth, and n groups of tables that."""
    rng = RNG(0)
    drawn = np.rint(rng.laplace(0, 20, (8, 30))).astype(np.int64)
    tables = [("counts", 20.0, row) for row in drawn]
    right = laws.noise_check(tables, tried="Tried.", spent=0.5, claimed=0.5)
    assert right.verdict is PASS
    assert right.tried.startswith("Tried. What remained")
    assert "in counts of 30 cells of scale 20" in right.found
    assert right.found.endswith("Stated scales spend 0.5 of ε = 0.5.")
    assert f"{1e-6 / 6:.2g} would be refuted" in right.found
    assert right.confidence == 1 - 1e-6
    assert right.power[0].fault == "share by which noise is too narrow"
    assert right.power[0].least == laws.detectable_narrowness(240, 20.0, 1e-6 / 6)
    more = laws.noise_check([*tables, ("other", 9.0, drawn[0])], tried="", groups=4)
    assert f"{1e-6 * 2 / (12 * 4):.2g} would be refuted" in more.found
    assert laws.noise_check(tables, tried="", spent=0.6, claimed=0.5).verdict is FAIL
    assert laws.noise_check(tables, tried="", spent=0.6).verdict is PASS
    still = drawn * (np.arange(30) != 4)
    many = [("counts", 20.0, row) for row in np.tile(still, (4, 1))]
    found = laws.noise_check(many, tried="")
    assert found.verdict is FAIL
    assert "how often no noise in one cell" in found.found
    assert ("cells that never have noise", 1.0) in [(p.fault, p.least) for p in found.power]
    # the largest tables' own law says whether that would be seen
    for scale, seen in ((0.1, True), (20.0, True)):
        odd = [("small", scale, np.ones(3, dtype=np.int64))] * 8
        power = laws.noise_check([*odd, *many], tried="").power
        assert ("cells that never have noise" in [each.fault for each in power]) is seen
        assert power[0].least == laws.detectable_narrowness(32 * 30, 20.0, 1e-6 * 2 / (12 * 2))
    narrow = [("counts", 20.0, row // 3) for row in np.tile(drawn, (4, 1))]
    assert laws.noise_check(narrow, tried="").verdict is FAIL


WIDE = make_release(50, points=40)[0]


def with_counts(counts: list[int], **changed: Any) -> Manifest:
    prior = WIDE.prior.model_copy(update={"noisy_counts": counts, **changed})
    return WIDE.model_copy(update={"priors": [prior]})


def test_histograms_with_one_noise_are_told_by_their_equal_cells() -> None:
    """Two noises of scale s differ by 0 with a probability that is summed here."""
    first = with_counts([*range(40)], scale="3")
    _, mass = discrete_laplace(3.0, 300)
    chance = float((mass**2).sum())
    needed = next(n for n in range(41) if stats.binom.sf(n - 1, 40, chance) <= 1e-6)
    for same in (0, needed - 1, needed, 40):
        other = with_counts([i if i < same else i + 100 for i in range(40)], scale="3")
        found, (power,) = laws.same_histograms(first, [other], 1e-6)
        assert found is (same >= needed)
        assert power.least == needed
        # of two that are compared each has half of the level
        apart = with_counts([i + 100 for i in range(40)], scale="3")
        twice, _ = laws.same_histograms(first, [apart, other], 1e-6)
        assert twice is bool(stats.binom.sf(same - 1, 40, chance) < 0.5e-6)
    for nothing in (
        with_counts([*range(39)], scale="3"),
        with_counts([*range(40)], noise="randomized-response"),
        first,
    ):
        assert laws.same_histograms(first, [nothing], 1e-6) == (False, ())
    wider = with_counts([*range(40)], scale="300")
    for one, other in ((first, wider), (wider, first)):
        _, (power,) = laws.same_histograms(one, [other], 1e-6)
        assert power.least == needed  # the narrower noise is the more often alike
    few, others = (with_counts([*range(at, at + 3)], scale="3") for at in (0, 9))
    _, (power,) = laws.same_histograms(few, [others], 1e-6)
    assert math.isinf(power.least)
    # what is decoded has no noise of its own, beside what has
    both = []
    for each in (first, with_counts([i + 100 for i in range(40)], scale="3")):
        (prior,) = each.priors
        decoded = prior.model_copy(update={
            "labels": ["other"], "noise": "randomized-response", "noisy_counts": [*range(40)],
        })  # fmt: skip
        both.append(each.model_copy(update={"priors": [decoded, prior]}))
    found, powers = laws.same_histograms(both[0], [both[1]], 1e-6)
    assert (found, len(powers)) == (False, 1)


@settings(max_examples=effort(15, 200))
@given(st.data())
def test_a_sampler_is_counted_to_the_last_word(data: st.DataObject) -> None:
    """Whole channels of any cuts: runs of words that are longer than a stratum are all found."""
    longer = st.integers(1 << 53, WORDS - (1 << 53))
    rows = []
    for _ in range(data.draw(st.integers(1, 3))):
        cuts = sorted(data.draw(st.sets(longer, max_size=3)))
        edges = [0, *cuts, WORDS]
        if min(b - a for a, b in itertools.pairwise(edges)) < 1 << 53:
            return
        rows.append(edges)
    outputs = data.draw(st.lists(st.sampled_from([7, 3, 9, 1]), min_size=4, max_size=4))

    def sampler(labels: Any, words: Any) -> Any:
        label = int(labels[0])
        inner = np.array(rows[label][1:-1], dtype=np.uint64)
        return np.array(outputs)[np.searchsorted(inner, words, side="right")]

    counted = count_weights(sampler, len(rows), 1 << 12)
    for edges, weights in zip(rows, counted.weights, strict=True):
        sizes = dict.fromkeys(counted.outputs, 0)
        for at, (a, b) in enumerate(itertools.pairwise(edges)):
            sizes[outputs[at]] += b - a
        assert weights == tuple(sizes[value] for value in counted.outputs)
    assert list(counted.outputs) == sorted(counted.outputs)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_worst_ratio_is_the_largest_of_all(rows: list[list[int]]) -> None:
    found = worst_ratio(rows, 1)
    worst, excluded = Fraction(1), False
    for column in zip(*rows, strict=True):
        for high, low in itertools.permutations(column, 2):
            if low:
                worst = max(worst, Fraction(high, low))
            excluded |= high > 0 == low
    assert found.ratio == (None if excluded else worst)
    assert found.holds is (not excluded and worst <= Fraction(math.e))
    column = [row[found.output] for row in rows]
    if not excluded and worst > 1:
        assert Fraction(max(column), min(column)) == worst
    if excluded:
        assert math.isinf(found.epsilon)
        assert min(column) == 0 < max(column)


def test_the_exponential_is_a_sum_of_its_first_sixty_terms() -> None:
    terms = [Fraction(3, 2) ** j / math.factorial(j) for j in range(60)]
    assert exp_series(1.5) == sum(terms)
    assert exp_series(0) == 1
    assert float(exp_series(30)) == pytest.approx(math.exp(30), rel=1e-15)
    with pytest.raises(ValueError, match="epsilon=-1 must be >= 0"):
        exp_series(-1)


def test_same_bytes_are_asked_for_three_times() -> None:
    answers = iter([b"a", b"a", b"b"])
    found = byte_equality_check(lambda: next(answers))
    digest = hashlib.sha256(b"a").hexdigest()
    assert found.verdict is FAIL
    assert found.found == f"2 of 3 answers are different; SHA-256 {digest[:16]}…"
    assert found.details["sha256"] == [digest, digest, hashlib.sha256(b"b").hexdigest()]
    assert byte_equality_check(lambda: b"a").found == (
        f"All answers are the same bytes, SHA-256 {digest[:16]}…."
    )


def test_rank_correlation_is_that_of_a_table() -> None:
    rng = RNG(1)
    labels = rng.permutation(400).astype(float)
    found = permutation_check(labels)
    expected = stats.spearmanr(labels, np.arange(400)).statistic
    assert found.details["correlation"] == pytest.approx(expected)
    assert found.details["p"] == pytest.approx(2 * stats.norm.sf(abs(expected) * math.sqrt(399)))
    assert found.verdict is PASS
    least = (stats.norm.isf(0.5e-6) + stats.norm.isf(0.05)) / math.sqrt(399)
    assert found.power[0].least == pytest.approx(least)
    assert permutation_check(np.sort(labels)).verdict is FAIL
    assert permutation_check(np.sort(labels)[::-1]).verdict is FAIL
    assert abs(permutation_check(np.repeat([0.0, 1.0], 10)).details["correlation"]) > 0.5


def test_many_distinct_outputs_are_noise_in_floating_point() -> None:
    for size, most in ((4039, 100), (4000, 100), (79, 2)):
        secrets = draw_secrets(size)
        few = mantissa_check(np.resize(np.arange(1.0 * most), size), secrets, 1.0)
        assert (few.verdict, few.details["distinct_outputs"]) == (PASS, most)
        many = mantissa_check(np.resize(np.arange(most + 1.0), size), secrets, 1.0)
        assert many.verdict is FAIL
        assert many.found.startswith(f"{most + 1} distinct outputs in {size:,}: noise in floating")
    secrets = draw_secrets(4000)
    # sums with wide noise have as many values as one likes, all of them whole
    assert mantissa_check(np.arange(4000) % 101, secrets, 1.0).verdict is PASS
    told = mantissa_check(secrets.astype(float), secrets, 1.0)
    assert told.verdict is FAIL


def test_uses_of_generators_are_named_by_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import numpy as np\nimport random\nfrom torch import rand as r, ones\n"
        "import numpy.random as nr\n\nx = np.random.rand()\ny = nr.default_rng\nz = np.zeros(2)\n"
        "z.random.rand()\n"
    )
    found = static_check([path], "it")
    assert found.verdict is FAIL
    assert sorted(found.details["uses"]) == [
        "a.py:2 random", "a.py:3 torch.rand", "a.py:4 numpy.random", "a.py:6 np.random",
        "a.py:6 np.random.rand", "a.py:7 nr.default_rng",
    ]  # fmt: skip
    path.write_text(
        "import randomness\nfrom torch import random_split, ones\nfrom .numpy import random\n"
        "from . import random\n"
    )
    clean = static_check([path], "it")
    assert (clean.verdict, clean.found) == (PASS, "No use was found.")
    assert "1 source files of it" in clean.tried
    assert static_check([], "it").verdict is UNKNOWN


def test_sources_are_followed_into_what_both_parties_share() -> None:
    found = {"/".join(path.parts[-3:]) for path in sources_of("labelveil.label_party.release")}
    assert any(name.endswith("label_party/release/run.py") for name in found)
    assert any(name.endswith("common/entropy.py") for name in found)
    assert not any("feature_party" in name for name in found)
    for absent in ("nosuchpackage", "labelveil.common.entropy"):  # a module is no package
        with pytest.raises(ConfigError, match=f"package '{absent}' is not installed"):
            sources_of(absent)


def test_a_score_counts_guesses_that_were_made() -> None:
    found = bound_guesses(np.array([0, 1, -1, 1, 0]), np.array([0, 0, 1, 1, 1]), 2)
    assert (found.correct, found.guesses, found.tests) == (2, 4, 2)
    assert found.bound == one_run_bound(2, 4, 0.5e-6)
    drawn = uniform(1000)
    assert drawn.min() >= 0
    assert 0.9 < drawn.max() < 1
    assert len(np.unique(drawn)) == 1000
    assert set(draw_secrets(500, 3).tolist()) == {0, 1, 2}


def test_a_guesser_acts_on_outputs_that_tell() -> None:
    """Outputs 1 and 2 are of one secret each, 0 of both: there is no guess for it."""
    secrets = np.array([0, 1] * 500)
    outputs = np.where(np.arange(1000) % 4 < 2, 0, 1 + secrets)
    guesser = learn_guesser(outputs, secrets, 9000)
    assert guesser(np.array([0, 1, 2, 7])).tolist() == [-1, 0, 1, -1]
    assert str(guesser) == "output, 2 of 4 values"
    assert guesser.known == one_run_bound(500, 500, 0.05)
    assert guesser.expected == pytest.approx(one_run_bound(4500, 4500, 1e-6))
    # where a share must be guessed, what few records tell does not decide
    rare = np.where(np.arange(1000) < 20, 1 + secrets, 0)
    assert learn_guesser(rare, secrets, 1000)(np.array([0])).tolist() != [-1]
    assert learn_guesser(rare, secrets, 1000, least=0.0)(np.array([0])).tolist() == [-1]
    runs = one_run(outputs, secrets)
    assert [(run.correct, run.guesses) for run in runs] == [(450, 450)]
    run, event = rare_event(outputs, secrets)
    assert event.startswith("output, ")
    assert run.tests == 1


def message(
    noisy: tuple[int, ...], channel: str = "c", scale: int = 4, epsilon: float = 0.5
) -> Any:
    return Published(noisy, Fraction(scale), Fraction(epsilon), channel)


def test_a_histogram_moves_by_two_at_most_and_pays_for_it() -> None:
    def moved(a: tuple[int, ...], b: tuple[int, ...], **more: Any) -> Any:
        return sensitivity_check(Replay((message(a, **more),), (message(b, **more),), a))

    right = moved((3, 1), (2, 2))
    assert (right.verdict, right.bound, right.claimed) == (PASS, 0.5, 0.5)
    assert (
        "The counts move by 2 in L1 under noise of stated scale 4: that spends 0.5." in right.found
    )
    assert moved((3, 1), (2, 2), scale=3).verdict is FAIL
    assert moved((3, 1), (2, 2), scale=5).bound == 0.4
    assert moved((3, 1), (1, 2), scale=100).verdict is FAIL  # by three
    none = moved((3, 1), (2, 2), scale=0)
    assert (none.verdict, none.bound) == (FAIL, math.inf)
    # the smallest scale and claim of all messages count, and the largest move
    both = (message((3, 1)), message((3, 1), scale=9, epsilon=0.25))
    found = sensitivity_check(Replay(both, (message((3, 1)), message((2, 2))), (3, 1)))
    assert (found.claimed, found.bound) == (0.25, 0.5)


def test_a_channel_is_a_function_of_what_was_shown() -> None:
    def of(releases: list[Any], neighbours: list[Any]) -> Any:
        return function_check(Replay(tuple(releases), tuple(neighbours), (1, 1)))

    a, b = (1, 2), (2, 1)
    right = of([message(a), message(b, "d")], [message(a), message((9, 9), "z")])
    assert (right.verdict, right.bound) == (PASS, 0.0)
    assert right.found.startswith("1 histograms coincided; 0 of them")
    other = of([message(a), message(b, "d")], [message(a), message(b, "e")])
    assert (other.verdict, other.bound) == (FAIL, math.inf)
    assert other.found.startswith("2 histograms coincided; 1 of them")
    assert of([message(a), message(a, "d")], [message(a)]).verdict is FAIL
    apart = of([message(a)], [message(b)])
    assert (apart.verdict, apart.bound) == (UNKNOWN, None)


def test_every_cell_moves() -> None:
    still = support_check(Replay((message((1, 5)), message((2, 5))), (), (1, 5)))
    assert (still.verdict, still.bound, still.details["still"]) == (FAIL, math.inf, [1])
    assert "1 of 2 cells never move (cells [1])" in still.found
    moving = support_check(Replay((message((1, 5)), message((2, 6))), (), (1, 5)))
    assert (moving.verdict, moving.bound) == (PASS, 0.0)
    assert moving.tried.startswith("2 releases")


def test_a_replay_swaps_one_label_under_the_same_noise() -> None:
    seen: list[tuple[list[float], int]] = []

    def release(labels: Any, entropy: Any) -> Any:
        seen.append((labels.tolist(), int(entropy.words("x", 0, 1)[0])))
        return message(tuple(np.bincount(labels.astype(int), minlength=3)))

    found = replay(release, np.array([0.0, 0.0, 2.0]), 1, 1.0, 2)
    assert [labels for labels, _ in seen] == [[0, 0, 2]] * 2 + [[0, 1, 2]] * 2
    assert [word for _, word in seen] == [
        int(seeded_entropy(seed).words("x", 0, 1)[0]) for seed in (0, 1, 0, 1)
    ]
    assert found.truth == (2, 0, 1)
    assert found.scale == 4


def test_labels_beyond_a_bound_are_tried_on_both_sides() -> None:
    asked: list[float] = []

    def clipped(labels: Any, entropy: Any) -> Any:
        asked.extend(np.unique(labels).tolist())
        return np.clip(labels, 2, 4)

    found = range_check(clipped, 2.0, 4.0)
    assert (found.verdict, found.bound) == (PASS, 0.0)
    assert sorted(set(asked)) == [-18.0, 2.0, 4.0, 24.0]
    assert found.found == "0 of 64 outputs differ."
    low = range_check(lambda labels, entropy: np.minimum(labels, 4), 2.0, 4.0)
    assert (low.verdict, low.bound, low.found) == (FAIL, math.inf, "32 of 64 outputs differ.")


def test_two_labels_of_two_steps_spend_their_sum() -> None:
    """One channel whatever the histogram: ε₁ = 2/scale and the channel's own ε₂ add up."""
    rows = randomized_response_rows(2, 0.75)
    channel = FiniteChannel(np.arange(2.0), np.arange(2.0), rows)
    found = joint_audit(lambda noisy, counts: channel, Fraction(8), labels=2, rows=3, margin=1)
    assert found.epsilon == pytest.approx(0.25 + 0.75, abs=1e-9)
    # of 3 labels: 4 histograms, of which two have one neighbour and two have two; 6 · 6 messages
    assert found.messages == 6 * 36
    moved = np.subtract(found.data_set, found.neighbour)
    assert sorted(moved.tolist()) == [-1, 1]
    chance = event_probability(1.0, 0.5)
    assert chance == pytest.approx(
        (1 / (1 + math.exp(-0.5))) ** 2 * math.exp(0.5) / (math.exp(0.5) + 3)
    )
    runs = 20_000
    event = histogram_event(Fraction(1), Fraction(1, 2), runs)
    both = chance * (1 + math.exp(-1.5)) * runs / 2
    # whole counts hit the closed half-lines a little more often
    assert 0.95 * both < event.guesses < 1.6 * both
    assert event.correct / event.guesses == pytest.approx(guess_probability(1.5), abs=0.05)
