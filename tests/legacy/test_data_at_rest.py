"""What version 0.1 left on disk, before modules and programs were renamed, still works.

``0.1/`` is a simulated run on 300 synthetic events, with what `label-party budget --json` said.
``half_fetched/`` is the release of 600 more whose stream broke after 300: what ``fetch`` then kept,
and what was served.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from common.release.table import read_release
from feature_party.client.release_client import ReleaseClient
from labelveil.programs import feature_party, label_party, labelveil
from tests.commands import RunCommand
from tests.feature_party.servers import (
    QUICK,
    Behaviour,
    certificates,
    client_settings,
    serving,
)
from tests.feature_party.worlds import World

OLD = Path(__file__).parent / "0.1"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    (tmp_path / "old" / "label_party" / "store").chmod(0o700)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as the programs set it; put back afterwards
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def test_its_release_has_a_certificate(old: Path, run_command: RunCommand) -> None:
    done = run_command(labelveil, "audit", "certificate", "release", "--out", "audit")
    assert done.code == 0, done
    verdicts = json.loads((old / "audit" / "audit.json").read_text())
    assert verdicts["verdict"] == "pass"


def test_its_store_serves_the_same_bytes(old: Path) -> None:
    stored = old / "label_party" / "store" / "releases" / "events" / "1"
    fetched = read_release(old / "release")
    assert (stored / "manifest.json").read_bytes() == fetched.manifest_bytes
    assert (stored / "codes.bin").read_bytes() == bytes(fetched.labels["code"].to_list())


def test_its_ledger_reads_the_same(
    old: Path, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old / "label_party")
    done = run_command(label_party, "budget", "--json")
    assert done.code == 0, done
    (now,), (then,) = json.loads(done.out), json.loads((OLD / "budget.json").read_text())
    for amount in ("total", "spent", "left"):
        assert now[amount] == then[amount]
    for one, other in zip(now["charges"], then["charges"], strict=True):
        assert one | other == one


def test_its_model_predicts_the_same(
    old: Path, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(old / "feature_party")
    done = run_command(feature_party, "predict", "--output", "again.parquet", "--quiet")
    assert done.code == 0, done
    then, now = pl.read_parquet(OLD / "predictions.parquet"), pl.read_parquet("again.parquet")
    assert_frame_equal(now.select("id", "prediction"), then.select("id", "prediction"))


def test_its_half_fetched_release_is_resumed(old: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    half = old / "half_fetched"
    release = read_release(half / "served")
    keys = b"".join(release.labels["key"].to_list())
    codes = bytes(release.labels["code"].to_list())
    nowhere = Path()
    served = World(half / "served", nowhere, nowhere, nowhere, release, keys, codes)
    files, behaviour = certificates(tmp_path / "certificates"), Behaviour()
    with serving(served, behaviour, files) as address:
        fetched = ReleaseClient(client_settings(address, files), QUICK).fetch(half)
    assert behaviour.started_at == [256]  # the first block, which had arrived whole, is kept
    assert (fetched.received, fetched.rows) == (344, 600)
    assert read_release(half).labels.equals(release.labels)
