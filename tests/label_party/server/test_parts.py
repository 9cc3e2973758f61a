"""Parts of the server by themselves: exact limits, states and counts, with what surrounds them
standing in."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelveil.common.errors import BudgetError, ConfigError
from labelveil.common.wire import evaluation_pb2
from labelveil.label_party.monitoring.calls import Call, Telemetry, Traces
from labelveil.label_party.queries.evaluation import Unsure
from labelveil.label_party.server import listener as listeners
from labelveil.label_party.server import run as runs
from labelveil.label_party.server.access import AccessPolicy, certificate_of
from labelveil.label_party.server.calls import ActiveCalls
from labelveil.label_party.server.catalog import Damaged, Unreadable, reading
from labelveil.label_party.server.credentials import ServerCredentials
from labelveil.label_party.server.evaluation_service import (
    EvaluationService,
    _received,
    _refusing,
    predictions_of,
)
from labelveil.label_party.server.handshakes import Handshakes, reachable
from labelveil.label_party.server.limits import Places, RateLimits, share_of
from labelveil.label_party.server.refusal import Refusal, too_many_calls
from labelveil.label_party.store.disk import StoreBusy, StoreError
from labelveil.label_party.store.ledger import LedgerError


def told(**facts: Any) -> Any:
    return SimpleNamespace(**facts)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_is_refused_is_told_when_a_token_is_there() -> None:
    clock = Clock()
    rate = RateLimits(4, clock)  # one every 15 seconds
    assert [rate.wait("a") for _ in range(5)] == [0, 0, 0, 0, 15]
    clock.now += 6
    assert rate.wait("a") == pytest.approx(9)  # to be refused takes nothing
    clock.now += 9
    assert [rate.wait("a"), rate.wait("a")] == pytest.approx([0, 15])
    clock.now += 37.5
    assert [rate.wait("a") for _ in range(3)] == pytest.approx([0, 0, 7.5])
    clock.now += 1e6
    assert [rate.wait("a") for _ in range(5)] == pytest.approx([0, 0, 0, 0, 15])


@pytest.mark.parametrize(
    ("limit", "share", "clients", "most"),
    [
        (16, 0.5, 0, 16),
        (16, 0.5, 1, 16),
        (16, 0.5, 2, 8),
        (16, 0.5, 9, 8),
        (5, 0.5, 2, 2),
        (3, 0.1, 2, 1),
        (8, 1.0, 2, 8),
    ],
)
def test_a_share_is_rounded_down_to_one_at_least(
    limit: int, share: float, clients: int, most: int
) -> None:
    assert share_of(limit, share, clients) == most


def test_places_are_of_one_client_as_many_as_each_may_have() -> None:
    places = Places(3, 2, too_many_calls)
    with places.hold("a"), places.hold("a"):
        assert places.active == 2
        with pytest.raises(Refusal), places.hold("a"):
            pass
        with places.hold("b"):
            assert places.active == 3
            for client in ("b", "c"):
                with pytest.raises(Refusal), places.hold(client):
                    pass
        assert places.active == 2
        with pytest.raises(ZeroDivisionError), places.hold("c"):
            raise ZeroDivisionError
        assert places.active == 2
    assert places.active == 0
    for number in range(100):
        with places.hold(f"client {number}"):
            pass
    assert not any(number in str(vars(places)) for number in ("client 1", "client 99"))


def test_a_certificate_counts_that_was_proved_over_tls_and_is_alone() -> None:
    one = {"transport_security_type": [b"ssl"], "x509_pem_cert": [b"pem"]}
    assert certificate_of(one) == b"pem"
    assert certificate_of(one | {"transport_security_type": [b"tls"]}) == b"pem"
    for wrong in (
        {"transport_security_type": [b"local"]},
        {"transport_security_type": [b"ssl", b"tls"]},
        {"transport_security_type": []},
        {"x509_pem_cert": []},
        {"x509_pem_cert": [b"pem", b"pem"]},
    ):
        assert certificate_of(one | wrong) == b""
    assert certificate_of({}) == b""


def test_names_are_of_their_type_and_data_sets_of_their_client() -> None:
    policy = AccessPolicy({"A.example": ["x"], "spiffe://B/c": ["y", "z"]})
    assert policy.clients == 2
    allowed = [
        (name, data_set)
        for name in ("a.example", "A.EXAMPLE", "spiffe://B/c", "spiffe://b/c", "other")
        for data_set in ("x", "y", "z", "")
        if policy.allows(name, data_set)
    ]
    assert allowed == [
        ("a.example", "x"),
        ("A.EXAMPLE", "x"),
        ("spiffe://B/c", "y"),
        ("spiffe://B/c", "z"),
    ]


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("0.0.0.0:5", ("127.0.0.1", 5)),
        ("[::]:5", ("::1", 5)),
        ("[::1]:6", ("::1", 6)),
        ("host:7", ("host", 7)),
    ],
)
def test_every_address_is_reached_from_this_machine(address: str, reached: tuple[str, int]) -> None:
    assert reachable(address) == reached


TLS12 = "Handshake failed with error x:UNSUPPORTED_PROTOCOL: y"


def test_connections_of_clients_are_counted_and_their_refusals_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handshakes, refused = Handshakes(), list[str]()
    handshakes.on_refused = refused.append
    assert handshakes.connections == 0
    for _ in range(3):
        handshakes.connected()
    assert handshakes.connections == 3
    assert handshakes.read(TLS12)
    assert not handshakes.read("something else")
    assert handshakes.read("Handshake failed with fatal error a:CERTIFICATE_VERIFY_FAILED: expired")
    assert refused == ["tls_version", "certificate_expired"]
    handshakes._expected = True  # the server's own attempt, of which nothing is said
    assert handshakes.read("Handshake failed with error x:HTTP_REQUEST: y")
    assert handshakes.read(TLS12)
    assert handshakes.read(TLS12)
    assert refused[2:] == ["plaintext", "tls_version"]
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    assert not handshakes.probe_listener(address)
    monkeypatch.setattr("labelveil.label_party.server.handshakes.SECONDS", 0.01)
    for listening in (False, True):  # nothing comes, and what comes later is a client's
        assert not handshakes.try_tls12(address, listening=listening)
        assert handshakes.read(TLS12)
    assert refused[4:] == ["tls_version", "tls_version"]
    assert handshakes.connections == 3
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the server's own are not counted
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert not handshakes.try_tls12(address, listening=False)
        assert not handshakes.probe_listener(address)
        for _ in range(2):  # as gRPC says of them, perhaps late
            handshakes.connected()
    assert handshakes.connections == 3


def test_what_is_worked_on_is_waited_for_and_who_only_watches_is_not() -> None:
    async def play() -> list[bool]:
        with ThreadPoolExecutor(1) as threads:
            work = ActiveCalls(threads)
            first, second, watcher = told2("a"), told2("b"), told2("")
            ended = [await _ends(work)]
            work.begin(watcher)
            ended.append(await _ends(work))
            work.begin(first)
            work.begin(second)
            ended.append(await _ends(work))
            work.end(first)
            work.end(watcher)
            ended.append(await _ends(work))
            work.end(second)
            ended.append(await _ends(work))
            assert await work.run(divmod, 7, 2) == (3, 1)
            return ended

    def told2(client: str) -> Any:
        return Hashed(client)

    assert asyncio.run(play()) == [True, True, False, False, True]


class Hashed:
    def __init__(self, client: str) -> None:
        self.client = client


async def _ends(work: ActiveCalls) -> bool:
    try:
        await asyncio.wait_for(work.ended(), 0.01)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(5, "x"), Unreadable, "epoch 1 cannot be read now"),
        (StoreError("x"), Damaged, "epoch 1 is damaged"),
    ],
)
def test_only_other_bytes_are_damage(error: Exception, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught, reading("epoch 1"):
        raise error
    assert caught.value.__cause__ is error
    caused = StoreError("y")
    caused.__cause__ = OSError(5, "x")
    with pytest.raises(Unreadable), reading("epoch 1"):
        raise caused


@pytest.mark.parametrize(
    ("error", "code", "reason", "text"),
    [
        (StoreBusy("x"), "UNAVAILABLE", "unavailable", "the labels are in use"),
        (
            Unsure(0.75, 0.5),
            "FAILED_PRECONDITION",
            "unsure",
            "the answer could be off by 0.75, more than the 0.5 of [evaluation] tolerance",
        ),
        (BudgetError("x"), "FAILED_PRECONDITION", "used_up", "the budget for evaluations is used"),
        (StoreError("x"), "UNAVAILABLE", "unavailable", "the answer cannot be written now"),
        (LedgerError("x"), "UNAVAILABLE", "unavailable", "the answer cannot be written now"),
        (ConfigError("x"), "FAILED_PRECONDITION", "not_available", "no evaluation can be given"),
    ],
)
def test_errors_of_a_question_are_told_apart_and_say_nothing(
    error: Exception, code: str, reason: str, text: str
) -> None:
    with pytest.raises(Refusal) as refused, _refusing():
        raise error
    assert (refused.value.code.name, refused.value.reason) == (code, reason)
    assert refused.value.text.startswith(text)


def test_predictions_are_as_many_numbers_as_the_release_has_rows() -> None:
    numbers = np.array([1.5, np.nan, -2.0])
    data = bytearray(numbers.astype("<f8").tobytes())
    np.testing.assert_array_equal(predictions_of(data, 3), numbers)
    for rows in (2, 4):
        with pytest.raises(Refusal, match=f"24 bytes are not {rows} predictions of 8 bytes"):
            predictions_of(data, rows)
    with pytest.raises(Refusal, match="all rows are left out"):
        predictions_of(bytearray(np.array([np.nan, np.nan]).tobytes()), 2)

    async def stream(sizes: list[int]) -> Any:
        for size in sizes:
            yield evaluation_pb2.EvaluatePredictionsRequest(predictions=bytes(size))

    def received(*sizes: int) -> tuple[int, dict[str, Any]]:
        record = Call(Telemetry(Traces()), "Evaluate", "peer")
        data = asyncio.run(_received(stream([*sizes]), 3, record))
        return len(data), record.facts

    assert received(8, 16) == (24, {"peer": "peer", "rows": 0, "bytes": 24})
    with pytest.raises(Refusal, match="more predictions than the release's 3 rows"):
        received(24, 1)

    async def header() -> Any:
        yield evaluation_pb2.EvaluatePredictionsRequest(header=evaluation_pb2.EvaluationHeader())

    with pytest.raises(Refusal, match="the header must be the first message"):
        asyncio.run(_received(header(), 3, Call(Telemetry(Traces()), "Evaluate", "peer")))


class Stops:
    """A server whose calls end after a while, unless they are cut off."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked = seconds, list[float | None]()
        self.ended = asyncio.Event()
        self.whole = False

    async def stop(self, grace: float | None) -> None:
        self.asked.append(grace)
        if grace is None:
            self.ended.set()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), self.seconds)
            return
        self.whole = True


