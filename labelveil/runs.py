"""The two commands that a notebook wants, as functions."""

from __future__ import annotations

from common.config.keywords import with_keywords
from common.program.comparison import CompareSettings, Comparison, run_comparison
from common.program.simulation import Outcome, Settings, run_simulation


@with_keywords(Settings)
def simulate(settings: Settings) -> Outcome:
    """Run both parties on this machine, with mutual TLS between them, and score the model.

    Returns the metrics, the report's path and the release that was sent; everything else is in
    ``out``. A refusal of either party is a `LabelveilError` with its own line.
    """
    return run_simulation(settings)


@with_keywords(CompareSettings)
def compare(settings: CompareSettings) -> Comparison:
    """Compare ways to randomize labels and to learn from them, by the models they give.

    Returns every run's record and their means; tables and plots are in ``out``. Called again with
    the same ``out`` it takes up where it was.
    """
    return run_comparison(settings)
