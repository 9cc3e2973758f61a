"""A certificate and its private key: whether the two belong together, and until when they serve."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from common.errors import ConfigError


def read_chain(path: Path, data: bytes) -> list[x509.Certificate]:
    """Parse a file of PEM certificates; raise a ``ConfigError`` if there is none."""
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ConfigError(f"{path} holds no PEM certificate; replace it") from None


def certificate_names(pem: bytes) -> set[tuple[str, str]]:
    """Names that a certificate carries as subject alternative names, each with ``dns`` or ``uri``;
    none if it cannot be parsed."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        kind = x509.SubjectAlternativeName
        names: Any = certificate.extensions.get_extension_for_class(kind).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
        return set()
    dns = {("dns", name.lower()) for name in names.get_values_for_type(x509.DNSName)}
    uris = {("uri", uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)}
    return dns | uris


def check_pair(
    certificate_path: Path, certificate: x509.Certificate, key_path: Path, key: bytes
) -> None:
    """Raise a ``ConfigError`` unless a private key (PEM) is usable and the certificate's own."""
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


def check_not_ended(path: Path, ends: datetime) -> None:
    """Raise a ``ConfigError`` if a certificate's time is over."""
    if ends < datetime.now(UTC):
        raise ConfigError(
            f"certificate {path} expired on {ends:%Y-%m-%d %H:%M} UTC; issue a new one"
        )
