"""The labels party runs where neither torch nor the reporting libraries are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labelveil.common.security.pilot_certificates import Credentials
from tests.common.security.keys import write_key
from tests.label_party.conftest import Party

CHILD = """
import sys

BLOCKED = ("torch", "pandas", "pyarrow", "matplotlib", "jinja2", "sklearn", "feature_party")

def package(name):
    return name.removeprefix("labelveil.").partition(".")[0]

class Absent:
    def find_spec(self, name, path=None, target=None):
        if package(name) in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())

import grpc
from pathlib import Path
from labelveil.label_party.commands import cli
from labelveil.label_party.config import sections as config
from labelveil.label_party.server import run as server
from labelveil.common.wire import label_release_pb2 as wire, label_release_pb2_grpc as stubs

for command in (["release"], ["budget"]):
    sys.argv = ["label-party", *command]
    try:
        cli.main()
    except SystemExit as ended:
        assert ended.code == 0, ended
with server.running(config.load(Path("label_party.toml"))) as address:
    credentials = grpc.ssl_channel_credentials(
        *(Path(name).read_bytes() for name in ("ca.pem", "client.key", "client.pem"))
    )
    with grpc.secure_channel(address, credentials) as channel:
        stub = stubs.LabelReleaseServiceStub(channel)
        assert stub.DescribeRelease(wire.DescribeReleaseRequest(data_set="labels"), timeout=300)
assert not {package(name) for name in sys.modules} & set(BLOCKED)
"""


@pytest.mark.slow
def test_release_and_serve_without_torch(party: Party, client_identity: Credentials) -> None:
    (party.folder / "client.pem").write_bytes(client_identity.certificate_pem)
    write_key(party.folder / "client.key", client_identity.key_pem)
    ended = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=party.folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr


def test_no_repeatable_generator_is_anywhere_near_a_release() -> None:
    root = Path(__file__).parents[3]
    for path in sorted((root / "label_party").rglob("*.py")):
        text = path.read_text()
        for word in ("np.random", "default_rng", "import random\n", "seeded_entropy("):
            assert word not in text, f"{path.name}: {word}"
