"""Our own build, looked at with the keys of its noise.

With a key everything random about a message is known, so that it can be made again and compared:
whether histogram and rows have noise of their own, whether two epochs do, two answers of an
evaluation, and two starts. No audit can ask that of a partner: who hands keys over could hand over
any.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from labelveil.audit.attacks.laws import same_noise_check
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.canaries.worlds import CONFIG, LOWER, UPPER, World, canaries_of
from labelveil.audit.mechanism.cold_start import STARTS, seeds_check
from labelveil.audit.settings import CanarySettings
from labelveil.audit.verdict import Check, verdict_of
from labelveil.children import child_command, child_environment
from labelveil.common.arrays import Integers
from labelveil.common.entropy import Entropy
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.exact.rational import parse_rational
from labelveil.common.mechanisms.paired_gain import NoisyAnswers, PairedGain
from labelveil.common.randomizers import decoded_prior
from labelveil.common.randomizers.base import LABEL_STREAM
from labelveil.common.randomizers.cells import stream
from labelveil.common.randomizers.prior import PRIOR_STREAM
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.manifest import Manifest
from labelveil.common.security.pilot_certificates import write_certificates
from tests.label_party.answered import Asked
from tests.label_party.rehearsal import DIGEST_BYTES

QUESTIONS = 4
EVENTS = 512
RESPONSE = "randomized-response"
"""Its outputs vary so much that no two starts agree by chance."""

EPSILON, ANSWERS = 1.0, 4
"""What an evaluation may tell."""

PROGRAM = ("tests.label_party.rehearsal",)


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
    forked, spawned
        In processes that it forks or spawns once it has drawn some noise.
    restarted
        In copies of a machine that has not: a container that is started again from its image.
    """

    here: int = STARTS  # in one process, a fresh key each
    forked: int = 16
    spawned: int = 2
    restored: int = 2  # in copies of a machine that has run: a snapshot that is restored
    restarted: int = 2


def make_world(folder: Path, labels: int = 1) -> World:
    """Return a labels party of few events, which answers questions about models."""
    files = write_certificates(folder / "certificates", days=2)
    randomizer = RESPONSE if labels == 1 else "auto"
    settings = CanarySettings(rows=EVENTS, randomizer=randomizer, labels=labels)
    made = canaries_of(draw_secrets(EVENTS), settings.names)
    world = World(settings, folder / "few", files, made)
    with (world.folder / CONFIG).open("a") as config:
        config.write(f"[evaluation]\noffered = true\nepsilon = {EPSILON}\nanswers = {ANSWERS}\n")
    return world


def rehearse(world: World, kind: str, *counts: int, program: Sequence[str] = PROGRAM) -> Path:
    """Run a rehearsal as a process of its own; returns the folder of what it made.

    ``program`` is the module that rehearses, and what it is given first.
    """
    folder = world.folder / "rehearsed" / kind
    command = child_command(*program, kind, CONFIG, str(folder), *map(str, counts))
    subprocess.run(command, cwd=world.folder, env=child_environment(), check=True)
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
        NoisyAnswers(Fraction(EPSILON), ANSWERS),
        PairedGain.of_ends(LOWER, UPPER),
        LOWER,
        each * (len(said["questions"]) // QUESTIONS),  # of every label the same
        said["questions"],
        [bytes.fromhex(session["key"]) for session in sessions],
        np.array([session["answers"] for session in sessions]),
    )


def starts_check(world: World, starts: Starts, program: Sequence[str] = PROGRAM) -> Check:
    """No two starts of a labels party draw the same noise, wherever they are from."""

    def digests_of(world: World, *counts: int) -> list[bytes]:
        data = (rehearse(world, "starts", *counts, program=program) / "starts").read_bytes()
        return [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]

    image = world.copied("image")
    digests = digests_of(world, starts.here, starts.forked, starts.spawned)
    for number in range(starts.restored):
        digests += digests_of(world.copied(f"snapshot-{number}"), 1, 0, 0)
    for number in range(starts.restarted):
        digests += digests_of(image.copied(f"container-{number}"), 1, 0, 0)
    kinds = (
        f"{starts.here:,} in one process, {starts.forked} in processes that it forked and"
        f" {starts.spawned} that it spawned, {starts.restored} in restored snapshots,"
        f" {starts.restarted} in restarted containers"
    )
    return seeds_check(digests, world.secrets.size, kinds)


def known_answer_check(
    manifest: Manifest, codes: Integers, indices: Integers, key: bytes, what: str
) -> Check:
    """A message is what its key says that it must be.

    Parameters
    ----------
    manifest, codes
        The message.
    indices
        (n, m) grid indices of the labels, in the order of the rows; labels lie on grid points, so
        that no rounding is drawn.
    key
        That the subject handed over.
    what
        The message, in words.
    """
    entropy, codebook = Entropy(key, secure=False), manifest.codebooks.only
    columns = codebook.split(codes)
    prior, drawn = True, []
    for stated in manifest.priors:
        group = manifest.group(stated.labels)
        truth = np.bincount(group.number(indices), minlength=len(group.cells))
        if stated.decoded:
            sent = next(i for i, one in enumerate(codebook.groups) if one.labels == group.labels)
            seen = np.bincount(columns[:, sent], minlength=truth.size)
            counts = decoded_prior(codebook.channels[sent], seen).noisy_counts
        else:
            source = entropy.source(stream(PRIOR_STREAM, group.labels[0]))
            counts = truth + discrete_laplace(parse_rational(stated.scale), truth.size, source)
        prior &= bool(np.array_equal(counts, stated.noisy_counts))
    for i, (group, channel) in enumerate(zip(codebook.groups, codebook.channels, strict=True)):
        words = entropy.words(stream(LABEL_STREAM, i), 0, codes.size)
        drawn.append(channel.sample(group.number(indices), words))
    rows = bool(np.array_equal(np.column_stack(drawn), columns))
    return Check(
        name="two noises: known answers",
        verdict=verdict_of(prior and rows),
        claim="The histogram's noise is the key's stream `prior`, the rows' its stream `labels`.",
        tried=f"The key of {what} was handed over; noise and outputs were made again from it.",
        found=f"The histogram {'agrees' if prior else 'differs'}; the rows"
        f" {'agree' if rows else 'differ'}.",
        confidence=1.0,
    )


def keys_check(keys: Mapping[str, bytes]) -> Check:
    """No two messages were made under one key."""
    again = len(keys) - len(set(keys.values()))
    return Check(
        name="two noises: keys",
        verdict=verdict_of(again == 0),
        claim="Every message is made under a key of its own.",
        tried=f"The keys of {len(keys):,} messages were compared: {', '.join(list(keys)[:6])}.",
        found=f"{again:,} of them repeat another's.",
        confidence=1.0,
    )


def rehearsal_checks(messages: Sequence[Rehearsed], bits: Integers) -> list[Check]:
    """What the keys of two messages or more say; ``bits``: which end each row's labels are at."""
    found = []
    for number, message in enumerate(messages):
        highest = np.array(message.manifest.codebooks.only.cells.shape) - 1
        what = f"message {number + 1} of {len(messages)}"
        found.append(
            known_answer_check(
                message.manifest, message.codes, bits[:, None] * highest, message.key, what
            )
        )
    one, other = messages[0], messages[1]
    return [
        *found,
        keys_check({f"epoch {n + 1}": message.key for n, message in enumerate(messages)}),
        replace(
            same_noise_check(one.codes, other.codes, one.manifest.codebooks.only),
            name="two noises: stretches",
        ),
    ]
