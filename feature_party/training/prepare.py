"""What training starts from: a join of releases and features, with a holdout set apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from common.arrays import Indices, Integers
from common.engine.start import open_engine
from common.engine.task import EngineSection
from common.errors import DataError
from common.release.folder import read_manifest
from common.release.manifest import Manifest, manifest_digest
from feature_party.config import JoinSection, TrainingSection
from feature_party.join.matches import JoinInputs, Party
from feature_party.join.on_disk import JoinSizes, Progress, join_content, join_to_shards
from feature_party.join.shards import JOIN_MANIFEST, JoinedShards
from feature_party.learning.problem import LabelProblem, first_codes
from feature_party.learning.several_labels import views_of
from feature_party.learning.sources import join_sources
from feature_party.tables import is_streamed, scan_table
from feature_party.training.encoded_shards import MOST_HELD_OUT
from feature_party.training.events import Events
from feature_party.training.holdout import held_events
from feature_party.training.streamed import PreparedShards, count_training_codes
from feature_party.training.workers import ALONE, Workers


def prepare(
    inputs: JoinInputs,
    training: TrainingSection,
    join: JoinSection,
    engine: EngineSection,
    *,
    workers: Workers = ALONE,
    progress: Progress = lambda step, done, total: None,
) -> dict[str, Events]:
    """Join releases with features and set the holdout apart: the events of each label by its name.

    Parameters
    ----------
    inputs
        What is joined: one model is to learn from all of it.
    training
        How large the holdout is, who is in it, and whether to go through shards.
    join, engine
        Where shards are written, and what matches them.
    workers
        Those who train together: the first alone writes shards.
    progress
        Called while shards are written.

    Returns
    -------
    In memory where features and releases fit there, else in shards in ``[join] directory``.
    """
    data = [read_manifest(folder) for folder in inputs.releases]
    manifests = [Manifest.from_bytes(each) for each in data]
    identity = _identity([manifest_digest(each) for each in data], inputs.parties)
    released = sum(manifest.population.rows for manifest in manifests)
    streamed = is_streamed(inputs.features, inputs.key, training.shards, released)
    with ExitStack() as held:
        if streamed:
            joined = join_shards(inputs, join, engine, workers, progress)
        else:
            before = None if training.shards == "never" else _joined_before(inputs, join)
            joined = before or _joined_for_now(inputs, join, held, progress)
        joined.matches.check()
        in_memory = not streamed and before is None
        share = training.holdout
        if not in_memory:
            share = min(share, MOST_HELD_OUT / joined.rows)
        held_out = held_events(sum(joined.events), share, training.seed)
        rows = np.sum(joined.labels, axis=0).tolist()
        outputs = np.cumsum([manifest.codebook.outputs for manifest in manifests])
        counts = count_training_codes(joined, held_out, outputs[-1])
        labels = _by_label(manifests, rows, inputs.parties, np.split(counts, outputs[:-1]))
        events = {
            name: PreparedShards(joined, held_out, problem, identity, inputs.key, own=codes)
            for name, (problem, codes) in labels.items()
        }
        return {name: each.loaded() if in_memory else each for name, each in events.items()}


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


def join_shards(
    inputs: JoinInputs,
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
    directory, sizes = join.directory, _sizes(inputs.features, join)
    if workers.first:
        with open_engine(engine) as started:
            join_to_shards(inputs, directory, engine=started, sizes=sizes, progress=progress)
    workers.wait()
    joined = JoinedShards.open(directory, join_content(inputs, sizes))
    if joined is None:
        raise DataError(
            f"worker {workers.rank} does not see the join in {directory}; set [join] directory to a"
            " folder that all workers share"
        )
    return joined


def _joined_for_now(
    inputs: JoinInputs, join: JoinSection, held: ExitStack, progress: Progress
) -> JoinedShards:
    """Join into a folder that goes with the context."""
    folder = Path(held.enter_context(TemporaryDirectory(prefix="labelveil-")))
    sizes = _sizes(inputs.features, join)
    return join_to_shards(inputs, folder / "joined", sizes=sizes, progress=progress)


def _joined_before(inputs: JoinInputs, join: JoinSection) -> JoinedShards | None:
    """What ``feature-party join`` left of these very files."""
    if not (join.directory / JOIN_MANIFEST).is_file():
        return None
    return JoinedShards.open(join.directory, join_content(inputs, _sizes(inputs.features, join)))


def _sizes(features: Path, join: JoinSection) -> JoinSizes:
    if join.shard_rows == "auto":
        return JoinSizes.suiting(scan_table(features).collect_schema().len())
    return JoinSizes(join.shard_rows, join.shard_rows)
