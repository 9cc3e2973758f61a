"""What failed calls become, when they are made again, and what a fetch takes in: no server."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.common.error_details import ErrorDetails
from labelveil.common.errors import ConnectionFailed, LabelveilError, ReleaseError
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.folder import LABELS_FILE, WITHDRAWN_FILE, withdrawn_reason
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import write_release
from labelveil.common.wire import evaluation_pb2 as evaluation
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.feature_party.client.channel import Withdrawn, explain, retryable
from labelveil.feature_party.client.questions import (
    Questions,
    Terms,
    Verdict,
    released_rows,
    topics,
)
from labelveil.feature_party.client.release_client import (
    Fetched,
    NoProgress,
    ReleaseClient,
    RetryPolicy,
    name_of,
    noting_withdrawal,
)
from labelveil.feature_party.client.spool import PARTIAL, Spool
from labelveil.feature_party.config.labels_party import LabelsPartySection
from tests.common.release.releases import make_release
from tests.feature_party.worlds import SECRET, World, four_codes

Code = grpc.StatusCode
SETTINGS = LabelsPartySection(address="h:1", data_set="sales", timeout=9.0)
WHO = "the labels party at h:1"


class Failed(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: Code, text: str = "no", said: ErrorDetails | None = None) -> None:
        super().__init__()
        self._code, self._text, self._said = code, text, said

    def code(self) -> Code:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> Any:
        return () if self._said is None else self._said.trailers(14, "")


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


class Clock:
    """Time that only waiting lets pass."""

    def __init__(self) -> None:
        self.now, self.waits = 1000.0, list[float]()

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def set(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    monkeypatch.setattr("labelveil.feature_party.client.release_client.hangs_up", lambda _: False)
    return found


class Stub:
    """A labels party that answers calls one after another with these, or raises them."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), list[tuple[Any, float]]()

    def DescribeRelease(self, request: Any, timeout: float) -> object:
        self.asked.append((request, timeout))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def client_of(clock: Clock, retry: RetryPolicy | None = None, **changes: Any) -> ReleaseClient:
    client = ReleaseClient(SETTINGS.model_copy(update=changes), retry or RetryPolicy())
    client._wake = clock  # type: ignore[assignment]
    return client


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


def test_rows_fetched_are_those_of_the_manifest(world: World) -> None:
    manifest = world.release.manifest
    assert Fetched(manifest, Path(), 7, 0.0).rows == manifest.rows == 1500


def test_rows_are_taken_in_from_the_next_one_on_and_no_more_than_are_stated(
    world: World, tmp_path: Path
) -> None:
    manifest = world.release.manifest
    keys, codes = world.keys, world.codes

    def part(start: int, stop: int) -> tuple[int, bytes, bytes]:
        return start, keys[16 * start : 16 * stop], codes[start:stop]

    with Spool(tmp_path, manifest, world.release.manifest_bytes) as spool:
        assert (spool.append(*part(0, 100)), spool.rows) == (100, 0)  # a block has 256
        for start in (99, 101, 0):
            with pytest.raises(ReleaseError, match=rf"rows from {start} arrived where row 100 was"):
                spool.append(*part(start, 200))
        for mine, theirs in ((16 * 99, 100), (16 * 101, 100), (0, 0)):
            with pytest.raises(ReleaseError, match=f"{mine} bytes of keys arrived with {theirs} "):
                spool.append(100, b"k" * mine, codes[100 : 100 + theirs])
        assert (spool.append(*part(100, 256)), spool.rows) == (156, 256)
        assert (spool.append(*part(256, 1400)), spool.rows) == (1144, 1280)
        with pytest.raises(ReleaseError, match="1,501 rows arrived, but the manifest states 1,500"):
            spool.append(1400, keys[:16] * 101, codes[:1] * 101)
        with pytest.raises(ReleaseError, match="1,280 of 1,500 rows have arrived; run fetch again"):
            spool.finish()
        spool.drop_pending()
        assert (spool.append(*part(1280, 1500)), spool.complete) == (220, True)
        for name in (LABELS_FILE, WITHDRAWN_FILE):
            (tmp_path / name).write_text("of another release")
        spool.finish()
    there = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert there == {
        "keys.bin": keys,
        "codes.bin": codes,
        "manifest.json": world.release.manifest_bytes,
    }


