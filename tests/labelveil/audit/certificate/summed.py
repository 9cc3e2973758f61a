"""A release of sums, as the features party keeps it: with what it asked, and of which events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice, NoisySums
from labelveil.common.release.blocks import encode_sums
from labelveil.common.release.folder import POPULATION_FILE, QUESTION_FILE
from labelveil.common.release.manifest import Manifest, block_digest, content_digest
from labelveil.common.release.question import encode_question
from labelveil.common.release.table import write_release
from labelveil.common.version import software
from tests.common.release.releases import make_release

EVENTS, GROUPS, STEPS = 600, 160, 20
EMPTY = 100
"""Groups of nobody: the last ones of the sums, before the squares."""

LABELS = np.arange(EVENTS) * 7 % (STEPS + 1)
KEYS = np.sort(np.frombuffer(hashlib.shake_128(b"events").digest(16 * EVENTS), "S16"))

QUESTION = GroupQuestion(
    Lattice(-4.0, 6.0, STEPS),
    np.where(np.arange(EVENTS) == 7, NO_GROUP, np.arange(EVENTS) % (GROUPS - EMPTY)),
    np.where(np.arange(GROUPS) % 2 == 0, 4, STEPS),
    np.array([0, 6]),
    levels=np.arange(EVENTS) % 2,
    weights=np.arange(EVENTS) % 5 - 2,
    squares=5,
)

Change = Callable[[dict[str, Any]], None]


def sums_of(question: GroupQuestion, epsilon: str) -> Integers:
    """The answer about the labels."""
    return NoisySums(question, Fraction(epsilon)).draw(LABELS, system_entropy())


def write_sums(
    folder: Path,
    change: Change | None = None,
    *,
    question: GroupQuestion = QUESTION,
    epsilon: str = "0.3",
    answer: Integers | None = None,
    keys: bytes = KEYS.tobytes(),
) -> Path:
    """Write it; ``change`` may alter the manifest's JSON values before."""
    noisy = NoisySums(question, Fraction(epsilon))
    sent = encode_sums(sums_of(question, epsilon) if answer is None else answer)
    asked, guarantee = encode_question(question), noisy.guarantee.to_json()
    manifest, _, _ = make_release(EVENTS, keyed=False)
    data = json.loads(manifest.to_bytes())
    blocks = [block_digest(b"", sent)]
    data |= {"priors": [], "randomizers": [], "software": software()}
    data["labels"][0]["grid"] = question.lattice.grid.points.tolist()
    data["privacy"] |= {"requested_epsilon": float(epsilon), "total": guarantee}
    data["population"]["digest"] = hashlib.sha256(keys).hexdigest()
    data["content"] |= {
        "code_bytes": 8,
        "rows": GROUPS,
        "block_rows": 1 << 10,
        "blocks": blocks,
        "digest": content_digest(blocks),
    }
    data["sums"] = {
        "question": hashlib.sha256(asked).hexdigest(),
        "groups": GROUPS,
        "offsets": question.offsets.tolist(),
        "largest_weight": 0 if question.weights is None else question.largest_weight,
        "noise": "discrete-laplace",
        "widths": [
            {"half_width": width, "squares": squares, "groups": groups, "scale": str(scale)}
            for (width, squares, groups), scale in noisy.widths
        ],
        "guarantee": guarantee,
    }
    if change is not None:
        change(data)
    write_release(folder, Manifest.model_validate(data).to_bytes(), b"", sent)
    (folder / QUESTION_FILE).write_bytes(asked)
    (folder / POPULATION_FILE).write_bytes(keys)
    return folder
