"""What is no question costs the labels party next to nothing, and the other partner no answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import polars as pl
import psutil
import pytest

from labelveil.common.formats import GROUPS
from labelveil.common.randomizers.grid import MAX_POINTS
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.limits import MANIFEST_BYTES
from labelveil.common.release.question import most_bytes
from labelveil.common.security.pilot_certificates import Authority, Role, issue
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server.submission import MAX_PART_BYTES
from tests.effort import effort
from tests.label_party.conftest import CLIENT, Client, Party
from tests.label_party.serving import Served, get, serving

OTHER = "other.example"
STREAMS, ROUNDS, ROWS = 8, effort(1, 20), 50
SECONDS = 0.3
"""Of the server's processors, for one of them: what is measured is a tenth of that."""
GROWTH = 400 << 20
LAWS_BYTES = most_bytes(0)
LIMITS = {
    "data__population": '"submitted"',
    "rounds__questions": True,
    "privacy__epochs": '"disjoint"',
    "randomizer__name": '"auto"',
    "domain__grid": '"auto"',
    "server__requests_per_minute": 1_000_000,
    "server__max_waiting_populations": 4 * 8,
}


def laws(points: np.ndarray, weights: np.ndarray) -> bytes:
    sizes = np.array(weights.shape[::-1], dtype="<u4").tobytes()
    return bytes(ROWS) + sizes + points.astype("<f8").tobytes() + weights.astype("<i8").tobytes()


GROUPS_LINE = f"{GROUPS}\n".encode()


def sizes(steps: int = 10, groups: int = 1, levels: int = 1, weight: int = 0) -> bytes:
    return (
        np.array([0.0, 10.0]).tobytes()
        + np.array([steps, groups, levels, weight], dtype="<u4").tobytes()
    )


def hostile() -> list[bytes]:
    """Each as long as it may be, or longer."""
    wide, tiny = np.linspace(0, 10, MAX_POINTS), 5e-324 * np.arange(MAX_POINTS)
    ones = np.ones((32, MAX_POINTS))
    lists = b'{"grid":[' + b"[]," * (MANIFEST_BYTES // 3 - 9) + b'0],"laws":[]}'
    return [
        bytes(ROWS) + lists,
        bytes(ROWS) + lists[: LAWS_BYTES - 1],
        bytes(ROWS) + b"[" * LAWS_BYTES,
        laws(np.r_[tiny[:-1], 10.0], ones),
        laws(wide, ones * (1 << 62)),
        laws(wide, 0 * ones),
        laws(2 * wide, ones),
        laws(wide, ones)[:-1],
        GROUPS_LINE + b"[" * (most_bytes(ROWS) - len(GROUPS_LINE)),
        GROUPS_LINE + sizes(groups=(1 << 32) - 1, levels=(1 << 32) - 1),
        GROUPS_LINE + sizes(groups=ROWS) + bytes(4 * (1 + 2 * ROWS)),
        GROUPS_LINE + sizes(steps=(1 << 32) - 1) + bytes(4 * (2 + ROWS)),
    ]


@pytest.fixture
def both(party: Party, connect: Callable[..., Client], authority: Authority) -> Iterator[
    tuple[Served, Client, Client]
]:  # fmt: skip
    path = party.folder / "label_party.toml"
    clients = f'clients = {{"{CLIENT}" = ["labels"], "{OTHER}" = ["labels"]}}'
    path.write_text(path.read_text().replace(f'client_san = "{CLIENT}"', clients))
    with serving(party, **LIMITS) as served:
        asking = connect(served.address, issue(authority, Role.CLIENT, [CLIENT]))
        yield served, asking, connect(served.address, issue(authority, Role.CLIENT, [OTHER]))


def test_eight_streams_of_one_partner_leave_the_other_its_answers(
    both: tuple[Served, Client, Client], party: Party
) -> None:
    served, asking, other = both
    secret = read_secret(party.folder / "join.key")
    keys = hash_keys(pl.Series([f"event-{number}" for number in range(ROWS)]), secret)
    process = psutil.Process(served.process.pid)
    ended = threading.Event()

    def ask(question: bytes) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as error:
            asking.submit(keys, secret, question, chunk=MAX_PART_BYTES)
        return error.value.code()

    def answered() -> int:
        """Ask as the other partner and as the operator for as long as it lasts."""
        calls = 0
        while calls < 10 or not ended.is_set():
            with pytest.raises(grpc.RpcError) as error:
                other.stub.DescribeRelease(other_request, timeout=20)
            assert error.value.code() == grpc.StatusCode.NOT_FOUND
            assert get(served.observed_at, "/readyz")[0] == 200
            calls += 1
        return calls

    other_request = wire.DescribeReleaseRequest(data_set="labels")
    before, memory = sum(process.cpu_times()[:2]), process.memory_info().rss
    with ThreadPoolExecutor(STREAMS + 1) as threads:
        watching = threads.submit(answered)
        codes = list(threads.map(ask, hostile() * ROUNDS))
        ended.set()
        calls = watching.result()
    spent = sum(process.cpu_times()[:2]) - before
    assert set(codes) == {grpc.StatusCode.INVALID_ARGUMENT}
    assert spent < len(codes) * SECONDS + calls * 0.1
    assert process.memory_info().rss - memory < GROWTH
    assert served.metric('label_party_refusals_total{reason="internal_error"}') == 0
    # and a question is taken as if nothing had been
    asking.submit(keys, secret, laws(np.linspace(0, 10, 21), np.ones((3, 21))))
