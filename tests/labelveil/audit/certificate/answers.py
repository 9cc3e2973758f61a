"""A release that answered a question, in a folder as it was fetched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.common.entropy import seeded_entropy
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.release.blocks import encode_codes
from labelveil.common.release.limits import block_rows_for
from labelveil.common.release.manifest import Manifest, block_digest, content_digest
from labelveil.common.release.table import write_release
from labelveil.common.version import software
from tests.common.release.releases import make_release

ROWS, EPSILON = 300, 1.5
GRID = Grid(np.linspace(0, 10, 11))
LAWS = np.rint(100 * np.exp(-0.5 * (GRID.points - np.array([[1.0], [5.0], [9.0]])) ** 2))
Change = Callable[[dict[str, Any]], None]


def answered(folder: Path, change: Change = lambda data: None) -> Path:
    """Write a release in three strata; ``change`` may alter the manifest's JSON values."""
    strata = np.arange(ROWS) % 3
    question = Question(strata, GRID, LAWS.astype(np.int64))
    plan = question.plan(LabelTerms("amount", 0, 10), EPSILON)
    message = plan.build(question.released(plan.channels[0].group))
    labels = (strata * 4.0 + 1)[:, None]
    codes = message.codebooks.randomize(labels, strata, seeded_entropy(1))
    data = json.loads(make_release(ROWS)[0].to_bytes())
    sent = encode_codes(codes, message.codebooks.code_bytes)
    blocks = [block_digest(b"", sent)]
    data["labels"][0] |= {"name": "amount", "grid": GRID.points.tolist(), "loss": "squared"}
    data |= {
        "software": software(),
        "strata": [
            {"name": str(number), "rows": ROWS // 3, "law": law}
            for number, law in enumerate(question.laws.tolist())
        ],
        "priors": [],
        "randomizers": [
            {
                "labels": ["amount"],
                "name": name,
                "details": {**details, "options": {}},
                "channel": channel.to_json(),
                "guarantee": PureDP.of_channel(channel).to_json(),
            }
            for _, channel, name, details in message.sent
        ],
    }
    data["privacy"] |= {"requested_epsilon": EPSILON, "records_per_unit": 1}
    data["privacy"]["total"] = message.labels_guarantee.to_json()
    keys = hashlib.sha256(b"the keys that were submitted").hexdigest()
    data["population"] |= {"rows": ROWS, "digest": keys, "keys": "submitted"}
    data["content"] |= {
        "block_rows": block_rows_for(ROWS),
        "code_bytes": message.codebooks.code_bytes,
        "key_bytes": 0,
        "blocks": blocks,
        "digest": content_digest(blocks),
    }
    change(data)
    write_release(folder, Manifest.model_validate(data).to_bytes(), b"", sent)
    return folder
