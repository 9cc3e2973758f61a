"""Event keys: hashed as defined, and one event hashes alike wherever it was read from."""

from __future__ import annotations

import hmac
import stat
from pathlib import Path
from uuid import UUID

import polars as pl
import pytest
from cryptography.hazmat.primitives import cmac
from cryptography.hazmat.primitives.ciphers import algorithms
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.security.new_keys import write_secret
from tests.common.security.keys import write_key

SECRET = bytes(range(32))


@given(st.lists(st.text(max_size=80), max_size=10), st.binary(min_size=32, max_size=32))
def test_a_key_is_hashed_as_defined(keys: list[str], secret: bytes) -> None:
    def tag(key: str) -> bytes:
        derived = hmac.digest(secret, b"\xffaes-256-cmac-128", "sha256")
        reference = cmac.CMAC(algorithms.AES(derived))
        reference.update(key.encode())
        return reference.finalize()

    column = pl.Series("k", keys, dtype=pl.String)
    assert hash_keys(column, secret) == b"".join(tag(key) for key in keys)


def test_a_check_tells_secrets_apart() -> None:
    checks = [secret_check(secret) for secret in (SECRET, bytes(32), SECRET)]
    assert len(checks[0]) == 16
    assert checks[0] == checks[2] != checks[1]


def test_one_event_hashes_alike_from_csv_parquet_and_text(tmp_path: Path) -> None:
    numbers = [7, 0, 12_345_678_901, -3]
    reference = hash_keys(pl.Series("k", [str(n) for n in numbers]), SECRET)
    frame = pl.DataFrame({"k": numbers})
    frame.write_csv(tmp_path / "k.csv")
    frame.write_parquet(tmp_path / "k.parquet")
    for column in (
        pl.read_csv(tmp_path / "k.csv")["k"],
        pl.read_csv(tmp_path / "k.csv", infer_schema=False)["k"],
        pl.read_parquet(tmp_path / "k.parquet")["k"],
        frame["k"].cast(pl.String).cast(pl.Categorical),
        frame["k"].cast(pl.Int128),
    ):
        assert hash_keys(column, SECRET) == reference
    assert hash_keys(frame["k"].cast(pl.Decimal(38, 0)), SECRET) == reference
    ids = [UUID("6F9619FF-8B86-D011-B42D-00CF4FC964FF"), UUID(int=5)]
    texts = hash_keys(pl.Series("k", list(map(str, ids))), SECRET)
    assert hash_keys(pl.Series("k", [one.bytes for one in ids]), SECRET) == texts
    small = pl.Series("k", [1, 2, 255])
    for dtype in (pl.UInt8, pl.Int16, pl.UInt64):
        assert hash_keys(small.cast(dtype), SECRET) == hash_keys(small, SECRET)


def test_two_secrets_share_no_key() -> None:
    column = pl.Series("k", ["a", "b"])
    other = hash_keys(column, bytes(32))
    assert not {other[:16], other[16:]} & {hash_keys(column, SECRET)[:16]}


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pl.Series("k", ["a", None]), "1 missing"),
        (pl.Series("k", [1, None]), "1 missing"),
        (pl.Series("k", [1.0, 2.0]), "Float64"),
        (pl.Series("k", [True]), "Boolean"),
        (pl.Series("k", [b"a"]), "1 are no UUID"),
        (pl.Series("k", [1], dtype=pl.Decimal(9, 2)), r"Decimal\(9, 2\)"),
    ],
)
def test_what_is_not_a_key_is_refused(column: pl.Series, said: str) -> None:
    with pytest.raises(DataError, match=said):
        hash_keys(column, SECRET)


def test_a_secret_is_written_once_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = read_secret(path)
    assert len(secret) == 32
    with pytest.raises(ConfigError, match="exists already"):
        write_secret(path)
    assert read_secret(path) == secret
    with pytest.raises(ConfigError, match="cannot be written"):
        write_secret(Path("/proc/missing/secret"))


@pytest.mark.parametrize("content", [b"", b"zz", b"ab" * 31, b"ab" * 33, b"\xff\xfe", "é".encode()])
def test_a_file_that_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    write_key(path, content)
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        read_secret(path)


def test_an_unreadable_secret_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_secret(path)
    with pytest.raises(ConfigError, match="5 bytes must have 32"):
        hash_keys(pl.Series("k", ["a"]), b"short")
