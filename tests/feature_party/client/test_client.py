"""Fetching: identical bytes through broken streams, and refusals that say why."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.error_details import ErrorDetails
from labelveil.common.errors import ConnectionFailed, ReleaseError
from labelveil.common.formats import GROUPS
from labelveil.common.release.limits import MANIFEST_BYTES, MESSAGE_BYTES
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import read_release, write_release
from labelveil.common.security.pilot_certificates import CertificateFiles
from labelveil.common.security.proxies import through_proxy
from labelveil.feature_party.client.channel import Withdrawn
from labelveil.feature_party.client.labels_table import write_labels_table
from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy
from labelveil.feature_party.client.spool import PARTIAL
from tests.common.test_no_space import small_files
from tests.feature_party.servers import (
    QUICK,
    Behaviour,
    client_settings,
    fetch_error,
    serving,
)
from tests.feature_party.two_labels import two_labels
from tests.feature_party.worlds import World, build_world
from tests.formats.make import kept, unpack


def test_a_fetch_leaves_the_release(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with serving(world, Behaviour(), files) as address:
        client = ReleaseClient(client_settings(address, files), QUICK)
        fetched = client.fetch(tmp_path, lambda done, total: seen.append((done, total)))
        again = client.fetch(tmp_path)
    assert fetched.received == fetched.rows == 1500
    assert again.received == 0
    assert seen[-1] == (1500, 1500)
    release = read_release(tmp_path)
    assert release.labels.equals(world.release.labels)
    assert release.manifest_bytes == world.release.manifest_bytes
    assert not (tmp_path / PARTIAL).exists()


WITHDRAWN = ErrorDetails("withdrawn").trailers(9, "withdrawn: a mistake")


@pytest.mark.parametrize("withdrawn", [None, "a mistake"])
def test_a_fetch_says_which_release_it_replaces_and_whether_that_was_withdrawn(
    world: World, files: CertificateFiles, tmp_path: Path, withdrawn: str | None
) -> None:
    manifest = world.release.manifest.model_copy(update={"epoch": "yesterday"})
    write_release(tmp_path, manifest.to_bytes(), world.keys, world.codes)
    behaviour = Behaviour(withdrawn=WITHDRAWN if withdrawn else None)
    with serving(world, behaviour, files) as address:
        client = ReleaseClient(client_settings(address, files), QUICK)
        found = [client.fetch(folder) for folder in (tmp_path, tmp_path, tmp_path / "empty")]
    assert [each.replaced for each in found] == [("sales", "yesterday"), None, None]
    assert [each.withdrawn for each in found] == [withdrawn, None, None]


def test_broken_streams_are_resumed(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    # blocks hold 256 rows: of 400 rows the first block is kept, of 700 the first two
    # however often: each that brought rows begins another count of failures
    behaviour = Behaviour(break_after=[400, 500, 300, 300, 300])
    with serving(world, behaviour, files) as address:
        ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)
    assert behaviour.started_at == [0, 256, 512, 768, 1024, 1280]
    assert read_release(tmp_path).labels.equals(world.release.labels)


def test_a_release_that_is_withdrawn_meanwhile_leaves_no_row(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    behaviour = Behaviour(break_after=[400], withdrawn=WITHDRAWN)
    assert isinstance(fetch_error(world, files, tmp_path, behaviour), Withdrawn)
    assert behaviour.started_at == [0]
    assert not any(tmp_path.iterdir())


def test_giving_up_leaves_a_partial_that_another_process_resumes(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    behaviour = Behaviour(break_after=[600, 0, 0, 0])
    error = fetch_error(world, files, tmp_path, behaviour)
    assert isinstance(error, ConnectionFailed)
    assert "cannot be reached" in str(error)
    assert not (tmp_path / "manifest.json").exists()
    # rows past the last whole block may be on disk too, if the process died while writing
    with (tmp_path / PARTIAL / "codes.bin").open("ab") as file:
        file.write(b"\x07" * 300)
    later = Behaviour()
    with serving(world, later, files) as address:
        fetched = ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)
    assert later.started_at == [512]
    assert fetched.received == 1500 - 512
    assert read_release(tmp_path).labels.equals(world.release.labels)


def test_an_interrupt_leaves_a_partial(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= 900:
            raise KeyboardInterrupt

    later = Behaviour()
    with serving(world, later, files) as address:
        client = ReleaseClient(client_settings(address, files), QUICK)
        with pytest.raises(KeyboardInterrupt):
            client.fetch(tmp_path, interrupt)
        client.fetch(tmp_path)
    assert later.started_at == [0, 768]


def test_sums_are_not_fetched_where_nobody_knows_what_was_asked(
    world: World, files: CertificateFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = unpack(kept(GROUPS), tmp_path / "sample") / "manifest.json"
    sums = Manifest.from_bytes(sample.read_bytes())
    monkeypatch.setattr(ReleaseClient, "_verify", lambda *_: sums)
    behaviour = Behaviour()
    assert "question" in str(fetch_error(world, files, tmp_path / "here", behaviour))
    assert behaviour.started_at == []


def test_a_partial_of_another_release_is_not_mixed_in(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    partial = tmp_path / PARTIAL
    partial.mkdir()
    (partial / "manifest.json").write_bytes(b"{}")
    (partial / "codes.bin").write_bytes(b"\x01" * 1024)
    (partial / "keys.bin").write_bytes(b"\x01" * 16 * 1024)
    behaviour = Behaviour()
    with serving(world, behaviour, files) as address:
        ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)
    assert behaviour.started_at == [0]
    assert read_release(tmp_path).labels.equals(world.release.labels)


def test_a_damaged_row_is_refused(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    error = fetch_error(world, files, tmp_path, Behaviour(damage_row=600))
    assert isinstance(error, ReleaseError)
    assert "rows 512 to 768 do not match the manifest's digest" in str(error)
    assert not (tmp_path / "labels.parquet").exists()


def test_an_unknown_data_set(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    error = fetch_error(world, files, tmp_path, data_set="rents")
    assert isinstance(error, ReleaseError)
    assert "no release for data set 'rents'" in str(error)
    assert not any(tmp_path.iterdir())


def test_a_server_that_is_down(files: CertificateFiles, tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="cannot be reached") as caught:
            ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)
    assert "\n" not in str(caught.value)


UNAVAILABLE = 14


class Waits(threading.Event):
    """Notes how long somebody would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False


