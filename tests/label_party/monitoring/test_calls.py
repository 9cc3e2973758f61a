"""One line a call, however it ended: who called, with which certificate, for what, and how it went;
and no client makes the log or the metrics grow beyond their bounds."""

from __future__ import annotations

import datetime
import json
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from labelveil.common.security.certificate_checks import certificate_holder, certificate_names
from labelveil.common.security.pilot_certificates import Authority, Credentials, Role, issue
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.monitoring.calls import Call, Telemetry, Traces
from labelveil.label_party.monitoring.logs import JsonLines, TextLines
from labelveil.label_party.server.run import Running, open_server
from tests.label_party.conftest import CLIENT, Client, Party, eventually
from tests.label_party.serving import metrics

Connect = Callable[..., Client]

ROWS = 60_000


class Lines(logging.Handler):
    """The lines of calls, as both forms of the log write them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "call":
            written = JsonLines().format(record)
            self.texts += [written, TextLines().format(record)]
            self.found.append(json.loads(written))


@contextmanager
def watched(party: Party, **settings: Any) -> Iterator[tuple[Running, Lines]]:
    """A server in this process, and what its log says of calls."""
    lines, root = Lines(), logging.getLogger("labelveil.label_party")
    root.addHandler(lines)
    level, _ = root.level, root.setLevel(logging.INFO)
    try:
        config = party.config(observability__listen="127.0.0.1:0", **settings)
        with open_server(config) as server:
            yield server, lines
    finally:
        root.removeHandler(lines)
        root.setLevel(level)


def serial_of(identity: Credentials) -> str:
    return f"{x509.load_pem_x509_certificate(identity.certificate_pem).serial_number:x}"


def test_refusals_of_a_client_have_one_line_a_minute_whatever_its_certificate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = Telemetry(Traces())
    callers = [{"client": "a"}, {"client": "a"}, {"client": "b"}, {}, {}]
    for number, caller in enumerate(callers):
        call = Call(telemetry, "Describe", "ipv4:127.0.0.1:1")
        call.facts |= {"serial": f"{number % 4:x}", **caller}
        call.refuse("NOT_FOUND", "no_release", "")
    found = [(vars(line).get("client", ""), vars(line)["serial"]) for line in caplog.records]
    assert found == [("a", "0"), ("b", "2"), ("", "3"), ("", "0")]


def test_each_call_has_one_line_however_it_ended(
    party: Party, connect: Connect, authority: Authority, client_identity: Credentials
) -> None:
    party.write_population({"key": [f"event-{i}" for i in range(ROWS)]})
    assert party.release().code == 0
    narrow = {"grpc.http2.bdp_probe": 0}  # windows that the client's library does not widen
    thief = issue(authority, Role.CLIENT, [CLIENT])
    with watched(party, server__stall_seconds=1.0) as (server, lines):
        client = connect(server.address, **narrow)
        described = client.describe()
        client.fetch(described, start_row=ROWS - 50)
        stolen = connect(server.address, thief, **narrow)
        stranger = connect(server.address, issue(authority, Role.CLIENT, ["x.example"]))
        fetch = wire.FetchReleaseRequest(
            data_set="labels", epoch="1", max_chunk_bytes=2000,
            manifest_sha256=described.manifest_sha256,
        )  # fmt: skip
        cancelled = stolen.stub.FetchRelease(fetch, timeout=300)
        next(cancelled)
        cancelled.cancel()
        eventually(lambda: len(lines.found) == 3)
        stalled = client.stub.FetchRelease(fetch, timeout=300)
        next(stalled)
        eventually(lambda: len(lines.found) == 4)  # nobody reads on, and it is said all the same
        for call in (
            lambda: client.describe(epoch="9"),
            lambda: client.describe("other"),
            stranger.describe,
            lambda: client.channel.unary_unary("/labelveil.v1.Service/Newer")(b"", timeout=300),
            lambda: list(stalled),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call()
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    said = [
        (line["method"], line["status"], line["reason"], line.get("client"), line["level"])
        for line in lines.found
    ]
    assert said == [
        ("DescribeRelease", "OK", "", CLIENT, "info"),
        ("FetchRelease", "OK", "", CLIENT, "info"),
        ("FetchRelease", "CANCELLED", "", CLIENT, "warning"),
        ("FetchRelease", "DEADLINE_EXCEEDED", "stalled", CLIENT, "warning"),
        ("DescribeRelease", "NOT_FOUND", "no_release", CLIENT, "warning"),
        ("DescribeRelease", "PERMISSION_DENIED", "data_set_not_permitted", CLIENT, "warning"),
        ("DescribeRelease", "PERMISSION_DENIED", "unknown_client", None, "warning"),
        ("unknown", "UNIMPLEMENTED", "no_such_method", CLIENT, "warning"),
    ]
    rows = [line["rows"] for line in lines.found]
    assert rows[:2] == [0, 50]
    assert all(0 < part < ROWS for part in rows[2:4])
    assert rows[4:] == [0] * 4
    assert [line["bytes"] for line in lines.found] == [17 * part for part in rows]
    # the thief has the partner's name, and not its certificate
    own, other = serial_of(client_identity), serial_of(thief)
    assert [line["serial"] for line in lines.found[:4]] == [own, own, other, own]
    assert lines.found[1]["from_row"] == ROWS - 50
    assert lines.found[7]["asked"] == "/labelveil.v1.Service/Newer"
    for line in lines.found:
        assert line["peer"].startswith(("ipv4:127.0.0.1:", "ipv6:[::1]:"))
        assert line["subject"] == ("CN=x.example" if "client" not in line else f"CN={CLIENT}")
        assert line["seconds"] >= 0


def test_a_submission_that_is_given_up_says_what_had_come(party: Party, connect: Connect) -> None:
    text = (party.folder / "label_party.toml").read_text()
    text = text.replace('population = "population.csv"', 'population = "submitted"')
    (party.folder / "label_party.toml").write_text(text)
    with watched(party) as (server, lines):
        client = connect(server.address)
        with pytest.raises(grpc.RpcError):
            client.submit(b"\1" * 32 + b"\2" * 16, b"secret", rows=10)
    (line,) = lines.found
    assert (line["method"], line["status"]) == ("SubmitPopulation", "INVALID_ARGUMENT")
    assert (line["rows"], line["bytes"], line["data_set"]) == (3, 48, "labels")


HOSTILE = 'partner.example\r\n{"event": "serving"}\x1b[2J\x9b\u202e", client="x"} 1\n# TYPE'


def hostile(authority: Authority, subject: str, names: list[x509.GeneralName]) -> Credentials:
    """A certificate of the trusted authority with any subject, however long."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    parts = [subject[i : i + 60] for i in range(0, len(subject), 60)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(
            x509.Name([x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, p) for p in parts])
        )
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Credentials(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def test_no_certificate_forges_a_line_or_a_metric(
    party: Party, connect: Connect, authority: Authority
) -> None:
    assert party.release().code == 0
    own = x509.DNSName(CLIENT)
    with watched(party) as (server, lines):
        assert server.observed_at is not None
        connect(server.address).describe()
        before = set(metrics(server.observed_at))
        strange = [
            (HOSTILE, [own]),
            ("a" * (1 << 16), [own]),
            (HOSTILE, [x509.DNSName("other.example")]),
            (HOSTILE, [x509.UniformResourceIdentifier('urn:x"} 1')]),
            *((f"unit {number}", [x509.DNSName(f"{number}.example")]) for number in range(20)),
        ]
        for subject, names in strange:
            with suppress(grpc.RpcError):
                connect(server.address, hostile(authority, subject, names)).describe()
        eventually(lambda: len(lines.found) == 1 + len(strange))
        after = set(metrics(server.observed_at))
    # one series for the calls that were refused, whoever they came from
    refused = 'label_party_request{}s_total{{method="DescribeRelease",status="PERMISSION_DENIED"}}'
    assert {name for name in after - before if "_created" not in name} == {refused.format("")}
    for text in lines.texts:
        assert text.isprintable()
        assert len(text) < 1000
    assert [line["status"] for line in lines.found[1:4]] == ["OK", "OK", "PERMISSION_DENIED"]


@pytest.mark.parametrize("text", ["x400", "version", "letters"])
def test_a_certificate_that_cannot_be_read_is_nobodys(authority: Authority, text: str) -> None:
    """An authority may have signed what our library refuses to read: a name of an old kind, a
    version of its own, letters that are none."""
    made = hostile(authority, "abc", [x509.DNSName("partner.example")])
    der = x509.load_pem_x509_certificate(made.certificate_pem).public_bytes(
        serialization.Encoding.DER
    )
    old, new = {
        "x400": (b"\x82\x0fpartner.example", b"\xa3\x0fpartner.example"),
        "version": (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x2a"),
        "letters": (b"\x0c\x03abc", b"\x0c\x03\xff\xfe\xfd"),
    }[text]
    assert der.count(old) == 1
    pem = ssl.DER_cert_to_PEM_cert(der.replace(old, new)).encode()
    holder = certificate_holder(pem)
    expected = {("dns", "partner.example")} if text == "letters" else set()
    assert certificate_names(pem) == expected
    assert holder.subject == ("OU=abc" if text == "x400" else "")
    assert bool(holder.serial) == (text != "version")
