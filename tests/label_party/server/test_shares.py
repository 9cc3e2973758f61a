"""One partner cannot keep the others out: not by its streams, its uploads, nor a damaged file."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.security.pilot_certificates import Authority, Role, issue
from labelveil.common.wire import evaluation_pb2_grpc
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server.limits import Places, share_of
from labelveil.label_party.server.refusal import Refusal, too_many_streams
from labelveil.label_party.server.run import running
from labelveil.label_party.server.submission import Submissions
from tests.effort import one_in
from tests.label_party.conftest import CLIENT, Client, Party
from tests.label_party.serving import get, serving

Connect = Callable[..., Client]
OTHER, STRANGER = "other.example", "another-data-set.example"
SUBMITTED = {"data__population": '"submitted"', "randomizer__name": '"randomized-response"'}


@pytest.fixture
def three(party: Party, connect: Connect, authority: Authority) -> Callable[[str], list[Client]]:
    """Two partners for the same labels, and one who is entitled to something else."""
    path = party.folder / "label_party.toml"
    clients = f'clients = {{"{CLIENT}" = ["labels"], "{OTHER}" = ["labels"], "{STRANGER}" = ["x"]}}'
    path.write_text(path.read_text().replace(f'client_san = "{CLIENT}"', clients))

    def open_all(address: str) -> list[Client]:
        names = (CLIENT, OTHER, STRANGER)
        return [connect(address, issue(authority, Role.CLIENT, [name])) for name in names]

    return open_all


def code(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        call()
    found: grpc.StatusCode = error.value.code()
    return found


def test_a_share_is_at_least_one_and_all_for_who_is_alone() -> None:
    assert [share_of(16, 0.5, clients) for clients in (1, 2, 9)] == [16, 8, 8]
    assert [share_of(1, 0.5, 2), share_of(3, 0.5, 2), share_of(8, 1.0, 2)] == [1, 1, 8]
    places = Places(3, 2, too_many_streams)
    with places.hold("a"), places.hold("a"):
        with pytest.raises(Refusal), places.hold("a"):
            pass
        with places.hold("b"), pytest.raises(Refusal), places.hold("c"):
            pass  # three at once in all
        assert places.active == 2


def test_a_client_of_another_data_set_takes_no_place(
    party: Party, three: Callable[[str], list[Client]]
) -> None:
    hold = threading.Event()

    def silent() -> Iterator[Any]:
        hold.wait()
        yield from ()

    with running(party.config(**SUBMITTED, server__max_streams=2)) as address:
        client, _, stranger = three(address)
        questions = evaluation_pb2_grpc.EvaluationServiceStub(stranger.channel)
        calls = [
            method(silent())  # says nothing, for ever: its header is not waited for
            for method in [
                stranger.stub.SubmitPopulation.future,
                questions.EvaluatePredictions.future,
            ]
            * 4
        ]
        assert {call.code() for call in calls} == {grpc.StatusCode.PERMISSION_DENIED}
        keys = hash_keys(pl.Series(["a", "b"]), read_secret(party.folder / "join.key"))
        assert client.submit(keys, read_secret(party.folder / "join.key")).rows == 2
        hold.set()


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts the streams that were given a place."""
    found, hold = threading.Semaphore(0), Places.hold

    @contextmanager
    def counted(places: Places, client: str) -> Iterator[None]:
        with hold(places, client):
            if places._refusal is too_many_streams:
                found.release()
            yield

    monkeypatch.setattr(Places, "hold", counted)
    return found


