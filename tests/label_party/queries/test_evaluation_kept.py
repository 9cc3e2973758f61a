"""What was asked and answered outlives crashes, removed files, restores and changed labels."""

from __future__ import annotations

import base64
import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest

from labelveil.label_party.queries import evaluation
from labelveil.label_party.queries.evaluation import EvaluationSession
from labelveil.label_party.server.run import running
from labelveil.label_party.store.entries import Answer, Charge, Purchase
from labelveil.label_party.store.ledger import Ledger, LedgerError
from tests.effort import one_in
from tests.label_party.conftest import EVENTS, Party
from tests.label_party.queries.asking import (
    CLOSED,
    EPSILON,
    OFFERED,
    TRUTH,
    USED_UP,
    Connect,
    answers,
    ask_until_refused,
    charges,
    make_asker,
    outcome_folder,
    session,
)


def test_the_same_question_has_the_same_answer_across_restarts(serve: Any, party: Party) -> None:
    predictions = np.linspace(0, 9, EVENTS)
    with serve() as asker:
        first = asker.ask(predictions).SerializeToString(deterministic=True)
        # what differs by less than any rounding keeps is another question, with noise of its own
        others = [asker.ask(predictions + shift) for shift in (1e-12, 2e-12)]
        again = asker.ask(predictions)
        assert again.SerializeToString(deterministic=True) == first
        assert len({again.loss, *(other.loss for other in others)}) > 1
    with serve() as asker:
        assert asker.ask(predictions).SerializeToString(deterministic=True) == first
    assert len(charges(party)) == 1
    assert len(answers(party)) == 3


@pytest.mark.parametrize("step", ["reserve", "answer"])
def test_a_disk_without_room_for_an_answer_is_to_be_asked_again(
    serve: Any, party: Party, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*given: Any) -> None:
        raise LedgerError("ledger ledger.sqlite: database or disk is full; nothing was spent")

    with serve() as asker:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, step, full)
            assert asker.refused(np.zeros(EVENTS)) == (
                grpc.StatusCode.UNAVAILABLE,
                "the answer cannot be written now; try again later",
            )
        assert asker.ask(np.zeros(EVENTS)).answers_left == 2


@pytest.mark.parametrize(
    ("moment", "step"),
    [*itertools.product(("before", "after"), ("commit", "answer", "append"))],
)
def test_a_crash_neither_spends_twice_nor_changes_an_answer(
    serve: Any, party: Party, monkeypatch: pytest.MonkeyPatch, step: str, moment: str
) -> None:
    """At every step between a question and its answer: paid for, counted, remembered, shown."""
    owner: Any = evaluation if step == "append" else Ledger
    name = "append_durably" if step == "append" else step
    real = getattr(owner, name)
    counted: list[Answer] = []

    def die(*given: Any) -> None:
        if moment == "after":
            real(*given)
        raise RuntimeError("the power is gone")

    with serve() as asker:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, die)
            assert asker.refused(np.zeros(EVENTS)) == (
                grpc.StatusCode.INTERNAL,
                "internal error",
            )
        counted = answers(party)
        assert len(counted) == ((step, moment) in {("answer", "after")} or step == "append")
        assert len(charges(party)) == ((step, moment) != ("commit", "before"))
    with serve() as asker:
        answer = asker.ask(np.zeros(EVENTS))
        assert [answer.loss] == [entry.value for entry in counted or answers(party)]
        assert answer.answers_left == 2
        assert asker.ask(np.ones(EVENTS)).answers_left == 1
    assert len(charges(party)) == 1
    # all that was shown is known where an older ledger, put back, would have forgotten it
    shown = (outcome_folder(party) / "answered.log").read_text().split("\n")
    assert {entry.question for entry in answers(party)} <= {*shown}


def removed(name: str) -> Callable[[Party, Path], None]:
    def remove(party: Party, before: Path) -> None:
        (outcome_folder(party) / name).unlink()

    return remove


def put_back(*names: str) -> Callable[[Party, Path], None]:
    """Files of the store as they were after the first answer."""

    def put(party: Party, before: Path) -> None:
        for path in list(party.store.glob("ledger.sqlite*")) if "ledger" in names else []:
            path.unlink()
        for path in before.rglob("*"):
            if path.is_file() and any(path.name.startswith(name) for name in names):
                shutil.copy2(path, party.store / path.relative_to(before))

    return put


def begun_anew(party: Party, before: Path) -> None:
    for path in party.store.glob("ledger.sqlite*"):
        path.unlink()
    assert party.run("restore", "--nothing-since").code == 0


def begun_anew_without_log(party: Party, before: Path) -> None:
    (outcome_folder(party) / "answered.log").unlink()
    begun_anew(party, before)


