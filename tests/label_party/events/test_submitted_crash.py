"""Killing the server at every step of a submission: the old list counts or the new one, whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from common.release.event_keys import read_secret
from label_party.events.submitted import Populations
from label_party.server.run import running
from label_party.store.release_store import Store
from tests.label_party.conftest import Client, Party

Connect = Callable[..., Client]

# Serves, and kills its own process before or after one step of the first submission.
CHILD = """
import os, signal, sys, threading
from label_party.config import sections as config
from label_party.events import submitted as populations
from label_party.server import run as server
from pathlib import Path

place, name, moment = sys.argv[1:4]
owner = getattr(populations, place)
step = getattr(owner, name)

def dying(*arguments, **options):
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    step(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

loaded = config.load(Path("label_party.toml"), {"data.population": "submitted"})
with server.running(loaded) as address:
    setattr(owner, name, dying)
    print(address, flush=True)
    threading.Event().wait()
"""

OLD, NEW = bytes(range(64)), bytes(range(64, 192))
STEPS = [
    ("Upload", "append", "before", OLD),
    ("Upload", "append", "after", OLD),
    ("Upload", "seal", "after", OLD),
    ("Upload", "repeated", "after", OLD),
    ("Populations", "store", "before", OLD),
    ("Populations", "_point", "before", OLD),
    ("Populations", "_point", "after", NEW),
    ("Populations", "_tidy", "after", NEW),
]


@pytest.mark.parametrize(
    ("place", "name", "moment", "counts"),
    [
        pytest.param(*step, id="-".join(step[:3]), marks=() if quick else pytest.mark.slow)
        for step in STEPS
        for quick in [step[1] == "_point"]
    ],
)
def test_killed_at_a_step(
    party: Party, connect: Connect, place: str, name: str, moment: str, counts: bytes
) -> None:
    secret = read_secret(party.folder / "join.key")
    submitted = party.config(data__population='"submitted"')
    with running(submitted) as address:
        connect(address).submit(OLD, secret)
    _die(party.folder, connect, secret, place, name, moment)
    assert _stored(party) == counts
    with running(submitted) as address:
        # the next start has cleared up what was half done
        files = [path for path in (party.store / "populations").rglob("*") if path.is_file()]
        assert sorted(path.suffix or path.name for path in files) == [".json", ".keys", "lock"]
        client = connect(address)
        client.submit(NEW, secret)
        assert _stored(party) == NEW
        assert party.release(data__population='"submitted"').code == 0
        described = client.describe()
        assert client.fetch(described)[0] == b""
        assert client.submit(NEW, secret).population_sha256.hex() in described.manifest.decode()


def _stored(party: Party) -> bytes:
    populations = Populations(Store(party.store))
    found = populations.current("labels", "1")
    assert found is not None
    return populations.keys_file("labels", "1", found).read_bytes()


def _die(folder: Path, connect: Connect, secret: bytes, *step: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *step],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        with pytest.raises(grpc.RpcError) as error:
            connect(address).submit(NEW, secret)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert child.wait(20) == -signal.SIGKILL, child.communicate()
    finally:
        child.kill()
        child.communicate()
