"""What stands in a certificate, which keys serve, and when; which proxy a call goes through."""

from __future__ import annotations

import datetime
import ipaddress
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from labelveil.common.errors import ConfigError
from labelveil.common.security.certificate_checks import (
    Holder,
    certificate_holder,
    certificate_names,
    check_authorities,
    check_identity,
    check_in_force,
    common_span,
    described,
    read_chain,
)
from labelveil.common.security.new_keys import public_path, write_new, write_signing_key
from labelveil.common.security.pilot_certificates import (
    CertificateFiles,
    Role,
    issue,
    make_authority,
    write_certificates,
)
from labelveil.common.security.proxies import proxies, through_proxy

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.Extension:  # type: ignore[type-arg]
    return certificate.extensions.get_extension_for_class(kind)


def uses(certificate: x509.Certificate) -> set[str]:
    usage = extension(certificate, x509.KeyUsage)
    assert usage.critical
    names = "digital_signature", "content_commitment", "key_encipherment", "data_encipherment"
    more = "key_agreement", "key_cert_sign", "crl_sign"
    return {name for name in (*names, *more) if getattr(usage.value, name)}


def test_an_authority_signs_certificates_and_no_other_authority() -> None:
    authority = make_authority("a test", days=7)
    made = authority.certificate
    assert made.subject.rfc4514_string() == made.issuer.rfc4514_string() == "CN=a test"
    basic = extension(made, x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    assert uses(made) == {"key_cert_sign", "crl_sign"}
    assert made.not_valid_after_utc - made.not_valid_before_utc == datetime.timedelta(days=7)
    behind = datetime.datetime.now(datetime.UTC) - made.not_valid_before_utc
    assert datetime.timedelta(minutes=4) < behind < datetime.timedelta(minutes=7)
    assert isinstance(authority.key.curve, ec.SECP256R1)
    assert isinstance(made.signature_hash_algorithm, hashes.SHA256)
    year = make_authority().certificate
    assert year.not_valid_after_utc - year.not_valid_before_utc == datetime.timedelta(days=365)


@pytest.mark.parametrize(("role", "usage"), [(Role.SERVER, SERVER), (Role.CLIENT, CLIENT)])
def test_an_end_certificate_has_its_names_and_its_use(
    role: Role, usage: x509.ObjectIdentifier
) -> None:
    authority = make_authority()
    start = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    names = ["Host.example", "127.0.0.1", "::1", "Host.example"]
    issued = issue(authority, role, names, days=3, valid_from=start)
    (made,) = read_chain(Path("x"), issued.certificate_pem)
    assert made.subject.rfc4514_string() == "CN=Host.example"
    assert made.issuer == authority.certificate.subject
    assert (made.not_valid_before_utc, made.not_valid_after_utc) == (
        start,
        start + datetime.timedelta(days=3),
    )
    basic = extension(made, x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, False, None)
    assert uses(made) == {"digital_signature"}
    assert [*extension(made, x509.ExtendedKeyUsage).value] == [usage]
    alternative = extension(made, x509.SubjectAlternativeName).value
    assert alternative.get_values_for_type(x509.DNSName) == ["Host.example"]
    assert alternative.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]
    own = extension(authority.certificate, x509.SubjectKeyIdentifier).value.digest
    assert extension(made, x509.AuthorityKeyIdentifier).value.key_identifier == own
    optional = [
        x509.ExtendedKeyUsage,
        x509.SubjectAlternativeName,
        x509.SubjectKeyIdentifier,
        x509.AuthorityKeyIdentifier,
    ]
    assert not any(extension(made, kind).critical for kind in optional)
    made.verify_directly_issued_by(authority.certificate)
    assert certificate_names(issued.certificate_pem) == {("dns", "host.example")}
    assert certificate_holder(issued.certificate_pem) == Holder(
        "CN=Host.example", f"{made.serial_number:x}", made.not_valid_after_utc
    )
    assert certificate_holder(b"none") == Holder("", "", None)
    assert certificate_names(b"none") == set()


@pytest.mark.parametrize(
    ("days", "names"),
    [(0, ["a"]), (3651, ["a"]), (1, []), (1, ["a b"]), (1, ["-a"]), (1, ["a-"]), (1, ["a..b"]),
     (1, ["x" * 65]), (1, [""]), (1, ["ä"])],
)  # fmt: skip
def test_what_no_certificate_can_say_is_refused(days: int, names: list[str]) -> None:
    authority = make_authority()
    with pytest.raises(ConfigError):
        issue(authority, Role.CLIENT, names, days=days)
    issue(authority, Role.CLIENT, ["x" * 64], days=3650)
    issue(authority, Role.CLIENT, ["a-b.c"], days=1)


