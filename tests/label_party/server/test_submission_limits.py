"""What is taken of a submission, and refused, at each limit; and the constant words of refusals."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.questions import Question
from labelveil.common.release.question import encode_question, most_bytes
from labelveil.common.wire import label_release_pb2 as wire
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.submitted import Populations, Submitted
from labelveil.label_party.server import refusal as refusals
from labelveil.label_party.server.refusal import Refusal
from labelveil.label_party.server.submission import MAX_PART_BYTES, Submissions
from labelveil.label_party.store.release_store import Store

CODE = grpc.StatusCode


def configured(**server: Any) -> LabelPartyConfig:
    return LabelPartyConfig.model_validate(
        {
            "data": {"labels": "none.csv", "population": "submitted", "data_set": "sales"},
            "privacy": {"epsilon": 1.0},
            "label": [{"name": "amount", "lower": 0, "upper": 9}],
            "rounds": {"questions": server.pop("questions", True)},
            "server": {
                "clients": {"one": ["sales"], "two": ["sales"], "three": ["others"]},
                "max_population_rows": 50,
                "max_waiting_populations": 4,
                **server,
            },
        }
    )


def submissions(catalog: Any = None, populations: Any = None, **server: Any) -> Submissions:
    return Submissions(catalog, populations, configured(**server))


def header(**changes: Any) -> wire.PopulationHeader:
    usual: dict[str, Any] = {
        "data_set": "sales",
        "epoch": "7",
        "rows": 50,
        "population_sha256": b"p" * 32,
        "secret_check": b"s" * 16,
        "question_sha256": b"q" * 32,
    }
    return wire.PopulationHeader(**usual | changes)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"data_set": "others"}, CODE.FAILED_PRECONDITION, "supplies the population itself"),
        ({"epoch": ""}, CODE.INVALID_ARGUMENT, "epoch must be 1 to 64 letters"),
        ({"epoch": "a/b"}, CODE.INVALID_ARGUMENT, "epoch must be 1 to 64 letters"),
        ({"rows": 0}, CODE.INVALID_ARGUMENT, "a population has at least one key"),
        ({"population_sha256": b"p" * 31}, CODE.INVALID_ARGUMENT, "must have 32 bytes"),
        ({"population_sha256": b"p" * 33}, CODE.INVALID_ARGUMENT, "must have 32 bytes"),
        ({"secret_check": b"s" * 15}, CODE.INVALID_ARGUMENT, "secret_check must have 16 bytes"),
        ({"question_sha256": b"q"}, CODE.INVALID_ARGUMENT, "must have 32 bytes, or none"),
        ({"rows": 51}, CODE.OUT_OF_RANGE, "51 keys are too many; the most allowed is 50"),
    ],
)
def test_a_header_is_refused_for_each_thing(
    changes: dict[str, Any], code: grpc.StatusCode, text: str
) -> None:
    own = submissions()
    own._check(header())
    own._check(header(rows=1, question_sha256=b""))
    with pytest.raises(Refusal, match=text) as refused:
        own._check(header(**changes))
    assert refused.value.code == code


def test_questions_are_taken_only_where_they_are_offered() -> None:
    own = submissions(questions=False)
    own._check(header(question_sha256=b""))
    with pytest.raises(Refusal, match="takes no questions; submit the keys alone"):
        own._check(header())


class Sent(list[bytes]):
    """What was appended to an upload."""

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.start = size

    @property
    def size(self) -> int:
        return self.start + sum(map(len, self))


def appended(message: Any, keys: int = 0, question: int = 0, **changes: Any) -> list[list[bytes]]:
    uploads: Any = Sent(keys), Sent(question)
    submissions()._append(uploads, header(**changes), message)
    return [list(each) for each in uploads]


def test_keys_and_parts_of_a_question_are_told_apart() -> None:
    request = wire.SubmitPopulationRequest
    keys = request(keys=b"k" * 32)
    assert appended(keys) == [[b"k" * 32], []]
    assert appended(keys, keys=16 * 48) == [[b"k" * 32], []]
    with pytest.raises(Refusal, match="more keys than the 50 of the header"):
        appended(keys, keys=16 * 49)
    for size in (0, 15, 17):
        with pytest.raises(Refusal, match=f"{size} bytes are not one or more keys of 16 bytes"):
            appended(request(keys=b"k" * size))
    most = MAX_PART_BYTES
    assert len(appended(request(keys=bytes(most)), rows=1 << 30)[0][0]) == most
    with pytest.raises(Refusal, match=f"{most + 16} bytes of keys in one message; at most {most}"):
        appended(request(keys=bytes(most + 16)), rows=1 << 30)

    part = request(question=b"why")
    assert appended(part) == [[], [b"why"]]
    limit = most_bytes(50)
    assert appended(part, question=limit - 3) == [[], [b"why"]]
    for message, before in (
        (part, limit - 2),
        (request(question=b""), 0),
        (request(question=bytes(most + 1)), 0),
    ):
        with pytest.raises(Refusal, match=f"at most {limit} bytes, in parts of 1 to {most}"):
            appended(message, question=before)
    for message, facts in (
        (part, {"question_sha256": b""}),  # none was announced
        (request(header=header()), {}),
    ):
        with pytest.raises(Refusal, match="the header must be the first message, and no other"):
            appended(message, **facts)
    with pytest.raises(Refusal, match="the header must be the first message, and no other"):
        appended(keys, question=1)  # keys after the question


SUMS = GroupQuestion(Lattice(0.0, 9.0, 9), np.zeros(4, np.int64), np.array([3]))
CODES = Question(np.zeros(4, np.int64), Grid.from_count(0.0, 9.0, 10), np.ones((1, 10), np.int64))


@pytest.mark.parametrize(
    ("data", "digest", "said"),
    [
        (encode_question(SUMS), None, None),
        (encode_question(CODES), None, None),
        (encode_question(SUMS), b"q" * 32, "does not give the header's question_sha256"),
        (encode_question(SUMS)[:-1], None, "the question about 4 events is none"),
        (
            encode_question(replace(SUMS, lattice=Lattice(0.0, 8.0, 8))),
            None,
            "labels in 0 … 8, not in 0 … 9; name the same bounds",
        ),
        (
            encode_question(replace(CODES, grid=Grid.from_count(-1.0, 9.0, 10))),
            None,
            "labels in -1 … 9, not in 0 … 9; name the same bounds in all rounds",
        ),
    ],
)
def test_a_question_is_about_these_labels(
    tmp_path: Path, data: bytes, digest: bytes | None, said: str | None
) -> None:
    path = tmp_path / "question"
    path.write_bytes(data)
    upload: Any = SimpleNamespace(path=path, sha256=sha256(data).hexdigest())
    announced = header(rows=4, question_sha256=digest or sha256(data).digest())
    if said is None:
        submissions()._check_question(upload, announced)
        return
    with pytest.raises(Refusal, match=said) as caught:
        submissions()._check_question(upload, announced)
    assert caught.value.code == CODE.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("others", "own", "arriving", "alone", "refused"),
    [
        (1, 1, 0, False, None),
        (2, 1, 0, False, None),
        (3, 1, 0, False, "4 populations wait for their releases already"),
        (2, 1, 1, False, "4 populations wait for their releases already"),
        (0, 2, 0, False, "2 populations of yours wait"),
        (0, 1, 1, False, "2 populations of yours wait"),
        (0, 1, 0, False, None),
        (0, 2, 1, True, None),
        (0, 3, 1, True, "4 populations wait for their releases already"),
    ],
)
def test_room_is_shared_by_those_who_may_submit(
    others: int, own: int, arriving: int, alone: bool, refused: str | None
) -> None:
    """Four may wait, of which half are each client's: released ones, and the same, count not."""
    entitled = {"clients": {"one": ["sales"], "three": ["others"]}} if alone else {}
    clients = {f"t{i}": "two" for i in range(others)} | {f"o{i}": "one" for i in range(own)}
    clients |= {"done": "one", "7": "one"}
    populations = SimpleNamespace(
        epochs=lambda name: list(clients),
        current=lambda name, epoch: SimpleNamespace(client=clients[epoch]),
    )
    catalog = SimpleNamespace(epochs=lambda name: {"done"})
    taken = submissions(catalog, populations, client_share=0.5, **entitled)
    taken._arriving["one"] += arriving
    if refused is None:
        taken._make_sure_of_room(header(), "one")
        return
    with pytest.raises(Refusal, match=refused) as found:
        taken._make_sure_of_room(header(), "one")
    assert found.value.code == CODE.FAILED_PRECONDITION


