"""Rows on disk are read in any ranges, from the files that are sent and from a table alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ReleaseError
from common.release.folder import MANIFEST_FILE, part_paths
from common.release.rows import TableRows, WireRows, open_rows
from common.release.table import labels_frame, read_release, write_release
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
def test_both_forms_hold_the_same(tmp_path: Path, keyed: bool, part_rows: int) -> None:
    manifest, keys, codes = make_release(ROWS, keyed=keyed)
    write_release(tmp_path / "table", manifest.to_bytes(), labels_frame(manifest, keys, codes))
    write_wire(tmp_path / "wire", keyed=keyed, part_rows=part_rows)
    table, wire = (open_rows(tmp_path / name, manifest) for name in ("table", "wire"))
    assert isinstance(table, TableRows)
    assert isinstance(wire, WireRows)
    for start, stop in [(0, ROWS), (0, 1), (199, ROWS), (32, 34), (5, 5), (63, 129)]:
        found, expected = wire.read(start, stop), table.read(start, stop)
        assert found[0].shape == (stop - start, 16 if keyed else 0)
        assert found[0].tobytes() == expected[0].tobytes()
        assert found[1].tolist() == expected[1].tolist()
    assert read_release(tmp_path / "wire").labels.equals(read_release(tmp_path / "table").labels)
    for rows in (table, wire):
        with pytest.raises(ReleaseError, match="fetch again"):
            rows.read(150, ROWS + 1)


def test_the_rows_that_were_sent_count_where_both_are(tmp_path: Path) -> None:
    write_wire(tmp_path / "release")
    (tmp_path / "release" / "labels.parquet").write_bytes(b"no table")
    assert read_release(tmp_path / "release").labels.height == ROWS


@pytest.mark.parametrize("file", [0, 1])
def test_every_damage_is_refused(tmp_path: Path, file: int) -> None:
    write_wire(tmp_path / "release")
    path = part_paths(tmp_path / "release", 0)[file]
    data = path.read_bytes()
    for at in range(0, len(data), len(data) // 40):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(ReleaseError):
            read_release(tmp_path / "release")
    for changed in (data[:-1], data + data, b"", data + b"\0"):
        path.write_bytes(changed)
        with pytest.raises(ReleaseError, match=r"its manifest says|is missing"):
            read_release(tmp_path / "release")
    path.unlink()
    with pytest.raises(ReleaseError, match=r"is missing|cannot be read"):
        read_release(tmp_path / "release")
