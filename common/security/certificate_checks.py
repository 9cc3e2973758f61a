"""A certificate and its private key: whether the two belong together, serve now, and until when.

Which keys serve is BoringSSL's choice, by the signatures that it makes and takes in TLS 1.3: of
Ed25519, P-521 and others none, so that each connection would fail, and nobody would say why.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from labelveil.common.errors import ConfigError

Span = tuple[datetime, datetime]
"""From when to when a certificate is valid, UTC."""

_UNREADABLE = (
    *(ValueError, x509.InvalidVersion, x509.UnsupportedGeneralNameType),
    *(x509.ExtensionNotFound, x509.DuplicateExtension),
)
"""What reading a certificate raises that some authority has signed all the same."""

_CURVES = ec.SECP256R1, ec.SECP384R1
_RSA_BITS = 2048


def read_chain(path: Path, data: bytes) -> list[x509.Certificate]:
    """Parse a file of PEM certificates; raise a ``ConfigError`` if there is none."""
    try:
        return x509.load_pem_x509_certificates(data)
    except _UNREADABLE:
        raise ConfigError(f"{path} holds no PEM certificate; replace it") from None


def certificate_names(pem: bytes) -> set[tuple[str, str]]:
    """Names that a certificate carries as subject alternative names, each with ``dns`` or ``uri``;
    none if it cannot be parsed."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        kind = x509.SubjectAlternativeName
        names: Any = certificate.extensions.get_extension_for_class(kind).value
    except _UNREADABLE:
        return set()
    dns = {("dns", name.lower()) for name in names.get_values_for_type(x509.DNSName)}
    uris = {("uri", uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)}
    return dns | uris


@dataclass(frozen=True)
class Holder:
    """Whose certificate it is, for a log; what cannot be read is left empty."""

    subject: str = ""  # as in RFC 4514, its first 200 characters
    serial: str = ""  # its number, hexadecimal
    ends: datetime | None = None


def certificate_holder(pem: bytes) -> Holder:
    """Read whose certificate it is; nobody's if it cannot be parsed, or there is none."""
    try:
        found = x509.load_pem_x509_certificate(pem)
    except _UNREADABLE:
        return Holder()
    subject = ""
    with suppress(*_UNREADABLE):  # another authority's idea of letters
        subject = f"{found.subject.rfc4514_string():.200}"
    return Holder(subject, f"{found.serial_number:x}", found.not_valid_after_utc)


def described(path: Path, authorities: Path) -> str:
    """Say whose certificate a chain begins with, its key, and until when it and authorities are in
    force by this machine's clock."""
    chain = read_chain(path, path.read_bytes())
    names = sorted(name for _, name in certificate_names(chain[0].public_bytes(Encoding.PEM)))
    trusted = read_chain(authorities, authorities.read_bytes())
    last = max(certificate.not_valid_after_utc for certificate in trusted)
    return (
        f"{path} of {', '.join(names) or 'none'}, {_kind(_public_key(chain[0]))}, {len(chain)} in"
        f" its chain, in force until {common_span(chain)[1]:%Y-%m-%d}; {authorities} until"
        f" {last:%Y-%m-%d}; the clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )


def check_identity(
    path: Path,
    chain: list[x509.Certificate],
    key_path: Path,
    key: bytes,
    usage: x509.ObjectIdentifier,
) -> None:
    """Raise a ``ConfigError`` unless a certificate proves now who we are.

    Its key (PEM) must be its own, and of a kind that gRPC takes; the certificate must be for this
    usage, and every one of its chain in force.
    """
    public = _public_key(chain[0])
    if not _can_sign_with(public):
        raise ConfigError(
            f"certificate {path} has a key of a kind that gRPC does not take, {_kind(public)};"
            f" issue one for EC P-256 or P-384, or RSA of {_RSA_BITS} bits or more"
        )
    _check_pair(path, chain[0], key_path, key)
    try:
        uses: Any = chain[0].extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        uses = ()
    if uses and not {usage, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & {*uses}:
        raise ConfigError(
            f"certificate {path} must not be used here: its extended key usage lacks"
            f" {usage._name}; issue another"
        )
    check_in_force(path, [common_span(chain)])


def check_authorities(path: Path, authorities: list[x509.Certificate]) -> None:
    """Raise a ``ConfigError`` if gRPC can check no certificate with any of them now."""
    usable = [authority for authority in authorities if _can_check_with(_public_key(authority))]
    if not usable:
        kinds = ", ".join(sorted({_kind(_public_key(authority)) for authority in authorities}))
        raise ConfigError(
            f"the authority in {path} has a key of a kind that gRPC does not take, {kinds}; use one"
            " with RSA, Ed25519, or EC P-256, P-384 or P-521"
        )
    check_in_force(path, [common_span([authority]) for authority in usable])


def _public_key(certificate: x509.Certificate) -> object:
    try:
        return certificate.public_key()
    except (UnsupportedAlgorithm, ValueError):
        return None


def _can_check_with(public: object) -> bool:
    if isinstance(public, ec.EllipticCurvePublicKey):
        return isinstance(public.curve, (*_CURVES, ec.SECP521R1))
    return isinstance(public, rsa.RSAPublicKey | ed25519.Ed25519PublicKey)


def _can_sign_with(public: object) -> bool:
    if isinstance(public, rsa.RSAPublicKey):
        return public.key_size >= _RSA_BITS
    return isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, _CURVES)


def common_span(chain: list[x509.Certificate]) -> Span:
    """Return from when to when all of some certificates are valid."""
    starts = [certificate.not_valid_before_utc for certificate in chain]
    return max(starts), min(certificate.not_valid_after_utc for certificate in chain)


def check_in_force(path: Path, spans: Sequence[Span]) -> None:
    """Raise a ``ConfigError`` unless this is a time of at least one of a file's certificates."""
    now = datetime.now(UTC)
    if any(start <= now <= end for start, end in spans):
        return
    coming = [start for start, end in spans if now < start <= end]
    if coming:
        raise ConfigError(
            f"certificate {path} is valid from {min(coming):%Y-%m-%d %H:%M} UTC on, and the clock"
            f" says {now:%Y-%m-%d %H:%M}; wait, issue another, or set the clock right"
        )
    ended = max(end for _, end in spans)
    raise ConfigError(f"certificate {path} expired on {ended:%Y-%m-%d %H:%M} UTC; issue a new one")


def _check_pair(
    certificate_path: Path, certificate: x509.Certificate, key_path: Path, key: bytes
) -> None:
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{key_path} is not an unencrypted PEM private key; replace it") from None
    public = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*public) != certificate.public_key().public_bytes(*public):
        raise ConfigError(
            f"private key {key_path} does not belong to certificate {certificate_path}; set"
            " certificate and private_key to the two of one pair"
        )


def _kind(public: object) -> str:
    name = "unknown" if public is None else type(public).__name__.removesuffix("PublicKey")
    if isinstance(public, ec.EllipticCurvePublicKey):
        return f"EC {public.curve.name}"
    return f"{name} of {public.key_size} bits" if isinstance(public, rsa.RSAPublicKey) else name
