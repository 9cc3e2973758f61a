"""Certificates as an authority may issue them, and as ours does not: for keys of any kind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from labelveil.common.security import pilot_certificates as pilot
from labelveil.common.security.pilot_certificates import Authority, Credentials, Role

UNUSABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "ed25519": (ed25519.Ed25519PrivateKey.generate, "Ed25519"),
    "p521": (lambda: ec.generate_private_key(ec.SECP521R1()), "EC secp521r1"),
    "k256": (lambda: ec.generate_private_key(ec.SECP256K1()), "EC secp256k1"),
    "weak": (lambda: rsa.generate_private_key(65537, 1024), "RSA of 1024 bits"),
}
"""Kinds of keys with which no connection comes about, and how they are called."""

USABLE: dict[str, Callable[[], Any]] = {
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}


def issue_for(
    key: Any,
    authority: Authority,
    role: Role,
    name: str,
    *,
    days: int = 365,
    valid_from: datetime | None = None,
) -> Credentials:
    """Issue a certificate for a key."""
    subject, issuer = pilot._name(name), authority.certificate.subject
    certificate = (
        pilot._builder(subject, issuer, key, days, valid_from)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([role.value]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Credentials(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
