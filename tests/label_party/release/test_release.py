"""``release``: one message forever, charged before anything can be fetched, or nothing at all."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labelveil.common.release.manifest import Manifest
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import Party
from tests.label_party.store.ledgers import reserve


def release_bytes(party: Party, epoch: str = "1") -> dict[str, bytes]:
    folder = party.store / "releases" / "labels" / epoch
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_release_says_what_it_did(party: Party) -> None:
    done = party.release()
    assert done.code == 0
    assert done.err == ""
    for part in ("200", "100 (given 0)", "ε = 1 ", "ε = 2 of ε = 3", "rr-on-bins"):
        assert part in done.out
    manifest = Manifest.from_bytes(release_bytes(party)["manifest.json"])
    assert manifest.population.rows == 200
    for name in ("software",):
        assert getattr(manifest, name)


def test_the_same_release_again_serves_the_same_bytes_and_spends_nothing(party: Party) -> None:
    party.release()
    before = release_bytes(party)
    party.write_labels({"key": ["event-1"], "label": [3.0]})  # labels changed since: frozen
    again = party.release()
    assert again.code == 0
    assert "already released" in again.out
    assert "nothing spent" in again.out
    assert "ε = 2 of ε = 3" in again.out
    assert release_bytes(party) == before


def test_a_release_is_never_rebuilt_with_other_settings(party: Party) -> None:
    party.release()
    before = release_bytes(party)
    error = party.release(privacy__epsilon=0.5).error
    assert "privacy" in error
    assert "--epoch" in error
    assert release_bytes(party) == before


def test_two_releases_of_the_same_labels_differ(party: Party) -> None:
    assert party.release().code == 0
    assert party.release(data__epoch="2").code == 0
    one, other = release_bytes(party), release_bytes(party, "2")
    assert one["keys.bin"] == other["keys.bin"]
    assert one["codes.bin"] != other["codes.bin"]


def test_a_release_beyond_the_total_is_refused_and_spends_nothing(party: Party) -> None:
    for epoch in ("1", "2"):
        assert party.release(data__epoch=epoch).code == 0
    before = party.run("budget", "--json").out
    error = party.release(data__epoch="3", privacy__epsilon=1.5).error
    for part in ("asked for ε = 1.5", "ε = 1 ", "left of ε = 3", "--epsilon"):
        assert part in error
    assert party.run("budget", "--json").out == before
    assert not (party.store / "releases" / "labels" / "3").exists()


def test_disjoint_epochs_each_have_the_total(party: Party) -> None:
    for epoch in ("1", "2"):
        party.write_population({"key": [f"{epoch}-{i}" for i in range(200)]})
        done = party.release(data__epoch=epoch, privacy__epochs="disjoint", privacy__epsilon=3)
        assert done.code == 0


def test_the_budget_names_who_spent_what_when(party: Party) -> None:
    assert "spent nothing" in party.run("budget").out
    party.release()
    table = party.run("budget").out
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    assert "committed" in table
    assert "left ε = 2" in table
    (account,) = json.loads(party.run("budget", "--json").out)
    (charge,) = account["charges"]
    assert account["left"]["epsilon"] == "2"
    assert charge["guarantee"] == {
        "kind": "pure", "adjacency": "replace-label", "unit": "record", "epsilon": "1",
    }  # fmt: skip
    assert charge["who"]
    assert charge["software"].startswith("labelveil/")
    assert charge["digest"] in party.release().out


def test_a_missing_or_broken_join_secret_is_one_line(party: Party) -> None:
    assert "absent.key" in party.release(keys__secret_file="absent.key").error
    (party.folder / "join.key").write_text("short")
    assert "64 hexadecimal digits" in party.release().error
    assert party.nothing_left()


def test_an_error_while_building_leaves_nothing(party: Party) -> None:
    error = party.release(randomizer__loss="poisson", domain__lower=-5).error
    assert "poisson" in error
    assert party.nothing_left()
    assert party.release().code == 0


def test_a_user_is_protected_as_a_whole(party: Party) -> None:
    keys = [f"event-{i}" for i in range(40)]
    party.write_population({"key": keys, "who": [f"u{i % 5}" for i in range(40)]})
    done = party.release(privacy__unit="user", privacy__user="who", privacy__max_records_per_user=3)
    assert done.code == 0
    assert any(
        line.split() == ["over", "a", "user's", "limit", "25"] for line in done.out.splitlines()
    )
    manifest = Manifest.from_bytes(release_bytes(party)["manifest.json"])
    assert manifest.privacy.records_per_unit == 3
    assert manifest.total_guarantee.unit == "user"
    error = party.release(data__epoch="2").error  # per record now: the two do not add
    assert "do not compose; set [privacy] unit as it was for earlier purchases" in error


def test_only_one_process_builds_at_a_time(party: Party) -> None:
    store = Store(party.store)
    store.create()
    with store.building():
        assert "another process is building" in party.release().error
    assert party.nothing_left()
    assert party.release().code == 0


def test_damaged_releases_are_never_served(party: Party) -> None:
    party.release()
    codes = party.store / "releases" / "labels" / "1" / "codes.bin"
    codes.write_bytes(bytes([codes.read_bytes()[0] ^ 1]) + codes.read_bytes()[1:])
    assert "damaged" in party.release().error
    codes.write_bytes(codes.read_bytes()[:-1])
    assert "damaged" in party.release().error
    (codes.parent / "manifest.json").unlink()
    assert "restore it from a backup" in party.release().error


def test_bytes_that_the_ledger_did_not_commit_are_never_served(party: Party) -> None:
    party.release()
    party.release(data__epoch="2")
    releases = party.store / "releases" / "labels"
    shutil.rmtree(releases / "1")
    (releases / "2").rename(releases / "1")
    assert "not the release that the ledger committed" in party.release().error


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_spends_nothing(party: Party) -> None:
    keys = [f"event-{i}" for i in range(20_000)]
    party.write_population({"key": keys})
    party.write_labels({"key": keys, "label": [float(i % 10) for i in range(20_000)]})

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    ended = _release_process(party.folder, preexec_fn=small_files)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "nothing was spent" in ended.stderr
    assert party.nothing_left()
    assert party.release().code == 0


@pytest.mark.slow
def test_a_read_only_disk_is_one_line_and_spends_nothing(party: Party) -> None:
    mount = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"]).returncode:
        pytest.skip("this system lets nobody make a mount namespace")
    Store(party.store).create()
    script = (
        "mount --bind label_store label_store && mount -o remount,bind,ro label_store"
        f" && exec {sys.executable} -m label_party release"
    )
    ended = _release_process(party.folder, [*mount, "sh", "-c", script])
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "Read-only file system" in ended.stderr
    assert party.nothing_left()


def test_nothing_is_fetchable_before_the_commit(party: Party) -> None:
    store = Store(party.store)
    store.create()
    with store.open_ledger() as ledger:
        reserve(ledger, "labels", "1", party.config().privacy.charge, party.config().privacy.limit)
    assert Catalog(store).find("labels", "1") is None


def _release_process(
    folder: Path, command: list[str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[3])
    return subprocess.run(
        command or [sys.executable, "-m", "labelveil.label_party", "release"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )
