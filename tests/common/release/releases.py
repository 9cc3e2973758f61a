"""Small releases for tests, made as the labels party makes them, with seeded noise."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from common.entropy import seeded_entropy
from common.randomizers.grid import Grid
from common.release.blocks import block_ranges, encode_codes
from common.release.manifest import FORMAT, Manifest, block_digest, content_digest
from tests.one_label import one_label


def words_of(row: str) -> list[int]:
    """Weights of a manifest's row."""
    found: list[int] = np.frombuffer(b64decode(row), dtype="<u8").tolist()
    return found


def text_of(words: Sequence[int]) -> str:
    """A manifest's row of weights."""
    return b64encode(np.array(words, dtype="<u8").tobytes()).decode()


def make_release(
    rows: int,
    *,
    points: int = 5,
    epsilon: float = 1.0,
    randomizer: str = "rr-on-bins",
    keyed: bool = True,
    block_rows: int = 64,
    group: int = 1,
) -> tuple[Manifest, bytes, bytes]:
    """Return a manifest, its rows' keys (16 bytes each, or none) and its codes."""
    entropy = seeded_entropy(11)
    grid = Grid.from_count(0, points - 1, points)
    indices = (entropy.words("test labels", 0, rows) % np.uint64(points)).astype(np.int64)
    counts = np.bincount(indices, minlength=points)
    both = one_label(counts, grid, epsilon, entropy, randomizer, records=group)
    drawn = both.randomizer.randomize_indices(indices, entropy)
    both = both.decode(np.bincount(drawn, minlength=both.randomizer.channel.outputs.size))
    channel = both.randomizer.channel
    codes = encode_codes(drawn, channel.code_bytes)
    keys = entropy.words("test keys", 0, 2 * rows).tobytes() if keyed else b""
    key_bytes, width = (16 if keyed else 0), channel.code_bytes
    blocks = [
        block_digest(
            keys[start * key_bytes : stop * key_bytes], codes[start * width : stop * width]
        )
        for start, stop in block_ranges(rows, block_rows)
    ]
    data: dict[str, Any] = {
        "format": FORMAT,
        "software": "labelveil/test",
        "data_set": "clicks",
        "epoch": "2026-11",
        "labels": [
            {
                "name": "revenue",
                "grid": grid.points.tolist(),
                "missing": 0.0,
                "loss": "squared",
                "weight": 1.0,
                "asked": False,
            }
        ],
        "priors": [
            {
                "labels": ["revenue"],
                "noisy_counts": both.prior.noisy_counts.tolist(),
                "noise": "discrete-laplace"
                if both.prior.decoded is None
                else "randomized-response",
                "scale": str(both.prior.scale),
                "guarantee": both.prior.guarantee.to_json(),
            }
        ],
        "randomizers": [
            {
                "labels": ["revenue"],
                "name": both.randomizer.name,
                "details": dict(both.randomizer.details),
                "channel": channel.to_json(),
                "guarantee": both.labels_guarantee.to_json(),
            }
        ],
        "drift": None,
        "privacy": {
            "requested_epsilon": epsilon,
            "division": "auto",
            "records_per_unit": group,
            "total": both.guarantee.to_json(),
        },
        "population": {
            "rows": rows,
            "digest": hashlib.sha256(keys).hexdigest(),
            "keys": "aes-256-cmac-128" if keyed else "submitted",
        },
        "content": {
            "code_bytes": width,
            "key_bytes": key_bytes,
            "block_rows": block_rows,
            "blocks": blocks,
            "digest": content_digest(blocks),
        },
    }
    return Manifest.model_validate(data), keys, codes
