"""Nothing secret ever gets out: planted labels, keys and counts are searched for everywhere.

Both parties run through success and through every refusal that can be provoked from outside, and
whatever they print, log, answer over HTTP or send as an error is searched for the planted values in
the forms in which a careless line would show them.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from labelveil.common.command_line import run as run_app
from labelveil.common.release.signature import read_signing_key
from labelveil.common.security.new_keys import write_signing_key
from labelveil.common.security.pilot_certificates import (
    Authority,
    Credentials,
    Role,
    issue,
    make_authority,
)
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.feature_party.commands.cli import app as feature_app
from tests.common.security.keys import write_key
from tests.label_party.conftest import CLIENT, Client, Party, eventually
from tests.label_party.serving import Served, get, serving

Connect = Callable[..., Client]

LABELS = (3.718281, 7.1234567)
COUNT = 641
"""How many events have the first label: a cell of the raw histogram."""
EVENTS = 1800
PASSWORD = "planted-Passw0rd-of-the-database"
EVENT_KEY = "planted-event"


def number_forms(value: float) -> set[str]:
    """Decimals as Python, %g, %f and %e write them, and the float's bytes."""
    forms = {repr(value), f"{value:g}", f"{value:.4f}", f"{value:.5e}", value.hex()}
    for order in "<>":
        forms |= byte_forms(struct.pack(f"{order}d", value))
    return forms


