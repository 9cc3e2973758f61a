"""Label error and test error against ε, as the paper's Figures 2 and 3 show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from common.comparison.tables import Cell
from common.errors import ConfigError

_MARKERS = "osD^vP*Xhd<>"


def draw(cells: Sequence[Cell], out: Path) -> None:
    """Write ``test_error.png`` and ``label_error.png`` to a folder."""
    private = [cell for cell in cells if math.isfinite(cell.epsilon)]
    if not private:
        return
    levels = [("constant", private[0].constant_mse)]
    levels += [("true labels", c.means["test_mse"]) for c in cells if math.isinf(c.epsilon)]
    _figure(private, "test_mse", "Test error of the model", levels, out / "test_error.png")
    _figure(private, "label_mse", "Error of the randomized label", [], out / "label_error.png")


def _figure(
    cells: Sequence[Cell],
    metric: str,
    title: str,
    levels: Sequence[tuple[str, float]],
    path: Path,
) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
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
        axes.errorbar(
            [cell.epsilon for cell in mine],
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
            name, (0.01, level), xycoords=("axes fraction", "data"), va="bottom", color="0.3"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted({cell.epsilon for cell in cells}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("ε")
    axes.set_ylabel("mean squared error")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)
