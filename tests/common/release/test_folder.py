"""Releases: what was written is what is read, and nothing that was touched passes."""

from __future__ import annotations

import copy
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelveil.common.errors import ReleaseError
from labelveil.common.release.blocks import block_ranges, decode_codes, encode_codes
from labelveil.common.release.folder import (
    CODES_FILE,
    KEYS_FILE,
    MANIFEST_FILE,
    release_folders,
)
from labelveil.common.release.heading import read_heading
from labelveil.common.release.manifest import (
    Manifest,
    block_digest,
    content_digest,
    manifest_digest,
    manifest_in,
)
from labelveil.common.release.rows import keys_bytes, keys_column
from labelveil.common.release.table import Release, read_release, write_release
from tests.common.release.releases import make_release, text_of

MANIFEST, KEYS, CODES = make_release(200)
DATA = MANIFEST.to_bytes()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    directory = tmp_path / "release"
    write_release(directory, DATA, KEYS, CODES)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 64, 65, 200])
@pytest.mark.parametrize("keyed", [True, False])
def test_round_trip(tmp_path: Path, rows: int, keyed: bool) -> None:
    manifest, keys, codes = make_release(rows, keyed=keyed)
    data = manifest.to_bytes()
    write_release(tmp_path, data, keys, codes)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        CODES_FILE,
        KEYS_FILE,
        MANIFEST_FILE,
    ]
    release = read_release(str(tmp_path))
    assert isinstance(release, Release)
    assert release.manifest == manifest
    assert release.manifest_bytes == data
    assert release.manifest.to_bytes() == data
    assert encode_codes(release.codes, 1) == codes
    assert release.labels["label"].to_list() == manifest.channel.outputs[release.codes].tolist()
    if keyed:
        assert keys_bytes(release.labels["key"]).tobytes() == keys
    else:
        assert release.labels["key"].null_count() == rows


@pytest.mark.slow
def test_two_byte_codes_round_trip(tmp_path: Path) -> None:
    manifest, keys, codes = make_release(
        2000, points=300, epsilon=25.0, randomizer="randomized-response"
    )
    assert manifest.content.code_bytes == 2
    write_release(tmp_path, manifest.to_bytes(), keys, codes)
    assert read_release(tmp_path).codes.max() > 255


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=50))
def test_key_columns_are_their_bytes(keys: list[bytes]) -> None:
    column = keys_column(b"".join(keys))
    assert column.to_list() == keys
    assert column.dtype == pl.Binary
    assert keys_bytes(column).tobytes() == b"".join(keys)
    assert keys_bytes(column[1:]).tobytes() == b"".join(keys[1:])


@given(st.lists(st.integers(0, 65_535)))
def test_codes_are_little_endian(codes: list[int]) -> None:
    array = np.array(codes, dtype=np.uint16)
    wide = encode_codes(array, 2)
    assert wide == b"".join(code.to_bytes(2, "little") for code in codes)
    assert decode_codes(wide, 2).tolist() == codes
    low = array % 256
    assert decode_codes(encode_codes(low, 1), 1).tolist() == low.tolist()


def test_the_digest_names_the_bytes() -> None:
    assert len(manifest_digest(DATA)) == 64
    assert manifest_digest(DATA) != manifest_digest(DATA + b" ")


def flips(data: bytes) -> list[bytes]:
    return [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]


def test_a_code_that_stands_for_nothing_is_refused(tmp_path: Path) -> None:
    """Its digests are right: whoever wrote the manifest sent it."""
    codes = bytes([MANIFEST.channel.outputs.size]) + CODES[1:]
    blocks = [
        block_digest(KEYS[16 * start : 16 * stop], codes[start:stop])
        for start, stop in block_ranges(len(codes), MANIFEST.content.block_rows)
    ]
    data = json.loads(DATA)
    data["content"] |= {"blocks": blocks, "digest": content_digest(blocks)}
    write_release(tmp_path, Manifest.model_validate(data).to_bytes(), KEYS, codes)
    with pytest.raises(ReleaseError, match="outside the"):
        read_release(tmp_path)


