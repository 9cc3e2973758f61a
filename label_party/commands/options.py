"""Command line options that several commands of ``label-party`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Option("--config", "-c", help="Configuration file.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one key; repeatable."),
]
Labels = Annotated[
    str | None, typer.Option(help="The labels: a CSV or Parquet file, an object or a database.")
]
Population = Annotated[str | None, typer.Option(help="File with all events' keys; or: submitted.")]
Key = Annotated[str | None, typer.Option(help="Column with the event's key.")]
Label = Annotated[str | None, typer.Option(help="Column with the label.")]
DataSet = Annotated[str | None, typer.Option(help="Name of the data set.")]
Epoch = Annotated[str | None, typer.Option(help="Name of the release within the data set.")]
Lower = Annotated[float | None, typer.Option(help="Public lower bound of the labels.")]
Upper = Annotated[float | None, typer.Option(help="Public upper bound of the labels.")]
Epsilon = Annotated[float | None, typer.Option(help="What the release may reveal, above 0.")]
Total = Annotated[float | None, typer.Option(help="What the data set may spend in all.")]
Randomizer = Annotated[str | None, typer.Option(help="How labels are randomized.")]
Loss = Annotated[str | None, typer.Option(help="squared, absolute or poisson.")]
SecretFile = Annotated[Path | None, typer.Option(help="Secret that keys are hashed with.")]
Directory = Annotated[Path | None, typer.Option("--store", help="Directory of the releases.")]
Listen = Annotated[str | None, typer.Option(help="Address, host:port; port 0 chooses one.")]
Certificate = Annotated[Path | None, typer.Option(help="Server certificate, PEM.")]
PrivateKey = Annotated[Path | None, typer.Option(help="Server private key, PEM.")]
ClientCa = Annotated[Path | None, typer.Option(help="Authority of client certificates, PEM.")]
ClientSan = Annotated[str | None, typer.Option(help="The one certificate name that may fetch.")]
