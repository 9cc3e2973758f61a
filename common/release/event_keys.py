"""Event keys on the wire: HMAC-SHA256, truncated to 16 bytes, under a secret both parties share.

The secret is made per partner and epoch, so that two partners, or one partner on two days, cannot
match events by their hashed keys. A key's canonical text is its UTF-8 string, an integer's decimal
digits: the same event hashes alike from CSV and Parquet.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

import numpy as np
import polars as pl

from common.errors import ConfigError, DataError
from common.files import read_private
from common.release.blocks import KEY_BYTES

SECRET_BYTES = 32

_CHECKED = b"\xff"
"""Hashed to recognise a secret: no text in UTF-8 begins with it, so it is no event's key."""

_BLOCK_BYTES = 64


def hash_keys(keys: pl.Series, secret: bytes) -> bytes:
    """Hash a column of event keys.

    Parameters
    ----------
    keys
        (n,) strings or integers without missing values.
    secret
        32 bytes shared by both parties.

    Returns
    -------
    n times 16 bytes, in the column's order.
    """
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"a key secret of {len(secret)} bytes must have {SECRET_BYTES}")
    padded = np.zeros(_BLOCK_BYTES, dtype=np.uint8)
    padded[: len(secret)] = np.frombuffer(secret, dtype=np.uint8)
    # HMAC by its definition (RFC 2104): both keyed states are made once and copied for each key,
    # which is more than twice as fast as the library's one-shot function
    inner = hashlib.sha256((padded ^ 0x36).tobytes()).copy
    outer = hashlib.sha256((padded ^ 0x5C).tobytes()).copy
    hashed = []
    for key in canonical_keys(keys):
        message = inner()
        message.update(key.encode())
        tag = outer()
        tag.update(message.digest())
        hashed.append(tag.digest()[:KEY_BYTES])
    return b"".join(hashed)


def secret_check(secret: bytes) -> bytes:
    """Return 16 bytes by which two parties see that they share a secret, without showing it."""
    return hmac.digest(secret, _CHECKED, "sha256")[:KEY_BYTES]


def canonical_keys(keys: pl.Series) -> pl.Series:
    """Return the canonical text of a key column, (n,) strings.

    Raises
    ------
    DataError
        If the column holds missing values, or is neither text nor whole numbers.
    """
    missing = keys.null_count()
    if missing:
        raise DataError(
            f"key column {keys.name!r} has {missing:,} missing values; every event needs a key"
        )
    if keys.dtype.is_integer() or keys.dtype == pl.String:
        return keys.cast(pl.String)
    if keys.dtype == pl.Categorical or keys.dtype == pl.Enum:
        return keys.cast(pl.String)
    raise DataError(
        f"key column {keys.name!r} has type {keys.dtype}; keys must be text or whole numbers"
    )


def write_secret(path: Path) -> None:
    """Write a fresh shared secret, readable by its owner alone; refuse to overwrite one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; move it away to make a new secret") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")


def read_secret(path: Path) -> bytes:
    """Read a shared secret: 64 hexadecimal digits."""
    try:
        text = read_private(path, "key secret").decode("ascii").strip()
    except OSError as error:
        raise ConfigError(f"key secret {path} cannot be read: {error.strerror}") from error
    except ValueError:
        text = ""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"key secret {path} must hold {2 * SECRET_BYTES} hexadecimal digits")
    return secret
