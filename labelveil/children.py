"""Processes of our own modules: they import what this process imports, wherever they work."""

from __future__ import annotations

import os
import sys

LABEL_PROGRAM, FEATURE_PROGRAM = (
    "labelveil.label_party.__main__",
    "labelveil.feature_party.__main__",
)
"""The parties' programs."""


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def child_environment(**more: str) -> dict[str, str]:
    """Return this environment with this process's search path, and no working directory before it.

    The path is passed on in its order, so that a child finds the packages that this process found.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **more}
