"""Both parties on hosts of their own, and a link between them that fails in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from labelveil.common.release.limits import BLOCK_ROWS
from labelveil.common.release.rows import keys_bytes
from labelveil.common.release.table import read_release
from labelveil.common.security.pilot_certificates import CertificateFiles, write_certificates
from labelveil.feature_party.config.labels_party import LabelsPartySection
from tests.deploy.hosts import Host, NoHosts, two_hosts

ROOT = Path(__file__).parents[2]
ROWS = 400_000
RATE = "16mbit"
"""So slow that most rows are still to come when the link is cut."""
PORT = 50051
"""The hosts are the test's own, and so are their ports."""
PATIENCE = 1.5
"""Seconds without progress after which the client gives up a stream."""

# The client of `feature-party fetch`, whose backoff says when it begins to wait.
FETCH = """
import sys
from dataclasses import dataclass
from pathlib import Path
from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy
from labelveil.feature_party.config.labels_party import LabelsPartySection

class Telling(RetryPolicy):
    def delay(self, failures):
        print("failed", failures, flush=True)
        return super().delay(failures)

settings = LabelsPartySection.model_validate_json(sys.argv[1])
fetched = ReleaseClient(settings, Telling()).fetch(
    Path(sys.argv[2]), lambda rows, total: print("rows", rows, flush=True)
)
print("done", fetched.received, flush=True)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    try:
        with two_hosts() as pair:
            yield pair
    except NoHosts as error:
        pytest.skip(f"no network namespaces here: {error}")


@dataclass(frozen=True)
class World:
    """A labels party's folder with a release, and the certificates of both parties."""

    folder: Path
    files: CertificateFiles

    @property
    def release(self) -> Path:
        return self.folder / "label_store" / "releases" / "sales" / "1"

    def client(self, address: str) -> LabelsPartySection:
        return LabelsPartySection(
            address=address,
            ca=self.files.authority,
            certificate=self.files.feature_party_certificate,
            private_key=self.files.feature_party_key,
            data_set="sales",
            timeout=PATIENCE,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, hosts: tuple[Host, Host]) -> World:
    folder = tmp_path_factory.mktemp("labels-party")
    files = write_certificates(folder / "certificates", label_hosts=[hosts[0].address])
    labels = pl.int_range(ROWS, eager=True)
    pl.DataFrame({"key": labels, "label": labels % 11}).write_parquet(folder / "sales.parquet")
    label_party(
        folder,
        *("init", "--labels", "sales.parquet", "--data-set", "sales", "--lower", "0"),
        *("--upper", "10", "--epsilon", "2", "--randomizer", "randomized-response"),
    )
    label_party(folder, "release", "--quiet", "--set", "domain.grid=step", "--set", "domain.step=1")
    return World(folder, files)


def label_party(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "labelveil.label_party", *arguments]
    subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def serving(world: World, host: Host, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the server on a host until the block is left."""
    options = [f"--listen={host.address}:{PORT}", "--set=observability.listen=127.0.0.1:0"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            host.command(sys.executable, "-m", "labelveil.label_party", "serve", *options),
            cwd=world.folder, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("serving on"), log.read_text()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


@contextmanager
def fetching(world: World, host: Host, server: Host, to: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the client on a host; kill it if it outlives the block."""
    settings = world.client(f"{server.address}:{PORT}").model_dump_json()
    process = subprocess.Popen(
        host.command(sys.executable, "-c", FETCH, settings, str(to)),
        cwd=to.parent, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def reported(process: subprocess.Popen[str], word: str, least: int = 0) -> int:
    """Wait until a process says a word with at least some number; return the number."""
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        said, _, number = line.partition(" ")
        if said == word and int(number) >= least:
            return int(number)
    raise AssertionError(process.stderr.read())


def last_fetch(log: Path) -> dict[str, Any]:
    """Return what a server's log says of the last fetch that came to its end."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    fetches = [event for event in events if event.get("method") == "FetchRelease"]
    return [event for event in fetches if event["status"] == "OK"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True], ids=["link", "link-and-server"])
def test_a_fetch_outlives_the_link(
    world: World, hosts: tuple[Host, Host], tmp_path: Path, crash: bool
) -> None:
    labels, features = hosts
    log, to = tmp_path / "serve.log", tmp_path / "release"
    with ExitStack() as stack:
        stack.callback(labels.join)
        server = stack.enter_context(serving(world, labels, log))
        with labels.slowed(RATE):
            client = stack.enter_context(fetching(world, features, labels, to))
            verified = reported(client, "rows", least=2 * BLOCK_ROWS) // BLOCK_ROWS * BLOCK_ROWS
            labels.cut()
            reported(client, "failed")
        if crash:
            log = tmp_path / "again.log"
            server.kill()
            server.wait()
            stack.enter_context(serving(world, labels, log))
        labels.join()
        received = reported(client, "done")
        assert client.wait(60) == 0
    # one process got all rows, and not in one stream
    assert received == ROWS
    assert verified <= last_fetch(log)["from_row"] < ROWS
    fetched = read_release(to)
    assert fetched.manifest_bytes == (world.release / "manifest.json").read_bytes()
    assert keys_bytes(fetched.labels["key"]).tobytes() == (world.release / "keys.bin").read_bytes()
    assert fetched.codes.astype("u1").tobytes() == (world.release / "codes.bin").read_bytes()
