"""TLS 1.3 only is a program's choice: the library leaves its user's process and gRPC alone."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from labelveil.children import child_environment
from labelveil.common.security.pilot_certificates import write_certificates
from tests.effort import one_in

VARIABLE, PSK = "GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305"

IMPORTING = """
import os
import polars, sklearn  # which set variables of their own
before = dict(os.environ)
import labelveil as lv
for name in lv.__all__:
    getattr(lv, name)
import labelveil.feature_party.client.release_client, labelveil.label_party.server.listener
assert os.environ == before, set(os.environ.items()) ^ set(before.items())
"""

USING = """
import labelveil as lv, labelveil.feature_party.client.release_client
lv.system_entropy()
"""

CONNECTING = """
import sys, grpc
credentials = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
with grpc.secure_channel(sys.argv[1], credentials) as channel:
    try:
        channel.unary_unary("/any/call")(b"", timeout=20)
    except grpc.RpcError as error:
        print(error.details())
"""

OPENING = """
from labelveil.common.errors import ConfigError
from labelveil.feature_party.client.channel import open_channel
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.label_party.config.serving import ServerSection
from labelveil.label_party.server.credentials import ServerCredentials
from labelveil.label_party.server.handshakes import Handshakes
from labelveil.audit.canaries.endpoint import connected
from labelveil.audit.settings import Connection
for make in (
    lambda: open_channel(LabelsPartySection(address="localhost:1", data_set="sales")),
    lambda: ServerCredentials(ServerSection(), Handshakes()),
    lambda: connected(Connection(ca="nothing.pem")).__enter__(),
):
    try:
        make()
    except ConfigError as error:
        print(error)
"""


LATE = "import grpc\nfrom labelveil.common.security.tls import only_tls13\nonly_tls13()\n"


def python(code: str, *arguments: str, **environment: str) -> str:
    """Run code in a process that has not been told anything about gRPC."""
    known = {**child_environment(), **environment}
    if VARIABLE not in environment:
        known.pop(VARIABLE, None)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=known, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def knows_tls12_alone(folder: Path) -> Iterator[tuple[str, Path, list[str | None]]]:
    """Somebody else's server: its address, its authority, and the versions that it agreed on."""
    files = write_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.label_party_certificate, files.label_party_key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    shakes: list[str | None] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                try:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        shakes.append(secured.version())
                except OSError:
                    shakes.append(None)

    thread = Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"localhost:{listening.getsockname()[1]}", files.authority, shakes
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", one_in(2, [IMPORTING + CONNECTING, "import grpc\n" + IMPORTING + CONNECTING])
)
def test_the_users_own_client_of_an_old_server_still_connects(first: str, tmp_path: Path) -> None:
    """Importing every name changes no variable, in both orders of imports.

    And the twin, a process that asked for TLS 1.3, does not connect.
    """
    with knows_tls12_alone(tmp_path) as (address, authority, shakes):
        python(first, address, str(authority))
        assert shakes[0] == "TLSv1.2"
        shakes.clear()
        asked = "from labelveil.common.security.tls import only_tls13\nonly_tls13()\n" + CONNECTING
        assert "handshake" in python(asked, address, str(authority)).lower()
        assert set(shakes) == {None}


@pytest.mark.parametrize("early", one_in(2, ["", "import grpc\n"]))
def test_no_channel_and_no_server_is_made_where_tls12_would_be_taken(early: str) -> None:
    """Neither where nobody asked for TLS 1.3, nor where that came after gRPC."""
    said = python(early + OPENING + LATE + OPENING).splitlines()
    assert len(said) == 6
    assert all(VARIABLE in line for line in said), said
    assert all("TLS 1.2" in line for line in said[:3]), said


@pytest.mark.slow
def test_who_asks_in_time_is_told_nothing() -> None:
    in_time = LATE.removeprefix("import grpc\n")
    for said in (python(in_time + OPENING), python(OPENING, **{VARIABLE: PSK})):
        assert len(said.splitlines()) == 3  # certificates are missing, and nothing else
        assert VARIABLE not in said
