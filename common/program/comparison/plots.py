"""Label error and test error against ε, as the paper's Figures 2 and 3 show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError
from common.program.comparison.tables import Cell

_MARKERS = "osD^vP*Xhd<>"
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
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib, which is not installed; pip install 'labelveil[report]'"
        ) from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    cells = [cell for cell in cells if not math.isnan(cell.means[metric])]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    for index, method in enumerate(methods):
        mine = sorted((c for c in cells if c.method == method), key=lambda cell: cell.epsilon)
        shift = _APART ** (index - (len(methods) - 1) / 2)
        axes.errorbar(
            [cell.epsilon * shift for cell in mine],
            [cell.means[metric] for cell in mine],
            yerr=[cell.deviations[metric] for cell in mine],
            label=method,
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=5,
            linewidth=2.6 if method.startswith("auto") else 1.2,
            capsize=2,
        )
    for name, level in levels:
        axes.axhline(level, color="0.4", linestyle=":", linewidth=1)
        axes.annotate(
            name, (1.01, level), xycoords=("axes fraction", "data"), va="center", color="0.3"
        )
    heights = [cell.means[metric] for cell in cells] + [level for _, level in levels]
    axes.set_xscale("log")
    if heights and max(heights) > 4 * min(heights) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(sorted({cell.epsilon for cell in cells}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("ε")
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)