@pytest.mark.parametrize(
    ("seconds", "worked", "patience", "whole"),
    [(0.05, 0.0, 20.0, True), (60.0, 0.0, 0.05, False), (0.2, 0.2, 0.1, True)],
)
def test_work_is_waited_for_answers_a_little_and_idle_calls_are_cut_off(
    seconds: float, worked: float, patience: float, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended() -> None:
        await asyncio.sleep(worked)

    monkeypatch.setattr(listeners, "_END_SECONDS", patience)
    listener, server = object.__new__(listeners.Listener), Stops(seconds)
    monkeypatch.setattr(listener, "_server", server, raising=False)
    monkeypatch.setattr(listener, "_work", SimpleNamespace(ended=ended), raising=False)
    listener.drain(30)
    assert (server.whole, server.asked) == (whole, [30, None])


def test_a_server_clears_up_its_store_and_serves_what_it_cannot_clear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    folder = tmp_path / "store"
    assert runs._ready_store(folder).directory == folder
    assert said() == ["store is new: nothing is released"]
    assert folder.stat().st_mode & 0o777 == 0o700
    runs._ready_store(folder)
    assert said() == []
    for undone, counted, expected in (
        (2, [], ["unfinished releases undone"]),
        (0, ["a"], ["unknown releases counted as spent"]),
    ):
        recovery = SimpleNamespace(undone=undone, counted=counted)
        monkeypatch.setattr(runs, "recover", lambda *_, found=recovery: found)
        runs._ready_store(folder)
        assert said() == expected

    def full(*_: Any) -> Any:
        raise StoreError("no room")

    monkeypatch.setattr(runs, "recover", full)
    runs._ready_store(folder)
    assert [(r.getMessage(), r.__dict__["reason"]) for r in caplog.records] == [
        ("store not cleared up", "no room")
    ]


def test_certificates_in_use_are_told_by_their_ends_and_refused_out_of_force() -> None:
    now = datetime.now(UTC)
    day = timedelta(days=1)
    current, longer = (now - day, now + day), (now - 3 * day, now + 9 * day)
    ended, coming = (now - 3 * day, now - day), (now + day, now + 9 * day)
    own = object.__new__(ServerCredentials)
    own._lock = threading.Lock()
    own._server = told(certificate=Path("server.pem"), client_ca=Path("clients.pem"))
    own._spans = {"server": [current], "client_ca": [ended, longer, current]}
    assert own.ends("server") == current[1]
    assert own.ends("client_ca") == longer[1]
    own.check()  # an authority that ended beside one that is in force refuses nobody else
    for name, file in (("server", "server.pem"), ("client_ca", "clients.pem")):
        for wrong in (ended, coming):
            own._spans = {"server": [current], "client_ca": [current], name: [wrong]}
            with pytest.raises(ConfigError, match=file):
                own.check()


def test_files_are_read_again_where_they_changed_or_are_to_be_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And an identity that cannot be read leaves the one in use, said once a minute."""
    caplog.set_level(logging.INFO)
    connected, stamp = [0], [1]
    readings: list[Any] = ["new", "newer", ConfigError("no key"), ConfigError("no key"), "last"]

    def read() -> Any:
        found = readings.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    class Own(ServerCredentials):
        def __init__(self) -> None:
            self._handshakes = told(connected=lambda: connected.__setitem__(0, connected[0] + 1))
            self._lock = threading.Lock()
            self._stamp = ((0, 1),)
            self.reloads = {"done": 0, "failed": 0}
            self._failures = told(add=lambda *facts: logging.warning("failed %s", facts[0][0]))
            self._read = read  # type: ignore[method-assign]
            self._stamps = lambda: ((0, stamp[0]),)  # type: ignore[method-assign]

    own = Own()
    assert own._changed() is None
    stamp[0] = 2
    assert own._changed() == "new"
    assert own._changed() is None
    own.forget()
    assert own._changed() == "newer"
    stamp[0] = 3
    own._failures = told(add=lambda *facts: logging.warning("failed %s", facts[0][0]))
    assert own._changed() is None
    assert own._changed() is None
    assert own.reloads == {"done": 2, "failed": 2}
    assert own._changed() == "last"
    assert own._changed() is None
    assert (own.reloads, connected) == ({"done": 3, "failed": 2}, [8])
    said = [record.getMessage() for record in caplog.records]
    assert said == ["certificates reloaded"] * 2 + ["failed no key"] * 2 + ["certificates reloaded"]


def test_a_question_is_about_one_of_the_labels_that_is_named() -> None:
    """It may go without a name where there is but one."""
    offering: Any = SimpleNamespace(offers=lambda release, loss: loss == "squared gain")
    nothing: Any = None
    service = EvaluationService(nothing, offering)

    def asked(names: list[str], label: str, loss: str = "squared gain") -> str:
        release: Any = SimpleNamespace(manifest=SimpleNamespace(names=names))
        return service._label(release, evaluation_pb2.EvaluationHeader(label=label, loss_name=loss))

    found = [asked(["a"], ""), asked(["a"], "a"), asked(["a", "b"], "b"), asked(["a", "b"], "a")]
    assert found == ["a", "a", "b", "a"]
    for names, label in ((["a"], "b"), (["a", "b"], ""), (["a", "b"], "c")):
        with pytest.raises(Refusal) as refused:
            asked(names, label)
        assert refused.value.text == f"label must be one of {', '.join(names)}"
    with pytest.raises(Refusal) as refused:
        asked(["a"], "a", "absolute gain")
    assert refused.value.reason == "not_offered"
