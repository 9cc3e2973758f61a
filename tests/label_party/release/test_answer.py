"""Releases that answer questions: ε holds whatever is asked, and no event is asked about twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ConfigError, DataError
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers.grid import MAX_POINTS, Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.release.limits import MANIFEST_BYTES
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import decode_question, encode_question
from labelveil.common.release.size import check_message
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.release.answer import message_for, submitted_question
from labelveil.label_party.release.run import run_release
from labelveil.label_party.server.run import running
from labelveil.label_party.server.submission import MAX_PART_BYTES
from tests.effort import one_in
from tests.label_party.conftest import EVENTS, Client, Party

Connect = Callable[..., Client]

ASKED = {
    "data__population": '"submitted"',
    "privacy__epochs": '"disjoint"',
    "privacy__epsilon": 2,
    "privacy__total_epsilon": 2,
    "randomizer__name": '"auto"',
    "domain__grid": '"auto"',
    "rounds__questions": True,
}
GRID = Grid(np.linspace(0, 10, 21))
LAWS = np.rint(1000 * np.exp(-0.5 * (GRID.points - np.array([[0.0], [4.0], [8.0]])) ** 2))
STRATA = np.arange(EVENTS) % 3


def asking(strata: Any = STRATA, laws: Any = LAWS, grid: Grid = GRID) -> bytes:
    return encode_question(Question(np.asarray(strata), grid, np.asarray(laws, dtype=np.int64)))


@dataclass(frozen=True)
class World:
    """A labels party that serves and takes questions."""

    party: Party
    client: Client
    secret: bytes

    def keys(self, numbers: Any = range(EVENTS)) -> bytes:
        return hash_keys(pl.Series([f"event-{number}" for number in numbers]), self.secret)

    def submit(self, question: bytes, numbers: Any = range(EVENTS), **header: Any) -> None:
        self.client.submit(self.keys(numbers), self.secret, question, **header)

    def refused(self, question: bytes, **header: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as error:
            self.submit(question, **header)
        return error.value.code(), error.value.details()

    def refuses(self, strange: Mapping[str, bytes]) -> None:
        """Each of these is no question, and is said so in a line."""
        for name, question in strange.items():
            code, details = self.refused(question)
            assert code == grpc.StatusCode.INVALID_ARGUMENT, name
            assert details, name
            assert details.isprintable(), name
            assert "Traceback" not in details, name

    def released(self, epoch: str = "1", **settings: Any) -> tuple[Manifest, np.ndarray]:
        done = self.party.release(**{**ASKED, "data__epoch": epoch, **settings})
        assert done.code == 0, done
        described = self.client.describe(epoch=epoch)
        manifest = Manifest.from_bytes(described.manifest)
        _, codes = self.client.fetch(described, epoch=epoch)
        return manifest, decode_codes(codes, manifest.content.code_bytes)


@pytest.fixture
def world(party: Party, connect: Connect) -> Iterator[World]:
    with running(party.config(**ASKED)) as address:
        yield World(party, connect(address), read_secret(party.folder / "join.key"))


def test_each_stratum_is_sent_by_a_channel_of_its_own(world: World) -> None:
    world.submit(asking())
    manifest, codes = world.released()
    assert [stratum.rows for stratum in manifest.strata] == np.bincount(STRATA).tolist()
    assert len(manifest.randomizers) == len(manifest.codebooks.books) == 3
    assert not manifest.priors  # nobody was counted
    of_code = np.searchsorted(manifest.codebooks.starts, codes, side="right") - 1
    assert of_code.tolist() == STRATA.tolist()
    # all of ε goes to the labels, and the worst stratum's is what is charged
    spent = manifest.total_guarantee
    assert isinstance(spent, PureDP)
    assert Fraction(19, 10) < spent.exact_epsilon <= 2
    assert spent.exact_epsilon == max(PureDP.of_channel(c).exact_epsilon for c in manifest.channels)
    assert len({str(channel.to_json()) for channel in manifest.channels}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", one_in(2, [1, 2]))
def test_workers_randomize_by_stratum(world: World, workers: int) -> None:
    numbers = np.arange(EVENTS)[::-1]
    world.submit(asking(STRATA[numbers]), numbers)
    manifest, codes = world.released(engine__workers=workers, privacy__epsilon=40,
                                     privacy__total_epsilon=40)  # fmt: skip
    of_code = np.searchsorted(manifest.codebooks.starts, codes, side="right") - 1
    assert of_code.tolist() == STRATA[numbers].tolist()
    outputs = np.concatenate([channel.outputs for channel in manifest.channels])
    truth = np.where(numbers % 2 == 0, numbers % 10, 0)
    expected = np.array([0, 4, 8])[STRATA[numbers]]
    near = np.abs(truth - expected) < 1  # at ε = 40 what is sent of these is the label
    assert np.abs(outputs[codes] - truth)[near].max() <= 1


def test_labels_stay_on_the_points_that_are_configured(world: World) -> None:
    """Whoever asks may not know whether points were chosen, or are all that was affordable."""
    world.submit(asking())
    manifest, codes = world.released(domain__grid='"step"', domain__step=1.0)
    assert manifest.label.grid == list(range(11))
    assert {len(channel.inputs) for channel in manifest.channels} == {11}
    assert codes.size == EVENTS
    moved = np.array([stratum.law for stratum in manifest.strata])
    expected = LAWS[:, ::2] + 0.5 * np.pad(LAWS[:, 1::2], ((0, 0), (1, 0)))
    expected += 0.5 * np.pad(LAWS[:, 1::2], ((0, 0), (0, 1)))
    shares = expected / LAWS.sum(axis=1, keepdims=True)
    assert moved / moved.sum(axis=1, keepdims=True) == pytest.approx(shares, abs=1e-8)


def test_a_question_is_answered_where_a_prior_is_in_force(world: World) -> None:
    """A watch's first epoch pays for a prior, the second is tested by it, the third is asked, and
    the fourth is tested by the first one's again."""
    found = []
    for epoch, numbers in enumerate(np.split(np.arange(EVENTS - EVENTS % 4), 4), start=1):
        question = asking(STRATA[numbers]) if epoch == 3 else b""
        world.submit(question, numbers, epoch=str(epoch))
        config = world.party.config(**ASKED, data__epoch=f'"{epoch}"')
        found.append(run_release(config, quiet=True, keeps_prior=True).manifest)
    first, second, third, fourth = found
    assert (first.drift, len(first.priors)) == (None, 1)
    assert second.drift is not None
    assert second.drift.in_force.epoch == "1"
    assert fourth.drift is not None
    assert fourth.drift.in_force.epoch == ("2" if second.drift.drifted else "1")
    assert [manifest.questioned for manifest in found] == [False, False, True, False]
    assert (third.drift, third.priors) == (None, [])


