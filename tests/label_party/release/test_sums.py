"""Releases of sums over groups: ε holds whatever is asked, and no event is asked about twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from labelveil.common.arrays import Floats
from labelveil.common.engine.shuffle import Keys
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import PrivacyError
from labelveil.common.formats import GROUPS as FORMAT
from labelveil.common.guarantees import PureDP
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice
from labelveil.common.release.blocks import decode_sums
from labelveil.common.release.event_keys import read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import encode_question, most_bytes
from labelveil.common.wire import evaluation_pb2, evaluation_pb2_grpc
from labelveil.label_party.events.steps import Events
from labelveil.label_party.release.answer import build_sums
from labelveil.label_party.server.run import running
from tests.effort import one_in
from tests.label_party.conftest import EVENTS, Client, Party
from tests.label_party.release.test_answer import ASKED, World
from tests.label_party.replayed import replayed

Connect = Callable[..., Client]

STEPS = 20
LATTICE = Lattice(0.0, 10.0, STEPS)
EACH = np.arange(EVENTS)
GROUPS = EACH % 5
LABELS = np.where(EACH % 2 == 0, EACH % 10, 0)
LINE = f"{FORMAT}\n".encode()
SURE = {"privacy__epsilon": 40, "privacy__total_epsilon": 40}
OFF = 20
"""At ε = 40, and widths as large as the range, noise of scale 1/2 is further off once in e⁴⁰."""


def question(groups: Any = GROUPS, widths: Any = 20, **more: Any) -> GroupQuestion:
    groups = np.asarray(groups)
    named = groups[groups != NO_GROUP]
    count = int(named.max()) + 1 if named.size else 1
    return GroupQuestion(LATTICE, groups, np.broadcast_to(np.asarray(widths), (count,)), **more)


def asking(groups: Any = GROUPS, widths: Any = 20, **more: Any) -> bytes:
    return encode_question(question(groups, widths, **more))


def by_hand(asked: GroupQuestion, labels: Any = LABELS) -> list[int]:
    """Exact sums of labels that lie on the lattice, one event after another."""
    sums = [0] * asked.half_widths.size
    for event, label in enumerate(np.asarray(labels).tolist()):
        group = int(asked.groups[event])
        if group == NO_GROUP:
            continue
        level = 0 if asked.levels is None else int(asked.levels[event])
        width = int(asked.half_widths[group])
        left = max(-width, min(width, int(2 * label) - int(asked.offsets[level])))
        if group >= len(sums) - asked.squares:
            left *= left
        sums[group] += left * (1 if asked.weights is None else int(asked.weights[event]))
    return sums


@contextmanager
def serving(party: Party, connect: Connect, **settings: Any) -> Iterator[World]:
    with running(party.config(**ASKED | settings)) as address:
        yield World(party, connect(address), read_secret(party.folder / "join.key"))


@pytest.fixture
def world(party: Party, connect: Connect) -> Iterator[World]:
    with serving(party, connect) as found:
        yield found


def released(world: World, epoch: str = "1", **settings: Any) -> tuple[Manifest, np.ndarray]:
    done = world.party.release(**{**ASKED, "data__epoch": epoch, **settings})
    assert done.code == 0, done
    described = world.client.describe(epoch=epoch)
    keys, sums = world.client.fetch(described, epoch=epoch)
    assert keys == b""
    return Manifest.from_bytes(described.manifest), decode_sums(sums)


EDGES = {
    "as they are": question(),
    "one group": question(0 * EACH),
    "groups of one": question(EACH),
    "some in none": question(np.where(EACH % 3 == 0, NO_GROUP, GROUPS)),
    "all in none": question(np.full(EVENTS, NO_GROUP)),
    "an empty group": question(np.where(GROUPS == 2, 3, GROUPS)),
    "widths from end to end": question(widths=[1, 20, 7, 2, 19]),
    "offsets at the ends": question(offsets=np.array([0, 20, 7]), levels=EACH % 3),
    "weights": question(weights=EACH % 7 - 3),
    "negative weights": question(widths=3, weights=-1 - EACH % 2),
    "large weights": question(weights=np.where(EACH == 5, -(1 << 20), 1 << 20)),
    "squares": question(widths=5, squares=2, offsets=np.array([9])),
    "all squares": question(squares=5, weights=EACH % 3 - 1),
}


@pytest.mark.parametrize("asked", EDGES.values(), ids=EDGES)
def test_sums_are_those_of_the_labels(world: World, asked: GroupQuestion) -> None:
    world.submit(encode_question(asked))
    manifest, sums = released(world, **SURE)
    assert manifest.rows == sums.size == asked.half_widths.size
    assert manifest.population.rows == EVENTS
    # of scale Δ/40 the noise is larger than Δ once in e⁴⁰
    assert (np.abs(sums - by_hand(asked)) <= asked.spans).all()


def in_parts(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Have events read so many at a time."""
    whole = Events.keys_and_labels

    def parts(events: Events) -> Iterator[tuple[Keys, Floats]]:
        for keys, labels in whole(events):
            for start in range(0, len(labels), rows):
                yield keys[start : start + rows], labels[start : start + rows]

    monkeypatch.setattr(Events, "keys_and_labels", parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights", "offsets at the ends"])
def test_events_in_several_parts_are_each_in_their_own_group(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    in_parts(monkeypatch, 77)
    world.submit(encode_question(EDGES[name]))
    manifest, sums = released(world, **SURE)
    assert manifest.population.digest == hashlib.sha256(world.keys()).hexdigest()
    assert (np.abs(sums - by_hand(EDGES[name])) <= EDGES[name].spans).all()


def test_repeatable_entropy_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(PrivacyError, match="system_entropy"):
        build_sums(nothing, nothing, nothing, seeded_entropy(0), nothing)


@pytest.mark.parametrize("asked", EDGES.values(), ids=EDGES)
def test_one_label_moves_one_sum_by_no_more_than_is_paid_for(
    world: World, asked: GroupQuestion
) -> None:
    """Somebody who knows all labels but one, and has the noise drawn again."""

    def sums(label: float, epoch: str) -> tuple[dict[str, Any], np.ndarray]:
        labels = LABELS.astype(float)
        labels[5] = label
        world.party.write_labels({"key": [f"event-{i}" for i in range(EVENTS)], "label": labels})
        world.submit(encode_question(asked), epoch=epoch)
        with replayed():
            manifest, found = released(world, epoch, privacy__total_epsilon=10,
                                       privacy__epochs='"additive"')  # fmt: skip
        return manifest.model_dump(), found

    (one, low), (other, high) = sums(-1e9, "1"), sums(1e9, "2")
    moved = np.abs(low - high)
    group = int(asked.groups[5])
    paid = Fraction(0) if group == NO_GROUP else Fraction(int(moved[group]))
    moved[group if group != NO_GROUP else 0] -= int(paid)
    assert not moved.any()  # no other sum tells of it
    scales = [Fraction(width["scale"]) for width in one["sums"]["widths"]]
    assert paid <= max(map(int, asked.spans))
    assert all(paid <= 2 * scale for scale in scales) or len(scales) > 1
    # nor does anything else that is said
    for said in (one, other):
        del said["epoch"], said["content"]["blocks"], said["content"]["digest"]
    assert one == other


def test_scales_and_epsilon_follow_from_what_is_stated(world: World) -> None:
    """As the decimal that is written: 0.3 is no float."""
    asked = question(widths=[1, 20, 7, 7, 4], weights=EACH % 7 - 3, squares=2)
    world.submit(encode_question(asked))
    manifest, _ = released(world, privacy__epsilon=0.3, privacy__total_epsilon=0.3)
    sums = manifest.sums
    assert sums is not None
    stated = [(w.half_width, w.squares, w.groups, Fraction(w.scale)) for w in sums.widths]
    assert stated == [
        (1, False, 1, Fraction(2 * 3 * 10, 3)),
        (7, False, 1, Fraction(14 * 3 * 10, 3)),
        (20, False, 1, Fraction(20 * 3 * 10, 3)),
        (4, True, 1, Fraction(16 * 3 * 10, 3)),
        (7, True, 1, Fraction(49 * 3 * 10, 3)),
    ]
    assert manifest.total_guarantee == PureDP.of(Fraction(3, 10))
    assert manifest.privacy.requested_epsilon == 0.3
    assert manifest.label.grid == LATTICE.grid.points.tolist()
    assert (sums.offsets, sums.largest_weight, sums.groups) == ([0], 3, 5)
    (account,) = json.loads(world.party.run("budget", "--json").out)
    assert account["spent"]["epsilon"] == "3/10"


def test_noise_has_the_scale_that_is_stated(world: World) -> None:
    """Of 200 groups of one event, half of them with noise of another scale."""
    asked = question(EACH, np.where(EACH < 100, 1, 10))
    world.submit(encode_question(asked))
    _, sums = released(world)
    noise = sums - np.array(by_hand(asked))
    for part, scale in ((slice(100), 1.0), (slice(100, None), 10.0)):  # Δ = 2 and 20, ε = 2
        q = np.exp(-1 / scale)
        mean, variance = 2 * q / (1 - q * q), 2 * q / (1 - q) ** 2
        # the mean of |Z| of 100 is off by more than 6 deviations once in 10⁷ at most
        assert abs(np.abs(noise[part]).mean() - mean) < 6 * np.sqrt(variance - mean**2) / 10


def test_a_missing_label_is_filled_in_and_never_left_out(world: World) -> None:
    """A group of one, without a label: its sum is that of the configured value."""
    for epoch, rows in (("1", [0, 1]), ("2", [1])):
        world.party.write_labels(
            {"key": [f"event-{i}" for i in rows], "label": [6.0 for _ in rows]}
        )
        world.submit(asking(EACH), epoch=epoch)
    settings = SURE | {"privacy__epochs": '"additive"', "privacy__total_epsilon": 80}
    manifest, with_label = released(world, "1", **settings | {"data__missing": 4})
    other, without = released(world, "2", **settings | {"data__missing": 4})
    assert manifest.label.missing == 4
    assert manifest.model_dump()["sums"] == other.model_dump()["sums"]
    assert np.abs(with_label - np.where(EACH == 1, 12, 8)).max() <= OFF
    assert np.abs(without - with_label).max() <= 2 * OFF
    assert with_label.size == without.size == EVENTS


@pytest.mark.slow
@pytest.mark.parametrize("workers", one_in(2, [1, 2]))
def test_the_order_is_the_submitters_and_workers_change_nothing(world: World, workers: int) -> None:
    """An event that comes last may be the first of the labels party's."""
    numbers = EACH[::-1].copy()
    world.submit(asking(GROUPS[numbers], offsets=np.array([3])), numbers)
    with replayed():
        _, sums = released(world, engine__workers=workers, **SURE)
    expected = by_hand(question(GROUPS[numbers], offsets=np.array([3])), LABELS[numbers])
    assert np.abs(sums - expected).max() <= OFF


def test_labels_between_two_points_go_to_either_without_bias(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by a coin of its own, whatever is read at once."""
    in_parts(monkeypatch, 1)
    world.party.write_labels(
        {"key": [f"event-{i}" for i in range(EVENTS)], "label": [3.2] * EVENTS}
    )
    world.submit(asking(0 * EACH))
    _, (total,) = released(world, **SURE)
    # 6.4 steps each: a sum of 200 Bernoulli variables of deviation .49, 6 deviations and the noise
    assert abs(total - 6.4 * EVENTS) < 6 * 0.49 * np.sqrt(EVENTS) + OFF


# --- what is refused


def header(steps: int = STEPS, groups: int = 5, levels: int = 1, weight: int = 0,
           squares: int = 0, ends: tuple[float, float] = (0.0, 10.0)) -> bytes:  # fmt: skip
    sizes = np.array([steps, groups, levels, weight, squares], dtype="<u4")
    return LINE + np.array(ends, dtype="<f8").tobytes() + sizes.tobytes()


def words(*parts: Any) -> bytes:
    return b"".join(np.asarray(part, dtype="<u4").tobytes() for part in parts)


WIDTHS, BYTES = [10] * 5, asking()
STRANGE = {
    "another range": header(ends=(0.0, 20.0)) + words([0], WIDTHS, GROUPS),
    "a range inside": header(ends=(1.0, 9.0)) + words([0], WIDTHS, GROUPS),
    "no range": header(ends=(np.nan, 10.0)) + words([0], WIDTHS, GROUPS),
    "endless": header(ends=(-np.inf, np.inf)) + words([0], WIDTHS, GROUPS),
    "the wrong way round": header(ends=(10.0, 0.0)) + words([0], WIDTHS, GROUPS),
    "no steps": header(steps=0) + words([0], [1] * 5, GROUPS),
    "too fine": header(steps=8192) + words([0], WIDTHS, GROUPS),
    "no width": header() + words([0], [10, 0, 10, 10, 10], GROUPS),
    "a width beyond the range": header() + words([0], [10, 21, 10, 10, 10], GROUPS),
    "a negative width": header() + words([0], [10, 2**32 - 1, 10, 10, 10], GROUPS),
    "an offset beyond the range": header() + words([21], WIDTHS, GROUPS),
    "a negative offset": header() + words([2**32 - 1], WIDTHS, GROUPS),
    "a group too many": header() + words([0], WIDTHS, np.where(EACH == 7, 5, GROUPS)),
    "no groups": header(groups=0) + words([0], GROUPS),
    "more groups than events": header(groups=201) + words([0], [10] * 201, GROUPS),
    "as many groups as there are numbers": header(groups=2**32 - 1) + words([0], WIDTHS, GROUPS),
    "no level": header(levels=0) + words(WIDTHS, GROUPS),
    "too many levels": header(levels=257) + words([0] * 257, WIDTHS, GROUPS) + bytes(EVENTS),
    "a level that is none": header(levels=2) + words([0, 1], WIDTHS, GROUPS) + b"\2" * EVENTS,
    "all weights 0": header(weight=1) + words([0], WIDTHS, GROUPS, [0] * EVENTS),
    "weights below the largest": header(weight=2) + words([0], WIDTHS, GROUPS, [1] * EVENTS),
    "a weight above the largest": header(weight=1) + words([0], WIDTHS, GROUPS, [2] * EVENTS),
    "too large a weight": header(weight=2**21) + words([0], WIDTHS, GROUPS, [2**21] * EVENTS),
    "no largest weight": header(weight=0) + words([0], WIDTHS, GROUPS, [1] * EVENTS),
    "more squares than groups": header(squares=6) + words([0], WIDTHS, GROUPS),
    "a byte too few": BYTES[:-1],
    "a byte too many": BYTES + b"\0",
    "half a header": BYTES[: len(LINE) + 17],
    "a line alone": LINE,
    "nothing behind the header": header(),
    "as long as it may be": LINE + b"[" * (most_bytes(EVENTS) - len(LINE)),
    "longer": LINE + b"[" * most_bytes(EVENTS),
    "a later format": BYTES.replace(b"/1\n", b"/2\n", 1),
    "no format": BYTES.replace(b"/1\n", b"/x\n", 1),
    "of fewer events": asking(GROUPS[:-1]),
}


def test_what_is_no_question_is_refused_in_a_line(world: World) -> None:
    world.refuses(STRANGE)
    world.submit(BYTES)  # and nothing is left of them
    assert released(world)[1].size == 5


def test_a_question_that_was_damaged_is_answered_once_it_is_whole(world: World) -> None:
    world.submit(asking(weights=EACH % 3))
    (path,) = world.party.store.glob("populations/*/*/*.question")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + bytes(4))  # a question as well: the last event's weight is 0
    assert "is damaged" in world.party.release(**ASKED).error
    assert world.party.nothing_left()
    path.write_bytes(whole)
    released(world)


def test_points_that_are_configured_are_those_that_are_asked_on(
    party: Party, connect: Connect
) -> None:
    """Labels that lie on the one and are asked on the other would move: that is said instead."""
    step = {"domain__grid": '"step"', "domain__step": 1.0}
    with serving(party, connect, **step) as asked:
        for steps in (15, 5, 511):
            other = GroupQuestion(Lattice(0.0, 10.0, steps), GROUPS, np.full(5, 5))
            code, details = asked.refused(encode_question(other))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert f"on {steps} steps, and they are on 10 of 1" in details
        for epoch, steps in (("1", 10), ("2", 20)):
            whole = GroupQuestion(Lattice(0.0, 10.0, steps), GROUPS[:100], np.full(5, steps))
            numbers = range(100) if epoch == "1" else range(100, EVENTS)
            asked.submit(encode_question(whole), numbers, epoch=epoch)
            manifest, sums = released(asked, epoch, **SURE | step)
            assert len(manifest.label.grid) == steps + 1
            exact = steps / 10 * np.bincount(GROUPS[numbers], LABELS[numbers])
            assert np.abs(sums - exact).max() <= OFF


def test_a_question_that_cannot_be_answered_any_more_is_of_its_epoch_alone(world: World) -> None:
    """Bounds that are changed after the question was taken."""
    world.submit(BYTES)
    for other, bounds in (({"domain__upper": 20}, "0 … 20"), ({"domain__lower": -5}, "-5 … 10")):
        refused = world.party.release(**ASKED | other)
        assert refused.code == 1
        assert (
            "what was asked of epoch '1' cannot be answered: the question is about labels in"
            f" 0 … 10, not in {bounds}; name the same"
        ) in refused.error
    assert world.party.nothing_left()
    assert released(world)[1].size == 5


@pytest.mark.slow
def test_a_labels_party_without_rounds_answers_no_sums(world: World) -> None:
    world.submit(BYTES)
    manifest = world.released(rounds__questions=False)[0]
    assert manifest.sums is None
    assert manifest.priors


# --- paid once


def test_sums_and_codes_of_an_event_are_two_uses(world: World) -> None:
    world.submit(b"", range(80))
    assert world.released()[0].priors  # codes
    rest = list(range(79, EVENTS))
    world.submit(asking(GROUPS[rest]), rest, epoch="2")
    refused = world.party.release(**ASKED, data__epoch="2")
    assert refused.code == 1
    assert "1 events of epoch '2' are events of epoch '1', too" in refused.error
    world.submit(asking(GROUPS[80:]), range(80, EVENTS), epoch="2")
    released(world, "2")
    # nor is an event asked about again, in whatever group, or in none
    for epoch, asked in (("3", asking(np.full(41, NO_GROUP))), ("4", b"")):
        world.submit(asked, range(EVENTS - 1, EVENTS + 40), epoch=epoch)
        refused = world.party.release(**ASKED, data__epoch=epoch)
        assert refused.code == 1
        assert "1 events of epoch" in refused.err


def test_labels_of_other_rounds_are_no_cause_for_a_warning(world: World) -> None:
    """Where rounds are asked about; else most labels may be of another epoch, or misspelt."""
    for questions, warned in ((True, False), (False, True)):
        world.submit(b"", range(40), epoch=str(questions))
        asked = {**ASKED, "rounds__questions": questions, "data__epoch": str(questions)}
        done = world.party.run("release", "--dry-run", *world.party.arguments(**asked))
        assert ("keys of labels" in done.err) == warned


def test_two_groupings_of_one_population_cost_twice_and_share_no_noise(world: World) -> None:
    """Were the noise one, two groups less their union would be exact."""
    settings = SURE | {"privacy__epochs": '"additive"', "privacy__epsilon": 1}
    merged = np.where(GROUPS == 1, 0, GROUPS)
    world.submit(asking(), epoch="1")
    world.submit(asking(merged), epoch="2")
    with replayed():  # the same key for both
        _, apart = released(world, "1", **settings)
    with replayed():
        _, together = released(world, "2", **settings)
    exact = np.array(by_hand(question())), np.array(by_hand(question(merged)))
    noise = apart - exact[0], together - exact[1]
    assert (noise[0] != noise[1]).sum() >= 3  # each two agree once in 40
    (account,) = json.loads(world.party.run("budget", "--json").out)
    assert account["spent"]["epsilon"] == "2"
    one = {**ASKED, **settings, "privacy__total_epsilon": 2, "data__epoch": "3"}
    world.submit(asking(EACH), epoch="3")
    refused = world.party.release(**one)
    assert refused.code == 1
    assert "but ε = 0 (replace-label, per record) is left" in refused.error


def test_the_last_question_before_the_release_counts_and_none_after_it(world: World) -> None:
    world.submit(asking(EACH))
    world.submit(BYTES)
    world.submit(BYTES)
    manifest, sums = released(world)
    assert sums.size == 5
    world.submit(asking(EACH))  # its release is there: what is asked changes nothing any more
    again, same = released(world)
    assert again == manifest
    assert same.tolist() == sums.tolist()
    (account,) = json.loads(world.party.run("budget", "--json").out)
    assert account["spent"]["epsilon"] == "2"


@pytest.mark.slow
@pytest.mark.parametrize("asked", [b"", BYTES, asking(EACH)], ids=["codes", "sums", "each"])
def test_whatever_is_asked_the_charge_is_the_configured_one(world: World, asked: bytes) -> None:
    world.submit(asked)
    assert world.party.release(**ASKED).code == 0
    (account,) = json.loads(world.party.run("budget", "--json").out)
    assert account["spent"]["epsilon"] == "2"


# --- what is said, served and kept


def test_a_dry_run_says_what_it_costs_and_tells(world: World) -> None:
    world.submit(asking(offsets=np.array([0, 8]), levels=EACH % 2))
    shown = world.party.run("release", "--dry-run", *world.party.arguments(**ASKED))
    assert shown.code == 0, shown
    assert "sums over 5 groups, and no codes" in shown.out
    assert "at most 3.6 bits an event" in shown.out  # log2(6 · 2)
    assert "of scale 10 steps" in shown.out
    assert "ε = 2 (replace-label, per record) for labels" in shown.out
    assert "manifest" not in shown.out
    assert world.party.nothing_left()
    document = json.loads(
        world.party.run("release", "--dry-run", "--json", *world.party.arguments(**ASKED)).out
    )
    assert document["sums"] == 5
    assert document["question_bits"] == pytest.approx(np.log2(12))
    done = world.party.release(**ASKED)
    assert "5, one for each group of events" in done.out
    assert "at most 3.6 bits an event" in done.out


def test_other_purchases_read_events_that_are_asked_for_sums(world: World) -> None:
    world.submit(BYTES)
    (world.party.folder / "kinds.txt").write_text("0\n2\n")
    leaders = ("top-k", "--by", "label", "--categories", "kinds.txt", "--k", "1")
    done = world.party.run(
        *leaders, *world.party.arguments(**ASKED | {"privacy__total_epsilon": 9})
    )
    assert done.code == 0, done


def test_questions_about_models_need_codes(party: Party, connect: Connect) -> None:
    offered = {"evaluation__offered": True, "privacy__total_epsilon": 9}
    with serving(party, connect, **offered) as world:
        world.submit(BYTES)
        released(world, **offered)
        described = world.client.describe()
        stub = evaluation_pb2_grpc.EvaluationServiceStub(world.client.channel)
        request = evaluation_pb2.DescribeEvaluationRequest(
            data_set="labels",
            epoch="1",
            manifest_sha256=described.manifest_sha256,
            loss_name="squared gain",
        )
        with pytest.raises(grpc.RpcError) as error:
            stub.DescribeEvaluation(request, timeout=60)
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["spent"]["epsilon"] == "2"


def test_a_signed_release_of_sums_stays_the_same_to_the_byte(world: World) -> None:
    world.submit(BYTES)
    manifest, _ = released(world)
    folder = world.party.store / "releases" / "labels" / "1"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == ["charge.json", "codes.bin", "keys.bin", "manifest.json"]
    assert len(before["codes.bin"]) == 8 * manifest.rows
    assert before["keys.bin"] == b""
    again = world.party.release(**ASKED)
    assert "already released" in again.out
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # a bit that flips is never served
    (folder / "codes.bin").write_bytes(
        bytes([before["codes.bin"][0] ^ 1]) + before["codes.bin"][1:]
    )
    refused = world.party.release(**ASKED)
    assert refused.code == 1
    assert "damaged" in refused.error


@pytest.mark.slow
def test_a_stream_that_breaks_goes_on_at_any_sum(world: World) -> None:
    world.submit(asking(EACH))
    _, sums = released(world)
    described = world.client.describe()
    for start in (0, 1, 7, EVENTS):
        _, rest = world.client.fetch(described, start_row=start, max_chunk_bytes=24)
        assert decode_sums(rest).tolist() == sums[start:].tolist()
    with pytest.raises(grpc.RpcError) as error:
        world.client.fetch(described, start_row=EVENTS + 1)
    assert error.value.code() == grpc.StatusCode.OUT_OF_RANGE


def test_a_watch_answers_what_was_asked(world: World) -> None:
    world.submit(b"", range(80), epoch="1")
    world.submit(asking(GROUPS[80:140]), range(80, 140), epoch="2")
    world.submit(b"", range(140, EVENTS), epoch="3")
    done = world.party.run("watch", "--once", *world.party.arguments(**ASKED))
    assert done.code == 0, done
    assert "2: 60 events, 5 sums over groups; ε = 2 (labels)" in done.out
    assert "3: 60 events, prior of 1" in done.out  # not that of sums, which count nothing
    assert "no new epoch" in world.party.run("watch", "--once", *world.party.arguments(**ASKED)).out


def test_backups_and_withdrawals_know_sums(party: Party, connect: Connect, tmp_path: Path) -> None:
    with serving(party, connect) as world:
        world.submit(BYTES)
        manifest, sums = released(world)
    assert party.run("backup", "--to", "b.tar").code == 0
    party.store.rename(tmp_path / "lost")
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    (kept,) = party.store.glob("populations/labels/1/*.question")
    assert kept.read_bytes() == BYTES
    with serving(party, connect) as again:
        assert released(again)[1].tolist() == sums.tolist()
        assert again.client.describe().manifest == manifest.to_bytes()
        gone = party.run("withdraw", "1", "--reason", "wrong", "--yes")
        assert gone.code == 0, gone
        with pytest.raises(grpc.RpcError) as error:
            again.client.describe(epoch="1")
        assert "withdrawn: wrong" in str(error.value.details())
    (account,) = json.loads(party.run("budget", "--json").out)
    assert account["spent"]["epsilon"] == "2"