def test_every_touched_byte_of_the_manifest_is_noticed() -> None:
    """A changed byte makes the manifest invalid, or changes what it is called."""
    assert manifest_digest(DATA) not in map(manifest_digest, flips(DATA))
    for touched in flips(DATA)[::5]:
        with suppress(ReleaseError):  # never anything else
            Manifest.from_bytes(touched)


def test_a_submitted_population_has_no_keys(tmp_path: Path) -> None:
    manifest, _, codes = make_release(80, keyed=False)
    write_release(tmp_path, manifest.to_bytes(), b"", codes)
    assert read_release(tmp_path).labels["key"].null_count() == 80
    write_release(tmp_path, manifest.to_bytes(), KEYS[: 80 * 16], codes)
    with pytest.raises(ReleaseError, match="bytes of keys"):
        read_release(tmp_path)


def test_a_missing_or_broken_file_is_told(stored: Path) -> None:
    (stored / CODES_FILE).unlink()
    with pytest.raises(ReleaseError, match=r"codes\.bin is missing"):
        read_release(stored)
    (stored / MANIFEST_FILE).unlink()
    with pytest.raises(ReleaseError, match="is missing"):
        read_release(stored)


def test_a_crash_while_writing_leaves_no_manifest(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, keys, codes = make_release(100)
    replace, renamed = Path.replace, []

    def fail_at_the_manifest(self: Path, target: Path) -> Path:
        renamed.append(target.name)
        if target.name == MANIFEST_FILE:
            raise OSError("power cut")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail_at_the_manifest)
    with pytest.raises(ReleaseError, match="power cut"):
        write_release(stored, other.to_bytes(), keys, codes)
    assert renamed == [KEYS_FILE, CODES_FILE, MANIFEST_FILE]
    assert sorted(path.name for path in stored.iterdir()) == [CODES_FILE, KEYS_FILE]
    with pytest.raises(ReleaseError, match="is missing"):
        read_release(stored)


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReleaseError, match="cannot be written"):
        write_release(tmp_path / "file", DATA, KEYS, CODES)


def changed(*path: Any, value: Any) -> bytes:
    data = copy.deepcopy(json.loads(DATA))
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return json.dumps(data).encode()


