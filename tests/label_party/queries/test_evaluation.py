"""Questions about a model on true labels: charged once, answered the same way forever."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.common.guarantees import PureDP, Unit, guarantee_from_json
from labelveil.common.mechanisms.paired_gain import NoisyAnswers, PairedGain
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.wire import evaluation_pb2 as wire
from labelveil.common.wire import evaluation_pb2_grpc as stubs
from labelveil.common.wire.label_release_pb2 import DescribeReleaseResponse
from labelveil.label_party.config.sections import EvaluationSection
from labelveil.label_party.queries import evaluation
from labelveil.label_party.queries.evaluation import Evaluation, Session
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.server.run import running
from labelveil.label_party.store.entries import EVALUATION, Answer, Charge, Purchase
from labelveil.label_party.store.ledger import Ledger, LedgerError
from labelveil.label_party.store.release_store import Store, outcome_name
from tests.effort import one_in
from tests.label_party.conftest import EVENTS, Client, Party

Connect = Callable[..., Client]

EPSILON = 40
OFFERED = {
    "evaluation__offered": "true",
    "evaluation__epsilon": EPSILON,
    "evaluation__answers": 3,
    "evaluation__largest_loss": 20,
    "privacy__total_epsilon": EPSILON + 10,
    "privacy__epsilon": 10,  # tells the histogram, of which depends what is answered
}
RELEASED = {name: value for name, value in OFFERED.items() if name.startswith("privacy__")}
TRUTH = np.array([float(i % 10) if i % 2 == 0 else 0.0 for i in range(EVENTS)])
LARGEST = 20.0


GAIN = {"loss_name": "squared gain"}


@dataclass(frozen=True)
class Asker:
    """A client that knows the events in release order."""

    stub: stubs.EvaluationServiceStub
    described: DescribeReleaseResponse
    truth: np.ndarray

    @property
    def named(self) -> dict[str, Any]:
        digest = self.described.manifest_sha256
        return {"data_set": "labels", "epoch": "1", "manifest_sha256": digest} | GAIN

    def terms(self) -> wire.DescribeEvaluationResponse:
        return self.stub.DescribeEvaluation(wire.DescribeEvaluationRequest(**self.named))

    def ask(self, predictions: np.ndarray, **header: Any) -> wire.EvaluatePredictionsResponse:
        first = wire.EvaluationHeader(**{**self.named, **header})
        data = predictions.astype("<f8").tobytes()
        half = len(data) // 16 * 8
        parts = [wire.EvaluatePredictionsRequest(header=first)]
        parts += [
            wire.EvaluatePredictionsRequest(predictions=data[a:b])
            for a, b in ((0, half), (half, len(data)))
        ]
        return self.stub.EvaluatePredictions(iter(parts), timeout=300)

    def refused(self, *given: Any, **header: Any) -> tuple[grpc.StatusCode, str | None]:
        with pytest.raises(grpc.RpcError) as error:
            self.ask(*given, **header)
        return error.value.code(), error.value.details()

    @property
    def constant(self) -> float:
        """What a model is compared with: the released prior's mean."""
        prior, grid = self.prior
        return float(prior @ grid)

    @property
    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """What was released of all labels: probabilities, and of which."""
        manifest = Manifest.from_bytes(self.described.manifest)
        return manifest.histograms[0].probabilities, np.asarray(manifest.label.grid)

    def gain(self, predictions: np.ndarray) -> float:
        """The mean of clipped differences over the events that are asked about."""
        differences = (self.constant - self.truth) ** 2 - (predictions - self.truth) ** 2
        return float(np.nanmean(np.clip(differences, -LARGEST, LARGEST)))


def make_asker(party: Party, client: Client) -> Asker:
    described = client.describe()
    keys, _ = client.fetch(described)
    secret = read_secret(party.folder / "join.key")
    hashed = hash_keys(pl.Series([f"event-{i}" for i in range(EVENTS)]), secret)
    row = {hashed[16 * i : 16 * i + 16]: value for i, value in enumerate(TRUTH.tolist())}
    truth = np.array([row[keys[at : at + 16]] for at in range(0, len(keys), 16)])
    return Asker(stubs.EvaluationServiceStub(client.channel), described, truth)


