"""What tracing a call is to the server, which does not ask whether anybody traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol


class Span(Protocol):
    """One call being traced."""

    def end(self, status: str, facts: Mapping[str, Any]) -> None:
        """Say how it ended; ``facts`` are the public ones that the log has, too."""
        ...


class Traces:
    """Makes spans; these make none."""

    @contextmanager
    def call(self, method: str) -> Iterator[Span]:
        """Trace one call."""
        yield _NoSpan()

    def close(self) -> None:
        """Export what is left."""


class _NoSpan:
    def end(self, status: str, facts: Mapping[str, Any]) -> None:
        return


NO_TRACES = Traces()
