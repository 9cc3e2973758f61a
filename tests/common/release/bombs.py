"""Open manifests as large as there can be, made to take memory; run by ``test_fuzz``.

    python -m tests.common.release.bombs FOLDER BYTES EVERY

One of EVERY is opened. No more than BYTES of memory may be mapped beyond what the imports need.
"""

from __future__ import annotations

import copy
import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

from common.errors import ReleaseError
from common.release.limits import MANIFEST_BYTES
from common.release.manifest import Manifest
from labelveil.audit.certificate.run import certify
from tests.common.release.releases import make_release, text_of

FILLINGS = ("[]", "{}", "0", '""', '"ab"', "0.1", "[[]]", '{"a":0}', "1e5", "null", "-1", "[0]")
PLACES: tuple[tuple[str | int, ...], ...] = (
    ("more",),
    ("labels",),
    ("labels", 0, "grid"),
    ("labels", 0, "name"),
    ("priors",),
    ("strata",),
    ("tables",),
    ("priors", 0, "labels"),
    ("priors", 0, "noisy_counts"),
    ("randomizers",),
    ("randomizers", 0, "details"),
    ("randomizers", 0, "details", "partitions"),
    ("randomizers", 0, "details", "options"),
    ("randomizers", 0, "channel", "outputs"),
    ("randomizers", 0, "channel", "row_of"),
    ("randomizers", 0, "channel", "rows"),
    ("content", "blocks"),
    ("drift",),
)


def manifest_with(place: tuple[str | int, ...], value: object) -> bytes:
    data = json.loads(DATA)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def filled(place: tuple[str | int, ...], filling: str) -> bytes:
    """As many of one thing as there is room for."""
    around = manifest_with(place, "PLACE")
    room = (MANIFEST_BYTES - len(around)) // (len(filling) + 1)
    many = f"[{','.join([filling] * room)}]".encode()
    return around.replace(b'"PLACE"', many)


def products() -> Iterator[bytes]:
    """Few bytes for many cells, many weights, many rows."""
    data = json.loads(DATA)
    (label,), (prior,), (randomizer,) = data["labels"], data["priors"], data["randomizers"]
    for labels, points in ((2, 20_000), (8, 1000), (8, 8000), (1, 400_000)):
        grid = [float(i) for i in range(points)]
        several = copy.deepcopy(data)
        several["labels"] = [{**label, "name": f"y{j}", "grid": grid} for j in range(labels)]
        names = [one["name"] for one in several["labels"]]
        several["priors"] = [{**prior, "labels": names}]
        several["randomizers"] = [{**randomizer, "labels": names}]
        yield json.dumps(several, sort_keys=True, separators=(",", ":")).encode()
    # two rows, mixed for every point of the grid: 500 million weights
    wide = copy.deepcopy(data)
    size, points = 60_000, 8192
    row = text_of([(1 << 64) // size] * (size - 1) + [(1 << 64) - (size - 1) * ((1 << 64) // size)])
    wide["labels"][0]["grid"] = [float(i) for i in range(points)]
    wide["priors"][0]["noisy_counts"] = [1] * points
    wide["randomizers"][0]["channel"] = {
        "outputs": [float(i) for i in range(size)],
        "row_of": [0, *[-1] * (points - 2), 1],
        "rows": [row, row],
    }
    yield json.dumps(wide, sort_keys=True, separators=(",", ":")).encode()
    far = copy.deepcopy(data)
    far["population"]["rows"] = far["content"]["block_rows"] = 1 << 35
    yield json.dumps(far, sort_keys=True, separators=(",", ":")).encode()


def deep() -> Iterator[bytes]:
    yield b"[" * MANIFEST_BYTES
    yield b"9" * MANIFEST_BYTES
    yield b'{"":' * (MANIFEST_BYTES // 5)
    yield b'"' + b"\\u0041" * (MANIFEST_BYTES // 6 - 1) + b'"'


def open_all(folder: Path, every: int) -> dict[str, float]:
    slowest, opened = 0.0, 0
    pairs = list(product(PLACES, FILLINGS))[::every]
    for data in chain(products(), (filled(*pair) for pair in pairs), deep()):
        start = time.process_time()
        try:
            Manifest.from_bytes(data)
        except ReleaseError as error:
            opened += 1
            if "\n" in str(error) or len(str(error)) > 1500:
                raise ValueError(f"not one line: {error!s:.2000}") from error
        else:
            raise ValueError(f"{data[:200]!r} is taken for a manifest")
        slowest = max(slowest, time.process_time() - start)
    if every > 1:
        return {"slowest": slowest, "opened": opened}
    (folder / "manifest.json").write_bytes(filled(("randomizers", 0, "details"), "[]"))
    (folder / "codes.bin").touch()
    (folder / "keys.bin").touch()
    certify(folder)
    return {"slowest": slowest, "opened": opened}


DATA = make_release(300, randomizer="randomized-thresholds")[0].to_bytes()

if __name__ == "__main__":
    certify  # noqa: B018  imported before memory is limited
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + int(sys.argv[2]), resource.RLIM_INFINITY))
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = open_all(Path(sys.argv[1]), int(sys.argv[3]))
    found["grown"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
    print(json.dumps(found))
