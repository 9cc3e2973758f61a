"""`labelveil simulate`: both parties on this machine, with real processes and real mutual TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from common.console import stdout
from common.program.simulation import Settings, simulate
from common.program.simulation.summary import summary_table


def simulate_command(
    labels: Annotated[Path, typer.Option(help="Labels: CSV or Parquet.")],
    features: Annotated[
        Path, typer.Option(help="Features: CSV or Parquet; may be the labels' file.")
    ],
    label: Annotated[str, typer.Option(help="Label column, a number.")],
    lower: Annotated[float, typer.Option(help="Public lower bound of the labels.")],
    upper: Annotated[float, typer.Option(help="Public upper bound of the labels.")],
    epsilon: Annotated[float, typer.Option(help="What the release may reveal, above 0.")],
    out: Annotated[Path, typer.Option(help="Folder for everything that the run leaves behind.")],
    key: Annotated[
        str | None,
        typer.Option(help="Column that names the event in both files; default for one file: rows."),
    ] = None,
    holdout: Annotated[float, typer.Option(help="Share of events kept for scoring.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Chooses splits and weights, never noise.")] = 0,
    randomizer: Annotated[str, typer.Option(help="What labels are randomized with.")] = "auto",
    objective: Annotated[str, typer.Option(help="What the model is trained for.")] = "auto",
    head: Annotated[str, typer.Option(help="Shape of the predicted distribution.")] = "auto",
    loss: Annotated[str, typer.Option(help="squared, absolute or poisson.")] = "squared",
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Column withheld from the features party; repeatable."),
    ] = None,
    population: Annotated[
        Path | None, typer.Option(help="Every event both sides know, with the key column.")
    ] = None,
    submit_population: Annotated[
        bool, typer.Option(help="The features' events are the population; they are submitted.")
    ] = False,
    missing: Annotated[
        float | None, typer.Option(help="Label of an event without one; default 0.")
    ] = None,
    duplicates: Annotated[
        str, typer.Option(help="Several labels of one key: refuse, sum, mean or last.")
    ] = "refuse",
    set_label: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY=VALUE", help="Setting of the labels party; repeatable."),
    ] = None,
    set_feature: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=VALUE", help="Setting of the features party; repeatable."
        ),
    ] = None,
    nonprivate: Annotated[
        bool, typer.Option(help="Also train the same network on the true labels, to compare.")
    ] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier run in the folder.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress, no table.")] = False,
) -> None:
    """Run both parties on this machine and score the model with the true labels."""
    settings = Settings(
        labels=labels,
        features=features,
        label=label,
        lower=lower,
        upper=upper,
        epsilon=epsilon,
        out=out,
        key=key,
        holdout=holdout,
        seed=seed,
        randomizer=randomizer,
        objective=objective,
        head=head,
        loss=loss,
        ignore=tuple(ignore or ()),
        population=population,
        submit_population=submit_population,
        missing=missing,
        duplicates=duplicates,
        label_settings=tuple(set_label or ()),
        feature_settings=tuple(set_feature or ()),
        nonprivate=nonprivate,
        overwrite=overwrite,
    )
    show(settings, quiet=quiet)


def show(settings: Settings, *, quiet: bool = False) -> None:
    """Simulate, then print the table and where the report is."""
    outcome = simulate(settings, quiet=quiet)
    if quiet:
        return
    stdout.print()
    stdout.print(summary_table(outcome.metrics))
    for warning in outcome.metrics.get("warnings", []):
        stdout.print(f"[bold yellow]warning:[/] {escape(warning)}")
    # A path may be longer than the terminal is wide, and must stay one line to be opened.
    stdout.print(f"\nreport: {outcome.report}", soft_wrap=True, highlight=False)