def test_a_spool_goes_on_after_whole_blocks_and_forgets_half_ones(
    world: World, tmp_path: Path
) -> None:
    def spool() -> Spool:
        return Spool(tmp_path, world.release.manifest, world.release.manifest_bytes)

    with spool() as first:
        first.append(0, world.keys[: 16 * 600], world.codes[:600])
        assert first.rows == 512
    folder = tmp_path / PARTIAL
    for name, width in (("keys.bin", 16), ("codes.bin", 1)):
        path = folder / name
        assert path.stat().st_size == 512 * width
        path.write_bytes(path.read_bytes() + b"half a block" * width)
    with spool() as second:
        assert second.rows == 512
        second.append(512, world.keys[16 * 512 :], world.codes[512:])
        second.finish()  # keys of earlier blocks count for the population's digest
    assert (tmp_path / "codes.bin").read_bytes() == world.codes
    folder.mkdir()
    (folder / "keys.bin").write_bytes(world.keys)
    damaged = bytearray(world.codes)
    damaged[300] ^= 1
    (folder / "codes.bin").write_bytes(damaged)
    (folder / "manifest.json").write_bytes(world.release.manifest_bytes)
    with spool() as third:
        assert third.rows == 256
    shutil.rmtree(folder)
    manifest = world.release.manifest
    other = manifest.population.model_copy(update={"digest": "0" * 64})
    claimed = manifest.model_copy(update={"population": other})
    with Spool(tmp_path, claimed, world.release.manifest_bytes) as fourth:
        fourth.append(0, world.keys, world.codes)
        with pytest.raises(ReleaseError, match="do not give the manifest's population digest"):
            fourth.finish()


def test_room_for_just_as_many_bytes_is_enough(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    with Spool(tmp_path, world.release.manifest, world.release.manifest_bytes) as spool:
        spool.append(0, world.keys[: 16 * 256], world.codes[:256])
        missing = (1500 - 256) * 17
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=missing))
        spool.check_room()
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=missing - 1))
        with pytest.raises(ReleaseError, match=f"{missing:,} bytes .* for {missing - 1:,}"):
            spool.check_room()


@pytest.mark.parametrize(("outputs", "refused"), [(4, False), (3, True)])
def test_a_code_that_is_no_output_is_refused(tmp_path: Path, outputs: int, refused: bool) -> None:
    manifest, keys, codes = four_codes(outputs)
    with Spool(tmp_path, manifest, manifest.to_bytes()) as spool:
        if refused:
            with pytest.raises(ReleaseError, match="code 3 is outside the 3 outputs"):
                spool.append(0, keys, codes)
        else:
            assert spool.append(0, keys, codes) == 4


def test_codes_of_two_bytes_arrive_whole(tmp_path: Path) -> None:
    manifest, keys, codes = four_codes(300)
    with Spool(tmp_path, manifest, manifest.to_bytes()) as spool:
        assert spool.append(0, keys[:48], codes[:6]) == 3
        with pytest.raises(ReleaseError, match="rows from 2 arrived where row 3 was due"):
            spool.append(2, keys[32:48], codes[4:6])
        with pytest.raises(ReleaseError, match="16 bytes of keys arrived with 3 of codes"):
            spool.append(3, keys[48:], codes[6:] + b"x")
        assert spool.append(3, keys[48:], codes[6:]) == 1
        spool.finish()
    assert (tmp_path / "codes.bin").read_bytes() == codes