@pytest.fixture
def serve(party: Party, connect: Connect) -> Callable[..., Any]:
    """Start servers with settings; the release exists already."""
    assert party.release(**RELEASED).code == 0

    class Serving:
        def __init__(self, **settings: Any) -> None:
            self._run = running(party.config(**(OFFERED | settings)))

        def __enter__(self) -> Asker:
            return make_asker(party, connect(self._run.__enter__()))

        def __exit__(self, *exception: Any) -> None:
            self._run.__exit__(*exception)

    return Serving


def answers(party: Party) -> list[Answer]:
    """What the ledger says was answered."""
    with Store(party.store).read_ledger() as ledger:
        charge = ledger.committed("labels", "1", EVALUATION)
        return [] if charge is None else ledger.answers(charge)


def charges(party: Party) -> list[dict[str, Any]]:
    (account,) = json.loads(party.run("budget", "--json").out)
    return [c for c in account["charges"] if c["purpose"] == EVALUATION]


def test_an_answer_is_the_gain_with_the_noise_said_beforehand(serve: Any, party: Party) -> None:
    with serve() as asker:
        terms = asker.terms()
        assert (terms.epsilon, terms.answers, terms.answers_left) == (str(EPSILON), 3, 3)
        assert (terms.largest_loss, terms.tolerance) == (LARGEST, 0.5)
        latest = wire.DescribeEvaluationRequest(**{**asker.named, "epoch": ""})
        assert asker.stub.DescribeEvaluation(latest) == terms
        assert not charges(party)
        for left, predictions in enumerate((asker.truth, np.full(EVENTS, 9.0))):
            answer = asker.ask(predictions)
            probabilities, grid = asker.prior
            gain = PairedGain.of_prior(grid, probabilities, "squared", LARGEST)
            said = NoisyAnswers(Fraction(EPSILON), 3).unsure(gain, gain.span(predictions), EVENTS)
            assert answer.noise_scale == said
            assert 0 < said < 0.05 * LARGEST
            assert answer.loss == pytest.approx(asker.gain(predictions), abs=21 * said)
            assert answer.answers_left == asker.terms().answers_left == 2 - left
    (charge,) = charges(party)
    assert guarantee_from_json(charge["guarantee"]) == PureDP.of(EPSILON)


def test_rows_may_be_left_out(serve: Any) -> None:
    with serve() as asker:
        predictions = np.where(asker.truth > 4, asker.truth, np.nan)
        answer = asker.ask(predictions)
        assert answer.loss == pytest.approx(asker.gain(predictions), abs=21 * answer.noise_scale)


def test_an_answer_that_cannot_tell_anything_is_refused_before_it_costs(
    serve: Any, party: Party
) -> None:
    one = np.full(EVENTS, np.nan)
    with serve() as asker:
        prior, grid = asker.prior
        loss = float(prior @ (grid - prior @ grid) ** 2)
    # Far from the constant, wherever the released prior has it, differences span 2B, and the
    # noise's scale is 3/40 · 2B = 0.15 B, its half-width ln 20 · 0.15 B = 0.45 B.
    with serve(evaluation__tolerance=min(0.3 * LARGEST / loss, 1.0)) as asker:
        one[0] = 9.0 if asker.constant < 4.5 else 0.0
        code, text = asker.refused(one)
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert text is not None
        assert "could be off by" in text
        assert "ask about more events" in text
        # a label decides neither the refusal nor its text
        assert asker.refused(one) == (code, text)
    assert not charges(party)
    assert not answers(party)


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


def test_a_price_is_told_of_what_is_offered_and_not_paid_for(party: Party) -> None:
    store = Store(party.store)
    assert Evaluation(party.config(**OFFERED), store).price() == PureDP.of(EPSILON)
    assert (
        Evaluation(party.config(**OFFERED | {"evaluation__offered": "false"}), store).price()
        is None
    )