TOTAL = 1 << 64


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{}",
        DATA.decode().encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        DATA.replace(b'"epoch"', b'"data_set":"x","epoch"', 1),
        DATA.replace(b'"requested_epsilon":1.0', b'"requested_epsilon":NaN'),
        DATA.replace(b'"requested_epsilon":1.0', b'"requested_epsilon":Infinity'),
        DATA.replace(b'"requested_epsilon":1.0', b'"requested_epsilon":1e400'),
        DATA.replace(b'"requested_epsilon":1.0', b'"requested_epsilon":' + b"9" * 5000),
        DATA.replace(b'"details":{', b'"details":{"x":1e999,'),
        changed("format", value="labelveil-release/9"),
        changed("more", value=1),
        changed("labels", 0, "grid", value=[0, 1]),
        changed("labels", 0, "grid", value="01234"),
        changed("labels", 0, "grid", 0, value=0.25),
        changed("labels", 0, "missing", value="0"),
        changed("priors", 0, "noisy_counts", value=[1, 2]),
        changed("priors", 0, "noisy_counts", 0, value=1.5),
        changed("priors", 0, "noisy_counts", 0, value=10**30),
        changed("priors", 0, "noisy_counts", 0, value="7"),
        changed("priors", 0, "scale", value="1e999999999"),
        changed("priors", 0, "scale", value="1/0"),
        changed("priors", 0, "scale", value="8"),
        changed("priors", 0, "scale", value=16),
        changed("priors", 0, "noise", value="laplace"),
        changed("priors", 0, "guarantee", value={}),
        changed("priors", 0, "guarantee", "epsilon", value="1e999999999"),
        changed("priors", 0, "guarantee", "epsilon", value="9" * 400),
        changed("priors", 0, "guarantee", "epsilon", value=0.125),
        changed("priors", 0, "guarantee", "epsilon", value="0"),
        changed("priors", 0, "guarantee", "kind", value=["pure"]),
        changed("priors", 0, "guarantee", "kind", value="zcdp"),
        changed("priors", 0, "guarantee", "unit", value="user"),
        changed("priors", 0, "guarantee", "adjacency", value="add-remove"),
        changed("randomizers", 0, "guarantee", "epsilon", value="1/2"),
        changed("randomizers", 0, "guarantee", "epsilon", value="1/0"),
        changed("randomizers", 0, "channel", value={}),
        changed("randomizers", 0, "channel", value=[]),
        changed("randomizers", 0, "channel", "rows", 0, value="1"),
        changed("randomizers", 0, "channel", "rows", 0, value=1.5),
        changed("randomizers", 0, "channel", "rows", 0, value=text_of([TOTAL - 1, 2])),
        changed("randomizers", 0, "channel", "rows", 0, value=text_of(range(1, 8))),
        changed("randomizers", 0, "channel", "row_of", 0, value=-1),
        changed("randomizers", 0, "channel", "row_of", 0, value=-2),
        changed("randomizers", 0, "channel", "row_of", 0, value=99),
        changed("randomizers", 0, "channel", "row_of", 0, value=10**400),
        changed("randomizers", 0, "channel", "outputs", 0, value=10**400),
        changed("privacy", "requested_epsilon", value=0.5),
        changed("privacy", "requested_epsilon", value=0),
        changed("privacy", "records_per_unit", value=2),
        changed("privacy", "records_per_unit", value=0),
        changed("privacy", "records_per_unit", value=True),
        changed("privacy", "total", "epsilon", value="9/10"),
        changed("privacy", "total", "unit", value="user"),
        changed("population", "rows", value=0),
        changed("population", "rows", value=10**18),
        changed("population", "rows", value=1000),
        changed("population", "keys", value="submitted"),
        changed("population", "digest", value="zz"),
        changed("content", "code_bytes", value=2),
        changed("content", "code_bytes", value=3),
        changed("content", "key_bytes", value=0),
        changed("content", "block_rows", value=0),
        changed("content", "block_rows", value=40),
        changed("content", "blocks", 0, value="00" * 32),
        changed("content", "blocks", 0, value="AB" * 32),
        changed("content", "blocks", 0, value="00 " * 32),
        changed("content", "blocks", value=[]),
        changed("content", "digest", value="00" * 32),
    ],
)
def test_a_hostile_manifest_is_refused_in_one_line(data: bytes) -> None:
    assert data != DATA
    with pytest.raises(ReleaseError) as caught:
        Manifest.from_bytes(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_manifest_too_large_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelveil.common.release.strict_json.MANIFEST_BYTES", 100)
    with pytest.raises(ReleaseError, match="the most allowed is 100"):
        Manifest.from_bytes(DATA)


@pytest.mark.parametrize("group", [2, 3])
def test_a_users_release_states_its_unit(group: int) -> None:
    manifest, _, _ = make_release(100, group=group)
    assert Manifest.from_bytes(manifest.to_bytes()).privacy.records_per_unit == group
    assert "user" in str(manifest.total_guarantee)
    data = json.loads(manifest.to_bytes())
    for section in (data["priors"][0]["guarantee"], data["randomizers"][0]["guarantee"]):
        section["unit"] = "record"
    data["privacy"]["total"]["unit"] = "record"
    with pytest.raises(ReleaseError, match=f"{group} records per unit"):
        Manifest.from_bytes(json.dumps(data).encode())


def test_counts_are_of_the_labels_cells() -> None:
    other, _, _ = make_release(100, points=4)
    mixed = {**MANIFEST.model_dump(), "labels": other.model_dump()["labels"]}
    with pytest.raises(ValueError, match="5 counts or rows for 4 cells"):
        Manifest.model_validate(mixed)


def test_claims_are_exact() -> None:
    manifest = Manifest.from_bytes(DATA)
    channel = manifest.channel
    assert manifest.labels_guarantee.exact_epsilon >= 0
    assert manifest.labels_guarantee.epsilon == channel.epsilon
    assert math.exp(channel.epsilon) == pytest.approx(float(channel.ratio), rel=1e-12)
    total = manifest.prior_guarantee.compose(manifest.labels_guarantee)
    assert manifest.total_guarantee == total
    assert total.exact_epsilon <= 1
    assert manifest.message.histograms[0][1].probabilities.sum() == pytest.approx(1.0)


def test_no_more_of_a_manifest_is_read_than_may_be_there(stored: Path) -> None:
    with (stored / MANIFEST_FILE).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ReleaseError, match="a manifest of 8,388,609 bytes"):
        read_release(stored)


