"""Where a simulation keeps things, and what it gives each party to start from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelveil.common.config.wording import as_toml
from labelveil.common.errors import ConfigError
from labelveil.common.files import file_errors, write_text, writing
from labelveil.common.security.pilot_certificates import (
    FEATURE_PARTY,
    LABEL_PARTY,
    CertificateFiles,
    write_certificates,
)
from labelveil.simulation.inputs import Inputs
from labelveil.simulation.settings import GROUPS, LabelColumn, Settings

EPOCH = "1"
STRATA_FILE = "strata.txt"


class Workspace:
    """The folder of one run; either party's processes work in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.label_party = root / "label_party"
        self.feature_party = root / "feature_party"
        self.certificates = root / "certificates"
        self.release = root / "release"
        self.model = root / "model"
        self.nonprivate = root / "nonprivate"
        self.truth = root / "truth"  # for scoring: it belongs to neither party
        self.truth_labels = self.truth / "labels.parquet"
        self.logs = root / "logs"
        self.predictions = root / "predictions.parquet"
        self.report = root / "report.html"
        self.metrics = root / "metrics.json"
        self.port_file = self.label_party / "port"

    def releases(self, rounds: int) -> list[Path]:
        """Folders of the releases: one of all events, or one of each round."""
        numbers = range(1, rounds + 1)
        return [self.release / f"{EPOCH}-{number}" for number in numbers] or [self.release]

    @property
    def trained(self) -> bool:
        """Whether the model is there, whose description is written last."""
        return (self.model / "model.json").is_file()

    def claim(self, *, overwrite: bool) -> None:
        """Make the folder, or clear an earlier run out of it; ``ConfigError`` if it is in use."""
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"--out {self.root} is a file; name a folder")
        if self.root.is_dir() and any(self.root.iterdir()):
            if not overwrite:
                raise ConfigError(
                    f"--out {self.root} is not empty; choose another folder, or pass --overwrite"
                    " to replace an earlier run"
                )
            # Only what a run leaves behind: the folder may hold the user's own files, too.
            ours = {*vars(self).values()} - {self.root}
            for entry in (*ours, *self.root.glob(f"{self.report.stem}-*{self.report.suffix}")):
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
        with file_errors(ConfigError, f"--out {self.root} cannot be written"):
            for folder in (self.label_party, self.feature_party, self.truth, self.logs):
                folder.mkdir(parents=True, exist_ok=True)


def furnish(workspace: Workspace, inputs: Inputs, settings: Settings) -> CertificateFiles:
    """Write certificates, either party's data and either party's configuration."""
    files = write_certificates(workspace.certificates, days=2)
    with writing(workspace.label_party):
        inputs.labels.write_parquet(workspace.label_party / "labels.parquet")
        if inputs.population is not None:
            inputs.population.write_parquet(workspace.label_party / "population.parquet")
    if inputs.strata:
        write_text(workspace.label_party / STRATA_FILE, "\n".join(inputs.strata))
    with writing(workspace.root):
        inputs.features.write_parquet(workspace.feature_party / "features.parquet")
        inputs.truth.write_parquet(workspace.truth_labels)
    _write_config(workspace.label_party, _label_party_config(inputs, settings, files))
    _write_config(workspace.feature_party, _feature_party_config(inputs, settings, files))
    return files


def config_file(party: str) -> str:
    return f"{party}.toml"


def _domain(inputs: Inputs, settings: Settings, label: LabelColumn) -> dict[str, Any]:
    # of sums the question says the points, of which any whole numbers are some
    grid = "whole" if inputs.whole(label) and settings.ask != GROUPS else "auto"
    return {"lower": label.lower, "upper": label.upper, "grid": grid}


def _label_party_config(
    inputs: Inputs, settings: Settings, files: CertificateFiles
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "labels": "labels.parquet",
        "key": inputs.key,
        "data_set": _data_set_name(settings.labels),
        "epoch": EPOCH,
        "duplicates": settings.duplicates or "missing",
    }
    if inputs.population is not None:
        data["population"] = "population.parquet"
    elif settings.submitted:
        data["population"] = "submitted"
    asking: dict[str, Any] = {}
    if settings.strata is not None:
        asking = {"strata": {"column": settings.strata, "values": STRATA_FILE}}
    if settings.shares:  # each as soon as it is submitted
        asks = {"questions": len(settings.label_columns) == 1}
        asking = {"rounds": asks, "watch": {"interval": 0.2}}
    randomizer = {"name": settings.randomizer, "loss": settings.loss}
    if len(settings.label_columns) == 1:  # the short form: `domain.grid` and others can be set
        (label,) = settings.label_columns
        data |= {"label": label.column, "missing": settings.missing_value(label)}
        labels: dict[str, Any] = {"domain": _domain(inputs, settings, label)}
    else:
        del randomizer["loss"]
        labels = {
            "label": [
                {
                    "name": label.column,
                    **_domain(inputs, settings, label),
                    "missing": settings.missing_value(label),
                    "loss": settings.loss,
                }
                for label in settings.label_columns
            ]
        }
    return {
        "data": data,
        **labels,
        "randomizer": randomizer,
        **asking,
        "privacy": {
            "epsilon": settings.epsilon,
            **({"epochs": "disjoint"} if settings.shares else {}),
        },
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


def _feature_party_config(
    inputs: Inputs, settings: Settings, files: CertificateFiles
) -> dict[str, dict[str, Any]]:
    asking: dict[str, Any] = {"rounds": {"shares": settings.shares}}
    if settings.ask == GROUPS:
        (label,) = settings.label_columns
        agreed = {"epsilon": settings.epsilon, "lower": label.lower, "upper": label.upper}
        asking |= {"groups": agreed}
    # the server's address is known only later
    return {
        "data": {
            "features": "features.parquet",
            "key": inputs.key,
            "columns": dict(inputs.columns),
        },
        "labels_party": {
            "server_name": LABEL_PARTY,
            "ca": _beside(files.authority),
            "certificate": _beside(files.feature_party_certificate),
            "private_key": _beside(files.feature_party_key),
            "data_set": _data_set_name(settings.labels),
            "epoch": EPOCH,
            "submit": settings.submitted,
            "wait": 3600.0,  # the run begins beside the release
        },
        **asking,
        "keys": {"secret_file": _beside(files.join_secret)},
        "release": {"directory": "../release", "parquet": settings.ask != GROUPS},
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


def _data_set_name(labels: Path) -> str:
    """Name a data set after its file, in the letters that such a name may have."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", labels.stem).strip("-._")[:64]
    return name or "simulation"


def _beside(path: Path) -> str:
    """Either party works in a folder beside the certificates': the whole run can be moved."""
    return f"../{path.parent.name}/{path.name}"


def _write_config(folder: Path, sections: Mapping[str, Any]) -> None:
    lines = ["# Written for one simulated run. Paths are relative to this folder."]
    for section, content in sections.items():
        several = isinstance(content, list)
        for values in content if several else [content]:
            lines += ["", f"[[{section}]]" if several else f"[{section}]"]
            lines += [f"{key} = {as_toml(value)}" for key, value in values.items()]
    path = folder / config_file(folder.name)
    write_text(path, "\n".join(lines) + "\n")
