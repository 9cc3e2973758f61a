"""What training starts from: a join of releases and features, with a holdout set apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.keys import read_secret
from common.release import Release, manifest_digest, read_release
from feature_party.config import FeaturePartyConfig
from feature_party.join import (
    Joined,
    Table,
    join_release,
    join_releases,
    scan_table,
    split_events,
    split_holdout,
)
from feature_party.learning.joint import join_problems, starts
from feature_party.learning.problem import LabelProblem
from feature_party.streaming import feature_file, streamed_file

MOST_HELD_OUT = 1 << 20
"""Events that are scored, and that each network leaves out, where features do not fit in memory:
their mean loss is known to a thousandth of its spread, and more would have to fit there."""


@dataclass(frozen=True)
class Prepared:
    """Matched events, split.

    Attributes
    ----------
    joined
        All matched events.
    training, holdout
        Their rows to train on, and to score on.
    problem
        The release's public facts.
    release_id
        Digest of the release's manifest, or of several manifests' digests.
    source
        The features file where it is too large for memory; ``joined.table`` then has the key
        column alone.
    """

    joined: Joined
    training: NDArray[np.int64]
    holdout: NDArray[np.int64]
    problem: LabelProblem
    release_id: str
    source: Path | None = None

    def features(self, events: NDArray[np.int64]) -> pl.DataFrame:
        """All columns of some matched events, by ascending number."""
        if self.source is None:
            return self.joined.table[events]
        columns = scan_table(self.source).collect_schema().names()
        with feature_file(self.source, self.joined.table.columns[0], columns) as file:
            return pl.concat(table for table, _ in file.taken(columns, self.joined.rows[events]))


def prepare(
    release: Release | Path | Sequence[Release | Path],
    features: Table,
    config: FeaturePartyConfig,
    secret: bytes | None = None,
) -> Prepared:
    """Join a release with features and set the holdout apart.

    Parameters
    ----------
    release
        A verified release, or the directory of one; or several, oldest first, that one model is to
        learn from.
    features
        One row an event.
    config
        Uses the sections ``data``, ``keys`` and ``training``.
    secret
        The shared key secret; None reads the configured file.
    """
    several = [release] if isinstance(release, Release | Path) else list(release)
    releases = [read_release(one) if isinstance(one, Path) else one for one in several]
    if secret is None:
        secret = read_secret(config.secret_file)
    section = config.training
    source = streamed_file(features, config.key, section.shards)
    table = features if source is None else scan_table(source, config.key).select(config.key)
    if len(releases) > 1:
        joined, problem = _several(releases, table, config.key, secret)
    else:
        joined = join_release(releases[0], table, config.key, secret)
        problem = LabelProblem.from_manifest(releases[0].manifest)
        problem.check_codes(joined.codes)
    share = section.holdout
    if source is not None:
        share = min(share, MOST_HELD_OUT / joined.rows.size)
    if len(releases) > 1:
        training, holdout = split_events(joined.rows, share, section.seed)
    else:
        training, holdout = split_holdout(joined.rows.size, share, section.seed)
    digests = [manifest_digest(release.manifest_bytes) for release in releases]
    identity = digests[0]
    if len(digests) > 1:
        identity = hashlib.sha256("".join(digests).encode()).hexdigest()
    return Prepared(joined, training, holdout, problem, identity, source)


def _several(
    releases: Sequence[Release], features: Table, key: str, secret: bytes
) -> tuple[Joined, LabelProblem]:
    parts = [LabelProblem.from_manifest(release.manifest) for release in releases]
    for release, part in zip(releases, parts, strict=True):
        part.check_codes(release.codes)
    first = starts(parts)
    joined = join_releases(releases, first[:-1].tolist(), features, key, secret)
    rows = np.histogram(joined.codes, bins=first)[0]
    return joined, join_problems(parts, rows.tolist())
