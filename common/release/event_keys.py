"""Event keys on the wire: 16 bytes of a keyed function, under a secret that both parties share.

The secret is made for each partner, so that two partners cannot match events by their hashed keys.
A key's canonical text is its UTF-8 string, an integer's decimal digits: the same event hashes alike
from CSV and Parquet.

The function is AES-256-CMAC, which runs over whole columns, under a key derived from the secret,
``HMAC-SHA256(secret, 0xff ‖ "aes-256-cmac-128")``.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.errors import ConfigError, DataError
from common.files import read_private
from common.release.claims import CMAC_KEYS
from common.release.cmac import CMAC

if TYPE_CHECKING:
    import polars as pl

SECRET_BYTES = 32

_CHECKED = b"\xff"
"""Hashed to recognise a secret: no text in UTF-8 begins with it, so it is no event's key."""


def hash_keys(keys: pl.Series, secret: bytes) -> bytes:
    """Hash (n,) strings or integers without missing values to n times 16 bytes, in their order."""
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

    ``DataError`` unless it is whole, of text or integers.
    """
    import polars as pl

    _check_keys(keys)
    return keys.cast(pl.String).alias("")


def _check_keys(keys: pl.Series) -> None:
    import polars as pl

    missing = keys.null_count()
    if missing:
        raise DataError(
            f"key column {keys.name!r} has {missing:,} missing values; every event needs a key"
        )
    text = keys.dtype in (pl.String, pl.Categorical, pl.Enum)
    if not (text or keys.dtype.is_integer()):
        raise DataError(
            f"key column {keys.name!r} has type {keys.dtype}; keys must be text or whole numbers:"
            " cast the column, in pandas by .astype('int64') or .astype('string')"
        )


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
