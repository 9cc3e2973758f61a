"""Nobody else gets in: each unknown client is refused, logged and counted, by its reason."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import pytest

from labelveil.common.errors import ConfigError
from labelveil.common.security.pilot_certificates import (
    Authority,
    Credentials,
    Role,
    issue,
    make_authority,
)
from labelveil.label_party.server.handshakes import Handshakes, reason_of
from tests.label_party.conftest import CLIENT, Client, Party, eventually
from tests.label_party.serving import serving

Connect = Callable[..., Client]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
SETTINGS = 4
"""The type, in the fourth byte, of the frame that a server begins an HTTP/2 connection with."""


def tls(
    trusted: Authority,
    identity: Credentials | None,
    folder: Path,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusted.pem.decode())
    context.set_alpn_protocols(["h2"])
    context.maximum_version = newest
    if identity is not None:
        path = folder / "identity.pem"
        path.write_bytes(identity.certificate_pem + identity.key_pem)
        context.load_cert_chain(path)
    return context


def speaks(address: tuple[str, int], context: ssl.SSLContext | None) -> bool:
    """Whether a server answers one connection in HTTP/2."""
    try:
        with socket.create_connection(address, timeout=300) as plain:
            if context is None:
                return answers(plain)
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                assert secured.version() == "TLSv1.3"
                return answers(secured)
    except OSError:
        return False


def answers(connection: socket.socket) -> bool:
    connection.sendall(PREFACE)
    frame = connection.recv(64)
    return len(frame) >= 9 and frame[3] == SETTINGS


def test_unknown_clients_are_refused_logged_and_counted(
    party: Party,
    connect: Connect,
    authority: Authority,
    client_identity: Credentials,
) -> None:
    party.release()
    party.release(data__data_set="installs", privacy__account="labels")
    clients = f'{{ "{CLIENT}" = ["labels"], "second.example" = ["installs"] }}'
    text = (party.folder / "label_party.toml").read_text()
    text = text.replace(f'client_san = "{CLIENT}"', f"clients = {clients}")
    (party.folder / "label_party.toml").write_text(text)
    other, long_ago = make_authority("another"), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    with serving(party) as server:
        where = server.host_and_port

        def secured(identity: Credentials | None, **options: Any) -> ssl.SSLContext:
            return tls(authority, identity, party.folder, **options)

        assert server.metric("label_party_connections_total") == 0
        # the same client, with everything right, is let in
        assert speaks(where, secured(client_identity))
        kinds: list[tuple[str, ssl.SSLContext | None]] = [
            ("plaintext", None),
            ("tls_version", secured(client_identity, newest=ssl.TLSVersion.TLSv1_2)),
            ("no_certificate", secured(None)),
            ("certificate_untrusted", secured(issue(other, Role.CLIENT, [CLIENT]))),
            ("certificate_expired", secured(
                issue(authority, Role.CLIENT, [CLIENT], days=1, valid_from=long_ago)
            )),
            ("certificate_untrusted", secured(issue(authority, Role.SERVER, [CLIENT]))),
        ]  # fmt: skip
        for reason, context in kinds:
            before = server.refusals(reason)
            assert not speaks(where, context), reason
            eventually(lambda r=reason, before=before: server.refusals(r) == before + 1)
        logged = server.events("refused")  # the second of a minute is still to be logged
        assert [line["reason"] for line in logged] == list(dict.fromkeys(r for r, _ in kinds))
        assert {line["level"] for line in logged} == {"warning"}
        assert server.metric("label_party_connections_total") == 1 + len(kinds)

        entitled, second = connect(server.address), connect(server.address, issue(
            authority, Role.CLIENT, ["second.example"]
        ))  # fmt: skip
        unknown = connect(server.address, issue(authority, Role.CLIENT, ["other.example"]))
        assert entitled.describe("labels").manifest
        assert second.describe("installs").manifest
        calls = [
            ("unknown_client", unknown, "labels"),
            ("unknown_client", unknown, "no such data set"),
            ("data_set_not_permitted", second, "labels"),
            ("data_set_not_permitted", entitled, "installs"),
        ]
        for reason, client, data_set in calls:
            before = server.refusals(reason)
            with pytest.raises(grpc.RpcError) as error:
                client.describe(data_set)
            assert (error.value.code(), error.value.details()) == (
                grpc.StatusCode.PERMISSION_DENIED, "not permitted",
            )  # fmt: skip
            assert server.refusals(reason) == before + 1
    seen: Counter[tuple[str, str]] = Counter()
    for line in (*server.events("refused"), *server.events("call")):
        if line.get("count"):
            seen[line["reason"], line.get("client", "")] += line["count"]
    refusals = [(reason, "") for reason, _ in kinds]
    refusals += [("unknown_client", "")] * 2
    refusals += [("data_set_not_permitted", "second.example"), ("data_set_not_permitted", CLIENT)]
    assert seen == Counter(refusals)
    assert "no such data set" not in server.log


def test_a_server_that_would_take_tls12_does_not_start(
    server_identity: Credentials, authority: Authority, tmp_path: Path
) -> None:
    """The check at the start can fail: a server of another library that accepts TLS 1.2.

    As ours, it would end the handshake for want of a certificate, which is not enough.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority.pem.decode())
    (tmp_path / "server.pem").write_bytes(server_identity.certificate_pem + server_identity.key_pem)
    context.load_cert_chain(tmp_path / "server.pem")
    with Accepting(context) as address, pytest.raises(ConfigError, match=r"accepts TLS 1\.2"):
        Handshakes().try_tls12(address, listening=False)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with Accepting(context) as address:
        assert not Handshakes().try_tls12(address, listening=False)


class Accepting:
    """A TLS server of the standard library that takes one connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = Thread(target=self._accept, daemon=True)
        self._thread.start()
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *exception: object) -> None:
        self._thread.join(20)
        self._socket.close()

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        with contextlib.suppress(OSError), connection:
            self._context.wrap_socket(connection, server_side=True).close()


def test_reasons_of_both_ends_of_the_versions_of_grpc_that_are_allowed() -> None:
    oldest = (
        "I0000 00:00:1795260609.057735    7147 ssl_transport_security.cc:1665] Handshake failed"
        " with error SSL_ERROR_SSL: error:{code}:SSL routines:OPENSSL_internal:{name}: {detail}"
    )
    newest = oldest.replace(
        "I0000 00:00:1795260609.057735    7147", "I1121 11:27:11.405447    6718"
    )
    for form in (oldest, newest):
        for name, detail, reason in [
            ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "Invalid context", "no_certificate"),
            ("CERTIFICATE_VERIFY_FAILED", "certificate has expired", "certificate_expired"),
            ("CERTIFICATE_VERIFY_FAILED", "unable to get issuer", "certificate_untrusted"),
            ("NO_SHARED_CIPHER", "Invalid context", "tls_version"),
            ("HTTP_REQUEST", "Invalid context", "plaintext"),
            ("SOMETHING_NEW", "", "handshake"),
        ]:
            line = form.format(code="100000c0", name=name, detail=detail)
            assert reason_of(line) == reason
    assert reason_of("I1121 11:27:11.405447 6718 chttp2.cc:1] transport closed") is None
