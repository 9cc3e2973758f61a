"""``label-party top-k``: which categories lead, as one more release on the same budget.

The release is a small JSON file in the store, ``top-k/<data set>/<epoch>/<column>.json``. Like a
label release it is reserved, written, synchronised and only then committed with its digest; asking
again shows the same bytes and spends nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table

from common.console import stdout
from common.entropy import system_entropy
from common.errors import ConfigError, DataError, ReleaseError
from common.guarantees import Guarantee, Unit
from common.selection import count_users
from common.selection.leaders import Leaders
from label_party.build import software
from label_party.config import LabelPartyConfig, decimal_value
from label_party.disk import StoreError
from label_party.ledger import Charge, Ledger, remaining
from label_party.store import Store

FORMAT = "labelveil-top-k/1"
_BAR = 30
_TAIL = 0.05


@dataclass(frozen=True)
class Request:
    """What is asked: the column, how many, among which public categories."""

    by: str
    k: int | None
    most: int
    categories: Path
    user: str | None

    @property
    def purpose(self) -> str:
        """Name of the charge in the ledger."""
        return f"top-k by {self.by}"


@dataclass(frozen=True)
class TopK:
    """A release of leaders, with the bytes that its digest is over."""

    data: bytes
    digest: str
    existed: bool
    left: Guarantee | None

    @property
    def document(self) -> dict[str, Any]:
        """The release as JSON values."""
        parsed: dict[str, Any] = json.loads(self.data)
        return parsed


def run_top_k(config: LabelPartyConfig, request: Request) -> TopK:
    """Make the release once, or read it back.

    Raises
    ------
    LabelveilError
        For any refusal; then nothing was spent.
    """
    categories = read_categories(request.categories)
    wanted = _meaning(config, request, categories)
    store = Store(config.store.directory)
    if store.ledger_path.exists():
        with store.open_ledger() as ledger:
            charge = _committed(ledger, config, request)
            if charge is not None:
                return _existing(config, request, store, ledger, charge, wanted)
    unit = config.privacy.privacy_unit
    leaders = Leaders(decimal_value(config.privacy.epsilon), request.k, request.most, unit)
    counts = _counts(config, request, categories)
    if request.k is not None and request.k > len(categories):
        raise ConfigError(
            f"k={request.k} is above the {len(categories)} categories of {request.categories};"
            " set --k"
        )
    store.create()
    with store.building(), store.open_ledger() as ledger:
        charge = _committed(ledger, config, request)  # another process may have been faster
        if charge is not None:
            return _existing(config, request, store, ledger, charge, wanted)
        store.recover(ledger)
        path = _path(store, config, request)
        path.unlink(missing_ok=True)  # what a killed process wrote and never paid for
        reserved = ledger.reserve(
            config.data.data_set,
            config.data.epoch,
            leaders.guarantee,
            config.privacy.limit,
            request=wanted,
            purpose=request.purpose,
        )
        try:
            data = _build(config, request, leaders, counts)
            _write(path, data)
            digest = hashlib.sha256(data).hexdigest()
            ledger.commit(reserved, digest, json.loads(data)["k"])
        except BaseException:
            path.unlink(missing_ok=True)  # bytes first: nothing unpaid may be left to read
            ledger.abandon(reserved)
            raise
        return TopK(data, digest, False, _left(config, ledger))


def read_categories(path: Path) -> pl.Series:
    """Read the public list of categories: one a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(f"{path} cannot be read: {reason}; set --categories") from error
    names = [line.strip() for line in lines if line.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(
            f"{path} lists {len(names)} categories, {len(set(names))} of them different; list at"
            " least 2, each once"
        )
    return pl.Series("category", sorted(names))


def _counts(config: LabelPartyConfig, request: Request, categories: pl.Series) -> list[int]:
    """Distinct users of each category, in the list's order."""
    privacy = config.privacy
    if privacy.privacy_unit == Unit.USER and request.user not in (None, privacy.user):
        raise ConfigError(
            f"user={request.user!r} must be {privacy.user!r}, whose privacy is protected;"
            " leave --user out"
        )
    user = privacy.user or request.user or config.data.key
    path = config.data.labels
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        scan = (
            pl.scan_parquet(path)
            if parquet
            else pl.scan_csv(
                path, infer_schema=False, separator="\t" if ".tsv" in path.suffixes else ","
            )
        )
        present = scan.collect_schema().names()
        for column in (request.by, user):
            if column not in present:
                raise DataError(f"{path} has no column {column!r}; it has {', '.join(present)}")
        frame = scan.select(
            user=pl.col(user).cast(pl.String), item=pl.col(request.by).cast(pl.String)
        ).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged, or neither CSV nor Parquet"
        raise DataError(f"{path} cannot be read: {reason}; set [data] labels") from error
    frame = frame.with_columns(pl.col("item").str.strip_chars())
    return [int(n) for n in count_users(frame, "user", "item", candidates=categories).counts]


def _meaning(config: LabelPartyConfig, request: Request, categories: pl.Series) -> dict[str, Any]:
    privacy = config.privacy
    return {
        "by": request.by,
        "k": request.k,
        "most": request.most if request.k is None else None,
        "epsilon": str(decimal_value(privacy.epsilon)),
        "unit": privacy.unit,
        "user": privacy.user or request.user,
        "categories": hashlib.sha256("\n".join(categories).encode()).hexdigest(),
    }


def _build(
    config: LabelPartyConfig, request: Request, leaders: Leaders, counts: list[int]
) -> bytes:
    entropy = system_entropy()
    try:
        leading = leaders.select(counts, entropy)
    finally:
        entropy.destroy()
    categories = read_categories(request.categories)
    document = {
        "format": FORMAT,
        "software": software(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data_set": config.data.data_set,
        "epoch": config.data.epoch,
        "by": request.by,
        "adaptive": request.k is None,
        "k": len(leading.chosen),
        "candidates": len(categories),
        "leaders": [
            {"category": categories[int(index)], "users": int(count)}
            for index, count in zip(leading.chosen, leading.noisy_counts, strict=True)
        ],
        "noise": {"law": "discrete-laplace", "scale": str(leading.scale)},
        "guarantee": leaders.guarantee.to_json(),
    }
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _path(store: Store, config: LabelPartyConfig, request: Request) -> Path:
    name = hashlib.sha256(request.by.encode()).hexdigest()[:16]
    return store.directory / "top-k" / config.data.data_set / config.data.epoch / f"{name}.json"


def _write(path: Path, data: bytes) -> None:
    """Write, synchronise, rename; what a dead process left under the name is replaced."""
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        for directory in (path.parent, path.parent.parent, path.parent.parent.parent):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; nothing was spent; check the disk's"
            " space and rights, or set [store] directory"
        ) from error


def _committed(ledger: Ledger, config: LabelPartyConfig, request: Request) -> Charge | None:
    for charge in ledger.charges(config.data.data_set):
        same = charge.epoch == config.data.epoch and charge.purpose == request.purpose
        if same and charge.state == "committed":
            return charge
    return None


def _existing(
    config: LabelPartyConfig,
    request: Request,
    store: Store,
    ledger: Ledger,
    charge: Charge,
    wanted: dict[str, Any],
) -> TopK:
    different = sorted(key for key in wanted if charge.request.get(key) != wanted[key])
    if different:
        raise ReleaseError(
            f"the leaders by {request.by!r} of epoch {charge.epoch!r} were released with other"
            f" settings ({', '.join(different)}) and stay as they are; name another epoch with"
            " --epoch"
        )
    path = _path(store, config, request)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReleaseError(
            f"{path} cannot be read: {error.strerror}; restore it from a backup"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != charge.manifest_sha256:
        raise ReleaseError(f"{path} does not match its digest; restore it from a backup")
    return TopK(data, digest, True, _left(config, ledger))


def _left(config: LabelPartyConfig, ledger: Ledger) -> Guarantee | None:
    return remaining(config.privacy.limit, ledger.spent(config.data.data_set))


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
    """Print the leaders as a table with bars."""
    document = result.document
    if result.existed:
        print("already released: the same bytes, nothing spent")
    rows = sorted(document["leaders"], key=lambda row: -row["users"])
    largest = max([1, *(row["users"] for row in rows)])
    table = Table(title=f"{document['k']} of {document['candidates']} by {document['by']}")
    table.add_column(document["by"])
    table.add_column(f"users, ± {margin(document)} (95%)", justify="right")
    table.add_column("")
    for row in rows:
        bar = "█" * round(_BAR * max(0, row["users"]) / largest)
        table.add_row(row["category"], f"{row['users']:,}", bar)
    stdout.print(table)
    spent = document["guarantee"]
    left = "not one number" if result.left is None else str(result.left).partition(" (")[0]
    print(f"{'privacy':<14}ε = {spent['epsilon']} ({spent['adjacency']}, per {spent['unit']})")
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
