"""Certificates for tests and pilots: a small authority and one certificate for each party.

A real deployment brings its own authority, whose key never lies beside a party's; this one exists
so that mutual TLS can be on from the first minute. Keys are EC P-256 and never encrypted.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from labelveil.common.errors import ConfigError
from labelveil.common.release.event_keys import read_secret
from labelveil.common.security.new_keys import write_new, write_secret

LABEL_PARTY = "label-party"
FEATURE_PARTY = "feature-party"
LOOPBACK = ("localhost", "127.0.0.1")

# A certificate made on one machine must be valid on another whose clock is a little behind.
_CLOCK_SKEW = datetime.timedelta(minutes=5)


class Role(Enum):
    """What a certificate may be used for."""

    SERVER = ExtendedKeyUsageOID.SERVER_AUTH
    CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its certificate, and the key that signs others."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The certificate, which both parties trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Credentials:
    """One party's certificate and private key, both PEM."""

    certificate_pem: bytes
    key_pem: bytes


@dataclass(frozen=True)
class CertificateFiles:
    """Where :func:`write_certificates` put everything."""

    authority: Path
    label_party_certificate: Path
    label_party_key: Path
    feature_party_certificate: Path
    feature_party_key: Path
    join_secret: Path

    @classmethod
    def under(
        cls, directory: Path, label_party: str = LABEL_PARTY, feature_party: str = FEATURE_PARTY
    ) -> CertificateFiles:
        """Return the paths of a directory's files, whether they exist or not."""
        pairs = [f"{name}.{end}" for name in (label_party, feature_party) for end in ("pem", "key")]
        return cls(*(directory / name for name in ("ca.pem", *pairs, "join.key")))

    def all(self) -> tuple[Path, ...]:
        return tuple(vars(self).values())


def make_authority(name: str = "labelveil test authority", days: int = 365) -> Authority:
    """Make a self-signed authority that may sign end certificates and no further authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(subject, subject, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Authority,
    role: Role,
    names: Sequence[str],
    *,
    days: int = 365,
    valid_from: datetime.datetime | None = None,
) -> Credentials:
    """Issue one end certificate under a fresh key.

    ``names`` are its subject alternative names, at least one: host names, or IP addresses in text;
    the first is also the common name. It is valid from a few minutes ago on, or from a time in UTC:
    one long ago gives an expired certificate, which tests need.
    """
    if not names:
        raise ConfigError("names=[] must hold at least one host name; pass localhost, say")
    key = ec.generate_private_key(ec.SECP256R1())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    alternatives = x509.SubjectAlternativeName([*map(_general_name, dict.fromkeys(names))])
    builder = (
        _builder(_name(names[0]), authority.certificate.subject, key, days, valid_from)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([role.value]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(signer, critical=False)
    )
    return Credentials(
        builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def write_certificates(
    directory: Path,
    *,
    label_hosts: Sequence[str] = (),
    label_party: str = LABEL_PARTY,
    feature_party: str = FEATURE_PARTY,
    days: int = 365,
) -> CertificateFiles:
    """Make an authority, both parties' certificates and, unless it is there, the join secret.

    The authority's own key is forgotten: nobody can sign a third party later. No file is ever
    overwritten, and nothing is written if that would be. The parties' names are a DNS name in each
    certificate, and the files' names; ``label_hosts`` are host names or addresses under which the
    features party reaches the labels party, besides localhost and 127.0.0.1.
    """
    if label_party == feature_party:
        raise ConfigError(
            f"both parties are called {label_party!r}; their names must differ, for the server"
            " authorizes its client by name"
        )
    for name in (label_party, feature_party):
        _check_dns_name(name)
    files = CertificateFiles.under(directory, label_party, feature_party)
    if kept := files.join_secret.exists():
        read_secret(files.join_secret)
    for path in files.all():
        if path.exists() and path != files.join_secret:
            raise ConfigError(f"{path} exists already; move it away, or choose another --out")
    authority = make_authority(days=days)
    server = issue(authority, Role.SERVER, [label_party, *LOOPBACK, *label_hosts], days=days)
    client = issue(authority, Role.CLIENT, [feature_party], days=days)
    write_new(files.authority, authority.pem, "authority", mode=0o644)
    write_new(files.label_party_certificate, server.certificate_pem, "certificate", mode=0o644)
    write_new(files.label_party_key, server.key_pem, "key")
    write_new(files.feature_party_certificate, client.certificate_pem, "certificate", mode=0o644)
    write_new(files.feature_party_key, client.key_pem, "key")
    if not kept:
        write_secret(files.join_secret)
    return files


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    valid_from: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    if not 1 <= days <= 3650:
        raise ConfigError(f"days={days} must lie in 1 … 3650")
    start = valid_from or datetime.datetime.now(datetime.UTC) - _CLOCK_SKEW
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        _check_dns_name(name)
        return x509.DNSName(name)


def _check_dns_name(name: str) -> None:
    labels = name.split(".")
    if len(name) > 64 or not all(
        label and label.isascii() and label.replace("-", "").isalnum() and label.strip("-") == label
        for label in labels
    ):
        raise ConfigError(
            f"name {name!r} must be a host name of at most 64 letters, digits, dots and inner"
            " hyphens"
        )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
