"""Rows on disk are read in any ranges, in whatever parts they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.release.folder import MANIFEST_FILE, part_paths
from labelveil.common.release.rows import open_rows
from labelveil.common.release.table import read_release, write_release
from tests.common.release.releases import make_release

ROWS = 200


def write_wire(folder: Path, *, keyed: bool = True, part_rows: int = ROWS) -> None:
    manifest, keys, codes = make_release(ROWS, keyed=keyed)
    content = manifest.content
    folder.mkdir()
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    for part, start in enumerate(range(0, ROWS, part_rows)):
        stop = start + part_rows
        for path, data, width in zip(
            part_paths(folder, part),
            (keys, codes),
            (content.key_bytes, content.code_bytes),
            strict=True,
        ):
            path.write_bytes(data[start * width : stop * width])


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("part_rows", [1, 33, 64, ROWS])
def test_any_range_is_what_was_sent(tmp_path: Path, keyed: bool, part_rows: int) -> None:
    manifest, keys, codes = make_release(ROWS, keyed=keyed)
    write_release(tmp_path / "whole", manifest.to_bytes(), keys, codes)
    write_wire(tmp_path / "parts", keyed=keyed, part_rows=part_rows)
    rows, width = open_rows(tmp_path / "parts", manifest), 16 if keyed else 0
    for start, stop in [(0, ROWS), (0, 1), (199, ROWS), (32, 34), (5, 5), (63, 129)]:
        found = rows.read(start, stop)
        assert found[0].shape == (stop - start, width)
        assert found[0].tobytes() == keys[width * start : width * stop]
        assert found[1].tolist() == list(codes[start:stop])
    assert read_release(tmp_path / "parts").labels.equals(read_release(tmp_path / "whole").labels)
    with pytest.raises(ReleaseError, match="fetch again"):
        rows.read(150, ROWS + 1)
    first = part_paths(tmp_path / "parts", 0)[not keyed]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(ReleaseError, match=f"{first.name} is shorter than it was"):
        rows.read(0, 1 if part_rows == 1 else ROWS)


def test_a_table_for_other_programs_is_not_read(tmp_path: Path) -> None:
    write_wire(tmp_path / "release")
    (tmp_path / "release" / "labels.parquet").write_bytes(b"no table")
    assert read_release(tmp_path / "release").labels.height == ROWS


@pytest.mark.parametrize("file", [0, 1])
def test_every_damage_is_refused(tmp_path: Path, file: int) -> None:
    write_wire(tmp_path / "release")
    path = part_paths(tmp_path / "release", 0)[file]
    data = path.read_bytes()
    for at in range(0, len(data), len(data) // 70):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(ReleaseError, match="digest"):
            read_release(tmp_path / "release")
    for changed in (data[:-1], data + data, b"", data + b"\0"):
        path.write_bytes(changed)
        with pytest.raises(ReleaseError, match=r"its manifest says|is missing"):
            read_release(tmp_path / "release")
    path.unlink()
    with pytest.raises(ReleaseError, match=r"is missing|cannot be read"):
        read_release(tmp_path / "release")


def test_rows_that_are_not_there_are_counted(tmp_path: Path) -> None:
    write_wire(tmp_path / "release", part_rows=64)
    for path in part_paths(tmp_path / "release", 3):
        path.unlink()
    with pytest.raises(ReleaseError, match="has 192 rows instead of 200"):
        read_release(tmp_path / "release")
