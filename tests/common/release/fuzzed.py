"""Fetch and read mutated releases as a features party and an auditor would; run by ``test_fuzz``.

    python -m tests.common.release.fuzzed FOLDER SEED CASES

Prints one JSON line: how many were read, the slowest, and by how much memory grew at most.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.run import certificate
from labelveil.common.errors import LabelveilError
from labelveil.common.release.folder import CODES_FILE, KEYS_FILE, MANIFEST_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import read_release
from labelveil.feature_party.client.spool import Spool

NUMBERS: list[Any] = [
    0, -1, 1, 2**31, 2**40, 2**62, 2**64, 10**400, -(10**18), 0.5, 1e308, -0.0, 5e-324,
    "1e400000000", "1/3", "9" * 150, f"1/{'9' * 150}", "2" * 5000, "", "0", "-1", "inf", "٣",
    None, True, [], {}, [[]], "\x00", [0] * 5000, ["1"] * 5000, [1e308, 1e-308],
]  # fmt: skip


def mutate_json(chance: random.Random, text: bytes) -> bytes:
    """Change one to three values, anywhere, or the bytes themselves."""
    if chance.random() < 0.2:
        return mutate_bytes(chance, text)
    data = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        place = data
        while True:
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and chance.random() < 0.9:
                place = inner
                continue
            break
        what = chance.random()
        if what < 0.7:
            place[key] = copy.deepcopy(chance.choice(NUMBERS))
        elif what < 0.8:
            del place[key]
            if not place:
                break
        elif isinstance(place, dict):
            name = chance.choice(["more", "options", "drift", "labels"])
            place[name] = copy.deepcopy(chance.choice(NUMBERS))
        else:
            place.extend(place[:1] * chance.choice([1, 3, 3000]))
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        errors="replace"
    )
    return text


def mutate_bytes(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 8, 64])):
        at = chance.randrange(len(found) + 1)
        what = chance.random()
        if what < 0.7 and at < len(found):
            found[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif what < 0.8:
            del found[at : at + chance.choice([1, 4, 100])]
        elif what < 0.9:
            found[at:at] = chance.randbytes(chance.choice([1, 4, 100]))
        else:
            del found[at:]
        if not found:
            break
    return bytes(found)


Message = tuple[int, bytes, bytes]


def mutate_stream(chance: random.Random, sent: list[Message]) -> list[Message]:
    """Change one to three messages, or their order."""
    found = list(sent)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(found))
        start, keys, codes = found[at]
        what = chance.randrange(7)
        if what == 0:
            found[at] = chance.choice([0, 1, 2**40, 2**63, start + 1]), keys, codes
        elif what == 1:
            found[at] = start, mutate_bytes(chance, keys), codes
        elif what == 2:
            found[at] = start, keys, mutate_bytes(chance, codes)
        elif what == 3:
            found[at] = (
                start,
                keys * chance.choice([0, 2, 1000]),
                codes * chance.choice([0, 2, 1000]),
            )
        elif what == 4:
            found.insert(at, found[chance.randrange(len(found))])
        elif what == 5 and len(found) > 1:
            del found[at]
        else:
            chance.shuffle(found)
    return found


def refusal(error: LabelveilError) -> None:
    """Every ending but the right one is one line."""
    if "\n" in str(error) or len(str(error)) > 1500:
        raise ValueError(f"not one line: {error}") from error


def fetch(folder: Path, manifest: bytes, stream: list[Message]) -> bool:
    """Whether a client took a manifest and a stream of rows for a release."""
    try:
        with Spool(folder, Manifest.from_bytes(manifest), manifest) as spool:
            spool.check_room()
            for message in stream:
                spool.append(*message)
            spool.finish()
    except LabelveilError as error:
        refusal(error)
        return False
    return True


def read(folder: Path) -> bool:
    """Whether anybody took it for a release."""
    taken = False
    for reader in (read_release, lambda path: certificate(read_evidence(path))):
        try:
            found = reader(folder)
        except LabelveilError as error:
            refusal(error)
        else:
            taken |= getattr(found, "passed", True)
    return taken


def main(folder: Path, seed: int, cases: int) -> None:
    release = read_release(folder)
    content, original = release.manifest.content, (folder / MANIFEST_FILE).read_bytes()
    keys, codes = ((folder / name).read_bytes() for name in (KEYS_FILE, CODES_FILE))
    k, c = 50 * content.key_bytes, 50 * content.code_bytes
    sent = [
        (50 * part, keys[part * k :][:k], codes[part * c :][:c])
        for part in range(-(-len(codes) // c))
    ]
    victim = folder / "mutated"
    read(folder)
    chance, slowest, taken = random.Random(seed), 0.0, 0
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in range(cases):
        victim.mkdir()
        manifest, stream, rows = original, sent, {KEYS_FILE: keys, CODES_FILE: codes}
        if case % 2 == 0:
            manifest = mutate_json(chance, original)
        elif case % 4 == 1:
            name = chance.choice(list(rows))
            rows[name] = mutate_bytes(chance, rows[name])
        else:
            stream = mutate_stream(chance, sent)
        for name, data in (rows | {MANIFEST_FILE: manifest}).items():
            (victim / name).write_bytes(data)
        start = time.process_time()
        changed = (manifest, stream, rows) != (original, sent, {KEYS_FILE: keys, CODES_FILE: codes})
        try:
            if case % 4 != 1:
                taken += fetch(folder / "fetched", manifest, stream) and changed
            if case % 4 != 3:
                taken += read(victim) and changed
        except BaseException as error:  # a panic of a library is none of Exception
            with contextlib.suppress(OSError):
                shutil.copytree(victim, folder / "found")
            raise SystemExit(f"case {case} of seed {seed}: {error!r:.500}") from error
        slowest = max(slowest, time.process_time() - start)
        shutil.rmtree(victim)
        shutil.rmtree(folder / "fetched", ignore_errors=True)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
    print(json.dumps({"taken": taken, "slowest": slowest, "grown": grown}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
