"""Small releases for tests, made as the labels party makes them, with seeded noise."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from math import inf, nextafter, prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import decimal_value
from labelveil.common.guarantees import PureDP, compose
from labelveil.common.randomizers import NoisyPrior
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.blocks import block_ranges, encode_codes
from labelveil.common.release.claims import CMAC_KEYS, SUBMITTED_KEYS
from labelveil.common.release.event_keys import secret_check
from labelveil.common.release.manifest import FORMAT, Manifest, block_digest, content_digest
from tests.one_label import one_label

SECRET = bytes(range(32))
"""What keys are hashed under."""


def words_of(row: str) -> list[int]:
    """Weights of a manifest's row."""
    found: list[int] = np.frombuffer(b64decode(row), dtype="<u8").tolist()
    return found


def text_of(words: Sequence[int]) -> str:
    """A manifest's row of weights."""
    return b64encode(np.array(words, dtype="<u8").tobytes()).decode()


def _decimal_above(total: PureDP) -> float:
    """ε as it may be written: a decimal that is not below what is spent."""
    found = total.epsilon
    return found if decimal_value(found) >= total.exact_epsilon else nextafter(found, inf)


def manifest_of(
    grids: Mapping[str, ArrayLike],
    priors: Sequence[tuple[Sequence[str], NoisyPrior]],
    channels: Sequence[tuple[Sequence[str], FiniteChannel]],
    keys: bytes,
    codes: bytes,
    *,
    randomizer: str = "randomized-thresholds",
    details: Mapping[str, Any] | None = None,
    submitted: bytes = b"",
    block_rows: int = 1 << 16,
    records: int = 1,
    epsilon: float | None = None,
    loss: str = "squared",
    secret: bytes = SECRET,
    **facts: str,
) -> Manifest:
    """State the parts of a message, each with the labels that it is about.

    Without keys of rows the population is what was submitted. ``epsilon`` is what was asked for, by
    default what is spent.
    """
    width = 1 if prod(channel.outputs.size for _, channel in channels) <= 256 else 2
    key_bytes, rows = (16 if keys else 0), len(codes) // width
    blocks = [
        block_digest(keys[a * key_bytes : b * key_bytes], codes[a * width : b * width])
        for a, b in block_ranges(rows, block_rows)
    ]
    unit = priors[0][1].guarantee.unit
    spent = [PureDP.of_channel(channel, unit).scale(records) for _, channel in channels]
    total = compose([*(prior.guarantee for _, prior in priors), *spent])
    data: dict[str, Any] = {
        "format": FORMAT,
        "software": "labelveil/test",
        "labels": [
            {
                "name": name,
                "grid": np.asarray(points).tolist(),
                "missing": 0.0,
                "loss": loss,
                "weight": 1.0,
                "asked": False,
            }
            for name, points in grids.items()
        ],
        "priors": [
            {
                "labels": list(names),
                "noisy_counts": prior.noisy_counts.tolist(),
                "noise": "discrete-laplace" if prior.noisy else "randomized-response",
                "scale": str(prior.scale),
                "start": [],
                "guarantee": prior.guarantee.to_json(),
            }
            for names, prior in priors
        ],
        "randomizers": [
            {
                "labels": list(names),
                "name": randomizer,
                "details": dict(details or {}),
                "channel": channel.to_json(),
                "guarantee": guarantee.to_json(),
            }
            for (names, channel), guarantee in zip(channels, spent, strict=True)
        ],
        "strata": [],
        "tables": [],
        "drift": None,
        "privacy": {
            "requested_epsilon": _decimal_above(total) if epsilon is None else epsilon,
            "division": "auto",
            "records_per_unit": records,
            "total": total.to_json(),
        },
        "population": {
            "rows": rows,
            "digest": hashlib.sha256(keys or submitted).hexdigest(),
            "keys": CMAC_KEYS if keys else SUBMITTED_KEYS,
            "secret_check": secret_check(secret).hex(),
        },
        "content": {
            "code_bytes": width,
            "key_bytes": key_bytes,
            "block_rows": block_rows,
            "blocks": blocks,
            "digest": content_digest(blocks),
        },
    }
    return Manifest.model_validate({"data_set": "clicks", "epoch": "2026-11", **data, **facts})


def make_release(
    rows: int,
    *,
    points: int = 5,
    epsilon: float = 1.0,
    randomizer: str = "rr-on-bins",
    keyed: bool = True,
    block_rows: int = 64,
    group: int = 1,
    prior_share: float | None = None,
) -> tuple[Manifest, bytes, bytes]:
    """Return a manifest, its rows' keys (16 bytes each, or none) and its codes."""
    entropy = seeded_entropy(11)
    grid = Grid.from_count(0, points - 1, points)
    indices = (entropy.words("test labels", 0, rows) % np.uint64(points)).astype(np.int64)
    counts = np.bincount(indices, minlength=points)
    both = one_label(
        counts, grid, epsilon, entropy, randomizer, records=group, prior_share=prior_share
    )
    channel = both.channel
    drawn = both.draw(indices, entropy)
    both = both.decode(np.bincount(drawn, minlength=channel.outputs.size))
    ((name, details),) = both.message.randomizers
    codes = encode_codes(drawn, channel.code_bytes)
    keys = entropy.words("test keys", 0, 2 * rows).tobytes() if keyed else b""
    manifest = manifest_of(
        {"revenue": grid.points},
        [(["revenue"], both.prior)],
        [(["revenue"], channel)],
        keys,
        codes,
        randomizer=name,
        details=details,
        block_rows=block_rows,
        records=group,
        epsilon=epsilon,
    )
    return manifest, keys, codes
