"""``feature-party init``: the configuration file."""

from __future__ import annotations

from pathlib import Path

import typer

from common.config import Section, setting
from common.config.options import Given
from common.config.template import write_config
from common.errors import DataError
from feature_party.commands.options import LABELS_PARTY, options
from feature_party.config import FeaturePartyConfig

HEAD = """\
Configuration of the features party. Relative paths are relative to the working directory. Every
key can be overridden: feature-party train --set training.seed=3"""


class New(Section):
    force: bool = setting(False, "Overwrite an existing file.")


@options("data.features", "data.key", "keys.secret_file", *LABELS_PARTY)
def init(given: Given, new: New) -> None:
    """Write a commented configuration file.

    Below [data.columns] it says what the cells of text columns are, where the features are there.
    """
    values, not_found = dict(given.values), ""
    features = values.get("data.features")
    if features is not None and Path(features).exists():
        try:
            values["data.columns"] = _columns(Path(features), values.get("data.key"))
        except DataError as error:
            not_found = str(error)
    write_config(given.path, FeaturePartyConfig, HEAD, values, force=new.force)
    typer.echo(f"wrote {given.path}; read it, then run: feature-party run")
    if not_found:
        typer.echo(f"[data.columns] of {given.path} is still to be written: {not_found}", err=True)


def _columns(features: Path, key: str | None) -> dict[str, str]:
    from feature_party.tables import feature_file, scan_table

    names = scan_table(features).collect_schema().names()
    with feature_file(features, names) as table:
        return table.found_in_cells(without=key)
