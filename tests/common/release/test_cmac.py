"""AES-CMAC of columns: the standard's vectors, the library's tags, and what may not go in."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from cryptography.hazmat.primitives import cmac
from cryptography.hazmat.primitives.ciphers import algorithms

from labelveil.common.release.cmac import _SLICE_ROWS, CMAC

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


WYCHEPROOF = [
    "f942093842808ba47f64e427f7351dde6b9546e66de4e7d60aa6f328182712cf",
    "852a21d92848e627c7",
    "a5a877f22ac743b7fb9e050d2e3ddb02",
    "64be162b39c6e5f1fed9c32d9f674d9a8cde6eaa2443214d86bd4a1fb53b81b4",
    "195a3b292f93baff0a2c",
    "6ea172e5c4d2fac075ca602de5757a62",
    "b259a555d44b8a20c5489e2f38392ddaa6be9e35b9833b67e1b5fdf6cb3e4c6c",
    "afd73117330c6e8528a6e4",
    "68020bfc9bd73fd80d3ce581ba3b1208",
    "2c6fc62daa77ba8c6881b3dd6989898fef646663cc7b0a3db8228a707b85f2dc",
    "0ff54d6b6759120c2e8a51e3",
    "110edd727a9bf7fa11a6358afe617d9d",
    "abab815d51df29f740e4e2079fb798e0152836e6ab57d1536ae8929e52c06eb8",
    "f0058d412a104e53d820b95a7f",
    "1fa24c6625a0f8e1fc37827ac84d3cc4",
    "3d5da1af83f7287458bff7a7651ea5d8db72259401333f6b82096996dd7eaf19",
    "aacc36972f183057919ff57b49e1",
    "868765a8fa6aa898ddec0f4123e996be",
    "c19bdf314c6cf64381425467f42aefa17c1cc9358be16ce31b1d214859ce86aa",
    "5d066a92c300e9b6ddd63a7c13ae33",
    "b96818b7acaf879c7a7f8271375a6914",
    "612e837843ceae7f61d49625faa7e7494f9253e20cb3adcea686512b043936cd",
    "cc37fae15f745a2f40e2c8b192f2b38d",
    "4b88e193000c5a4b23e95c7f2b26530b",
    "73216fafd0022d0d6ee27198b2272578fa8f04dd9f44467fbb6437aa45641bf7",
    "d5247b8f6c3edcbfb1d591d13ece23d2f5",
    "86911c7da51dc0823d6e93d4290d1ad4",
    "0427a70e257528f3ab70640bba1a5de12cf3885dd4c8e284fbbb55feb35294a5",
    "13937f8544f44270d01175a011f7670e93fa6ba7ef02336e",
    "ccb2c51bfbe2598f9109fc70ed07f0eb",
    "96e1e4896fb2cd05f133a6a100bc5609a7ac3ca6d81721e922dadd69ad07a892",
    "91a17e4dfcc3166a1add26ff0e7c12056e8a654f28a6de24f4ba739ceb5b5b18",
    "925f177d85ea297ef14b203fe409f9ab",
]
"""Key, message and tag: Project Wycheproof (github.com/C2SP/wycheproof), aes_cmac_test.json, tests
212 to 222, the valid ones of 256-bit keys with 9 bytes and more (Apache 2.0)."""


@pytest.mark.parametrize("test", range(212, 223))
def test_wycheproofs_vectors(test: int) -> None:
    key, message, tag = map(bytes.fromhex, WYCHEPROOF[3 * (test - 212) :][:3])
    made = CMAC(key).messages(message, np.array([len(message)]))
    assert made.tobytes() == tag
    assert CMAC(key).messages(message + b"\0", np.array([len(message) + 1])).tobytes() != tag


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
