"""Which of the distribution's extras bring what is not installed."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from urllib.parse import unquote, urlsplit

from labelveil.common.errors import ConfigError

_NAMES = {
    "dp_accounting": "dp-accounting",
    "opentelemetry": "opentelemetry-sdk",
    "sklearn": "scikit-learn",
}
"""Distributions by the modules that they bring, where the names differ."""


def need(extra: str, purpose: str) -> None:
    """Refuse early what would end in a missing package; ``purpose`` is such as ``a simulation``."""
    for name in _requirements(extra):
        try:
            distribution(name)
        except PackageNotFoundError as error:
            raise ConfigError(
                f"{purpose} needs {name}, which is not installed; {install_command(extra)}"
            ) from error


def install_command(extra: str) -> str:
    """The command that installs an extra, from where labelveil itself was installed from.

    No name of a package index: labelveil is not published there, so whoever took the name could
    have any code installed in its place.
    """
    try:  # PEP 610: what pip keeps of where a distribution came from
        record = distribution("labelveil").read_text("direct_url.json")
    except PackageNotFoundError:
        record = None
    origin = json.loads(record or "{}")
    url = urlsplit(origin.get("url", ""))
    source = Path(unquote(url.path))
    if url.scheme != "file" or not source.exists():
        return f"in the folder that labelveil was installed from, run: pip install '.[{extra}]'"
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    return f"run: pip install {editable}'{source}[{extra}]'"


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module; None if none does."""
    top = module.partition(".")[0]
    package = _NAMES.get(top, top)
    extras = distribution("labelveil").metadata.get_all("Provides-Extra") or ()
    matching = (str(extra) for extra in extras if package in _requirements(extra))
    return next((extra for extra in matching if extra != "dev"), None)


def _requirements(extra: str) -> list[str]:
    """Distributions that an extra asks for by itself."""
    packages = []
    for line in requires("labelveil") or ():
        name, _, marker = line.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", marker):
            packages.append(re.split(r"[^A-Za-z0-9._-]", name)[0])
    return [name for name in packages if name != "labelveil"]
