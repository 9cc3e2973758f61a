"""Make a sample of everything that is at rest, by the code of the day, as the parties' commands do.

``python -m tests.formats`` writes them under ``tests/formats/kept``, one archive for each format
and number; what is there already stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from gzip import GzipFile
from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.formats import BACKUP, MODEL, RELEASE, STORE, Format
from labelveil.common.formats import GROUPS as GROUPS_FORMAT
from labelveil.common.formats import QUESTION as QUESTION_FORMAT
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.release.event_keys import hash_keys, secret_check
from labelveil.common.release.question import encode_question
from labelveil.label_party.events.submitted import Populations, Submitted
from labelveil.label_party.store.release_store import Store

KEPT = Path(__file__).parent / "kept"
SAMPLED = (RELEASE, QUESTION_FORMAT, GROUPS_FORMAT, STORE, MODEL, BACKUP)
"""Of which a sample is kept, one of each number."""

SECRET = bytes(range(32))
EVENTS = 40
NAMES = [f"event-{number}" for number in range(EVENTS)]
STRATA = np.arange(EVENTS) % 2
LAWS = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
GRID = Grid(np.linspace(0, 10, 5))
QUESTION = Question(STRATA, GRID, LAWS)
GROUPS = GroupQuestion(
    Lattice(0.0, 10.0, 20),
    np.where(np.arange(EVENTS) == 7, NO_GROUP, np.arange(EVENTS) % 3),
    np.array([4, 20, 1]),
    np.array([0, 6]),
    levels=np.arange(EVENTS) % 2,
    weights=np.arange(EVENTS) % 5 - 2,
    squares=1,
)

LABEL_PARTY = """
[data]
labels = "labels.csv"
population = "population.csv"
key = "key"
label = "amount"
data_set = "sales"
epoch = "1"
[domain]
lower = 0
upper = 10
grid = "step"
step = 2.5
[privacy]
epsilon = 1
total_epsilon = 4
[keys]
secret_file = "join.key"
"""

ASKED = (
    "data.epoch=2",
    'data.population="submitted"',
    "rounds.questions=true",
    'domain.grid="auto"',
)
"""Settings of the epoch whose population was submitted, with a question."""

SUMMED = (*ASKED[1:], "data.data_set=sums", "store.directory=sums_store")
"""Those of a release of sums, in a store of its own."""

FEATURE_PARTY = """
[data]
features = "features.csv"
key = "key"
[labels_party]
data_set = "sales"
[keys]
secret_file = "join.key"
[training]
learner = "networks"
ensemble = 2
epochs = 1
hidden = [4]
"""


def make(folder: Path) -> dict[str, Path]:
    """Make all samples in an empty folder; where each lies, by the name of its format."""
    folder = folder.resolve()
    with _within(folder):
        write_tables()
        for name in ("question", "backup", "sums"):
            Path(name).mkdir()
        Path("question/question.bin").write_bytes(encode_question(QUESTION))
        Path("sums/question.bin").write_bytes(encode_question(GROUPS))
        _run("label_party", "release")
        _submit(Store(Path("label_store")), "sales", "2", encode_question(QUESTION))
        _run("label_party", "release", *(f"--set={setting}" for setting in ASKED))
        _run("label_party", "backup", "--to", "backup/store.tar")
        Path("release").mkdir()
        for name in ("manifest.json", "keys.bin", "codes.bin"):
            shutil.copy(f"label_store/releases/sales/1/{name}", "release")
        Path("label_party.toml.receipt").unlink()  # sums have a store of their own
        _submit(Store(Path("sums_store")), "sums", "1", encode_question(GROUPS))
        _run("label_party", "release", *(f"--set={setting}" for setting in SUMMED))
        for name in ("manifest.json", "keys.bin", "codes.bin"):
            shutil.copy(f"sums_store/releases/sums/1/{name}", "sums")
        _run("feature_party", "train", "--quiet", *_FEATURES)
        _run("feature_party", "predict", "--output", "model/predictions.csv", *_FEATURES)
        shutil.rmtree("model/amount/checkpoints")
    return {each.name: folder / _PLACES[each.name] for each in SAMPLED}


_PLACES = {
    RELEASE.name: "release",
    QUESTION_FORMAT.name: "question",
    GROUPS_FORMAT.name: "sums",
    STORE.name: "label_store",
    MODEL.name: "model",
    BACKUP.name: "backup",
}


_FEATURES = ("--config", "feature_party.toml")


def write_tables() -> None:
    """Write what both parties read, and their configurations, into the working folder."""
    Path("join.key").write_text(SECRET.hex())
    Path("join.key").chmod(0o600)
    Path("label_party.toml").write_text(LABEL_PARTY)
    Path("feature_party.toml").write_text(FEATURE_PARTY)
    amounts = [number % 11 for number in range(0, EVENTS, 2)]
    pl.DataFrame({"key": NAMES[::2], "amount": amounts}).write_csv("labels.csv")
    pl.DataFrame({"key": NAMES}).write_csv("population.csv")
    x = [number / EVENTS for number in range(EVENTS)]
    shop = [f"shop {number % 3}" for number in range(EVENTS)]
    pl.DataFrame({"key": NAMES, "x": x, "shop": shop}).write_csv("features.csv")


def _submit(store: Store, data_set: str, epoch: str, question: bytes) -> None:
    """Put a population with a question into a store, as a submission does."""
    names = pl.Series([f"asked-{number}" for number in range(EVENTS)])
    parts, populations = (hash_keys(names, SECRET), question), Populations(store)
    with populations.upload() as uploads, populations.exchanging(data_set, epoch):
        for upload, part in zip(uploads, parts, strict=True):
            upload.append(part)
            upload.seal()
        keys, asked = (sha256(part).hexdigest() for part in parts)
        check = secret_check(SECRET).hex()
        facts = Submitted(EVENTS, keys, check, "partner", "2026-11-26T00:00:00+00:00", asked)
        populations.store(data_set, epoch, *uploads, facts)


def _run(program: str, *arguments: str) -> None:
    command = f"from labelveil.{program}.commands.cli import main; main()"
    subprocess.run([sys.executable, "-c", command, *arguments], check=True)


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def kept(format_: Format, number: int | None = None) -> Path:
    """The archive with the sample of a number, by default the present one."""
    return KEPT / f"{format_.name}-{number or format_.number}.tar.gz"


def pack(folder: Path, archive: Path) -> None:
    """Write a folder's files, the same bytes each time."""
    with (
        archive.open("wb") as file,
        GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as members,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(path.relative_to(folder).as_posix())
                member.size, member.mode = path.stat().st_size, 0o600
                with path.open("rb") as content:
                    members.addfile(member, content)


def unpack(archive: Path, folder: Path) -> Path:
    """Read it back, for its owner alone, as keys must lie."""
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return folder
