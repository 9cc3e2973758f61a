"""The systemd units: systemd itself reads them, and rates how much they leave open."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labelveil.label_party.config.sections import load
from tests.deploy.documents import DEPLOY, stages

UNITS = DEPLOY / "label-party" / "systemd"
SERVICES = ("label-party.service", "label-party-release@.service", "label-party-backup.service")
EXPOSED = {"label-party.service": 1.5}
"""The most that systemd may find exposed, of 10; units without a network have less."""
INSTALLED = Path("/opt/labelveil/bin")


def analyze(*arguments: str | Path) -> str:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True,
        env={**os.environ, "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "cat"},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with commands of this machine, since systemd looks whether they can be run."""
    here = Path(sys.executable).parent
    for path in UNITS.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace(f"{INSTALLED}", f"{here}"))
    return tmp_path


@pytest.mark.parametrize("name", [*SERVICES, "label-party-backup.timer"])
def test_systemd_understands_them(units: Path, name: str) -> None:
    assert analyze("verify", "--man=no", units / name) == ""
    broken = (units / name).read_text().replace("Description=", "Desription=")
    (units / name).write_text(broken)
    assert "Unknown key" in analyze("verify", "--man=no", units / name)


@pytest.mark.parametrize("name", SERVICES)
def test_they_leave_little_open(units: Path, name: str) -> None:
    said = analyze("security", "--offline=yes", units / name)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSED.get(name, 1.0)


def section(name: str) -> configparser.SectionProxy:
    """Return a unit's [Service]; of a key given twice, the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser["Service"]


@pytest.mark.parametrize("name", SERVICES)
def test_they_write_to_the_store_alone(name: str) -> None:
    service = section(name)
    config = load(DEPLOY / "label-party" / "label_party.toml")
    assert service["ProtectSystem"] == "strict"
    assert config.store.directory.is_relative_to(Path("/var/lib") / service["StateDirectory"])
    assert (service["User"], service["CapabilityBoundingSet"]) == ("labelveil", "")
    writable = service.get("ReadWritePaths", "")
    assert writable == ("/var/backups/labelveil" if "backup" in name else "")


def test_the_server_starts_as_the_image_does() -> None:
    service = section("label-party.service")
    config = load(DEPLOY / "label-party" / "label_party.toml")
    assert service["ExecStart"] == f"{INSTALLED}/label-party serve"
    # where the image has its working directory, the configuration is found without a name
    assert service["WorkingDirectory"] == stages("label-party")[1].last("WORKDIR")
    assert int(service["TimeoutStopSec"]) > config.server.grace_seconds
    assert service["Restart"] == "on-failure"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
