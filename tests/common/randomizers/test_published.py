"""What of Regression with Label DP needs no model, and the loader of its data."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

from benchmarks.published.kept import Kept, OutOfTimeError
from benchmarks.published.label_noise import (
    excess,
    excess_bound,
    histogram,
    label_errors,
)
from benchmarks.published.regression import EXPERIMENTS, Size
from labelveil.common.arrays import Floats
from labelveil.common.randomizers import build_randomizer, losses_by_bins
from labelveil.comparison import Method
from tests.data_sets import (
    COMMUNITIES,
    CRITEO,
    CRITEO_LOG_COLUMNS,
    FOLDER,
    RANDHIE,
    read_criteo_log,
)


def test_the_excess_falls_as_the_root_of_k_over_n() -> None:
    """Theorem 7: a hundred times the labels, a tenth of the excess."""
    labels = np.arange(40.0)
    prior = np.exp(-labels / 6)
    prior /= prior.sum()
    found = {n: excess(labels, prior, n, 1.0) for n in (10_000, 1_000_000, 100_000_000)}
    assert found[10_000] > found[1_000_000] > found[100_000_000] > 0
    assert found[100_000_000] < found[10_000] / 50
    bound = {n: excess_bound(40, n, 2 * math.sqrt(40 / n)) * 39.0**2 for n in found}
    assert all(value < bound[n] for n, value in found.items())
    most = excess(labels, prior, 100_000, 1.0, times=4.0)
    assert most < excess_bound(40, 100_000) * 39.0**2 <= 3 * math.sqrt(40 / 100_000) * 39.0**2


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("first", [0.05, 0.25, 0.3, 1.0])
def test_what_the_prior_takes_costs_the_labels_no_more_than_tanh(
    epsilon: float, first: float
) -> None:
    """Over all partitions: the optimum at ε − ε₁ less that at ε, as a share of the largest loss."""
    if first >= epsilon:
        first = 0.9 * epsilon
    k = 6

    def least(labels: Floats, prior: Floats, budget: float) -> float:
        grow, ratios = math.expm1(budget), []
        for bins in range(1, k + 1):
            for cuts in itertools.combinations(range(1, k), bins - 1):
                total = 0.0
                for low, high in itertools.pairwise([0, *cuts, k]):
                    weights = prior * (1 + grow * ((np.arange(k) >= low) & (np.arange(k) < high)))
                    mean = weights @ labels / weights.sum()
                    total += float(weights @ (labels - mean) ** 2)
                ratios.append(total / (grow + bins))
        return min(ratios)

    random, worst = np.random.default_rng(1), 0.0
    for labels in (np.arange(6.0), np.array([0.0, 0, 1, 9, 10, 10]), random.random(6)):
        for prior in (np.full(6, 1 / 6), np.array([0.4, 0.05, 0.05, 0.05, 0.05, 0.4])):
            cost = least(labels, prior, epsilon - first) - least(labels, prior, epsilon)
            worst = max(worst, cost / float(np.ptp(labels)) ** 2)
    assert 0 < worst <= math.tanh(first / 4)


@pytest.mark.parametrize("first", [0.01, 0.5, 2.0])
def test_no_smaller_bound_holds_for_every_budget_and_number_of_bins(first: float) -> None:
    """How much less often a label stays in its bin, which each can cost all of B: tanh(ε₁/4)."""

    def stays(epsilon: float, bins: int) -> float:
        return math.exp(epsilon) / (math.exp(epsilon) + bins - 1)

    found = [
        stays(first + rest, bins) - stays(rest, bins)
        for rest in np.linspace(0, 8, 801)
        for bins in range(2, 200)
    ]
    assert math.tanh(first / 4) * (1 - 1e-4) < max(found) <= math.tanh(first / 4)


def test_the_bound_of_the_excess_is_least_at_four_times_the_root() -> None:
    share = 4 * math.sqrt(40 / 10_000)
    least = excess_bound(40, 10_000, share)
    assert least == excess_bound(40, 10_000) <= 3 * math.sqrt(40 / 10_000)
    others = [excess_bound(40, 10_000, factor * share) for factor in (0.25, 0.5, 0.8, 1.25, 2.0)]
    assert min(others) > least


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_bins_of_a_continuous_prior_are_the_limit_of_finer_grids(epsilon: float) -> None:
    """Labels of density 2y on 0 … 1: the least loss over real cuts, from below and above."""

    def loss(cuts: Floats) -> float:
        edges = np.concatenate([[0.0], np.sort(np.clip(cuts, 0, 1)), [1.0]])
        mass, grow, total = np.diff(edges**2), math.expm1(epsilon), 0.0
        for share, low, high in zip(mass, edges, edges[1:], strict=False):
            first, second = 2 * (high**3 - low**3) / 3, (high**4 - low**4) / 2
            mean = (2 / 3 + grow * first) / (1 + grow * share)
            total += 1 / 2 + grow * second - (1 + grow * share) * mean**2
        return float(total / (grow + mass.size))

    starts = [np.linspace(0, 1, bins + 1)[1:-1] for bins in range(2, 8)]
    limit = min(float(minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-9,
                "fatol": 1e-13, "maxiter": 20_000}).fun) for start in starts)  # fmt: skip
    gaps = []
    for cells in (10, 40, 160):
        edges = np.linspace(0, 1, cells + 1)
        prior = np.diff(edges**2)
        means = 2 * np.diff(edges**3) / 3 / prior
        within = float(np.sum(np.diff(edges**4) / 2 - prior * means**2))  # lost before any noise
        made = build_randomizer("rr-on-bins", labels=means, prior=prior, epsilon=epsilon)
        gaps.append(made.expected_loss + within - limit)
    assert gaps[0] >= gaps[1] >= gaps[2] > -1e-9
    assert gaps[2] < 1e-3 * limit


@pytest.mark.parametrize("loss", ["squared", "absolute"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_many_bins_lose_a_share_of_what_the_best_constant_does(loss: str, epsilon: float) -> None:
    """Lemma 17: each bin costs the best constant's loss C at least, a label's own bin or not.

    So d of them lose at least d C/(e^ε + d − 1), which grows to C: finitely many bins suffice.
    """
    labels, bins = np.arange(60.0) ** 1.5, np.arange(1, 61)
    prior = np.exp(-labels / 90)
    table = losses_by_bins(labels=labels, prior=prior, epsilon=epsilon, loss=loss)
    constant = table[0]
    assert np.all(table >= constant * bins / (math.exp(epsilon) + bins - 1) * (1 - 1e-9))
    best = int(table.argmin()) + 1
    assert best < 60
    enough = bins / (math.exp(epsilon) + bins - 1) > table.min() / constant
    assert not enough[best - 1]


@pytest.mark.skipif(CRITEO.missing is not None, reason=str(CRITEO.missing))
def test_the_criteo_log_is_read_as_it_is_published(tmp_path: Path) -> None:
    sample = pl.read_parquet(FOLDER / str(CRITEO.file))
    assert tuple(sample.columns) == CRITEO_LOG_COLUMNS
    sample.write_csv(tmp_path / "log", separator="\t", include_header=False, quote_style="never")
    found, expected = read_criteo_log(tmp_path / "log"), CRITEO.load()
    assert found.columns == expected.columns
    assert found.height == 1098
    for name, column in expected.to_dict().items():
        assert found[name].dtype == column.dtype
        if column.dtype == pl.Float64:
            assert np.allclose(found[name], column)
        else:
            assert found[name].equals(column)


def test_a_line_of_the_criteo_log_is_a_click(tmp_path: Path) -> None:
    click = "-1\t-1\t1598891820\t-1\t0.0\t0"
    rest = "\t".join(["7E56C2", "-1", "0", '"SHOE', *["C"] * 7, "DE", "P1", "T1 T2", "5D8F", "U1"])
    sale = "82.5\t3600\t1598925284\t4\t41.25\t0"
    (tmp_path / "log").write_text(f"0\t{click}\t{rest}\n1\t{sale}\t{rest}\n")
    found = read_criteo_log(tmp_path / "log")
    assert (found.height, found.width) == (1, 21)
    first = found.row(0, named=True)
    assert (first["SalesAmountInEuro"], first["product_price"]) == (82.5, 41.25)
    assert (first["product_brand"], first["user_id"]) == ('"SHOE', "U1")


@pytest.mark.skipif(COMMUNITIES.missing is not None, reason=str(COMMUNITIES.missing))
def test_communities_and_crime_is_prepared_as_in_the_notebook() -> None:
    found = COMMUNITIES.load()
    assert (found.height, found.width) == (1994, 100)  # 99 features and V127
    assert not {"V0", "V3", "V4", "V7", "V101"} & set(found.columns)
    assert not sum(found.null_count().row(0))


def test_errors_of_labels_are_those_of_the_laws() -> None:
    labels, prior = histogram(RANDHIE)
    variance = float(prior @ labels**2 - (prior @ labels) ** 2)
    rows = [line.split(" | ") for line in label_errors(RANDHIE, (0.05, 8.0)).splitlines()]
    title, _, low, high, *_ = rows
    assert title[4] == "RR-on-bins"
    assert low[4] == "–"  # √(4·78/16,152) is above .05
    assert float(high[4]) < 0.2 * variance < float(high[1].replace(",", ""))


def test_every_method_of_the_experiments_exists() -> None:
    for one in EXPERIMENTS:
        assert [str(Method.parse(text)) for text in one.methods]


@pytest.mark.slow
def test_an_experiment_writes_its_section(tmp_path: Path) -> None:
    visits = next(one for one in EXPERIMENTS if one.name == "visits")
    small = replace(visits, methods=visits.methods[-1:], rows=1500, few=("epochs=1",))
    section = replace(small, epsilons=(0.1, 2.0)).run(tmp_path, Size())
    assert "randhie, 1,500 rows, 1 split" in section
    assert "leaves nothing of epsilon=0.1" in section
    assert "Test loss of the model (poisson)" in section
    assert (tmp_path / "visits-test-loss.png").exists()


def test_what_a_run_found_the_next_takes_up(tmp_path: Path) -> None:
    calls = []

    def find(number: int) -> int:
        calls.append(number)
        return 2 * number

    assert Kept(tmp_path)("twice, ε = 3", find, 3) == 6
    later = Kept(tmp_path, minutes=0)
    assert later("twice, ε = 3", find, 3) == 6
    with pytest.raises(OutOfTimeError):
        later("twice, ε = 4", find, 4)
    assert calls == [3]

    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Kept(tmp_path)("twice, ε = 5", interrupted)
    assert Kept(tmp_path)("twice, ε = 5", find, 5) == 10
