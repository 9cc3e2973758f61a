"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import settings

# Time says more about the machine than about the code; tests/benchmarks measures it.
settings.register_profile("labelveil", deadline=None)
settings.load_profile("labelveil")