def byte_forms(data: bytes) -> set[str]:
    """Hexadecimal, base64 at each of its three offsets, decimal, and Python's own notation."""
    forms = {data.hex(), data.hex().upper(), data.hex(":"), repr(data)[2:-1]}
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        for offset in range(3):
            # what does not depend on the bytes around
            forms.add(alphabet(bytes(offset) + data).decode().rstrip("=")[-(-offset * 4 // 3) : -1])
    if len(data) >= 16:
        forms |= {str(int.from_bytes(data, order)) for order in ("big", "little")}
    return forms


@dataclass
class Planted:
    """What must not be found, under a name for each, and everything that came out."""

    forms: dict[str, set[str]]
    output: list[tuple[str, str]] = field(default_factory=list)

    def hear(self, where: str, text: object) -> None:
        self.output.append((where, str(text)))

    def found(self) -> list[str]:
        return [
            f"{name} as {form!r} in {where}: {text[:2000]}"
            for where, text in self.output
            for name, forms in self.forms.items()
            for form in forms
            if occurs(form, text)
        ]


def occurs(form: str, text: str) -> bool:
    """Whether a form stands in a text; a short number only as one: in no time stamp, or digest."""
    if form in text and form.replace(",", "").replace(".", "").isdigit() and len(form) < 8:
        return re.search(rf"(?<![\da-f.,]){re.escape(form)}(?![\da-f,])", text) is not None
    return form in text


def private_number(pem: bytes) -> bytes:
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.private_numbers().private_value.to_bytes(32, "big")


@pytest.fixture
def planted(party: Party, server_identity: Credentials, client_identity: Credentials) -> Planted:
    """The party's folder with planted data, and what to look for."""
    keys = [f"{EVENT_KEY}-{i}" for i in range(EVENTS)]
    labels = [LABELS[0] if i < COUNT else LABELS[1] for i in range(EVENTS)]
    party.write_labels({"key": keys, "label": labels})
    party.write_population({"key": keys})
    write_signing_key(party.folder / "signing.key")
    (party.folder / "client.pem").write_bytes(client_identity.certificate_pem)
    write_key(party.folder / "client.key", client_identity.key_pem)
    secret = bytes.fromhex((party.folder / "join.key").read_text())
    seed = read_signing_key(party.folder / "signing.key").private_bytes_raw()
    forms = {f"label {value}": number_forms(value) for value in LABELS}
    forms |= {
        "count": {str(COUNT), f"{COUNT:,}", str(EVENTS - COUNT), f"{EVENTS - COUNT:,}"},
        "event key": {EVENT_KEY},
        "join secret": byte_forms(secret),
        "signing key": byte_forms(seed),
        "server's TLS key": byte_forms(private_number(server_identity.key_pem)),
        "client's TLS key": byte_forms(private_number(client_identity.key_pem)),
        "password": {PASSWORD} | byte_forms(PASSWORD.encode()),
        "private key file": {"PRIVATE KEY"},
    }
    for name in ("server.key", "client.key", "signing.key"):
        body = (party.folder / name).read_text().splitlines()[1]
        forms["private key file"] |= {body, body[8:32]}
    return Planted(forms)


def test_the_search_finds_what_is_planted(planted: Planted) -> None:
    """A search that finds nothing anywhere would prove nothing."""
    for name, forms in planted.forms.items():
        for form in forms:
            assert len(form) >= 3, name
            one = Planted(planted.forms, [("a log", f"x={form};")])
            assert any(line.startswith(name) for line in one.found()), (name, form)
    around = [base64.b64encode(bytes(i) + PASSWORD.encode() + bytes(7)).decode() for i in range(3)]
    for text in around:
        assert Planted(planted.forms, [("a log", text)]).found()
    for text in (
        "rows=1800 label=3.5",
        f"1.7952{COUNT}743e+09",
        f"12:00:00.{COUNT}Z",
        "12:00:13.718312",
        f"sha256=9f{COUNT}c0",
    ):
        assert not Planted(planted.forms, [("a log", text)]).found()


def test_nothing_that_is_secret_gets_out(
    party: Party,
    planted: Planted,
    connect: Connect,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    for traceback in ("", "1"):
        monkeypatch.setenv("LABELVEIL_TRACEBACK", traceback)
        refused_releases(party, planted)
    monkeypatch.setenv("LABELVEIL_TRACEBACK", "")
    released = party.release(keys__signing_key="signing.key", randomizer__name="auto")
    assert released.code == 0
    planted.hear("release", released)
    planted.hear("release again", party.release(epoch="2", randomizer__loss="absolute"))
    planted.hear("budget", party.run("budget", "--json"))
    planted.hear("budget", party.run("budget"))
    with serving(party, server__log_level="debug") as server:
        honest = Connected(server, connect(server.address))
        described = honest.client.describe()
        honest.client.fetch(described)
        refused_calls(honest, planted, connect, authority)
        features(party, planted, server.address, monkeypatch, capfd)
        damage(party, honest, planted)
        for path in ("/metrics", "/readyz", "/livez", "/secret"):
            planted.hear(path, get(server.observed_at, path))
        planted.hear("log", server.log)
    planted.hear("log at the end", (party.folder / "serve.log").read_text())
    assert len(planted.output) > 40
    found = planted.found()
    assert not found, "\n".join(line[:400] for line in found)


def refused_releases(party: Party, planted: Planted) -> None:
    """Every mistake around a release that touches labels, keys or secrets."""
    folder = party.folder
    labels = (folder / "labels.csv").read_text()
    header, first, second, *_ = labels.splitlines()
    spoilt = {
        "no header": "\n".join([first, second]),
        "no number": f"{header}\n{first}x\n",
        "ragged": f"{header}\n{first},{LABELS[0]},{LABELS[1]}\n{second}\n",
        "quoted": f'{header}\n"{first}\n{second}\n',
        "infinite": f"{header}\n{first}\n{EVENT_KEY}-2,inf\n",
        "repeated": f"{header}\n{first}\n{first}\n",
        "no key": f"{header}\n,{LABELS[0]}\n",
        "not text": "PAR1" + first,
    }
    for name, text in spoilt.items():
        (folder / "spoilt.csv").write_text(text)
        # rows are missing, not refused; a dry run says all that there is to say of them
        arguments = party.arguments(data__labels="spoilt.csv")
        _, output = _run(party, "release", "--dry-run", *arguments)
        planted.hear(f"release with {name}", output)
    (folder / "spoilt.csv").write_text("\n".join([first, second]))
    _refused(party, planted, "population", data__population="spoilt.csv")
    (folder / "spoilt.csv").write_text(f"key\n{EVENT_KEY}-1\n{EVENT_KEY}-1\n")
    _refused(party, planted, "population", data__population="spoilt.csv")
    secret = (folder / "join.key").read_text().strip()
    for text in (secret[:-2], secret + "00", secret[:-2] + "zz", f"{secret} {secret}"):
        write_key(folder / "spoilt.key", text)
        _refused(party, planted, "join secret", keys__secret_file="spoilt.key")
    write_key(folder / "spoilt.key", (folder / "signing.key").read_bytes()[:-40])
    _refused(party, planted, "signing key", keys__signing_key="spoilt.key")
    _refused(party, planted, "signing key", keys__signing_key="server.key")
    _refused(party, planted, "domain", domain__lower=20)
    _refused(party, planted, "budget", privacy__epsilon=4)
    for name, setting in {
        "mixed up": {"server__certificate": "server.key"},
        "the client's": {"server__private_key": "client.key"},
        "half a key": {"server__private_key": "spoilt.key"},
    }.items():
        ended = _run(party, "serve", *party.arguments(**setting))
        assert ended[0] != 0, name
        planted.hear(f"serve {name}", ended)


def _run(party: Party, *arguments: str) -> tuple[object, str]:
    """Run a command that may end with a traceback, which is then part of its output."""
    try:
        ended = party.run(*arguments)
    except BaseException as error:
        import traceback

        return type(error).__name__, "".join(traceback.format_exception(error))
    return ended.code, ended.out + ended.err


def _refused(party: Party, planted: Planted, name: str, **settings: Any) -> None:
    code, output = _run(party, "release", *party.arguments(**settings))
    assert code != 0, (name, output)
    planted.hear(f"release with {name}", output)


@dataclass
class Connected:
    """A server and its honest client."""

    server: Served
    client: Client


def refused_calls(
    honest: Connected, planted: Planted, connect: Connect, authority: Authority
) -> None:
    """Requests that are refused, by unknown clients and by the client."""
    other = make_authority("another")
    for identity in (issue(other, Role.CLIENT, [CLIENT]), None):
        with pytest.raises(grpc.RpcError) as refused:
            connect(honest.server.address, identity).describe()
        planted.hear("a refused handshake", refused.value.details())
    clients = [
        connect(honest.server.address, issue(authority, Role.CLIENT, ["other.example"])),
        honest.client,
    ]
    digest = honest.client.describe().manifest_sha256
    requests: list[dict[str, Any]] = [
        {},
        {"data_set": "labels"},
        {"data_set": "labels", "epoch": "1", "manifest_sha256": bytes(32)},
        {"data_set": "labels", "epoch": "1", "manifest_sha256": digest, "start_row": 1 << 60},
        {"data_set": "x" * 5000, "epoch": "1"},
    ]
    for client in clients:
        for request in requests:
            try:
                list(client.stub.FetchRelease(wire.FetchReleaseRequest(**request), timeout=300))
            except grpc.RpcError as error:
                planted.hear("a refused fetch", f"{error.code()} {error.details()}")
        population = [wire.SubmitPopulationRequest(keys=b"x")]
        with pytest.raises(grpc.RpcError) as refused:
            client.stub.SubmitPopulation(iter(population), timeout=300)
        planted.hear("a refused submission", refused.value.details())


def features(
    party: Party,
    planted: Planted,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The features party: one fetch that works, and the refusals of others."""
    folder = party.folder
    rows = "\n".join(f"{EVENT_KEY}-{i},{i}" for i in range(5))
    (folder / "features.csv").write_text(f"event,x\n{rows}\n{EVENT_KEY}-1,1\n")
    files = {"ca": "ca.pem", "certificate": "client.pem", "private_key": "client.key"}
    right = {
        **{f"labels_party.{key}": str(folder / name) for key, name in files.items()},
        "labels_party.address": address,
        "labels_party.data_set": "labels",
        "labels_party.signing_key": str(folder / "signing.key.pub"),
        "data.features": str(folder / "features.csv"),
        "data.key": "event",
        "keys.secret_file": str(folder / "join.key"),
    }
    write_signing_key(folder / "other.key")
    attempts: list[tuple[str, bool, dict[str, str]]] = [
        ("fetch", True, {}),
        ("fetch", False, {"labels_party.data_set": "other"}),
        ("fetch", False, {"labels_party.signing_key": str(folder / "other.key.pub")}),
        ("fetch", False, {"labels_party.signing_key": str(folder / "signing.key")}),
        ("fetch", False, {"labels_party.private_key": str(folder / "server.key")}),
        ("fetch", False, {"labels_party.certificate": str(folder / "client.key")}),
        ("train", False, {"keys.secret_file": str(folder / "spoilt.key")}),
        ("train", False, {"data.features": str(folder / "spoilt.csv")}),
        ("submit", False, {"labels_party.epoch": "1"}),
    ]
    for command, works, changes in attempts:
        settings = [f"--set={key}={value}" for key, value in (right | changes).items()]
        monkeypatch.setattr("sys.argv", ["feature-party", command, *settings])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_app(feature_app)
        output = capfd.readouterr()
        assert (ended.value.code == 0) == works, (command, changes, output)
        planted.hear(f"feature-party {command} {changes}", output)


def damage(party: Party, honest: Connected, planted: Planted) -> None:
    """A store that breaks while it is served: the client learns nothing, the log no secret."""
    (party.store / "ledger.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(grpc.RpcError) as error:
        honest.client.describe()
    assert error.value.details() == "the ledger cannot be read now; try again later"
    planted.hear("a damaged ledger", error.value.details())
    write_key(party.folder / "server.key", (party.folder / "client.key").read_bytes())
    assert not honest.server.events("certificates not reloaded")
    get(
        honest.server.observed_at, "/readyz"
    )  # connects; the server looks at its files as it answers
    eventually(lambda: bool(honest.server.events("certificates not reloaded")))
