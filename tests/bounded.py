"""Read what a partner may send, made to take time or memory; run by ``test_bounded``.

    python -m tests.bounded SEED FOLDER DOOR=CASES …

A process of its own, so that it may be measured and ended. At every door it reads bytes that
are deep, wide, repeated, huge, or of numbers without digits; cut off, and with sizes that lie. No
more than :data:`MOST_BYTES` may be mapped beyond what the imports need, and none of the cases may
take more than :data:`MOST_SECONDS` of the processor. Prints one JSON line for each door.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.audit.certificate.run import certify
from labelveil.common.config import load_config
from labelveil.common.config.load import MOST_BYTES as CONFIGURATION
from labelveil.common.engine.shuffle import count_repeated
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import LabelveilError
from labelveil.common.formats import GROUPS
from labelveil.common.mechanisms.group_sums import GroupQuestion, NoisySums
from labelveil.common.mechanisms.paired_gain import NoisyAnswers, PairedGain
from labelveil.common.randomizers.grid import LARGEST, LEAST_GAP, MAX_POINTS
from labelveil.common.randomizers.message.strata import MOST_STRATA
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.release.limits import MANIFEST_BYTES
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import decode_question, most_bytes
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.queries.evaluation import question_name
from labelveil.label_party.server.evaluation_service import predictions_of
from labelveil.label_party.server.refusal import Refusal
from tests.common.release.fuzzed import mutate_bytes, mutate_json
from tests.common.release.releases import make_release, text_of
from tests.ending import ENDLESS, ending

MOST_SECONDS = 2.0
MOST_BYTES = 1 << 30
Case = tuple[str, Callable[[], object]]
Cases = Iterator[Case]

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


def manifests(chance: random.Random, cases: int, folder: Path) -> Cases:
    """The largest that there can be, few bytes that claim much, and damaged ones."""
    places = list(product(PLACES, FILLINGS))
    filled_ones = (filled(*pair) for pair in chance.sample(places, min(cases, len(places))))
    damaged = (mutate_json(chance, DATA) for _ in range(cases))
    for data in chain(products(), deep(), filled_ones, damaged):
        yield f"{data[:60]!r}… of {len(data)}", partial(Manifest.from_bytes, data)
    (folder / "manifest.json").write_bytes(filled(("randomizers", 0, "details"), "[]"))
    (folder / "codes.bin").touch()
    (folder / "keys.bin").touch()
    yield "a certificate", lambda: certify(folder)


NUMBERS = [0.0, -0.0, 5e-324, 1e-310, 1e-308, LEAST_GAP, 0.1, 1.0, 60.0, LARGEST, 1e200, 1e308,
           float("inf"), float("nan"), -1.0, -1e308]  # fmt: skip
FEW = [0, 1, 2, MAX_POINTS + 1]
MANY = [3, 33, 34, 500, MAX_POINTS - 1, MAX_POINTS]


def grid_of(chance: random.Random, points: int) -> np.ndarray:
    """Ascending as a rule, from 0 to 60: spaced evenly, or as closely as floats can be."""
    even = np.linspace(0, 60, points)
    step = chance.choice([5e-324, 1e-310, 1e-308, LEAST_GAP, 1e-50, 1e-16])
    close = np.r_[step * np.arange(max(points - 1, 0)), 60.0][:points]
    top = np.r_[0.0, np.nextafter(60, 0) * (1 - 1e-15 * np.arange(max(points - 2, 0)))[::-1], 60.0]
    growing = np.r_[0.0, np.geomspace(LEAST_GAP, 60, max(points - 1, 0))][:points]
    odd = [close, top[:points], growing, np.zeros(points)]
    found = (even if chance.random() < 0.4 else chance.choice(odd)).copy()
    if found.size and chance.random() < 0.2:
        found[chance.randrange(found.size)] = chance.choice(NUMBERS)
    return found


def laws_of(chance: random.Random, strata: int, points: int) -> np.ndarray:
    spike = np.zeros((strata, points), dtype=np.int64)
    spike[:, chance.randrange(points) if points else slice(0)] = 1
    size = chance.choice([1, 5, 1 << 40, (1 << 40) + 1, 1 << 62, -1, 0])
    return chance.choice([spike, spike * size, np.full((strata, points), size)])


def question_of(chance: random.Random, rows: int) -> bytes:
    points = chance.choice(MANY if chance.random() < 0.8 else FEW)
    strata = chance.choice([1, 3, MOST_STRATA] if chance.random() < 0.8 else [0, MOST_STRATA + 1])
    sizes = [points, strata]
    if chance.random() < 0.1:
        sizes = [chance.choice([0, 7, 2**32 - 1]), strata]
    parts = (
        np.arange(rows) % max(strata, 1) if chance.random() < 0.9 else np.full(rows, 255)
    ).astype(np.uint8), np.array(sizes, "<u4")  # fmt: skip
    tables = grid_of(chance, points).astype("<f8"), laws_of(chance, strata, points).astype("<i8")
    data = b"".join(part.tobytes() for part in (*parts, *tables))
    return data if chance.random() < 0.7 else mutate_bytes(chance, data)


def groups_of(chance: random.Random, rows: int) -> bytes:
    """A question about groups, its sizes as they are, or not."""
    groups, levels = chance.choice([1, 7, rows, rows + 1]), chance.choice([1, 2, 256, 257])
    steps, weight = chance.choice([1, 20, 8191, 8192]), chance.choice([0, 0, 1, 1 << 20, 1 << 21])
    header = [steps, groups, levels, weight]
    if chance.random() < 0.2:
        header[chance.randrange(4)] = chance.choice([0, 7, 2**32 - 1])
    words, wide = np.random.default_rng(chance.randrange(2**32)), min(steps, 8191)
    parts = [
        np.array([0.0, chance.choice([60.0, 60.0, 1e300, np.nan])]),
        np.array(header, "<u4"),
        words.integers(0, wide + 1, levels).astype("<u4"),
        words.integers(chance.choice([0, 1]), wide + 1, groups).astype("<u4"),
        words.integers(0, groups, rows).astype("<u4"),
    ]
    if levels > 1:
        parts.append(words.integers(0, min(levels, 256), rows).astype("u1"))
    if weight:
        parts.append(np.full(rows, chance.choice([weight, -weight]), dtype="<i4"))
    data = f"{GROUPS}\n".encode() + b"".join(part.tobytes() for part in parts)
    return data if chance.random() < 0.7 else mutate_bytes(chance, data)


def questions(chance: random.Random, cases: int, folder: Path) -> Cases:
    """What the server does with a question when it comes, and a release for each stratum."""

    def ask(data: bytes, rows: int) -> None:
        question = decode_question(data, rows)
        if isinstance(question, GroupQuestion):
            lattice = question.lattice
            for upper in (60.0, lattice.upper):
                terms = LabelTerms("label", 0.0, upper)
                epsilon = chance.choice([Fraction(1, 10**6), Fraction(1), Fraction(40)])
                noisy = NoisySums.for_label(question, terms, epsilon)
                question.sums(np.zeros(rows, dtype=np.int64))
                noisy.noise(system_entropy())
            return
        grid = question.grid
        for upper, own in ((60.0, None), (grid.upper, None), (grid.upper, grid)):
            terms = LabelTerms("label", 0.0, upper, own)
            plan = question.plan(terms, chance.choice([1e-6, 1.0, 40.0]))
            released = question.released(plan.channels[0].group)
            if len(question.laws) <= 3:  # all take as long, one after another
                plan.build(released)

    most = most_bytes(40)
    text = [b"[" * most, b'{"":' * (most // 4), b"[]," * (most // 3), b"", b"0"]
    made = (chance.choice([question_of, groups_of])(chance, 40) for _ in range(cases))
    for data in (*text, *made):
        yield f"{data[:80]!r}… of {len(data)}", partial(ask, data, 40)


def configurations(chance: random.Random, cases: int, folder: Path) -> Cases:
    """As long as they may be, of one thing; or longer."""
    path = folder / "party.toml"
    long = ".".join("abcdefghijkl")
    lines = [
        "[data]", "[[data]]", f"[{long}]", f"[[{long}]]", "a = 1", "a.b = 1", f"{long} = 1",
        '"" = ""', "a = [1, 2]", "a = {b = {}}", "[data]\nlabels = 5e-324", "# no", "", "a" * 200,
        "a = 1979-05-27T07:32:00Z", "epsilon = 1e400", "a = " + "9" * 4000, "a = 0x" + "f" * 4000,
    ]  # fmt: skip
    inside = ["[]", "{}", "1,", "[", "{a=", "{a=1},", '"",', "1.5,", "a.", '"".', "a . ", "'", '"',
              '"""', "'" * 3, "\\u0041", "\n", " ", "0", "_1", "-", f"{{{long}=1}},"]  # fmt: skip
    starts = ["", "a = ", "a = [", "[", "[[", 'a = "', "a = " + "'" * 3, "[privacy]\nepsilon = "]
    units = [f"{line}\n" for line in lines] + [f"{line}%d\n" for line in ("a", "[x", "[[y", "z.")]
    shapes = [*product([""], units), *product(starts, inside)]
    for start, unit in chance.sample(shapes, min(cases, len(shapes))):
        size = CONFIGURATION + 1 if chance.random() < 0.1 else CONFIGURATION
        many = range((size - len(start)) // len(unit.replace("%d", "12345")))
        numbered = (unit.replace("%d", f"{number}=0") for number in many)
        path.write_text(start + "".join(numbered))
        for model in (LabelPartyConfig, FeaturePartyConfig):
            yield f"{start + unit!r} × {len(many)}", partial(load_config, model, path)


def populations(chance: random.Random, cases: int, folder: Path) -> Cases:
    """A million keys, chosen to look alike where they are compared."""
    rows = 1 << 20
    words = np.arange(2 * rows, dtype="<u8").reshape(rows, 2)
    tables = [words, words[::-1], words[:, ::-1], 0 * words, words % 2, words % 1000, words << 32,
              words * np.array([0, 1], "<u8"), words * np.array([1, 0], "<u8")]  # fmt: skip
    for number, table in enumerate(chance.sample(tables, min(cases, len(tables)))):
        keys = np.ascontiguousarray(table).view("S16").ravel()
        yield f"keys {number}", partial(count_repeated, keys)


def predictions(chance: random.Random, cases: int, folder: Path) -> Cases:
    """A question about a model, of numbers that are none."""

    def ask(data: bytes) -> None:
        points = predictions_of(bytearray(data), rows)
        gain = PairedGain.of_prior(np.array([0.0, 1.0, 60.0]), np.full(3, 1 / 3), "squared")
        asked = points[~np.isnan(points)]
        noise = NoisyAnswers(1, 3).unsure(gain, gain.span(asked), asked.size)
        if not (noise > 0 and len(question_name("00", b"gain", points)) == 64):
            raise ValueError(f"noise of {noise} says nothing")

    rows = 1 << 18
    for _ in range(cases):
        values = np.array(chance.choices(NUMBERS, k=chance.choice([1, 2, 8])))
        data = np.resize(values, rows + chance.choice([0, 0, 0, -1, 1])).astype("<f8").tobytes()
        yield f"predictions {values}", partial(ask, data)


DOORS: dict[str, Callable[[random.Random, int, Path], Cases]] = {
    "manifests": manifests,
    "questions": questions,
    "configurations": configurations,
    "populations": populations,
    "predictions": predictions,
}


def run(door: str, seed: int, cases: int, folder: Path) -> dict[str, Any]:
    """Read all cases; how many were taken, the slowest, and by how much memory grew at most."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MOST_BYTES, resource.RLIM_INFINITY))
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest, refused, taken = (0.0, ""), 0, 0
    for name, call in DOORS[door](random.Random(seed), cases, folder):
        # where no signal is seen, the system ends the process
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + 3 * int(ENDLESS), resource.RLIM_INFINITY))
        print(name, file=sys.stderr, flush=True)
        start = time.process_time()
        try:
            with ending():
                call()
            taken += 1
        except (LabelveilError, Refusal) as error:
            refused += 1
            if "\n" in str(error) or len(str(error)) > 1500:
                raise ValueError(f"not one line: {error!s:.2000}") from error
        slowest = max(slowest, (time.process_time() - start, name))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) << 10
    return {"slowest": slowest, "grown": grown, "taken": taken, "refused": refused}


DATA = make_release(300, randomizer="randomized-thresholds")[0].to_bytes()

if __name__ == "__main__":
    for door, _, cases in (each.partition("=") for each in sys.argv[3:]):
        print(json.dumps(run(door, int(sys.argv[1]), int(cases), Path(sys.argv[2]))))
