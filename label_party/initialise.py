"""``label-party init``: the configuration file and, if asked for, the join secret."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.keys import write_secret
from label_party import template
from label_party.config import load


def initialise(
    path: Path, values: Mapping[str, Any], *, new_secret: bool, force: bool
) -> list[str]:
    """Write the files and return what to tell the user.

    The file is checked before it is written: what ``init`` accepts, ``release`` accepts.
    """
    text = template.render(values)
    config = load(None, _flat(tomllib.loads(text)))
    template.write(path, text, force=force)
    lines = [f"wrote {path}; read it, then run: label-party release"]
    if new_secret:
        write_secret(config.keys.secret_file)
        lines.append(f"wrote {config.keys.secret_file}; give the features party a copy, safely")
    return lines


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value for section, keys in data.items() for key, value in keys.items()
    }
