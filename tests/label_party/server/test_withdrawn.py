"""A release is withdrawn under a server that runs: who asks is told why, and marks its copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from labelveil.audit.certificate.run import certify
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.folder import withdrawn_reason
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import read_release
from labelveil.common.security.pilot_certificates import Credentials
from labelveil.common.wire import evaluation_pb2, evaluation_pb2_grpc
from labelveil.feature_party.commands.cli import app
from labelveil.label_party.server.catalog import Catalog, Withdrawn
from labelveil.label_party.server.run import running
from labelveil.label_party.store.ledger import LedgerError
from labelveil.label_party.store.release_store import Store, StoredRelease
from labelveil.label_party.store.withdrawal import withdraw
from tests.common.security.keys import write_key
from tests.label_party.conftest import EVENTS, Client, Party
from tests.label_party.queries.asking import GAIN, OFFERED

WRONG = "amounts were read in cents"
REFUSED = grpc.StatusCode.FAILED_PRECONDITION, f"withdrawn: {WRONG}"
Connect = Callable[..., Client]


def _withdraw(party: Party, epoch: str) -> None:
    withdraw(Store(party.store), "labels", epoch, WRONG)


def _refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def _epoch(client: Client) -> str:
    return Manifest.from_bytes(client.describe().manifest).epoch


@pytest.fixture
def two(party: Party) -> Party:
    for epoch in ("1", "2"):
        assert party.release(data__epoch=epoch).code == 0
    return party


@pytest.mark.slow
def test_a_server_that_runs_refuses_it_and_the_latest_falls_back(
    two: Party, connect: Connect
) -> None:
    assert two.release(data__epoch="3").code == 0
    with running(two.config()) as address:
        client = connect(address)
        third = client.describe(epoch="3")
        _withdraw(two, "2")
        assert _epoch(client) == "3"  # an earlier one leaves the latest alone
        _withdraw(two, "3")
        assert _epoch(client) == "1"
        assert _refused(lambda: client.describe(epoch="3")) == REFUSED
        assert _refused(lambda: client.fetch(third, epoch="3")) == REFUSED
        assert _refused(lambda: client.fetch(third, epoch="3", start_row=EVENTS)) == REFUSED
        assert client.fetch(client.describe(epoch="1"))[1]
        _withdraw(two, "1")
        assert _refused(client.describe) == (grpc.StatusCode.NOT_FOUND, "no such release")
    with running(two.config()) as address:  # and one that starts anew
        assert _refused(lambda: connect(address).describe(epoch="3")) == REFUSED


def test_the_latest_is_the_last_that_is_served(two: Party) -> None:
    catalog = Catalog(Store(two.store))

    def latest() -> str | None:
        found = catalog.find("labels", None)
        return None if found is None else found.heading.epoch

    assert latest() == "2"
    _withdraw(two, "2")
    assert latest() == "1"
    with pytest.raises(Withdrawn, match=WRONG):
        catalog.find("labels", "2")
    _withdraw(two, "1")
    assert latest() is None


def test_a_fetch_that_runs_ends(
    two: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = StoredRelease.read

    def withdrawn_meanwhile(release: StoredRelease, start: int, stop: int) -> tuple[bytes, bytes]:
        reads.append(start)
        if len(reads) == 3:
            _withdraw(two, "2")
        return read(release, start, stop)

    with running(two.config()) as address:
        client = connect(address)
        described = client.describe()
        monkeypatch.setattr(StoredRelease, "read", withdrawn_meanwhile)
        fetch = lambda: client.fetch(described, epoch="2", max_chunk_bytes=170)  # noqa: E731
        assert _refused(fetch) == REFUSED
        assert reads == [0, 10, 20]


def test_a_fetch_that_runs_goes_on_while_no_ledger_can_be_read(
    two: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(Store(two.store))
    catalog.check_served("labels", "2")

    def unreadable(store: Store) -> None:
        raise LedgerError("the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read_ledger", unreadable)
        patch.setattr(catalog._releases, "_made", None)
        catalog.check_served("labels", "2")
    catalog.close()


@pytest.mark.slow
def test_nothing_is_submitted_for_it(two: Party, connect: Connect) -> None:
    _withdraw(two, "2")
    secret = read_secret(two.folder / "join.key")
    keys = hash_keys(pl.Series(["a"]), secret)
    with running(two.config(data__population="submitted")) as address:
        client = connect(address)
        assert _refused(lambda: client.submit(keys, secret, epoch="2")) == REFUSED
    assert not list(two.store.glob("populations/labels/*/*.keys"))


def test_nothing_is_answered_about_it(party: Party, connect: Connect) -> None:
    assert party.release(**OFFERED).code == 0
    with running(party.config(**OFFERED)) as address:
        client = connect(address)
        digest = client.describe().manifest_sha256
        stub = evaluation_pb2_grpc.EvaluationServiceStub(client.channel)
        named = {"data_set": "labels", "epoch": "1", "manifest_sha256": digest, **GAIN}
        ask = evaluation_pb2.DescribeEvaluationRequest(**named)
        stub.DescribeEvaluation(ask)

        def asked() -> Iterator[evaluation_pb2.EvaluatePredictionsRequest]:
            """Withdrawn between header and last prediction."""
            header = evaluation_pb2.EvaluationHeader(**named)
            yield evaluation_pb2.EvaluatePredictionsRequest(header=header)
            _withdraw(party, "1")
            yield evaluation_pb2.EvaluatePredictionsRequest(predictions=bytes(8 * EVENTS))

        before = party.run("budget", "--json").out
        assert _refused(lambda: stub.EvaluatePredictions(asked(), timeout=300)) == REFUSED
        assert _refused(lambda: stub.DescribeEvaluation(ask)) == REFUSED
    after = json.loads(party.run("budget", "--json").out)
    assert after[0]["left"] == json.loads(before)[0]["left"]


@pytest.fixture
def partner(two: Party, client_identity: Credentials) -> Callable[..., Result]:
    """Run a features party's command, in the same folder, against an address."""
    (two.folder / "client.pem").write_bytes(client_identity.certificate_pem)
    write_key(two.folder / "client.key", client_identity.key_pem)
    rows = {"key": [f"event-{i}" for i in range(EVENTS)], "x": [i % 10 for i in range(EVENTS)]}
    pl.DataFrame(rows).write_csv(two.folder / "features.csv")
    (two.folder / "feature_party.toml").write_text(
        """
        [labels_party]
        data_set = "labels"
        ca = "ca.pem"
        certificate = "client.pem"
        private_key = "client.key"
        [data]
        features = "features.csv"
        key = "key"
        [keys]
        secret_file = "join.key"
        [training]
        learner = "linear"
        shards = "never"
        """
    )

    def run(command: str, address: str = "", *more: str) -> Result:
        to = ["--address", address] if address else []
        return CliRunner().invoke(app, [command, *to, *more])

    return run


