"""The configurations that deployments mount, and that every path in them is where it is mounted."""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from labelveil.common.config import load_config
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.label_party.config.sections import load
from tests.deploy.documents import DEPLOY, PARTIES, documents, manifests, pod_of

RELEASE_KEYS = "/etc/labelveil/release"


def paths(value: Any) -> set[str]:
    """Return every absolute path among a configuration's values."""
    if isinstance(value, dict):
        return set().union(*(paths(inner) for inner in value.values()))
    return {value} if isinstance(value, str) and value.startswith("/") else set()


def configured(party: str) -> set[str]:
    file = DEPLOY / party / f"{party.replace('-', '_')}.toml"
    return paths(tomllib.loads(file.read_text()))


def covered(path: str, mounts: set[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(mount) for mount in mounts)


def test_both_files_are_configurations() -> None:
    ours = load(DEPLOY / "label-party" / "label_party.toml")
    theirs = load_config(FeaturePartyConfig, DEPLOY / "feature-party" / "feature_party.toml")
    (party,) = theirs.labels_party
    assert ours.entitlements == {"feature-party": frozenset({party.data_set})}
    assert ours.server.listen.rpartition(":")[2] == party.address.rpartition(":")[2]
    assert ours.data.key == theirs.data.key
    # containers get another address on their command line; a host's stays its own
    assert ours.observability.listen == "127.0.0.1:9464"


@pytest.mark.parametrize("party", PARTIES)
def test_compose_mounts_what_is_configured(party: str) -> None:
    compose = documents(DEPLOY / "compose.yaml")[0]
    names = ["label-party", "release"] if party == "label-party" else [party]
    services = [compose["services"][name] for name in names]
    mounts = {
        entry["target"]
        for service in services
        for entry in (*service["volumes"], *service["secrets"])
    }
    assert all(covered(path, mounts) for path in configured(party)), mounts


@pytest.mark.parametrize("party", PARTIES)
def test_kubernetes_mounts_what_is_configured(party: str) -> None:
    pods = [pod for manifest in manifests(party) if (pod := pod_of(manifest))]
    mounts = {
        mount["mountPath"]
        for pod in pods
        for container in pod["spec"]["containers"]
        for mount in container["volumeMounts"]
    }
    assert all(covered(path, mounts) for path in configured(party)), mounts


def test_the_server_sees_neither_labels_nor_keys() -> None:
    secret = {path for path in configured("label-party") if covered(path, {"/data", RELEASE_KEYS})}
    assert len(secret) == 4
    compose = documents(DEPLOY / "compose.yaml")[0]["services"]["label-party"]
    server = next(m for m in manifests("label-party") if m["kind"] == "StatefulSet")
    [container] = server["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    mounts |= {entry["target"] for entry in (*compose["volumes"], *compose["secrets"])}
    assert not any(covered(path, mounts) for path in secret)
    unit = (DEPLOY / "label-party" / "systemd" / "label-party.service").read_text()
    assert "InaccessiblePaths=-/etc/labelveil/release -/data\n" in unit


def test_what_compose_mounts_exists_or_is_told_to_be_made() -> None:
    compose = documents(DEPLOY / "compose.yaml")[0]
    runbook = (DEPLOY / "RUNBOOK.md").read_text()
    sources = {
        entry["source"]
        for service in compose["services"].values()
        for entry in service["volumes"]
        if entry["type"] == "bind"
    }
    for source in sources:
        there = (DEPLOY / source).exists()
        assert there or source.removeprefix("./") in runbook, source
    for secret in compose["secrets"].values():
        assert Path(secret["file"]).name in runbook
