"""`labelveil demo`: the simulation on data that everybody has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.program.commands.simulate import show
from common.program.simulation import Settings
from common.program.simulation.demo_data import KEY, LABEL, LOWER, UPPER, write_demo_data


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to; an earlier demo is replaced.")] = (
        Path("out/demo")
    ),
    epsilon: Annotated[float, typer.Option(help="What the release may reveal, above 0.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Chooses splits and weights, never noise.")] = 0,
) -> None:
    """Simulate both parties on 20,190 person-years of visits to the doctor; write a report."""
    files = write_demo_data(out / "data")
    show(
        Settings(
            labels=files.labels,
            features=files.features,
            key=KEY,
            label=LABEL,
            lower=LOWER,
            upper=UPPER,
            epsilon=epsilon,
            seed=seed,
            out=out / "run",
            overwrite=True,
        )
    )
