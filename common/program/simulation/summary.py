"""The table that a simulation ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import ROUNDED
from rich.table import Table

_METHODS = {
    "unbiased-under-prior": "from privatized labels and prior",
    "model-within-groups": "in part the model's own word",
    "model": "the model's own word",
}


def summary_table(metrics: Mapping[str, Any]) -> Table:
    """Lay the main numbers of ``metrics.json`` out for reading."""
    table = Table(show_header=False, box=ROUNDED, expand=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    prior, labels = metrics["epsilon_prior"], metrics["epsilon_labels"]
    table.add_row(
        "ε", f"{metrics['epsilon']:g}", f"{prior:.3g} for the prior, {labels:.3g} for labels"
    )
    table.add_row("events", f"{metrics['rows']:,}", f"{metrics['holdout_rows']:,} kept for scoring")
    table.add_row("randomizer", f"{metrics['outputs']} values", str(metrics["randomizer"]))
    table.add_row("model", str(metrics["objective"]), str(metrics["head"] or ""))
    table.add_section()
    for name, key, note in (
        ("values sent", "label_mse", "the noise in the labels: mean squared error"),
        ("constant", "constant_mse", "always predicting the mean"),
        ("this model", "test_mse", "mean squared error on the events kept"),
        ("  estimated", "estimated_mse", _estimate(metrics)),
        ("true labels", "nonprivate_mse", "the same network without privacy"),
    ):
        if metrics.get(key) is not None:
            table.add_row(name, number(metrics[key]), note)
    if metrics.get("verdict") is not None:
        table.add_section()
        table.add_row("R² from codes", f"{max(metrics['assisted_r2'], 0):.2f}", _share(metrics))
    return table


def _estimate(metrics: Mapping[str, Any]) -> str:
    low, high = metrics.get("estimated_mse_low"), metrics.get("estimated_mse_high")
    how = _METHODS.get(str(metrics.get("estimated_mse_method")), "from privatized labels alone")
    if low is None or high is None:
        return how
    return f"{number(low)} … {number(high)} (95%), {how}"


def _share(metrics: Mapping[str, Any]) -> str:
    low, high = (max(metrics[f"assisted_r2_{end}"], 0) for end in ("low", "high"))
    found = {"better": "better than", "not better": "not better than"}
    verdict = found.get(metrics["verdict"], "cannot tell from")
    return f"{low:.2f} … {high:.2f} (95%, model-assisted): {verdict} a constant"


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
