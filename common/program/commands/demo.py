"""`labelveil demo`: the simulation on data that everybody has."""

from __future__ import annotations

from pathlib import Path

from common.config import Section, setting
from common.config.options import with_options
from common.program.commands.simulate import show
from common.program.simulation import Settings
from common.program.simulation.demo_data import KEY, LABEL, LOWER, UPPER, write_demo_data
from common.randomizers.base import MAX_EPSILON


class DemoOptions(Section):
    """The demo's own options."""

    out: Path = setting(Path("out/demo"), "Folder to write to; an earlier demo is replaced.")
    epsilon: float = setting(1.0, "What the release may reveal.", gt=0, le=MAX_EPSILON)
    seed: int = setting(0, "Chooses splits and weights, never noise.", ge=0)


@with_options()
def demo(options: DemoOptions) -> None:
    """Simulate both parties on 20,190 person-years of visits to the doctor; write a report."""
    files = write_demo_data(options.out / "data")
    show(
        Settings(
            labels=files.labels,
            features=files.features,
            key=KEY,
            label=LABEL,
            lower=LOWER,
            upper=UPPER,
            epsilon=options.epsilon,
            seed=options.seed,
            out=options.out / "run",
            overwrite=True,
        )
    )
