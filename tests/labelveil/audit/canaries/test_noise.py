"""Noise of everything that leaves, of which the auditor knows what it was added to."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from labelveil.audit.attacks.laws import noise_probability, noise_tails, shift_probability
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.canaries import worlds
from labelveil.audit.canaries.endpoint import Refusal
from labelveil.audit.canaries.noises import decisions_check, leaders_check, tables_check
from labelveil.audit.canaries.sessions import (
    ANSWERS,
    EPSILON,
    SESSIONS,
    SessionAnswers,
    paid_check,
    same_check,
)
from labelveil.audit.canaries.worlds import HISTOGRAM_ROWS, QUERIED, World, canaries_of
from labelveil.audit.settings import CanarySettings
from labelveil.audit.verdict import GATE, Check, Verdict
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.exponential_choice import exponential_peeling
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.mechanisms.paired_gain import RESOLUTION, PairedGain
from labelveil.common.security.pilot_certificates import write_certificates
from labelveil.label_party.commands.cli import main
from labelveil.simulation.processes import StageFailed
from tests.commands import RunCommand
from tests.effort import effort, one_in

SCALE = Fraction(19)
ROWS, CELLS = 12, 20


def laplace(scale: Fraction, *shape: int) -> np.ndarray:
    size = int(np.prod(shape))
    return discrete_laplace(scale, size, system_entropy().source("noise")).reshape(shape)


def refuted(noise: np.ndarray) -> bool:
    tails = noise_tails(noise, float(SCALE))
    return min(tails.values()) < GATE / len(tails)


def exact_cell(noise: np.ndarray) -> np.ndarray:
    noise[:, 7] = 0
    return noise


WRONG: dict[str, Callable[[], np.ndarray]] = {
    "half the scale": lambda: laplace(SCALE / 2, ROWS, CELLS),
    "twice the scale": lambda: laplace(2 * SCALE, ROWS, CELLS),
    "even": lambda: 2 * laplace(SCALE / 2, ROWS, CELLS),
    "odd": lambda: laplace(SCALE, ROWS, CELLS) | 1,
    "never negative": lambda: np.abs(laplace(SCALE, ROWS, CELLS)),
    "one cell exact": lambda: exact_cell(laplace(SCALE, ROWS, CELLS)),
    "of another shape": lambda: np.where(laplace(SCALE, ROWS, CELLS) >= 0, 18, -18),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_noise_of_another_law_is_refuted(wrong: str) -> None:
    assert refuted(WRONG[wrong]())


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(3), SCALE])
def test_noise_of_the_law_is_not(scale: Fraction) -> None:
    """One false alarm in a million, at any scale."""
    for _ in range(effort(20, 300)):
        tails = noise_tails(laplace(scale, ROWS, CELLS), float(scale))
        assert min(tails.values()) >= GATE / len(tails)


def answered(change: Callable[[np.ndarray], np.ndarray] = lambda noise: noise) -> list[Check]:
    """What is said of answers whose noise is changed, in units of 1/100 of its scale."""
    secrets = np.arange(2000) % 2
    released = np.array([0.0, 5, 10]), np.array([0.4, 0.2, 0.4])
    message = SimpleNamespace(marginal=lambda name: released)
    manifest: Any = SimpleNamespace(names=["label"], message=message)
    gain = PairedGain.of_prior(*released, "squared")
    questions = [np.full(2000, place) for place in np.linspace(9.9, 9.9001, ANSWERS - 2)]
    scales = np.array([gain.span(q[:1]) * ANSWERS / EPSILON for q in questions])
    noise = np.array([int(laplace(Fraction(s), 1)[0]) for s in scales.tolist()])
    true = np.array([gain.differences(q, 10.0 * secrets).sum() for q in questions])
    values = (true + change(noise)) / (RESOLUTION * secrets.size) * gain.bound
    return SESSIONS.checks(SessionAnswers(manifest, 10.0 * secrets, questions, values.tolist()))[2:]


def again(noise: np.ndarray) -> np.ndarray:
    noise[50:60] = noise[:10]
    return noise


def alike(noise: np.ndarray) -> np.ndarray:
    """The same word under other scales, as all questions of this test have nearly the same."""
    return np.where(np.arange(noise.size) % 9 == 0, noise[0] + np.arange(noise.size) % 2, noise)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12])
def test_noise_of_any_width_is_bounded(scale: float) -> None:
    """Ten zeros are as improbable as they are; thirty that are nine scales away hardly occur."""
    zeros, none = noise_probability(np.zeros(10), scale)
    exact = 10 * math.log10(math.tanh(0.5 / scale))
    assert (math.log10(zeros), none) == (pytest.approx(exact, abs=1e-6), 1.0)
    assert noise_probability(np.full(30, 9 * scale), scale)[1] < 1e-60
    shifted = shift_probability(np.full(30, 3 * scale), np.full(30, scale))
    assert 1e-40 < shifted < 1e-15
    assert shift_probability(np.resize([3.0, -3.0], 30) * scale, np.full(30, scale)) == 1.0


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (lambda noise: noise, set()),
        (lambda noise: noise // 3, {"noise of answers"}),
        (lambda noise: noise & ~1, {"noise of answers"}),
        (np.abs, {"noise of answers"}),
        (again, {"no noise twice"}),
        (alike, {"no noise twice"}),
        (np.zeros_like, {"noise of answers", "no noise twice"}),
    ],
)
def test_the_noise_of_answers(change: Callable[[np.ndarray], np.ndarray], failed: set[str]) -> None:
    assert {c.name for c in answered(change) if c.verdict is Verdict.FAIL} == failed


def test_answers_that_were_not_sold_and_other_answers_are_seen() -> None:
    given: list[float | Refusal] = [float(at) for at in range(ANSWERS)]
    refused: list[float | Refusal] = [Refusal("FAILED_PRECONDITION", "no")]

    def asked(answers: list[float | Refusal], *more: Any) -> SessionAnswers:
        return SessionAnswers(cast(Any, None), np.zeros(1), [], answers, *more)

    assert paid_check(asked(given + refused)).verdict is Verdict.PASS
    assert paid_check(asked([*given, given[0], *refused])).verdict is Verdict.FAIL
    assert paid_check(asked([*given, Refusal("INTERNAL", "no")])).verdict is Verdict.FAIL
    assert paid_check(asked(given, refused, [], False)).verdict is Verdict.FAIL  # no file
    assert same_check(asked(given, [], [given[0]] * 5)).verdict is Verdict.PASS
    assert same_check(asked(given, [], given[:2])).verdict is Verdict.FAIL
    assert same_check(asked([*refused], [], refused)).verdict is Verdict.FAIL


def right(scale: Fraction, size: int, source: Any) -> np.ndarray:
    return discrete_laplace(scale, size, source)


def even(scale: Fraction, size: int, source: Any) -> np.ndarray:
    return 2 * discrete_laplace(scale / 2, size, source)


def half(scale: Fraction, size: int, source: Any) -> np.ndarray:
    return discrete_laplace(scale / 2, size, source)


def never_negative(scale: Fraction, size: int, source: Any) -> np.ndarray:
    return np.abs(discrete_laplace(scale, size, source))


def one_exact(scale: Fraction, size: int, source: Any) -> np.ndarray:
    noise = discrete_laplace(scale, size, source)
    noise[size // 2] = 0
    return noise


QUERIES = {
    "leaders": (leaders_check, "labelveil.common.mechanisms.selection.leaders"),
    "tables": (tables_check, "labelveil.common.mechanisms.synthesis.select_measure_project"),
}


@pytest.mark.parametrize("noise", one_in(2, [right, even, half, never_negative, one_exact]))
@pytest.mark.parametrize("query", one_in(2, QUERIES))
def test_the_noise_of_queries(
    query: str,
    noise: Callable[..., np.ndarray],
    tmp_path: Path,
    run_command: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The labels party's own commands, with another noise in the place of theirs."""

    def run_here(module: str, words: list[str], folder: Path, log: Path) -> None:
        with monkeypatch.context() as here:
            here.chdir(folder)
            assert run_command(main, *words).code == 0

    check, module = QUERIES[query]
    monkeypatch.setattr(worlds, "run_party", run_here)
    monkeypatch.setattr(f"{module}.discrete_laplace", noise)
    files = write_certificates(tmp_path / "certificates", days=1)
    made = canaries_of(draw_secrets(HISTOGRAM_ROWS))
    parties = [
        World(CanarySettings(), tmp_path / str(at), files, made, further=1) for at in range(QUERIED)
    ]
    found = check(parties, 1)
    assert found.verdict is (Verdict.PASS if noise is right else Verdict.FAIL), found.found


