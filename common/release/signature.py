"""Who stands behind a release: an Ed25519 signature over the bytes of its manifest.

The signature is 64 bytes (RFC 8032), kept beside the manifest in ``manifest.sig`` and sent with it.
It covers the rows, too, since the manifest states their digests. Anyone who pinned the public key
needs to trust neither the transport nor the host that served the release.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from labelveil.common.errors import ConfigError
from labelveil.common.files import file_errors, read_private


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key, PEM without a passphrase; ``ConfigError`` if others can read it, too."""
    with file_errors(ConfigError, f"signing key {path} cannot be read"):
        data = read_private(path, "signing key")
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
