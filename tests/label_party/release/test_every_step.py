"""``kill -9`` and disks that fail at every single step: one message for ever, or nothing spent.

A store lives through one disaster after the other, and is looked at after each: every charge has
its bytes, every fetchable byte its charge, no message ever changes, and the ledger is sound. What a
disaster leaves is cleared up by the next start, which is struck as well.
"""

from __future__ import annotations

import errno
import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from common.wire import label_release_pb2 as wire
from label_party.events.submitted import Populations
from label_party.server.catalog import Catalog
from label_party.server.run import running
from label_party.store.pay_once import read_outcome
from label_party.store.recovery import recover
from label_party.store.release_store import Store
from tests.faults import SOCKETS, Ended, Experiments, Mode, experiments
from tests.label_party import fault_bodies
from tests.label_party.conftest import EVENTS, Client, Party, eventually
from tests.label_party.fault_bodies import population

Connect = Callable[..., Client]
BODIES = "tests.label_party.fault_bodies"


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiments]:
    with experiments(tmp_path_factory.mktemp("faults"), BODIES) as found:
        yield found


class Witness:
    """Looks at a store after every disaster, and remembers every message that it ever saw."""

    def __init__(self, party: Party) -> None:
        self.store = Store(party.store)
        self.messages: dict[tuple[str, str], bytes] = {}

    @property
    def next_epoch(self) -> str:
        return str(len(self.messages))

    def look(self, purpose: str) -> None:
        """Check everything that must hold before anybody clears up."""
        ledger = sqlite3.connect(self.store.ledger_path)
        assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ledger.close()
        with self.store.open_ledger() as opened:
            charges = opened.charges()
        paid = {(entry.epoch, entry.purpose): entry for entry in charges if entry.manifest_sha256}
        reserved = [entry for entry in charges if entry.state == "reserved"]
        assert len(paid) + len(reserved) == len(charges)
        assert len(reserved) <= 1
        assert self.messages.keys() <= paid.keys()  # nothing that was paid for is ever lost
        # older messages are looked at when all is over
        for key in paid.keys() - self.messages.keys():
            self.messages[key] = self._bytes(*key)
        if purpose == "labels":
            assert all(self._fetchable(entry.epoch) is None for entry in reserved)

    def clear_up(self) -> None:
        """Start as the server does; then all is at peace, and every message is as it was."""
        with self.store.building(), self.store.open_ledger() as ledger:
            recover(self.store, ledger)
            assert not ledger.reservations()
            charges = ledger.charges()
        folders = [self.store.folder(c.data_set, c.epoch, c.purpose) for c in charges]
        assert self.store.folders() == sorted(folders)
        assert {key: self._bytes(*key) for key in self.messages} == self.messages

    def _bytes(self, epoch: str, purpose: str) -> bytes:
        if purpose != "labels":
            with self.store.open_ledger() as ledger:
                charge = ledger.committed("labels", epoch, purpose)
            assert charge is not None
            return read_outcome(self.store, charge)
        found = self._fetchable(epoch)
        assert found is not None
        return found

    def _fetchable(self, epoch: str) -> bytes | None:
        catalog = Catalog(self.store)
        release = catalog.find("labels", epoch)
        if release is None:
            return None
        message = release.manifest_bytes + b"".join(release.read(0, release.rows))
        catalog.close()
        return message


def shuffled(steps: int) -> list[int]:
    """Every step, in an order that leaves different ruins for each to find."""
    order = list(range(1, steps + 1))
    random.Random(steps).shuffle(order)
    return order


