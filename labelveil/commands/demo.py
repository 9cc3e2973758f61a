"""`labelveil demo`: the simulation on data that everybody has."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from labelveil.commands.simulate import show
from labelveil.common.config import Section, setting
from labelveil.common.config.answers import Json
from labelveil.common.config.options import with_options
from labelveil.common.console import stdout
from labelveil.common.errors import ConfigError
from labelveil.common.files import write_text
from labelveil.common.randomizers.base import MAX_EPSILON
from labelveil.comparison import CompareSettings, run_comparison
from labelveil.simulation import Settings, run_simulation
from labelveil.simulation.demo_data import EXAMPLES, KEY, write_demo_data


class DemoOptions(Section):
    """The demo's own options."""

    out: Path = setting(Path("out/demo"), "Folder to write to; an earlier demo is replaced.")
    epsilon: float = setting(1.0, "What the release may reveal.", gt=0, le=MAX_EPSILON)
    rows: int | None = setting(None, "Events drawn; by default as many as take a minute.", ge=1000)
    seed: int = setting(0, "Chooses splits and weights, never noise.", ge=0)


@with_options()
def demo(
    options: DemoOptions,
    shown: Json,
    example: Annotated[
        str,
        typer.Argument(
            metavar="diamonds|visits",
            help="diamonds: what was paid for 16,000 of 53,940 stones, which their features tell"
            " well; visits: how often 20,190 people saw a doctor, which hardly anything tells.",
        ),
    ] = "diamonds",
) -> None:
    if example not in EXAMPLES:
        raise ConfigError(f"example={example!r} must be one of {', '.join(EXAMPLES)}")
    chosen = EXAMPLES[example]
    labels, features = write_demo_data(chosen, options.out / "data", options.rows)
    run, beside = options.out / "run", options.out / "comparison"
    data = {
        "labels": labels,
        "features": features,
        "key": KEY,
        "label": chosen.label,
        "lower": chosen.lower,
        "upper": chosen.upper,
    }
    compared: dict[str, float] = {}

    def reference() -> Path:
        """Learn from true labels, and from what the published method sends, by a core each."""
        shutil.rmtree(beside, ignore_errors=True)
        ideal, published = run_comparison(
            CompareSettings(
                **data,
                epsilons=(options.epsilon,),
                methods=["rr-on-bins:raw"],
                runs=1,
                training=["ensemble=4"],
                out=beside,
                quiet=True,
            )
        ).records
        # as a share of its own constant's: the events kept may be others
        compared["rr_on_bins_mse"] = published["test_mse"] / published["constant_mse"]
        path = beside / "true_labels.json"
        write_text(path, json.dumps(ideal))
        return path

    given = {"epsilon": options.epsilon, "seed": options.seed, "rounds": "1"}
    settings = Settings(**data, **given, out=run, overwrite=True)
    outcome = run_simulation(settings, reference)
    published = compared["rr_on_bins_mse"] * outcome.metrics["constant_mse"]
    metrics = {**outcome.metrics, "rr_on_bins_mse": published}
    show(replace(outcome, metrics=metrics), settings, shown)
    if shown.as_json:
        return
    other = "visits" if example == "diamonds" else "diamonds"
    for purpose, command in (
        ("what manifest and labels file prove by themselves", f"audit certificate {run}/release"),
        ("a harder case" if other == "visits" else "an easier case", f"demo {other}"),
    ):
        stdout.print(f"next, {purpose}:\n  labelveil {command}", soft_wrap=True, highlight=False)