def test_a_manifest_that_is_damaged_is_named_with_its_file(stored: Path) -> None:
    assert manifest_in(stored) == MANIFEST
    (stored / MANIFEST_FILE).write_bytes(DATA[:-9])
    for read in (manifest_in, read_release):
        with pytest.raises(ReleaseError) as caught:
            read(stored)
        said = str(caught.value)
        assert said.startswith(f"{stored / MANIFEST_FILE}: the manifest is not valid JSON")
        assert said.endswith("; fetch the release again if it is damaged")
    older = changed("format", value="labelveil-release/1")
    (stored / MANIFEST_FILE).write_bytes(older)
    with pytest.raises(ReleaseError) as caught:  # which is not damaged
        manifest_in(stored)
    assert "format 1 had several forms" in str(caught.value)
    assert "fetch the release again" not in str(caught.value)
    other = json.loads(changed("population", "digest", value="00" * 32))
    (stored / MANIFEST_FILE).write_bytes(
        json.dumps(other, sort_keys=True, separators=(",", ":")).encode()
    )
    with pytest.raises(ReleaseError, match="do not give the manifest's population digest"):
        read_release(stored)


@pytest.mark.parametrize("damaged", [b"", b"\xff", b"{}", b'{"content":1', DATA[:400]])
def test_a_heading_that_cannot_be_read_is_a_line(damaged: bytes) -> None:
    assert read_heading(DATA).rows == MANIFEST.rows
    with pytest.raises(ReleaseError, match=r"^the manifest cannot be read; restore it"):
        read_heading(damaged)


def test_a_file_of_rows_that_is_missing_is_named(stored: Path) -> None:
    (stored / KEYS_FILE).unlink()
    with pytest.raises(ReleaseError, match=rf"^{stored / KEYS_FILE} cannot be read: No such file"):
        read_release(stored)


def test_a_manifest_alone_is_no_release_and_none_is_missed_without_a_line(stored: Path) -> None:
    for file in (CODES_FILE, MANIFEST_FILE):
        (stored / file).unlink()
        with pytest.raises(ReleaseError, match=rf"^{stored / file} is missing; {stored} is not a"):
            manifest_in(stored)
    write_release(stored, DATA, KEYS, CODES)
    with (stored / MANIFEST_FILE).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ReleaseError, match=rf"^{stored / MANIFEST_FILE}: .* 8,388,609 bytes"):
        manifest_in(stored)


def test_releases_are_found_in_a_data_set_a_folder_of_them_and_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    written = [store / "releases" / "visits" / epoch for epoch in ("2024-02", "2024-01")]
    written.append(store / "releases" / "clicks" / "2024-01")
    for folder in (*written, store / "releases" / "visits" / ".2024-03"):
        folder.mkdir(parents=True)
        (folder / MANIFEST_FILE).touch()
    assert release_folders(store) == release_folders(store / "releases") == sorted(written)
    assert release_folders(store / "releases" / "visits") == sorted(written[:2])
    assert release_folders(written[0]) == []
    (store / "releases" / "clicks" / "empty").mkdir()
    assert release_folders(store / "releases" / "clicks" / "empty") == []
