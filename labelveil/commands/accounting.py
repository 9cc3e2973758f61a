"""`labelveil accounting`: what many releases cost together, and how to divide a budget."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import typer
from rich.table import Table

from labelveil.accounting.allocation import Stage, allocate
from labelveil.accounting.mechanisms import MECHANISMS, Numbers, mechanism
from labelveil.accounting.views import composition_view
from labelveil.common.config import Section, setting
from labelveil.common.config.answers import Json, print_json
from labelveil.common.config.options import with_options
from labelveil.common.console import stdout
from labelveil.common.extras import install_command
from labelveil.common.outputs import check_plot

accounting = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)

_STYLES = {
    "basic": ":", "advanced": "--", "optimal": "-.", "RDP": "-", "PLD": "-",
    "filter": (0, (5, 1)), "odometer": (0, (1, 1)),
}  # fmt: skip


class ComposeOptions(Section):
    """Which mechanism is used, how often, and where totals are shown."""

    mechanism: str = setting(
        "pure", "; ".join(f"{name}: {kind.meaning}" for name, kind in MECHANISMS.items()) + "."
    )
    times: int = setting(100, "Number of releases.", ge=1, le=1_000_000)
    delta: float = setting(1e-6, "δ at which totals are stated.")
    plot: Path | None = setting(None, "Write totals against the number here.")


@accounting.command(
    epilog="Example: labelveil accounting compose --mechanism gaussian --noise 10 --times 1000"
    " --plot composition.png"
)
@with_options()
def compose(options: ComposeOptions, numbers: Numbers, shown: Json) -> None:
    """State the total ε of many releases of one mechanism by every composition theorem."""
    plot, delta = options.plot, options.delta
    if plot is not None:
        check_plot(plot)
    release = mechanism(options.mechanism, numbers)
    counts = np.unique(np.rint(np.geomspace(1, options.times, 13)).astype(int)).tolist()
    view = composition_view(release, counts, delta)
    if plot is not None:
        _draw(counts, view, f"{release.name}, δ = {delta:g}", plot)
    if shown.as_json:
        finite = {
            method: [total if math.isfinite(total) else None for total in totals]
            for method, totals in view.items()
        }
        facts = {"mechanism": release.name, "delta": delta, "releases": counts, "epsilon": finite}
        print_json(facts)
        return
    columns = sorted({counts[0], counts[len(counts) // 2], counts[-1]})
    table = Table(title=f"{release.name}; total ε at δ = {delta:g}")
    table.add_column("composition")
    for count in columns:
        table.add_column(f"{count:,} release{'s' * (count > 1)}", justify="right")
    for method, totals in view.items():
        ends = [totals[counts.index(count)] for count in columns]
        table.add_row(method, *(f"{e:.4g}" if math.isfinite(e) else "∞" for e in ends))
    stdout.print(table)
    if release.loss is not None and "PLD" not in view:
        stdout.print(f"PLD left out: it needs dp-accounting; {install_command('pld')}")
    if plot is not None:
        stdout.print(f"plot: {plot}", highlight=False, soft_wrap=True)


class SplitOptions(Section):
    """A budget, and the stages that share it."""

    epsilon: float = setting(..., "Total ε.")
    stage: list[str] = setting(
        ...,
        "A noisy release, what its variance weighs in the end, its sensitivity, and how often it is"
        " made; repeatable.",
        metavar="NAME[:WEIGHT[:SENSITIVITY[:TIMES]]]",
    )
    delta: float = setting(0.0, "0: Laplace noise; above: Gaussian.")


@accounting.command(
    epilog="Example: labelveil accounting split --epsilon 1 --stage prior:1:2 --stage labels:8"
)
@with_options()
def split(options: SplitOptions, shown: Json) -> None:
    """Divide a budget among stages so that the weighted sum of their variances is least."""
    epsilon, delta = options.epsilon, options.delta
    shares = allocate([Stage.parse(text) for text in options.stage], epsilon, delta)
    if shown.as_json:
        print_json([share.to_json() for share in shares])
        return
    kind, size = ("ε", "scale") if delta == 0 else ("ρ", "σ")
    table = Table(title=f"ε = {epsilon:g}" + (f", δ = {delta:g}" if delta else ""))
    table.add_column("stage")
    for title in (f"{kind} each", "times", f"noise {size}", "weighted variance"):
        table.add_column(title, justify="right")
    for share in shares:
        table.add_row(
            share.stage.name,
            f"{float(share.budget):.4g}",
            f"{share.stage.times:,}",
            f"{share.scale:.4g}",
            f"{share.cost * share.stage.times:.4g}",
        )
    stdout.print(table)


def _draw(counts: list[int], view: dict[str, list[float]], title: str, path: Path) -> None:
    from labelveil.common.report.figures import clean, logarithmic, picture

    with picture(path, 7, 4.5) as figure:
        axes = figure.subplots()
        for method, totals in view.items():
            width = 2.6 if method == "PLD" else 1.4
            axes.plot(counts, totals, label=method, linestyle=_STYLES[method], linewidth=width)
        logarithmic(axes, "x", "releases")
        logarithmic(axes, "y", "total ε")
        axes.set_title(title)
        axes.legend()
        clean(axes, grid="both")
