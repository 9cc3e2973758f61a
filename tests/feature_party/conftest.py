"""Fixtures of the features party's tests."""

from __future__ import annotations

import pytest

from tests.feature_party.worlds import World, build_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """1,500 events at ε = 4 by randomized thresholds."""
    return build_world(tmp_path_factory.mktemp("world"))
