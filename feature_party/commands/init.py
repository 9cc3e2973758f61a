"""``feature-party init``: the configuration file."""

from __future__ import annotations

from pathlib import Path

import typer

from labelveil.common.config import Section, setting
from labelveil.common.config.examination import NotYetThere, verified
from labelveil.common.config.options import UncheckedConfig
from labelveil.common.config.template import write_config
from labelveil.common.errors import ConnectionFailed, DataError, printable
from labelveil.feature_party.commands.options import LABELS_PARTY, options
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig

HEAD = """\
Configuration of the features party. Relative paths are relative to the working directory. Every
key can be overridden: feature-party train --set training.seed=3"""


_EXAMPLES = {
    "data.features": "[data] features",
    "data.key": "[data] key",
    "labels_party.data_set": "[labels_party] data_set",
}
"""What everybody has to say; what is not given is an example."""


class New(Section):
    force: bool = setting(False, "Overwrite an existing file.")
    unverified: bool = setting(
        False,
        "Write the file although features or labels party are not as it says.",
        flag="--unverified",
    )


@options("data.features", "data.key", "keys.secret_file", *LABELS_PARTY)
def init(given: UncheckedConfig, new: New) -> None:
    values, still_open = dict(given.values), list[str]()

    def check(config: FeaturePartyConfig) -> None:
        if "data.features" in values:
            with verified(new.unverified, still_open):
                _check_features(config, "data.key" in values)
        if "labels_party.address" in values:
            with verified(new.unverified, still_open):
                _check_address(config.only_labels_party)

    features = Path(str(values.get("data.features", "")))
    if "data.features" in values and features.exists():
        try:
            values["data.columns"] = _columns(features, values.get("data.key"))
        except DataError as error:
            still_open.append(f"[data.columns] of {given.path} is still to be written: {error}")
    write_config(given.path, FeaturePartyConfig, HEAD, values, force=new.force, check=check)
    if examples := [place for name, place in _EXAMPLES.items() if name not in values]:
        still_open.append(f"examples stand in {given.path} for {', '.join(examples)}")
    wrote = f"wrote {given.path}; read it"
    typer.echo(wrote if still_open else f"{wrote}, then run: {given.again('feature-party run')}")
    if still_open:
        said = printable("; ".join(still_open))
        typer.echo(f"not verified: {said}; then run: {given.again('feature-party doctor')}")


def _check_features(config: FeaturePartyConfig, has_key: bool) -> None:
    from labelveil.feature_party.commands.doctor import check_features
    from labelveil.feature_party.tables import scan_table

    if not config.features.exists():
        raise NotYetThere(f"{config.features} does not exist yet")
    if has_key:
        check_features(config)
    else:
        scan_table(config.features)


def _check_address(party: LabelsPartySection) -> None:
    """Ask the labels party, where that can be; who does not answer yet is no mistake of ours."""
    import grpc

    from labelveil.feature_party.client.channel import hangs_up, retryable
    from labelveil.feature_party.commands.doctor import check_address

    for path in (party.ca, party.certificate, party.private_key):
        if path is not None and not path.exists():
            raise NotYetThere(f"{party.address} was not asked, as {path} does not exist yet")
    try:
        check_address(party)
    except ConnectionFailed as error:
        cause = error.__cause__
        if isinstance(cause, grpc.RpcError) and retryable(cause) and not hangs_up(party):
            raise NotYetThere(str(error)) from None
        raise


def _columns(features: Path, key: str | None) -> dict[str, str]:
    from labelveil.feature_party.tables import FeatureFile

    return FeatureFile(features).found_in_cells(without=key)
