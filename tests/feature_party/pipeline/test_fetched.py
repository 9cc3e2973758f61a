"""Releases come into their folders, withdrawals are told, and keys are sent and kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from labelveil.common.errors import ConnectionFailed, ReleaseError
from labelveil.common.release.folder import (
    CHECK_FILE,
    POPULATION_FILE,
    QUESTION_FILE,
    mark_withdrawn,
)
from labelveil.common.release.table import write_release
from labelveil.feature_party.client.channel import Withdrawn
from labelveil.feature_party.client.release_client import Fetched, ReleaseClient
from labelveil.feature_party.client.submission import FROZEN, Population, SubmittingClient
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.pipeline.learning import Learning
from labelveil.feature_party.pipeline.transfer import Transfer, kept_in, read_kept
from tests.common.release.releases import make_release
from tests.feature_party.pipeline.configured import TWO, configured, said
from tests.feature_party.worlds import World


def test_a_withdrawn_release_is_refused_or_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, keys, codes = make_release(40)
    write_release(tmp_path / "r", manifest.to_bytes(), keys, codes)
    release = {"directory": tmp_path / "r"}
    stages = Transfer(FeaturePartyConfig.model_validate({"release": release}))
    stages.check_withdrawn()
    assert stages.withdrawn == []
    mark_withdrawn(tmp_path / "r", "labels of another table")
    reason = f"the release in {tmp_path / 'r'} was withdrawn by its labels party: labels of another"
    assert stages.withdrawn == [f"{reason} table"]
    with pytest.raises(ReleaseError, match=r"fetch another, or set .release. withdrawn = true"):
        stages.check_withdrawn()
    features = {"features": tmp_path / "features.parquet", "key": "event"}
    config = FeaturePartyConfig.model_validate({"release": release, "data": features})
    with pytest.raises(ReleaseError, match=r"was withdrawn .*; fetch another"):
        Learning(config).join()  # nor is it joined
    assert said(capsys) == ""
    anyway = {"release": release | {"withdrawn": True}}
    Transfer(FeaturePartyConfig.model_validate(anyway)).check_withdrawn()
    assert "was withdrawn by its labels party: labels of another table" in said(capsys)
    assert [each.to_bytes() for each in stages.manifests] == [manifest.to_bytes()]


def test_every_release_is_fetched_into_its_folder(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, list[str], Path]] = []
    fails: dict[str, Exception] = {}

    def fetch(client: ReleaseClient, folder: Path, show: Any) -> Fetched:
        party = client.settings
        asked.append((party.called, party.epoch, party.epochs, folder.relative_to(tmp_path)))
        if party.called in fails:
            raise fails[party.called]
        return Fetched(world.release.manifest, folder, 5, 0.1)

    monkeypatch.setattr(ReleaseClient, "fetch", fetch)

    def fetched(parties: Any) -> list[Fetched]:
        asked.clear()
        values = {"labels_party": parties, "release": {"directory": tmp_path}}
        stages = Transfer(FeaturePartyConfig.model_validate(values), quiet=True)
        found = stages.fetch()
        assert stages.timings.keys() == {"fetch"}
        return found

    fetched({"data_set": "x", "epoch": "1"})
    assert asked == [("x", "1", [], Path())]
    fetched({"data_set": "x", "epochs": ["1", "2"]})
    assert asked == [("x", "1", [], Path("1")), ("x", "2", [], Path("2"))]
    fetched([TWO[0], TWO[1] | {"epochs": ["3"]}])
    assert asked == [("a", "", [], Path("a")), ("b", "3", [], Path("b/3"))]
    for error in (ConnectionFailed("nobody"), ReleaseError("no")):
        fails["a"] = error
        with pytest.raises(ConnectionFailed) as caught:
            fetched(TWO)
        assert str(caught.value) == (
            "1 of 2 labels parties did not send their release, those of the others are here;"
            f" a: {error}"
        )
        assert [each[0] for each in asked] == ["a", "b"]
        with pytest.raises(type(error)):  # an only one's is its own
            fetched(TWO[0])


def test_a_withdrawal_is_told_with_what_was_lost(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    done = Fetched(world.release.manifest, tmp_path, 5, 0.1)
    results: list[Any] = []

    def fetch(*_: Any) -> Fetched:
        if isinstance(results[0], Exception):
            raise results[0]
        found: Fetched = results[0]
        return found

    monkeypatch.setattr(ReleaseClient, "fetch", fetch)

    def fetched(**release: Any) -> list[Fetched]:
        values = {"release": {"directory": world.directory, **release}}
        return Transfer(FeaturePartyConfig.model_validate(values), quiet=True).fetch()

    results[:] = [done]
    fetched()
    assert said(capsys) == ""
    results[:] = [replace(done, withdrawn="wrong", replaced=("old", "zero"))]
    fetched()
    assert "withdrawn its release of data set 'old', epoch 'zero': wrong" in said(capsys)
    results[:] = [replace(done, withdrawn="wrong")]
    fetched()
    assert "withdrawn its release of data set 'sales', epoch 'one': wrong" in said(capsys)
    results[:] = [Withdrawn("it is withdrawn", "a mistake")]
    with pytest.raises(Withdrawn):
        fetched()
    (kept,) = fetched(withdrawn=True)  # what is here is learned from all the same
    assert (kept.received, kept.withdrawn, kept.directory) == (0, "a mistake", world.directory)
    assert "epoch 'one': a mistake" in said(capsys)


def test_what_was_submitted_is_kept_where_its_release_will_answer_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stages = Transfer(configured(world, tmp_path, labels_party={"epoch": "one"}), quiet=True)
    population, folder = Population(b"k" * 32, b"c" * 16, b"what?"), tmp_path / "to"
    during: list[Path | None] = []
    ending = [FROZEN]

    def submit(*_: Any) -> str:
        during.append(kept_in(folder))
        return ending[0]

    monkeypatch.setattr(SubmittingClient, "submit", submit)
    sums: list[Any] = [SimpleNamespace(question="0" * 64)]
    described = lambda *_: SimpleNamespace(sums=sums[0])  # noqa: E731
    monkeypatch.setattr(SubmittingClient, "describe", described)
    assert stages.submit(population, folder) == FROZEN
    assert during == [folder / "submission"]
    assert kept_in(folder) is None
    assert "the release exists, and answers another question than this one" in said(capsys)
    asked = hashlib.sha256(b"what?").hexdigest()
    for sums[0] in (None, SimpleNamespace(question=asked)):
        assert stages.submit(population, folder) == FROZEN
        assert kept_in(folder) == folder
        (folder / POPULATION_FILE).unlink()
    sums[0], ending[0] = SimpleNamespace(question="0" * 64), "stored"
    assert stages.submit(population, folder) == "stored"
    assert said(capsys) == ""
    kept = read_kept(folder, b"other")
    assert (kept.keys, kept.question, kept.secret_check) == (b"k" * 32, b"what?", b"c" * 16)
    (folder / CHECK_FILE).unlink()
    assert read_kept(folder, b"other").secret_check == b"other"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [POPULATION_FILE, QUESTION_FILE]
    )
    assert stages.timings.keys() == {"submit"}


def test_features_are_the_population(world: World, tmp_path: Path) -> None:
    stages = Transfer(configured(world, tmp_path), quiet=True)
    found = stages.population()
    events = pl.read_parquet(world.features)["event"]
    sent = {world.keys[at : at + 16] for at in range(0, len(world.keys), 16)}
    assert found.rows == events.len()
    assert {found.keys[at : at + 16] for at in range(0, len(found.keys), 16)} == sent
    with pytest.raises(ReleaseError):
        stages.submit_all(b"no question")
