"""What the features party can observe is the same for two data sets that differ in labels only.

Everything but time is compared exactly: rows, order, the size of every message, metadata, trailers,
errors. Only the content of codes and noisy counts may differ, and it is what ε is spent on.

Time is compared by a rank test (Mann and Whitney, 1947) on one server and one connection, which is
asked for both in turns, so that a busy machine slows both alike. It fails at a false-alarm rate of
1e-6. By the normal approximation, 300 questions about each find with probability above 0.99 any
dependence that makes one of them the slower one in 68% of pairs or more: the statistic's standard
deviation is 0.0236, and 0.5 + (4.89 + 2.33) 0.0236 = 0.67. A broken twin shows that it does.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from scipy import stats

from labelveil.common.release.manifest import Manifest
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.server.release_service import LabelReleaseService
from labelveil.label_party.server.run import running
from tests.effort import one_in
from tests.label_party.conftest import EVENTS, Client, Party
from tests.statistics import RATE

Connect = Callable[..., Client]
Answer = tuple[Any, ...]

QUESTIONS = 150
TABLES = """
[[label]]
name = "label"
kind = "category"
values = [0, 5, 10]
[[label]]
name = "high"
kind = "binary"
"""


@dataclass(frozen=True)
class World:
    """A data set that a client may fetch."""

    client: Client
    data_set: str
    digest: bytes

    def request(self, **changes: Any) -> wire.FetchReleaseRequest:
        facts = {"data_set": self.data_set, "epoch": "1", "manifest_sha256": self.digest}
        return wire.FetchReleaseRequest(**(facts | changes))


@contextmanager
def worlds(
    party: Party, connect: Connect, rows: int, several: bool = False
) -> Iterator[list[World]]:
    """Two data sets with the same events: all labels at one end, and all at the other.

    The first leaves half of the events without a label. ε is so large that codes are as different
    as labels. With ``several`` each event has two labels.
    """
    keys = [f"event-{i}" for i in range(rows)]
    party.write_population({"key": keys})
    # no bins, which the prior's noise would move, and with them the manifest's length
    settings = {"randomizer__name": "randomized-response", "privacy__epsilon": 8}
    settings |= {"privacy__total_epsilon": 16, "privacy__account": "both"}
    names = {"all-low": (keys[::2], 0.0), "is-high": (keys, 10.0)}
    if several:  # of few values, whose channels are those of randomized response as well
        path = party.folder / "label_party.toml"
        before, _, after = path.read_text().partition("[domain]")
        path.write_text(before + "[privacy]" + after.partition("[privacy]")[2] + TABLES)
        path.write_text(path.read_text().replace('name = "rr-on-bins"', ""))
        settings |= {"privacy__division": "split"}
        del settings["randomizer__name"]
    for name, (labelled, label) in names.items():
        high = [float(label > 0)] * len(labelled)
        party.write_labels({"key": labelled, "label": [label] * len(labelled), "high": high})
        assert party.release(**settings, data__data_set=name).code == 0
    limits = {"server__requests_per_minute": 100_000, "server__data_sets": json.dumps([*names])}
    with running(party.config(**settings, **limits)) as address:
        client = connect(address)
        yield [World(client, name, client.describe(name).manifest_sha256) for name in names]


def observe(world: World) -> list[Answer]:
    """Ask everything, rightly and wrongly; return all that comes back but codes and counts."""
    stub, seen = world.client.stub, []
    fetches: list[dict[str, Any]] = [
        {}, {"max_chunk_bytes": 1}, {"max_chunk_bytes": 1000}, {"start_row": 17},
        {"start_row": EVENTS}, {"start_row": EVENTS + 1}, {"start_row": 2**64 - 1},
        {"epoch": ""}, {"epoch": "2"}, {"data_set": "unknown"}, {"manifest_sha256": bytes(32)},
    ]  # fmt: skip
    for changes in fetches:
        call = stub.FetchRelease(world.request(**changes), timeout=300)
        seen.append((*_messages(call), *_ending(call)))
    for data_set, epoch in (
        (world.data_set, ""),
        (world.data_set, "1"),
        (world.data_set, "2"),
        ("unknown", "1"),
    ):
        try:
            described, call = stub.DescribeRelease.with_call(
                wire.DescribeReleaseRequest(data_set=data_set, epoch=epoch), timeout=20
            )
            seen.append((*_public(described), *_ending(call)))
        except grpc.RpcError as error:
            seen.append(_ending(error))
    try:
        header = wire.PopulationHeader(data_set=world.data_set, epoch="1", rows=1)
        stub.SubmitPopulation(iter([wire.SubmitPopulationRequest(header=header)]), timeout=300)
    except grpc.RpcError as error:
        seen.append(_ending(error))
    return seen


def _messages(call: Iterator[wire.FetchReleaseResponse]) -> list[Answer]:
    seen = []
    try:
        for message in call:
            size = message.ByteSize()
            seen.append((message.start_row, message.keys, len(message.codes), size))
    except grpc.RpcError:
        pass  # the call's ending is looked at in any case
    return seen


def _ending(call: Any) -> Answer:
    return (
        call.code(), call.details(),
        [tuple(pair) for pair in call.initial_metadata()],
        [tuple(pair) for pair in call.trailing_metadata()],
    )  # fmt: skip


def _public(described: wire.DescribeReleaseResponse) -> Answer:
    """Everything of a manifest that no label may reach."""
    manifest = Manifest.from_bytes(described.manifest)
    data = json.loads(manifest.to_bytes())
    for free in ("data_set", "randomizer", "prior", "randomizers", "priors"):
        data.pop(free, None)
    for digest in ("blocks", "digest"):
        data["content"].pop(digest)
    return data, len(manifest.content.blocks), len(described.signature)


@pytest.mark.parametrize("several", one_in(2, [False, True]), ids=["one label", "two labels"])
def test_nothing_but_time_depends_on_labels(party: Party, connect: Connect, several: bool) -> None:
    with worlds(party, connect, EVENTS, several) as (low, high):
        assert observe(low) == observe(high)


def test_time_does_not_depend_on_labels(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worlds(party, connect, 500) as pair:
        assert _p_value(*pair) > RATE
        # a twin that looks at each code that it sends: high ones then take longer
        read = LabelReleaseService._rows
        monkeypatch.setattr(LabelReleaseService, "_rows", lambda *asked: _looking(read(*asked)))
        assert _p_value(*pair) < RATE


def _looking(message: bytes) -> bytes:
    for code in wire.FetchReleaseResponse.FromString(message).codes:
        if code > 1:
            sum(range(1000))
    return message


def _p_value(low: World, high: World) -> float:
    """Probability that answers of equal speed differ in rank as much as these."""
    order = random.Random(0)
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(QUESTIONS):
        both = [(0, low), (1, high)]
        order.shuffle(both)
        for index, world in both:
            began = time.perf_counter()
            for _message in world.client.stub.FetchRelease(world.request(), timeout=300):
                pass
            seconds[index].append(time.perf_counter() - began)
    return float(stats.mannwhitneyu(seconds[0], seconds[1]).pvalue)
