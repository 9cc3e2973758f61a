"""Answer a question: labels by strata that the features party gathered, as it expects them to be;
or, of groups, their sums.

Whatever was asked, the channel of each stratum is ε-DP in the label that it reads, and nothing is
counted (:mod:`labelveil.common.randomizers.message.questions`). Of a question only its shape is
checked, and that its labels are those that are configured.

Of groups, what leaves is one whole number for each, exact sum and exact noise
(:mod:`labelveil.common.mechanisms.group_sums`). Labels are those of any release: completed, one for
each submitted event, the configured value where one is missing. They are summed in this process, a
part of the rows at a time, wherever they were completed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError, DataError, PrivacyError, ReleaseError, not_none
from labelveil.common.files import sha256_of, write_durably
from labelveil.common.mechanisms.group_sums import GroupQuestion, NoisySums
from labelveil.common.randomizers import Message
from labelveil.common.randomizers.base import ROUNDING_STREAM
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.release.blocks import SUM_BYTES, block_ranges, encode_sums
from labelveil.common.release.limits import block_rows_for
from labelveil.common.release.manifest import Manifest, block_digest, content_digest
from labelveil.common.release.question import AnyQuestion, read_question
from labelveil.common.release.sections import ContentSection, SumsSection
from labelveil.common.release.size import check_message
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events, Progress
from labelveil.label_party.release.message import (
    accepted,
    manifest_of,
    stated_labels,
)
from labelveil.label_party.store.release_store import ReleaseWriter


def submitted_question(config: LabelPartyConfig, events: Events) -> AnyQuestion | None:
    """Read the question that was submitted with an epoch's events; None without one that is taken.

    What cannot be answered, here or below, is a ``DataError`` of its epoch alone; nothing was drawn
    or spent. It depends on the question and on the configuration, and on no label.
    """
    submitted = events.submitted
    if not config.rounds.questions or submitted is None or submitted.question is None:
        return None
    with _answerable(config):
        return read_question(submitted.question, events.rows)


def message_for(config: LabelPartyConfig, question: Question, rows: int) -> Message:
    """The message that answers a question about n events, and for which nothing is counted."""
    with _answerable(config):
        plan = question.plan(config.terms[0], config.privacy.message_epsilon)
        (share,) = plan.channels
        message = plan.build(question.released(share.group))
        check_message(message, rows)
    return message


def sums_for(config: LabelPartyConfig, question: GroupQuestion) -> NoisySums:
    """The sums that were asked for, and their noise."""
    with _answerable(config):
        return NoisySums.for_label(question, config.terms[0], config.privacy.charge.exact_epsilon)


@contextmanager
def _answerable(config: LabelPartyConfig) -> Iterator[None]:
    try:
        yield
    except (ConfigError, PrivacyError, ReleaseError) as error:
        raise DataError(
            f"what was asked of epoch {config.data.epoch!r} cannot be answered: {error}; have"
            " its population submitted again"
        ) from error


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
    return accepted(manifest_of(config, events, keys.hexdigest(), content, spent, stated), config)


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
