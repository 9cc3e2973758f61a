"""Decoded labels and the channel as files that any language reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.files import PUBLIC, appearing, write_text
from labelveil.common.release.event_keys import shown_keys
from labelveil.feature_party.notebook.targets import Method, decode_targets
from labelveil.feature_party.training.events import Events


def write_labels(events: Events, output: Path, method: Method) -> Path:
    """Write key, ``code``, ``target`` and ``weight`` of all matched events.

    Returns the file beside it with ``grid``, ``prior`` and ``channel``, P(code | label) by label.
    """
    codes = events.all_codes().astype(np.int64)
    decoded = decode_targets(events.problem, codes, method)
    keys = shown_keys(events.keys())
    table = pl.DataFrame(
        {keys.name: keys, "code": codes, "target": decoded.targets, "weight": decoded.weights}
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    with appearing(output, mode=PUBLIC) as file:
        if output.suffix.lower() == ".csv":
            table.write_csv(file)
        else:
            table.write_parquet(file)
    problem = events.problem
    facts = {"grid": problem.grid, "prior": problem.prior, "channel": problem.channel}
    beside = output.with_suffix(".json")
    text = json.dumps({name: array.tolist() for name, array in facts.items()})
    write_text(beside, text + "\n")
    return beside
