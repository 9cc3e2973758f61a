"""Servers that offer evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labelveil.label_party.server.run import running
from tests.label_party.conftest import Party
from tests.label_party.queries.asking import OFFERED, RELEASED, Asker, Connect, make_asker


@pytest.fixture
def serve(party: Party, connect: Connect) -> Callable[..., Any]:
    """Start servers with settings; the release exists already."""
    assert party.release(**RELEASED).code == 0

    class Serving:
        def __init__(self, **settings: Any) -> None:
            self._run = running(party.config(**(OFFERED | settings)))

        def __enter__(self) -> Asker:
            return make_asker(party, connect(self._run.__enter__()))

        def __exit__(self, *exception: Any) -> None:
            self._run.__exit__(*exception)

    return Serving