@pytest.mark.parametrize(
    ("body", "purpose", "mode", "stride"),
    [
        pytest.param("release", "labels", Mode.KILL_BEFORE, 1, marks=pytest.mark.slow),
        pytest.param("release", "labels", Mode.KILL_TORN, 1, marks=pytest.mark.slow),
        pytest.param("outcome", "leaders", Mode.KILL_TORN, 1, marks=pytest.mark.slow),
        ("release", "labels", Mode.KILL_TORN, 3),
        ("outcome", "leaders", Mode.KILL_TORN, 3),
    ],
)
def test_killed_at_every_step(
    party: Party, patient: Experiments, body: str, purpose: str, mode: Mode, stride: int
) -> None:
    def run(mode: Mode = Mode.COUNT, nth: int = 0) -> Ended:
        ended = patient.run(
            f"{BODIES}:{body}", str(party.folder), witness.next_epoch,
            folder=party.store, mode=mode, nth=nth,
        )  # fmt: skip
        witness.look(purpose)
        return ended

    witness = Witness(party)
    first, second = run(), run()
    assert first.error == second.error == ""
    assert len(witness.messages) == 2
    steps = max(first.steps, second.steps)
    assert steps > 50
    tried = shuffled(steps)[::stride]
    killed = [run(mode, nth).killed for nth in tried]
    # what was left of the one before may make the way longer, never shorter than this
    assert sum(killed) >= sum(nth < second.steps for nth in tried)
    assert run().error == ""
    witness.clear_up()
    assert (
        10 / stride < len(witness.messages) < len(killed)
    )  # some died before the commit, some after


@pytest.mark.slow
def test_a_disk_that_is_full_from_any_step_on(party: Party, patient: Experiments) -> None:
    _fail(party, patient, Mode.FAIL_FROM, errno.ENOSPC, shuffled(_steps(party, patient)))


def test_a_disk_that_is_full_for_a_moment(party: Party, patient: Experiments) -> None:
    """Something else may free some space in time: then the budget is given back at once."""
    steps = shuffled(_steps(party, patient))[::3]
    _fail(party, patient, Mode.FAIL_ONCE, errno.ENOSPC, steps)
    with Store(party.store).open_ledger() as ledger:
        assert not ledger.reservations()


@pytest.mark.slow
def test_a_disk_that_breaks_while_the_charge_is_written(party: Party, patient: Experiments) -> None:
    """A commit whose sync fails may count after all; its bytes must then still be there."""
    steps = _steps(party, patient)
    lines = _fail(party, patient, Mode.FAIL_FROM, errno.EIO, range(steps // 2, steps + 1))
    assert any("the next start will find out" in line for line in lines)


def _steps(party: Party, patient: Experiments) -> int:
    for epoch in ("warm", "measured"):
        ended = patient.run(f"{BODIES}:release", str(party.folder), epoch, folder=party.store)
    assert ended.error == ""
    return ended.steps


def _fail(
    party: Party, patient: Experiments, mode: Mode, failure: int, steps: range | list[int]
) -> list[str]:
    """Return what the user was told, having checked that it is true."""
    witness = Witness(party)
    witness.look("labels")
    lines = []
    for nth in steps:
        before = len(witness.messages)
        ended = patient.run(
            f"{BODIES}:release", str(party.folder), witness.next_epoch,
            folder=party.store, mode=mode, nth=nth, failure=failure,
        )  # fmt: skip
        witness.look("labels")
        assert not ended.signal
        if not ended.error:
            assert len(witness.messages) == before + 1
            continue
        lines.append(ended.error)
        assert "\n" not in ended.error
        if "the next start will find out" in ended.error:
            continue
        assert "nothing was spent" in ended.error
        assert len(witness.messages) == before
    witness.clear_up()
    assert len(lines) > 10
    return lines


def test_a_read_only_store_is_one_line_and_spends_nothing(
    party: Party, patient: Experiments
) -> None:
    _steps(party, patient)
    ended = patient.run(
        f"{BODIES}:release", str(party.folder), "1",
        folder=party.store, mode=Mode.FAIL_FROM, nth=1, failure=errno.EROFS,
    )  # fmt: skip
    assert "nothing was spent; check the disk's space and rights" in ended.error
    witness = Witness(party)
    witness.look("labels")
    assert sorted(epoch for epoch, _ in witness.messages) == ["measured", "warm"]


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
        return populations.keys_file("labels", "1", found).read_bytes()

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
    left = sorted(path.name for path in (party.store / "populations").rglob("*") if path.is_file())
    assert [name[-5:] for name in left] == [".keys", ".json", "lock"] or len(left) == 3, left


def test_the_server_killed_at_any_message_that_it_sends(
    party: Party, patient: Experiments, connect: Connect, tmp_path: Path
) -> None:
    """However often it dies in the middle, a client that goes on ends up with the same bytes."""
    fault_bodies.release(str(party.folder), "1")
    witness = Witness(party)
    witness.look("labels")
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
        witness.look("labels")
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
    return iter(client.stub.FetchRelease(request, timeout=20))
