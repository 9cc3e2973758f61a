"""Signatures of a manifest: what others' tests accept and refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from labelveil.common.errors import ConfigError
from labelveil.common.release.signature import read_public_key, verify

KEY = "7d4d0e7f6153a69b6242b522abbee685fda4420f8834b108c3bdae369ef549fa"
R = "7c38e026f29e14aabd059a0f2db8b0cd783040609a8be684db12f82a27774ab0"
S = "7a9155711ecfaf7f99f277bad0c6ae7e39d4eef676573336a5c51eb6f946b30d"
VALID = {
    "": "d4fbdb52bfa726b44d1786a8c0d171c3e62ca83c9e5bbe63de0bb2483f8fd6cc"
    "1429ab72cafc41ab56af02ff8fcc43b99bfe4c7ae940f60f38ebaa9d311c4007",
    "78": "d80737358ede548acb173ef7e0399f83392fe8125b2ce877de7975d8b726ef5b"
    "1e76632280ee38afad12125ea44b961bf92f1178c9fa819d020869975bcbe109",
    "54657374": R + S,
    "000000000000000000000000": "d46543bfb892f84ec124dcdfc847034c19363bf3fc2fa89b1267833a14856e52"
    "e60736918783f950b6f1dd8d40dc343247cd43ce054c2d68ef974f7ed0f3c60f",
}
INVALID = {
    "zeros for r and s": ("3f", "00" * 64),
    "one for r": ("3f", "01" + "00" * 63),
    "the group's order for s": (
        "3f",
        "00" * 32 + "edd3f55c1a631258d69cf7a2def9de14" + "00" * 15 + "10",
    ),
    "empty": ("54657374", ""),
    "s is missing": ("54657374", R),
    "two bytes more": ("54657374", R + S + "2020"),
    "the key behind it": ("54657374", R + S + KEY),
    "a zero before it": ("54657374", "00" + R + S),
    "a zero before s": ("54657374", R + "00" + S),
    "bit 0 of r": (
        "313233343030",
        "647c1492402ab5ce03e2c3a7f0384d051b9cf3570f1207fc78c1bcc98c281c2b"
        "1d125e5538f38afbcc1c84e489521083041d24bc6240767029da063271a1ff0c",
    ),
    "the sign of r": (
        "313233343030",
        "657c1492402ab5ce03e2c3a7f0384d051b9cf3570f1207fc78c1bcc98c281cab"
        "227aedf259f910f0f3a759a335062665217925d019173b88917eae294f75d40f",
    ),
    "s + L": ("54657374", R + "67654bce3832c2d76f8f6f5dafc08d9339d4eef676573336a5c51eb6f946b31d"),
}
"""Message and signature: Project Wycheproof (github.com/C2SP/wycheproof), ed25519_test.json of its
version 1, tests 1 to 6, 10, 15, 13, 30, 31, 33 to 36, 42, 59 and 63 (Apache 2.0)."""


@pytest.mark.parametrize("message", VALID)
def test_what_wycheproof_calls_valid_is_accepted(message: str) -> None:
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY))
    assert verify(key, bytes.fromhex(VALID[message]), bytes.fromhex(message))
    assert not verify(key, bytes.fromhex(VALID[message]), bytes.fromhex(message) + b" ")


def test_a_key_of_another_kind_is_none(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    path = tmp_path / "key.pub"
    path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ConfigError, match=f"--key {path} is not an Ed25519 key"):
        read_public_key(path, "--key")


@pytest.mark.parametrize("fault", INVALID)
def test_what_wycheproof_calls_invalid_is_refused(fault: str) -> None:
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY))
    message, signature = map(bytes.fromhex, INVALID[fault])
    assert not verify(key, signature, message)