def test_one_client_leaves_half_of_the_streams(
    party: Party, three: Callable[[str], list[Client]], placed: threading.Semaphore
) -> None:
    hold = threading.Event()

    def silent() -> Iterator[wire.SubmitPopulationRequest]:
        hold.wait()
        yield from ()

    secret = read_secret(party.folder / "join.key")
    keys = hash_keys(pl.Series(["a", "b"]), secret)
    patient_server = {"server__max_streams": 4, "server__stall_seconds": 600}
    with running(party.config(**SUBMITTED, **patient_server)) as address:
        hasty, patient, _ = three(address)
        questions = evaluation_pb2_grpc.EvaluationServiceStub(hasty.channel)
        calls = hasty.stub.SubmitPopulation, questions.EvaluatePredictions
        held = [call.future(silent()) for call in calls]
        try:
            for _ in held:
                assert placed.acquire(timeout=30)
            assert patient.submit(keys, secret).rows == 2
            assert code(lambda: hasty.submit(keys, secret)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            for call in held:
                call.cancel()
            hold.set()


def test_one_client_leaves_half_of_the_waiting_populations(
    party: Party, three: Callable[[str], list[Client]]
) -> None:
    secret = read_secret(party.folder / "join.key")
    keys = hash_keys(pl.Series(["a", "b"]), secret)
    with running(party.config(**SUBMITTED, server__max_waiting_populations=4)) as address:
        hasty, patient, _ = three(address)
        for epoch in ("1", "2"):
            hasty.submit(keys, secret, epoch=epoch)
        refused = grpc.StatusCode.FAILED_PRECONDITION
        assert code(lambda: hasty.submit(keys, secret, epoch="3")) == refused
        hasty.submit(keys[:16], secret, epoch="2")  # another one in place of its own
        for epoch in ("3", "4"):
            patient.submit(keys, secret, epoch=epoch)
        assert code(lambda: patient.submit(keys, secret, epoch="5")) == refused


def test_one_submission_of_a_client_is_checked_at_a_time(
    party: Party, three: Callable[[str], list[Client]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its streams are complete; others do not wait for it."""
    secret = read_secret(party.folder / "join.key")
    keys = hash_keys(pl.Series(["a", "b"]), secret)
    lock, gate, store = threading.Lock(), threading.Event(), Submissions._store
    inside, most, arrived = Counter[str](), Counter[str](), threading.Semaphore(0)

    def counted(self: Submissions, uploads: Any, header: Any, client: str) -> Any:
        with lock:
            inside[client] += 1
            most[client] = max(most[client], inside[client])
        try:
            arrived.release()
            if client == CLIENT:
                gate.wait()
            return store(self, uploads, header, client)
        finally:
            with lock:
                inside[client] -= 1

    monkeypatch.setattr(Submissions, "_store", counted)
    with running(party.config(**SUBMITTED)) as address, ThreadPoolExecutor(3) as threads:
        hasty, patient, _ = three(address)
        held = [threads.submit(hasty.submit, keys, secret, epoch=epoch) for epoch in "123"]
        try:
            arrived.acquire()
            for epoch in ("4", "5", "6", "7"):
                assert patient.submit(keys, secret, epoch=epoch).rows == 2
        finally:
            gate.set()
        assert [answer.result().rows for answer in held] == [2, 2, 2]
    assert most == {CLIENT: 1, OTHER: 1}


@pytest.mark.parametrize("file", one_in(2, ["manifest.json", "codes.bin"]))
def test_a_damaged_release_is_left_out_and_the_others_are_served(
    party: Party, connect: Connect, file: str
) -> None:
    for epoch in ("1", "2", "3"):
        assert party.release(data__epoch=f'"{epoch}"').code == 0
    path = party.store / "releases" / "labels" / "2" / file
    damaged = np.frombuffer(path.read_bytes(), np.uint8).copy()
    damaged[len(damaged) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(damaged.tobytes())
    with serving(party) as served:
        client = connect(served.address)
        for epoch in ("1", "3"):
            assert client.fetch(client.describe(epoch=epoch), epoch=epoch)[1]
        assert code(lambda: client.describe(epoch="2")) == grpc.StatusCode.DATA_LOSS
        assert client.describe() == client.describe(epoch="3")
        left_out = "ok\nrelease left out: data set labels, epoch 2, is damaged\n"
        assert get(served.observed_at, "/readyz") == (200, left_out)
        assert served.metric("label_party_releases_damaged") == 1
        (event,) = served.events("release left out")
        assert (event["data_set"], event["epoch"]) == ("labels", "2")
        assert served.refusals("damaged") == 1


def test_a_latest_release_that_is_gone_is_not_an_older_one(party: Party, connect: Connect) -> None:
    for epoch in ("1", "2"):
        assert party.release(data__epoch=f'"{epoch}"').code == 0
    (party.store / "releases" / "labels" / "2" / "manifest.json").unlink()
    with running(party.config()) as address:
        assert code(lambda: connect(address).describe()) == grpc.StatusCode.UNAVAILABLE
