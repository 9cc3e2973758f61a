"""What the features party says is fetched, joined or written is on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelveil.common.release.table import write_release
from labelveil.common.security.pilot_certificates import CertificateFiles
from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.join.on_disk import JoinSizes, join_to_shards
from tests.feature_party.servers import Behaviour, client_settings, serving
from tests.feature_party.worlds import SECRET, World
from tests.power_cut import watching

SMALL = JoinSizes(slice_rows=256, bucket_rows=300)


def promises_nothing(path: Path) -> bool:
    """What has no name yet, and the folders that all is in: without them nothing is said."""
    hidden = any(part.startswith(".") for part in path.parts)
    return hidden or path in (Path(), Path("above"), Path("above/release"))


def test_what_is_fetched_is_synced(world: World, files: CertificateFiles, tmp_path: Path) -> None:
    with serving(world, Behaviour(), files) as address:
        client = ReleaseClient(client_settings(address, files), RetryPolicy(attempts=1))
        with watching(tmp_path, promises_nothing) as disk:
            client.fetch(tmp_path / "above" / "release")
    assert disk.lost == []


def test_what_is_written_as_a_release_is_synced(world: World, tmp_path: Path) -> None:
    manifest = world.release.manifest.to_bytes()
    with watching(tmp_path, promises_nothing) as disk:
        write_release(tmp_path / "above" / "release", manifest, world.keys, world.codes)
    assert disk.lost == []


@pytest.mark.parametrize("before", [False, True])
def test_what_is_joined_is_synced(world: World, tmp_path: Path, before: bool) -> None:
    world.release.write(tmp_path / "release")
    inputs = JoinInputs((tmp_path / "release",), world.features, "event", (Party(SECRET),))
    out = tmp_path / "above" / "out"
    if before:
        join_to_shards(inputs, out, sizes=JoinSizes(slice_rows=300, bucket_rows=300))
    with watching(tmp_path, lambda path: promises_nothing(path) or path.name == "content") as disk:
        join_to_shards(inputs, out, sizes=SMALL)
    assert disk.lost == []
    assert not before or disk.synced_between(tmp_path / "above", "out")
