"""``label-party top-k``: what is asked, printed, written and drawn."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator
from rich.table import Table

from labelveil.common.config import setting
from labelveil.common.console import stdout
from labelveil.common.errors import ConfigError, printable
from labelveil.common.files import file_errors
from labelveil.common.guarantees import guarantee_from_json
from labelveil.common.outputs import check_output, check_plot
from labelveil.label_party.commands.options import OF_AN_ANSWER, OutputOptions, options
from labelveil.label_party.commands.preflight import Preflight, PreflightOptions
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.budget import short

if TYPE_CHECKING:
    from labelveil.label_party.store.purchase import Outcome

_BAR = 30


_TAIL = 0.05


class TopKOptions(OutputOptions):
    by: str = setting(..., "Column of the label file with the category.")
    categories: Path = setting(
        ..., "The public list of categories, one a line; others do not count."
    )
    k: int | None = setting(None, "How many categories to name.", ge=1)
    adaptive: bool = setting(False, "Let the widest gap decide how many.", flag="--adaptive")
    stable: bool = setting(
        False,
        "Show the set before a wide gap, exact; needs total_delta. With --k, exactly k names: the"
        " set before a gap near k, filled up or thinned out by chance.",
        flag="--stable",
    )
    delta: float | None = setting(
        None, "δ of --stable. Default: a tenth of total_delta.", gt=0, lt=1
    )
    stable_share: float | None = setting(
        None,
        "Part of the budget of --stable --k for the set before the gap; the rest fills up. Default:"
        " 0.1.",
        gt=0,
        lt=1,
    )
    most: int = setting(20, "The most that --adaptive or --stable may name.", ge=1)
    user: str | None = setting(None, "Column that tells users apart; the event's key otherwise.")
    out: Path | None = setting(None, "Write the released JSON here, too.")
    plot: Path | None = setting(None, "Draw a bar chart to this picture.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.adaptive == (self.stable or self.k is not None):
            raise ConfigError("give --k N, --stable or both; or --adaptive, and neither of them")
        if self.stable_share is not None and not (self.stable and self.k is not None):
            raise ConfigError("stable_share is for --stable with --k; leave --stable-share out")
        if self.stable and self.plot is not None:
            raise ConfigError("a stable set has no counts to draw; leave --plot or --stable out")
        return self


@options(*OF_AN_ANSWER)
def top_k(wanted: TopKOptions, config: LabelPartyConfig, how: PreflightOptions) -> None:
    from labelveil.label_party.queries.top_k import TopKRequest, run_top_k

    if wanted.out is not None:
        check_output("--out", wanted.out)
    if wanted.plot is not None:
        check_plot(wanted.plot)
    delta = config.privacy.total_delta / 10 if wanted.delta is None else wanted.delta
    request = TopKRequest(
        wanted.by,
        wanted.k,
        wanted.most,
        wanted.categories,
        wanted.user,
        delta if wanted.stable else None,
        wanted.stable_share,
    )
    counted = "users" if wanted.user or config.privacy.user else "events"
    outputs = [path for path in (wanted.out, wanted.plot) if path is not None]
    with Preflight(config, how, wanted, outputs) as preflight:
        result = run_top_k(config, request, confirm=preflight)
        if wanted.out is not None and not how.dry_run:
            with file_errors(ConfigError, f"{wanted.out} cannot be written", "; set --out"):
                wanted.out.write_bytes(result.data)  # as they are released
        if wanted.as_json or wanted.quiet:
            wanted.answer(result.to_json())
        else:
            print_top_k(result, counted)
        if wanted.plot is not None and not how.dry_run:
            draw_top_k(result, wanted.plot, counted)


def margin(document: dict[str, Any]) -> int:
    """Half-width of a 95% interval around a noisy count."""
    return math.ceil(-float(Fraction(document["noise"]["scale"])) * math.log(_TAIL))


def print_top_k(result: Outcome, counted: str) -> None:
    """Print the leaders as a table with bars; a stable set as a list."""
    document = result.document
    if result.payment.existed:
        print("already released: the same bytes, nothing spent")
    table = Table(title=f"{document['k']} of {document['candidates']} by {document['by']}")
    table.add_column(printable(document["by"]), overflow="fold")
    if document["noise"] is None:
        for row in document["leaders"]:
            table.add_row(printable(row["category"]))
        if not document["leaders"]:
            print("no gap between counts is wide enough to show who is in front of it")
    else:
        rows = sorted(document["leaders"], key=lambda row: -row["users"])
        largest = max([1, *(row["users"] for row in rows)])
        table.add_column(f"{counted}, ± {margin(document)} (95%)", justify="right")
        table.add_column("")
        for row in rows:
            bar = "█" * round(_BAR * max(0, row["users"]) / largest)
            table.add_row(printable(row["category"]), f"{row['users']:,}", bar)
    stdout.print(table)
    print(f"{'privacy':<14}{guarantee_from_json(document['guarantee'])}")
    print(f"{'budget left':<14}{short(result.payment.left)}")
    print(f"{'digest':<14}{result.payment.charge.digest}")


def draw_top_k(result: Outcome, path: Path, counted: str) -> None:
    """Draw the leaders as a bar chart with 95% intervals; ``path`` is checked already."""
    from labelveil.common.report.figures import MUTED, clean, picture

    document = result.document
    rows = sorted(document["leaders"], key=lambda row: row["users"])
    with picture(path, 7, 1 + 0.35 * len(rows)) as figure:
        axes = figure.subplots()
        axes.barh(
            [printable(row["category"]) for row in rows],
            [row["users"] for row in rows],
            xerr=margin(document),
            ecolor=MUTED,
            capsize=3,
        )
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{counted}, with noise; bars show 95% intervals")
        axes.set_title(
            f"Leading by {printable(document['by'])}, ε = {document['guarantee']['epsilon']}"
        )
        clean(axes, grid="x")
