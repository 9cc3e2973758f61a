"""Populations that the features party submits: stored whole or not at all, and frozen by a release.

Submissions here are made by a bare client, so that malformed ones can be made as well.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import polars as pl
import pytest

from labelveil.common.errors import DataError
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.release.manifest import Manifest
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.events.submitted import Populations, Upload
from labelveil.label_party.release.watch import arrived
from labelveil.label_party.server.run import running
from labelveil.label_party.store.disk import StoreError
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Client, Party, eventually

Connect = Callable[..., Client]

# every label of every event is sent as it is, but for a chance of e^-30
EXACT = {
    "privacy__epsilon": 40,
    "privacy__total_epsilon": 400,
    "randomizer__name": '"randomized-response"',
    "domain__grid": '"step"',
    "domain__step": 1,
}
STORED = (wire.POPULATION_STATUS_STORED, wire.POPULATION_STATUS_ALREADY_STORED)
SUBMITTED = {"data__population": '"submitted"', **EXACT}


@dataclass(frozen=True)
class World:
    """A labels party that serves and waits for a population."""

    party: Party
    client: Client
    secret: bytes

    def keys(self, *names: str) -> bytes:
        return hash_keys(pl.Series(names), self.secret)

    def submit(self, keys: bytes, **options: Any) -> int:
        answer = self.client.submit(keys, self.secret, **options)
        assert answer.population_sha256 == hashlib.sha256(keys).digest()
        assert answer.rows == len(keys) // 16
        return answer.status

    def refused(self, keys: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as error:
            self.client.submit(keys, self.secret, **options)
        return error.value.code(), error.value.details()

    def stored(self, epoch: str = "1") -> bytes | None:
        """The keys that count, read from the disk."""
        populations = Populations(Store(self.party.store))
        found = populations.current("labels", epoch)
        if found is None:
            return None
        return populations.rows_of("labels", epoch, found)[0].read_bytes()

    def nothing_stored(self) -> bool:
        """Whether no key lies in the store, in whatever form."""
        files = (self.party.store / "populations").rglob("*")
        return not [path for path in files if path.is_file() and path.name != "lock"]


@pytest.fixture
def world(party: Party, connect: Connect) -> Iterator[World]:
    with running(party.config(**SUBMITTED)) as address:
        yield World(party, connect(address), read_secret(party.folder / "join.key"))


def labels_at(manifest: Manifest, codes: bytes) -> list[float]:
    return manifest.channel.outputs[decode_codes(codes, manifest.content.code_bytes)].tolist()


@pytest.mark.slow
def test_labels_come_back_at_the_positions_of_their_keys(world: World) -> None:
    """Known keys get their label, unknown ones the missing value; other labels are left out."""
    names = ["nobody-1", *(f"event-{i}" for i in range(150, 20, -1)), "nobody-2"]
    keys = world.keys(*names)
    assert world.submit(keys) == wire.POPULATION_STATUS_STORED
    released = world.party.release(**SUBMITTED, data__missing=7.0)
    assert released.code == 0, released
    assert "132 (submitted by the features party)" in released.out
    described = world.client.describe()
    manifest = Manifest.from_bytes(described.manifest)
    none, codes = world.client.fetch(described)
    assert none == b""
    assert len(codes) == len(names)  # one byte a row
    assert manifest.population.model_dump() == {
        "rows": 132, "digest": hashlib.sha256(keys).hexdigest(), "keys": "submitted",
        "secret_check": secret_check(world.secret).hex(),
    }  # fmt: skip
    # every second event is labelled with its number's last digit
    truth = [
        float(int(name.split("-")[1]) % 10) if name.startswith("event") and name[-1] in "02468"
        else 7.0
        for name in names
    ]  # fmt: skip
    assert labels_at(manifest, codes) == truth
    assert world.client.fetch(described, start_row=100) == (b"", codes[100:])


@pytest.mark.slow
def test_two_bytes_a_row_from_257_outputs_on(world: World) -> None:
    world.submit(world.keys(*(f"event-{i}" for i in range(50))))
    assert world.party.release(**SUBMITTED | {"domain__step": 0.02}).code == 0
    described = world.client.describe()
    _, codes = world.client.fetch(described)
    manifest = Manifest.from_bytes(described.manifest)
    assert (manifest.content.code_bytes, len(codes)) == (2, 100)
    assert labels_at(manifest, codes) == [0.0 if i % 2 else float(i % 10) for i in range(50)]


@pytest.mark.slow
def test_the_same_keys_again_are_harmless_at_any_time(world: World) -> None:
    keys = world.keys("a", "b", "c")
    assert world.submit(keys) == wire.POPULATION_STATUS_STORED
    # the header alone is answered: the other messages need not be sent
    header = {"rows": 3, "population_sha256": hashlib.sha256(keys).digest()}
    again = world.client.submit(b"", world.secret, **header)
    assert again.status == wire.POPULATION_STATUS_ALREADY_STORED
    assert world.party.release(**SUBMITTED).code == 0
    assert world.submit(keys) == wire.POPULATION_STATUS_FROZEN
    assert world.stored() == keys


def test_another_population_replaces_one_that_waits_and_never_one_that_is_released(
    world: World,
) -> None:
    first, second, third = (world.keys(*names) for names in ("ab", "bc", "cb"))
    world.submit(first)
    assert world.submit(second) == wire.POPULATION_STATUS_STORED
    assert world.stored() == second
    assert len(list(world.party.store.glob("populations/*/*/*.keys"))) == 1
    assert world.party.release(**SUBMITTED).code == 0
    before = world.client.describe()
    for other in (first, third):  # the order counts, too
        code, text = world.refused(other)
        assert code == grpc.StatusCode.ALREADY_EXISTS
        assert "covers another population" in text
    assert world.client.describe() == before
    assert world.stored() == second
    assert world.submit(first, epoch="2") == wire.POPULATION_STATUS_STORED


@pytest.mark.slow
def test_labels_that_change_after_the_release_stay_frozen_in_it(world: World) -> None:
    names = [f"event-{i}" for i in range(0, 20, 2)]
    world.submit(world.keys(*names))
    assert world.party.release(**SUBMITTED).code == 0
    described = world.client.describe()
    before = world.client.fetch(described)
    world.party.write_labels({"key": names, "label": [10.0] * 10})
    again = world.party.release(**SUBMITTED)
    assert "already released" in again.out
    assert world.client.describe() == described
    assert world.client.fetch(described) == before
    assert labels_at(Manifest.from_bytes(described.manifest), before[1]) == [0, 2, 4, 6, 8] * 2


def test_repeated_keys_are_counted_and_refused(world: World) -> None:
    for names, count in (("aa", 1), ("abca", 1), ("abacba", 3)):
        code, text = world.refused(world.keys(*names))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert text == f"{count} of {len(names)} keys occurred before; send each event once"
    assert world.nothing_stored()


GOOD = bytes(range(64))


@pytest.mark.parametrize(
    ("header", "chunk", "code", "part"),
    [
        ({"rows": 0}, 32, "INVALID_ARGUMENT", "at least one key"),
        ({"rows": 3}, 32, "INVALID_ARGUMENT", "more keys than the 3"),
        ({"rows": 5}, 32, "INVALID_ARGUMENT", "4 keys instead of the 5"),
        ({"rows": 2**64 - 1}, 32, "OUT_OF_RANGE", "the most allowed is 50000000"),
        ({"population_sha256": bytes(32)}, 32, "INVALID_ARGUMENT", "do not give"),
        ({"population_sha256": b"short"}, 32, "INVALID_ARGUMENT", "32 bytes"),
        ({"secret_check": b""}, 32, "INVALID_ARGUMENT", "secret_check"),
        ({"epoch": ""}, 32, "INVALID_ARGUMENT", "epoch"),
        ({"epoch": "../1"}, 32, "INVALID_ARGUMENT", "epoch"),
        ({"epoch": "1\n"}, 32, "INVALID_ARGUMENT", "epoch"),
        ({"epoch": "x" * 65}, 32, "INVALID_ARGUMENT", "64"),
        ({"data_set": ""}, 32, "INVALID_ARGUMENT", "data_set"),
        ({"data_set": "other"}, 32, "PERMISSION_DENIED", "not permitted"),
        ({}, 15, "INVALID_ARGUMENT", "15 bytes are not one or more keys"),
    ],
)
def test_malformed_submissions_leave_nothing(
    world: World, header: dict[str, Any], chunk: int, code: str, part: str
) -> None:
    status, text = world.refused(GOOD, chunk=chunk, **header)
    assert status.name == code
    assert part in text
    assert world.nothing_stored()


def messages(world: World, *parts: bytes | None) -> Iterator[wire.SubmitPopulationRequest]:
    """A stream made of keys, and of headers for GOOD in place of None."""
    for part in parts:
        if part is None:
            yield wire.SubmitPopulationRequest(
                header=wire.PopulationHeader(
                    data_set="labels", epoch="1", rows=4, secret_check=bytes(16),
                    population_sha256=hashlib.sha256(GOOD).digest(),
                )
            )  # fmt: skip
        else:
            yield wire.SubmitPopulationRequest(keys=part)


@pytest.mark.parametrize(
    "parts",
    [(), (GOOD,), (None,), (None, None, GOOD), (None, GOOD, None), (None, GOOD, b""),
     (None, GOOD[:32]), (None, GOOD, GOOD)],
)  # fmt: skip
def test_streams_out_of_order_leave_nothing(world: World, parts: tuple[bytes | None, ...]) -> None:
    with pytest.raises(grpc.RpcError) as error:
        world.client.stub.SubmitPopulation(messages(world, *parts), timeout=300)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert world.nothing_stored()


def test_too_many_keys_in_one_message_are_refused(world: World) -> None:
    with pytest.raises(grpc.RpcError) as error:
        world.client.stub.SubmitPopulation(
            messages(world, None, bytes(3 * 2**20 + 16)), timeout=300
        )
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "3145744 bytes of keys in one message; at most 3145728" in error.value.details()
    assert world.nothing_stored()


def test_an_empty_request_is_refused(world: World) -> None:
    with pytest.raises(grpc.RpcError) as error:
        world.client.stub.SubmitPopulation(iter([wire.SubmitPopulationRequest()]), timeout=300)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_limits_on_rows_and_on_populations_that_wait(party: Party, connect: Connect) -> None:
    few = {**SUBMITTED, "server__max_population_rows": 3, "server__max_waiting_populations": 2}
    with running(party.config(**few)) as address:
        world = World(party, connect(address), read_secret(party.folder / "join.key"))
        assert world.refused(world.keys(*"abcd"))[0] == grpc.StatusCode.OUT_OF_RANGE
        world.submit(world.keys(*"abc"))
        world.submit(world.keys(*"abc"), epoch="2")
        code, text = world.refused(world.keys(*"abc"), epoch="3")
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "2 populations wait" in text
        world.submit(world.keys(*"ab"), epoch="2")  # another one of the same epoch fits
        assert party.release(**few).code == 0
        world.submit(world.keys(*"abc"), epoch="3")


def test_a_stalled_submission_is_cut_off_and_leaves_nothing(party: Party, connect: Connect) -> None:
    quick = {**SUBMITTED, "server__max_streams": 1, "server__stall_seconds": 0.3}
    hold = threading.Event()

    def stalling(world: World) -> Iterator[wire.SubmitPopulationRequest]:
        yield from messages(world, None, GOOD[:32])
        hold.wait(60)

    with running(party.config(**quick)) as address:
        world = World(party, connect(address), read_secret(party.folder / "join.key"))
        call = world.client.stub.SubmitPopulation.future(stalling(world), timeout=300)
        with pytest.raises(grpc.RpcError) as error:
            call.result()
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        hold.set()

        def submitted() -> bool:
            try:
                # stored, or stored already by a try whose answer came too late on a busy machine
                return world.submit(GOOD) in STORED
            except grpc.RpcError:
                return False

        eventually(submitted)  # its place is free again once the server's thread has seen the end
        assert world.stored() == GOOD
        assert not list((party.store / "populations" / ".uploads").iterdir())


def test_a_client_that_leaves_leaves_nothing(world: World) -> None:
    gone = threading.Event()

    def leaving() -> Iterator[wire.SubmitPopulationRequest]:
        yield from messages(world, None, GOOD[:32])
        gone.wait(60)

    call = world.client.stub.SubmitPopulation.future(leaving())
    uploads = world.party.store / "populations" / ".uploads"
    eventually(lambda: uploads.is_dir() and any(uploads.iterdir()))
    call.cancel()
    gone.set()
    eventually(lambda: not any(uploads.iterdir()))
    assert world.nothing_stored()


def test_a_full_disk_is_no_fault_of_the_client(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Upload, keys: bytes) -> None:
        raise StoreError("populations cannot be written: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Upload, "append", full)
        code, text = world.refused(GOOD)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "device" not in text
    assert world.nothing_stored()
    assert world.submit(GOOD) == wire.POPULATION_STATUS_STORED


def test_a_population_stands_still_while_a_release_is_built(world: World) -> None:
    world.submit(GOOD)
    with Populations(Store(world.party.store)).in_use("labels", "1"):
        code, text = world.refused(GOOD[::-1])
        assert code == grpc.StatusCode.UNAVAILABLE
        assert text == "the population is in use; try again later"
        assert world.submit(GOOD) == wire.POPULATION_STATUS_ALREADY_STORED
        assert "in use by another process" in world.party.release(**SUBMITTED).error
    assert world.stored() == GOOD


def before_the_next_exchange(act: Callable[[], object]) -> None:
    """Have something done once a population was looked at, and just before it is held."""
    patch, real = pytest.MonkeyPatch(), Populations.exchanging

    def late(*given: Any) -> Any:
        patch.undo()
        act()
        return real(*given)

    patch.setattr(Populations, "exchanging", late)


def test_what_counts_is_decided_while_a_population_stands_still(world: World) -> None:
    """Another one, or a release, may come between a look at it and its being held."""
    world.submit(GOOD)
    (pointer,) = world.party.store.glob("populations/*/*/*.json")
    before_the_next_exchange(pointer.unlink)
    with pytest.raises(DataError, match="no population has been submitted"):
        Populations(Store(world.party.store)).in_use("labels", "1").__enter__()
    world.submit(GOOD)
    before_the_next_exchange(lambda: world.submit(GOOD[::-1]))
    with Populations(Store(world.party.store)).in_use("labels", "1") as found:
        assert found.sha256 == hashlib.sha256(GOOD[::-1]).hexdigest()
    before_the_next_exchange(lambda: world.party.release(**SUBMITTED))
    code, text = world.refused(GOOD)
    assert (code, "covers another population" in text) == (grpc.StatusCode.ALREADY_EXISTS, True)
    assert world.stored() == GOOD[::-1]
    assert world.party.release(**SUBMITTED).code == 0


def test_epochs_that_wait_come_in_order(world: World) -> None:
    waiting = [str(at * 3 % 5) for at in range(5)]
    for epoch in waiting:
        world.submit(world.keys("a", "b"), epoch=epoch)
    assert Populations(Store(world.party.store)).epochs("labels") == sorted(waiting)
    # one that never came to count goes with the next start
    stray = world.party.store / "populations" / "labels" / "x"
    stray.mkdir()
    for name in ("lock", f"{'0' * 64}.keys"):
        (stray / name).touch()
    Populations(Store(world.party.store)).clean()
    assert [path.name for path in stray.iterdir()] == ["lock"]
    assert world.stored("1") == world.keys("a", "b")
    # of a table of all days, days that are over have arrived
    for epoch in ("2024-06-02", "2024-06-01", "2999-01-01"):
        world.submit(world.keys("a", "b"), epoch=epoch)
    days = world.party.config(**SUBMITTED, data__date="day")
    assert arrived(days) == ["2024-06-01", "2024-06-02"]


def test_a_release_without_a_population_says_who_has_to_act(world: World) -> None:
    error = world.party.release(**SUBMITTED).error
    for part in ("data set 'labels'", "epoch '1'", "feature-party submit", "[data] population"):
        assert part in error
    assert world.party.nothing_left()
    world.submit(GOOD)
    assert "epoch '2'" in world.party.release(**SUBMITTED, data__epoch="2").error


def test_keys_hashed_under_another_secret_are_not_spent_on(world: World) -> None:
    world.client.submit(GOOD, bytes(32))
    error = world.party.release(**SUBMITTED).error
    assert "partner.example hashed" in error
    assert "another secret than join.key" in error
    assert world.party.nothing_left()
    assert world.submit(GOOD) == wire.POPULATION_STATUS_STORED  # the same keys, said otherwise
    assert world.party.release(**SUBMITTED).code == 0


def test_damaged_keys_are_refused_and_can_be_submitted_again(world: World) -> None:
    world.submit(GOOD)
    (path,) = world.party.store.glob("populations/*/*/*.keys")
    path.write_bytes(GOOD[::-1])
    assert "is damaged" in world.party.release(**SUBMITTED).error
    path.write_bytes(GOOD[:-1])  # of another length it does not count at all
    assert world.submit(GOOD) == wire.POPULATION_STATUS_STORED
    pointer = path.with_name("current.json")
    facts = pointer.read_bytes()
    for damaged in (b"{}", b"\xff", b"["):
        pointer.write_bytes(damaged)
        assert "restore it from a backup, or remove it" in world.party.release(**SUBMITTED).error
    pointer.write_bytes(facts)
    assert world.party.nothing_left()
    assert world.party.release(**SUBMITTED).code == 0


def test_nothing_observable_depends_on_which_keys_have_labels(
    party: Party, connect: Connect
) -> None:
    names = [f"event-{i}" for i in range(100)]
    observed = []
    for epoch, labelled in (("1", names), ("2", names[:1]), ("3", ["stranger"])):
        party.write_labels({"key": labelled, "label": [1.0] * len(labelled)})
        with running(party.config(**SUBMITTED)) as address:
            world = World(party, connect(address), read_secret(party.folder / "join.key"))
            keys = world.keys(*names)
            answers = [world.submit(keys, epoch=epoch)]
            assert party.release(**SUBMITTED, data__epoch=epoch).code == 0
            answers += [world.submit(keys, epoch=epoch)]
            refusal = world.refused(keys[16:], epoch=epoch)
            described = world.client.describe(epoch=epoch)
            manifest = Manifest.from_bytes(described.manifest)
            none, codes = world.client.fetch(described, epoch=epoch)
        observed.append(
            (answers, refusal, none, len(codes), manifest.population, manifest.label,
             manifest.content.code_bytes, manifest.content.key_bytes)
        )  # fmt: skip
    assert observed[0] == observed[1] == observed[2]


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"privacy__unit": "user", "privacy__user": "key", "privacy__max_records_per_user": 2},
         "unit='user' needs to know"),
    ],
)  # fmt: skip
def test_what_nobody_could_check_is_refused(
    party: Party, settings: dict[str, Any], part: str
) -> None:
    assert part in party.release(data__population='"submitted"', **settings).error


@pytest.mark.slow
def test_a_plan_knows_how_many_events_were_submitted(world: World) -> None:
    def events() -> int:
        arguments = world.party.arguments(**SUBMITTED)
        planned = world.party.run("plan", "--epsilons", "1", "--json", *arguments)
        assert planned.code == 0, planned
        return int(json.loads(planned.out)["events"])

    assert events() == 20_000
    world.submit(world.keys(*(f"event-{i}" for i in range(60))))
    assert events() == 60
    arguments = world.party.arguments(**SUBMITTED)
    raw = world.party.run("plan", "--epsilons", "1", "--raw-labels", "--json", *arguments)
    assert json.loads(raw.out)["events"] == 60