def test_a_pilot_has_its_files_with_their_rights(tmp_path: Path) -> None:
    files = write_certificates(tmp_path, label_hosts=["more.example"], days=9)
    assert files == CertificateFiles.under(tmp_path)
    assert [path.name for path in files.all()] == [
        "ca.pem", "label-party.pem", "label-party.key", "feature-party.pem", "feature-party.key",
        "join.key",
    ]  # fmt: skip
    modes = [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files.all()]
    assert [mode == 0 for mode in modes] == [False, False, True, False, True, True]
    server, client, authority = (
        read_chain(path, path.read_bytes())[0]
        for path in (
            files.label_party_certificate,
            files.feature_party_certificate,
            files.authority,
        )
    )
    alternative = extension(server, x509.SubjectAlternativeName).value
    assert alternative.get_values_for_type(x509.DNSName) == [
        "label-party",
        "localhost",
        "more.example",
    ]
    assert certificate_names(files.feature_party_certificate.read_bytes()) == {
        ("dns", "feature-party")
    }
    span = datetime.timedelta(days=9)
    for made in (server, client, authority):
        assert made.not_valid_after_utc - made.not_valid_before_utc == span
    assert [*extension(server, x509.ExtendedKeyUsage).value] == [SERVER]
    assert [*extension(client, x509.ExtendedKeyUsage).value] == [CLIENT]
    for certificate, key, usage in (
        (server, files.label_party_key, SERVER),
        (client, files.feature_party_key, CLIENT),
    ):
        check_identity(Path("c"), [certificate], key, key.read_bytes(), usage)
        assert key.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    said = described(files.label_party_certificate, files.authority)
    assert said.startswith(
        f"{files.label_party_certificate} of label-party, localhost, more.example, EC secp256r1, 1"
        f" in its chain, in force until {server.not_valid_after_utc:%Y-%m-%d}; {files.authority}"
        f" until {authority.not_valid_after_utc:%Y-%m-%d}; the clock says "
    )
    # of several authorities until the last one ends
    (tmp_path / "sooner").mkdir()
    sooner = write_certificates(tmp_path / "sooner", days=4).authority
    both = tmp_path / "both.pem"
    both.write_bytes(sooner.read_bytes() + files.authority.read_bytes())
    until = f"{both} until {authority.not_valid_after_utc:%Y-%m-%d};"
    assert until in described(files.label_party_certificate, both)


