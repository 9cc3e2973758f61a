"""The Kubernetes manifests: valid by the published schemas, and consistent among each other."""

from __future__ import annotations

import copy
import shutil
import subprocess
import tomllib
from typing import Any

import kubernetes_validate
import pytest
import yaml

from labelveil.label_party.config.sections import load
from labelveil.label_party.server.health import BEAT_SECONDS
from tests.deploy.documents import DEPLOY, PARTIES, ROOT, documents, manifests, pod_of, stages

VERSIONS = ("1.28", "1.37")
"""The oldest release that is supported, and the newest whose schemas are at hand."""


def check(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def pods(party: str) -> list[tuple[str, dict[str, Any]]]:
    found = [(m["kind"], pod_of(m)) for m in manifests(party)]
    return [(kind, pod) for kind, pod in found if pod is not None]


def named(party: str, kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests(party) if manifest["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("party", PARTIES)
def test_the_schemas_accept_every_object(party: str, version: str) -> None:
    for manifest in manifests(party):
        check(manifest, version)
        broken = copy.deepcopy(manifest)
        broken["spec" if "spec" in broken else "metadata"]["unknown"] = 1
        with pytest.raises(kubernetes_validate.ValidationError):
            check(broken, version)


@pytest.mark.slow
@pytest.mark.parametrize("party", PARTIES)
def test_kustomize_builds_them(party: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / party], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    built = list(yaml.safe_load_all(done.stdout))
    for manifest in built:
        check(manifest, VERSIONS[-1])
        assert manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "labelveil"
        if manifest["kind"] != "Namespace":
            assert manifest["metadata"]["namespace"] == "labelveil"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    made = [pod["spec"] for pod in map(pod_of, built) if pod is not None]
    images = {c["image"] for s in made for c in (*s["containers"], *s.get("initContainers", []))}
    assert images == {f"labelveil/{party}:{version}"}
    [config] = [manifest for manifest in built if manifest["kind"] == "ConfigMap"]
    [(name, text)] = config["data"].items()
    assert text == (DEPLOY / party / name).read_text()


@pytest.mark.parametrize("party", PARTIES)
def test_every_pod_is_restricted(party: str) -> None:
    """What the pod security standard 'restricted' asks for, and a read-only root besides."""
    for kind, pod in pods(party):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, kind
        assert spec["securityContext"]["runAsNonRoot"] is True, kind
        user = f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
        assert user == stages(party)[1].last("USER"), kind
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, kind
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, kind
            assert {"cpu", "memory"} == set(container["resources"]["limits"]), kind
    [space] = named(party, "Namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("party", PARTIES)
def test_names_lead_somewhere(party: str) -> None:
    claims = {claim["metadata"]["name"] for claim in named(party, "PersistentVolumeClaim")}
    runbook = (DEPLOY / "RUNBOOK.md").read_text()
    labels = [pod["metadata"]["labels"] for _, pod in pods(party)]
    for _, pod in pods(party):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", []))
        mounted = {mount["name"] for c in containers for mount in c["volumeMounts"]}
        assert mounted == set(volumes)
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim in claims or claim in runbook, claim
            if "secret" in volume:
                assert volume["secret"]["secretName"] in runbook
            if "configMap" in volume:
                assert volume["configMap"]["name"] == party
    selectors = [m["spec"]["podSelector"]["matchLabels"] for m in named(party, "NetworkPolicy")]
    selectors += [m["spec"]["selector"] for m in named(party, "Service")]
    for selector in selectors:
        assert any(selector.items() <= of.items() for of in labels), selector
    # no pod without a policy
    for of in labels:
        assert any(selector.items() <= of.items() for selector in selectors), of


def test_the_ledger_has_one_server_and_its_jobs_beside_it() -> None:
    [server] = named("label-party", "StatefulSet")
    assert server["spec"]["replicas"] == 1
    assert "updateStrategy" not in server["spec"]  # the default ends the old pod first
    [job] = named("label-party", "CronJob")
    # only when somebody asks for it, and never two of them by a schedule
    assert job["spec"]["suspend"] is True
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    pods_of_the_store = [pod["spec"] for _, pod in pods("label-party")]
    assert len(pods_of_the_store) == 2
    [affinity] = [spec["affinity"] for spec in pods_of_the_store if "affinity" in spec]
    [term] = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"] == server["spec"]["selector"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    stores = {
        volume["persistentVolumeClaim"]["claimName"]
        for spec in pods_of_the_store
        for volume in spec["volumes"]
        if volume["name"] == "store"
    }
    assert stores == {"label-party-store"}


def test_probes_and_ports_fit_the_server() -> None:
    config = load(DEPLOY / "label-party" / "label_party.toml")
    [server] = named("label-party", "StatefulSet")
    spec = server["spec"]["template"]["spec"]
    [container] = spec["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    address = container["args"][-1].removeprefix("observability.listen=")
    assert f":{ports['grpc']}" == f":{config.server.listen.rpartition(':')[2]}"
    assert address == f"0.0.0.0:{ports['observability']}"
    paths = {
        name: container[name]["httpGet"]["path"]
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz",
    }  # fmt: skip
    for name in ("livenessProbe", "readinessProbe"):
        assert container[name]["timeoutSeconds"] > BEAT_SECONDS
    assert spec["terminationGracePeriodSeconds"] > config.server.grace_seconds
    [certificates] = [m for m in container["volumeMounts"] if m["name"] == "certificates"]
    assert "subPath" not in certificates  # or renewed certificates never arrive


def test_everything_runs_the_same_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for party in PARTIES:
        [kustomization] = documents(DEPLOY / party / "kustomization.yaml")
        [image] = kustomization["images"]
        assert image == {"name": f"labelveil/{party}", "newTag": version}
        # the kustomization decides the version of every container, jobs' too
        files = {path.name for path in (DEPLOY / party / "kubernetes").glob("*.yaml")}
        assert {f"kubernetes/{name}" for name in files} == set(kustomization["resources"])
        for _, pod in pods(party):
            containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", []))
            assert {c["image"] for c in containers} == {f"labelveil/{party}"}
    services = documents(DEPLOY / "compose.yaml")[0]["services"]
    images = {service["image"] for service in services.values()}
    assert images == {f"labelveil/{party}:{version}" for party in PARTIES}
