"""A whole run of the features party on made-up ratings, beside LightGBM on their true labels.

A run is everything from the fetch to the report, at ε = 2 in one message; more than two million
events go through shards on disk, joined by two workers. Predictions are of all events again, by the
saved model. LightGBM learns the two categories as what they are.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import Bench, Cell, Table
from labelveil.children import FEATURE_PROGRAM, LABEL_PROGRAM, child_command, child_environment
from labelveil.simulation.inputs import read_inputs
from labelveil.simulation.processes import Party, run_party, serving
from labelveil.simulation.settings import Settings
from labelveil.simulation.workspace import Workspace, config_file, furnish

SIZES = (10_000, 100_000, 1_000_000)
USERS, FILMS = 6_000, 3_700
EPSILON = 2.0
IN_MEMORY = 2_000_000
"""Events up to which a run keeps them in memory."""

LIGHTGBM = """
import sys
import lightgbm, polars as pl
table = pl.read_parquet(sys.argv[1])
features = table.select("user", "film", "year", "day").to_pandas()
features[["user", "film"]] = features[["user", "film"]].astype("category")
model = lightgbm.LGBMRegressor(n_estimators=300, num_leaves=24, n_jobs=1, verbosity=-1)
model.fit(features, table["rating"].to_numpy())
if sys.argv[2:]:
    model.predict(features, num_threads=1)
"""


def ratings(rows: int) -> pl.DataFrame:
    """Stars from 1 to 5 that users gave films, a few of either having most of them; when, and how
    old the film is."""
    rng = np.random.default_rng(55)
    user = (USERS * rng.random(rows) ** 1.5).astype(np.int64)
    film = (FILMS * rng.random(rows) ** 2.5).astype(np.int64)
    taste, worth = rng.normal(size=(USERS, 2)), rng.normal(size=(FILMS, 2))
    year = 2000 - (rng.gamma(1.0, 13.0, FILMS) % 80).astype(np.int64)[film]
    liking = (
        3.6 + 0.4 * taste[user, 0] + 0.5 * worth[film, 0] + 0.25 * taste[user, 1] * worth[film, 1]
    )
    stars = liking + (2000 - year) / 80 + 0.85 * rng.normal(size=rows)
    return pl.DataFrame(
        {
            "event": np.arange(rows),
            "user": pl.Series(user).cast(pl.String),
            "film": pl.Series(film).cast(pl.String),
            "year": year,
            "day": rng.integers(0, 1_000, rows),
            "rating": np.clip(np.rint(stars), 1, 5).astype(np.int64),
        }
    )


_CONFIG = ("--config", config_file("label_party"))


class World:
    """Both parties with one table between them, and the release made."""

    def __init__(self, folder: Path, table: Path, label: str, epsilon: float, *more: str) -> None:
        self.settings = Settings.model_validate(
            {
                "labels": table,
                "features": table,
                "key": "event",
                "label": label,
                "epsilon": epsilon,
                "out": folder,
                "overwrite": True,
                **dict(each.split("=", 1) for each in more),
            }
        )
        self.place = Workspace(folder.absolute())
        self.place.claim(overwrite=True)
        furnish(self.place, read_inputs(self.settings), self.settings)
        if not self.settings.submitted:
            where = self.place.label_party
            run_party(
                LABEL_PROGRAM, ["release", *_CONFIG],
                where, self.place.logs / "release.log",
            )  # fmt: skip

    def run(self, *options: str) -> dict[str, float]:
        """Fetch, join, train, predict, evaluate and report: CPU seconds, and the most memory."""
        place = self.place
        with self._served() as address:
            command = ["run", "--address", address, *options]
            if not self.settings.shares:
                return self.features_party(*command)
            watch = ["watch", *_CONFIG, "--quiet"]
            with Party(LABEL_PROGRAM, watch, place.label_party, place.logs / "watch.log"):
                return self.features_party(*command)

    def run_by_shards(self) -> dict[str, float]:
        """The same one command after another, events in shards on disk: all CPU seconds, and the
        most memory of any process."""
        with self._served() as address:
            done = [self.features_party("fetch", "--address", address)]
        done.append(self.features_party("join", "--set", "engine.workers=2"))
        done.append(self.features_party("train", "--set", "training.shards=encoded"))
        done += [self.features_party(command) for command in ("evaluate", "predict")]
        return {
            "cpu": sum(each["cpu"] for each in done), "peak": max(each["peak"] for each in done)
        }  # fmt: skip

    @contextmanager
    def _served(self) -> Iterator[str]:
        """The address at which the labels party serves meanwhile."""
        place = self.place
        serve = ["serve", *_CONFIG, "--port-file", str(place.port_file)]
        place.port_file.unlink(missing_ok=True)
        with serving(serve, place.label_party, place.logs / "s.log", place.port_file) as port:
            yield f"127.0.0.1:{port}"

    def features_party(self, *command: str) -> dict[str, float]:
        """CPU seconds and the most memory of one command."""
        options = [*command, "--config", config_file("feature_party")]
        return measured(child_command(FEATURE_PROGRAM, *options), self.place.feature_party)


_MEASURE = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=2)
_, status, used = os.wait4(child.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def measured(command: Sequence[str], folder: Path) -> dict[str, float]:
    """Run a command to its end: CPU seconds of it and its children, megabytes of the largest.

    Between it and this process, whose memory would count as its own until it starts, is a small
    one.
    """
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command],
        cwd=folder,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    code, seconds, kilobytes = done.stdout.split()
    if int(code):
        raise RuntimeError(done.stderr[-2000:])
    return {"cpu": float(seconds), "peak": int(kilobytes) * 1024 / 1e6}


def run(bench: Bench) -> Table:
    rows: list[list[Cell]] = []
    for size in bench.rows or tuple(map(bench.size, SIZES)):
        with tempfile.TemporaryDirectory(prefix="labelveil-bench-") as name:
            folder, table = Path(name), Path(name) / "ratings.parquet"
            ratings(size).write_parquet(table)
            world = World(folder / "world", table, "rating:1:5", EPSILON)
            ours = world.run() if size <= IN_MEMORY else world.run_by_shards()
            said = world.features_party("predict")
            exported = world.features_party("export", "--output", str(folder / "model.onnx"))
            plain = [sys.executable, "-c", LIGHTGBM, str(table)]
            trained, both = measured(plain, folder), measured([*plain, "predict"], folder)
            rows.append(
                [
                    size,
                    *ours.values(),
                    *said.values(),
                    *exported.values(),
                    *trained.values(),
                    both["cpu"] - trained["cpu"],
                ]
            )
    return Table(
        f"A run of the features party on made-up ratings, ε = {EPSILON:g}",
        [
            "events",
            "run, CPU [s]",
            "run, peak [MB]",
            "predict, CPU [s]",
            "predict, peak [MB]",
            "export, CPU [s]",
            "export, peak [MB]",
            "LightGBM on true labels, CPU [s]",
            "LightGBM, peak [MB]",
            "its predictions, CPU [s]",
        ],
        rows,
        "CPU seconds of whole processes, starting up included, but for LightGBM's predictions.",
    )
