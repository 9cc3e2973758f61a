"""Shares of the events that rounds of sums ask about, one after another; measured in
docs/appendix/sums.md."""

from __future__ import annotations

FIVE = (0.15, 0.15, 0.2, 0.2, 0.3)
THREE = (0.25, 0.3, 0.45)
_ENOUGH = 4_000.0
"""Events times ε from which on the first of five rounds has some 70 groups. With fewer groups three
rounds, which begin with a quarter of the events, are about as good."""


def usual_shares(events: int, epsilon: float) -> tuple[float, ...]:
    """Shares of so many events, those kept for a score included, that rounds ask about: five
    rounds, or three where noise leaves few groups."""
    return FIVE if events * epsilon >= _ENOUGH else THREE
