"""How much is tried of what takes hours: a sample, or all of it with ``make test-exhaustive``."""

from __future__ import annotations

import os

EXHAUSTIVE = os.environ.get("LABELVEIL_EXHAUSTIVE") == "1"
"""Whether all of it is tried, as ``make test-exhaustive`` does."""


def effort(sample: int, everything: int) -> int:
    """How many: a sample's, or everything's where all of it is tried."""
    return everything if EXHAUSTIVE else sample