@pytest.mark.parametrize(
    "tamper",
    one_in(
        2,
        [
            removed("answered.log"),
            removed("outcome.bin"),
            removed("charge.json"),
            put_back("answered.log"),
            put_back("outcome.bin"),
            put_back("ledger"),
            begun_anew,
            begun_anew_without_log,
        ],
        first=1,
    ),
    ids=[
        "the log is removed", "the session is removed", "the charge is removed",
        "the log is put back", "the session is put back", "the ledger is put back",
        "the ledger is removed", "ledger and log are removed",
    ],
)  # fmt: skip
@pytest.mark.parametrize("moment", one_in(3, (1, 2, 3), first=1))
def test_no_file_that_is_removed_or_put_back_gives_more_answers(
    serve: Any, party: Party, tamper: Callable[[Party, Path], None], moment: int
) -> None:
    """Between any two answers; three are paid for, and at most three are ever seen."""
    with serve() as asker:
        seen = {asker.ask(np.full(EVENTS, 0.0)).loss}
    before = party.folder / "before"
    shutil.copytree(party.store, before)
    with serve() as asker:
        seen |= {asker.ask(np.full(EVENTS, float(n))).loss for n in range(1, moment)}
    tamper(party, before)
    for start in (10, 20):
        with serve() as asker:
            seen |= {answer.loss for answer in ask_until_refused(asker, start)}
    assert moment <= len(seen) <= 3


