"""Who a client talks to, and as whom: reported at once, in one line, and never tried again."""

from __future__ import annotations

import datetime
import os
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from labelveil.common.errors import ConfigError, ConnectionFailed, ReleaseError
from labelveil.common.release.signature import read_signing_key
from labelveil.common.security.new_keys import write_signing_key
from labelveil.common.security.pilot_certificates import (
    CertificateFiles,
    Role,
    issue,
    make_authority,
)
from labelveil.feature_party.client import channel
from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy
from tests.common.security.keys import write_key
from tests.common.security.odd_keys import UNUSABLE, issue_for
from tests.feature_party.servers import (
    QUICK,
    Behaviour,
    certificates,
    client_settings,
    fetch_error,
    serving,
)
from tests.feature_party.worlds import World

A_DAY = datetime.timedelta(days=1)


def test_no_second_try_without_rights(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    error = fetch_error(world, files, tmp_path, Behaviour(refuse=grpc.StatusCode.PERMISSION_DENIED))
    assert isinstance(error, ConnectionFailed)
    assert "refuses this client" in str(error)
    assert f"admit 'feature-party' in {files.feature_party_certificate}" in str(error)


def test_an_untrusted_server(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    other = certificates(tmp_path / "other")
    error = fetch_error(world, files, tmp_path / "release", ca=other.authority)
    assert isinstance(error, ConnectionFailed)
    assert "not signed by the configured authority" in str(error)


def test_a_server_with_another_name(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    error = fetch_error(world, files, tmp_path, server_name="somebody.example")
    assert isinstance(error, ConnectionFailed)
    assert "is for another name" in str(error)


def test_an_untrusted_client(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    other = certificates(tmp_path / "other")
    error = fetch_error(
        world,
        files,
        tmp_path / "release",
        certificate=other.feature_party_certificate,
        private_key=other.feature_party_key,
    )
    assert isinstance(error, ConnectionFailed)


def test_a_server_of_tls12_alone_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    """It is accepted when it also speaks TLS 1.3, so it is the version that decides."""
    for newest, shaken in ((ssl.TLSVersion.TLSv1_2, None), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.authority)
        context.load_cert_chain(files.label_party_certificate, files.label_party_key)
        context.maximum_version = newest
        context.set_alpn_protocols(["h2"])
        shakes: list[str | None] = []
        with _accepting(context, shakes) as address:
            settings = client_settings(address, files)
            with pytest.raises(ConnectionFailed) as caught:
                ReleaseClient(settings, RetryPolicy(attempts=1)).fetch(tmp_path)
        assert "\n" not in str(caught.value)
        assert shakes[0] == shaken
        assert ("TLS 1.3" in str(caught.value)) == (shaken is None), str(caught.value)


@contextmanager
def _accepting(context: ssl.SSLContext, shakes: list[str | None]) -> Iterator[str]:
    """Shake hands, note the version that was agreed on, and hang up, until the block is left."""
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(20)
                try:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        shakes.append(secured.version())
                except OSError:
                    shakes.append(None)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)


def test_a_pinned_key_admits_only_what_it_signed(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    public = write_signing_key(tmp_path / "signing.key")
    manifest = world.release.manifest_bytes
    signed = read_signing_key(tmp_path / "signing.key").sign(manifest)
    write_signing_key(tmp_path / "other.key")
    other = read_signing_key(tmp_path / "other.key")
    for signature, said in [
        (b"", "sent no signature"),
        (signed[:-1] + bytes([signed[-1] ^ 1]), "not signed by"),
        (signed[:-1], "not signed by"),
        (other.sign(manifest), "not signed by"),
        (read_signing_key(tmp_path / "signing.key").sign(manifest + b" "), "not signed by"),
    ]:
        behaviour = Behaviour(signature=signature)
        error = fetch_error(world, files, tmp_path / "out", behaviour, signing_key=public)
        assert isinstance(error, ReleaseError)
        assert said in str(error)
        assert str(public) in str(error)
        assert behaviour.started_at == []
        assert not (tmp_path / "out").exists()
    behaviour = Behaviour(signature=signed)
    with serving(world, behaviour, files) as address:
        settings = client_settings(address, files, signing_key=public)
        fetched = ReleaseClient(settings, QUICK).fetch(tmp_path / "out")
        assert fetched.received == 1500
        assert (tmp_path / "out" / "manifest.sig").read_bytes() == signed
        # a release that is here already is not believed without its signature either
        behaviour.signature = b""
        with pytest.raises(ReleaseError, match="sent no signature"):
            ReleaseClient(settings, QUICK).fetch(tmp_path / "out")
        # whoever pins no key keeps no signature of another release
        ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path / "out")
        assert not (tmp_path / "out" / "manifest.sig").exists()


def test_an_unusable_pinned_key(files: CertificateFiles, tmp_path: Path) -> None:
    for path, said in [
        (tmp_path / "absent.pub", "cannot be read"),
        (files.authority, "not a PEM public key"),
        (files.feature_party_key, "not a PEM public key"),
    ]:
        settings = client_settings("localhost:1", files, signing_key=path)
        with pytest.raises(ConfigError, match=said) as caught:
            ReleaseClient(settings, QUICK).fetch(tmp_path / "out")
        assert "[labels_party] signing_key" in str(caught.value)


def test_missing_identity(files: CertificateFiles, tmp_path: Path) -> None:
    settings = client_settings("localhost:1", files, private_key=None)
    with pytest.raises(ConfigError, match="private_key is missing"):
        ReleaseClient(settings, QUICK).fetch(tmp_path)
    settings = client_settings("localhost:1", files, ca=tmp_path / "nowhere.pem")
    with pytest.raises(ConfigError, match="cannot be read"):
        ReleaseClient(settings, QUICK).fetch(tmp_path)
    (text := tmp_path / "text.pem").write_text("no certificate")
    settings = client_settings("localhost:1", files, certificate=text)
    with pytest.raises(ConfigError, match=r"certificate=.*text\.pem is not a PEM file"):
        ReleaseClient(settings, QUICK).fetch(tmp_path)


@dataclass(frozen=True)
class Counted(RetryPolicy):
    """Notes every time that a client is about to try again."""

    retries: list[int] = field(default_factory=list)

    def delay(self, failures: int) -> float:
        self.retries.append(failures)
        return 0.0


def test_nothing_about_identity_is_tried_again(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    other = certificates(tmp_path / "other")
    refusing = {
        "refuses this client": Behaviour(refuse=grpc.StatusCode.PERMISSION_DENIED),
        "refuses this client ": Behaviour(refuse=grpc.StatusCode.UNAUTHENTICATED),
    }
    wrong: dict[str, dict[str, object]] = {
        "does not accept our certificate": {
            "certificate": other.feature_party_certificate,
            "private_key": other.feature_party_key,
        },
        "not signed by the configured authority": {"ca": other.authority},
        "is for another name": {"server_name": "somebody.example"},
    }
    for said, behaviour in refusing.items():
        assert said.strip() in _counted(world, files, tmp_path / "out", behaviour, [])
    for said, changes in wrong.items():
        assert said in _counted(world, files, tmp_path / "out", Behaviour(), [], **changes)
    # the same server and policy, for a failure that may pass
    failing = Behaviour(refuse=grpc.StatusCode.UNAVAILABLE)
    assert "cannot be reached" in _counted(world, files, tmp_path / "out", failing, [1, 2])


def _counted(
    world: World,
    files: CertificateFiles,
    directory: Path,
    behaviour: Behaviour,
    retries: list[int],
    **changes: object,
) -> str:
    policy = Counted(attempts=3)
    with serving(world, behaviour, files) as address:
        settings = client_settings(address, files, **changes)
        with pytest.raises(ConnectionFailed) as caught:
            ReleaseClient(settings, policy).fetch(directory)
    assert policy.retries == retries, str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("answers", "refused", "unasked"),
    [
        ([b"", b""], True, []),
        ([b"", b"?"], False, []),
        ([b"?", b""], False, [b""]),
        ([None, b""], False, [b""]),
    ],
)
def test_who_hangs_up_twice_after_the_handshake_refuses_us(
    files: CertificateFiles,
    answers: list[bytes | None],
    refused: bool,
    unasked: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not who answers, or says nothing for long (None)."""
    monkeypatch.setattr(channel, "_DIAGNOSIS_SECONDS", 1.0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.label_party_certificate, files.label_party_key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    left = iter(answers)

    class Answering(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), context.wrap_socket(self.request, server_side=True) as secured:
                assert secured.recv(99).startswith(b"PRI * HTTP/2.0")
                if (answer := next(left)) is None:
                    secured.recv(1)  # until the client leaves
                else:
                    secured.sendall(answer)

    with socketserver.ThreadingTCPServer(("localhost", 0), Answering) as server:
        threading.Thread(target=server.serve_forever).start()
        settings = client_settings(f"localhost:{server.server_address[1]}", files)
        found = channel.hangs_up(settings)
        server.shutdown()
    assert (found, [*left]) == (refused, unasked)
    assert not channel.hangs_up(settings)  # nobody is there


def test_an_expired_certificate_is_told_before_anything_is_sent(
    files: CertificateFiles, tmp_path: Path
) -> None:
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expired = issue(make_authority(), Role.CLIENT, ["feature-party"], days=1, valid_from=long_ago)
    (tmp_path / "expired.pem").write_bytes(expired.certificate_pem)
    write_key(tmp_path / "expired.key", expired.key_pem)
    pair = {"certificate": tmp_path / "expired.pem", "private_key": tmp_path / "expired.key"}
    settings = client_settings("localhost:1", files, **pair)
    with pytest.raises(ConfigError, match="expired on 2020-01-02 00:00 UTC"):
        ReleaseClient(settings, QUICK).fetch(tmp_path / "out")


def test_a_certificate_of_no_use_is_told_before_anything_is_sent(
    files: CertificateFiles, tmp_path: Path
) -> None:
    authority, tomorrow = make_authority(), datetime.datetime.now(datetime.UTC) + A_DAY
    own = [
        (issue_for(make(), authority, Role.CLIENT, "feature-party"), kind)
        for make, kind in UNUSABLE.values()
    ]
    own += [
        (issue(authority, Role.CLIENT, ["feature-party"], valid_from=tomorrow), "is valid from"),
        (issue(authority, Role.SERVER, ["feature-party"]), "lacks clientAuth"),
    ]
    pair = {"certificate": tmp_path / "own.pem", "private_key": tmp_path / "own.key"}
    for identity, said in own:
        pair["certificate"].write_bytes(identity.certificate_pem)
        write_key(pair["private_key"], identity.key_pem)
        with pytest.raises(ConfigError, match=said):
            ReleaseClient(client_settings("localhost:1", files, **pair), QUICK).fetch(tmp_path)


@pytest.mark.parametrize(
    ("begins_in_days", "said"),
    [(-3, "has expired by this machine's clock"), (1, "is not valid yet by this machine's clock")],
)
def test_a_server_out_of_its_time_is_not_called_a_foreign_one(
    world: World, files: CertificateFiles, tmp_path: Path, begins_in_days: int, said: str
) -> None:
    """As another labels party may serve; ours does not start."""
    authority = make_authority()
    start = datetime.datetime.now(datetime.UTC) + begins_in_days * A_DAY
    server = issue(authority, Role.SERVER, ["localhost"], days=1, valid_from=start)
    client = issue(authority, Role.CLIENT, ["feature-party"])
    made = CertificateFiles.under(tmp_path)
    made.authority.write_bytes(authority.pem)
    made.label_party_certificate.write_bytes(server.certificate_pem)
    write_key(made.label_party_key, server.key_pem)
    made.feature_party_certificate.write_bytes(client.certificate_pem)
    write_key(made.feature_party_key, client.key_pem)
    error = fetch_error(world, made, tmp_path / "release")
    assert isinstance(error, ConnectionFailed)
    assert said in str(error)
    assert "not signed" not in str(error)


def test_a_key_of_another_certificate_is_told_before_anything_is_sent(
    files: CertificateFiles, tmp_path: Path
) -> None:
    settings = client_settings("localhost:1", files, private_key=files.label_party_key)
    with pytest.raises(ConfigError, match="does not belong to certificate"):
        ReleaseClient(settings, QUICK).fetch(tmp_path / "out")


@pytest.mark.slow
def test_a_failed_handshake_is_one_line_on_the_screen(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    """gRPC's own log stays silent, too."""
    other = certificates(tmp_path / "other")
    with serving(world, Behaviour(), files) as address:
        settings = {
            "address": address,
            "ca": other.authority,
            "certificate": files.feature_party_certificate,
            "private_key": files.feature_party_key,
            "data_set": "sales",
        }
        ended = subprocess.run(
            [sys.executable, "-m", "labelveil.feature_party", "fetch", "--quiet",
             *(f"--set=labels_party.{key}={value}" for key, value in settings.items())],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: the certificate of")
