"""Build one message: completed labels in, randomized codes and a manifest out.

Raw labels reach three things here and nothing else: the rounding onto the grid, the histogram that
is released with noise, and the codes. Everything in the manifest is public, or computed from the
noisy histogram.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import Guarantee, compose
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.message import Message
from labelveil.common.randomizers.message.plan import MessagePlan
from labelveil.common.release.blocks import KEY_BYTES, decode_codes
from labelveil.common.release.claims import CMAC_KEYS, SUBMITTED_KEYS
from labelveil.common.release.limits import block_rows_for
from labelveil.common.release.manifest import FORMAT, Manifest, content_digest
from labelveil.common.release.sections import (
    ContentSection,
    DriftSection,
    LabelSection,
    PopulationSection,
    StatedPrivacy,
)
from labelveil.common.release.stated_message import stated_message
from labelveil.common.version import software
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events, Progress
from labelveil.label_party.store.release_store import ReleaseWriter


def count_labels(plan: MessagePlan, events: Events, entropy: Entropy) -> Message:
    """Count what the plan asks for, and pay for it: a message of which no label was sent yet."""
    counts = events.count(plan.groups, entropy, plan.strata) if plan.groups else []
    return plan.build(plan.release(counts, entropy))


def build(
    events: Events,
    config: LabelPartyConfig,
    message: Message,
    entropy: Entropy,
    writer: ReleaseWriter,
    progress: Progress = lambda rows: None,
    drift: DriftSection | None = None,
) -> Manifest:
    """Randomize every label and describe how: the manifest, as it will be served forever.

    ``message`` is one whose priors are public already; ``entropy`` is
    :func:`labelveil.common.entropy.system_entropy`, to be destroyed by the caller afterwards;
    ``writer`` receives keys and codes. ``progress`` is called with the number of rows randomized
    since the last call. ``drift`` says how the message came by its prior, where another was in
    force. ``PrivacyError`` if the entropy is repeatable, or the parts would spend more than was
    asked for.
    """
    if not entropy.secure:
        raise PrivacyError("a release needs system_entropy(); seeded entropy is for tests alone")
    content, keys, counts = _randomize(events, message, entropy, writer, progress)
    message, unit = message.decode(counts), config.privacy.privacy_unit
    stated = stated_message(message, config.randomizer.options, unit)
    spent = [replace(message.labels_guarantee, unit=unit)]
    if drift is not None and drift.spent is not None:
        spent.append(drift.spent)
    if drift is None or drift.drifted:  # else other labels paid for the prior
        spent += [each.spent for each in (*stated["priors"], *stated["tables"]) if each.noisy]
    grids = message.codebooks.books[0].cells.grids
    stated |= {"labels": stated_labels(config, grids), "drift": drift}
    records, total = message.records, compose(spent)
    return accepted(manifest_of(config, events, keys, content, total, stated, records), config)


def accepted(manifest: Manifest, config: LabelPartyConfig) -> Manifest:
    """Check a manifest as the features party will, before it is served.

    ``PrivacyError`` if it spends more than was asked for.
    """
    if not manifest.total_guarantee.within(config.privacy.charge):
        raise PrivacyError(
            f"the message would spend {manifest.total_guarantee}, more than {config.privacy.charge}"
        )
    Manifest.from_bytes(manifest.to_bytes())
    return manifest


def _randomize(
    events: Events,
    message: Message,
    entropy: Entropy,
    writer: ReleaseWriter,
    progress: Progress,
) -> tuple[ContentSection, str, Integers]:
    """Write all rows; say how they lie, the digest of their keys, and how often each code occurs if
    codes tell anything."""
    block_rows, codebooks = block_rows_for(events.rows), message.codebooks
    strata = message.strata if len(codebooks.books) > 1 else None
    blocks, keys = list[str](), hashlib.sha256()
    counts = np.zeros(codebooks.outputs, dtype=np.int64)
    parts = events.randomize(codebooks, strata, entropy, block_rows, writer.folder)
    for part, digests in parts:
        for piece in part.rows.by_piece():
            keys.update(piece.keys().data)
        if message.decodes:
            codes = decode_codes(part.codes.read_bytes(), codebooks.code_bytes)
            counts += np.bincount(codes, minlength=counts.size)
        writer.adopt(part.keys, part.codes)
        blocks += digests
        progress(part.rows.stop - part.rows.start)
    content = ContentSection(
        code_bytes=2 if codebooks.code_bytes == 2 else 1,
        key_bytes=0 if events.submitted else KEY_BYTES,
        block_rows=block_rows,
        blocks=blocks,
        digest=content_digest(blocks),
    )
    return content, keys.hexdigest(), counts


def stated_labels(
    config: LabelPartyConfig, grids: Sequence[Grid], *, questioned: bool = False
) -> list[LabelSection]:
    """Say which labels they are, and on which points; ``questioned`` if a question chose these."""
    return [
        LabelSection(
            name=label.name,
            grid=grid.points.tolist(),
            missing=label.missing,
            loss=label.loss,
            weight=label.weight,
            asked=label.fixed is not None and not questioned,
        )
        for label, grid in zip(config.labels, grids, strict=True)
    ]


def manifest_of(
    config: LabelPartyConfig,
    events: Events,
    keys: str,
    content: ContentSection,
    total: Guarantee,
    stated: Mapping[str, Any],
    records: int = 1,
) -> Manifest:
    """State a release of events whose keys have this digest, and what a unit of n records spends.

    ``stated`` are the members that say what was sent.
    """
    return Manifest(
        format=FORMAT,
        software=software(),
        data_set=config.data.data_set,
        epoch=config.data.epoch,
        privacy=StatedPrivacy(
            requested_epsilon=config.privacy.epsilon,
            division=config.privacy.division,
            records_per_unit=records,
            total=total.to_json(),
        ),
        population=PopulationSection(
            rows=events.rows,
            digest=keys,
            keys=SUBMITTED_KEYS if events.submitted else CMAC_KEYS,
            secret_check=events.join_check,
        ),
        content=content,
        **stated,
    )