def test_an_epoch_that_is_released_or_stored_is_settled() -> None:
    heading = SimpleNamespace(population=SimpleNamespace(rows=50, digest=(b"p" * 32).hex()))
    released = SimpleNamespace(find=lambda name, epoch: SimpleNamespace(heading=heading))
    answer = submissions(released)._settled(header())
    assert answer == wire.SubmitPopulationResponse(
        rows=50, population_sha256=b"p" * 32, status=wire.POPULATION_STATUS_FROZEN
    )
    for changes in ({"rows": 49}, {"population_sha256": b"x" * 32}):
        with pytest.raises(Refusal, match="covers another population, forever") as found:
            submissions(released)._settled(header(**changes))
        assert found.value.code == CODE.ALREADY_EXISTS

    stored = Submitted(
        rows=50,
        sha256=(b"p" * 32).hex(),
        secret_check=(b"s" * 16).hex(),
        client="two",
        submitted_at="then",
        question=(b"q" * 32).hex(),
    )
    none = SimpleNamespace(find=lambda name, epoch: None)
    own = submissions(none, SimpleNamespace(current=lambda name, epoch: stored))
    answer = own._settled(header())
    assert answer is not None
    assert answer.status == wire.POPULATION_STATUS_ALREADY_STORED
    for field in ("population_sha256", "secret_check", "question_sha256"):
        assert own._settled(header(**{field: b"x" * len(getattr(header(), field))})) is None
    assert own._settled(header(rows=49)) is None
    assert submissions(none, SimpleNamespace(current=lambda *_: None))._settled(header()) is None


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (refusals.unknown_client,
         (CODE.PERMISSION_DENIED, "not permitted", "unknown_client", None)),
        (refusals.forbidden,
         (CODE.PERMISSION_DENIED, "not permitted", "data_set_not_permitted", None)),
        (refusals.no_such_method,
         (CODE.UNIMPLEMENTED, "this labels party has no such method", "no_such_method", None)),
        (refusals.too_many_calls,
         (CODE.RESOURCE_EXHAUSTED, "too many calls at once; try again later", "too_many_calls", 1)),
        (refusals.too_many_streams,
         (CODE.RESOURCE_EXHAUSTED, "too many streams; try again later", "too_many_streams", 5)),
        (lambda: refusals.too_many_requests(3.5),
         (CODE.RESOURCE_EXHAUSTED, "too many requests; try again later", "too_many_requests", 3.5)),
        (refusals.incomplete,
         (CODE.DEADLINE_EXCEEDED, "the request was not complete in time", "incomplete_request", 1)),
        (refusals.stalled, (CODE.DEADLINE_EXCEEDED, "no progress for too long", "stalled", 1)),
        (refusals.internal_error, (CODE.INTERNAL, "internal error", "internal_error", 5)),
        (refusals.not_found, (CODE.NOT_FOUND, "no such release", "no_release", None)),
        (refusals.damaged, (CODE.DATA_LOSS, "the release cannot be read", "damaged", None)),
        (lambda: refusals.invalid("a"), (CODE.INVALID_ARGUMENT, "a", "invalid_request", None)),
        (lambda: refusals.refused("a"),
         (CODE.FAILED_PRECONDITION, "a", "failed_precondition", None)),
        (lambda: refusals.refused("a", "b"), (CODE.FAILED_PRECONDITION, "a", "b", None)),
        (lambda: refusals.unavailable("a"),
         (CODE.UNAVAILABLE, "a; try again later", "unavailable", 5)),
        (lambda: Refusal(CODE.OUT_OF_RANGE, "a"), (CODE.OUT_OF_RANGE, "a", "out_of_range", None)),
    ],
)  # fmt: skip
def test_refusals_are_in_constant_words(make: Any, expected: tuple[Any, ...]) -> None:
    made = make()
    assert (made.code, made.text, made.reason, made.retry_after) == expected
    assert str(made) == made.text
    assert make() is not made


def test_what_was_settled_while_keys_came_is_not_stored_again(tmp_path: Path) -> None:
    populations, keys = Populations(Store(tmp_path)), bytes(range(64))
    asked = header(rows=4, population_sha256=sha256(keys).digest(), question_sha256=b"")
    for settled in (wire.SubmitPopulationResponse(rows=4), None):
        made = submissions(populations=populations)
        made._settled = lambda header, settled=settled: settled  # type: ignore[method-assign]
        with populations.upload() as uploads:
            uploads[0].append(keys)
            answer = made._store(uploads, asked, "one")
        assert (answer is settled) == (populations.current("sales", "7") is None) == bool(settled)
