"""What a release may be at most: whatever is charged can be delivered, and whatever arrives opened.

The labels party compares with these before it draws anything, the server cuts its messages by them,
and the features party refuses what is above them before it allocates anything.
"""

from __future__ import annotations

MANIFEST_BYTES = 8 << 20
"""Opened, a manifest takes some hundred megabytes at worst."""

CHUNK_BYTES = 2 << 20
"""Rows of a message, in bytes, unless a client asks for others."""

MOST_CHUNK_BYTES = 3 << 20
"""The same, whatever a client asks for."""

MESSAGE_BYTES = MANIFEST_BYTES + (1 << 16)
"""What a client accepts: a manifest with its digest and signature, or rows."""

WITHDRAWN = "withdrawn: "
"""What the text of a refusal begins with where a release is withdrawn; the reason follows."""

WITHDRAWN_CHARACTERS = 200
"""Of the reason why a release is withdrawn, which refusals tell."""

ROWS = 1 << 37
"""A block of this size, which a reader holds whole, has 150 MB."""

BLOCKS = 1 << 14
"""Blocks of a release, as a rule: at least half of them, where it has more than 2**30 rows."""

BLOCK_ROWS = 1 << 16
"""Rows of a block, up to 2**30 rows."""

VALUES = 1 << 20
"""Of a manifest, in all: numbers, texts and lists. Twice as many as the largest has."""

DEPTH = 16
"""Of lists and objects within each other; a manifest has 8 at most."""

KEYS = 64
"""Of one object in a manifest: what is not expected costs a reader more than what is."""


def block_rows_for(rows: int) -> int:
    """Rows of a block in a release of n rows."""
    return max(BLOCK_ROWS, 1 << (-(-rows // BLOCKS) - 1).bit_length())
