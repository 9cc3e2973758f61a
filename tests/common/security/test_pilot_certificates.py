"""The test authority: what it issues, and a real handshake that accepts and refuses."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from labelveil.commands.cli import main
from labelveil.common.errors import ConfigError
from labelveil.common.release.event_keys import read_secret
from labelveil.common.release.signature import read_public_key, read_signing_key, verify
from labelveil.common.security.new_keys import write_secret
from labelveil.common.security.pilot_certificates import (
    Authority,
    CertificateFiles,
    Credentials,
    Role,
    issue,
    make_authority,
    write_certificates,
)
from tests.common.security.keys import write_key

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def _context(
    purpose: ssl.Purpose, authority: Authority, credentials: Credentials, folder: Path
) -> ssl.SSLContext:
    name = purpose.shortname
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(credentials.certificate_pem)
    write_key(key, credentials.key_pem)
    context = ssl.create_default_context(purpose, cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(certificate, key)
    return context


def _handshake(
    folder: Path,
    trusted: Authority,
    server: Credentials,
    client: Credentials,
    host: str = "localhost",
) -> None:
    """Mutual TLS in memory: both sides trust one authority."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    # SERVER_AUTH is the purpose of the side that authenticates a server: the client.
    asking = _context(ssl.Purpose.SERVER_AUTH, trusted, client, folder).wrap_bio(
        to_client, to_server, server_hostname=host
    )
    answering = _context(ssl.Purpose.CLIENT_AUTH, trusted, server, folder).wrap_bio(
        to_server, to_client, server_side=True
    )
    waiting = [asking, answering]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
        if not waiting:
            return
    raise AssertionError("the handshake did not finish")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority()


@pytest.fixture(scope="module")
def server(authority: Authority) -> Credentials:
    return issue(authority, Role.SERVER, ["label-party", "localhost", "127.0.0.1"])


@pytest.fixture(scope="module")
def client(authority: Authority) -> Credentials:
    return issue(authority, Role.CLIENT, ["feature-party"])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "label-party"])
def test_the_parties_shake_hands(
    tmp_path: Path, authority: Authority, server: Credentials, client: Credentials, host: str
) -> None:
    _handshake(tmp_path, authority, server, client, host)


def test_another_name_is_refused(
    tmp_path: Path, authority: Authority, server: Credentials, client: Credentials
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        _handshake(tmp_path, authority, server, client, "elsewhere.example")


def test_an_expired_certificate_is_refused(
    tmp_path: Path, authority: Authority, server: Credentials
) -> None:
    expired = issue(authority, Role.CLIENT, ["feature-party"], days=1, valid_from=LONG_AGO)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        _handshake(tmp_path, authority, server, expired)


def test_another_authority_is_refused(
    tmp_path: Path, authority: Authority, server: Credentials
) -> None:
    foreign = issue(make_authority(), Role.CLIENT, ["feature-party"])
    with pytest.raises(ssl.SSLError, match=r"verify failed|unknown ca"):
        _handshake(tmp_path, authority, server, foreign)


def test_a_client_certificate_cannot_serve(
    tmp_path: Path, authority: Authority, client: Credentials
) -> None:
    impostor = issue(authority, Role.CLIENT, ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match=r"purpose"):
        _handshake(tmp_path, authority, impostor, client)


def test_files_and_their_modes(tmp_path: Path) -> None:
    files = write_certificates(tmp_path / "new", label_hosts=["labels.example", "10.0.0.7"])
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "ca.pem",
        "label-party.pem",
        "label-party.key",
        "feature-party.pem",
        "feature-party.key",
        "join.key",
    }
    for path in (files.label_party_key, files.feature_party_key, files.join_secret):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(read_secret(files.join_secret)) == 32
    certificate = x509.load_pem_x509_certificate(files.label_party_certificate.read_bytes())
    in_force = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert in_force == datetime.timedelta(days=365)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["label-party", "localhost", "labels.example"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("10.0.0.7"),
    ]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_key(tmp_path / "feature-party.key", "precious")
    with pytest.raises(ConfigError, match=r"feature-party\.key exists already"):
        write_certificates(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["feature-party.key"]


def test_a_join_secret_that_is_there_is_kept_and_one_that_is_none_refused(tmp_path: Path) -> None:
    write_secret(tmp_path / "join.key")
    secret = (tmp_path / "join.key").read_bytes()
    files = write_certificates(tmp_path)
    assert files.join_secret.read_bytes() == secret
    assert all(path.exists() for path in files.all())
    (tmp_path / "other").mkdir()
    write_key(tmp_path / "other" / "join.key", "precious")
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        write_certificates(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["join.key"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"feature_party": "label-party"}, "must differ"),
        ({"feature_party": "a/b"}, "host name"),
        ({"label_hosts": ["*"]}, "host name"),
        ({"days": 0}, "days=0"),
    ],
)
def test_impossible_requests_write_nothing(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write_certificates(tmp_path / "new", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_paths_follow_the_parties_names(tmp_path: Path) -> None:
    files = CertificateFiles.under(tmp_path, "advertiser", "publisher")
    assert files.label_party_key == tmp_path / "advertiser.key"
    assert files.feature_party_certificate == tmp_path / "publisher.pem"


def test_certificates_with_a_signing_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["labelveil", "certificates", "--out", "c", "--signing-key"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "signing.key (labels party)" in out
    assert "signing.key.pub (features party)" in out
    signature = read_signing_key(tmp_path / "c" / "signing.key").sign(b"manifest")
    public = read_public_key(tmp_path / "c" / "signing.key.pub", "key")
    assert verify(public, signature, b"manifest")
    assert not verify(public, signature, b"another")