@pytest.mark.parametrize(
    ("scale", "exact", "verdict"),
    [(80, False, Verdict.PASS), (30, False, Verdict.FAIL), (80, True, Verdict.FAIL)],
)
def test_counts_that_say_how_little_noise_they_have_and_an_exact_category_are_seen(
    scale: int, exact: bool, verdict: Verdict
) -> None:
    names = worlds.CATEGORIES
    categories = np.arange(HISTOGRAM_ROWS) % len(names)

    def answer(*_: str) -> dict[str, Any]:
        noise = laplace(Fraction(scale), len(names))
        noise[7] *= not exact
        noisy = zip(names, (np.bincount(categories) + noise).tolist(), strict=True)
        leaders = [{"category": name, "users": count} for name, count in noisy]
        order = np.argsort(draw_secrets(len(names), 1 << 40))
        stated = {"noise": {"scale": str(scale)}, "guarantee": {"epsilon": "1/20"}}
        return {"leaders": [leaders[at] for at in order], **stated}

    world: Any = SimpleNamespace(answer=answer, categories=categories)
    found = leaders_check([world] * QUERIED, 1)
    assert found.verdict is verdict
    assert ("spend 0.06667 of ε = 0.05" in found.found) is (scale == 30)


@pytest.mark.slow
@pytest.mark.parametrize("noise", one_in(3, [right, even, half, never_negative, one_exact]))
def test_the_noise_of_tests_for_drift(
    noise: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelveil.common.mechanisms.interactive.drift.discrete_laplace", noise)
    assert decisions_check([], 1).verdict is (Verdict.PASS if noise is right else Verdict.FAIL)


@pytest.mark.slow
def test_names_that_depend_on_counts_too_much_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "labelveil.common.mechanisms.selection.leaders.exponential_peeling",
        lambda scores, rate, draws, source: exponential_peeling(scores, 2 * rate, draws, source),
    )
    assert decisions_check([], 1).verdict is Verdict.FAIL


def test_a_party_that_gives_no_answer_fails() -> None:
    def answer(*_: str) -> dict[str, Any]:
        raise StageFailed("top-k is not for sale")

    world: Any = SimpleNamespace(answer=answer)
    for check in (leaders_check, tables_check):
        found = check([world], 1)
        assert found.verdict is Verdict.FAIL
        assert "top-k is not for sale" in found.found


def test_a_server_that_answers_no_question_ends_in_verdicts() -> None:
    message = SimpleNamespace(marginal=lambda name: (np.array([0.0, 10]), np.array([0.5, 0.5])))
    manifest: Any = SimpleNamespace(names=["label"], message=message)
    refused = [Refusal("UNAVAILABLE", "no")]
    session = SessionAnswers(manifest, np.zeros(10), [np.zeros(10)], refused, refused, refused)
    assert {check.verdict for check in SESSIONS.checks(session)} == {Verdict.FAIL}