def test_a_count_of_files_would_be_caught(
    serve: Any, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin that was attacked: it counts what lies beside the session, and forgets."""

    given: dict[str, Answer] = {}

    def counted(ledger: Ledger, charge: Charge) -> list[Answer]:
        log = outcome_folder(party) / "answered.log"
        lines = log.read_text().split("\n") if log.exists() else []
        return [given[line] for line in lines if line]

    def answer(
        ledger: Ledger, charge: Charge, question: str, value: float, noise_scale: float
    ) -> Answer:
        number = len(counted(ledger, charge)) + 1
        return given.setdefault(question, Answer(number, question, value, noise_scale))

    monkeypatch.setattr(Ledger, "answers", counted)
    monkeypatch.setattr(Ledger, "answer", answer)
    seen = set()
    for start in (0, 10, 20):
        with serve() as asker:
            seen |= {reply.loss for reply in ask_until_refused(asker, start)}
        (outcome_folder(party) / "answered.log").unlink()
    assert len(seen) == 9


def test_a_ledger_that_is_put_back_closes_the_session(
    serve: Any, party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as asker:
        first = asker.ask(np.zeros(EVENTS))
        shutil.copytree(party.store, party.folder / "before")
        asker.ask(np.ones(EVENTS))
    put_back("ledger")(party, party.folder / "before")
    with serve() as asker:
        assert asker.terms().answers_left == 0
        assert asker.ask(np.zeros(EVENTS)) == first
        assert asker.refused(np.full(EVENTS, 2.0)) == CLOSED
    reasons = [getattr(record, "cause", "") for record in caplog.records]
    assert any("gave answers that the ledger does not know" in reason for reason in reasons)


def test_processes_share_one_count(serve: Any, party: Party) -> None:
    """Two servers on one store, asked in turn: three answers together, the same for the same."""
    with serve() as one, serve() as other:
        given = [one.ask(np.full(EVENTS, 0.0)), other.ask(np.full(EVENTS, 1.0))]
        assert other.ask(np.full(EVENTS, 0.0)) == given[0]
        given.append(one.ask(np.full(EVENTS, 2.0)))
        assert [answer.answers_left for answer in given] == [2, 1, 0]
        assert other.refused(np.full(EVENTS, 3.0)) == one.refused(np.full(EVENTS, 3.0)) == USED_UP


BY_USER = {
    "privacy__unit": "user",
    "privacy__user": "person",
}


@pytest.mark.parametrize("now", [1, 50])
def test_a_session_is_answered_as_it_was_sold_or_not_at_all(
    party: Party, connect: Connect, caplog: pytest.LogCaptureFixture, now: int
) -> None:
    """Bought with five records a user; then the configuration says another number."""
    people = [f"person-{i // 5}" for i in range(EVENTS)]
    party.write_population({"key": [f"event-{i}" for i in range(EVENTS)], "person": people})
    # codes that tell the histogram well: of a constant's loss depends what is answered
    values = {"domain__grid": "values", "domain__values": "[0, 2, 4, 6, 8, 10]"}
    released = values | {"privacy__total_epsilon": EPSILON + 40, "privacy__epsilon": 40}
    assert party.release(**released, **BY_USER, privacy__max_records_per_user=5).code == 0
    sold = (
        OFFERED
        | released
        | BY_USER
        | {"privacy__max_records_per_user": 5, "evaluation__tolerance": 1}
    )
    with running(party.config(**sold)) as address:
        asker = make_asker(party, connect(address))
        first = asker.ask(np.zeros(EVENTS))
    with running(party.config(**sold | {"privacy__max_records_per_user": now})) as address:
        asker = make_asker(party, connect(address))
        for predictions in (np.full(EVENTS, 1e-12), np.zeros(EVENTS)):
            assert asker.refused(predictions) == CLOSED
    (line, *_) = [r.cause for r in caplog.records if getattr(r, "cause", "")]  # type: ignore[attr-defined]
    assert f"records_per_unit was 5 and is {now} now; restore that setting" in line
    with running(party.config(**sold)) as address:
        asker = make_asker(party, connect(address))
        assert asker.ask(np.zeros(EVENTS)) == first
    (answer,) = answers(party)
    assert answer.noise_scale == first.noise_scale


def test_what_happens_to_labels_later_changes_nothing(serve: Any, party: Party) -> None:
    """Neither an answer nor a refusal tells that a label has changed, or that the file is gone."""
    with serve() as asker:
        first = asker.ask(np.zeros(EVENTS))
    text = (party.folder / "labels.csv").read_text()
    for changed in (text.replace("event-4,4", "event-4,9"), "damaged"):
        (party.folder / "labels.csv").write_text(changed)
        with serve() as asker:
            assert asker.ask(np.zeros(EVENTS)) == first
    with serve() as asker:
        answer = asker.ask(np.ones(EVENTS))
        assert answer.loss == pytest.approx(
            asker.gain(np.ones(EVENTS)), abs=21 * answer.noise_scale
        )
        assert answer.answers_left == 1


def test_a_session_is_for_its_owner_alone(serve: Any, party: Party) -> None:
    with serve() as asker:
        asker.ask(np.zeros(EVENTS))
    path = session(party)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = EvaluationSession.from_bytes(path.read_bytes())
    assert sorted(kept.labels[:, 0].tolist()) == sorted(TRUTH.tolist())
    path.unlink()
    with serve() as asker:  # nor does another take its place
        assert asker.terms().answers_left == 0
        assert asker.refused(np.ones(EVENTS)) == CLOSED


def test_a_backup_holds_no_key_of_noise_and_no_label(serve: Any, party: Party) -> None:
    with serve() as asker:
        given = [asker.ask(np.full(EVENTS, float(i))) for i in range(2)]
    kept = EvaluationSession.from_bytes(session(party).read_bytes())
    assert party.run("backup", "--to", "b.tar").code == 0
    data = (party.folder / "b.tar").read_bytes()
    key = (kept.key, kept.key.hex().encode(), base64.b64encode(kept.key).rstrip(b"="))
    for secret in (*key, kept.labels.tobytes()[:256]):
        assert secret not in data
    for secret in (key[1], kept.labels.tobytes()[:256]):
        assert secret in session(party).read_bytes()  # in these forms it would be found
    assert b"outcome.bin" not in data
    assert data.count(b"labelveil-evaluation") == 0
    assert [answer.value for answer in answers(party)] == [answer.loss for answer in given]


@pytest.mark.slow
def test_a_payment_that_is_found_by_its_request_alone_would_be_caught(
    party: Party, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin that was attacked: it answers with a fifth of the noise that was bought."""
    real = Purchase.differences
    monkeypatch.setattr(
        Purchase,
        "differences",
        lambda self, asked: real(replace(self, records_per_unit=asked.records_per_unit), asked),
    )
    with pytest.raises(pytest.fail.Exception):
        test_a_session_is_answered_as_it_was_sold_or_not_at_all(
            party, connect, cast(pytest.LogCaptureFixture, None), 1
        )
    noise = [answer.noise_scale for answer in answers(party)]
    assert noise[0] == pytest.approx(5 * noise[1], rel=1e-3)


@pytest.mark.parametrize("lost", ["store", "ledger"])
def test_a_restored_session_is_closed_and_its_answers_can_be_read(
    serve: Any, party: Party, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as asker:
        first = asker.ask(np.zeros(EVENTS))
        assert party.run("backup", "--to", "b.tar").code == 0
        asker.ask(np.ones(EVENTS))  # the backup does not know of it
    if lost == "store":
        party.store.rename(party.folder / "old_store")
    else:
        for path in party.store.glob("ledger.sqlite*"):
            path.unlink()
    assert party.run("restore", "b.tar", "--nothing-since").code == 0
    if lost == "store":  # what further answers would be made of is put where it was
        for path in (party.folder / "old_store").glob("outcomes/*/*/*/outcome.bin"):
            shutil.copy(path, party.store / path.relative_to(party.folder / "old_store"))
    with serve() as asker:
        assert asker.ask(np.zeros(EVENTS)) == first
        for predictions in (np.ones(EVENTS), np.full(EVENTS, 2.0)):
            assert asker.refused(predictions) == CLOSED
    (reason, *_) = [r.cause for r in caplog.records if getattr(r, "cause", "")]  # type: ignore[attr-defined]
    assert "was restored from a backup, and is closed; name another epoch" in reason
    assert len(charges(party)) == 1
    assert party.run("backup", "--to", "c.tar").code == 0
