"""Both parties on one machine, as the separate processes that they are between two."""

from common.simulation.run import Outcome, simulate
from common.simulation.settings import Settings

__all__ = ["Outcome", "Settings", "simulate"]
