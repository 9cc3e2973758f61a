"""The published order of the mechanisms on real check-ins, in a small run of the comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.mechanisms.selection import Ranking
from tests.benchmarks.published import sources, top_k


@pytest.mark.skipif(
    bool(sources.missing("checkins_brightkite.parquet")),
    reason=str(sources.missing("checkins_brightkite.parquet")),
)
def test_stable_top_k_is_at_least_as_good_on_check_ins() -> None:
    ranking = Ranking(sources.brightkite())
    for k in (10, 50):
        found = {
            name: top_k.recall(selector, ranking, k, trials=12)
            for name, selector in top_k.selectors(k, 2.0).items()
        }
        stable, error = found["StableTopK"]
        for name in ("Top-Stable", "Limited Domain"):
            assert stable + 3 * error >= found[name][0], name
        assert stable + 3 * error >= found["EM-CDP"][0] - 0.06


@pytest.mark.skipif(
    bool(sources.missing("covid_nyt_us_states.parquet")),
    reason=str(sources.missing("covid_nyt_us_states.parquet")),
)
def test_daily_states_fit_one_budget(tmp_path: Path) -> None:
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    plt.switch_backend("Agg")
    summary = top_k.covid_plot(tmp_path / "covid.png", plt)
    assert summary["days"] == 62
    assert summary["exact"] == summary["answered"] > 50
    assert (tmp_path / "covid.png").stat().st_size > 1000


def test_recall_grows_with_the_cliff() -> None:
    found = []
    for gap in (5, 60, 240):
        ranking = Ranking(sources.synthetic(20, gap))
        selector = top_k.selectors(20, 1.0)["StableTopK, unfilled"]
        found.append(top_k.recall(selector, ranking, 20, trials=10)[0])
    assert found[0] < 0.2
    assert found[-1] == 1.0
    assert np.all(np.diff(found) >= 0)