TERMS = Terms(
    epsilon=0.5, answers=4, answers_left=3, constant_loss=50.0, reach=5.0, error=2.0,
    tolerance=10.0, largest=80.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("terms", "known", "said"),
    [
        (TERMS, 0.1, ""),  # 5 of 50 is no more than a tenth, nor than 10 of 50
        (TERMS, 0.09, "by 0.1 of the constant's loss and the privatized labels alone tell it within"
                      " 0.09; nothing was asked"),
        (replace(TERMS, tolerance=5.0), 9.0, ""),
        (replace(TERMS, tolerance=4.5), 9.0, "[evaluation] tolerance allows 0.09; nothing"),
        (replace(TERMS, tolerance=4.0), 0.09, "[evaluation] tolerance allows 0.08; nothing"),
    ],
)  # fmt: skip
def test_a_question_that_can_tell_nothing_is_not_asked(
    terms: Terms, known: float, said: str
) -> None:
    if not said:
        return terms.check(known)
    with pytest.raises(ReleaseError) as caught:
        terms.check(known)
    assert said in str(caught.value)
    return None


def test_terms_and_verdict_are_told_in_the_constants_loss() -> None:
    assert TERMS.sentence == (
        "asking the labels party: the answer will have a standard error of 4.0% of the constant's"
        " loss; 3 of 4 answers left, which cost ε = 0.5 together"
    )
    verdict = Verdict("absolute", 20.0, 15.0, 25.0, 2, TERMS)
    assert verdict.sentence == (
        "labels party, from true labels: the absolute error is 0.4 (95%: 0.3 … 0.5) of the"
        " constant's 50 below it; 2 answers left"
    )
    assert verdict.to_json() == {
        "asked_loss": "absolute", "asked_gain": 20.0, "asked_gain_low": 15.0,
        "asked_gain_high": 25.0, "asked_constant_loss": 50.0, "asked_standard_error": 2.0,
        "asked_epsilon": 0.5, "asked_answers_left": 2, "asked_largest_loss": 80.0,
    }  # fmt: skip


def test_what_one_may_ask_about() -> None:
    assert topics(["y"]) == {"squared": ("y", "squared"), "absolute": ("y", "absolute")}
    assert topics(["y", "z"]) == {
        "y:squared": ("y", "squared"), "y:absolute": ("y", "absolute"), "y": ("y", "squared"),
        "z:squared": ("z", "squared"), "z:absolute": ("z", "absolute"), "z": ("z", "squared"),
    }  # fmt: skip