def test_answers_are_used_up(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No label is looked at for a question beyond them."""
    used_up = grpc.StatusCode.FAILED_PRECONDITION, "the budget for evaluations is used up"
    with serve() as asker:
        given = [asker.ask(np.full(EVENTS, float(i))) for i in range(3)]
        assert [answer.answers_left for answer in given] == [2, 1, 0]
        assert asker.refused(np.full(EVENTS, 7.0)) == used_up
        assert asker.ask(np.full(EVENTS, 0.0)) == given[0]
    drawn: list[object] = []
    monkeypatch.setattr(NoisyAnswers, "draw", lambda *given, **named: drawn.append(given))
    with serve() as asker:
        assert asker.refused(np.full(EVENTS, 7.0)) == used_up
        assert asker.terms().answers_left == 0
    assert not drawn


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


CLOSED = grpc.StatusCode.FAILED_PRECONDITION, "no evaluation can be given now"
USED_UP = grpc.StatusCode.FAILED_PRECONDITION, "the budget for evaluations is used up"


@pytest.mark.parametrize(
    ("moment", "step"),
    one_in(2, itertools.product(("before", "after"), ("commit", "answer", "append"))),
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


def ask_until_refused(asker: Asker, start: int) -> list[wire.EvaluatePredictionsResponse]:
    """Ask new questions as long as they are answered."""
    given = []
    for number in range(start, start + 4):
        try:
            given.append(asker.ask(np.full(EVENTS, float(number))))
        except grpc.RpcError:
            break
    return given


def outcome_folder(party: Party) -> Path:
    return session(party).parent


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


def session(party: Party) -> Path:
    (path,) = party.store.glob(f"outcomes/labels/1/{outcome_name(EVALUATION)}/outcome.bin")
    return path


def test_a_session_is_for_its_owner_alone(serve: Any, party: Party) -> None:
    with serve() as asker:
        asker.ask(np.zeros(EVENTS))
    path = session(party)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = Session.from_bytes(path.read_bytes())
    assert sorted(kept.labels[:, 0].tolist()) == sorted(TRUTH.tolist())
    path.unlink()
    with serve() as asker:  # nor does another take its place
        assert asker.terms().answers_left == 0
        assert asker.refused(np.ones(EVENTS)) == CLOSED


def test_a_backup_holds_no_key_of_noise_and_no_label(serve: Any, party: Party) -> None:
    with serve() as asker:
        given = [asker.ask(np.full(EVENTS, float(i))) for i in range(2)]
    kept = Session.from_bytes(session(party).read_bytes())
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


REFUSED: list[tuple[dict[str, Any], np.ndarray, str]] = [
    ({"data_set": "other"}, np.zeros(EVENTS), "PERMISSION_DENIED"),
    ({"data_set": ""}, np.zeros(EVENTS), "INVALID_ARGUMENT"),
    ({"epoch": "9"}, np.zeros(EVENTS), "NOT_FOUND"),
    ({"manifest_sha256": bytes(32)}, np.zeros(EVENTS), "FAILED_PRECONDITION"),
    ({"manifest_sha256": b""}, np.zeros(EVENTS), "FAILED_PRECONDITION"),
    ({"loss_name": "absolute gain"}, np.zeros(EVENTS), "FAILED_PRECONDITION"),
    ({"loss_name": "squared"}, np.zeros(EVENTS), "FAILED_PRECONDITION"),
    ({"label": "other"}, np.zeros(EVENTS), "INVALID_ARGUMENT"),
    ({}, np.zeros(EVENTS - 1), "INVALID_ARGUMENT"),
    ({}, np.zeros(EVENTS + 1), "INVALID_ARGUMENT"),
    ({}, np.full(EVENTS, np.nan), "INVALID_ARGUMENT"),
]


def test_refusals_are_free(serve: Any, party: Party) -> None:
    with serve() as asker:
        for header, predictions, code in REFUSED:
            assert asker.refused(predictions, **header)[0].name == code, header
            assert not charges(party), header
            assert not answers(party), header


def test_nothing_is_offered_unless_the_labels_party_says_so(serve: Any, party: Party) -> None:
    assert not EvaluationSection().offered
    with serve(evaluation__offered="false") as asker:
        code, text = asker.refused(np.zeros(EVENTS))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert text == "no evaluation of this release by this loss is offered"
    assert not charges(party)


def test_a_budget_that_does_not_allow_it_is_not_passed(serve: Any, party: Party) -> None:
    with serve(privacy__total_epsilon=EPSILON + 0.5) as asker:
        code, text = asker.refused(np.zeros(EVENTS))
        assert (code, text) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "the budget for evaluations is used up",
        )
    assert not charges(party)


def test_users_with_several_events_need_more_noise(party: Party) -> None:
    settings = {
        "privacy__unit": "user",
        "privacy__user": "person",
        "privacy__max_records_per_user": 3,
    }
    config = party.config(**OFFERED, **settings)
    mechanism = Evaluation(config, Store(config.store.directory)).mechanism
    assert mechanism.scale(EPSILON) == 3 * NoisyAnswers(Fraction(EPSILON), 3).scale(EPSILON)
    assert mechanism.guarantee == PureDP.of(EPSILON, unit=Unit.USER)


def test_questions_are_about_the_configured_release_its_labels_and_loss(party: Party) -> None:
    own = {"data_set": "labels", "epoch": "1", "names": ["label"], "sums": None}

    def offers(loss: str = "squared gain", *, offered: bool = True, **changed: object) -> bool:
        config = party.config(evaluation__offered=offered)
        release: Any = SimpleNamespace(manifest=SimpleNamespace(**own | changed))
        return Evaluation(config, Store(party.store)).offers(release, loss)

    assert offers()
    assert offers(names=["called otherwise"])
    assert not offers(names=["label", "more"])
    assert not offers(data_set="other")
    assert not offers(epoch="2")
    assert not offers(sums=object())
    assert not offers("absolute gain")
    assert not offers(offered=False)


def test_a_questions_noise_is_of_its_release_label_and_predictions() -> None:
    points = np.array([1.0, 2.0, np.nan])
    asked = ("ab" * 32, b"gain squared", points)
    others = [
        ("cd" * 32, *asked[1:]),
        (asked[0], b"gain absolute", points),
        (*asked[:2], points[:2]),
        (*asked[:2], points[[1, 0, 2]]),
        (*asked[:2], np.nextafter(points, 9)),
    ]
    names = {evaluation.question_name(*each) for each in (asked, *others)}
    assert len(names) == 1 + len(others)
    assert evaluation.question_name(*asked) in names


@pytest.mark.parametrize(
    ("term", "changed"),
    [
        ("release", {"digest": "cd" * 32}),
        ("loss", {"evaluation__loss": "absolute"}),
        ("largest_loss", {"evaluation__largest_loss": 7.0}),
        ("domain", {"domain__upper": 20.0}),
        ("missing", {"data__missing": 1.0}),
        ("answers", {"evaluation__answers": 7}),
        ("guarantee.epsilon", {"evaluation__epsilon": 0.125}),
    ],
)
def test_a_session_on_other_terms_is_another(
    party: Party, term: str, changed: dict[str, object]
) -> None:
    def order(*, digest: str = "ab" * 32, **settings: object) -> Purchase:
        config = party.config(evaluation__offered=True, **settings)
        release: Any = SimpleNamespace(digest=digest)
        return Evaluation(config, Store(party.store))._order(release)

    (said,) = order().differences(order(**changed))  # type: ignore[arg-type]
    assert said.startswith(f"{term} was ")


def test_each_of_two_labels_is_compared_by_its_own_truth(party: Party) -> None:
    numbers, yes = np.arange(EVENTS) % 4 * 1.0, np.arange(EVENTS) % 7 == 0
    keys = [f"event-{i}" for i in range(EVENTS)]
    party.write_labels({"key": keys, "count": numbers, "yes": yes.astype(int)})
    path = party.folder / "label_party.toml"
    text = path.read_text()
    domain, privacy, randomizer = map(text.index, ("[domain]", "[privacy]", "[randomizer]"))
    rest = text[randomizer:].split("\n", 2)[2]  # but for its name
    path.write_text(
        text[:domain]
        + '[[label]]\nname = "count"\nkind = "count"\nlower = 0\nupper = 3\n'
        + '[[label]]\nname = "yes"\nkind = "binary"\n'
        + text[privacy:randomizer]
        + rest
    )
    assert party.release(**RELEASED).code == 0
    offered = {name: value for name, value in OFFERED.items() if "largest_loss" not in name}
    config = party.config(**offered)
    store = Store(party.store)
    release = Catalog(store).find("labels", "1")
    assert release is not None
    secret = read_secret(party.folder / "join.key")
    hashed = hash_keys(pl.Series(keys), secret)
    place = {hashed[16 * i : 16 * i + 16]: i for i in range(EVENTS)}
    sent, _ = release.read(0, release.rows)
    order = [place[sent[at : at + 16]] for at in range(0, len(sent), 16)]
    questions = Evaluation(config, store)
    for label, truth in (("count", numbers[order]), ("yes", yes[order] * 1.0)):
        points, shares = release.manifest.marginal(label)
        constant = float(points @ shares)
        gain = np.mean((constant - truth) ** 2)  # predictions are the truth
        answer = questions.ask(release, label, truth)
        assert answer.value == pytest.approx(gain, abs=12 * answer.noise_scale), label
