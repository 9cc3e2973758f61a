"""``label-party init``: the configuration file and, if asked for, join secret and signing key."""

from __future__ import annotations

from pathlib import Path

import typer

from common.config import Section, setting
from common.config.options import Given
from common.config.template import write_config
from label_party.commands.options import options
from label_party.config.sections import LabelPartyConfig

HEAD = """\
Configuration of the labels party. Relative paths are relative to the working directory. Every key
can be overridden: label-party release --set privacy.epsilon=0.5"""


class New(Section):
    new_secret: bool = setting(False, "Make the join secret, too.")
    new_signing_key: bool = setting(False, "Make the signing key, too.")
    force: bool = setting(False, "Overwrite an existing file.")


@options(
    "data.labels",
    "data.population",
    "data.key",
    "data.label",
    "data.data_set",
    "data.epoch",
    "domain.lower",
    "domain.upper",
    "privacy.epsilon",
    "privacy.total_epsilon",
    "randomizer.name",
    "randomizer.loss",
    "keys.secret_file",
    "keys.signing_key",
    "store.directory",
    "server.listen",
    "server.certificate",
    "server.private_key",
    "server.client_ca",
    "server.client_san",
)
def init(given: Given, new: New) -> None:
    """Write a commented configuration file."""
    from common.release.event_keys import write_secret
    from common.release.signature import SIGNING_KEY, write_signing_key

    values = dict(given.values)
    if new.new_signing_key:
        values.setdefault("keys.signing_key", Path("certificates") / SIGNING_KEY)
    config = write_config(given.path, LabelPartyConfig, HEAD, values, force=new.force)
    typer.echo(f"wrote {given.path}; read it, then run: label-party release")
    if new.new_secret:
        write_secret(config.keys.secret_file)
        typer.echo(f"wrote {config.keys.secret_file}; give the features party a copy, safely")
    if new.new_signing_key and config.keys.signing_key is not None:
        public = write_signing_key(config.keys.signing_key)
        typer.echo(
            f"wrote {config.keys.signing_key} and {public}; give the features party the latter, in"
            " a way that it can trust"
        )
