"""``feature-party init``: the configuration file."""

from __future__ import annotations

import typer

from common.config import Section, setting
from common.config.options import Given
from common.config.template import write_config
from feature_party.commands.options import LABELS_PARTY, options
from feature_party.config import FeaturePartyConfig

HEAD = """\
Configuration of the features party. Relative paths are relative to the working directory. Every
key can be overridden: feature-party train --set training.seed=3"""


class New(Section):
    force: bool = setting(False, "Overwrite an existing file.")


@options("data.features", "data.key", "keys.secret_file", *LABELS_PARTY)
def init(given: Given, new: New) -> None:
    """Write a commented configuration file."""
    write_config(given.path, FeaturePartyConfig, HEAD, given.values, force=new.force)
    typer.echo(f"wrote {given.path}; read it, then run: feature-party run")
