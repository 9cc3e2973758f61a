"""Releases of sums over groups: ε holds whatever is asked, and no event is asked about twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice
from labelveil.common.release.blocks import decode_sums
from labelveil.common.release.event_keys import read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import encode_question
from labelveil.label_party.server.run import running
from tests.label_party.conftest import EVENTS, Client, Party
from tests.label_party.release.test_answer import ASKED, World

Connect = Callable[..., Client]

LATTICE = Lattice(0.0, 10.0, 20)
GROUPS = np.arange(EVENTS) % 5


def asking(groups: Any = GROUPS, widths: Any = None, **more: Any) -> bytes:
    groups = np.asarray(groups)
    count = int(groups[groups != NO_GROUP].max()) + 1
    widths = np.full(count, 10) if widths is None else np.asarray(widths)
    return encode_question(GroupQuestion(LATTICE, groups, widths, **more))


@pytest.fixture
def world(party: Party, connect: Connect) -> Iterator[World]:
    with running(party.config(**ASKED)) as address:
        yield World(party, connect(address), read_secret(party.folder / "join.key"))


def released(world: World, epoch: str = "1", **settings: Any) -> tuple[Manifest, np.ndarray]:
    done = world.party.release(**{**ASKED, "data__epoch": epoch, **settings})
    assert done.code == 0, done
    described = world.client.describe(epoch=epoch)
    _, sums = world.client.fetch(described, epoch=epoch)
    return Manifest.from_bytes(described.manifest), decode_sums(sums)


def test_sums_are_those_of_the_labels(world: World) -> None:
    """At ε = 40 noise of scale 1/2 is off by no more than a few steps."""
    world.submit(asking())
    manifest, sums = released(world, privacy__epsilon=40, privacy__total_epsilon=40)
    labels = np.where(np.arange(EVENTS) % 2 == 0, np.arange(EVENTS) % 10, 0)
    exact = np.bincount(GROUPS, np.clip(2 * labels, -10, 10), 5)
    assert np.abs(sums - exact).max() <= 20  # e^-40 of being further off
    assert manifest.rows == 5
    assert manifest.population.rows == EVENTS
