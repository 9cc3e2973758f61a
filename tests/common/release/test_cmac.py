"""AES-CMAC of columns: the standard's vectors, the library's tags, and what may not go in."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from cryptography.hazmat.primitives import cmac
from cryptography.hazmat.primitives.ciphers import algorithms

from common.release.cmac import _SLICE_ROWS, CMAC

MESSAGE = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
AES_128 = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
AES_256 = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
VECTORS = {  # RFC 4493, section 4; NIST SP 800-38B, appendix D.3
    AES_128: {
        0: "bb1d6929e95937287fa37d129b756746",
        16: "070a16b46b4d4144f79bdd9dd04a287c",
        40: "dfa66747de9ae63030ca32611497c827",
        64: "51f0bebf7e3b9d92fc49741779363cfe",
    },
    AES_256: {
        0: "028962f61b7bf89efc6b551f4667d983",
        16: "28a7023f452e8f82bd4bf28d8c37c35c",
        40: "aaf3d8f1de5640c232f5b169b9c911e6",
        64: "e1992190549f6ed5696a2c056c315410",
    },
}


@pytest.mark.parametrize("key", VECTORS, ids=["AES-128", "AES-256"])
def test_the_standards_vectors_one_by_one_and_together(key: bytes) -> None:
    vectors = VECTORS[key]
    expected = [bytes.fromhex(tag) for tag in vectors.values()]
    lengths = np.array(list(vectors))
    messages = b"".join(MESSAGE[:length] for length in lengths)
    assert [row.tobytes() for row in CMAC(key).messages(messages, lengths)] == expected
    for length, tag in zip(lengths, expected, strict=True):
        alone = CMAC(key).messages(MESSAGE[:length], np.array([length]))
        assert alone.tobytes() == tag


def test_every_length_and_slice_border_as_the_library_has_it() -> None:
    texts = ["é" * (i % 5) + "x" * (i % 61) for i in range(_SLICE_ROWS + 300)]
    tags = CMAC(AES_256).column(pl.Series(texts))
    for row in [*range(400), *range(_SLICE_ROWS - 200, len(texts))]:
        reference = cmac.CMAC(algorithms.AES(AES_256))
        reference.update(texts[row].encode())
        assert tags[row].tobytes() == reference.finalize()


def test_no_rows_and_wrong_lengths() -> None:
    assert CMAC(AES_256).column(pl.Series([], dtype=pl.String)).shape == (0, 16)
    with pytest.raises(ValueError, match="add up to 3 bytes, but there are 4"):
        CMAC(AES_256).messages(b"four", np.array([1, 2]))
    with pytest.raises(ValueError, match="lengths"):
        CMAC(AES_256).messages(b"four", np.array([6, -2]))
