"""What a client says of its software is bounded, logged if it is ours, and decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc
import polars as pl
import pytest

from labelveil.common.formats import RELEASE
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.peers import own_software
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server.run import running
from tests.label_party.conftest import Client, Party

Connect = Callable[..., Client]

TOO_MUCH = [
    wire.Software(version="v" * 65),
    wire.Software(formats=["f"] * 65),
    wire.Software(formats=["f" * 65]),
    wire.Software(version="v" * 10**5, formats=["f" * 100] * 10**4),
]


def test_a_release_is_described_with_what_serves_it(served: str, connect: Connect) -> None:
    described = connect(served).describe()
    assert described.server == own_software()
    manifest = Manifest.from_bytes(described.manifest)
    assert manifest.format == str(RELEASE)


def test_the_manifest_states_the_check_of_the_join_secret(
    served: str, connect: Connect, party: Party
) -> None:
    from labelveil.common.release.event_keys import secret_check

    manifest = Manifest.from_bytes(connect(served).describe().manifest)
    secret = read_secret(party.folder / "join.key")
    assert manifest.population.secret_check == secret_check(secret).hex()


def asking(said: wire.Software) -> wire.DescribeReleaseRequest:
    return wire.DescribeReleaseRequest(data_set="labels", client=said)


@pytest.mark.parametrize("said", TOO_MUCH, ids=range(4))
def test_more_than_the_contract_has_room_for_is_refused(
    served: str, connect: Connect, said: wire.Software
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        connect(served).stub.DescribeRelease(asking(said), timeout=60)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details() == (
        "client has a version and at most 64 formats, each of at most 64 characters"
    )


@pytest.mark.parametrize(
    ("version", "logged"),
    [
        ("labelveil/0.0.1", "labelveil/0.0.1"),
        ("", "unknown"),
        ("labelveil/1 ok=1\nforged", "unknown"),
        ("another/1.0", "unknown"),
    ],
)
def test_a_lie_changes_nothing_but_the_log(
    served: str, connect: Connect, caplog: pytest.LogCaptureFixture, version: str, logged: str
) -> None:
    caplog.set_level(logging.INFO)
    client = connect(served)
    said = wire.Software(version=version, formats=["labelveil-release/0", "labelveil-release/99"])
    described = client.stub.DescribeRelease(asking(said), timeout=60)
    assert described == client.describe()
    found = [vars(record) for record in caplog.records if record.message == "call"]
    assert [facts["software"] for facts in found] == [logged, "unknown"]


def test_a_submission_says_it_too(party: Party, connect: Connect) -> None:
    with running(party.config(data__population='"submitted"')) as address:
        client, secret = connect(address), read_secret(party.folder / "join.key")
        keys = hash_keys(pl.Series([f"event-{number}" for number in range(20)]), secret)
        for said in TOO_MUCH:
            with pytest.raises(grpc.RpcError) as error:
                client.submit(keys, secret, client=said)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        answer = client.submit(keys, secret, client=own_software())
        assert answer.status == wire.POPULATION_STATUS_STORED


def test_a_newer_question_says_who_must_update(party: Party, connect: Connect) -> None:
    asked = {"data__population": '"submitted"', "rounds__questions": True}
    asked |= {"randomizer__name": '"auto"', "domain__grid": '"auto"'}
    with running(party.config(**asked)) as address:
        client, secret = connect(address), read_secret(party.folder / "join.key")
        keys = hash_keys(pl.Series([f"event-{number}" for number in range(20)]), secret)
        with pytest.raises(grpc.RpcError) as error:
            client.submit(keys, secret, b"labelveil-question/3\n" + bytes(100))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "the labels party must update labelveil" in error.value.details()
