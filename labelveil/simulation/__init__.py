"""Both parties on one machine, as the separate processes that they are between two."""

from labelveil.simulation.run import Outcome, run_simulation
from labelveil.simulation.settings import Settings

__all__ = ["Outcome", "Settings", "run_simulation"]
