"""``label-party top-k``: what is printed, written and drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.table import Table

from common.console import stdout
from common.errors import ConfigError
from common.guarantees import guarantee_from_json
from label_party.queries.top_k import TopK
from label_party.store.disk import StoreError

_BAR = 30


_TAIL = 0.05


def write_copy(result: TopK, path: Path) -> None:
    """Write the released bytes, as they are, to a file that can be handed over."""
    try:
        path.write_bytes(result.data)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}; set --out") from error


def margin(document: dict[str, Any]) -> int:
    """Half-width of a 95% interval around a noisy count."""
    top, _, bottom = str(document["noise"]["scale"]).partition("/")
    scale = int(top) / int(bottom or 1)
    return math.ceil(-scale * math.log(_TAIL))


def print_top_k(result: TopK) -> None:
    """Print the leaders as a table with bars; a stable set as a list."""
    document = result.document
    if result.existed:
        print("already released: the same bytes, nothing spent")
    table = Table(title=f"{document['k']} of {document['candidates']} by {document['by']}")
    table.add_column(document["by"])
    if document["noise"] is None:
        for row in document["leaders"]:
            table.add_row(row["category"])
        if not document["leaders"]:
            print("no gap between counts is wide enough to show who is in front of it")
    else:
        rows = sorted(document["leaders"], key=lambda row: -row["users"])
        largest = max([1, *(row["users"] for row in rows)])
        table.add_column(f"users, ± {margin(document)} (95%)", justify="right")
        table.add_column("")
        for row in rows:
            bar = "█" * round(_BAR * max(0, row["users"]) / largest)
            table.add_row(row["category"], f"{row['users']:,}", bar)
    stdout.print(table)
    left = "not one number" if result.left is None else str(result.left).partition(" (")[0]
    print(f"{'privacy':<14}{guarantee_from_json(document['guarantee'])}")
    print(f"{'budget left':<14}{left}")
    print(f"{'digest':<14}{result.digest}")


def draw_top_k(result: TopK, path: Path) -> None:
    """Draw the leaders as a bar chart with 95% intervals."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ConfigError("--plot needs matplotlib; install labelveil[report]") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    document = result.document
    rows = sorted(document["leaders"], key=lambda row: row["users"])
    figure, axis = plt.subplots(figsize=(7, 1 + 0.35 * len(rows)))
    axis.barh(
        [row["category"] for row in rows],
        [row["users"] for row in rows],
        xerr=margin(document),
        color="tab:blue",
        ecolor="dimgrey",
        capsize=3,
    )
    axis.set_xlim(left=0)
    axis.set_xlabel("distinct users, with noise; bars show 95% intervals")
    axis.set_title(f"Leading by {document['by']}, ε = {document['guarantee']['epsilon']}")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
