"""Label error and test error against ε, as the paper's Figures 2 and 3 show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labelveil.comparison.tables import Cell, by_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_APART = 1.012
"""Factor between the places of two methods at one ε, so that their error bars stand apart."""


def draw(cells: Sequence[Cell], out: Path, loss: str = "squared") -> None:
    """Write ``test_error.png``, ``label_error.png`` and, for other losses, ``test_loss.png``."""
    _figure(cells, "test_mse", "Test error of the model", out / "test_error.png")
    _figure(cells, "label_mse", "Error of the randomized label", out / "label_error.png")
    if loss != "squared":
        title, unit = "Test loss of the model", f"{loss} loss"
        _figure(cells, "test_loss", title, out / "test_loss.png", unit)


def _figure(
    cells: Sequence[Cell], metric: str, title: str, path: Path, unit: str = "mean squared error"
) -> None:
    """Draw a panel for each label, if there is anything to be seen."""
    from common.report.figures import picture

    if not any(cell.has(metric) for cell in cells):
        return
    labels = by_label(cells)
    with picture(path, 8 if len(labels) == 1 else 5 * len(labels), 5) as figure:
        panels = figure.subplots(1, len(labels), squeeze=False)[0]
        for axes, (label, mine) in zip(panels, labels.items(), strict=True):
            _panel(axes, mine, metric, unit)
            axes.set_title(f"{label}: {title[0].lower()}{title[1:]}" if label else title)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4 if label else 3)


def _panel(axes: Axes, cells: Sequence[Cell], metric: str, unit: str) -> None:
    from common.report.figures import MARKERS, clean, epsilon_axis, level, logarithmic

    levels = [("constant", cells[0].constant_mse)] if metric == "test_mse" else []
    if metric != "label_mse":
        levels += [("true labels", c.means[metric]) for c in cells if math.isinf(c.epsilon)]
    cells = [cell for cell in cells if cell.has(metric)]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    for index, method in enumerate(methods):
        mine = sorted((c for c in cells if c.method == method), key=lambda cell: cell.epsilon)
        shift = _APART ** (index - (len(methods) - 1) / 2)
        axes.errorbar(
            [cell.epsilon * shift for cell in mine],
            [cell.means[metric] for cell in mine],
            yerr=[cell.deviations[metric] for cell in mine],
            label=method,
            marker=MARKERS[index % len(MARKERS)],
            linewidth=2.6 if method.startswith("auto") else 1.2,
            capsize=2,
        )
    for name, height in levels:
        level(axes, height, name)
    heights = [cell.means[metric] for cell in cells] + [height for _, height in levels]
    axes.set_ylabel(unit)
    if heights and max(heights) > 4 * min(heights) > 0:
        logarithmic(axes, "y", unit)
    epsilon_axis(axes, [cell.epsilon for cell in cells])
    clean(axes)
