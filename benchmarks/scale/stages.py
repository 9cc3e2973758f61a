"""Stages of a message at some size, up to its fetch: what :mod:`benchmarks.scale` runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.scale.process import Clock, Memory, cpu_of
from labelveil.common.entropy import system_entropy
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.security.pilot_certificates import write_certificates
from labelveil.feature_party.client.release_client import ReleaseClient
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.label_party.config import sections as config
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.release.run import run_release

SLICE = 1 << 19
SECRET = "join.key"
GRID = np.arange(101.0)
FEATURES = 4


def data(folder: Path, rows: int) -> None:
    """Write the population, labels for half of it, and four features; a slice at a time."""
    import pyarrow.parquet as pq

    writers: dict[str, pq.ParquetWriter] = {}
    for index, (start, stop) in enumerate(block_ranges(rows, SLICE)):
        generator = np.random.default_rng(index)
        ids = np.arange(start, stop, dtype=np.int64) * 2_654_435_761 % (1 << 61)
        key = pl.Series("id", ids).cast(pl.String)
        half = generator.permutation(stop - start)[: (stop - start) // 2]
        frames = {
            "population": pl.DataFrame({"id": key}),
            "labels": pl.DataFrame({"id": key[half], "y": generator.gamma(1.0, 12.0, half.size)}),
            "features": pl.DataFrame(
                {
                    "id": key,
                    **{
                        f"x{j}": generator.standard_normal(ids.size, dtype=np.float32)
                        for j in range(FEATURES)
                    },
                }
            ),
        }
        for name, frame in frames.items():
            table = frame.to_arrow()
            if name not in writers:
                writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", table.schema)
            writers[name].write_table(table)
    for writer in writers.values():
        writer.close()
    write_certificates(folder / "certificates", label_hosts=["localhost"])


def settings(folder: Path, epoch: str, **changes: Any) -> LabelPartyConfig:
    chosen = {
        "data.labels": folder / "labels.parquet",
        "data.population": folder / "population.parquet",
        "data.key": "id",
        "data.label": "y",
        "data.epoch": epoch,
        "domain.lower": 0,
        "domain.upper": 100,
        "privacy.epsilon": 1.0,
        "privacy.total_epsilon": 10.0,
        "randomizer.name": "rr-on-bins",
        "keys.secret_file": folder / "certificates" / SECRET,
        "store.directory": folder / "store",
        "server.listen": "localhost:0",
        "server.certificate": folder / "certificates" / "label-party.pem",
        "server.private_key": folder / "certificates" / "label-party.key",
        "server.client_ca": folder / "certificates" / "ca.pem",
        "server.client_san": "feature-party",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return config.load(None, settings=[f"{key}={value}" for key, value in chosen.items()])


def release(folder: Path, rows: int) -> None:
    """Build the release in one process."""
    run_release(settings(folder, "1"), quiet=True)


def release_workers(folder: Path, rows: int) -> None:
    """Build it with two workers."""
    run_release(settings(folder, "2", engine__workers=2), quiet=True)


def release_kernel(folder: Path, rows: int) -> None:
    """Do to every row what a release must do, in no order and with nothing around it."""
    secret, entropy = bytes(32), system_entropy()
    grid = Grid(GRID)
    randomizer = build_randomizer(
        "rr-on-bins", labels=GRID, prior=np.ones(GRID.size), epsilon=0.9, loss="squared"
    )
    listed, labels = (pl.scan_parquet(folder / f"{n}.parquet") for n in ("population", "labels"))
    with (folder / "kernel.keys").open("wb") as keys, (folder / "kernel.codes").open("wb") as codes:
        for start, stop in block_ranges(rows, SLICE):
            keys.write(hash_keys(listed.slice(start, stop - start).collect()["id"], secret))
        for start, stop in block_ranges(rows // 2, SLICE):
            part = labels.slice(start, stop - start).collect()
            hash_keys(part["id"], secret)
            values = np.concatenate([part["y"].to_numpy(), np.zeros(part.height)])
            words = entropy.words("rounding", 2 * start, values.size)
            indices = grid.round(values, words)
            np.bincount(indices, minlength=len(grid))
            codes.write(randomizer.randomize_indices(indices, entropy, 2 * start).tobytes())
        for file in (keys, codes):
            file.flush()
            os.fsync(file.fileno())


def aes(folder: Path, rows: int) -> None:
    """Draw the words that a release draws, one for rounding and one for randomizing."""
    entropy = system_entropy()
    for stream in ("rounding", "labels"):
        for start, stop in block_ranges(rows, SLICE):
            entropy.words(stream, start, stop - start)


def disk(folder: Path, rows: int) -> None:
    """Copy the release's files, and wait for the disk."""
    copied = folder / "copied"
    with copied.open("wb") as out:
        for path in sorted((folder / "store" / "releases").rglob("*.bin")):
            with path.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
        out.flush()
        os.fsync(out.fileno())
    copied.unlink()


def fetch(folder: Path, rows: int) -> dict[str, Any]:
    """Fetch the release from a server process, over mutual TLS."""
    chosen = settings(folder, "1")
    facts = folder / "server.toml"
    facts.write_text(_toml(chosen), encoding="utf-8")
    port = folder / "port"
    port.unlink(missing_ok=True)
    command = [sys.executable, "-m", "labelveil.label_party", "serve", "--config", str(facts)]
    server = subprocess.Popen([*command, "--port-file", str(port)], stderr=subprocess.DEVNULL)
    try:
        while not port.exists():
            with suppress(subprocess.TimeoutExpired):
                raise RuntimeError(f"the server ended with code {server.wait(0.05)}")
        certificates = folder / "certificates"
        where = LabelsPartySection(
            address=f"localhost:{port.read_text(encoding='utf-8').strip()}",
            ca=certificates / "ca.pem",
            certificate=certificates / "feature-party.pem",
            private_key=certificates / "feature-party.key",
            data_set="labels",
            epoch="1",
        )
        clock, before = Clock(), cpu_of(server.pid)
        with Memory(server.pid) as served:
            ReleaseClient(where).fetch(folder / "fetched")
        taken = clock.read()
        user, system = (b - a for a, b in zip(before, cpu_of(server.pid), strict=True))
        serve = {"cpu": user + system, "user": user, "peak": served.peak}
        return {**taken, "serve": {"seconds": taken["seconds"], **serve}}
    finally:
        server.terminate()
        server.wait()


def tcp(folder: Path, rows: int) -> None:
    """Send as many bytes over the loopback, and write them to the disk."""
    listener = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        with socket.create_connection(listener.getsockname()) as out:
            chunk = bytes(1 << 20)
            for start, stop in block_ranges(rows * 17, len(chunk)):
                out.sendall(chunk[: stop - start])

    sender = threading.Thread(target=send)
    sender.start()
    connection, _ = listener.accept()
    with connection, listener, (folder / "tcp.bin").open("wb") as file:
        while part := connection.recv(1 << 20):
            file.write(part)
    sender.join()


def _toml(chosen: LabelPartyConfig) -> str:
    sections: dict[str, dict[str, Any]] = chosen.model_dump(mode="json", exclude_none=True)
    lines = []
    for name in ("data", "domain", "privacy", "keys", "store", "server"):
        given = sections[name] if name != "server" else {
            key: sections[name][key]
            for key in ("listen", "certificate", "private_key", "client_ca", "client_san")
        }  # fmt: skip
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in given.items())]
    return "\n".join(lines) + "\n"
