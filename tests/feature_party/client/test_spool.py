"""Rows that come: whole blocks, in order, as many as are stated, each code an output."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.release.folder import LABELS_FILE, WITHDRAWN_FILE
from labelveil.feature_party.client.release_client import (
    Fetched,
)
from labelveil.feature_party.client.spool import PARTIAL, Spool
from tests.feature_party.worlds import World, four_codes


def test_rows_fetched_are_those_of_the_manifest(world: World) -> None:
    manifest = world.release.manifest
    assert Fetched(manifest, Path(), 7, 0.0).rows == manifest.rows == 1500


def test_rows_are_taken_in_from_the_next_one_on_and_no_more_than_are_stated(
    world: World, tmp_path: Path
) -> None:
    manifest = world.release.manifest
    keys, codes = world.keys, world.codes

    def part(start: int, stop: int) -> tuple[int, bytes, bytes]:
        return start, keys[16 * start : 16 * stop], codes[start:stop]

    with Spool(tmp_path, manifest, world.release.manifest_bytes) as spool:
        assert (spool.append(*part(0, 100)), spool.rows) == (100, 0)  # a block has 256
        for start in (99, 101, 0):
            with pytest.raises(ReleaseError, match=rf"rows from {start} arrived where row 100 was"):
                spool.append(*part(start, 200))
        for mine, theirs in ((16 * 99, 100), (16 * 101, 100), (0, 0)):
            with pytest.raises(ReleaseError, match=f"{mine} bytes of keys arrived with {theirs} "):
                spool.append(100, b"k" * mine, codes[100 : 100 + theirs])
        assert (spool.append(*part(100, 256)), spool.rows) == (156, 256)
        assert (spool.append(*part(256, 1400)), spool.rows) == (1144, 1280)
        with pytest.raises(ReleaseError, match="1,501 rows arrived, but the manifest states 1,500"):
            spool.append(1400, keys[:16] * 101, codes[:1] * 101)
        with pytest.raises(ReleaseError, match="1,280 of 1,500 rows have arrived; run fetch again"):
            spool.finish()
        spool.drop_pending()
        assert (spool.append(*part(1280, 1500)), spool.complete) == (220, True)
        for name in (LABELS_FILE, WITHDRAWN_FILE):
            (tmp_path / name).write_text("of another release")
        spool.finish()
    there = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert there == {
        "keys.bin": keys,
        "codes.bin": codes,
        "manifest.json": world.release.manifest_bytes,
    }


def test_a_spool_goes_on_after_whole_blocks_and_forgets_half_ones(
    world: World, tmp_path: Path
) -> None:
    def spool() -> Spool:
        return Spool(tmp_path, world.release.manifest, world.release.manifest_bytes)

    with spool() as first:
        first.append(0, world.keys[: 16 * 600], world.codes[:600])
        assert first.rows == 512
    folder = tmp_path / PARTIAL
    for name, width in (("keys.bin", 16), ("codes.bin", 1)):
        path = folder / name
        assert path.stat().st_size == 512 * width
        path.write_bytes(path.read_bytes() + b"half a block" * width)
    with spool() as second:
        assert second.rows == 512
        second.append(512, world.keys[16 * 512 :], world.codes[512:])
        second.finish()  # keys of earlier blocks count for the population's digest
    assert (tmp_path / "codes.bin").read_bytes() == world.codes
    folder.mkdir()
    (folder / "keys.bin").write_bytes(world.keys)
    damaged = bytearray(world.codes)
    damaged[300] ^= 1
    (folder / "codes.bin").write_bytes(damaged)
    (folder / "manifest.json").write_bytes(world.release.manifest_bytes)
    with spool() as third:
        assert third.rows == 256
    shutil.rmtree(folder)
    manifest = world.release.manifest
    other = manifest.population.model_copy(update={"digest": "0" * 64})
    claimed = manifest.model_copy(update={"population": other})
    with Spool(tmp_path, claimed, world.release.manifest_bytes) as fourth:
        fourth.append(0, world.keys, world.codes)
        with pytest.raises(ReleaseError, match="do not give the manifest's population digest"):
            fourth.finish()


def test_room_for_just_as_many_bytes_is_enough(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    with Spool(tmp_path, world.release.manifest, world.release.manifest_bytes) as spool:
        spool.append(0, world.keys[: 16 * 256], world.codes[:256])
        missing = (1500 - 256) * 17
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=missing))
        spool.check_room()
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=missing - 1))
        with pytest.raises(ReleaseError, match=f"{missing:,} bytes .* for {missing - 1:,}"):
            spool.check_room()


@pytest.mark.parametrize(("outputs", "refused"), [(4, False), (3, True)])
def test_a_code_that_is_no_output_is_refused(tmp_path: Path, outputs: int, refused: bool) -> None:
    manifest, keys, codes = four_codes(outputs)
    with Spool(tmp_path, manifest, manifest.to_bytes()) as spool:
        if refused:
            with pytest.raises(ReleaseError, match="code 3 is outside the 3 outputs"):
                spool.append(0, keys, codes)
        else:
            assert spool.append(0, keys, codes) == 4


def test_codes_of_two_bytes_arrive_whole(tmp_path: Path) -> None:
    manifest, keys, codes = four_codes(300)
    with Spool(tmp_path, manifest, manifest.to_bytes()) as spool:
        assert spool.append(0, keys[:48], codes[:6]) == 3
        with pytest.raises(ReleaseError, match="rows from 2 arrived where row 3 was due"):
            spool.append(2, keys[32:48], codes[4:6])
        with pytest.raises(ReleaseError, match="16 bytes of keys arrived with 3 of codes"):
            spool.append(3, keys[48:], codes[6:] + b"x")
        assert spool.append(3, keys[48:], codes[6:]) == 1
        spool.finish()
    assert (tmp_path / "codes.bin").read_bytes() == codes
