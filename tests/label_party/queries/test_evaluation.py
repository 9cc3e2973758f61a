"""Questions about a model on true labels: charged once, answered the same way forever."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.common.guarantees import PureDP, Unit, guarantee_from_json
from labelveil.common.mechanisms.paired_gain import NoisyAnswers, PairedGain
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.wire import evaluation_pb2 as wire
from labelveil.label_party.config.sections import EvaluationSection
from labelveil.label_party.queries import evaluation
from labelveil.label_party.queries.evaluation import Evaluation
from labelveil.label_party.server.catalog import Catalog
from labelveil.label_party.store.entries import Purchase
from labelveil.label_party.store.release_store import Store
from tests.label_party.conftest import EVENTS, Party
from tests.label_party.queries.asking import EPSILON, LARGEST, OFFERED, RELEASED, answers, charges


@pytest.mark.slow
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


@pytest.mark.slow
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
        points, shares = release.manifest.message.marginal(label)
        constant = float(points @ shares)
        gain = np.mean((constant - truth) ** 2)  # predictions are the truth
        answer = questions.ask(release, label, truth)
        assert answer.value == pytest.approx(gain, abs=12 * answer.noise_scale), label
