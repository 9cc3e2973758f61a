"""Canaries: events whose labels are secrets of the auditor, drawn here and given to labels parties.

:func:`draw` makes those that a partner is given, and :func:`plant` keeps them in a folder:

    FOLDER/partner/NAME.parquet             key, label   for the labels party
    FOLDER/partner/NAME-population.parquet  key          for the labels party
    FOLDER/secrets.parquet            key, secret, user  for nobody else
    FOLDER/plan.json                        what was planted; written last

Most of their events have one of the planned labels, each as often; the others a label beyond either
bound or between two values, two rows of the highest label, or *no label at all*, in about the
shares of a data set that nobody would stop at (``ODD``). :func:`at_the_ends` makes those whose
secret is a bit. Secrets are independent, from the operating system's entropy. Keys look like
anybody's; they are uniform 128-bit numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

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
class Canaries:
    """Events whose labels nobody but the auditor knows, in the order of their population."""

    names: Sequence[str]  # of an event's m labels
    labels: Floats  # (k, m) of each secret; the last is no label at all, NaN
    repeated: int  # the secret of events with two rows; -1 for none
    secrets: Integers  # (n,)
    public: pl.DataFrame  # (n rows) keys, and what else everybody may see of the events

    @property
    def keys(self) -> pl.Series:
        """(n,) of the events."""
        return self.public.to_series()

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """What a labels party is given: its labels, and the population."""
        columns = {name: self.labels[self.secrets, at] for at, name in enumerate(self.names)}
        key, *others = self.public.columns
        whole = self.public.with_columns(**columns).select(key, *self.names, *others)
        known = np.flatnonzero(self.secrets < len(self.labels) - 1)
        again = np.flatnonzero(self.secrets == self.repeated)
        # by the ends of the keys, and second rows by their beginnings: wherever they fall
        texts = [text[::-1] for text in self.keys.gather(known)] + self.keys.gather(again).to_list()
        return whole[np.append(known, again)[np.argsort(texts)]], self.public

    def without(self, event: int) -> Self:
        """The same, but that one event has no label."""
        secrets = self.secrets.copy()
        secrets[event] = len(self.labels) - 1
        return replace(self, secrets=secrets)

    def mirrored(self, lower: float, upper: float) -> Self:
        """The same with other labels: as far from the lower bound as they were from the upper."""
        return replace(self, labels=lower + upper - self.labels)


def at_the_ends(
    secrets: Integers, names: Sequence[str], lower: float, upper: float, public: Mapping[str, Any]
) -> Canaries:
    """Canaries of (n,) secret bits: all labels of an event are the upper bound, or the lower.

    There are further ``public`` columns of n values beside their keys.
    """
    labels = np.repeat([[lower], [upper], [np.nan]], len(names), axis=1)
    table = pl.DataFrame({"key": _new_keys(secrets.size), **public})
    return Canaries(names, labels, -1, secrets, table)


@dataclass(frozen=True, eq=False)
class Planted(Canaries):
    """Canaries of many kinds, for a partner; the last two are several rows, and no label."""

    planting: Planting  # how they were made
    shares: Floats  # (k,) of the events: with which probability one has each secret
    users: Integers  # (n,) numbers

    def counted(self, missing: Sequence[float]) -> Floats:
        """(k, m) labels of each secret as the partner's rules make them: ``missing`` for none."""
        labels = self.labels.copy()
        labels[-1] = missing
        if self.planting.duplicates == "missing":
            labels[-2] = missing
        return labels

    def in_words(self, secret: int) -> str:
        """What a secret is; beyond the last, that of an event above its user's limit."""
        if secret == len(self.labels):
            return "above the limit of a user"
        if secret >= len(self.labels) - 2:
            return ("several rows", "no label")[secret - len(self.labels) + 2]
        return " with ".join(f"{label:g}" for label in self.labels[secret])


def draw(planting: Planting) -> Planted:
    """Draw secrets, keys and users."""
    labels, planned = _kinds(planting), len(planting.labels)
    odd = np.repeat(np.arange(len(ODD) + 1), (OF - sum(ODD), *ODD))  # 0 for the planned ones
    drawn = odd[draw_secrets(planting.events, OF)]
    secrets = np.where(drawn, planned - 1 + drawn, draw_secrets(planting.events, planned))
    shares = np.append(np.full(planned, (OF - sum(ODD)) / planned), ODD) / OF
    keys = _new_keys(planting.events)
    users = np.argsort(system_entropy().words("users", 0, keys.len())) // max(2 * planting.users, 1)
    return _planted(planting, labels, shares, keys, secrets, users)


def plant(folder: Path, planting: Planting) -> bool:
    """Draw canaries and write the files; False if exactly these were planted before.

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
    made = draw(planting)
    known, population = made.tables()
    hidden = pl.DataFrame({"key": made.keys, "secret": made.secrets, "user": made.users})
    said = {"format": FORMAT, "labels": made.labels[:-1].tolist(), "shares": made.shares.tolist()}
    with file_errors(ConfigError, f"{folder} cannot be written"):
        (folder / PARTNER).mkdir(parents=True, exist_ok=True)
        for path, table, mode in (
            (SECRETS_FILE, hidden, PRIVATE),
            (f"{PARTNER}/{planting.name}.parquet", known, PUBLIC),
            (f"{PARTNER}/{planting.name}-population.parquet", population, PUBLIC),
        ):
            with appearing(folder / path, mode=mode) as file:
                table.write_parquet(file)
        with appearing(plan) as file:
            file.write(json.dumps(said | planting.model_dump(), indent=2).encode())
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
    except (OSError, ValueError, TypeError, KeyError, ConfigError, PolarsError) as error:
        raise DataError(
            f"{folder} holds no canaries: {error!s:.200}; make some with `labelveil audit canaries"
            " plant`"
        ) from error
    labels = np.vstack([labels, np.full(labels.shape[1], np.nan)])
    return _planted(planting, labels, shares, table["key"], secrets, users)


def _planted(
    planting: Planting,
    labels: Floats,
    shares: Floats,
    keys: pl.Series,
    secrets: Integers,
    users: Integers,
) -> Planted:
    day = {} if planting.date is None else dict([planting.date.split(":", 1)])
    public = pl.DataFrame({planting.key: keys, **({"user": users} if planting.users else {})})
    public = public.with_columns(pl.lit(value).alias(column) for column, value in day.items())
    names, repeated = [name for name, *_ in planting.columns], len(labels) - 2
    return Planted(names, labels, repeated, secrets, public, planting, shares, users)


def _kinds(planting: Planting) -> Floats:
    """(k, m) labels of each secret: those beyond and between are of the first label."""
    planned, ends = planting.labels, np.array([(low, high) for _, low, high in planting.columns])
    (low, high), share = ends[0], uniform(3)
    beyond = [low - (0.1 + 3 * share[0]) * (high - low), high + (0.1 + 3 * share[1]) * (high - low)]
    others = np.tile(ends[:, 0], (4, 1))
    others[:, 0] = [*beyond, low + (0.05 + 0.9 * share[2]) * (high - low), high]
    return np.vstack([planned, others, np.full(len(ends), np.nan)])


def _new_keys(events: int) -> pl.Series:
    words = system_entropy().words("keys", 0, 2 * events).tobytes()
    return pl.Series([words[at : at + 16].hex() for at in range(0, len(words), 16)])
