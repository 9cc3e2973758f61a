"""``label-party synthesize``: what is asked, printed and written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from labelveil.common.config import setting
from labelveil.common.console import numbers
from labelveil.common.errors import ConfigError
from labelveil.common.files import PARQUET_SUFFIXES, file_errors
from labelveil.common.outputs import check_output
from labelveil.label_party.commands.options import OF_AN_ANSWER, OutputOptions, options
from labelveil.label_party.commands.preflight import Preflight, PreflightOptions
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.budget import short

if TYPE_CHECKING:
    from labelveil.label_party.store.purchase import Outcome


class TableOptions(OutputOptions):
    column: list[str] = setting(
        ...,
        "A category column and its public list of values, one a line; repeatable.",
        metavar="NAME=FILE",
    )
    label: str | None = setting(None, "Which label, where an event has several.", metavar="NAME")
    bins: int = setting(8, "Bins of the label, equally wide.", ge=2)
    edges: str | None = setting(
        None, "Ends of the bins instead, from lower to upper.", metavar="NUMBER,…"
    )
    order: int = setting(2, "Agree on all sets of at most this number of columns.", ge=1)
    delta: float | None = setting(
        None, "Spend (epsilon, delta) on Gaussian noise, in zCDP.", gt=0, lt=1
    )
    out: Path | None = setting(
        None, "Write the table: .csv, .parquet, or .json with all that was released."
    )


@options(*OF_AN_ANSWER)
def synthesize(wanted: TableOptions, config: LabelPartyConfig, how: PreflightOptions) -> None:
    from labelveil.label_party.queries import synthetic_table as synthesis

    if wanted.out is not None:
        check_output("--out", wanted.out, (".csv", ".json", *PARQUET_SUFFIXES))
    edges = numbers("--edges", wanted.edges) if wanted.edges else None
    label = config.place_of(wanted.label)
    request = synthesis.TableRequest(
        columns=synthesis.named_lists(wanted.column),
        edges=synthesis.label_edges(config.labels[label].bounds, wanted.bins, edges),
        order=wanted.order,
        delta=wanted.delta,
        label=label,
    )
    outputs = [] if wanted.out is None else [wanted.out]
    with Preflight(config, how, wanted, outputs) as preflight:
        result = synthesis.synthesize(config, request, quiet=wanted.quiet, confirm=preflight)
        if wanted.out is not None and not how.dry_run:
            write_table(result, wanted.out)
        wanted.answer(result.to_json(), *_lines(result))


def write_table(result: Outcome, path: Path) -> None:
    """Write the synthetic records as Parquet, as JSON (the released bytes), or as CSV."""
    from labelveil.label_party.queries.synthetic_table import records

    suffix = path.suffix.lower()
    with file_errors(ConfigError, f"{path} cannot be written", "; set --out"):
        if suffix in PARQUET_SUFFIXES:
            records(result.document).write_parquet(path)
        elif suffix == ".json":
            path.write_bytes(result.data)
        else:
            records(result.document).write_csv(path)


def _lines(result: Outcome) -> Iterator[str]:
    """Say what was released, and what it cost."""
    document = result.document
    if result.payment.existed:
        yield "already released: the same bytes, nothing spent"
    columns = [*(part["column"] for part in document["categories"]), document["label"]]
    single = [item for item in document["measurements"] if len(item["columns"]) == 1]
    largest = max(item["variance"] for item in single) ** 0.5
    spent, requested = document["guarantee"], document["requested"]
    amount = f"ε = {requested['epsilon']:g}"
    if requested["delta"] is not None:
        amount += f", δ = {requested['delta']:g}"
    yield f"{'records':<14}{document['records']:,} in {len(document['cells']):,} cells"
    yield f"{'columns':<14}{', '.join(columns)}"
    yield f"{'measured':<14}{len(document['measurements'])} noisy tables of counts"
    yield f"{'noise':<14}standard deviation {largest:,.0f} on counts of one column"
    yield f"{'privacy':<14}{amount} ({spent['adjacency']}, per {spent['unit']})"
    yield f"{'budget left':<14}{short(result.payment.left)}"
    yield f"{'digest':<14}{result.payment.charge.digest}"
