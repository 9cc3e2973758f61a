"""Completed events that were never read, and a writer that keeps what is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from labelveil.common.arrays import Floats
from labelveil.common.engine.shuffle import KEY_TYPE, Files, InMemoryExchange, Keys
from labelveil.common.entropy import Entropy
from labelveil.common.randomizers.message.plan import MessagePlan
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events, Sources, Table, Work
from labelveil.label_party.events.tally import Tally
from labelveil.label_party.events.tasks import Piece
from labelveil.label_party.release.message import Progress, build, count_labels
from labelveil.label_party.sources.tables import KEY, LABEL


def made_up(keys: Keys, labels: Floats) -> Events:
    """Events with (n,) keys and (n, m) labels, in memory."""
    types = {KEY: KEY_TYPE, LABEL: f"({labels.shape[1]},)<f8"}
    held = InMemoryExchange(Files(Path("made up"), 1), 1, types)
    piece = Piece(held, 0, 0, keys.size)
    piece.write({KEY: keys, LABEL: labels})
    nothing_read = Sources(Table((), 0, {}), None, None)
    return Events([piece], Tally(keys.size), Work.in_memory(bytes(32)), nothing_read)


def numbered(values: Floats) -> Events:
    """Events with (n, m) labels under keys that ascend."""
    keys = [i.to_bytes(16, "big") for i in range(1, len(values) + 1)]
    return made_up(np.array(keys, dtype=KEY_TYPE), values)


@dataclass
class Kept:
    """A writer that keeps keys and codes."""

    keys: bytes = b""
    codes: bytes = b""
    _place: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)

    @property
    def folder(self) -> Path:
        """Where files lie on their way."""
        return Path(self._place.name)

    def adopt(self, keys: Path, codes: Path) -> None:
        """Append rows that lie in files."""
        self.keys += keys.read_bytes()
        self.codes += codes.read_bytes()


def build_counted(
    events: Events,
    config: LabelPartyConfig,
    plan: MessagePlan,
    entropy: Entropy,
    writer: Any,
    progress: Progress = lambda rows: None,
) -> Manifest:
    """Build as a release does whose labels are counted, and pay for that."""
    return build(events, config, count_labels(plan, events, entropy), entropy, writer, progress)
