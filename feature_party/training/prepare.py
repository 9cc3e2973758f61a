"""What training starts from: a join of releases and features, with a holdout set apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from labelveil.common.arrays import Indices, Integers
from labelveil.common.engine.local import open_engine
from labelveil.common.engine.task import EngineSection
from labelveil.common.errors import DataError
from labelveil.common.release.folder import read_manifest
from labelveil.common.release.manifest import Manifest, manifest_digest, manifest_in
from labelveil.feature_party.config.sections import JoinSection, TrainingSection
from labelveil.feature_party.join.matches import JoinInputs
from labelveil.feature_party.join.on_disk import JoinSizes, Progress, join_content, join_to_shards
from labelveil.feature_party.join.shards import JOIN_MANIFEST, JoinedShards
from labelveil.feature_party.join.tasks import ROW
from labelveil.feature_party.learning.problem import LabelProblem, first_codes
from labelveil.feature_party.learning.several_labels import views_of
from labelveil.feature_party.learning.sources import join_sources
from labelveil.feature_party.tables import is_streamed, scan_table
from labelveil.feature_party.training.encoded_shards import MOST_HELD_OUT
from labelveil.feature_party.training.events import Events
from labelveil.feature_party.training.holdout import deal_holdout, draw_holdout
from labelveil.feature_party.training.streamed import PreparedShards, count_training_codes
from labelveil.feature_party.training.workers import ALONE, Workers


@dataclass(frozen=True)
class Preparation:
    """From releases and features to events."""

    inputs: JoinInputs  # what is joined: one model is to learn from all of it
    training: TrainingSection  # how large the holdout is, and whether to go through shards
    join: JoinSection  # where shards are written
    engine: EngineSection  # what matches them
    in_rounds: bool = False  # whether a model of fewer releases has asked for the later ones
    workers: Workers = ALONE  # those who train together: the first alone writes shards
    progress: Progress = lambda step, done, total: None  # called while shards are written

    def events(self) -> dict[str, Events]:
        """Join, and set the holdout apart: the events of each label by its name.

        They lie in memory where features and releases fit there, else in shards in
        ``[join] directory``.

        ``DataError`` if a release stands twice, or releases cannot be learned from together;
        and as :meth:`joined`.
        """
        inputs, training = self.inputs, self.training
        manifests = [manifest_in(folder) for folder in inputs.releases]
        digests = [manifest_digest(read_manifest(folder)) for folder in inputs.releases]
        names = [party.name for party in inputs.parties]
        release_id = _release_id(digests, names)
        released = sum(manifest.population.rows for manifest in manifests)
        streamed = is_streamed(inputs.features, inputs.key, training.shards, released)
        with ExitStack() as stack:
            joined = self.joined() if streamed else self._joined_before()
            in_memory = joined is None
            if joined is None:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="labelveil-")))
                sizes, progress = self._sizes, self.progress
                joined = join_to_shards(inputs, folder / "joined", sizes=sizes, progress=progress)
            joined.matches.check()
            share = training.holdout
            if not in_memory:
                most = joined.matches.feature_rows if self.in_rounds else joined.rows
                share = min(share, MOST_HELD_OUT / most)
            if self.in_rounds:
                matched = np.unique(pl.concat(joined.tables([ROW]))[ROW].to_numpy())
                held_events = deal_holdout(matched, share, training.seed)
            else:
                held_events = draw_holdout(sum(joined.events), share, training.seed)
            rows = np.sum(joined.labels, axis=0).tolist()
            outputs = np.cumsum([manifest.codebooks.outputs for manifest in manifests])
            counts = count_training_codes(joined, held_events, outputs[-1])
            problems = _by_label(manifests, rows, names, np.split(counts, outputs[:-1]))
            events = {
                label: PreparedShards(joined, held_events, problem, release_id, inputs.key, codes)
                for label, (problem, codes) in problems.items()
            }
            return {name: each.loaded() if in_memory else each for name, each in events.items()}

    def joined(self) -> JoinedShards:
        """Join into ``[join] directory``, or find what was joined there before.

        ``DataError`` or ``ReleaseError`` as
        :func:`labelveil.feature_party.join.on_disk.join_to_shards`; or if a worker does not see the
        folder.
        """
        inputs, directory, sizes = self.inputs, self.join.directory, self._sizes
        if self.workers.first:
            with open_engine(self.engine) as engine:
                join_to_shards(
                    inputs, directory, engine=engine, sizes=sizes, progress=self.progress
                )
        self.workers.wait()
        joined = JoinedShards.open(directory, join_content(inputs, sizes))
        if joined is None:
            raise DataError(
                f"worker {self.workers.rank} does not see the join in {directory}; set [join]"
                " directory to a folder that all workers share"
            )
        return joined

    def _joined_before(self) -> JoinedShards | None:
        """What ``feature-party join`` left of these very files, if shards may be used."""
        directory = self.join.directory
        if self.training.shards == "never" or not (directory / JOIN_MANIFEST).is_file():
            return None
        return JoinedShards.open(directory, join_content(self.inputs, self._sizes))

    @property
    def _sizes(self) -> JoinSizes:
        if self.join.shard_rows == "auto":
            return JoinSizes.suiting(scan_table(self.inputs.features).collect_schema().len())
        return JoinSizes(self.join.shard_rows, self.join.shard_rows)


def _release_id(digests: Sequence[str], parties: Sequence[str]) -> str:
    """What identifies releases that are learned from, and whose they are."""
    if len(set(digests)) < len(digests):
        raise DataError("one release stands twice among those to learn from; leave one out")
    if len(digests) == 1:
        return digests[0]
    facts = [*digests, *parties] if len(set(parties)) > 1 else digests
    return hashlib.sha256("".join(facts).encode()).hexdigest()


def _by_label(
    manifests: Sequence[Manifest],
    rows: Sequence[float],
    parties: Sequence[str],
    counts: Sequence[Integers],
) -> dict[str, tuple[LabelProblem, Indices | None]]:
    """Each label's problem, and what each code is to its channels if that is another.

    ``DataError`` if releases are of other labels. A single one is called as in the last
    release; its name in the others does not matter.
    """
    releases = zip(manifests, counts, strict=True)
    views = [views_of(manifest.message, counted) for manifest, counted in releases]
    for names in views:
        if [*names] != [*views[0]] and max(map(len, views)) > 1:
            raise DataError(
                f"releases of the labels {', '.join(views[0])} and of {', '.join(names)} cannot be"
                " learned from together; train a model for each"
            )
    problems: dict[str, tuple[LabelProblem, Indices | None]] = {}
    of_labels = zip(*(view.values() for view in views), strict=True)
    for label, seen in zip(views[-1], of_labels, strict=True):
        parts = [view.problem for view in seen]
        starts = first_codes(parts)[:-1]
        codes = np.concatenate([v.codes + start for v, start in zip(seen, starts, strict=True)])
        same = np.array_equal(codes, np.arange(codes.size))
        problems[label] = join_sources(parts, rows, parties), None if same else codes
    return problems