def alone() -> np.ndarray:
    return (np.arange(EVENTS) == 4).astype(np.int64)


def spike(at: int) -> list[int]:
    return [int(place == at) for place in range(len(GRID))]


@pytest.mark.parametrize(
    "question",
    [
        asking(alone(), [spike(0), spike(8)]),
        asking(0 * STRATA, [spike(8)]),
        asking(STRATA, [spike(0), spike(8), spike(20)]),
        asking(np.arange(EVENTS) % 32, [spike(place % 21) for place in range(32)]),
        asking(STRATA, [[1] * 21, [1 << 40] * 21, [1 << 40, *[0] * 19, 1]]),
    ],
    ids=["one event alone", "a point", "points", "32 points", "extremes"],
)
def test_epsilon_holds_whatever_is_asked(world: World, question: bytes) -> None:
    world.submit(question)
    manifest, _ = world.released()
    for channel in manifest.channels:
        rows = [[int(weight) for weight in row] for row in channel.weights]
        worst = max(
            Fraction(max(column), min(column)) for column in zip(*rows, strict=True) if any(column)
        )
        assert float(worst) <= np.exp(2)
    assert manifest.total_guarantee.within(PureDP.of(2.0))


def written(grid: Any, laws: Any, sizes: Any = None) -> bytes:
    """Bytes of a question, of numbers that need not be one."""
    table = np.asarray(laws, dtype="<i8")
    stated = np.array(table.shape[::-1] if sizes is None else sizes, dtype="<u4")
    parts = (STRATA.astype(np.uint8), stated, np.asarray(grid, dtype="<f8"), table)
    return LINE + b"".join(part.tobytes() for part in parts)


BYTES = asking()
LINE = BYTES[: BYTES.index(b"\n") + 1]
BODY = BYTES.removeprefix(LINE)
ONES = np.ones((3, 3))
TINY = 5e-324
STRANGE = {
    "another range": asking(grid=Grid(GRID.points * 2)),
    "a stratum too many": LINE + bytes([3]) + BODY[1:],
    "no laws": LINE + BODY[:EVENTS],
    "half a size": LINE + BODY[: EVENTS + 5],
    "too few strata": LINE + BODY[5:],
    "a byte too few": BYTES[:-1],
    "a byte too many": BYTES + b"\0",
    "negative": written([0, 5, 10], ONES - 2),
    "not ascending": written([0, 10, 5], ONES),
    "no number": written([0, np.nan, 10], ONES),
    "infinite": written([0, 5, np.inf], ONES),
    "points without a gap": written([0, *(TINY * np.arange(1, 40)), 10], np.ones((3, 41))),
    "a subnormal point": written([0, TINY, 10], ONES),
    "huge weights": written([0, 5, 10], ONES * (1 << 62)),
    "nothing expected": written([0, 5, 10], 0 * ONES),
    "two points": written([0, 10], np.ones((3, 2))),
    "one point": written([0], np.ones((3, 1))),
    "no points": written([], np.ones((3, 0))),
    "sizes of another table": written([0, 5, 10], ONES, [9, 1]),
    "sizes whose product is none": written([0, 5, 10], ONES, [(1 << 32) - 1, (1 << 32) - 1]),
    "text": LINE + BODY[:EVENTS] + b'{"grid": [0, 5, 10], "laws": [[1, 1, 1]]}',
}


