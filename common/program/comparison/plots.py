"""Label error and test error against ε, as the paper's Figures 2 and 3 show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from common.program.comparison.tables import Cell

_APART = 1.012
"""Factor between the places of two methods at one ε, so that their error bars stand apart."""


def draw(cells: Sequence[Cell], out: Path, loss: str = "squared") -> None:
    """Write ``test_error.png``, ``label_error.png`` and, for other losses, ``test_loss.png``."""
    private = [cell for cell in cells if math.isfinite(cell.epsilon)]
    if not private:
        return
    levels = [("constant", private[0].constant_mse)]
    levels += [("true labels", c.means["test_mse"]) for c in cells if math.isinf(c.epsilon)]
    _figure(private, "test_mse", "Test error of the model", levels, out / "test_error.png")
    _figure(private, "label_mse", "Error of the randomized label", [], out / "label_error.png")
    if loss != "squared":
        levels = [("true labels", c.means["test_loss"]) for c in cells if math.isinf(c.epsilon)]
        title = "Test loss of the model"
        _figure(private, "test_loss", title, levels, out / "test_loss.png", f"{loss} loss")


def _figure(
    cells: Sequence[Cell],
    metric: str,
    title: str,
    levels: Sequence[tuple[str, float]],
    path: Path,
    unit: str = "mean squared error",
) -> None:
    from common.report.figures import MARKERS, clean, epsilon_axis, level, logarithmic, picture

    cells = [cell for cell in cells if not math.isnan(cell.means[metric])]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    with picture(path, 8, 5) as figure:
        axes = figure.subplots()
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
        axes.set_title(title)
        clean(axes)
        figure.legend(loc="outside lower center", ncols=3)
