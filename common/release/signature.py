"""Who stands behind a release: an Ed25519 signature over the bytes of its manifest.

The signature is 64 bytes (RFC 8032), kept beside the manifest in ``manifest.sig`` and sent with it.
It covers the rows, too, since the manifest states their digests. Anyone who pinned the public key
needs to trust neither the transport nor the host that served the release.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from common.errors import ConfigError
from common.files import read_private

SIGNING_KEY = "signing.key"
"""Name of the private key's file; the public key's has ``.pub`` appended."""


def public_path(private: Path) -> Path:
    """Where the public half of a private key is written."""
    return private.with_name(private.name + ".pub")


def write_signing_key(path: Path) -> Path:
    """Write a fresh key pair, the private half for its owner alone, and return the public path.

    No file is ever overwritten: ``ConfigError`` if one exists, or cannot be written.
    """
    key, public = Ed25519PrivateKey.generate(), public_path(path)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for target in (path, public):
        if target.exists():
            raise ConfigError(f"{target} exists already; move it away to make a new signing key")
    for target, data, mode in ((path, pem, 0o600), (public, public_pem, 0o644)):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    return public


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key, PEM without a passphrase; ``ConfigError`` if others can read it, too."""
    try:
        data = read_private(path, "signing key")
    except OSError as error:
        raise ConfigError(f"signing key {path} cannot be read: {error.strerror}") from error
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"signing key {path} is not an unencrypted Ed25519 private key (PEM); make one with"
            " labelveil certificates --signing-key, or label-party init --new-signing-key"
        )
    return key


def read_public_key(path: Path, name: str) -> Ed25519PublicKey:
    """Read a public key, PEM; ``name`` is the option or setting that names it, for errors."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{name} {path} cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{name} {path} is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{name} {path} is not an Ed25519 key")
    return key


def verify(key: Ed25519PublicKey, signature: bytes, manifest: bytes) -> bool:
    """Whether a signature over a manifest's bytes is valid."""
    try:
        key.verify(signature, manifest)
    except InvalidSignature:
        return False
    return True
