"""The table that a simulation ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import ROUNDED
from rich.table import Table


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
    if bits := metrics.get("question_bits"):
        note = "an event, at most: what questions told the labels party of what is predicted"
        table.add_row("asked", f"{bits:.1f} bits", note)
    table.add_row("events", f"{metrics['rows']:,}", f"{metrics['holdout_rows']:,} kept for scoring")
    for label in metrics.get("labels", [metrics]):
        if "name" in label:
            table.add_section()
            table.add_row(str(label["name"]), "", "")
        _add_label(table, label)
    return table


def _add_label(table: Table, metrics: Mapping[str, Any]) -> None:
    table.add_row("randomizer", f"{metrics['outputs']} values", str(metrics["randomizer"]))
    table.add_row("grid", f"{metrics['points']:,} points", str(metrics["grid"]).partition(", ")[2])
    table.add_row("model", str(metrics["objective"]), str(metrics["head"] or ""))
    table.add_section()
    for name, key, note in (
        ("values sent", "label_mse", "the noise in the labels: mean squared error"),
        ("constant", "constant_mse", "always predicting the mean"),
        ("this model", "test_mse", f"on the events kept{_explained(metrics, 'test_mse')}"),
        ("published", "published_mse", f"RR-on-bins{_explained(metrics, 'published_mse')}"),
        ("true labels", "nonprivate_mse", f"no privacy{_explained(metrics, 'nonprivate_mse')}"),
    ):
        if metrics.get(key) is not None:
            table.add_row(name, number(metrics[key]), note)
    if metrics.get("verdict") is not None:
        table.add_section()
        table.add_row("verdict", str(metrics["verdict"]), _verdict(metrics))


def _explained(metrics: Mapping[str, Any], key: str) -> str:
    """What share of the constant's error is gone."""
    if not metrics.get(key) or not metrics.get("constant_mse"):
        return ""
    return f"; explains {1 - metrics[key] / metrics['constant_mse']:z.0%} of the variance"


def _verdict(metrics: Mapping[str, Any]) -> str:
    known = metrics["verdict"] != "cannot tell"
    text = "than a constant" if known else "whether it beats a constant"
    text += _of_variance(metrics)
    if not known and metrics["associated"]:
        text += f"\nthat features tell something is seen (p = {metrics['association_p_value']:.1g})"
    if clipped := metrics.get("clipped"):
        text += f"\nof labels clipped at {number(clipped['bound'])}, {clipped['verdict']}"
        text += _of_variance(clipped)
    return f"{text}\nall told from privatized labels alone"


def _of_variance(metrics: Mapping[str, Any]) -> str:
    """The interval that assumes nothing, where it says anything."""
    low, high = (max(metrics[f"estimated_r2_{end}"], 0) for end in ("low", "high"))
    return f": {low:.0%} to {high:.0%} of the variance (95%)" if low > 0 or high < 1 else ""


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