def test_a_client_comes_again_when_it_was_told_to(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    told = [ErrorDetails("too_many_requests", after) for after in (7.0, 0.5)]
    others = ("served-by", "a proxy")
    behaviour = Behaviour(refuse_first=[(others, *each.trailers(14, "no")) for each in told])
    with serving(world, behaviour, files) as address:
        client = ReleaseClient(client_settings(address, files), QUICK)
        client._wake = waits = Waits()
        assert client.fetch(tmp_path).rows == 1500
    first, second = waits.seconds
    assert 7.0 <= first <= 7.0 + QUICK.longest
    assert 0.5 <= second <= 0.5 + QUICK.longest


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (ErrorDetails("damaged"), "not now (reason damaged)"),
        (ErrorDetails("unavailable", 86_400.0), "again in 86400 seconds or later"),
    ],
)
def test_what_cannot_help_is_not_tried_again(
    world: World, files: CertificateFiles, tmp_path: Path, details: ErrorDetails, said: str
) -> None:
    behaviour = Behaviour(refuse_first=[details.trailers(UNAVAILABLE, "no")] * 9)
    error = fetch_error(world, files, tmp_path, behaviour)
    assert (behaviour.described, said in str(error)) == (1, True)
    assert f"(reason {details.reason})" in str(error)


