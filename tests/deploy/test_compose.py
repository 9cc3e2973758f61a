"""The compose file: valid by the specification's schema, and hardened in every service."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from labelveil.label_party.config.sections import load
from tests.deploy.documents import DEPLOY, documents, stages

FILE = DEPLOY / "compose.yaml"
CHECKER = Path(sys.executable).parent / "check-jsonschema"
PRIVATE = {"label-party-key", "feature-party-key", "join-key", "signing-key"}


def valid(path: Path) -> bool:
    """Whether a file is a compose file by the specification's own schema."""
    done = subprocess.run(
        [CHECKER, "--builtin-schema", "vendor.compose-spec", path], capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done
    return done.returncode == 0


@pytest.mark.slow
def test_the_schema_accepts_it(tmp_path: Path) -> None:
    assert valid(FILE)
    broken = tmp_path / "compose.yaml"
    broken.write_text(FILE.read_text().replace("read_only: true", "read_olny: true"))
    assert not valid(broken)


def test_every_service_is_hardened() -> None:
    services = documents(FILE)[0]["services"]
    assert set(services) == {"label-party", "release", "feature-party"}
    for name, service in services.items():
        party = "feature-party" if name == "feature-party" else "label-party"
        assert service["user"] == stages(party)[1].last("USER"), name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["build"]["dockerfile"] == f"deploy/{party}/Dockerfile"
        writable = [v["target"] for v in service["volumes"] if not v.get("read_only")]
        assert writable == [stages(party)[1].last("VOLUME")], name


def test_each_service_gets_the_secrets_of_its_own() -> None:
    services = documents(FILE)[0]["services"]
    given = {
        name: {entry["source"] for entry in service["secrets"]} & PRIVATE
        for name, service in services.items()
    }
    assert given == {
        "label-party": {"label-party-key"},
        "release": {"join-key", "signing-key"},
        "feature-party": {"feature-party-key", "join-key"},
    }
    assert services["release"]["network_mode"] == "none"


def test_probes_and_stop_fit_the_server() -> None:
    compose = documents(FILE)[0]
    server = compose["services"]["label-party"]
    config = load(DEPLOY / "label-party" / "label_party.toml")
    assert "/readyz" in server["healthcheck"]["test"][-1]
    assert int(server["stop_grace_period"].removesuffix("s")) > config.server.grace_seconds
    # probes and metrics are published to this host alone
    ports = [re.sub(r"^([\d.]+:)?\d+:", r"\1", port) for port in server["ports"]]
    assert ports == ["50051", "127.0.0.1:9464"]
