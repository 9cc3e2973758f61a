"""``label-party synthesize``: what is printed and written."""

from __future__ import annotations

from pathlib import Path

from label_party.queries.synthetic_table import Synthetic
from label_party.store.disk import StoreError


def write_table(result: Synthetic, path: Path) -> None:
    """Write the synthetic records as Parquet, as JSON (the released bytes), or as CSV."""
    suffix = path.suffix.lower()
    try:
        if suffix in (".parquet", ".pq"):
            result.table().write_parquet(path)
        elif suffix == ".json":
            path.write_bytes(result.data)
        else:
            result.table().write_csv(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}; set --out") from error


def print_synthetic(result: Synthetic) -> None:
    """Say what was released, and what it cost."""
    document = result.document
    if result.existed:
        print("already released: the same bytes, nothing spent")
    columns = [*(part["column"] for part in document["categories"]), document["label"]]
    single = [item for item in document["measurements"] if len(item["columns"]) == 1]
    largest = max(item["variance"] for item in single) ** 0.5
    spent, requested = document["guarantee"], document["requested"]
    amount = f"ε = {requested['epsilon']:g}"
    if requested["delta"] is not None:
        amount += f", δ = {requested['delta']:g}"
    left = "not one number" if result.left is None else str(result.left).partition(" (")[0]
    print(f"{'records':<14}{document['records']:,} in {len(document['cells']):,} cells")
    print(f"{'columns':<14}{', '.join(columns)}")
    print(f"{'measured':<14}{len(document['measurements'])} noisy tables of counts")
    print(f"{'noise':<14}standard deviation {largest:,.0f} on counts of one column")
    print(f"{'privacy':<14}{amount} ({spent['adjacency']}, per {spent['unit']})")
    print(f"{'budget left':<14}{left}")
    print(f"{'digest':<14}{result.digest}")