def test_the_last_of_many_refusals_says_why_and_when_to_come_again(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    refused = ErrorDetails("ledger_unreadable", 0.001).trailers(UNAVAILABLE, "no")
    behaviour = Behaviour(refuse_first=[refused] * 9)
    error = str(fetch_error(world, files, tmp_path, behaviour))
    assert behaviour.described == QUICK.attempts
    assert "not now (reason ledger_unreadable); run fetch again in 1 seconds or later" in error
    assert "cannot be reached" not in error


@pytest.mark.parametrize("bad", ["bytes", "domain", "reason", "negative", "twice"])
def test_details_of_somebody_else_are_not_believed(
    world: World, files: CertificateFiles, tmp_path: Path, bad: str
) -> None:
    """They are no word of a labels party's: the status alone counts, and nothing is shown."""
    ((name, whole),) = ErrorDetails("damaged", -5.0 if bad == "negative" else 9e9).trailers(14, "")
    trailers = {
        "bytes": ((name, bytes(range(256))),),
        "domain": ((name, whole.replace(b"labelveil", b"evilveill")),),
        "reason": ((name, whole.replace(b"DAMAGED", b"D\x1b[2J\nD")),),
        "negative": ((name, whole),),
        "twice": ((name, whole), (name, whole)),
    }[bad]
    behaviour = Behaviour(refuse_first=[trailers])
    with serving(world, behaviour, files) as address:
        client = ReleaseClient(client_settings(address, files), QUICK)
        client._wake = waits = Waits()
        assert client.fetch(tmp_path).rows == 1500
    assert all(0 <= seconds <= QUICK.longest for seconds in waits.seconds)


@contextmanager
def refusing_proxy() -> Iterator[str]:
    """A proxy that asks everybody for another password."""

    class Refusing(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{proxy.server_address[1]}"
        finally:
            proxy.shutdown()
            thread.join()


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_a_proxy_of_the_environment_is_named(
    world: World,
    files: CertificateFiles,
    tmp_path: Path,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with refusing_proxy() as proxy:
        monkeypatch.setenv(variable, f"http://me:planted-secret@{proxy}")
        error = fetch_error(world, files, tmp_path, Behaviour())
        assert isinstance(error, ConnectionFailed)
        assert f"{variable} in the environment" in str(error)
        assert f"through the proxy {proxy}" in str(error)
        assert "add localhost to no_proxy" in str(error)
        assert "planted" not in str(error)
        monkeypatch.setenv("no_proxy", "labels.example,localhost")  # as the line says
        with serving(world, Behaviour(), files) as address:
            assert ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path).received


@pytest.mark.parametrize(
    ("environment", "reached"),
    [
        ({"https_proxy": "http://{proxy}", "no_proxy": "127.0.0.0/8"}, False),
        ({"https_proxy": "http://{proxy}", "no_proxy": "labels.example, LOCALHOST"}, True),
        ({"https_proxy": "http://{proxy}", "no_proxy": "*,host"}, False),
        ({"https_proxy": "http://{proxy}", "no_proxy": "10.0.0.0/8, labels.example"}, False),
        (
            {"https_proxy": "http://{proxy}", "no_proxy": "localhost", "no_grpc_proxy": "10.0.0.1"},
            False,
        ),
        ({"grpc_proxy": "socks5://{proxy}", "http_proxy": "http://{proxy}"}, True),
        ({"http_proxy": "{proxy}"}, True),
        ({"all_proxy": "http://{proxy}", "HTTPS_PROXY": "http://{proxy}"}, True),
    ],
)
def test_a_proxy_is_named_where_grpc_takes_it_and_nowhere_else(
    world: World,
    files: CertificateFiles,
    tmp_path: Path,
    environment: dict[str, str],
    reached: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with refusing_proxy() as proxy, serving(world, Behaviour(), files) as address:
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(proxy=proxy))
        assert (through_proxy(address) == "") == reached
        client = ReleaseClient(client_settings(address, files), QUICK)
        if reached:
            assert client.fetch(tmp_path).received
        else:
            with pytest.raises(ConnectionFailed, match=f"through the proxy {proxy}"):
                client.fetch(tmp_path)


@pytest.mark.slow
def test_a_server_that_stands_still_is_left_and_asked_again(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    behaviour = Behaviour(stall_after=600)
    with serving(world, behaviour, files) as address:
        settings = client_settings(address, files, timeout=1.5)
        ReleaseClient(settings, QUICK).fetch(tmp_path)
    assert behaviour.started_at == [0, 512, 1024]
    assert read_release(tmp_path).labels.equals(world.release.labels)


@pytest.mark.slow
def test_a_deadline_ends_a_fetch_that_the_next_one_goes_on_with(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    behaviour = Behaviour(stall_after=600)
    error = fetch_error(world, files, tmp_path, behaviour, deadline=3.0)
    assert isinstance(error, ConnectionFailed)
    assert "deadline=3 seconds" in str(error)
    assert behaviour.started_at == [0]
    later = Behaviour()
    with serving(world, later, files) as address:
        ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)
    assert later.started_at == [512]
    assert read_release(tmp_path).labels.equals(world.release.labels)


def test_progress_begins_with_the_rows_that_were_there(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    fetch_error(world, files, tmp_path, Behaviour(break_after=[600, 0, 0]))
    seen: list[tuple[int, int]] = []
    with serving(world, Behaviour(), files) as address:
        client = ReleaseClient(client_settings(address, files), QUICK)
        client.fetch(tmp_path, lambda done, total: seen.append((done, total)))
    assert seen[0] == (512, 1500)
    assert seen[-1] == (1500, 1500)


@pytest.mark.slow
def test_interrupt_from_the_keyboard_leaves_a_partial_that_goes_on(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    """A real process that waits for rows that do not come."""
    behaviour = Behaviour(stall_after=800)
    with serving(world, behaviour, files) as address:
        settings = {
            "address": address,
            "ca": files.authority,
            "certificate": files.feature_party_certificate,
            "private_key": files.feature_party_key,
            "data_set": "sales",
        }
        options = [f"--set=labels_party.{key}={value}" for key, value in settings.items()]
        process = subprocess.Popen(
            [sys.executable, "-m", "labelveil.feature_party", "fetch", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert behaviour.stalled.wait(60)
        arrived, pause = tmp_path / "release" / PARTIAL / "codes.bin", threading.Event()
        while arrived.stat().st_size < 768 and process.poll() is None:
            pause.wait(0.02)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "interrupted; what has arrived is kept, run it again to go on" in printed
        assert "Traceback" not in printed
        behaviour.stall_after = None
        ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path / "release")
    assert behaviour.started_at == [0, 768]
    assert read_release(tmp_path / "release").labels.equals(world.release.labels)


def test_waiting_is_bounded_and_random() -> None:
    policy = RetryPolicy(first=0.5, longest=2.0)
    delays = [policy.delay(failures) for failures in range(1, 12)]
    assert all(0 <= delay <= 2.0 for delay in delays)
    assert len(set(delays)) == len(delays)


def test_labels_are_readable_as_a_table(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    with serving(world, Behaviour(chunk_rows=7), files) as address:
        fetched = ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)
    path = write_labels_table(tmp_path, fetched.manifest)
    assert path == tmp_path / "labels.parquet"
    assert pl.read_parquet(path).equals(world.release.labels)
    state = path.stat()
    assert write_labels_table(tmp_path, fetched.manifest).stat() == state  # nothing to do


def test_a_table_has_no_keys_where_rows_are_known_by_their_order(tmp_path: Path) -> None:
    """And of two labels it has each code alone, which stands for several values."""
    unkeyed = build_world(tmp_path, rows=250, keyed=False).release
    assert unkeyed.labels["key"].null_count() == 250
    of_two = two_labels(250, "joint")[0]
    assert of_two.labels.columns == ["key", "code"]
    for number, release in enumerate((unkeyed, of_two)):
        folder = tmp_path / str(number)
        release.write(folder)
        path = write_labels_table(folder, release.manifest)
        assert pl.read_parquet(path).equals(release.labels)


def test_a_manifest_that_is_too_large_is_called_so(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    """Not an address to check, and nothing to try again."""
    behaviour = Behaviour(manifest=b" " * (MESSAGE_BYTES + 1))
    error = fetch_error(world, files, tmp_path, behaviour)
    assert "of more than 8,388,608 bytes" in str(error)
    assert "address" not in str(error)
    with pytest.raises(ReleaseError, match="a manifest of 8,388,609 bytes"):
        Manifest.from_bytes(b" " * (MANIFEST_BYTES + 1))


def test_more_rows_than_are_wanted_are_refused(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    error = fetch_error(world, files, tmp_path, Behaviour(), max_rows=1499)
    assert "1,500 rows, more than max_rows=1,499" in str(error)
    assert not list(tmp_path.iterdir())
    with serving(world, Behaviour(), files) as address:
        settings = client_settings(address, files, max_rows=1500)
        assert ReleaseClient(settings, QUICK).fetch(tmp_path).manifest.population.rows == 1500


def test_more_rows_than_the_disk_has_room_for_are_refused(
    world: World, files: CertificateFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting what has arrived: the rest of a fetch fits where the whole would not."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1024 * 17))
    behaviour = Behaviour()
    error = fetch_error(world, files, tmp_path, behaviour)
    assert f"1,500 rows, of which {1500 * 17:,} bytes" in str(error)
    assert not behaviour.started_at
    monkeypatch.undo()
    fetch_error(world, files, tmp_path, Behaviour(break_after=[700, 0, 0, 0]))
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1024 * 17))
    with serving(world, Behaviour(), files) as address:
        ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)


def test_a_fetch_that_has_no_room_says_where(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    with serving(world, Behaviour(), files) as address:
        client = ReleaseClient(client_settings(address, files), QUICK)
        for most in (100, 300 * 16):  # of the manifest, and of keys
            with small_files(most), pytest.raises(OSError, match="File too large") as failed:
                client.fetch(tmp_path)
            assert failed.value.errno == errno.EFBIG
            assert str(failed.value.filename).startswith(str(tmp_path / PARTIAL))
        assert client.fetch(tmp_path).rows == 1500
