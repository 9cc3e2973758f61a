"""Answer a question about groups: a noisy sum for each, instead of a code for each event.

What leaves is one whole number a group, exact sum and exact noise
(:mod:`labelveil.common.mechanisms.group_sums`). Labels are those of any release: completed, one for
each submitted event, the configured value where one is missing. They are summed in this process, a
part of the rows at a time, wherever they were completed.
"""

from __future__ import annotations

import hashlib

import numpy as np

from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError, not_none
from labelveil.common.files import sha256_of, write_durably
from labelveil.common.mechanisms.group_sums import NoisySums
from labelveil.common.randomizers.base import ROUNDING_STREAM
from labelveil.common.release.blocks import SUM_BYTES, block_ranges, encode_sums
from labelveil.common.release.limits import block_rows_for
from labelveil.common.release.manifest import Manifest, block_digest, content_digest
from labelveil.common.release.sections import ContentSection, SumsSection
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events
from labelveil.label_party.release.message import (
    Progress,
    checked,
    manifest_of,
    stated_labels,
)
from labelveil.label_party.store.release_store import ReleaseWriter


def build_sums(
    events: Events,
    config: LabelPartyConfig,
    noisy: NoisySums,
    entropy: Entropy,
    writer: ReleaseWriter,
    progress: Progress = lambda rows: None,
) -> Manifest:
    """Sum labels, put noise on the sums, and describe how.

    Parameters and errors as of :func:`labelveil.label_party.release.message.build`; ``noisy`` is
    the question that was submitted with these events, and its noise.
    """
    if not entropy.secure:
        raise PrivacyError("a release needs system_entropy(); seeded entropy is for tests alone")
    question, keys, first = noisy.question, hashlib.sha256(), 0
    sums = np.zeros(question.half_widths.size, dtype=np.int64)
    for hashed, labels in events.keys_and_labels():
        # which neighbouring point a label goes to needs no secrecy: no guarantee rests on it
        words = entropy.coins(ROUNDING_STREAM, first, len(labels))
        sums += question.sums(question.lattice.round(labels[:, 0], words), first)
        keys.update(hashed.data)
        first += len(labels)
        progress(len(labels))
    sums += noisy.noise(entropy)
    content = _write(encode_sums(sums), sums.size, writer)
    spent = noisy.guarantee  # of a record: who submits the events does not say whose they are
    digest = sha256_of(not_none(not_none(events.submitted).question))
    stated = {
        "labels": stated_labels(config, [question.lattice.grid], questioned=True),
        **{name: [] for name in ("strata", "priors", "tables", "randomizers")},
        "drift": None,
        "sums": SumsSection.from_sums(noisy, digest),
    }
    return checked(manifest_of(config, events, keys.hexdigest(), content, spent, stated), config)


def _write(data: bytes, rows: int, writer: ReleaseWriter) -> ContentSection:
    """Write the sums as the release's only part; say how they lie there."""
    block_rows, files = block_rows_for(rows), (writer.folder / "keys", writer.folder / "sums")
    for path, part in zip(files, (b"", data), strict=True):
        write_durably(path, part)
    writer.adopt(*files)
    blocks = [
        block_digest(b"", data[SUM_BYTES * start : SUM_BYTES * stop])
        for start, stop in block_ranges(rows, block_rows)
    ]
    return ContentSection(
        code_bytes=8,
        rows=rows,
        key_bytes=0,
        block_rows=block_rows,
        blocks=blocks,
        digest=content_digest(blocks),
    )