def test_what_is_no_question_is_refused_in_a_line(world: World) -> None:
    world.refuses(STRANGE)
    world.submit(BYTES)  # and nothing is left of them
    assert len(world.released()[0].strata) == 3


@pytest.mark.slow
def test_a_manifest_is_no_larger_than_was_foreseen(world: World) -> None:
    """With all strata that there can be, each with a law that is unlike the others."""
    laws = np.random.default_rng(1).integers(1, 1 << 40, (32, len(GRID)))
    asked = asking(np.arange(EVENTS) % 32, laws)
    question = decode_question(asked, EVENTS)
    config = world.party.config(**ASKED)
    plan = question.plan(config.terms[0], config.privacy.message_epsilon)
    foreseen = check_message(plan.build(question.released(plan.channels[0].group)), EVENTS)
    world.submit(asked)
    size = len(world.released()[0].to_bytes())
    assert size <= foreseen <= size + 32 * 4096 + 65_536 + 32 * 21 * len(GRID)


def test_a_manifest_is_refused_from_a_byte_too_many_on(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = np.array([[1, 2, 3], [3, 2, 1]])
    question = Question(np.arange(EVENTS) % 2, Grid(np.array([0.0, 5.0, 10.0])), laws)
    plan = question.plan(LabelTerms("label", 0.0, 10.0), 2.0)
    message = plan.build(question.released(plan.channels[0].group))
    least, most = (check_message(message, blocks * 65_536) for blocks in (1, 20))
    # a digest of each block has 64 digits, within quotes and with a comma
    assert most - least == pytest.approx(19 * 67, abs=19)
    for bytes_, known in ((most, True), (most - 1, False)):
        monkeypatch.setattr("labelveil.common.release.size.MANIFEST_BYTES", bytes_)
        with nullcontext() if known else pytest.raises(ConfigError, match="fewer strata"):
            check_message(message, 20 * 65_536)


@pytest.mark.slow
def test_the_largest_question_can_be_answered() -> None:
    """All strata over the finest grid, with noise for laws, about 10⁸ events."""
    words = np.random.default_rng(1)
    inner = np.sort(words.random(MAX_POINTS - 2)) * 10
    laws = words.integers(1, 1 << 40, (32, MAX_POINTS))
    question = Question(np.arange(EVENTS) % 32, Grid(np.r_[0, inner, 10]), laws)
    plan = question.plan(LabelTerms("label", 0.0, 10.0), 2.0)
    message = plan.build(question.released(plan.channels[0].group))
    assert check_message(message, 10**8) <= MANIFEST_BYTES


def test_an_answer_that_is_too_large_is_of_its_epoch_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = tmp_path / "question"
    asked.write_bytes(asking())
    world.submit(asking())
    with monkeypatch.context() as patched:
        patched.setattr("labelveil.common.release.size.MANIFEST_BYTES", 20_000)
        config = world.party.config(**ASKED | {"data__epoch": '"1"'})
        events = SimpleNamespace(rows=EVENTS, submitted=SimpleNamespace(question=asked))
        with pytest.raises(
            DataError, match=r"epoch '1' cannot be answered: a manifest of 3 strata"
        ):
            message_for(
                config, cast(Question, submitted_question(config, cast(Any, events))), EVENTS
            )


def test_a_question_that_was_damaged_at_rest_is_not_answered(world: World) -> None:
    """Not even where what it became is a question: an event in another stratum."""
    world.submit(asking())
    (path,) = world.party.store.glob("populations/*/*/*.question")
    data = path.read_bytes()
    other = asking(np.where(np.arange(EVENTS) == 5, 0, STRATA))
    assert sum(a != b for a, b in zip(data, other, strict=True)) == 1
    path.write_bytes(other)
    assert f"{path.name} is damaged" in world.party.release(**ASKED).error
    assert world.party.nothing_left()
    path.write_bytes(data)
    world.released()


def test_a_question_must_be_the_one_of_its_header(world: World) -> None:
    assert "question_sha256" in world.refused(BYTES, question_sha256=bytes(32))[1]
    assert "32 bytes" in world.refused(BYTES, question_sha256=b"short")[1]
    assert "header" in world.refused(BYTES, question_sha256=b"")[1]


@pytest.mark.parametrize("part", [b"", bytes(MAX_PART_BYTES + 1)], ids=["empty", "large"])
def test_parts_of_a_question_have_a_size(world: World, part: bytes) -> None:
    """Empty ones would keep the server busy for nothing, and large ones fill its memory."""
    keys, stub = world.keys(), world.client.stub
    header = wire.PopulationHeader(
        data_set="labels",
        epoch="1",
        rows=EVENTS,
        population_sha256=hashlib.sha256(keys).digest(),
        secret_check=secret_check(world.secret),
        question_sha256=bytes(32),
    )
    messages = [
        wire.SubmitPopulationRequest(header=header),
        wire.SubmitPopulationRequest(keys=keys),
        wire.SubmitPopulationRequest(question=part),
    ]
    with pytest.raises(grpc.RpcError) as error:
        stub.SubmitPopulation(iter(messages), timeout=60)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "in parts of 1 to" in error.value.details()


def test_other_purchases_of_submitted_events_are_compared_by_their_secret(world: World) -> None:
    """A release of one round and leaders of the next are about events that one secret names."""
    world.submit(b"", range(80))
    world.released()
    (world.party.folder / "kinds.txt").write_text("0\n1\n")
    world.submit(b"", range(80, EVENTS), epoch="2")
    leaders = ("top-k", "--by", "label", "--categories", "kinds.txt", "--k", "1")
    settings = world.party.arguments(**ASKED, data__epoch="2")
    done = world.party.run(*leaders, *settings)
    assert done.code == 0, done
    (world.party.folder / "join.key").write_text("5" * 64 + "\n")
    secret = read_secret(world.party.folder / "join.key")
    keys = hash_keys(pl.Series([f"event-{number}" for number in range(80)]), secret)
    world.client.submit(keys, secret, epoch="3")
    settings = world.party.arguments(**ASKED, data__epoch="3")
    refused = world.party.run(*leaders, *settings)
    assert refused.code == 1
    assert "under another join secret" in refused.err


def test_a_labels_party_without_rounds_takes_no_question(party: Party, connect: Connect) -> None:
    with running(party.config(**ASKED | {"rounds__questions": False})) as address:
        world = World(party, connect(address), read_secret(party.folder / "join.key"))
        code, details = world.refused(BYTES)
        assert (code, "no questions" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)
        world.submit(b"")
        assert not world.released(rounds__questions=False)[0].strata


def test_a_question_that_waited_is_ignored_once_none_is_taken(world: World) -> None:
    world.submit(BYTES)
    assert not world.released(rounds__questions=False)[0].strata


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"data__population": "population.csv"}, "names the events"),
        ({"randomizer__name": '"rr-on-bins"'}, "fits no stratum"),
    ],
)
def test_what_takes_no_questions_is_said(party: Party, settings: Any, part: str) -> None:
    assert part in party.release(**ASKED | settings).error


