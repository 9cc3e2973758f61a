"""Thousands of malformed messages, from a client that is entitled to send some: all are refused.

What a client sends may be anything; what it gets is one of few constant answers, and the server
goes on as if nothing had been.
"""

from __future__ import annotations

import hashlib
import random
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from labelveil.common.release.event_keys import read_secret, secret_check
from labelveil.common.security.pilot_certificates import Authority, Credentials, Role, issue
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server.run import SERVICE, running
from tests.common.security.keys import write_key
from tests.effort import effort
from tests.label_party.conftest import Client, Party
from tests.label_party.garbage import mutate
from tests.label_party.serving import Served, serving

Connect = Callable[..., Client]
Answer = tuple[grpc.StatusCode, str]

LIMITS = {
    "data__population": '"submitted"',
    "privacy__total_epsilon": 9,
    "server__requests_per_minute": 1_000_000_000,
    "server__max_message_bytes": 1 << 20,
    "server__log_level": '"warning"',
}
GROWTH = 100 << 20
"""What the server's memory may grow by; keeping what it refused would take three times as much."""

INVALID, FORBIDDEN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED
UNMET, RANGE = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.OUT_OF_RANGE
EXPECTED: set[Answer] = {
    (grpc.StatusCode.OK, ""),
    (FORBIDDEN, "not permitted"),
    (grpc.StatusCode.NOT_FOUND, "no such release"),
    (INVALID, "the request cannot be read as a message of this call"),
    (INVALID, "data_set is required"),
    (INVALID, "epoch is required"),
    (INVALID, "data_set and epoch have at most N characters"),
    (INVALID, "manifest_shaN must have N bytes"),
    (UNMET, "manifest_shaN is not this release's"),
    (RANGE, "start_row is beyond the last row"),
    (INVALID, "epoch must be N to N letters, digits, dots, dashes or underscores"),
    (INVALID, "a population has at least one key"),
    (INVALID, "population_shaN must have N bytes"),
    (INVALID, "secret_check must have N bytes"),
    (INVALID, "the header must be the first message, and no other"),
    (INVALID, "N bytes are not one or more keys of N bytes"),
    (INVALID, "more keys than the N of the header"),
    (INVALID, "N keys instead of the N of the header"),
    (INVALID, "the keys do not give the header's population_shaN"),
    (INVALID, "N of N keys occurred before; send each event once"),
    (RANGE, "N keys are too many; the most allowed is N"),
    (UNMET, "N populations wait for their releases already; submit again when one of them is"
            " released"),
    (grpc.StatusCode.ALREADY_EXISTS,
     "the epoch's release covers another population, forever; name another epoch"),
    (grpc.StatusCode.UNAVAILABLE, "the population is in use; try again later"),
}  # fmt: skip


class Fuzzed:
    """A server process with a release over a submitted population, and good messages to spoil."""

    def __init__(self, party: Party, connect: Connect, served: Served) -> None:
        self.served = served
        self.client = connect(served.address)
        self.described = self.client.describe()
        self.truth = self.client.fetch(self.described)
        keys = hashlib.shake_128(b"other keys").digest(160)
        header = wire.PopulationHeader(
            data_set="labels", epoch="2", rows=10,
            population_sha256=hashlib.sha256(keys).digest(),
            secret_check=secret_check(read_secret(party.folder / "join.key")),
        )  # fmt: skip
        self.good = {
            "DescribeRelease": [
                wire.DescribeReleaseRequest(data_set="labels", epoch="1").SerializeToString()
            ],
            "FetchRelease": [
                wire.FetchReleaseRequest(
                    data_set="labels", epoch="1", start_row=3, max_chunk_bytes=100,
                    manifest_sha256=self.described.manifest_sha256,
                ).SerializeToString()
            ],
            "SubmitPopulation": [
                wire.SubmitPopulationRequest(header=header).SerializeToString(),
                *(
                    wire.SubmitPopulationRequest(keys=part).SerializeToString()
                    for part in (keys[:80], keys[80:])
                ),
            ],
        }  # fmt: skip

    def send(self, method: str, messages: list[bytes]) -> Answer:
        """Send raw bytes as the messages of a call; return how it ended."""
        path = f"/{SERVICE}/{method}"
        channel = self.client.channel
        try:
            if method == "DescribeRelease":
                channel.unary_unary(path)(messages[0], timeout=300)
            elif method == "FetchRelease":
                for _ in channel.unary_stream(path)(messages[0], timeout=300):
                    pass
            else:
                channel.stream_unary(path)(iter(messages), timeout=300)
        except grpc.RpcError as error:
            return error.code(), re.sub(r"\d+", "N", error.details() or "")
        return grpc.StatusCode.OK, ""

    def memory(self) -> int:
        return psutil.Process(self.served.process.pid).memory_info().rss


