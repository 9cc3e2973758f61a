"""A release is audited as a store keeps it, as it is when it was fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.run import certificate
from labelveil.audit.verdict import Verdict
from labelveil.common.errors import ReleaseError
from labelveil.common.release.blocks import encode_codes
from labelveil.common.release.folder import MANIFEST_FILE, part_paths, release_folders
from labelveil.common.release.rows import keys_bytes
from labelveil.common.release.table import read_release
from tests.labelveil.audit.conftest import WriteRelease


def store(fetched: Path, folder: Path, part_rows: int = 128) -> Path:
    """Keep a fetched release as a store does, in parts of so many rows."""
    release = read_release(fetched)
    content = release.manifest.content
    folder.mkdir()
    (folder / MANIFEST_FILE).write_bytes(release.manifest_bytes)
    for part, start in enumerate(range(0, release.labels.height, part_rows)):
        rows = release.labels[start : start + part_rows]
        keys, codes = part_paths(folder, part)
        keys.write_bytes(keys_bytes(rows["key"]).tobytes() if content.key_bytes else b"")
        codes.write_bytes(encode_codes(rows["code"].to_numpy(), content.code_bytes))
    return folder


@pytest.mark.parametrize("keyed", [True, False])
def test_both_have_the_same_certificate(write: WriteRelease, tmp_path: Path, keyed: bool) -> None:
    fetched = write(keyed=keyed)
    stored = store(fetched, tmp_path / "stored")
    assert read_release(stored).labels.equals(read_release(fetched).labels)
    verdicts = [
        {check.name: (check.verdict, check.found) for check in certificate(evidence).checks}
        for evidence in map(read_evidence, (fetched, stored))
    ]
    assert verdicts[0] == verdicts[1]


def test_a_damaged_store_is_no_release(write: WriteRelease, tmp_path: Path) -> None:
    stored = store(write(), tmp_path / "stored")
    keys, codes = part_paths(stored, 1)
    data = codes.read_bytes()
    codes.write_bytes(bytes([255]) + data[1:])
    checks = certificate(read_evidence(stored)).checks
    failed = {check.name for check in checks if check.verdict is Verdict.FAIL}
    assert failed == {"outputs", "content digest"}
    for path, content in ((codes, data[1:]), (codes, data * 99), (keys, b"")):
        path.write_bytes(content)
        with pytest.raises(ReleaseError, match="its manifest says"):
            read_evidence(stored)


def test_what_is_not_published_is_no_epoch(write: WriteRelease, tmp_path: Path) -> None:
    data_set = tmp_path / "conversions"
    data_set.mkdir()
    first = store(write(), data_set / "1")
    store(tmp_path / "release", data_set / ".partial-2")
    assert release_folders(data_set) == [first]


def test_a_whole_store_is_read_like_one_data_set_of_it(write: WriteRelease, tmp_path: Path) -> None:
    data_set = tmp_path / "label_store" / "releases" / "conversions"
    data_set.mkdir(parents=True)
    first = store(write(), data_set / "1")
    for folder in (data_set, data_set.parent, tmp_path / "label_store"):
        assert release_folders(folder) == [first]
    assert release_folders(first) == []
