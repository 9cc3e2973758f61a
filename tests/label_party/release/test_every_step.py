"""``kill -9`` at every step of a submission, and at messages that the server sends.

What is bought is killed in ``tests/label_party/store/test_every_purchase.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.events.submitted import Populations
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.server.run import running
from labelveil.label_party.store.release_store import Store
from tests.faults import SOCKETS, Ended, Experiments, Mode
from tests.label_party import fault_bodies
from tests.label_party.conftest import BODIES, EVENTS, Client, Party, eventually
from tests.label_party.fault_bodies import population
from tests.label_party.witness import Witness

Connect = Callable[..., Client]


def shuffled(steps: int) -> list[int]:
    """Every step, in an order that leaves different ruins for each to find."""
    order = list(range(1, steps + 1))
    random.Random(steps).shuffle(order)
    return order


def test_killed_at_every_step_of_a_submission(party: Party, patient: Experiments) -> None:
    store = Store(party.store)
    store.create()
    populations = Populations(store)

    def submit(seed: int, mode: Mode = Mode.COUNT, nth: int = 0) -> Ended:
        return patient.run(
            f"{BODIES}:submit", str(party.folder), str(seed),
            folder=party.store, mode=mode, nth=nth,
        )  # fmt: skip

    def stored() -> bytes:
        found = populations.current("labels", "1")
        assert found is not None
        return populations.rows_of("labels", "1", found)[0].read_bytes()

    assert submit(0).error == ""
    steps = submit(1).steps
    current, outcomes = 1, []
    for nth in shuffled(steps):
        ended = submit(current + 1, Mode.KILL_TORN, nth)
        arrived = stored() == population(str(current + 1))
        outcomes.append((ended.killed, arrived))
        current += arrived
        assert stored() == population(str(current))  # the old list or the new one, whole
    assert {(True, False), (True, True)} <= set(outcomes)
    assert sum(killed for killed, _ in outcomes) >= steps - 2
    assert submit(current + 1).error == ""
    left = [path for path in (party.store / "populations").rglob("*") if path.is_file()]
    assert sorted(path.suffix or path.name for path in left) == [".json", ".keys", "lock"], left


@pytest.mark.slow
def test_the_server_killed_at_any_message_that_it_sends(
    party: Party, patient: Experiments, connect: Connect, tmp_path: Path
) -> None:
    """However often it dies in the middle, a client that goes on ends up with the same bytes."""
    fault_bodies.release(str(party.folder), "1")
    witness = Witness(party)
    witness.look()
    release = Catalog(witness.store).find("labels", "1")
    assert release is not None
    truth = release.read(0, EVENTS)
    chance = random.Random(0)
    row = begun = broken = 0
    for life in range(12):
        port_file = tmp_path / f"port-{life}"
        with ThreadPoolExecutor(1) as threads:
            ended = threads.submit(
                patient.run, f"{BODIES}:serve", str(party.folder), str(port_file),
                folder=SOCKETS, mode=Mode.KILL_BEFORE, nth=chance.randint(4, 40),
            )  # fmt: skip
            eventually(lambda f=port_file, e=ended: f.exists() or e.done())
            while not ended.done():  # a server is bound to die of so many fetches
                with suppress(grpc.RpcError):
                    client = connect(f"localhost:{port_file.read_text().strip()}")
                    described = client.describe()
                    assert described.manifest == release.manifest_bytes
                    row, begun = row % EVENTS, begun + 1
                    for message in _stream(client, described.manifest_sha256, row):
                        assert message.start_row == row
                        there = row + len(message.codes)
                        assert message.keys == truth[0][16 * row : 16 * there]
                        assert message.codes == truth[1][row:there]
                        row = there
                broken += 0 < row < EVENTS
            assert ended.result().killed
        witness.look()
    assert begun > 12
    assert broken > 3
    with running(party.config(privacy__total_epsilon=9)) as address:
        client = connect(address)
        assert client.fetch(client.describe()) == truth
    witness.clear_up()


def _stream(client: Client, digest: bytes, row: int) -> Iterator[wire.FetchReleaseResponse]:
    request = wire.FetchReleaseRequest(
        data_set="labels", epoch="1", manifest_sha256=digest, start_row=row, max_chunk_bytes=170
    )
    return iter(client.stub.FetchRelease(request, timeout=300))
