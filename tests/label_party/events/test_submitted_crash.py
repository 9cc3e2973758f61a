"""Killing the server at every step of a submission: the old list counts or the new one, whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from labelveil.common.release.event_keys import read_secret
from labelveil.label_party.events.submitted import Populations
from labelveil.label_party.server.run import running
from labelveil.label_party.store.release_store import Store
from tests.faults import Experiments
from tests.label_party.conftest import BODIES, Client, Party, eventually

Connect = Callable[..., Client]

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
    party: Party,
    connect: Connect,
    patient: Experiments,
    place: str,
    name: str,
    moment: str,
    counts: bytes,
) -> None:
    secret = read_secret(party.folder / "join.key")
    submitted = party.config(data__population='"submitted"')
    with running(submitted) as address:
        connect(address).submit(OLD, secret)
    with ThreadPoolExecutor(1) as threads:
        step = f"labelveil.label_party.events.submitted:{place}.{name}"
        port_file = party.folder / "port"
        ended = threads.submit(
            patient.run, f"{BODIES}:submission", str(party.folder), str(port_file), step, moment,
            folder=party.store,
        )  # fmt: skip
        eventually(lambda: ended.done() or (port_file.exists() and port_file.read_text() != ""))
        with pytest.raises(grpc.RpcError) as error:
            connect(port_file.read_text()).submit(NEW, secret)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert ended.result().killed
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
    return populations.rows_of("labels", "1", found)[0].read_bytes()
