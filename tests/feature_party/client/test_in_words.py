"""What failed calls become, and when they are made again: no server."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from labelveil.common.error_details import ErrorDetails
from labelveil.common.errors import ConnectionFailed, LabelveilError, ReleaseError
from labelveil.common.release.folder import withdrawn_reason
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.feature_party.client.channel import Withdrawn, explain, retryable
from labelveil.feature_party.client.release_client import (
    NoProgress,
    RetryPolicy,
    name_of,
    noting_withdrawal,
)
from labelveil.feature_party.client.spool import Spool
from tests.feature_party.client.stubs import SETTINGS, WHO, Clock, Code, Failed, Stub, client_of
from tests.feature_party.worlds import World


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Failed(Code.UNAVAILABLE, "a\n b", ErrorDetails("busy", 0.2)), ConnectionFailed,
         f"{WHO} refuses submit for now: a b (reason busy); run submit again in 1 seconds or"),
        (Failed(Code.NOT_FOUND, "no", ErrorDetails("busy", 2.6)), ConnectionFailed,
         f"{WHO} refuses submit for now: no (reason busy); run submit again in 3 seconds or"),
        (Failed(Code.RESOURCE_EXHAUSTED, "it is larger than max (9 vs. 8)"), ReleaseError,
         f"{WHO} sends a manifest (or rows at once) of more than 8,388,608 bytes,"),
        (Failed(Code.PERMISSION_DENIED), ConnectionFailed,
         f"{WHO} refuses this client data set 'sales': no; check [labels_party] data_set, or ask"
         " it to admit the name in none.pem"),
        (Failed(Code.UNAUTHENTICATED), ConnectionFailed, f"{WHO} refuses this client data set"),
        (Failed(Code.NOT_FOUND), ReleaseError,
         f"{WHO} has no release for data set 'sales': no; check [labels_party] data_set and epoch"),
        (Failed(Code.FAILED_PRECONDITION, "withdrawn: of\x1b another", ErrorDetails("withdrawn")),
         Withdrawn,
         f"{WHO} has withdrawn its release of data set 'sales': of\\u001b another; name another"),
        (Failed(Code.UNIMPLEMENTED), ConnectionFailed, "h:1 does not know this call of labelveil/"),
        (Failed(Code.UNAVAILABLE, "x: Connection refused"), ConnectionFailed,
         f"{WHO} cannot be reached: nothing serves there; check [labels_party] address and that it"
         " serves, then run submit again"),
        (Failed(Code.UNAVAILABLE, "DNS lookup failed"), ConnectionFailed, "no machine of this"),
        (Failed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"), ConnectionFailed, "not answer in"),
        (Failed(Code.ABORTED, ""), ConnectionFailed, "cannot be reached: ABORTED; check"),
        (Failed(Code.UNAVAILABLE, "no", ErrorDetails("damaged")), ReleaseError,
         f"{WHO} answered UNAVAILABLE: no (reason damaged)"),
        (Failed(Code.INVALID_ARGUMENT), ReleaseError, f"{WHO} answered INVALID_ARGUMENT: no"),
        (Failed(Code.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED: has expired"), ConnectionFailed,
         "the certificate of h:1, or of its authority, has expired by this machine's clock"),
        (Failed(Code.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED: not yet valid"), ConnectionFailed,
         "the certificate of h:1, or of its authority, is not valid yet by this machine's clock"),
        (Failed(Code.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED"), ConnectionFailed,
         "the certificate of h:1 is not signed by the configured authority"),
        (Failed(Code.UNAVAILABLE, "Hostname Verification"), ConnectionFailed, "for another name"),
        (Failed(Code.UNAVAILABLE, "is not in peer certificate"), ConnectionFailed, "another name"),
        *(
            (Failed(Code.UNAVAILABLE, f"x {words}"), ConnectionFailed, f"h:1 {said}")
            for words, said in {
                "ALERT_HANDSHAKE_FAILURE": "does not speak TLS 1.3, which is required",
                "alert_protocol_version": "does not speak TLS 1.3, which is required",
                "unsupported_protocol": "does not speak TLS 1.3, which is required",
                "no_shared_cipher": "does not speak TLS 1.3, which is required",
                "alert_bad_certificate": "does not accept our certificate",
                "alert_unknown_ca": "does not accept our certificate",
                "WRONG_VERSION_NUMBER": "does not speak TLS; check",
            }.items()
        ),
        (Failed(Code.UNAVAILABLE, "the Handshake failed"), ConnectionFailed,
         "the TLS handshake with h:1 failed: the Handshake failed"),
    ],
)  # fmt: skip
def test_a_failed_call_is_one_line(error: Failed, kind: type[LabelveilError], said: str) -> None:
    settings = SETTINGS.model_copy(update={"certificate": Path("none.pem")})
    found = explain(error, settings, "submit")
    assert type(found) is kind
    assert said in str(found)
    assert str(found).isprintable()
    with_epoch = explain(error, settings.model_copy(update={"epoch": "e"}), "submit")
    assert str(with_epoch) == str(found).replace("data set 'sales'", "data set 'sales', epoch 'e'")
    if isinstance(found, Withdrawn):
        assert found.reason == "of\\u001b another"


def test_what_may_pass_is_tried_again_and_nothing_else() -> None:
    passing = {
        Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.ABORTED,
        Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.DATA_LOSS,
    }  # fmt: skip
    for code in Code:
        assert retryable(Failed(code)) == (code in passing)
        # the labels party knows best
        assert retryable(Failed(code, "no", ErrorDetails("busy", 0.0)))
        assert not retryable(Failed(code, "no", ErrorDetails("damaged")))
    for text in ("larger than max", "certificate_verify_failed", "handshake failed"):
        assert not retryable(Failed(Code.UNAVAILABLE, f"it is {text}"))
    assert retryable(NoProgress(0.25))
    assert NoProgress(0.25).details() == "no progress for 0.25 s"


def test_a_release_that_is_to_come_is_looked_for_ever_more_seldom(clock: Clock) -> None:
    """After a quarter of the time waited so far, a tenth of a second at least, two at most."""
    client, absent = client_of(clock, wait=20.0), Failed(Code.NOT_FOUND)
    told: list[str] = []
    client.tell = told.append
    with pytest.raises(ReleaseError, match="no release for data set 'sales'"):
        client._describe(Stub(absent))  # type: ignore[arg-type]
    expected, waited = [], 0.0
    while waited < 20 - 1e-9:
        expected.append(min(20 - waited, 2.0, max(0.1, waited / 4)))
        waited += expected[-1]
    assert clock.waits == pytest.approx(expected)
    (line,) = told
    assert "h:1 has not released data set 'sales', epoch '', yet: waiting 14 s at most" in line
    stub = Stub(absent, absent, "a release")
    assert client_of(clock, wait=20.0)._describe(stub) == "a release"  # type: ignore[arg-type]
    assert [timeout for _, timeout in stub.asked] == [9.0] * 3
    with pytest.raises(ReleaseError):
        client_of(clock)._describe(Stub(absent))  # type: ignore[arg-type]


def test_calls_are_made_again_so_often_and_no_longer_than_the_deadline(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = []

    def longest(low: float, high: float) -> float:
        assert low == 0
        bounds.append(high)
        return high

    monkeypatch.setattr("random.uniform", longest)
    policy = RetryPolicy(attempts=5, first=0.5, longest=3.0, longest_told=10.0)
    calls = []

    def failing(error: grpc.RpcError) -> Callable[[], None]:
        def call() -> None:
            calls.append(error)
            raise error

        return call

    with pytest.raises(ConnectionFailed, match="then run evaluate again"):
        client_of(clock, policy).repeat(failing(Failed(Code.UNAVAILABLE)), "evaluate")
    assert (len(calls), bounds, clock.waits) == (5, [1, 2, 3, 3], [1, 2, 3, 3])
    calls.clear()
    clock.waits.clear()
    told = Failed(Code.UNAVAILABLE, "no", ErrorDetails("busy", 10.0))
    with pytest.raises(ConnectionFailed, match="refuses submit for now"):
        client_of(clock, policy).repeat(failing(told), "submit")
    assert clock.waits == [11, 12, 13, 13]
    calls.clear()
    later = Failed(Code.UNAVAILABLE, "no", ErrorDetails("busy", 10.5))
    with pytest.raises(ConnectionFailed, match="again in 10 seconds or later"):
        client_of(clock, policy).repeat(failing(later), "submit")
    assert len(calls) == 1
    clock.waits.clear()
    limited = client_of(clock, policy, deadline=2.5)
    limited._until = clock.now + 2.5
    with pytest.raises(ConnectionFailed, match=r"evaluate took longer than deadline=2.5 seconds"):
        limited.repeat(failing(Failed(Code.UNAVAILABLE)), "evaluate")
    assert clock.waits == [1, 1.5]


def test_only_a_first_call_without_any_answer_looks_for_a_refused_certificate(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    module = "labelveil.feature_party.client.release_client.hangs_up"
    monkeypatch.setattr(module, lambda settings: looked.append(settings) or True)
    gone = Failed(Code.UNAVAILABLE)
    with pytest.raises(ConnectionFailed, match="h:1 does not accept our certificate"):
        client_of(clock)._wait_or_raise(gone, 0)
    assert len(looked) == 1
    answered = client_of(clock)
    answered._answered = True
    said = Failed(Code.UNAVAILABLE, "no", ErrorDetails("busy", 1.0))
    assert answered._wait_or_raise(gone, 0) == 1
    assert client_of(clock)._wait_or_raise(gone, 1) == 2
    assert client_of(clock)._wait_or_raise(said, 0) == 1
    assert len(looked) == 1


WITHDRAWN = Failed(Code.FAILED_PRECONDITION, "withdrawn: why not", ErrorDetails("withdrawn"))


def test_what_lies_here_is_asked_about_by_its_own_name(
    world: World, clock: Clock, tmp_path: Path
) -> None:
    folder = tmp_path / "release"
    shutil.copytree(world.directory, folder)
    assert name_of(folder) == ("sales", "one")
    assert name_of(tmp_path) is None
    for place, data_set in ((tmp_path, "sales"), (folder, "other")):  # nothing of it is here
        stub = Stub(WITHDRAWN)
        client = client_of(clock, data_set=data_set)
        assert client._withdrawal_of(stub, place) is None  # type: ignore[arg-type]
        assert not stub.asked
    for answer in ("it serves", Failed(Code.NOT_FOUND)):
        stub = Stub(answer)
        client = client_of(clock, epoch="two")
        assert client._withdrawal_of(stub, folder) is None  # type: ignore[arg-type]
        assert stub.asked == [(pb2.DescribeReleaseRequest(data_set="sales", epoch="one"), 9.0)]
        assert withdrawn_reason(folder) is None
    found = client_of(clock, epoch="two")._withdrawal_of(Stub(WITHDRAWN), folder)  # type: ignore[arg-type]
    assert found is not None
    assert "epoch 'one'" in str(found)
    assert withdrawn_reason(folder) == found.reason


@pytest.mark.parametrize("changes", [{}, {"epoch": "two"}, {"data_set": "other", "epoch": "one"}])
def test_a_withdrawal_marks_what_it_is_of(
    world: World, tmp_path: Path, changes: dict[str, str]
) -> None:
    folder = tmp_path / "release"
    shutil.copytree(world.directory, folder)
    for settings, marked in (
        (SETTINGS.model_copy(update=changes), False),
        (SETTINGS.model_copy(update={"epoch": "one"}), True),
    ):
        with pytest.raises(Withdrawn), noting_withdrawal(folder, settings):
            raise Withdrawn("it is withdrawn", "a mistake")
        assert withdrawn_reason(folder) == ("a mistake" if marked else None)


def test_waiting_doubles_from_half_a_second_to_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    policy = RetryPolicy()
    assert [policy.delay(failures) for failures in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 20, 20]
    assert (policy.attempts, policy.poll, policy.longest_told) == (6, 2.0, 120.0)


@pytest.mark.parametrize(("deadline", "timeout"), [(None, None), (7.0, 7.0)])
def test_a_fetch_ends_with_its_deadline_and_asks_for_the_next_row(
    world: World, tmp_path: Path, clock: Clock, deadline: float | None, timeout: float | None
) -> None:
    class Call(list[Any]):
        def cancel(self) -> None: ...

    asked: list[tuple[Any, float | None]] = []

    def fetch(request: Any, timeout: float | None) -> Call:
        asked.append((request, timeout))
        start, stop = request.start_row, len(world.codes)
        rows = {"start_row": start, "keys": world.keys[16 * start :], "codes": world.codes[start:]}
        return Call([pb2.FetchReleaseResponse(**rows)] if stop else [])

    client = client_of(clock, deadline=deadline)
    client._until = clock.now + (deadline or float("inf"))
    seen: list[tuple[int, int]] = []
    stub: Any = type("Stub", (), {"FetchRelease": staticmethod(fetch)})
    with Spool(tmp_path, world.release.manifest, world.release.manifest_bytes) as spool:
        spool.append(0, world.keys[: 16 * 300], world.codes[:300])  # a block of 256, and a part
        client._stream(stub, spool, b"d" * 32, lambda *each: seen.append(each))
        assert spool.complete
    ((request, given),) = asked
    assert given == timeout
    assert request == pb2.FetchReleaseRequest(
        data_set="sales", epoch="one", manifest_sha256=b"d" * 32, start_row=256
    )
    assert seen == [(256, 1500), (1500, 1500)]
