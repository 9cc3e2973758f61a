"""Rehearsals: messages that a labels party builds for an audit alone, with their noise's keys.

With a key everything random about a message is known, so that it can be made again and compared:
whether histogram and rows have noise of their own, whether two epochs do, and whether what is
served has.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace

import numpy as np

from common.arrays import Integers
from common.errors import ConfigError
from common.program.audit.attacks.two_noises import (
    NAME,
    keys_check,
    known_answer_check,
    same_noise_check,
)
from common.program.audit.party.canary_parties import CONFIG, World
from common.program.audit.party.endpoint import Answer
from common.program.audit.verdict import Check, Verdict
from common.program.children import child_command, child_environment
from common.release.blocks import decode_codes
from common.release.manifest import Manifest

MESSAGES = 4
FOLDER = "rehearsed"


@dataclass(frozen=True)
class Rehearsed:
    """One message, with the key that it was made under."""

    manifest: Manifest
    codes: Integers
    key: bytes


def rehearse(world: World, messages: int = MESSAGES) -> list[Rehearsed]:
    """Have a labels party build messages of its canary data set, each of another epoch.

    Raises
    ------
    ConfigError
        If it refuses.
    """
    command = child_command("label_party.release.rehearsal", CONFIG, FOLDER, str(messages))
    done = subprocess.run(
        command,
        cwd=world.folder,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(f"it cannot be rehearsed: {lines[-1] if lines else '?'}")
    found = []
    for number in range(messages):
        manifest, codes, key = (
            (world.folder / FOLDER / f"{number}.{part}").read_bytes()
            for part in ("manifest", "codes", "key")
        )
        found.append(rehearsed(manifest, codes, key))
    return found


def rehearsed(manifest: bytes, codes: bytes, key: bytes) -> Rehearsed:
    """A message from its bytes."""
    parsed = Manifest.parse(manifest)
    return Rehearsed(parsed, decode_codes(codes, parsed.content.code_bytes).astype(np.int64), key)


def rehearsal_checks(
    messages: list[Rehearsed], bits: Integers, served: tuple[Answer, Answer]
) -> list[Check]:
    """What the keys of rehearsed messages say, and how two served releases compare.

    Parameters
    ----------
    messages
        At least two.
    bits
        (n,) which of the two outermost labels each row has.
    served
        Releases of two parties with the same labels.
    """
    found = []
    for number, message in enumerate(messages):
        indices = bits * (len(message.manifest.label.grid) - 1)
        what = f"message {number + 1} of {len(messages)}"
        found.append(
            known_answer_check(message.manifest, message.codes, indices, message.key, what)
        )
    # one verdict for all: the first message that fails, if any
    known = next((check for check in found if check.verdict is Verdict.FAIL), found[-1])
    keys = keys_check({f"epoch {n + 1}": message.key for n, message in enumerate(messages)})
    epochs = same_noise_check(
        messages[0].codes, messages[1].codes, messages[0].manifest.channel, "epoch against epoch"
    )
    manifests = [Manifest.parse(answer.manifest) for answer in served]
    codes = [
        decode_codes(answer.codes, manifest.content.code_bytes).astype(np.int64)
        for answer, manifest in zip(served, manifests, strict=True)
    ]
    releases = same_noise_check(codes[0], codes[1], manifests[0].channel, "release against release")
    questions = {
        known.name: "Have histogram and rows noise of their own, as the key says?",
        keys.name: "Is any key used twice?",
        epochs.name: f"Does one epoch repeat the noise of another ({NAME})?",
        releases.name: f"Do two parties with the same labels draw the same noise ({NAME})?",
    }
    return [
        replace(check, question=questions[check.name]) for check in (known, keys, epochs, releases)
    ]
