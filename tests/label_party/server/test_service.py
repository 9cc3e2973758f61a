"""The service call by call: what is sent of a release, what is noted of it, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from labelveil.common.release.limits import CHUNK_BYTES, MOST_CHUNK_BYTES
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server.refusal import Refusal
from labelveil.label_party.server.release_service import LabelReleaseService

ROWS, ROW_BYTES, DIGEST = 10, 17, "ab" * 32


class Called:
    """A call, and a service whose parts note what they were asked."""

    def __init__(self, request: Any, client: str = "features", rows: int = ROWS) -> None:
        self.asked = request
        self.client = client
        self.noted: list[Any] = []
        self.written: list[Any] = []
        self.record = SimpleNamespace(facts={}, sent=self._noting("sent"))
        release = SimpleNamespace(
            digest=DIGEST,
            rows=rows,
            row_bytes=ROW_BYTES,
            heading=SimpleNamespace(data_set="sales", epoch="7"),
            manifest_bytes=b"the manifest",
            signature=b"the signature",
            read=lambda start, stop: (b"k" * (16 * (stop - start)), b"c" * (stop - start)),
        )
        opened: Future[Any] = Future()
        opened.set_result(release)
        catalog = SimpleNamespace(
            opening=lambda name, epoch: opened if (name, epoch) in KNOWN else None,
            check_served=self._noting("served"),
        )
        self.service = LabelReleaseService(
            catalog=catalog,  # type: ignore[arg-type]
            policy=SimpleNamespace(allows=lambda client, name: (client, name) in ALLOWED),  # type: ignore[arg-type]
            streams=SimpleNamespace(hold=self._hold),  # type: ignore[arg-type]
            stall_seconds=2.5,
            submissions=SimpleNamespace(data_set="sales", receive=self._receive),  # type: ignore[arg-type]
            telemetry=SimpleNamespace(fetched=self._noting("fetched")),  # type: ignore[arg-type]
        )

    def _noting(self, what: str) -> Any:
        return lambda *given: self.noted.append((what, *given))

    @contextmanager
    def _hold(self, client: str) -> Iterator[None]:
        self.noted.append(("holds", client))
        yield
        self.noted.append(("lets go", client))

    async def _receive(self, header: Any, rpc: Any, seconds: float) -> Any:
        self.noted.append(("receives", header.epoch, seconds))
        return wire.SubmitPopulationResponse(status=wire.POPULATION_STATUS_STORED)

    async def request(self) -> Any:
        return self.asked

    async def run(self, function: Any, *given: Any) -> Any:
        return function(*given)

    async def write(self, message: Any, seconds: float | None = None) -> None:
        self.written.append((message, seconds))

    def refusal(self, method: str) -> Refusal:
        with pytest.raises(Refusal) as refused:
            asyncio.run(getattr(self.service, method)(self))
        assert not self.written
        return refused.value


ALLOWED = {("features", "sales"), ("features", "s" * 64)}
KNOWN = {("sales", "7"), ("sales", "")}


def fetching(**changes: Any) -> wire.FetchReleaseRequest:
    usual: dict[str, Any] = {
        "data_set": "sales", "epoch": "7", "manifest_sha256": bytes.fromhex(DIGEST)
    }  # fmt: skip
    return wire.FetchReleaseRequest(**usual | changes)


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ({}, [(0, 10)]),
        ({"max_chunk_bytes": 3 * 17}, [(0, 3), (3, 6), (6, 9), (9, 10)]),
        ({"max_chunk_bytes": 3 * 17 - 1}, [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]),
        ({"max_chunk_bytes": 1, "start_row": 8}, [(8, 9), (9, 10)]),
        ({"max_chunk_bytes": 17 * 5, "start_row": 3}, [(3, 8), (8, 10)]),
        ({"start_row": 10}, []),
    ],
)
def test_a_release_is_sent_in_parts_and_counted(
    asked: dict[str, int], parts: list[tuple[int, int]]
) -> None:
    called = Called(fetching(**asked))
    asyncio.run(called.service.FetchRelease(called))  # type: ignore[arg-type]
    sent = [wire.FetchReleaseResponse.FromString(message) for message, _ in called.written]
    assert [(m.start_row, m.start_row + len(m.codes)) for m in sent] == parts
    assert all(len(m.keys) == 16 * len(m.codes) for m in sent)
    assert {seconds for _, seconds in called.written} <= {2.5}
    each = [
        note
        for start, stop in parts
        for note in [("served", "sales", "7"), ("sent", "sales", stop - start, 17 * (stop - start))]
    ]
    ends = [("fetched", "features", "sales", "7"), ("lets go", "features")]
    assert called.noted == [("holds", "features"), *each, *ends]
    first = asked.get("start_row", 0)
    assert called.record.facts == {"data_set": "sales", "epoch": "7", "from_row": first}


def test_parts_are_as_large_as_the_protocol_says_and_no_larger() -> None:
    for most, size in ((0, CHUNK_BYTES), (MOST_CHUNK_BYTES + 17, MOST_CHUNK_BYTES)):
        called = Called(fetching(max_chunk_bytes=most), rows=size // 17 + 1)
        asyncio.run(called.service.FetchRelease(called))  # type: ignore[arg-type]
        assert [note[2] for note in called.noted if note[0] == "sent"] == [size // 17, 1]


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        ({"epoch": ""}, grpc.StatusCode.INVALID_ARGUMENT, "epoch is required"),
        ({"data_set": ""}, grpc.StatusCode.INVALID_ARGUMENT, "data_set is required"),
        ({"manifest_sha256": b"a" * 31}, grpc.StatusCode.INVALID_ARGUMENT, "must have 32 bytes"),
        ({"manifest_sha256": b"a" * 33}, grpc.StatusCode.INVALID_ARGUMENT, "must have 32 bytes"),
        ({"manifest_sha256": b"a" * 32}, None, "manifest_sha256 is not this release's"),
        ({"start_row": 11}, grpc.StatusCode.OUT_OF_RANGE, "start_row is beyond the last row"),
        ({"data_set": "s" * 65}, grpc.StatusCode.INVALID_ARGUMENT, "at most 64 characters"),
        ({"epoch": "e" * 65}, grpc.StatusCode.INVALID_ARGUMENT, "at most 64 characters"),
        ({"data_set": "s" * 64}, grpc.StatusCode.NOT_FOUND, ""),
        ({"epoch": "e" * 64}, grpc.StatusCode.NOT_FOUND, ""),
        ({"data_set": "others"}, grpc.StatusCode.PERMISSION_DENIED, ""),
    ],
)
def test_what_is_refused_of_a_fetch(
    asked: dict[str, Any], status: grpc.StatusCode | None, text: str
) -> None:
    called = Called(fetching(**asked))
    refusal = called.refusal("FetchRelease")
    assert text in refusal.text
    assert refusal.code == status or status is None
    assert called.noted == []
    unknown = asked.get("data_set") == "others"  # whose name is the client's alone
    assert not (unknown and called.record.facts)


def test_a_release_is_described_and_the_client_s_software_noted() -> None:
    software = wire.Software(version="labelveil/1.2.3", formats=["manifest/1"])
    called = Called(wire.DescribeReleaseRequest(data_set="sales", client=software))
    asyncio.run(called.service.DescribeRelease(called))  # type: ignore[arg-type]
    ((message, seconds),) = called.written
    told = wire.DescribeReleaseResponse.FromString(message)
    assert (told.manifest, told.signature) == (b"the manifest", b"the signature")
    assert (told.manifest_sha256.hex(), seconds) == (DIGEST, 2.5)
    assert told.server.version
    facts = {"data_set": "sales", "epoch": "7", "software": "labelveil/1.2.3"}
    assert called.record.facts == facts
    silent = Called(wire.DescribeReleaseRequest(data_set="sales", epoch="7"))
    asyncio.run(silent.service.DescribeRelease(silent))  # type: ignore[arg-type]
    assert silent.record.facts["software"] == "unknown"
    long = wire.Software(version="v" * 10_000)
    refused = Called(wire.DescribeReleaseRequest(data_set="sales", client=long))
    assert "client has a version and at most" in refused.refusal("DescribeRelease").text


def test_a_population_is_taken_from_who_may_send_one() -> None:
    header = wire.PopulationHeader(data_set="sales", epoch="7")
    request = wire.SubmitPopulationRequest(header=header)
    called = Called(request)
    asyncio.run(called.service.SubmitPopulation(called))  # type: ignore[arg-type]
    holds, lets_go = ("holds", "features"), ("lets go", "features")
    assert called.noted == [holds, ("receives", "7", 2.5), lets_go]
    assert [message.status for message, _ in called.written] == [wire.POPULATION_STATUS_STORED]
    assert called.record.facts == {
        "data_set": "sales",
        "software": "unknown",
        "epoch": "7",
        "population": "POPULATION_STATUS_STORED",
    }
    stranger = Called(request, client="stranger")
    assert stranger.refusal("SubmitPopulation").code == grpc.StatusCode.PERMISSION_DENIED
    assert stranger.noted == []  # before a place is taken
    other = Called(wire.SubmitPopulationRequest(header=wire.PopulationHeader(data_set="others")))
    assert other.refusal("SubmitPopulation").code == grpc.StatusCode.PERMISSION_DENIED
    assert [note[0] for note in other.noted] == ["holds"]
