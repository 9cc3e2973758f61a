"""``label-party init``: the configuration file and, if asked for, join secret and signing key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.release.event_keys import write_secret
from common.release.signature import SIGNING_KEY, write_signing_key
from label_party.config import template
from label_party.config.sections import load


def initialise(
    path: Path,
    values: Mapping[str, Any],
    *,
    new_secret: bool,
    new_signing_key: bool,
    force: bool,
) -> list[str]:
    """Write the files and return what to tell the user.

    The file is checked before it is written: what ``init`` accepts, ``release`` accepts.
    """
    if new_signing_key and values.get("signing_key") is None:
        values = {**values, "signing_key": Path("certificates") / SIGNING_KEY}
    text = template.render(values)
    config = load(None, _flat(tomllib.loads(text)))
    template.write(path, text, force=force)
    lines = [f"wrote {path}; read it, then run: label-party release"]
    if new_secret:
        write_secret(config.keys.secret_file)
        lines.append(f"wrote {config.keys.secret_file}; give the features party a copy, safely")
    if new_signing_key and config.keys.signing_key is not None:
        public = write_signing_key(config.keys.signing_key)
        lines.append(
            f"wrote {config.keys.signing_key} and {public}; give the features party the latter, in"
            " a way that it can trust"
        )
    return lines


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value for section, keys in data.items() for key, value in keys.items()
    }
