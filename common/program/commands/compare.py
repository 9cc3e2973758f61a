"""`labelveil compare`: randomizers × objectives × ε × runs on one data set."""

from __future__ import annotations

from common.config.options import with_options
from common.console import stdout
from common.program.comparison import CompareSettings, run_comparison


@with_options()
def compare(settings: CompareSettings) -> None:
    """Compare ways to randomize labels and to learn from them, by the models they give."""
    out = run_comparison(settings).folder
    stdout.print((out / "table.md").read_text(), highlight=False, soft_wrap=True)
    stdout.print(f"tables and plots: {out}", highlight=False, soft_wrap=True)