def signed(
    key: object, usage: list[x509.ObjectIdentifier] | None, days: int = 5
) -> x509.Certificate:
    """A certificate for any key, which signs itself if it can."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = datetime.datetime.now(datetime.UTC)
    begin, end = sorted([now, now + datetime.timedelta(days=days)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())  # type: ignore[attr-defined]
        .serial_number(5)
        .not_valid_before(begin - datetime.timedelta(hours=1))
        .not_valid_after(end)
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    none = isinstance(key, ed25519.Ed25519PrivateKey)
    return builder.sign(key, None if none else hashes.SHA256())  # type: ignore[arg-type]


def pem(key: object) -> bytes:
    return key.private_bytes(  # type: ignore[attr-defined,no-any-return]
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


P256, P384, P521 = (
    ec.generate_private_key(curve) for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1())
)
EDWARDS, SHORT, LONG = (
    ed25519.Ed25519PrivateKey.generate(),
    rsa.generate_private_key(65537, 1024),
    rsa.generate_private_key(65537, 2048),
)


@pytest.mark.parametrize(
    ("key", "signs", "checks"),
    [
        (P256, "", True),
        (P384, "", True),
        (P521, "EC secp521r1", True),
        (EDWARDS, "Ed25519", True),
        (SHORT, "RSA of 1024 bits", True),
        (LONG, "", True),
        (ec.generate_private_key(ec.SECP256K1()), "EC secp256k1", False),
    ],
)
def test_which_keys_serve(key: object, signs: str, checks: bool) -> None:
    made = signed(key, [SERVER])
    if signs:
        with pytest.raises(ConfigError, match=f"does not take, {signs}; issue one for EC P-256"):
            check_identity(Path("c"), [made], Path("k"), pem(key), SERVER)
    else:
        check_identity(Path("c"), [made], Path("k"), pem(key), SERVER)
    if checks:
        check_authorities(Path("a"), [made])
    else:
        with pytest.raises(ConfigError, match=f"the authority in a has a key .* {signs}; use one"):
            check_authorities(Path("a"), [made])
        check_authorities(Path("a"), [made, signed(P256, None)])


def test_a_key_that_nothing_here_knows_serves_for_nothing() -> None:
    def unknown() -> None:
        raise UnsupportedAlgorithm("post-quantum")

    certificate: Any = SimpleNamespace(public_key=unknown)
    for check in (
        lambda: check_identity(Path("c"), [certificate], Path("k"), pem(P256), SERVER),
        lambda: check_authorities(Path("c"), [certificate]),
    ):
        with pytest.raises(ConfigError, match="a key of a kind that gRPC does not take, unknown"):
            check()


def test_an_identity_is_of_one_pair_one_use_and_one_time() -> None:
    made = signed(P256, [CLIENT])
    for certificate in (made, signed(P256, None), signed(P256, [ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])):  # fmt: skip  # noqa: E501
        check_identity(Path("c"), [certificate], Path("k"), pem(P256), CLIENT)
    locked = P256.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    cases = [
        ([made], pem(P384), CLIENT, "private key k does not belong to certificate c"),
        ([made], b"x", CLIENT, "k is not an unencrypted PEM private key"),
        ([made], locked, CLIENT, "k is not an unencrypted PEM private key"),
        ([made], pem(P256), SERVER, "its extended key usage lacks serverAuth"),
        ([signed(P256, None, -5)], pem(P256), CLIENT, "certificate c expired on"),
        ([made, signed(P384, None, -5)], pem(P256), CLIENT, "certificate c expired on"),
    ]
    for chain, key, usage, said in cases:
        with pytest.raises(ConfigError, match=said):
            check_identity(Path("c"), chain, Path("k"), key, usage)


def test_a_span_is_what_all_have_in_common_and_now_is_in_one() -> None:
    early, late = signed(P256, None, 5), signed(P384, None, 9)
    assert common_span([early, late])[1] == early.not_valid_after_utc
    assert common_span([late, early])[0] == max(
        early.not_valid_before_utc, late.not_valid_before_utc
    )
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    past, present, future = (now - 2 * hour, now - hour), (now - hour, now + hour), (now + hour, now + 2 * hour)  # fmt: skip  # noqa: E501
    check_in_force(Path("c"), [past, present])
    for spans, said in (
        ([past], f"expired on {past[1]:%Y-%m-%d %H:%M} UTC"),
        ([(past[0] - hour, past[0]), past], f"expired on {past[1]:%Y-%m-%d %H:%M}"),
        ([past, future], f"is valid from {future[0]:%Y-%m-%d %H:%M} UTC on"),
        ([(future[1], future[1] + hour), future], f"is valid from {future[0]:%Y-%m-%d %H:%M}"),
        ([(future[1], future[0])], "expired on"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_in_force(Path("c"), spans)


def test_new_files_take_no_old_ones_place(tmp_path: Path) -> None:
    write_new(tmp_path / "deep" / "a", b"x", "thing", mode=0o600, folder=0o700)
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "deep" / "a").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="exists already; move it away to make a new thing"):
        write_new(tmp_path / "deep" / "a", b"y", "thing")
    with pytest.raises(ConfigError, match="cannot be written: "):
        write_new(tmp_path / "deep" / "a" / "b", b"y", "thing")
    assert (tmp_path / "deep" / "a").read_bytes() == b"x"
    public = write_signing_key(tmp_path / "s.key")
    assert public == public_path(tmp_path / "s.key") == tmp_path / "s.key.pub"
    private = serialization.load_pem_private_key((tmp_path / "s.key").read_bytes(), None)
    assert private.public_key() == serialization.load_pem_public_key(public.read_bytes())
    assert stat.S_IMODE((tmp_path / "s.key").stat().st_mode) == 0o600
    (tmp_path / "s.key").unlink()
    with pytest.raises(ConfigError, match=r"s\.key\.pub exists already"):
        write_signing_key(tmp_path / "s.key")
    assert not (tmp_path / "s.key").exists()


@pytest.mark.parametrize(
    ("environment", "address", "through"),
    [
        ({}, "a.example:1", ""),
        ({"https_proxy": "http://u:secret@p.example:8"}, "a.example:1",
         "https_proxy in the environment sends it through the proxy p.example:8: where that is not"
         " meant, add a.example to no_proxy"),
        ({"http_proxy": "http://p.example"}, "a.example:1", "through the proxy p.example:80"),
        ({"grpc_proxy": "http://g:1", "https_proxy": "http://h:2"}, "a:1", "proxy g:1"),
        ({"https_proxy": "http://h:2", "http_proxy": "http://i:3"}, "a:1", "proxy h:2"),
        ({"https_proxy": "socks5://h:2"}, "a:1", ""),
        ({"https_proxy": "http://h:x"}, "a:1", ""),
        ({"https_proxy": "http://h:2", "no_proxy": "b, A.example"}, "a.example:1", ""),
        ({"https_proxy": "http://h:2", "no_proxy": ".example"}, "a.example:1", ""),
        ({"https_proxy": "http://h:2", "no_proxy": "ample"}, "a.example:1", "proxy h:2"),
        ({"https_proxy": "http://h:2", "no_proxy": "10.0.0.0/8"}, "10.1.2.3:1", ""),
        ({"https_proxy": "http://h:2", "no_proxy": "10.0.0.0/8"}, "11.1.2.3:1", "proxy h:2"),
        ({"https_proxy": "http://h:2", "no_proxy": "::1"}, "[::1]:1", ""),
        ({"https_proxy": "http://h:2", "no_grpc_proxy": "b", "no_proxy": "a"}, "a:1", "proxy h:2"),
        ({"https_proxy": "http://h:2", "no_grpc_proxy": "a", "no_proxy": "b"}, "a:1", ""),
    ],
)  # fmt: skip
def test_the_proxy_that_a_call_goes_through_is_named(
    environment: dict[str, str], address: str, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = through_proxy(address)
    assert (through in said) if through else said == ""
    assert "secret" not in said
    names = sorted(name for name in environment if not name.startswith("no_"))
    assert proxies() == f"{', '.join(names) or 'none'} in the environment"
    assert proxies(address) == f"{', '.join(names) or 'none'} in the environment{said}"
