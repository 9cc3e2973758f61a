"""The files of deploy/, read as what they are."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PARTIES = ("label-party", "feature-party")


def documents(path: Path) -> list[dict[str, Any]]:
    """Return every document of a YAML file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def manifests(party: str) -> list[dict[str, Any]]:
    """Return every object of a party's Kubernetes manifests."""
    files = sorted((DEPLOY / party / "kubernetes").glob("*.yaml"))
    return [manifest for path in files for manifest in documents(path)]


def pod_of(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod that an object makes: its metadata and spec; None if it makes none."""
    spec = manifest.get("spec", {})
    template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    return template if isinstance(template, dict) else None


@dataclass(frozen=True)
class Stage:
    """One stage of a container file, FROM base AS name."""

    base: str
    name: str
    steps: list[tuple[str, str]]  # instruction and its text, in order, without the FROM

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]


def stages(party: str) -> list[Stage]:
    """Return the stages of a party's container file."""
    text = (DEPLOY / party / "Dockerfile").read_text().replace("\\\n", " ")
    found: list[Stage] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name, []))
        elif found:
            found[-1].steps.append((instruction, " ".join(rest.split())))
    return found


def assignments(text: str) -> dict[str, str]:
    """Return the variables of an ENV or LABEL instruction."""
    return dict(word.partition("=")[::2] for word in shlex.split(text))
