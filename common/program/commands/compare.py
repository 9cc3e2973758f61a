"""`labelveil compare`: randomizers × objectives × ε × runs on one data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from common.config import parse_settings
from common.console import numbers, stdout
from common.errors import ConfigError
from common.mechanisms.central.names import NEED_DELTA
from common.program.comparison import (
    Comparison,
    Method,
    baselines,
    compare,
    default_methods,
    make_jobs,
)
from common.program.simulation.inputs import read_inputs
from common.program.simulation.settings import Settings


def compare_command(
    labels: Annotated[Path, typer.Option(help="Labels: CSV or Parquet.")],
    features: Annotated[
        Path, typer.Option(help="Features: CSV or Parquet; may be the labels' file.")
    ],
    label: Annotated[str, typer.Option(help="Label column, a number.")],
    lower: Annotated[float, typer.Option(help="Public lower bound of the labels.")],
    upper: Annotated[float, typer.Option(help="Public upper bound of the labels.")],
    out: Annotated[Path, typer.Option(help="Folder for results, tables and plots.")],
    key: Annotated[str | None, typer.Option(help="Column that names the event.")] = None,
    epsilons: Annotated[str, typer.Option(help="Budgets, the prior included.")] = "0.5,1,2,4",
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RANDOMIZER[:OBJECTIVE[:HEAD]]",
            help="What to compare; repeatable. Default: the default, the published method, more.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baselines",
            help="'central': the default beside what a trusted curator would reach, who holds"
            " features and labels in one place (DP-SGD needs labelveil[central]).",
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of the baselines with Gaussian noise.")] = 1e-6,
    runs: Annotated[int, typer.Option(help="Repetitions, each with its own split.")] = 5,
    rows: Annotated[int | None, typer.Option(help="Use only so many events.")] = None,
    workers: Annotated[int, typer.Option(help="Processes; 0: one for each core.")] = 0,
    holdout: Annotated[float, typer.Option(help="Share of events kept for scoring.")] = 0.2,
    loss: Annotated[str, typer.Option(help="squared, absolute or poisson.")] = "squared",
    ignore: Annotated[
        list[str] | None, typer.Option(help="Column not learned from; repeatable.")
    ] = None,
    set_training: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Setting of [training], such as ensemble=4."),
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Compare ways to randomize labels and to learn from them, by the models they give."""
    budgets = numbers("--epsilons", epsilons)
    settings = Settings(
        labels=labels,
        features=features,
        label=label,
        lower=lower,
        upper=upper,
        epsilon=budgets[0],
        out=out,
        key=key,
        holdout=holdout,
        loss=loss,
        ignore=tuple(ignore or ()),
    )
    methods = [Method.parse(text) for text in method or ()]
    if baseline is not None:
        methods += baselines(baseline)
    jobs = make_jobs(methods or default_methods(), budgets, runs)
    central = any(job.method.randomizer in NEED_DELTA for job in jobs)
    if central and not 0 < delta < 1:
        raise ConfigError(f"delta={delta:g} must lie between 0 and 1; pass --delta 1e-6")
    training = parse_settings(set_training or ())
    compare(
        read_inputs(settings),
        Comparison(lower, upper, loss, holdout, rows, training, delta if central else None),
        jobs,
        out,
        workers=workers or os.cpu_count() or 1,
        quiet=quiet,
    )
    stdout.print((out / "table.md").read_text(), highlight=False, soft_wrap=True)
    stdout.print(f"tables and plots: {out}", highlight=False, soft_wrap=True)
