"""Releases of other versions: one line, who must update and to what, whatever a partner says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.formats import GROUPS, QUESTION, RELEASE
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.peers import own_software, writes_ours
from labelveil.common.security.pilot_certificates import CertificateFiles
from labelveil.common.version import software
from labelveil.common.wire import label_release_pb2 as pb2
from labelveil.feature_party.client.release_client import ReleaseClient
from tests.feature_party.servers import QUICK, Behaviour, client_settings, fetch_error, serving
from tests.feature_party.worlds import World

MAKES_OURS = f"to a version that writes {RELEASE}, as {software()} here does"
UPDATE = f"The labels party must update labelveil before its next epoch, {MAKES_OURS}"
NEWER = f"{RELEASE.name}/{RELEASE.number + 1}"


def changed(world: World, **members: Any) -> bytes:
    document = json.loads(world.release.manifest_bytes) | members
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def first_form(world: World) -> bytes:
    """A manifest of format 1 as it was some time before."""
    document = json.loads(world.release.manifest_bytes)
    del document["strata"], document["population"]["secret_check"]
    population = {"population": document["population"]}
    without = json.loads(changed(world, format="labelveil-release/1", **population))
    del without["strata"]
    text = json.dumps(without, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def refusal(world: World, files: CertificateFiles, folder: Path, behaviour: Behaviour) -> str:
    error = fetch_error(world, files, folder, behaviour)
    assert isinstance(error, ReleaseError)
    assert not list(folder.iterdir())
    assert not behaviour.started_at  # no row was asked for
    return str(error)


def test_a_newer_release_asks_the_features_party_to_update(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    data = changed(world, format=NEWER, software="labelveil/9.0", priors=7, more={"x": 1})
    line = refusal(world, files, tmp_path, Behaviour(manifest=data))
    assert f"has format {NEWER}, which is newer than {software()} reads ({RELEASE.known})" in line
    assert line.endswith("the features party must update labelveil to labelveil/9.0 or newer")


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (
            pb2.Software(),
            UPDATE,
        ),
        (
            pb2.Software(version="labelveil/0.1", formats=["labelveil-release/1"]),
            "The labels party, which runs labelveil/0.1, must update labelveil before its next"
            f" epoch, {MAKES_OURS}",
        ),
        (own_software(), f"The labels party runs {software()} by now: its later epochs can be"),
        (
            pb2.Software(version="labelveil/9\n$(reboot)", formats=["labelveil-release/0"] * 10**5),
            UPDATE,
        ),
        (
            pb2.Software(version="x" * 10**6, formats=["x" * 10**6, "labelveil-release/-1", ""]),
            UPDATE,
        ),
    ],
    ids=["silent", "older", "as ours", "many", "long"],
)
def test_an_older_release_says_whether_the_labels_party_must_update(
    world: World, files: CertificateFiles, tmp_path: Path, says: pb2.Software, expected: str
) -> None:
    line = refusal(world, files, tmp_path, Behaviour(manifest=first_form(world), server=says))
    assert "format 1 had several forms" in line
    assert expected in line
    assert len(line) < 700


def test_what_the_labels_party_says_of_itself_decides_nothing(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    lie = pb2.Software(version="labelveil/0.0", formats=[NEWER, "labelveil-release/0"])
    behaviour = Behaviour(server=lie)
    with serving(world, behaviour, files) as address:
        fetched = ReleaseClient(client_settings(address, files), QUICK).fetch(tmp_path)
    assert fetched.manifest == Manifest.from_bytes(world.release.manifest_bytes)
    (asked,) = behaviour.asked
    assert asked.client == own_software()


def test_own_software_names_what_crosses() -> None:
    said = own_software()
    assert said.version == software()
    assert list(said.formats) == [*RELEASE.read, *QUESTION.read, *GROUPS.read]
    assert writes_ours(said)
    assert not writes_ours(pb2.Software(formats=[*RELEASE.read, NEWER]))


def test_a_manifest_of_another_release_or_digest_is_refused(
    world: World, files: CertificateFiles, tmp_path: Path
) -> None:
    own = Manifest.from_bytes(world.release.manifest_bytes)
    data = own.model_copy(update={"data_set": "others"}).to_bytes()
    assert "instead of 'sales'" in refusal(world, files, tmp_path, Behaviour(manifest=data))
    epoch = fetch_error(world, files, tmp_path, Behaviour(), epoch="another")
    assert f"epoch {own.epoch!r} instead of 'sales', 'another'" in str(epoch)
    assert not list(tmp_path.iterdir())
    line = refusal(world, files, tmp_path, Behaviour(digest=bytes(range(32))))
    assert "does not have the digest it was sent with" in line
