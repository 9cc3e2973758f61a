"""Questions about a model: what may be asked, what is sent, and how verdicts read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.common.error_details import ErrorDetails
from labelveil.common.errors import ReleaseError
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import write_release
from labelveil.common.wire import evaluation_pb2 as evaluation
from labelveil.feature_party.client.questions import (
    Questions,
    Terms,
    Verdict,
    released_rows,
    topics,
)
from tests.common.release.releases import make_release
from tests.feature_party.client.stubs import SETTINGS, WHO, Code, Failed
from tests.feature_party.worlds import SECRET, World

TERMS = Terms(
    epsilon=0.5, answers=4, answers_left=3, constant_loss=50.0, reach=5.0, error=2.0,
    tolerance=10.0, largest=80.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("terms", "known", "said"),
    [
        (TERMS, 0.1, ""),  # 5 of 50 is no more than a tenth, nor than 10 of 50
        (TERMS, 0.09, "by 0.1 of the constant's loss and the privatized labels alone tell it within"
                      " 0.09; nothing was asked"),
        (replace(TERMS, tolerance=5.0), 9.0, ""),
        (replace(TERMS, tolerance=4.5), 9.0, "[evaluation] tolerance allows 0.09; nothing"),
        (replace(TERMS, tolerance=4.0), 0.09, "[evaluation] tolerance allows 0.08; nothing"),
    ],
)  # fmt: skip
def test_a_question_that_can_tell_nothing_is_not_asked(
    terms: Terms, known: float, said: str
) -> None:
    if not said:
        return terms.check(known)
    with pytest.raises(ReleaseError) as caught:
        terms.check(known)
    assert said in str(caught.value)
    return None


def test_terms_and_verdict_are_told_in_the_constants_loss() -> None:
    assert TERMS.sentence == (
        "asking the labels party: the answer will have a standard error of 4.0% of the constant's"
        " loss; 3 of 4 answers left, which cost ε = 0.5 together"
    )
    verdict = Verdict("absolute", 20.0, 15.0, 25.0, 2, TERMS)
    assert verdict.sentence == (
        "labels party, from true labels: the absolute error is 0.4 (95%: 0.3 … 0.5) of the"
        " constant's 50 below it; 2 answers left"
    )
    assert verdict.to_json() == {
        "asked_loss": "absolute", "asked_gain": 20.0, "asked_gain_low": 15.0,
        "asked_gain_high": 25.0, "asked_constant_loss": 50.0, "asked_standard_error": 2.0,
        "asked_epsilon": 0.5, "asked_answers_left": 2, "asked_largest_loss": 80.0,
    }  # fmt: skip


def test_what_one_may_ask_about() -> None:
    assert topics(["y"]) == {"squared": ("y", "squared"), "absolute": ("y", "absolute")}
    assert topics(["y", "z"]) == {
        "y:squared": ("y", "squared"), "y:absolute": ("y", "absolute"), "y": ("y", "squared"),
        "z:squared": ("z", "squared"), "z:absolute": ("z", "absolute"), "z": ("z", "squared"),
    }  # fmt: skip


def test_held_out_events_are_found_among_the_rows_of_a_release(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelveil.feature_party.client.questions._ROWS_AT_ONCE", 400)
    held = pl.Series("event", [f"e{i}" for i in (1499, 3, 700, 0)])
    found = released_rows(world.directory, held, np.arange(4), SECRET)
    theirs = [world.keys[at : at + 16] for at in range(0, len(world.keys), 16)]
    ours = hash_keys(held, SECRET)
    assert found.tolist() == [theirs.index(ours[16 * i : 16 * i + 16]) for i in range(4)]
    # where we submitted the keys, our rows are its rows
    manifest, keys, codes = make_release(40, keyed=False)
    write_release(tmp_path, manifest.to_bytes(), keys, codes)
    assert released_rows(tmp_path, held, np.arange(4), SECRET).tolist() == [0, 1, 2, 3]


class Evaluator:
    """A labels party that answers a question about predictions, and keeps what it was sent."""

    def __init__(self) -> None:
        self.described: Any = None
        self.parts: list[Any] = []
        self.timeouts: list[float] = []

    def DescribeEvaluation(self, request: Any, timeout: float) -> Any:
        self.described = request
        self.timeouts.append(timeout)
        return evaluation.DescribeEvaluationResponse(
            epsilon="1/2", answers=4, answers_left=3, tolerance=0.2, largest_loss=3.0
        )

    def EvaluatePredictions(self, messages: Any, timeout: float) -> Any:
        self.parts = list(messages)
        self.timeouts.append(timeout)
        return evaluation.EvaluatePredictionsResponse(loss=0.75, noise_scale=0.1, answers_left=2)


def test_a_question_names_its_release_and_sends_each_prediction_to_its_row(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Questions(SETTINGS, world.release.manifest_bytes, "squared", "")
    stub = Evaluator()
    monkeypatch.setattr(Questions, "_call", lambda self, call: call(stub, 9.0))
    monkeypatch.setattr("labelveil.feature_party.client.questions._CHUNK_ROWS", 600)
    rows, points = np.array([1499, 0, 600, 599]), np.array([4.0, 1.0, 3.0, 2.0])
    terms = asked.terms(points)
    names = {
        "data_set": "sales",
        "epoch": "one",
        "manifest_sha256": hashlib.sha256(world.release.manifest_bytes).digest(),
        "loss_name": "squared gain",
        "label": "",
    }
    assert stub.described == evaluation.DescribeEvaluationRequest(**names)
    prior, grid = world.release.manifest.message.marginal("amount")[1], np.linspace(0, 4, 9)
    assert terms.constant_loss == pytest.approx(prior @ (grid - prior @ grid) ** 2)
    assert terms.largest == 3.0
    assert (terms.epsilon, terms.answers, terms.answers_left) == (0.5, 4, 3)
    assert terms.tolerance == pytest.approx(0.2 * terms.constant_loss)
    # a Laplace law is beyond ln 20 scales once in 20 times, and has a deviation of √2 scales
    assert terms.reach / terms.error == pytest.approx(np.log(20) / 2**0.5)
    # an answer in four costs an eighth; four predictions, whose differences are of ±3 at most
    assert 0 < terms.error / 2**0.5 <= 2 * 3.0 / 4 / 0.125 * 1.01
    # a user of three events moves three differences
    by_user = Manifest.from_bytes(world.release.manifest_bytes)
    of_three = by_user.privacy.model_copy(update={"records_per_unit": 3})
    with monkeypatch.context() as patch:
        of_users = by_user.model_copy(update={"privacy": of_three})
        patch.setattr(Manifest, "from_bytes", lambda *_: of_users)
        again = Questions(SETTINGS, world.release.manifest_bytes, "squared", "").terms(points)
    assert again.error == pytest.approx(3 * terms.error)
    verdict = asked.ask(rows, points, terms)
    header, *parts = stub.parts
    assert header.header == evaluation.EvaluationHeader(**names)
    sent = [np.frombuffer(part.predictions, dtype="<f8") for part in parts]
    assert [part.size for part in sent] == [600, 600, 300]
    expected = np.full(1500, np.nan)
    expected[rows] = points
    np.testing.assert_array_equal(np.concatenate(sent), expected)
    assert stub.timeouts == [9.0, 9.0, 90.0]
    reach = 0.1 * np.log(20)
    assert (verdict.loss, verdict.gain, verdict.answers_left) == ("squared", 0.75, 2)
    assert (verdict.low, verdict.high) == pytest.approx((0.75 - reach, 0.75 + reach))
    assert verdict.terms == terms


@pytest.mark.parametrize("code", [Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED, Code.INTERNAL])
def test_a_labels_party_that_answers_no_questions_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    @contextmanager
    def channel(_: object) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel("h:1") as opened:
            yield opened

    def refused(*_: object, **__: object) -> None:
        raise Failed(code, "not any more", ErrorDetails("answers_used_up"))

    module = "labelveil.feature_party.client.questions"
    monkeypatch.setattr(f"{module}.open_channel", channel)
    monkeypatch.setattr(f"{module}.ReleaseClient.repeat", lambda self, call, command: call())
    asked = Questions(SETTINGS, world.release.manifest_bytes, "squared", "")
    if code is Code.INTERNAL:  # which whoever repeats calls explains
        with pytest.raises(Failed):
            asked._call(refused)
        return
    with pytest.raises(ReleaseError) as caught:
        asked._call(refused)
    assert str(caught.value) == (
        f"{WHO} gives no answer: not any more (reason answers_used_up); evaluate without --ask, or"
        " agree on [evaluation] with it"
    )
