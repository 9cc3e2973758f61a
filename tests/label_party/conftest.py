"""A labels party's folder, certificates, and the command line run inside this process."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import polars as pl
import pytest

from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.release.event_keys import secret_check
from labelveil.common.security.new_keys import write_secret
from labelveil.common.security.pilot_certificates import (
    Authority,
    Credentials,
    Role,
    issue,
    make_authority,
)
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.common.wire import label_release_pb2_grpc as stubs
from labelveil.label_party.commands import cli
from labelveil.label_party.config import sections as config
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.server.run import running
from tests.commands import Result, RunCommand
from tests.common.security.keys import write_key
from tests.faults import Experiments, experiments

BODIES = "tests.label_party.fault_bodies"
CLIENT = "partner.example"
EVENTS = 200


@dataclass(frozen=True)
class Party:
    """A labels party's folder with data, join secret, certificates and settings."""

    folder: Path
    run: Callable[..., Result]

    def arguments(self, **settings: Any) -> list[str]:
        return [f"--set={key.replace('__', '.')}={value}" for key, value in settings.items()]

    def release(self, **settings: Any) -> Result:
        return self.run("release", *self.arguments(**settings))

    def config(self, **settings: Any) -> LabelPartyConfig:
        pairs = [argument.removeprefix("--set=") for argument in self.arguments(**settings)]
        return config.load(self.folder / "label_party.toml", settings=pairs)

    def write_labels(self, columns: Mapping[str, Any]) -> None:
        pl.DataFrame(columns, strict=False).write_csv(self.folder / "labels.csv")

    def write_population(self, columns: Mapping[str, Any]) -> None:
        pl.DataFrame(columns, strict=False).write_csv(self.folder / "population.csv")

    @property
    def store(self) -> Path:
        return self.folder / "label_store"

    def nothing_left(self) -> bool:
        """Whether nothing was spent and no release, whole or half, lies in the store."""
        accounts = self.run("budget", "--json")
        assert accounts.code == 0, accounts
        spent = [charge for entry in json.loads(accounts.out) for charge in entry["charges"]]
        return not spent and not list(self.store.glob("releases/*/*"))


@pytest.fixture
def run_cli(run_command: RunCommand) -> Callable[..., Result]:
    """Run ``label-party`` with arguments."""
    return partial(run_command, cli.main)


@pytest.fixture(scope="session")
def authority() -> Authority:
    return make_authority()


@pytest.fixture(scope="session")
def server_identity(authority: Authority) -> Credentials:
    return issue(authority, Role.SERVER, ["localhost", "127.0.0.1"])


@pytest.fixture(scope="session")
def client_identity(authority: Authority) -> Credentials:
    return issue(authority, Role.CLIENT, [CLIENT])


@pytest.fixture
def party(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_cli: Callable[..., Result],
    authority: Authority,
    server_identity: Credentials,
) -> Party:
    """200 events, every second one labelled with a number from 0 to 9; ε = 1 of a total of 3.

    On a grid of four points a release takes a tenth of what it takes on one of our choice.
    """
    monkeypatch.chdir(tmp_path)
    made = Party(tmp_path, run_cli)
    keys = [f"event-{i}" for i in range(EVENTS)]
    made.write_population({"key": keys})
    made.write_labels({"key": keys[::2], "label": [float(i % 10) for i in range(0, EVENTS, 2)]})
    write_secret(tmp_path / "join.key")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "server.pem").write_bytes(server_identity.certificate_pem)
    write_key(tmp_path / "server.key", server_identity.key_pem)
    (tmp_path / "label_party.toml").write_text(
        f"""
        [data]
        labels = "labels.csv"
        population = "population.csv"
        [domain]
        lower = 0
        upper = 10
        grid = "log"
        points = 4
        scale = 10
        [privacy]
        epsilon = 1.0
        total_epsilon = 3.0
        [randomizer]
        name = "rr-on-bins"
        [keys]
        secret_file = "join.key"
        [server]
        listen = "localhost:0"
        certificate = "server.pem"
        private_key = "server.key"
        client_ca = "ca.pem"
        client_san = "{CLIENT}"
        grace_seconds = 1.0
        """
    )
    return made


@pytest.fixture(scope="session")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiments]:
    """A process that is killed, or whose disk fails, at any step of :data:`BODIES`."""
    with experiments(tmp_path_factory.mktemp("faults"), BODIES) as found:
        yield found


