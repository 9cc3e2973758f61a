"""Rehearsals: what a labels party draws for an audit alone, with the keys of its noise.

With a key everything random about a message is known, so that it can be made again and compared:
whether histogram and rows have noise of their own, whether two epochs do, two answers of an
evaluation, two starts, and whether what is served has.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from common.arrays import Integers
from common.errors import ConfigError
from common.mechanisms.paired_gain import NoisyAnswers, PairedGain
from common.release.blocks import decode_codes
from common.release.manifest import Manifest
from labelveil.audit.attacks.seeds import STARTS, seeds_check
from labelveil.audit.attacks.two_noises import (
    NAME,
    keys_check,
    known_answer_check,
    same_noise_check,
)
from labelveil.audit.party.answers import Asked
from labelveil.audit.party.canary_parties import ANSWERS, CONFIG, LOWER, UPPER, World
from labelveil.audit.party.endpoint import Fetched
from labelveil.audit.verdict import Check, Verdict
from labelveil.children import child_command, child_environment

MESSAGES = 4
SESSIONS, QUESTIONS = 512, 4
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Rehearsed:
    """One message, with the key that it was made under."""

    manifest: Manifest
    codes: Integers
    key: bytes


@dataclass(frozen=True)
class Starts:
    """How many first starts of each kind are compared.

    Attributes
    ----------
    here
        In one process, a fresh key each.
    forked, spawned
        In processes that it forks or spawns once it has drawn some noise.
    restored
        In copies of a machine that has run: a snapshot that is restored.
    restarted
        In copies of a machine that has not: a container that is started again from its image.
    """

    here: int = STARTS
    forked: int = 16
    spawned: int = 2
    restored: int = 2
    restarted: int = 2


def rehearse(world: World, kind: str, *counts: int) -> Path:
    """Have a labels party rehearse on its canary data set; returns the folder of what it made.

    Raises
    ------
    ConfigError
        If it refuses.
    """
    folder = world.folder / "rehearsed" / kind
    module, *arguments = world.plan.rehearsal
    command = child_command(module, *arguments, kind, CONFIG, str(folder), *map(str, counts))
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
    return folder


def rehearsed_messages(folder: Path) -> list[Rehearsed]:
    """Messages that were rehearsed, each of another epoch, in their order."""
    found = []
    for number in range(len(list(folder.glob("*.key")))):
        manifest, codes, key = (
            (folder / f"{number}.{part}").read_bytes() for part in ("manifest", "codes", "key")
        )
        parsed = Manifest.parse(manifest)
        decoded = decode_codes(codes, parsed.content.code_bytes).astype(np.int64)
        found.append(Rehearsed(parsed, decoded, key))
    return found


def rehearsed_answers(folder: Path, bits: Integers) -> Asked:
    """Questions and answers that were rehearsed, for (n,) labels at either end of the domain."""
    said = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    labels, sessions = np.where(bits, UPPER, LOWER), said["sessions"]
    each = [labels[left_out:] for left_out in range(QUESTIONS)]
    return Asked(
        NoisyAnswers(Fraction(ANSWERS["epsilon"]), ANSWERS["answers"]),
        PairedGain.of_ends(LOWER, UPPER),
        LOWER,
        each * (len(said["questions"]) // QUESTIONS),  # of every label the same
        said["questions"],
        [bytes.fromhex(session["key"]) for session in sessions],
        np.array([session["answers"] for session in sessions]),
    )


def starts_check(world: World, starts: Starts) -> Check:
    """No two starts of a labels party draw the same noise, wherever they are from."""
    image = world.copied("image")
    digests = _starts(world, starts.here, starts.forked, starts.spawned)
    for number in range(starts.restored):
        digests += _starts(world.copied(f"snapshot-{number}"), 1, 0, 0)
    for number in range(starts.restarted):
        digests += _starts(image.copied(f"container-{number}"), 1, 0, 0)
    kinds = (
        f"{starts.here:,} in one process, {starts.forked} in processes that it forked and"
        f" {starts.spawned} that it spawned, {starts.restored} in restored snapshots,"
        f" {starts.restarted} in restarted containers"
    )
    check = seeds_check(digests, world.secrets.size, kinds)
    return replace(check, question="Could a release's noise be had by trying every seed?")


def _starts(world: World, *counts: int) -> list[bytes]:
    data = (rehearse(world, "starts", *counts) / "starts").read_bytes()
    return [data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES)]


def rehearsal_checks(
    messages: Sequence[Rehearsed],
    bits: Integers,
    served: tuple[Fetched, Fetched],
    sessions: Sequence[bytes] = (),
) -> list[Check]:
    """What the keys of rehearsed messages say, and how two served releases compare.

    Parameters
    ----------
    messages
        At least two.
    bits
        (n,) which end all labels of each row are at.
    served
        Releases of two parties with the same labels.
    sessions
        Keys of evaluations.
    """
    found = []
    for number, message in enumerate(messages):
        highest = np.array(message.manifest.codebook.cells.shape) - 1
        indices = bits[:, None] * highest
        what = f"message {number + 1} of {len(messages)}"
        found.append(
            known_answer_check(message.manifest, message.codes, indices, message.key, what)
        )
    # one verdict for all: the first message that fails, if any
    known = next((check for check in found if check.verdict is Verdict.FAIL), found[-1])
    keys = keys_check(
        {f"epoch {n + 1}": message.key for n, message in enumerate(messages)}
        | {f"session {n + 1}": key for n, key in enumerate(sessions)}
    )
    epochs = same_noise_check(
        messages[0].codes, messages[1].codes, messages[0].manifest.codebook, "epoch against epoch"
    )
    manifests = [Manifest.parse(answer.manifest) for answer in served]
    codes = [
        decode_codes(answer.codes, manifest.content.code_bytes).astype(np.int64)
        for answer, manifest in zip(served, manifests, strict=True)
    ]
    releases = same_noise_check(
        codes[0], codes[1], manifests[0].codebook, "release against release"
    )
    questions = {
        known.name: "Have histogram and rows noise of their own, as the key says?",
        keys.name: "Is any key used twice?",
        epochs.name: f"Does one epoch repeat the noise of another ({NAME})?",
        releases.name: f"Do two parties with the same labels draw the same noise ({NAME})?",
    }
    return [
        replace(check, question=questions[check.name]) for check in (known, keys, epochs, releases)
    ]
