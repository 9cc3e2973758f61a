"""Plant canaries: a data set whose labels are secrets of the auditor.

    FOLDER/partner/NAME.parquet             key, label   for the labels party
    FOLDER/partner/NAME-population.parquet  key          for the labels party
    FOLDER/secrets.parquet            key, secret, user  for nobody else
    FOLDER/plan.json                        what was planted; written last

Most events have one of the planned labels, each as often; the others a label beyond either bound or
between two values, two rows of the highest label, or *no label at all*, in about the shares of a
data set that nobody would stop at (``ODD``). Secrets are independent, from the operating system's
entropy. Keys look like anybody's; they are uniform 128-bit numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from labelveil.audit.attacks.one_run import draw_secrets, uniform
from labelveil.audit.settings import Planting
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.files import PRIVATE, PUBLIC, appearing, file_errors

FORMAT = "labelveil-canaries/1"
PLAN_FILE = "plan.json"
SECRETS_FILE = "secrets.parquet"
PARTNER = "partner"

ANOTHER_RELEASE = (
    "Have the partner release the canaries once more, as another epoch, and add --before."
)

ODD, OF = (1, 1, 8, 4, 8), 64
"""Of 64 events, how many have a label below the bounds, above, between, several rows, and none: a
labels party warns of more than 5 % of the labels outside the bounds."""


@dataclass(frozen=True, eq=False)
class Planted:
    """A folder of canaries, read; events are in the order of the partner's population."""

    planting: Planting  # how it was made
    labels: Floats  # (k, m) of each secret; the last two are several rows, and NaN: no label
    shares: Floats  # (k,) of the events: with which probability one has each secret
    keys: pl.Series  # (n,)
    secrets: Integers  # (n,)
    users: Integers  # (n,) numbers

    def in_words(self, secret: int) -> str:
        """What a secret is; beyond the last, that of an event above its user's limit."""
        if secret == len(self.labels):
            return "above the limit of a user"
        if secret >= len(self.labels) - 2:
            return ("several rows", "no label")[secret - len(self.labels) + 2]
        return " with ".join(f"{label:g}" for label in self.labels[secret])


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
    labels = _kinds(planting)
    planned = len(planting.labels)
    odd = np.repeat(np.arange(len(ODD) + 1), (OF - sum(ODD), *ODD))  # 0 for the planned ones
    drawn = odd[draw_secrets(planting.events, OF)]
    secrets = np.where(drawn, planned - 1 + drawn, draw_secrets(planting.events, planned))
    shares = np.append(np.full(planned, (OF - sum(ODD)) / planned), ODD) / OF
    words = system_entropy().words("keys", 0, 2 * planting.events).tobytes()
    keys = pl.Series([words[at : at + 16].hex() for at in range(0, len(words), 16)])
    columns = {name: labels[secrets, at] for at, (name, *_) in enumerate(planting.columns)}
    users = np.argsort(system_entropy().words("users", 0, keys.len())) // max(2 * planting.users, 1)
    columns |= {"user": users} if planting.users else {}
    day = {} if planting.date is None else dict([planting.date.split(":", 1)])
    table = pl.DataFrame({planting.key: keys, **columns}).with_columns(
        pl.lit(value).alias(column) for column, value in day.items()
    )
    # an event with several rows has them wherever they fall
    rows = np.flatnonzero(secrets < len(labels) - 1)
    rows = np.append(rows, np.flatnonzero(secrets == len(labels) - 2))
    known = table[rows[np.argsort(system_entropy().words("rows", 0, rows.size))]]
    plan_text = {"format": FORMAT, "labels": labels[:-1].tolist(), "shares": shares.tolist()}
    plan_text |= planting.model_dump()
    public = [planting.key, *day, *(["user"] if planting.users else [])]
    with file_errors(ConfigError, f"{folder} cannot be written"):
        (folder / PARTNER).mkdir(parents=True, exist_ok=True)
        hidden = pl.DataFrame({"key": keys, "secret": secrets, "user": users})
        for path, made, mode in (
            (SECRETS_FILE, hidden, PRIVATE),
            (f"{PARTNER}/{planting.name}.parquet", known, PUBLIC),
            (f"{PARTNER}/{planting.name}-population.parquet", table[public], PUBLIC),
        ):
            with appearing(folder / path, mode=mode) as file:
                made.write_parquet(file)
        with appearing(plan) as file:
            file.write(json.dumps(plan_text, indent=2).encode())
    return True


def read_planted(folder: Path) -> Planted:
    """Read what was planted.

    ``DataError`` if there is no complete folder of canaries.
    """
    try:
        plan: dict[str, Any] = json.loads((folder / PLAN_FILE).read_bytes())
        if plan.pop("format") != FORMAT:
            raise DataError(f"{folder / PLAN_FILE} is not of format {FORMAT}")
        table = pl.read_parquet(folder / SECRETS_FILE, glob=False)
        labels, shares = (np.array(plan.pop(name)) for name in ("labels", "shares"))
        planting = Planting(**plan)
        secrets, users = (table[name].to_numpy().astype(np.int64) for name in ("secret", "user"))
    except (OSError, ValueError, TypeError, KeyError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"{folder} holds no canaries: {error!s:.200}; make some with `labelveil audit canaries"
            " plant`"
        ) from error
    labels = np.vstack([labels, np.full(labels.shape[1], np.nan)])
    return Planted(planting, labels, shares, table["key"], secrets, users)


def _kinds(planting: Planting) -> Floats:
    """(k, m) labels of each secret: those beyond and between are of the first label."""
    planned, ends = planting.labels, np.array([(low, high) for _, low, high in planting.columns])
    (low, high), share = ends[0], uniform(3)
    beyond = [low - (0.1 + 3 * share[0]) * (high - low), high + (0.1 + 3 * share[1]) * (high - low)]
    others = np.tile(ends[:, 0], (4, 1))
    others[:, 0] = [*beyond, low + (0.05 + 0.9 * share[2]) * (high - low), high]
    return np.vstack([planned, others, np.full(len(ends), np.nan)])
