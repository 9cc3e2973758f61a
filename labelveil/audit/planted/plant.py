"""Plant canaries: a data set whose labels are secrets of the auditor.

    FOLDER/partner/labels.parquet       key, label       for the labels party
    FOLDER/partner/population.parquet   key              for the labels party
    FOLDER/secrets.parquet              key, secret      for nobody else
    FOLDER/plan.json                    what was planted; written last

Each event's secret is uniform among some labels and *no label at all*, from the operating system's
entropy. Keys look like anybody's; they are uniform 128-bit numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.entropy import system_entropy
from common.errors import ConfigError, DataError
from common.files import PRIVATE, PUBLIC, appearing
from labelveil.audit.attacks.one_run import Secrets, draw_secrets
from labelveil.audit.settings import Planting

FORMAT = "labelveil-canaries/1"
PLAN_FILE = "plan.json"
SECRETS_FILE = "secrets.parquet"
PARTNER = "partner"


@dataclass(frozen=True)
class Planted:
    """A folder of canaries, read: how it was made, and (n,) keys and secrets of the events."""

    planting: Planting
    keys: pl.Series
    secrets: Secrets


def plant(folder: Path, planting: Planting) -> bool:
    """Draw secrets and write the files; False if exactly this was planted before.

    A folder that was begun and not finished has been given to nobody, and is made anew.

    ``ConfigError`` if other canaries are planted there, or nothing can be written.
    """
    plan = folder / PLAN_FILE
    if plan.is_file():
        if read_planted(folder).planting == planting:
            return False
        raise ConfigError(
            f"{folder} holds canaries planted with other settings; score those, or name another"
            " --out"
        )
    values = len(planting.labels)
    secrets = draw_secrets(planting.events, values + 1)
    words = system_entropy().words("keys", 0, 2 * planting.events).tobytes()
    keys = pl.Series([words[at : at + 16].hex() for at in range(0, len(words), 16)])
    labels = planting.labels[np.minimum(secrets, values - 1)]
    columns = {name: labels[:, at] for at, (name, *_) in enumerate(planting.columns)}
    known = pl.DataFrame({planting.key: keys, **columns}).filter(secrets < values)
    try:
        (folder / PARTNER).mkdir(parents=True, exist_ok=True)
        for path, table, mode in (
            (SECRETS_FILE, pl.DataFrame({"key": keys, "secret": secrets}), PRIVATE),
            (f"{PARTNER}/labels.parquet", known, PUBLIC),
            (f"{PARTNER}/population.parquet", pl.DataFrame({planting.key: keys}), PUBLIC),
        ):
            with appearing(folder / path, mode=mode) as file:
                table.write_parquet(file)
        with appearing(plan) as file:
            file.write(json.dumps({"format": FORMAT, **planting.model_dump()}, indent=2).encode())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    return True


def read_planted(folder: Path) -> Planted:
    """Read what was planted.

    ``DataError`` if there is no complete folder of canaries.
    """
    try:
        plan: dict[str, Any] = json.loads((folder / PLAN_FILE).read_bytes())
        if plan.pop("format") != FORMAT:
            raise DataError(f"{folder / PLAN_FILE} is not of format {FORMAT}")
        table = pl.read_parquet(folder / SECRETS_FILE)
        planting = Planting(**plan)
        secrets = table["secret"].to_numpy().astype(np.int64)
    except (OSError, ValueError, TypeError, KeyError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"{folder} holds no canaries: {error!s:.200}; make some with `labelveil audit canaries"
            " plant`"
        ) from error
    return Planted(planting, table["key"], secrets)
