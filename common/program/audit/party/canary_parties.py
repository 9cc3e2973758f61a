"""Canary data sets that the auditor makes, and labels parties that run on them as processes.

All labels are uniform secrets, the domain's lower or upper bound, so that one release is a one-run
audit too. The second world lacks one label: its event is in the population all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.program.audit.attacks.one_run import Secrets, draw_secrets
from common.program.audit.party.endpoint import Connection
from common.program.simulation.processes import StageFailed, run_party, serving
from common.release.event_keys import hash_keys, read_secret
from common.security.pilot_certificates import (
    FEATURE_PARTY,
    LABEL_PARTY,
    CertificateFiles,
    write_certificates,
)

DATA_SET = "canaries"
LOWER, UPPER = 0.0, 10.0
CONFIG = "label_party.toml"


@dataclass(frozen=True)
class Plan:
    """What the canary data sets are like.

    Attributes
    ----------
    folder
        Where everything is made.
    rows
        Events in the population.
    epsilon
        Budget of the one release.
    randomizer
        The randomizer that the labels party is configured with.
    """

    folder: Path
    rows: int = 20_000
    epsilon: float = 1.0
    randomizer: str = "auto"


class World:
    """One labels party with its own folder, store and data; all share one set of certificates."""

    def __init__(self, plan: Plan, name: str, files: CertificateFiles) -> None:
        self.folder = plan.folder / name
        self.files = files
        self._plan = plan
        self.folder.mkdir(parents=True)

    def furnish(self, secrets: Secrets, missing: int | None = None) -> None:
        """Write labels, population and configuration; ``missing`` is an event without a label."""
        self.write_labels(secrets, missing)
        keys = [f"event-{i}" for i in range(secrets.size)]
        pl.DataFrame({"key": keys}).write_parquet(self.folder / "population.parquet")
        (self.folder / CONFIG).write_text(self._config(), encoding="utf-8")

    def write_labels(self, secrets: Secrets, missing: int | None = None) -> None:
        """Write (or replace) the labels file alone."""
        keys = [f"event-{i}" for i in range(secrets.size)]
        labels = np.where(secrets == 1, UPPER, LOWER)
        table = pl.DataFrame({"key": keys, "label": labels})
        if missing is not None:
            table = table.filter(pl.arange(0, pl.len()) != missing)
        table.write_parquet(self.folder / "labels.parquet")

    def release(self, *arguments: str) -> str | None:
        """Run ``label-party release``; returns the refusal's line, or None for success."""
        command = ["release", "--config", CONFIG, "--quiet", *arguments]
        try:
            run_party("label_party", command, self.folder, self.folder / "release.log")
        except StageFailed as failure:
            return str(failure)
        return None

    def budget(self) -> list[dict[str, Any]]:
        """What ``label-party budget --json`` says."""
        log = self.folder / "budget.log"
        log.unlink(missing_ok=True)
        run_party("label_party", ["budget", "--config", CONFIG, "--json"], self.folder, log)
        found = json.loads(log.read_text(encoding="utf-8"))
        return found if isinstance(found, list) else [found]

    @contextmanager
    def serving(self) -> Iterator[Connection]:
        """Run ``label-party serve``; yields how to reach it."""
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = ["serve", "--config", CONFIG, "--port-file", str(port_file)]
        with serving(command, self.folder, self.folder / "serve.log", port_file) as port:
            yield Connection(
                f"127.0.0.1:{port}",
                self.files.authority,
                self.files.feature_party_certificate,
                self.files.feature_party_key,
                DATA_SET,
                server_name=LABEL_PARTY,
            )

    def _config(self) -> str:
        files = self.files
        sections: dict[str, dict[str, Any]] = {
            "data": {
                "labels": "labels.parquet",
                "population": "population.parquet",
                "key": "key",
                "label": "label",
                "data_set": DATA_SET,
                "epoch": "1",
            },
            "domain": {"lower": LOWER, "upper": UPPER},
            "privacy": {"epsilon": self._plan.epsilon},
            "randomizer": {"name": self._plan.randomizer},
            "keys": {"secret_file": str(files.join_secret.absolute())},
            "store": {"directory": "store"},
            "server": {
                "listen": "127.0.0.1:0",
                "certificate": str(files.label_party_certificate.absolute()),
                "private_key": str(files.label_party_key.absolute()),
                "client_ca": str(files.authority.absolute()),
                "client_san": FEATURE_PARTY,
                "requests_per_minute": 1_000_000,
                "grace_seconds": 2.0,
            },
        }
        lines: list[str] = []
        for section, values in sections.items():
            lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items()), ""]
        return "\n".join(lines)


@dataclass(frozen=True)
class Worlds:
    """Three labels parties over one population: all labels, one label less, all labels again."""

    whole: World
    less: World
    again: World
    secrets: Secrets

    def in_row_order(self) -> Secrets:
        """Secrets in the order of a release's rows: by hashed key."""
        keys = pl.Series([f"event-{i}" for i in range(self.secrets.size)])
        hashed = hash_keys(keys, read_secret(self.whole.files.join_secret))
        return self.secrets[np.argsort(np.frombuffer(hashed, dtype="S16"), kind="stable")]


def make_worlds(plan: Plan) -> Worlds:
    """Make certificates, data sets and configurations."""
    files = write_certificates(plan.folder / "certificates", days=2)
    secrets = draw_secrets(plan.rows, 2)
    secrets[0] = 1  # the canary: at the upper bound, or without a label (the lower bound)
    whole, less, again = (World(plan, name, files) for name in ("whole", "less", "again"))
    whole.furnish(secrets)
    less.furnish(secrets, missing=0)
    again.furnish(secrets)
    return Worlds(whole, less, again, secrets)
