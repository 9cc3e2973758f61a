"""How large a manifest can become, whatever noise is drawn: known before any is."""

from __future__ import annotations

import json

import numpy as np

from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.design.optimal_design import most_knots
from labelveil.common.randomizers.exact_rows import MAX_WEIGHTS
from labelveil.common.randomizers.message.message import Message
from labelveil.common.randomizers.message.plan import MessagePlan
from labelveil.common.randomizers.message.strata import BINS
from labelveil.common.release.limits import MANIFEST_BYTES, block_rows_for

_NUMBER = 26
_COUNT = 21
_ROW_INDEX = 6
_BLOCK = 67
"""Bytes of a grid's point, of a noisy count, of a label's row, of a block's digest; as text."""
_REST = 1 << 16
_CHANNEL = 1 << 12
"""Names and numbers, of which there are few: in all, and of a channel that is built."""


def largest_manifest(plan: MessagePlan) -> int:
    """Bytes that the manifest of a planned message can have at most."""
    sent = plan.stratum_count * sum(len(share.group.cells) for share in plan.channels)
    cells = sent + sum(len(group.cells) + BINS * plan.stratum_count for group in plan.known)
    grids = [grid for share in plan.channels for grid in share.group.cells.grids]
    labels = zip(plan.terms, grids, strict=True)
    points = plan.points or most_knots(plan.designed, plan.most_outputs)
    weights = sum(label.most_weights(grid, points) for label, grid in labels)
    if len(plan.channels) < len(plan.terms):  # one channel for all labels, or one for each
        weights = max(weights, MAX_WEIGHTS)
    if plan.strata:  # whose channels are built anew until all have room
        weights = min(plan.stratum_count * weights, MAX_WEIGHTS)
    blocks = -(-plan.rows // block_rows_for(plan.rows))
    numbers = _NUMBER * sum(map(len, grids)) + (_COUNT + _ROW_INDEX) * cells
    channels = -(-32 * weights // 3) + _CHANNEL * plan.stratum_count * len(plan.channels)
    return numbers + channels + _BLOCK * blocks + _REST


def check_manifest(plan: MessagePlan) -> int:
    """Return how many bytes a planned message's manifest can have, before anything is drawn.

    ``ConfigError`` if these are more than a client accepts, or a randomizer's options ask for more.
    """
    if any(label.options for label in plan.terms):  # what these ask for, no prior makes larger
        plan.own_channels({group: np.ones(len(group.cells)) for group in plan.known})
    most = largest_manifest(plan)
    if most > MANIFEST_BYTES:
        points = max(len(grid) for share in plan.channels for grid in share.group.cells.grids)
        raise ConfigError(
            f"a manifest of {len(plan.terms)} labels and {plan.rows:,} events, with up to"
            f" {points:,} grid points each, can have {most:,} bytes; the most that a client"
            f" accepts is {MANIFEST_BYTES:,}. Use larger steps, or send fewer labels together"
        )
    return most


def check_message(message: Message, rows: int) -> int:
    """Return how many bytes the manifest of a built message about one label has at most.

    Its channels depend on no label, so that their own size may be looked at before anything is
    drawn. ``ConfigError`` if these are more than a client accepts.
    """
    expected = message.released.expected_weights
    laws = 0 if expected is None else expected.size
    books = message.codebooks.books
    channels = [channel for book in books for channel in book.channels]
    stated = [channel.to_json() for channel in channels], message.randomizers
    written = len(json.dumps(stated)) + _CHANNEL * len(channels)
    points = max(channel.inputs.size for channel in channels)
    blocks = _BLOCK * -(-rows // block_rows_for(rows))
    most = _NUMBER * points + _COUNT * laws + written + blocks + _REST
    if most > MANIFEST_BYTES:
        raise ConfigError(
            f"a manifest of {len(books)} strata, with {points:,} grid points each, can"
            f" have {most:,} bytes; the most that a client accepts is {MANIFEST_BYTES:,}. Ask in"
            " fewer strata, or about fewer points"
        )
    return most
