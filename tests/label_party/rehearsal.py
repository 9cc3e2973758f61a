"""What real labels go through, with made-up ones, and the keys of the noise kept.

- ``python -m tests.label_party.rehearsal messages CONFIG FOLDER COUNT``: messages, an epoch each.
- ``… starts CONFIG FOLDER HERE FORKED SPAWNED``: digests of the noise of first starts, in this
  process and in processes that it forks and spawns after it has drawn some.
- ``… answers CONFIG FOLDER SESSIONS QUESTIONS``: evaluations, and what they answer.

Nothing is charged, stored or served. None of this is in the product: noise can be taken off by
whoever has its key.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.mechanisms.paired_gain import PairedGain
from labelveil.common.randomizers.message.codebooks import Codebooks
from labelveil.common.release.limits import block_rows_for
from labelveil.label_party.config.sections import LabelPartyConfig, load
from labelveil.label_party.events.open import open_events
from labelveil.label_party.events.steps import Events
from labelveil.label_party.queries.evaluation import Evaluation, question_name
from labelveil.label_party.store.release_store import Store
from tests.label_party.made_up import Kept, build_counted

DIGEST_BYTES = 16
"""Of a digest of one start's noise."""


def messages(config: LabelPartyConfig, folder: Path, count: int) -> None:
    """Build so many messages, and keep them with their keys."""
    with open_events(config, quiet=True) as events:
        for number in range(count):
            entropy, written = system_entropy(), Kept()
            plan = config.plan_message(events.rows)
            built = build_counted(events, config.at(str(number + 1)), plan, entropy, written)
            (folder / f"{number}.manifest").write_bytes(built.to_bytes())
            (folder / f"{number}.codes").write_bytes(written.codes)
            (folder / f"{number}.key").write_bytes(entropy.key)
            entropy.destroy()


def starts(config: LabelPartyConfig, folder: Path, here: int, forked: int, spawned: int) -> None:
    """Randomize all rows under a fresh key, again and again, and keep a digest of each time."""
    with open_events(config, quiet=True) as events:
        plan = config.plan_message(events.rows)
        built = build_counted(events, config, plan, system_entropy(), Kept())
        codebooks = built.codebooks
        digests = [start(events, codebooks) for _ in range(here)]
        for kind, count in (("fork", forked), ("spawn", spawned)):
            for _ in range(count):
                with ProcessPoolExecutor(1, mp_context=get_context(kind)) as process:
                    digests.append(process.submit(start, events, codebooks).result())
    (folder / "manifest").write_bytes(built.to_bytes())
    (folder / "starts").write_bytes(b"".join(digests))


def start(events: Events, codebooks: Codebooks) -> bytes:
    """Randomize all rows as a release does that begins now; a digest of their codes."""
    digest, block_rows = hashlib.sha256(), block_rows_for(events.rows)
    with TemporaryDirectory() as folder:
        parts = events.randomize(codebooks, None, system_entropy(), block_rows, Path(folder))
        for part, _ in parts:
            digest.update(part.codes.read_bytes())
    return digest.digest()[:DIGEST_BYTES]


def answers(config: LabelPartyConfig, folder: Path, sessions: int, questions: int) -> None:
    """Ask each of so many sessions, about every label, how good its lower bound is as a prediction
    of all events, then of all but the first, the first two, and so on; keep answers and keys."""
    evaluation = Evaluation(config, Store(config.store.directory))
    with open_events(config, quiet=True) as events:
        labels = np.concatenate([part for _, part in events.keys_and_labels()])
    asked = []
    for column, terms in enumerate(config.labels):
        truth = labels[:, column].clip(*terms.bounds)
        for left_out in range(questions):
            points = np.full(truth.size, terms.bounds[0])
            points[:left_out] = np.nan
            name = question_name("", terms.name.encode(), points)
            kept = ~np.isnan(points)
            asked.append((PairedGain.of_ends(*terms.bounds), points[kept], truth[kept], name))
    found = []
    for _ in range(sessions):
        key = os.urandom(32)
        values = [
            evaluation.mechanism.draw(gain, points, truth, question=name, entropy=Entropy(key))
            for gain, points, truth, name in asked
        ]
        found.append({"key": key.hex(), "answers": values})
    said = {"questions": [name for *_, name in asked], "sessions": found}
    (folder / "answers.json").write_text(json.dumps(said), encoding="utf-8")


def rehearse(kind: str, config: LabelPartyConfig, folder: Path, *counts: int) -> None:
    """Do what the module's first lines say."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, Callable[..., None]]
    kinds = {"messages": messages, "starts": starts, "answers": answers}
    kinds[kind](config, folder, *counts)


def main(kind: str, config: str, folder: str, *counts: str) -> None:
    """Run a rehearsal."""
    rehearse(kind, load(Path(config)), Path(folder), *map(int, counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
