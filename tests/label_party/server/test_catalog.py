"""Many releases, some of which cannot be read: who asks for others is served, and at once."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from labelveil.common.security.pilot_certificates import Credentials
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server import run as server_run
from labelveil.label_party.server.catalog import Catalog, Damaged, Unreadable
from labelveil.label_party.server.run import running
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.entries import Charge
from labelveil.label_party.store.ledger import Ledger
from labelveil.label_party.store.release_store import Store, StoredRelease
from labelveil.label_party.store.seal import Seal
from tests.common.security.keys import write_key
from tests.faults import Ended, Experiments, Mode
from tests.label_party.conftest import BODIES, Client, Party, eventually
from tests.label_party.monitoring.test_observed import observed
from tests.label_party.serving import get
from tests.label_party.store.releases import many_releases

Connect = Callable[..., Client]


def _well(address: str, probe: str) -> bool:
    return get(address, probe) == (200, "ok\n")


@contextmanager
def no_descriptors() -> Iterator[None]:
    """As in a process that has as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # those that are free below the highest, too
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(kept) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in kept:
            os.close(descriptor)


def calls_of(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each call of a method."""
    real, calls = getattr(kind, name), list[str]()

    def called(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return real(*given, **named)

    monkeypatch.setattr(kind, name, called)
    return calls


def long_ago(party: Party) -> None:
    """Make the ledger's last change an old one, whose time no other change can have."""
    for path in party.store.glob("ledger.sqlite*"):
        os.utime(path, (1e9, 1e9))


def test_what_cannot_be_opened_for_a_moment_is_served_afterwards(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert party.release().code == 0
    long_ago(party)
    catalog = Catalog(Store(party.store))
    assert catalog.epochs("labels") == {"1"}
    with no_descriptors():
        for _ in range(2):
            with pytest.raises(Unreadable, match="data set labels, epoch 1, cannot be read now"):
                catalog.find("labels", "1")
        assert len(catalog.left_out(Unreadable)) == 1
    with monkeypatch.context() as patch:  # nor is what nobody has foreseen the last word
        patch.setattr(Store, "open_release", lambda *given: {}["mistake"])
        with pytest.raises(KeyError):
            catalog.find("labels", "1")
    found = catalog.find("labels", "1")
    assert found is not None
    assert found.rows == 200
    assert catalog.left_out() == []


@pytest.mark.slow
def test_a_server_begins_with_every_release_that_somebody_is_entitled_to(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    """Of other data sets than the configured one, too; and of none that nobody may fetch."""
    caplog.set_level("INFO", server_run.__name__)
    for name in ("labels", "others", "nobodys"):
        assert party.release(data__data_set=f'"{name}"', privacy__account='"labels"').code == 0
    with running(party.config(server__data_sets='["labels", "others"]')):
        pass
    assert [vars(each)["releases"] for each in caplog.records if each.msg == "serving"] == [2]


def test_a_closed_one_verifies_nothing_more(party: Party) -> None:
    assert party.release().code == 0
    catalog = Catalog(Store(party.store))
    catalog.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        catalog.find("labels", "1")


def test_what_was_lost_is_not_found_and_a_ledger_that_is_lost_is_told(party: Party) -> None:
    assert party.release().code == 0
    assert party.run("backup", "--to", "b.tar").code == 0
    party.store.rename(party.folder / "old")
    assert party.run("restore", "b.tar", "--lost", "2").code == 0
    catalog = Catalog(Store(party.store))
    assert catalog.find("labels", "2") is None
    latest = catalog.find("labels", None)
    assert latest is not None
    assert latest.heading.epoch == "1"
    catalog.check()
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    with pytest.raises(StoreError, match="is gone; restore it from a backup"):
        catalog.check()


def test_bytes_that_are_others_are_damage_for_good(party: Party) -> None:
    assert party.release().code == 0
    codes = party.store / "releases" / "labels" / "1" / "codes.bin"
    kept = codes.read_bytes()
    codes.write_bytes(bytes([kept[0] ^ 1]) + kept[1:])
    catalog = Catalog(Store(party.store))
    for data in (None, kept):
        if data is not None:
            codes.write_bytes(data)
        with pytest.raises(Damaged, match="data set labels, epoch 1, is damaged"):
            catalog.find("labels", None)
    assert len(catalog.left_out(Damaged)) == 1


def test_a_call_that_cannot_read_now_is_told_so(
    party: Party, served: str, connect: Connect
) -> None:
    """A release whose folder is away, as one that cannot be opened, is no damage."""
    client = connect(served)
    described = client.describe()
    folder = party.store / "releases" / "labels" / "1"
    folder.rename(party.folder / "away")
    for call in (client.describe, lambda: client.fetch(described)):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert (error.value.code(), error.value.details()) == (
            grpc.StatusCode.UNAVAILABLE, "the release cannot be read now; try again later",
        )  # fmt: skip
    (party.folder / "away").rename(folder)
    assert client.describe() == described


def test_nobody_waits_for_a_release_that_is_verified_for_others(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More calls than there are threads ask for it: the others, and probes, are answered."""
    assert party.release().code == 0
    begun, go_on, opened = threading.Event(), threading.Event(), list[str]()
    real = Store.open_release

    def open_release(store: Store, charge: Charge) -> StoredRelease:
        if charge.epoch == "2":
            opened.append(charge.epoch)
            begun.set()
            assert go_on.wait(60)
        return real(store, charge)

    monkeypatch.setattr(server_run, "_SPARE_THREADS", 1)
    with observed(party, server__max_streams=1) as (server, address):
        assert party.release(data__epoch="2").code == 0
        monkeypatch.setattr(Store, "open_release", open_release)
        client = connect(server.address)
        asked = wire.DescribeReleaseRequest(data_set="labels", epoch="2")
        waiting = [client.stub.DescribeRelease.future(asked, timeout=300) for _ in range(8)]
        try:
            assert begun.wait(60)
            asked = wire.DescribeReleaseRequest(data_set="labels", epoch="1")
            assert client.stub.DescribeRelease(asked, timeout=20).manifest
            for probe in ("/readyz", "/livez"):  # on a busy machine not at the first look
                eventually(partial(_well, address, probe), 40)
            waiting.pop().cancel()  # who leaves takes nothing away from the others
        finally:
            go_on.set()
        assert len({call.result().manifest for call in waiting}) == 1
    assert opened == ["2"]


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_serves_what_it_has_from_the_start_on(
    party: Party, patient: Experiments, client_identity: Credentials, failure: int
) -> None:
    """No step that would change the store succeeds: not one page of shared memory, nor a lock."""
    assert party.release().code == 0
    (party.folder / "client.pem").write_bytes(client_identity.certificate_pem)
    write_key(party.folder / "client.key", client_identity.key_pem)
    before = sorted(party.store.rglob("*"))
    answer = party.folder / "answer"
    ended = patient.run(
        f"{BODIES}:fetch_once", str(party.folder), str(answer),
        folder=party.store, mode=Mode.FAIL_FROM, nth=1, failure=failure,
    )  # fmt: skip
    assert ended == Ended(0, ended.steps, "")
    assert ended.steps > 0
    assert answer.read_bytes() == (party.store / "releases/labels/1/manifest.json").read_bytes()
    assert answer.with_suffix(".tar").stat().st_size > 10_000
    assert sorted(party.store.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 40])
def test_a_start_and_calls_seal_the_ledger_as_often_whatever_it_holds(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    many_releases(party, count)
    long_ago(party)
    sealed = calls_of(Seal, "_mac", monkeypatch)
    with running(party.config()) as address:
        started = len(sealed)
        assert started <= 4
        client = connect(address)
        for number in range(20):
            client.describe("labels", str(number % count + 1))
            client.describe()
        # as it was read at its start, a moment after a change, and once more for certain
        assert len(sealed) <= started + 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 40])
def test_a_release_opens_and_seals_the_ledger_as_often_whatever_it_holds(
    party: Party, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """One copy, which is shown to a terminal, too; then the file, sealed by two transactions."""
    many_releases(party, count)
    opened, sealed = (
        calls_of(Ledger, "__init__", monkeypatch),
        calls_of(Seal, "_mac", monkeypatch),
    )
    new: dict[str, Any] = {"data__epoch": "new", "privacy__total_epsilon": 1_000_000}
    assert party.release(**new).code == 0
    assert (len(opened), len(sealed)) == (2, 6)
    opened.clear()
    sealed.clear()
    assert "already released" in party.release(**new).out
    assert (len(opened), len(sealed)) == (1, 1)


@pytest.mark.slow
def test_two_thousand_releases_start_in_seconds_and_a_call_takes_milliseconds(
    party: Party, connect: Connect
) -> None:
    """CPU of this process, the client's share among it: .7 s and 1.5 ms where this was written."""
    many_releases(party, 2000)
    long_ago(party)
    settings = party.config(server__requests_per_minute=100_000)
    began = time.process_time()
    with running(settings) as address:
        assert time.process_time() - began < 3
        client = connect(address)
        client.describe()
        began = time.process_time()
        for number in range(200):
            client.describe("labels", str(10 * number + 1))
        assert time.process_time() - began < 200 * 0.005
