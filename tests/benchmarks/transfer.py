"""Fetching a release over the loopback, beside a raw TCP copy of the same bytes.

Both parties run as their own processes with mutual TLS between them. The raw copy goes from file to
file over a plain socket between two more processes: no encryption, no digest, no framing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.release.event_keys import write_secret
from common.release.limits import BLOCK_ROWS
from common.release.manifest import manifest_digest
from common.security.pilot_certificates import write_certificates
from label_party.store.release_store import Store
from tests.benchmarks.harness import Bench, Cell, Table
from tests.common.release.releases import make_release
from tests.label_party.store.ledgers import reserve

_ROOT = Path(__file__).parents[2]

_LABEL_PARTY = """
[data]
labels = "absent.csv"
data_set = "clicks"
epoch = "2026-11"
[domain]
lower = 0
upper = 29
[privacy]
epsilon = 1.0
total_epsilon = 1.0
[keys]
secret_file = "join.key"
[server]
listen = "localhost:0"
certificate = "{files.label_party_certificate}"
private_key = "{files.label_party_key}"
client_ca = "{files.authority}"
client_san = "feature-party"
log_level = "warning"
"""

# Fetches as `feature-party fetch` does, and tells when rows came and how much memory that took.
_FETCH = """
import json, sys, time
from pathlib import Path
from common.allocator import keep_freed_memory
from feature_party.client.release_client import ReleaseClient
from feature_party.config import LabelsPartySection

keep_freed_memory()
settings, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
client, moments = ReleaseClient(LabelsPartySection.model_validate(settings)), []
fetched = client.fetch(directory, lambda rows, total: moments.append(time.perf_counter()))
status = Path("/proc/self/status").read_text()
peak = int(status.partition("VmHWM:")[2].split()[0])
print(json.dumps([moments[-1] - moments[0], fetched.seconds, peak * 1024, fetched.received]))
"""

_SEND = """
import socket, sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as to:
    for name in sys.argv[2:]:
        with open(name, "rb") as file:
            while data := file.read(1 << 20):
                to.sendall(data)
"""

_RECEIVE = """
import socket, sys, time

buffer = bytearray(1 << 20)
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    connection, _ = listening.accept()
    began = time.perf_counter()
    with connection, open(sys.argv[1], "wb") as file:
        while count := connection.recv_into(buffer):
            file.write(memoryview(buffer)[:count])
    print(time.perf_counter() - began, flush=True)
"""


def run(bench: Bench) -> Table:
    rows = bench.size(10_000_000)
    return Table(
        f"{rows:,} rows over the loopback",
        ["bytes a row", "raw TCP copy [s]", "stream, verify, store [s]", "of the raw copy",
         "whole fetch, to Parquet [s]", "labels party's peak [MB]", "features party's peak [MB]"],
        [_measure(bench, rows, keyed) for keyed in (True, False)],
        "Medians; the raw copy is neither encrypted nor verified.",
    )  # fmt: skip


def _measure(bench: Bench, rows: int, keyed: bool) -> list[Cell]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_certificates(folder / "certificates")
        write_secret(folder / "join.key")
        (folder / "label_party.toml").write_text(_LABEL_PARTY.format(files=files))
        release = _store(folder / "label_store", rows, keyed)
        raw, streams, fetches, peaks = [], [], [], [0]
        with _served(folder) as (server, port):
            settings = {
                "address": f"localhost:{port}", "ca": str(files.authority),
                "certificate": str(files.feature_party_certificate),
                "private_key": str(files.feature_party_key), "data_set": "clicks",
            }  # fmt: skip
            for attempt in range(bench.repeat):
                raw.append(_copy([release / "keys.bin", release / "codes.bin"], folder / "copy"))
                fetched = _python(_FETCH, json.dumps(settings), str(folder / str(attempt)))
                stream, seconds, peak, received = json.loads(fetched)
                assert received == rows
                streams.append(stream)
                fetches.append(seconds)
                peaks.append(peak)
            serving = _peak(server.pid)
        stream, copy = statistics.median(streams), statistics.median(raw)
        return [
            17 if keyed else 1, copy, stream, f"{stream / copy:.2f} ×",
            statistics.median(fetches), serving / 1e6, max(peaks) / 1e6,
        ]  # fmt: skip


def _store(directory: Path, rows: int, keyed: bool) -> Path:
    """Put a release into a labels party's store; return its folder."""
    manifest, keys, codes = make_release(rows, points=30, keyed=keyed, block_rows=BLOCK_ROWS)
    store, data = Store(directory), manifest.to_bytes()
    store.create()
    writer = store.writer(manifest.data_set, manifest.epoch)
    files = [writer.folder / name for name in ("keys", "codes")]
    for file, part in zip(files, (keys, codes), strict=True):
        file.write_bytes(part)
    writer.adopt(*files)
    writer.finish(data)
    writer.publish()
    spent = manifest.total_guarantee
    with store.open_ledger() as ledger:
        charge = reserve(ledger, manifest.data_set, manifest.epoch, spent, spent)
        ledger.commit(charge, manifest_digest(data), rows)
    return store.path(manifest.data_set, manifest.epoch)


@contextmanager
def _served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "label_party", "serve"],
        cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate()


def _copy(files: list[Path], to: Path) -> float:
    receiver = subprocess.Popen(
        [sys.executable, "-c", _RECEIVE, str(to)], stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    port = receiver.stdout.readline().strip()
    _python(_SEND, port, *map(str, files))
    return float(receiver.communicate()[0])


def _python(script: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=_environment(), check=True, stdout=subprocess.PIPE, text=True,
    ).stdout  # fmt: skip


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_ROOT)}


def _peak(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