@pytest.fixture
def fuzzed(party: Party, connect: Connect) -> Iterator[Fuzzed]:
    secret = read_secret(party.folder / "join.key")
    with running(party.config(**LIMITS)) as address:
        connect(address).submit(hashlib.shake_128(b"keys").digest(16 * 500), secret)
    assert party.release(**LIMITS).code == 0
    with serving(party, **LIMITS) as served:
        yield Fuzzed(party, connect, served)


def spoiled(good: dict[str, list[bytes]], seed: int) -> tuple[str, list[bytes]]:
    """The messages of one call, at least one of them spoiled."""
    chance = random.Random(seed)
    method = chance.choices(list(good), (5, 5, 2))[0]
    messages = list(good[method])
    for _ in range(chance.randint(1, 2)):
        which = chance.randrange(len(messages))
        messages[which] = mutate(chance, messages[which])
    if method == "SubmitPopulation":
        chance.shuffle(messages)
        messages = messages[: chance.randint(1, 3)] * chance.randint(1, 3)
    return method, messages


MANY = effort(2_000, 10_500)


@pytest.mark.parametrize("number", [1_000, pytest.param(MANY, marks=pytest.mark.slow)])
def test_malformed_messages_are_refused(fuzzed: Fuzzed, number: int) -> None:
    calls = [spoiled(fuzzed.good, seed) for seed in range(number)]
    sent = sum(len(message) for _, messages in calls for message in messages)
    before = fuzzed.memory()
    with ThreadPoolExecutor(4) as threads:
        answers = Counter(threads.map(lambda call: fuzzed.send(*call), calls))
    assert answers.keys() <= EXPECTED
    assert len(answers) > 10  # the mutations reach every corner, not only the parser
    assert answers[INVALID, "the request cannot be read as a message of this call"] > number / 10
    assert fuzzed.memory() - before < GROWTH, sent
    # as if nothing had been
    assert fuzzed.client.describe() == fuzzed.described
    assert fuzzed.client.fetch(fuzzed.described) == fuzzed.truth
    assert fuzzed.served.metric('label_party_refusals_total{reason="internal_error"}') == 0
    assert "Traceback" not in fuzzed.served.log
    refused = sum(count for (code, _), count in answers.items() if code != grpc.StatusCode.OK)
    assert refused == sum(
        fuzzed.served.refusals(reason)
        for reason in ("invalid_request", "data_set_not_permitted", "no_release",
                       "another_release", "failed_precondition", "already_exists",
                       "out_of_range", "unavailable")
    )  # fmt: skip


def test_garbage_from_an_unknown_client_is_answered_as_anything_from_it(
    served: str, connect: Connect, authority: Authority
) -> None:
    unknown = connect(served, issue(authority, Role.CLIENT, ["other.example"]))
    for method in ("DescribeRelease", "FetchRelease", "SubmitPopulation"):
        with pytest.raises(grpc.RpcError) as error:
            unknown.channel.unary_unary(f"/{SERVICE}/{method}")(b"\xff" * 9, timeout=300)
        assert (error.value.code(), error.value.details()) == (FORBIDDEN, "not permitted")


def test_neither_oversized_messages_nor_a_claim_of_four_gigabytes_are_taken(
    fuzzed: Fuzzed, party: Party, client_identity: Credentials
) -> None:
    """The length before a message is a claim; no room is made for what has not arrived."""
    (party.folder / "client.pem").write_bytes(client_identity.certificate_pem)
    write_key(party.folder / "client.key", client_identity.key_pem)
    before = fuzzed.memory()
    for method, messages in fuzzed.good.items():
        code, _ = fuzzed.send(method, [*messages[:-1], bytes(2 << 20)])
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        for prefix in (b"\0\xff\xff\xff\xff", b"\1\xff\xff\xff\xff"):
            assert _ends_stream(fuzzed.served, party.folder, method, prefix + bytes(1000))
    with pytest.raises(grpc.RpcError) as unknown:
        fuzzed.client.channel.unary_unary(f"/{SERVICE}/Everything")(b"")
    assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert fuzzed.memory() - before < GROWTH
    assert fuzzed.client.fetch(fuzzed.described) == fuzzed.truth


def _ends_stream(served: Served, folder: Path, method: str, data: bytes) -> bool:
    """Whether the server ends a call whose data are these, by HTTP/2 spoken by hand (RFC 9113)."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    context.set_alpn_protocols(["h2"])
    headers = {
        ":method": "POST", ":scheme": "https", ":path": f"/{SERVICE}/{method}",
        ":authority": "localhost", "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    # every header as a literal that is not indexed (RFC 7541, section 6.2.2)
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    with (
        socket.create_connection(served.host_and_port, timeout=300) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(4, 0, 0, b"") + _frame(1, 4, 1, block) + _frame(0, 0, 1, data)
        )  # fmt: skip
        with secured.makefile("rb") as answer:
            while head := answer.read(9):
                answer.read(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                # trailers, or a reset, of our stream; or the end of the connection
                if (stream == 1 and (kind == 3 or (kind == 1 and flags & 1))) or kind == 7:
                    return True
    return False


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data
