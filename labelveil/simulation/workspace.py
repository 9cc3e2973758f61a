"""Where a simulation keeps things, and what it gives each party to start from."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from common.security.pilot_certificates import (
    FEATURE_PARTY,
    LABEL_PARTY,
    CertificateFiles,
    write_certificates,
)
from labelveil.simulation.inputs import Inputs
from labelveil.simulation.settings import Settings

CONFIG_FILES = {"label_party": "label_party.toml", "feature_party": "feature_party.toml"}


@dataclass(frozen=True)
class Workspace:
    """The folder of one run; either party's processes work in a folder of their own."""

    root: Path

    @property
    def label_party(self) -> Path:
        return self.root / "label_party"

    @property
    def feature_party(self) -> Path:
        return self.root / "feature_party"

    @property
    def certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def release(self) -> Path:
        return self.root / "release"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def nonprivate(self) -> Path:
        return self.root / "nonprivate"

    @property
    def truth(self) -> Path:
        """True labels, for scoring: in a folder that belongs to neither party."""
        return self.root / "truth"

    @property
    def truth_labels(self) -> Path:
        return self.truth / "labels.parquet"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def predictions(self) -> Path:
        return self.root / "predictions.parquet"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.json"

    @property
    def port_file(self) -> Path:
        return self.label_party / "port"

    def _entries(self) -> tuple[Path, ...]:
        return (
            self.label_party,
            self.feature_party,
            self.certificates,
            self.release,
            self.model,
            self.nonprivate,
            self.truth,
            self.logs,
            self.predictions,
            self.report,
            *self.root.glob(f"{self.report.stem}-*{self.report.suffix}"),
            self.metrics,
        )

    def claim(self, *, overwrite: bool) -> None:
        """Make the folder, or clear an earlier run out of it if that is wanted.

        Raises
        ------
        ConfigError
            If something is in the way.
        """
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"--out {self.root} is a file; name a folder")
        if self.root.is_dir() and any(self.root.iterdir()):
            if not overwrite:
                raise ConfigError(
                    f"--out {self.root} is not empty; choose another folder, or pass --overwrite"
                    " to replace an earlier run"
                )
            # Only what a run leaves behind: the folder may hold the user's own files, too.
            for entry in self._entries():
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
        try:
            for folder in (self.label_party, self.feature_party, self.truth, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {self.root} cannot be written: {error.strerror}") from error


def furnish(workspace: Workspace, inputs: Inputs, settings: Settings) -> CertificateFiles:
    """Write certificates, either party's data and either party's configuration."""
    files = write_certificates(workspace.certificates, days=2)
    inputs.labels.write_parquet(workspace.label_party / "labels.parquet")
    if inputs.population is not None:
        inputs.population.write_parquet(workspace.label_party / "population.parquet")
    inputs.features.write_parquet(workspace.feature_party / "features.parquet")
    inputs.truth.write_parquet(workspace.truth_labels)
    _write_config(
        workspace.label_party / CONFIG_FILES["label_party"],
        label_party_config(inputs, settings, files),
    )
    _write_config(
        workspace.feature_party / CONFIG_FILES["feature_party"],
        feature_party_config(inputs, settings, files),
    )
    return files


def label_party_config(
    inputs: Inputs, settings: Settings, files: CertificateFiles
) -> dict[str, Any]:
    """Return the labels party's configuration, section by section."""
    data: dict[str, Any] = {
        "labels": "labels.parquet",
        "key": inputs.key,
        "data_set": data_set_name(settings.labels),
        "epoch": "1",
        "duplicates": settings.duplicates or "missing",
    }
    if inputs.population is not None:
        data["population"] = "population.parquet"
    elif settings.submit_population:
        data["population"] = "submitted"
    if len(settings.columns) > 1:
        labels = _label_tables(settings)
    else:
        (label,) = settings.columns
        data |= {"label": label.column, "missing": settings.missing_value(label)}
        labels = {
            "domain": {"lower": label.lower, "upper": label.upper},
            "randomizer": {"name": settings.randomizer, "loss": settings.loss},
        }
    return {
        "data": data,
        **labels,
        "privacy": {"epsilon": settings.epsilon},
        "keys": {"secret_file": _beside(files.join_secret)},
        "store": {"directory": "store"},
        "server": {
            "listen": "127.0.0.1:0",
            "certificate": _beside(files.label_party_certificate),
            "private_key": _beside(files.label_party_key),
            "client_ca": _beside(files.authority),
            "client_san": FEATURE_PARTY,
            "grace_seconds": 2.0,
        },
    }


def _label_tables(settings: Settings) -> dict[str, Any]:
    """Several labels; whoever names a randomizer is told by the labels party that there is none."""
    named = {} if settings.randomizer == "auto" else {"randomizer": {"name": settings.randomizer}}
    tables = [
        {
            "name": one.column,
            "lower": one.lower,
            "upper": one.upper,
            "missing": settings.missing_value(one),
            "loss": settings.loss,
        }
        for one in settings.columns
    ]
    return {"label": tables, **named}


def feature_party_config(
    inputs: Inputs, settings: Settings, files: CertificateFiles
) -> dict[str, dict[str, Any]]:
    """Return the features party's configuration; the server's address is known only later."""
    return {
        "data": {"features": "features.parquet", "key": inputs.key},
        "labels_party": {
            "server_name": LABEL_PARTY,
            "ca": _beside(files.authority),
            "certificate": _beside(files.feature_party_certificate),
            "private_key": _beside(files.feature_party_key),
            "data_set": data_set_name(settings.labels),
            "epoch": "1",
            "submit": settings.submit_population,
        },
        "keys": {"secret_file": _beside(files.join_secret)},
        "release": {"directory": "../release", "parquet": True},
        "training": {
            "objective": settings.objective,
            "head": settings.head,
            "holdout": settings.holdout,
            "seed": settings.seed,
        },
        "output": {
            "model": "../model",
            "predictions": "../predictions.parquet",
            "metrics": "metrics.json",
            "report": "../report.html",
        },
    }


def data_set_name(labels: Path) -> str:
    """Name a data set after its file, in the letters that such a name may have."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", labels.stem).strip("-._")[:64]
    return name or "simulation"


def _beside(path: Path) -> str:
    """Either party works in a folder beside the certificates': the whole run can be moved."""
    return f"../{path.parent.name}/{path.name}"


def _write_config(path: Path, sections: Mapping[str, Any]) -> None:
    lines = ["# Written for one simulated run. Paths are relative to this folder."]
    for section, found in sections.items():
        several = isinstance(found, list)
        for values in found if several else [found]:
            lines += ["", f"[[{section}]]" if several else f"[{section}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: str | float) -> str:
    # A JSON string is a TOML basic string, and so are its numbers.
    return json.dumps(value, ensure_ascii=False)
