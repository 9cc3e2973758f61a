"""Both parties on one machine, as the separate processes that they are between two."""

from common.program.simulation.run import Outcome, run_simulation
from common.program.simulation.settings import Settings

__all__ = ["Outcome", "Settings", "run_simulation"]