def _error(result: Result) -> str:
    assert result.exit_code == 1
    return str(result.exception)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_features_party_learns_of_it_and_its_commands_say_so(
    two: Party, partner: Callable[..., Result]
) -> None:
    named = "--epoch", "2"
    here = two.folder / "release"
    with running(two.config()) as address:
        assert partner("fetch", address).exit_code == 0
        assert read_release(here).manifest.epoch == "2"
        _withdraw(two, "2")
        assert partner("join").exit_code == 0  # nobody has told it yet
        told = f"has withdrawn its release of data set 'labels', epoch '2': {WRONG}"
        assert told in _error(partner("fetch", address, *named))
        assert withdrawn_reason(here) == WRONG
        said = f"the release in release was withdrawn by its labels party: {WRONG}; fetch another"
        for command in ("join", "train", "labels"):
            assert said in _error(partner(command)), command
        assert told in _error(partner("run", address, *named))
        with pytest.warns(UserWarning, match=WRONG):
            read_release(here)
        assert certify(here).facts["withdrawn"] == WRONG
        # whoever knows better goes on with what is there
        knowing = "--set=release.withdrawn=true"
        done = partner("run", address, *named, knowing)
        assert done.exit_code == 0, done.output
        page = (two.folder / "report.html").read_text()
        assert WRONG in page
        # the latest is another, and takes its place without the mark
        fetched = partner("fetch", address)
        assert "epoch '2', which was withdrawn; train again" in fetched.output
        assert WRONG in fetched.output
        assert read_release(here).manifest.epoch == "1"
        assert withdrawn_reason(here) is None
        assert partner("join").exit_code == 0
        # of the last one of all it is told although no release is served
        _withdraw(two, "1")
        assert f"epoch '1': {WRONG}" in _error(partner("fetch", address))
        assert withdrawn_reason(here) == WRONG


@pytest.mark.slow
def test_a_fetch_that_is_withdrawn_in_the_middle_leaves_nothing(
    two: Party, partner: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = StoredRelease.read

    def withdrawn_before(release: StoredRelease, start: int, stop: int) -> tuple[bytes, bytes]:
        if Path("release").exists():  # not while it is verified
            _withdraw(two, "2")
            raise OSError("the stream breaks")
        return read(release, start, stop)

    monkeypatch.setattr("random.uniform", lambda low, high: low)  # waits for nothing
    with running(two.config()) as address:
        monkeypatch.setattr(StoredRelease, "read", withdrawn_before)
        assert WRONG in _error(partner("fetch", address))
    assert not [path for path in (two.folder / "release").rglob("*") if path.is_file()]


def test_several_epochs_without_the_withdrawn_one_are_fetched(
    two: Party, partner: Callable[..., Result]
) -> None:
    both = "--set=labels_party.epochs=['1', '2']"
    with running(two.config()) as address:
        assert partner("fetch", address, both).exit_code == 0
        _withdraw(two, "2")
        assert "epoch '2'" in _error(partner("fetch", address, both))
        assert partner("join", "", both).exit_code == 1
        one = "--set=labels_party.epochs=['1']"
        assert partner("fetch", address, one).exit_code == 0
        assert partner("join", "", one).exit_code == 0