def test_held_out_events_are_found_among_the_rows_of_a_release(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelveil.feature_party.client.questions._ROWS_AT_ONCE", 400)
    held = pl.Series("event", [f"e{i}" for i in (1499, 3, 700, 0)])
    found = released_rows(world.directory, held, np.arange(4), SECRET)
    theirs = [world.keys[at : at + 16] for at in range(0, len(world.keys), 16)]
    ours = hash_keys(held, SECRET)
    assert found.tolist() == [theirs.index(ours[16 * i : 16 * i + 16]) for i in range(4)]
    # where we submitted the keys, our rows are its rows
    manifest, keys, codes = make_release(40, keyed=False)
    write_release(tmp_path, manifest.to_bytes(), keys, codes)
    assert released_rows(tmp_path, held, np.arange(4), SECRET).tolist() == [0, 1, 2, 3]


class Evaluator:
    """A labels party that answers a question about predictions, and keeps what it was sent."""

    def __init__(self) -> None:
        self.described: Any = None
        self.parts: list[Any] = []
        self.timeouts: list[float] = []

    def DescribeEvaluation(self, request: Any, timeout: float) -> Any:
        self.described = request
        self.timeouts.append(timeout)
        return evaluation.DescribeEvaluationResponse(
            epsilon="1/2", answers=4, answers_left=3, tolerance=0.2, largest_loss=3.0
        )

    def EvaluatePredictions(self, messages: Any, timeout: float) -> Any:
        self.parts = list(messages)
        self.timeouts.append(timeout)
        return evaluation.EvaluatePredictionsResponse(loss=0.75, noise_scale=0.1, answers_left=2)


def test_a_question_names_its_release_and_sends_each_prediction_to_its_row(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Questions(SETTINGS, world.release.manifest_bytes, "squared", "")
    stub = Evaluator()
    monkeypatch.setattr(Questions, "_call", lambda self, call: call(stub, 9.0))
    monkeypatch.setattr("labelveil.feature_party.client.questions._CHUNK_ROWS", 600)
    rows, points = np.array([1499, 0, 600, 599]), np.array([4.0, 1.0, 3.0, 2.0])
    terms = asked.terms(points)
    names = {
        "data_set": "sales",
        "epoch": "one",
        "manifest_sha256": hashlib.sha256(world.release.manifest_bytes).digest(),
        "loss_name": "squared gain",
        "label": "",
    }
    assert stub.described == evaluation.DescribeEvaluationRequest(**names)
    prior, grid = world.release.manifest.marginal("amount")[1], np.linspace(0, 4, 9)
    assert terms.constant_loss == pytest.approx(prior @ (grid - prior @ grid) ** 2)
    assert terms.largest == 3.0
    assert (terms.epsilon, terms.answers, terms.answers_left) == (0.5, 4, 3)
    assert terms.tolerance == pytest.approx(0.2 * terms.constant_loss)
    # a Laplace law is beyond ln 20 scales once in 20 times, and has a deviation of √2 scales
    assert terms.reach / terms.error == pytest.approx(np.log(20) / 2**0.5)
    # an answer in four costs an eighth; four predictions, whose differences are of ±3 at most
    assert 0 < terms.error / 2**0.5 <= 2 * 3.0 / 4 / 0.125 * 1.01
    # a user of three events moves three differences
    by_user = Manifest.from_bytes(world.release.manifest_bytes)
    of_three = by_user.privacy.model_copy(update={"records_per_unit": 3})
    with monkeypatch.context() as patch:
        of_users = by_user.model_copy(update={"privacy": of_three})
        patch.setattr(Manifest, "from_bytes", lambda *_: of_users)
        again = Questions(SETTINGS, world.release.manifest_bytes, "squared", "").terms(points)
    assert again.error == pytest.approx(3 * terms.error)
    verdict = asked.ask(rows, points, terms)
    header, *parts = stub.parts
    assert header.header == evaluation.EvaluationHeader(**names)
    sent = [np.frombuffer(part.predictions, dtype="<f8") for part in parts]
    assert [part.size for part in sent] == [600, 600, 300]
    expected = np.full(1500, np.nan)
    expected[rows] = points
    np.testing.assert_array_equal(np.concatenate(sent), expected)
    assert stub.timeouts == [9.0, 9.0, 90.0]
    reach = 0.1 * np.log(20)
    assert (verdict.loss, verdict.gain, verdict.answers_left) == ("squared", 0.75, 2)
    assert (verdict.low, verdict.high) == pytest.approx((0.75 - reach, 0.75 + reach))
    assert verdict.terms == terms


@pytest.mark.parametrize("code", [Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED, Code.INTERNAL])
def test_a_labels_party_that_answers_no_questions_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    @contextmanager
    def channel(_: object) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel("h:1") as opened:
            yield opened

    def refused(*_: object, **__: object) -> None:
        raise Failed(code, "not any more", ErrorDetails("answers_used_up"))

    module = "labelveil.feature_party.client.questions"
    monkeypatch.setattr(f"{module}.open_channel", channel)
    monkeypatch.setattr(f"{module}.ReleaseClient.repeat", lambda self, call, command: call())
    asked = Questions(SETTINGS, world.release.manifest_bytes, "squared", "")
    if code is Code.INTERNAL:  # which whoever repeats calls explains
        with pytest.raises(Failed):
            asked._call(refused)
        return
    with pytest.raises(ReleaseError) as caught:
        asked._call(refused)
    assert str(caught.value) == (
        f"{WHO} gives no answer: not any more (reason answers_used_up); evaluate without --ask, or"
        " agree on [evaluation] with it"
    )


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
