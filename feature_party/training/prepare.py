"""What training starts from: a join of releases and features, with a holdout set apart."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.arrays import Indices, Integers
from common.engine.start import open_engine
from common.engine.task import EngineSection
from common.errors import DataError
from common.release.folder import read_manifest
from common.release.manifest import Manifest, manifest_digest
from common.release.table import Release, read_release, write_release
from feature_party.config import JoinSection, TrainingSection
from feature_party.join.in_memory import join_release, join_releases
from feature_party.join.matches import Party
from feature_party.join.on_disk import JoinSizes, Progress, join_content, join_to_shards
from feature_party.join.shards import JOIN_MANIFEST, JoinedShards
from feature_party.learning.problem import LabelProblem, first_codes
from feature_party.learning.several_labels import views_of
from feature_party.learning.sources import join_sources
from feature_party.tables import Table, scan_table, streamed_file
from feature_party.training.examples import (
    MOST_HELD_OUT,
    Prepared,
    PreparedShards,
    count_training_codes,
)
from feature_party.training.holdout import held_events, split_events, split_holdout
from feature_party.training.workers import ALONE, Workers


def prepare(
    release: Release | Path | Sequence[Release | Path],
    features: Table,
    key: str,
    parties: bytes | Sequence[Party],
    training: TrainingSection,
    join: JoinSection,
    engine: EngineSection,
    *,
    workers: Workers = ALONE,
    progress: Progress = lambda step, done, total: None,
) -> dict[str, Prepared | PreparedShards]:
    """Join a release with features and set the holdout apart: the events of each label by its name.

    Parameters
    ----------
    release
        A verified release, or the directory of one; or several, oldest first, that one model is to
        learn from.
    features, key
        One row an event, and the column that names it.
    parties
        Whose each release is, those of one labels party together; or the key secret of all.
    training
        How large the holdout is, who is in it, and whether to go through shards.
    join, engine
        Where shards are written, and what matches them.
    workers
        Those who train together: the first alone writes shards.
    progress
        Called while shards are written.
    """
    several = [release] if isinstance(release, Release | Path) else list(release)
    data = [read_manifest(one) if isinstance(one, Path) else one.manifest_bytes for one in several]
    manifests = [Manifest.from_bytes(one) for one in data]
    released = sum(manifest.population.rows for manifest in manifests)
    if isinstance(parties, bytes):
        parties = [Party(parties)] * len(several)
    identity = _identity([manifest_digest(one) for one in data], parties)
    source = streamed_file(features, key, training.shards, released)
    joined = None
    with _folders(several, source is not None) as folders:
        if source is not None:
            joined = join_shards(folders, source, key, parties, join, engine, workers, progress)
        elif training.shards != "never":
            joined = _joined_before(folders, features, key, parties, join)
    if joined is not None:
        joined.matches.check()
        share = min(training.holdout, MOST_HELD_OUT / joined.rows)
        held = held_events(sum(joined.events), share, training.seed)
        rows = np.sum(joined.labels, axis=0).tolist()
        outputs = np.cumsum([manifest.codebook.outputs for manifest in manifests])
        counts = count_training_codes(joined, held, outputs[-1])
        labels = _by_label(manifests, rows, parties, np.split(counts, outputs[:-1]))
        return {
            name: PreparedShards(joined, held, problem, identity, key, own=codes)
            for name, (problem, codes) in labels.items()
        }
    return _in_memory(several, features, key, parties, training, identity)


def _by_label(
    manifests: Sequence[Manifest],
    rows: Sequence[float],
    parties: Sequence[Party],
    counts: Sequence[Integers],
) -> dict[str, tuple[LabelProblem, Indices | None]]:
    """Each label's problem, and what each code is to its channels if that is another.

    They are named as :class:`feature_party.model.several_labels.LabelModels` are.

    Raises
    ------
    DataError
        If releases are of other labels; the name of a single one does not matter.
    """
    views = [views_of(*one) for one in zip(manifests, counts, strict=True)]
    several = max(map(len, views)) > 1
    for one in views:
        if several and [*one] != [*views[0]]:
            first, other = (", ".join(each) for each in (views[0], one))
            raise DataError(
                f"releases of the labels {first} and of {other} cannot be learned from together;"
                " train a model for each"
            )
    names = [party.name for party in parties]
    found: dict[str, tuple[LabelProblem, Indices | None]] = {}
    by_label = zip(*(one.values() for one in views), strict=True)
    for name, seen in zip(views[0], by_label, strict=True):
        parts = [view.problem for view in seen]
        moved = zip(seen, first_codes(parts), strict=False)
        codes = np.concatenate([view.codes + start for view, start in moved])
        same = np.array_equal(codes, np.arange(codes.size))
        found[name if several else ""] = join_sources(parts, rows, names), None if same else codes
    return found


def _identity(digests: Sequence[str], parties: Sequence[Party]) -> str:
    """What identifies releases that are learned from, and whose they are."""
    if len(set(digests)) < len(digests):
        raise DataError("one release stands twice among those to learn from; leave one out")
    if len(digests) == 1:
        return digests[0]
    names = [party.name for party in parties]
    told = [*digests, *names] if len(set(names)) > 1 else digests
    return hashlib.sha256("".join(told).encode()).hexdigest()


def _in_memory(
    several: Sequence[Release | Path],
    features: Table,
    key: str,
    parties: Sequence[Party],
    training: TrainingSection,
    identity: str,
) -> dict[str, Prepared | PreparedShards]:
    releases = [read_release(one) if isinstance(one, Path) else one for one in several]
    outputs = [release.manifest.codebook.outputs for release in releases]
    for release, count in zip(releases, outputs, strict=True):
        if release.codes.size and int(release.codes.max()) >= count:
            raise DataError(f"code {release.codes.max()} is outside the {count} outputs")
    first = np.concatenate([[0], np.cumsum(outputs)])
    if len(releases) == 1:
        joined = join_release(releases[0], features, key, parties[0].secret)
        split = split_holdout(joined.rows.size, training.holdout, training.seed)
    else:
        joined = join_releases(releases, first[:-1].tolist(), features, key, parties)
        joined.matches.check()
        split = split_events(joined.rows, training.holdout, training.seed)
    held_out = np.split(np.bincount(joined.codes[split[1]], minlength=first[-1]), first[1:-1])
    counts = [
        np.bincount(one.codes, minlength=out.size) - out
        for one, out in zip(releases, held_out, strict=True)
    ]
    rows = np.histogram(joined.codes, bins=first)[0].tolist()
    labels = _by_label([release.manifest for release in releases], rows, parties, counts)
    found: dict[str, Prepared | PreparedShards] = {}
    for name, (problem, codes) in labels.items():
        own = joined.codes if codes is None else codes[joined.codes].astype(np.uint32)
        found[name] = Prepared(replace(joined, codes=own), *split, problem, identity, key)
    return found


def join_shards(
    releases: Sequence[Path],
    features: Path,
    key: str,
    parties: Sequence[Party],
    join: JoinSection,
    engine: EngineSection,
    workers: Workers = ALONE,
    progress: Progress = lambda step, done, total: None,
) -> JoinedShards:
    """Join into ``[join] directory``, or find what was joined there before.

    Raises
    ------
    DataError, ReleaseError
        As :func:`feature_party.join.on_disk.join_to_shards`; or if a worker does not see the
        folder.
    """
    directory, sizes = join.directory, _sizes(features, join)
    if workers.first:
        with open_engine(engine) as started:
            join_to_shards(
                releases,
                features,
                key,
                parties,
                directory,
                engine=started,
                sizes=sizes,
                progress=progress,
            )
    workers.wait()
    content = join_content(releases, features, key, parties, sizes)
    found = JoinedShards.open(directory, content)
    if found is None:
        raise DataError(
            f"worker {workers.rank} does not see the join in {directory}; set [join] directory to a"
            " folder that all workers share"
        )
    return found


def _joined_before(
    releases: Sequence[Path], features: Table, key: str, parties: Sequence[Party], join: JoinSection
) -> JoinedShards | None:
    """What ``feature-party join`` left of these very files."""
    if not isinstance(features, Path) or not releases:
        return None
    if not (join.directory / JOIN_MANIFEST).is_file():
        return None
    content = join_content(releases, features, key, parties, _sizes(features, join))
    return JoinedShards.open(join.directory, content)


def _sizes(features: Path, join: JoinSection) -> JoinSizes:
    if join.shard_rows == "auto":
        return JoinSizes.suiting(scan_table(features).collect_schema().len())
    return JoinSizes(join.shard_rows, join.shard_rows)


@contextmanager
def _folders(releases: Sequence[Release | Path], written: bool) -> Iterator[list[Path]]:
    """Folders of the releases; those in memory get one for the time being, if it is needed."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = []
        for index, one in enumerate(releases):
            if isinstance(one, Path):
                folders.append(one)
            elif written:
                folders.append(Path(temporary) / str(index))
                write_release(folders[-1], one.manifest_bytes, one.labels)
        yield folders
