"""Target charging on real data, in small runs of the comparisons."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import interactive, one_shot, sources
from labelveil.common.entropy import seeded_entropy
from labelveil.common.mechanisms.interactive import Terms
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.pate import BoundaryVote


@pytest.mark.slow
@pytest.mark.skipif(
    bool(sources.missing("checkins_brightkite.parquet")),
    reason=str(sources.missing("checkins_brightkite.parquet")),
)
def test_individual_charging_finds_more_places_at_equal_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(interactive, "LIMITS", (8, 16))
    monkeypatch.setattr(interactive, "OFFSETS", (5.0, 7.0, 9.0))
    found = interactive.stream(4.0, trials=2)
    right = {one.name: one.right for one in found}
    assert right["individual charging"] > 1.7 * max(
        right["sparse vector, pure"], right["sparse vector, (ε, δ)"]
    )
    assert all(one.precision >= interactive.PRECISION for one in found)
    interactive.stream_plot(found, tmp_path / "stream.png")
    assert (tmp_path / "stream.png").stat().st_size > 1000
    assert interactive.stream_table(found).count("\n") == len(found) + 1


def agreed(queries: int, contested: int) -> interactive.Votes:
    """250 teachers who agree but for 20 of them, and a few queries on which they are split."""
    counts = np.tile(np.array([230, 10, 10]), (queries, 1))
    counts[:contested] = [84, 83, 83]
    features = np.zeros((queries, 1))
    return interactive.Votes("agreed", counts, np.zeros(queries, dtype=np.int64), features)


@pytest.mark.slow
def test_agreed_answers_pay_off_in_long_streams() -> None:
    few, many = (interactive.costs(agreed(n, n // 100), n) for n in (100, 3000))
    by = [{cost.method: cost for cost in row} for row in (few, many)]
    # a short batch is cheaper by GNMax, a long one through the wrapper: both are shown
    assert by[0]["GNMax, guaranteed"].epsilon < by[0]["boundary wrapper"].epsilon
    assert by[1]["boundary wrapper"].epsilon < by[1]["GNMax, guaranteed"].epsilon / 1.5
    # all questions are alike, so the student is surprised by the contested ones alone
    assert by[1]["student as prior"].epsilon < by[1]["GNMax, guaranteed"].epsilon / 1.5
    assert all(cost.accuracy > 0.96 for row in by for cost in row.values())


def test_the_table_of_routes_shows_each_better_than_the_last() -> None:
    lines = interactive.calls_table((10, 100)).splitlines()[2:]
    assert len(lines) == 4
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        paper, exact = int(cells[2]), int(cells[3])
        published, advanced, optimal, _, best = map(float, cells[4:])
        assert paper > exact
        assert published > advanced >= optimal >= best


def test_a_boundary_vote_stops_at_its_hits_and_leaves_the_rest_open() -> None:
    votes = agreed(300, 40).counts
    vote = BoundaryVote(Fraction(1, 4), 5)
    answers = vote.draw(votes, seeded_entropy(3))
    unanswered = np.flatnonzero(answers.labels < 0)
    stop = int(unanswered[4])
    assert stop < 40
    assert np.all(answers.labels[stop:] == -1)
    assert np.all(answers.labels[:stop][answers.labels[:stop] >= 0] < 3)
    assert answers.guarantee == vote.terms.guarantee
    assert answers.incurred is None
    whole = BoundaryVote(Fraction(1, 4), 500).draw(votes, seeded_entropy(3)).labels
    assert np.all(whole[40:] == 0)
    assert 3 < np.sum(whole[:40] < 0) < 30


@pytest.mark.slow
def test_one_shot_top_k_has_less_noise_by_target_charging() -> None:
    """Half of the noise of the theorem for Laplace at k = 10, more than peeling; all as stated."""
    epsilon, delta, k = one_shot.EPSILON, one_shot.DELTA, 10
    rival = float(one_shot.qiao_scale(k, 100, epsilon, delta))
    assert rival == pytest.approx(8 * math.sqrt(10 * math.log(1e8)) / 0.2, rel=1e-6)
    rate = one_shot.charged_rate(k, epsilon, delta)
    for factor, fits in ((1, True), (Fraction(101, 100), False)):
        spent = Terms(not_prior(2 * rate * factor), k).approximate(delta).exact_epsilon
        assert (spent <= epsilon) == fits
    assert 2 / one_shot.peeling_rate(k, epsilon, delta) < 1 / rate < rival / 2
    # scores cost a further round; alone they have less noise than those that come for free
    assert 1 / one_shot.scores_rate(k, epsilon / 2, delta / 2) < 1 / rate / 2


@pytest.mark.slow
@pytest.mark.skipif(
    bool(sources.missing("covid_nyt_us_states.parquet")),
    reason=str(sources.missing("covid_nyt_us_states.parquet")),
)
def test_one_shot_top_k_of_states() -> None:
    rows = [line.split("|")[2:4] for line in one_shot.states_table(trials=1).splitlines()[2:]]
    recall, error = ([float(row[i].split("±")[0].replace(",", "")) for row in rows] for i in (0, 1))
    assert recall[0] + 0.05 < recall[1] < recall[2] + 0.02
    assert error[1] > 2 * max(error[0], error[2])