@pytest.fixture
def keys_of_noise(monkeypatch: pytest.MonkeyPatch) -> list[Entropy]:
    """The entropy of the system that modules of the labels party ask for, and got."""
    made: list[Entropy] = []

    def recorded() -> Entropy:
        made.append(system_entropy())
        return made[-1]

    for name, module in list(sys.modules.items()):
        ours = name.startswith("labelveil.label_party.")
        if ours and getattr(module, "system_entropy", None) is system_entropy:
            monkeypatch.setattr(module, "system_entropy", recorded)
    return made


@pytest.fixture(autouse=True)
def own_log_level() -> Iterator[None]:
    """A command that a test runs sets the level of the whole process's log."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@dataclass(frozen=True)
class Client:
    """A connection of one client."""

    stub: stubs.LabelReleaseServiceStub
    channel: grpc.Channel

    def describe(self, data_set: str = "labels", epoch: str = "") -> wire.DescribeReleaseResponse:
        request = wire.DescribeReleaseRequest(data_set=data_set, epoch=epoch)
        return self.stub.DescribeRelease(request, timeout=300)

    def fetch(
        self, described: wire.DescribeReleaseResponse, epoch: str = "1", **request: Any
    ) -> tuple[bytes, bytes]:
        """Return all keys and all codes."""
        messages = list(
            self.stub.FetchRelease(
                wire.FetchReleaseRequest(
                    **{
                        "data_set": "labels",
                        "epoch": epoch,
                        "manifest_sha256": described.manifest_sha256,
                        **request,
                    }
                ),
                timeout=300,
            )
        )
        return b"".join(m.keys for m in messages), b"".join(m.codes for m in messages)

    def submit(
        self,
        keys: bytes,
        secret: bytes,
        question: bytes = b"",
        *,
        chunk: int = 640,
        timeout: float = 300,
        **header: Any,
    ) -> wire.SubmitPopulationResponse:
        """Submit a population, and what is asked of it, with a header that fits by default."""
        facts = {
            "data_set": "labels",
            "epoch": "1",
            "rows": len(keys) // 16,
            "population_sha256": hashlib.sha256(keys).digest(),
            "secret_check": secret_check(secret),
            "question_sha256": hashlib.sha256(question).digest() if question else b"",
        }
        parts = [keys[i : i + chunk] for i in range(0, len(keys), chunk)]
        most = max(chunk, len(question) // 16)  # 1,600 messages take a third of a second
        asked = [question[i : i + most] for i in range(0, len(question), most)]
        messages = [
            wire.SubmitPopulationRequest(header=wire.PopulationHeader(**{**facts, **header})),
            *(wire.SubmitPopulationRequest(keys=part) for part in parts),
            *(wire.SubmitPopulationRequest(question=part) for part in asked),
        ]
        return self.stub.SubmitPopulation(iter(messages), timeout=timeout)


@pytest.fixture
def connect(authority: Authority, client_identity: Credentials) -> Iterator[Callable[..., Client]]:
    """Open a connection to an address, by default as the entitled client."""
    channels = []

    def connect(
        address: str,
        identity: Credentials | None = client_identity,
        trusted: Authority = authority,
        **options: int,
    ) -> Client:
        credentials = grpc.ssl_channel_credentials(
            trusted.pem,
            identity.key_pem if identity else None,
            identity.certificate_pem if identity else None,
        )
        # a pool of its own: channels of one process otherwise share connections
        own = {"grpc.use_local_subchannel_pool": 1, **options}
        channel = grpc.secure_channel(address, credentials, list(own.items()))
        channels.append(channel)
        return Client(stubs.LabelReleaseServiceStub(channel), channel)

    yield connect
    for channel in channels:
        channel.close()


def eventually(condition: Callable[[], bool], seconds: float = 500.0, every: float = 0.02) -> None:
    """Wait for a condition, which is looked at so often; fail if it does not come true."""
    pause, polls = threading.Event(), int(seconds / every)
    for _ in range(polls):
        if condition():
            return
        pause.wait(every)
    raise AssertionError("waited in vain")


@pytest.fixture
def served(party: Party) -> Iterator[str]:
    """Address of a server of this process with one release."""
    assert party.release().code == 0
    with running(party.config()) as address:
        yield address
