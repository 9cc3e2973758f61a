"""Event keys on the wire: 16 bytes of a keyed function, under a secret that both parties share.

The secret is made for each partner, so that two partners cannot match events by their hashed keys.
A key's canonical text is its UTF-8 string, the digits of an integer or of a decimal without
decimals, of a UUID's 16 bytes the 36 characters ``xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`` in small
letters: the same event hashes alike from CSV and Parquet.

The function is AES-256-CMAC, which runs over whole columns, under a key derived from the secret,
``HMAC-SHA256(secret, 0xff ‖ "aes-256-cmac-128")``.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.files import read_private
from labelveil.common.release.claims import CMAC_KEYS
from labelveil.common.release.cmac import CMAC

if TYPE_CHECKING:
    import polars as pl

SECRET_BYTES = 32
_UUID_BYTES = 16
_UUID_DIGITS = "^(.{8})(.{4})(.{4})(.{4})(.{12})$"

_CHECKED = b"\xff"
"""Hashed to recognise a secret: no text in UTF-8 begins with it, so it is no event's key."""


def hash_keys(keys: pl.Series, secret: bytes) -> bytes:
    """Hash (n,) keys without missing values to n times 16 bytes, in their order."""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"a key secret of {len(secret)} bytes must have {SECRET_BYTES}")
    return _cmac(secret).column(canonical_keys(keys)).tobytes()


def secret_check(secret: bytes) -> bytes:
    """Return 16 bytes by which two parties see that they hash alike, without showing the secret."""
    return _cmac(secret).messages(_CHECKED, np.array([len(_CHECKED)])).tobytes()


def _cmac(secret: bytes) -> CMAC:
    """A key of its own, so that nothing that the secret is used for tells of another."""
    return CMAC(hmac.digest(secret, _CHECKED + CMAC_KEYS.encode(), "sha256"))


def canonical_keys(keys: pl.Series) -> pl.Series:
    """The canonical text of a key column, without its name, which Polars may read as a pattern.

    ``DataError`` unless it is whole, of text, whole numbers or UUIDs.
    """
    import polars as pl

    missing = keys.null_count()
    text = keys.cast(pl.String) if keys.dtype == pl.Null else key_text(keys)
    if missing:
        raise DataError(
            f"key column {keys.name!r} has {missing:,} missing values; every event needs a key"
        )
    if text.null_count():
        raise DataError(
            f"key column {keys.name!r} holds bytes of which {text.null_count():,} are no UUID, for"
            " they are not 16; write keys as text"
        )
    return text


def key_text(keys: pl.Series) -> pl.Series:
    """(n,) canonical texts of keys, each by itself, null where there is none; they have no name.

    ``DataError`` if their type is none of keys', whatever the rows hold.
    """
    import polars as pl

    from labelveil.common.parquet_files import type_words

    name, kind, keys = keys.name, keys.dtype, keys.alias("")
    if kind == pl.Binary:  # Parquet's UUIDs, whether the file calls them so or not
        digits = keys.set(keys.bin.size() != _UUID_BYTES, None).bin.encode("hex")
        return digits.str.replace(_UUID_DIGITS, "$1-$2-$3-$4-$5")
    text = kind in (pl.String, pl.Categorical, pl.Enum)
    if not (text or kind.is_integer() or getattr(kind, "scale", None) == 0):
        raise DataError(
            f"key column {name!r} has type {type_words(kind)}; keys must be text, whole numbers or"
            " UUIDs: cast the column, in pandas by .astype('int64') or .astype('string')"
        )
    return keys.cast(pl.String)


def shown_keys(keys: pl.Series) -> pl.Series:
    """Keys as a table for others has them: UUIDs as text, all others as they are."""
    import polars as pl

    return key_text(keys).alias(keys.name) if keys.dtype == pl.Binary else keys


def read_secret(path: Path) -> bytes:
    """Read a shared secret: 64 hexadecimal digits."""
    try:
        secret = bytes.fromhex(read_private(path, "key secret").decode("ascii").strip())
    except OSError as error:
        raise ConfigError(
            f"key secret {path} cannot be read: {error.strerror}; label-party init --new-secret"
            " makes one and nothing else, of which both parties need a copy: set [keys] secret_file"
        ) from error
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"key secret {path} must hold {2 * SECRET_BYTES} hexadecimal digits")
    return secret
