"""Ten clients at once, one of whom stops reading forever: the others finish, probes answer."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from labelveil.common.release.manifest import Manifest
from labelveil.common.wire import label_release_pb2 as wire
from tests.label_party.conftest import Client, Party
from tests.label_party.serving import Served, get, serving

Connect = Callable[..., Client]

ROWS = 1_000_000
CLIENTS = 10
GROWTH = 120 << 20
"""What the server may need for ten fetches of 17 MB: a few messages and the transport's window for
each; keeping the rows of all of them would take 170 MB."""


class Watch:
    """Asks for health and liveness without a pause, and remembers how long the answers took."""

    def __init__(self, client: Client, served: Served) -> None:
        self._health = health_pb2_grpc.HealthStub(client.channel)
        self._served = served
        self._stop = threading.Event()
        self.seconds: list[float] = []
        self.largest = 0

    def run(self) -> None:
        process = psutil.Process(self._served.process.pid)
        serving_ = health_pb2.HealthCheckResponse.SERVING
        while not self._stop.wait(0.02):
            for ask in (
                lambda: self._health.Check(health_pb2.HealthCheckRequest(), timeout=300).status,
                lambda: get(self._served.observed_at, "/livez"),
            ):
                began = time.monotonic()
                assert ask() in (serving_, (200, "ok\n"))
                self.seconds.append(time.monotonic() - began)
            self.largest = max(self.largest, process.memory_info().rss)

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.slow
def test_ten_clients_at_once_while_one_stalls(
    party: Party, connect: Connect, record_property: Callable[[str, object], None]
) -> None:
    keys = [f"event-{i}" for i in range(ROWS)]
    party.write_population({"key": keys})
    assert party.release(randomizer__name="randomized-response").code == 0
    with serving(party, server__log_level='"warning"') as served:
        # a window that the client's library does not widen by itself
        stalled = connect(served.address, **{"grpc.http2.bdp_probe": 0})
        described = stalled.describe()
        request = wire.FetchReleaseRequest(
            data_set="labels", epoch="1", manifest_sha256=described.manifest_sha256
        )
        standing = stalled.stub.FetchRelease(request)
        next(standing)

        idle = psutil.Process(served.process.pid).memory_info().rss
        watch = Watch(connect(served.address), served)
        clients = [connect(served.address) for _ in range(CLIENTS - 1)]
        with ThreadPoolExecutor(CLIENTS) as threads:
            watching = threads.submit(watch.run)
            fetched = list(threads.map(lambda client: digest(client, request), clients))
            watch.stop()
            watching.result(60)

        growth = watch.largest - idle
        wanted = Manifest.from_bytes(described.manifest)
        assert fetched == [(ROWS, wanted.population.digest, fetched[0][2])] * (CLIENTS - 1)
        assert standing.is_active()  # it held its place, and nobody else's, to the end
        assert len(watch.seconds) >= 2
        assert growth < GROWTH
        standing.cancel()
    record_property("slowest_probe_seconds", max(watch.seconds))
    record_property("server_growth_bytes", growth)
    print(
        f"{len(watch.seconds)} probes, the slowest {max(watch.seconds):.3f} s,"
        f" {growth / 2**20:.0f} MiB more than the {idle / 2**20:.0f} MiB of an idle server"
    )


def digest(client: Client, request: wire.FetchReleaseRequest) -> tuple[int, str, str]:
    """Fetch all rows; return their number and what they hash to."""
    keys, codes, rows = hashlib.sha256(), hashlib.sha256(), 0
    for message in client.stub.FetchRelease(request, timeout=120):
        assert message.start_row == rows
        keys.update(message.keys)
        codes.update(message.codes)
        rows += len(message.codes)
    return rows, keys.hexdigest(), codes.hexdigest()
