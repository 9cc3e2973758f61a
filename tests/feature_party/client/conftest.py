"""A clock that only waiting moves."""

from __future__ import annotations

import time

import pytest

from tests.feature_party.client.stubs import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    monkeypatch.setattr("labelveil.feature_party.client.release_client.hangs_up", lambda _: False)
    return found
