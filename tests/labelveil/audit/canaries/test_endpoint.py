"""An auditor's requests over the wire, to a labels party that answers in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from labelveil.audit.canaries import endpoint
from labelveil.audit.canaries.endpoint import (
    Refusal,
    Served,
    WrongRequest,
    connected,
    fetch_release,
    unknown_clients_check,
)
from labelveil.audit.canaries.party import audit_party
from labelveil.audit.settings import Connection
from labelveil.audit.verdict import Verdict
from labelveil.common.errors import ConfigError, ConnectionFailed
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import read_release
from tests.feature_party.servers import Behaviour, certificates, serving
from tests.feature_party.worlds import World, build_world

ROWS = 301


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build_world(tmp_path_factory.mktemp("world"), rows=ROWS)


Reach = Callable[..., Connection]


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
def reach(world: World, behaviour: Behaviour, tmp_path: Path) -> Iterator[Reach]:
    """How it is asked, but for what is changed."""
    files = certificates(tmp_path / "certificates")
    with serving(world, behaviour, files) as address:

        def connection(**changed: Any) -> Connection:
            right = {
                "address": address, "data_set": "sales", "ca": files.authority,
                "certificate": files.feature_party_certificate,
                "private_key": files.feature_party_key,
            }  # fmt: skip
            return Connection(**right | changed)

        yield connection


def test_a_release_is_fetched_whole_and_from_a_row_on(
    world: World, behaviour: Behaviour, reach: Reach, tmp_path: Path
) -> None:
    with connected(reach()) as client:
        whole, rest = client.fetch(), client.fetch(start_row=117)
    assert (whole.manifest, whole.keys) == (world.release.manifest_bytes, world.keys)
    assert whole.digest == hashlib.sha256(whole.manifest).digest()
    assert [len(part.codes) for part in whole.parts] == [100, 100, 100, 1]
    assert (rest.keys, rest.codes) == (world.keys[16 * 117 :], world.codes[117:])
    assert whole.outputs.tolist() == list(world.codes)
    fetch_release(reach(epoch="7"), tmp_path / "kept")
    assert behaviour.asked[-1].epoch == "7"
    assert read_release(tmp_path / "kept").labels.height == ROWS
    # by the name in its certificate, whatever it is reached by
    numbered = {"address": reach().address.replace("localhost", "127.0.0.1")}  # type: ignore[union-attr]
    with connected(reach(**numbered, server_name="localhost")) as client:
        assert client.fetch().codes == whole.codes


def test_refusals_are_told_with_their_words(behaviour: Behaviour, reach: Reach) -> None:
    with connected(reach()) as client:
        assert client.refuse(WrongRequest("OK")) == Refusal("OK", "")
        other = WrongRequest("NOT_FOUND", {"data_set": "visits", "epoch": ""})
        assert client.refuse(other) == Refusal("NOT_FOUND", "no data set 'visits'")
        behaviour.break_after += [0, 0]
        broken = WrongRequest("UNAVAILABLE", fetched={"start_row": 5})
        assert client.refuse(broken) == Refusal("UNAVAILABLE", "the stream broke")
        assert behaviour.started_at == [5]
        with pytest.raises(ConnectionFailed, match="UNAVAILABLE: the stream broke; check --addr"):
            client.fetch()
    with (
        pytest.raises(ConfigError, match=r"--ca none\.pem cannot be read"),
        connected(reach(ca=Path("none.pem"))),
    ):
        raise AssertionError("it is read at once")


def test_questions_and_populations_are_sent_in_parts(
    behaviour: Behaviour, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_PART", 48)
    keys, predictions = bytes(range(80)), np.arange(100_001.0)
    with connected(reach()) as client:
        described = client.describe()
        for question in (b"what" * 25, b""):
            client.submit("7", keys, b"c" * 16, question)
        assert client.ask(described, predictions) == 0.25
        behaviour.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.ask(described, predictions) == Refusal("RESOURCE_EXHAUSTED", "not for you")
    assert [sent for _, sent in behaviour.submitted] == [keys] * 2
    assert behaviour.questions == [[b"what" * 12, b"what" * 12, b"what"], []]
    for (header, _), digest in zip(
        behaviour.submitted, (hashlib.sha256(b"what" * 25).digest(), b""), strict=True
    ):
        assert (header.data_set, header.epoch, header.rows) == ("sales", "7", 5)
        assert header.population_sha256 == hashlib.sha256(keys).digest()
        assert (header.question_sha256, header.secret_check) == (digest, b"c" * 16)
    ((header, parts),) = behaviour.evaluated
    epoch = Manifest.parse(described.manifest).epoch
    assert (header.data_set, header.epoch, header.loss_name) == ("sales", epoch, "squared gain")
    assert header.manifest_sha256 == described.manifest_sha256
    assert [len(part) for part in parts] == [800_000, 8]
    assert np.array_equal(np.frombuffer(b"".join(parts), "<f8"), predictions)


def test_a_running_party_is_audited(world: World, reach: Reach) -> None:
    """This one heeds no size that it is asked for, and refuses in words of its own."""
    steps: list[str] = []
    audit = audit_party(reach(), None, steps.append)
    assert audit.subject == f"labels party {reach().address}"
    assert audit.claimed == pytest.approx(4.5)  # with its prior's
    assert audit.facts["data set"] == world.release.manifest.data_set
    assert (steps[0], "certificate" in steps) == ("fetch", True)
    verdicts = {check.name: check.verdict for check in audit.checks}
    failed = {name for name, verdict in verdicts.items() if verdict is Verdict.FAIL}
    assert {"message sizes", "refusals"} <= failed
    for name in ("byte equality of repeated requests", "resumed and cut fetches",
                 "unknown clients are refused", "content digest"):  # fmt: skip
        assert verdicts[name] is Verdict.PASS, name
    # what the certificate says of behaviour was looked at here
    assert "errors and latency say nothing" not in verdicts
    assert "cold starts differ" in verdicts
    assert audit.fields


def test_who_is_answered_without_a_certificate_is_told(
    reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(reach()) as client:
        served = Served(client, client.fetch(), reach())
        assert unknown_clients_check(served).found == "0 of them were answered."
        monkeypatch.setattr(client.__class__, "refuse", lambda self, wrong: Refusal("OK", ""))
        check = unknown_clients_check(served)
    assert (check.verdict, check.found) == (Verdict.FAIL, "2 of them were answered.")