def test_rounds_share_no_event(world: World) -> None:
    """Each event pays once, over all rounds together."""
    world.submit(b"", range(80))
    assert world.released()[0].priors
    rest = list(range(79, EVENTS))
    world.submit(asking(STRATA[rest]), rest, epoch="2")
    refused = world.party.release(**ASKED, data__epoch="2")
    assert refused.code == 1
    assert "1 events of epoch '2' are events of epoch '1', too" in refused.error
    world.submit(asking(STRATA[80:]), range(80, EVENTS), epoch="2")
    assert len(world.released("2")[0].strata) == 3
    shown = world.party.run("budget", *("--set", 'privacy.epochs="disjoint"'))
    assert shown.code == 0


def test_rounds_under_two_join_secrets_cannot_be_compared(world: World) -> None:
    world.submit(b"", range(80))
    world.released()
    (world.party.folder / "join.key").write_text("5" * 64 + "\n")
    secret = read_secret(world.party.folder / "join.key")
    keys = hash_keys(pl.Series([f"event-{number}" for number in range(80)]), secret)
    world.client.submit(keys, secret, epoch="2")
    refused = world.party.release(**ASKED, data__epoch="2")
    assert refused.code == 1
    assert "under another join secret" in refused.err


def test_the_same_again_is_harmless_and_another_question_replaces_it(world: World) -> None:
    world.submit(BYTES)
    world.submit(BYTES)
    world.submit(asking(0 * STRATA, [spike(8)]))
    manifest, _ = world.released()
    assert len(manifest.strata) == 1
    world.submit(BYTES)  # its release is there: what is asked changes nothing any more
    assert world.client.describe().manifest == manifest.to_bytes()
