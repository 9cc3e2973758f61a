"""``feature-party doctor``: whether a configuration can work, without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from labelveil.common.config.answers import Json
from labelveil.common.config.examination import NotYetThere, answer, examine
from labelveil.common.errors import DataError, ReleaseError, not_none
from labelveil.common.security.proxies import proxies
from labelveil.feature_party.commands.options import (
    LABELS_PARTY,
    RELEASE_AND_FEATURES,
    options,
    start,
)
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.config.sections import FeaturePartyConfig

_SAMPLE_ROWS = 10_000
_SECONDS = 15.0
"""That a labels party has to answer in."""


@options(*RELEASE_AND_FEATURES, *LABELS_PARTY)
def doctor(config: FeaturePartyConfig, shown: Json) -> None:
    start()
    checks: dict[str, Callable[[], str]] = {
        "features": partial(check_features, config),
        "columns": partial(_columns, config),
    }
    for party in config.labels_party:
        of = f" {party.called}" if config.several else ""
        checks |= {
            f"keys{of}": partial(_keys, config, party),
            f"certificates{of}": partial(_certificates, party),
            f"proxies{of}": partial(proxies, party.address),
            f"address{of}": partial(check_address, party),
            f"matches{of}": partial(_matches, config, party),
        }
    answer(examine(checks), shown)


def check_features(config: FeaturePartyConfig) -> str:
    """Say what the features are, once they have a usable key; ``LabelveilError`` if not."""
    from labelveil.feature_party.client.submission import distinct_keys
    from labelveil.feature_party.tables import check_key, collect_table, scan_table

    frame = scan_table(config.features)
    check_key(frame, config.key)
    keys = collect_table(frame.select(config.key).head(_SAMPLE_ROWS))[config.key]
    distinct_keys(keys)
    return f"{config.features}: {len(frame.collect_schema())} columns, key {config.key}"


def _columns(config: FeaturePartyConfig) -> str:
    import polars as pl

    from labelveil.feature_party.tables import FeatureFile, scan_table

    found = FeatureFile(config.features).find_schema(config.data.stated, config.key)
    ignored, types = config.data.stated.ignored, scan_table(config.features).collect_schema()
    for column in found.schema.columns:
        if column.name not in ignored:
            column.read(pl.Series(column.name, [], types[column.name]))  # a type that is refused
    return "\n  ".join([f"{len(found.lines)} are taken for", *found.describe(ignored)])


def _keys(config: FeaturePartyConfig, party: LabelsPartySection) -> str:
    from labelveil.common.release.event_keys import read_secret

    read_secret(config.secret_of(party))
    return f"join secret in {config.secret_of(party)}"


def _certificates(party: LabelsPartySection) -> str:
    from labelveil.common.security.certificate_checks import described
    from labelveil.feature_party.client.channel import open_channel

    open_channel(party).close()  # nothing is sent
    return described(not_none(party.certificate), not_none(party.ca))


def check_address(party: LabelsPartySection) -> str:
    """Ask a labels party what it states of the release, and say it.

    :class:`NotYetThere` if there is none yet; ``LabelveilError`` if it cannot be asked, or refuses.
    """
    import grpc

    from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy

    once = party.model_copy(update={"wait": 0.0, "timeout": min(party.timeout, _SECONDS)})
    try:
        manifest = ReleaseClient(once, RetryPolicy(attempts=1)).describe("doctor")
    except ReleaseError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.RpcError) and cause.code() == grpc.StatusCode.NOT_FOUND:
            raise NotYetThere(str(error)) from error
        raise
    return (
        f"{party.address} serves {manifest.data_set!r}, epoch {manifest.epoch!r}:"
        f" {manifest.population.rows:,} events, paid by its account with {manifest.total_guarantee}"
    )


def _matches(config: FeaturePartyConfig, party: LabelsPartySection) -> str:
    from labelveil.common.release.event_keys import hash_keys, read_secret
    from labelveil.common.release.folder import is_complete
    from labelveil.common.release.rows import keys_column
    from labelveil.feature_party.join.key_secrets import released_keys
    from labelveil.feature_party.tables import collect_table, scan_table

    fetched = [folder for folder in config.releases_of(party) if is_complete(folder)]
    if not fetched:
        raise NotYetThere("no release is here yet; run feature-party fetch")
    sample = collect_table(scan_table(config.features).select(config.key).head(_SAMPLE_ROWS))
    left = keys_column(hash_keys(sample[config.key], read_secret(config.secret_of(party))))
    for keys in (keys for folder in fetched for keys in released_keys(folder)):
        left = left.filter(~left.is_in(keys.implode()))
    share = (len(sample) - left.len()) / max(len(sample), 1)
    line = f"{share:.1%} of the first {len(sample):,} events are in the release"
    if not share:
        raise DataError(f"{line}; check [data] key, [labels_party] epoch and the key secret")
    return line
