"""Submitting the population: what goes over the wire, through broken streams, and refusals."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import grpc
import polars as pl
import pytest

from labelveil.common.errors import (
    ConfigError,
    ConnectionFailed,
    DataError,
    LabelveilError,
    ReleaseError,
)
from labelveil.common.release.event_keys import hash_keys, secret_check
from labelveil.common.release.peers import own_software
from labelveil.common.security.pilot_certificates import CertificateFiles
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.feature_party.client.release_client import RetryPolicy
from labelveil.feature_party.client.submission import Population, SubmittingClient, hash_population
from tests.feature_party.servers import Behaviour, client_settings, serving
from tests.feature_party.worlds import SECRET, World

QUICK = RetryPolicy(attempts=3, first=0.001, longest=0.01, poll=0.001)
ROWS = 150_000  # three messages


@pytest.fixture(scope="module")
def population() -> Population:
    return hash_population(pl.Series("key", range(ROWS)), SECRET)


def submit(
    world: World,
    files: CertificateFiles,
    population: Population,
    behaviour: Behaviour,
    **changes: object,
) -> str:
    with serving(world, behaviour, files) as address:
        settings = client_settings(address, files, **{"epoch": "one", **changes})
        return SubmittingClient(settings, QUICK).submit(population)


def refusal(
    world: World, files: CertificateFiles, population: Population, behaviour: Behaviour
) -> LabelveilError:
    with pytest.raises(LabelveilError) as caught:
        submit(world, files, population, behaviour)
    assert "\n" not in str(caught.value)
    return caught.value


def test_keys_are_hashed_in_their_order_as_for_the_join() -> None:
    keys = pl.Series("key", [f"e{i}" for i in range(300)])
    seen: list[tuple[int, int]] = []
    population = hash_population(
        keys, SECRET, on_rows=lambda done, total: seen.append((done, total))
    )
    assert population.keys == hash_keys(keys, SECRET)
    assert population.rows == 300
    assert population.digest == hashlib.sha256(population.keys).digest()
    assert seen == [(97, 300), (194, 300), (291, 300), (300, 300)]  # of pieces as large as here
    assert population.secret_check == secret_check(SECRET)
    assert secret_check(bytes(32)) != secret_check(SECRET)


def test_a_long_question_is_sent_in_parts() -> None:
    asked = bytes(range(256)) * 10_000  # 2.4 MB
    population = Population(bytes(16), secret_check(SECRET), asked)
    header, keys, *parts = population.messages("sales", "one", lambda done, total: None)
    assert header.header.question_sha256 == hashlib.sha256(asked).digest()
    assert (keys.keys, keys.question) == (bytes(16), b"")
    assert [len(part.question) for part in parts] == [1 << 20, 1 << 20, len(asked) - (2 << 20)]
    assert b"".join(part.question for part in parts) == asked


def test_keys_must_be_there_once() -> None:
    with pytest.raises(DataError, match="2 rows, the first of them row 3, repeat a key") as caught:
        hash_population(pl.Series("key", ["b17", "a", "b17", "a"]), SECRET)
    assert "b17" not in str(caught.value)  # a key is in no log
    with pytest.raises(DataError, match="1 missing values"):
        hash_population(pl.Series("key", ["b", None]), SECRET)
    with pytest.raises(DataError, match="no rows"):
        hash_population(pl.Series("key", [], dtype=pl.String), SECRET)


def test_the_whole_list_arrives_under_its_header(
    world: World, files: CertificateFiles, population: Population
) -> None:
    behaviour = Behaviour()
    seen: list[tuple[int, int]] = []
    with serving(world, behaviour, files) as address:
        settings = client_settings(address, files, epoch="one")
        client = SubmittingClient(settings, QUICK)
        ending = client.submit(population, lambda done, total: seen.append((done, total)))
    assert ending == "stored"
    ((header, keys),) = behaviour.submitted
    assert keys == population.keys
    assert (header.data_set, header.epoch, header.rows) == ("sales", "one", ROWS)
    assert header.population_sha256 == hashlib.sha256(keys).digest()
    assert header.secret_check == secret_check(SECRET)
    assert header.client == own_software()
    assert seen == [(65_536, ROWS), (131_072, ROWS), (ROWS, ROWS)]


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (pb2.POPULATION_STATUS_STORED, "stored"),
        (pb2.POPULATION_STATUS_ALREADY_STORED, "stored before"),
        (pb2.POPULATION_STATUS_FROZEN, "released already"),
    ],
)
def test_how_it_ended(
    world: World,
    files: CertificateFiles,
    population: Population,
    ending: pb2.PopulationStatus,
    words: str,
) -> None:
    assert submit(world, files, population, Behaviour(ending=ending)) == words


def test_broken_submissions_start_again(
    world: World, files: CertificateFiles, population: Population
) -> None:
    behaviour = Behaviour(cut_submissions=[1, 70_000])
    submit(world, files, population, behaviour)
    assert [keys for _, keys in behaviour.submitted] == [population.keys]
    error = refusal(world, files, population, Behaviour(cut_submissions=[1, 1, 1]))
    assert isinstance(error, ConnectionFailed)
    assert "then run submit again" in str(error)


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION]
)
def test_a_refusal_is_not_repeated(
    world: World, files: CertificateFiles, population: Population, code: grpc.StatusCode
) -> None:
    error = refusal(world, files, population, Behaviour(refuse_submission=code))
    assert isinstance(error, ReleaseError)
    assert f"answered {code.name}: not this one" in str(error)


def test_a_confirmation_of_something_else_is_an_error(
    world: World, files: CertificateFiles, population: Population
) -> None:
    error = refusal(world, files, population, Behaviour(confirm=bytes(32)))
    assert "confirms another population" in str(error)


def test_a_server_that_stands_still_is_given_up(
    world: World, files: CertificateFiles, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = threading.Event()

    def stalling(self: object, request: object, context: grpc.ServicerContext) -> object:
        hold.wait(60)
        return pb2.SubmitPopulationResponse()

    monkeypatch.setattr("tests.feature_party.servers.LabelsPartyDouble.SubmitPopulation", stalling)
    with serving(world, Behaviour(), files) as address:
        settings = client_settings(address, files, epoch="one", timeout=0.2)
        with pytest.raises(ConnectionFailed, match="no progress for 0"):
            SubmittingClient(settings, RetryPolicy(attempts=2, first=0.001)).submit(population)
        hold.set()


def test_an_interrupted_submission_can_be_repeated(
    world: World, files: CertificateFiles, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour = Behaviour()
    with serving(world, behaviour, files) as address:
        client = SubmittingClient(client_settings(address, files, epoch="one"), QUICK)
        with monkeypatch.context() as patched:
            patched.setattr("grpc._channel._MultiThreadedRendezvous.result", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.submit(population)
        client.submit(population)
    assert behaviour.submitted[-1][1] == population.keys


def test_a_population_belongs_to_an_epoch(
    world: World, files: CertificateFiles, population: Population
) -> None:
    with pytest.raises(ConfigError, match="epoch is empty"):
        submit(world, files, population, Behaviour(), epoch="")


def test_a_fetch_waits_for_a_release_that_is_to_come(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    behaviour = Behaviour(absent=20)
    with serving(world, behaviour, files) as address:
        client = SubmittingClient(client_settings(address, files, wait=60), QUICK)
        assert client.fetch(tmp_path / "one").rows == 1500
        assert behaviour.absent == 0
        behaviour.absent = 20
        client = SubmittingClient(client_settings(address, files), QUICK)
        with pytest.raises(ReleaseError, match="or set wait if it is still to be built"):
            client.fetch(tmp_path / "two")
        assert behaviour.absent == 19


def test_what_comes_soon_is_seen_soon(
    world: World, files: CertificateFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within half as long again as it took, and from some seconds on within two."""
    clock = Clock()
    monkeypatch.setattr("labelveil.feature_party.client.release_client.time", clock)
    with serving(world, Behaviour(absent=60), files) as address:
        client = SubmittingClient(client_settings(address, files, wait=3600))
        client._wake = clock
        assert client.fetch(tmp_path / "one").rows == 1500
    assert all(wait <= max(0.5, sum(clock.waits[:at]) / 2) for at, wait in enumerate(clock.waits))
    assert set(clock.waits[-20:]) == {RetryPolicy().poll}
    assert len(clock.waits) == 60


class Clock(threading.Event):
    """Time that passes by waiting alone."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return sum(self.waits)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return False


def _interrupt(self: object, timeout: object = None) -> None:
    raise KeyboardInterrupt
