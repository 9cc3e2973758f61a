"""Whether torchrun started several of this process; torch itself is not needed to know."""

from __future__ import annotations

import os

from labelveil.common.errors import ConfigError


def started_by_torchrun() -> int:
    """How many workers torchrun started; 1 without it."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdigit() or int(size) < 1:
        raise ConfigError(f"WORLD_SIZE={size!r} must be a whole number >= 1; start with torchrun")
    return int(size)


def refuse_torchrun() -> None:
    """Raise ``ConfigError`` if torchrun started several processes for what takes one."""
    if (size := started_by_torchrun()) > 1:
        raise ConfigError(
            f"WORLD_SIZE={size}, but train alone takes several processes; run this command without"
            " torchrun"
        )
