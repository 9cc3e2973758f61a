"""Fresh keys: the secret that both parties share, and the pair that signs and verifies releases."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from labelveil.common.errors import ConfigError
from labelveil.common.release.event_keys import SECRET_BYTES

SIGNING_KEY = "signing.key"
"""Name of the private key's file; the public key's has ``.pub`` appended."""


def write_new(
    path: Path, data: bytes, what: str, *, mode: int = 0o600, folder: int = 0o777
) -> None:
    """Write a file that there is none of yet, and its folder, with these modes.

    ``ConfigError``, which says ``what`` it is, if there is one already or it cannot be written.
    """
    try:
        path.parent.mkdir(mode=folder, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():  # and not a file for a folder
            raise ConfigError(
                f"{path} exists already; move it away to make a new {what}"
            ) from error
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def write_secret(path: Path) -> None:
    """Write a fresh shared secret, readable by its owner alone; refuse to overwrite one."""
    write_new(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode(), "secret", folder=0o700)


def public_path(private: Path) -> Path:
    """Where the public half of a private key is written."""
    return private.with_name(private.name + ".pub")


def write_signing_key(path: Path) -> Path:
    """Write a fresh key pair, the private half for its owner alone, and return the public path.

    No file is ever overwritten: ``ConfigError`` if one exists, or cannot be written.
    """
    key, public = Ed25519PrivateKey.generate(), public_path(path)
    if public.exists():  # before there is a private half without it
        raise ConfigError(f"{public} exists already; move it away to make a new signing key")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_new(path, pem, "signing key")
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_new(public, pem, "signing key", mode=0o644)
    return public
