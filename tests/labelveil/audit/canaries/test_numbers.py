"""What is asked of labels parties, and what follows from answers that are made up."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.audit.canaries import endpoint, sessions
from labelveil.audit.canaries.endpoint import REQUESTS, Fetched, Part, Refusal, Served
from labelveil.audit.canaries.party import ONE_LABEL, Observation, log_kinds, shown_by
from labelveil.audit.canaries.sessions import (
    ANSWERS,
    SessionAnswers,
    ask_for_more,
    noise_check,
    paid_check,
    same_check,
    twice_check,
)
from labelveil.audit.canaries.sums_asked import (
    Outcomes,
    answered_check,
    charged_check,
    endings_check,
    kept_check,
)
from labelveil.audit.certificate.evidence import each
from labelveil.audit.settings import CanarySettings
from labelveil.audit.verdict import Check, verdict_of
from labelveil.common.mechanisms.paired_gain import RESOLUTION, PairedGain
from tests.common.release.releases import make_release
from tests.labelveil.audit.checks import FAIL, PASS, numbers

MANIFEST, KEYS, CODES = make_release(300)
RNG = np.random.default_rng


class Server:
    """A labels party that answers rightly, but for what a subclass does."""

    data, keys, codes = MANIFEST.to_bytes(), KEYS, CODES

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        step = max((chunk or 1 << 20) // 17, 1)
        parts = [self.part(at, min(at + step, 300), chunk) for at in range(start_row, 300, step)]
        return Fetched(self.data, hashlib.sha256(self.data).digest(), tuple(parts))

    def part(self, start: int, stop: int, chunk: int) -> Part:
        return Part(self.keys[16 * start : 16 * stop], self.codes[start:stop])

    def refuse(self, wrong: Any) -> Refusal:
        return Refusal(wrong.status, "no")


def served(server: Any) -> Served:
    return Served(server, Server().fetch())


def test_a_right_server_passes_and_its_parts_are_joined() -> None:
    right = served(Server())
    whole = right.whole
    assert (whole.keys, whole.codes) == (KEYS, CODES)
    assert whole.outputs.tolist() == [*CODES]
    digest = hashlib.sha256(Server.data).digest()
    assert whole.to_bytes() == Server.data + digest + KEYS + CODES
    for probe in endpoint.SERVED.fitting(right):
        assert probe(right).verdict is PASS, probe.name
    assert "unknown clients are refused" not in {p.name for p in endpoint.SERVED.fitting(right)}
    resumed = endpoint.resume_check(right)
    assert "again from row 150." in resumed.tried
    assert resumed.found == "The rows agree, the resumed ones agree."


class Resumed(Server):
    """Draws the rows of a resumed fetch anew."""

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        whole = super().fetch(start_row, chunk)
        moved = bytes(1 - code for code in whole.codes)
        return replace(whole, parts=(Part(whole.keys, moved),)) if start_row else whole


class Cut(Server):
    """Has other keys where a fetch is cut in small parts."""

    def part(self, start: int, stop: int, chunk: int) -> Part:
        found = super().part(start, stop, chunk)
        return Part(found.keys[::-1], found.codes) if chunk == 4096 else found


def test_rows_that_differ_by_how_they_are_fetched_are_told() -> None:
    found = endpoint.resume_check(served(Resumed()))
    assert (found.verdict, found.found) == (FAIL, "The rows agree, the resumed ones differ.")
    found = endpoint.resume_check(served(Cut()))
    assert (found.verdict, found.found) == (FAIL, "The rows differ, the resumed ones agree.")


class Sizes(Server):
    """Puts a row more in each message of 4 KB."""

    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        return super().fetch(start_row, chunk + 17 * (chunk == 4096))


class Digest(Server):
    def fetch(self, start_row: int = 0, chunk: int = 0) -> Fetched:
        return replace(super().fetch(start_row, chunk), digest=b"short" if chunk else bytes(32))


def test_sizes_are_computed_from_rows_and_request() -> None:
    found = endpoint.sizes_check(served(Sizes()))
    assert (found.verdict, found.found) == (FAIL, "Others came for [4096].")
    asked = numbers(found.tried)
    assert asked[:2] == [0, 4096]
    assert len(asked) == 4 + 1  # and that 0 is as many as it likes
    assert "4096" in endpoint.sizes_check(served(Digest())).found


class Refusing(Server):
    def __init__(self, *texts: str, status: str = "") -> None:
        self.texts, self.status = itertools.cycle(texts), status

    def refuse(self, wrong: Any) -> Refusal:
        return Refusal(self.status or wrong.status, next(self.texts))


def test_refusals_have_the_status_of_the_contract_and_constant_words() -> None:
    right = endpoint.refusals_check(served(Refusing("no")))
    assert right.verdict is PASS
    assert right.details["no data set"] == ["INVALID_ARGUMENT", "no"]
    assert set(right.details) == set(REQUESTS)
    assert right.found.endswith("; the texts are constant.")
    other = endpoint.refusals_check(served(Refusing("no", status="NOT_FOUND")))
    assert other.verdict is FAIL
    assert other.found.startswith(f"{len(REQUESTS) - 1} of them did not get the status")
    words = endpoint.refusals_check(served(Refusing(*[str(n) for n in range(7)])))
    assert words.verdict is FAIL
    assert words.found == (
        "0 of them did not get the status that the contract names; the texts are not constant."
    )
    assert {name: wrong.status for name, wrong in REQUESTS.items()} == {
        "another data set": "PERMISSION_DENIED",
        "no data set": "INVALID_ARGUMENT",
        "an epoch that does not exist": "NOT_FOUND",
        "another release's digest": "FAILED_PRECONDITION",
        "a short digest": "INVALID_ARGUMENT",
        "a row beyond the last": "OUT_OF_RANGE",
    }


def test_two_parties_show_the_same_aspect_by_aspect() -> None:
    server: Any = Server()
    shown = shown_by(server, Server().fetch())
    assert len(shown.events) == 300
    assert shown.events[1] == KEYS[16:32].hex()
    assert set(shown.refusals) == set(REQUESTS)
    one = replace(shown, log=frozenset({"a"}))
    assert {check.verdict for check in ONE_LABEL.checks(one, one)} == {PASS}
    names = ["id set", "row order", "refusals do not depend on labels",
             "logs do not depend on labels"]  # fmt: skip
    others = [
        replace(one, events=one.events[:-1]),
        replace(one, events=one.events[1::-1] + one.events[2:]),
        replace(one, refusals={**one.refusals, "a short digest": Refusal("OK", "")}),
        replace(one, log=frozenset({"a", "b"})),
    ]
    for other, name, more in zip(others, names, ({"row order"}, set(), set(), set()), strict=True):
        checks = {check.name: check for check in ONE_LABEL.checks(one, other)}
        assert {n for n, check in checks.items() if check.verdict is FAIL} == {name, *more}
        assert checks[name].bound == math.inf
    found = dict(zip(names, ONE_LABEL.checks(one, others[1]), strict=True))["row order"]
    assert found.found == "2 differ, such as place 0; place 1."
    assert "300 and 300 of these" in found.tried
    twice = replace(one, events=(*one.events[:-1], one.events[0]))
    assert ONE_LABEL.checks(one, twice)[0].verdict is FAIL


def test_lines_of_a_log_are_told_apart_by_their_kind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '{"event": "a", "time": 1.5, "peer": "x"}\n{"event": "a", "time": 2, "peer": "y"}\n\n'
        "at 2026-01-02T03:04:05.678Z served 127.0.0.1:4711\n"
        "at 2026-01-03 03:04:05 served 127.0.0.1:1\n"
        f"digest {'ab' * 20}\ndigest {'cd' * 8}\nseconds=1.5 rows=3\nseconds=2 rows=3\n"
        "seconds=2 rows=4\n[1]\n"
    )
    assert log_kinds(log) == {
        '{"event": "a", "time": "#", "peer": "#"}',
        "at # served #",
        "digest #",
        "seconds=# rows=3",
        "seconds=# rows=4",
        "[1]",
    }


SOLD = Refusal("FAILED_PRECONDITION", "sold out")


def session(
    answers: list[Any], further: list[Any], again: list[Any], **more: Any
) -> SessionAnswers:
    manifest: Any = MANIFEST
    return SessionAnswers(
        manifest, np.zeros(4), [np.zeros(4)] * len(answers), answers, further, again, **more
    )


def test_a_server_gives_as_many_answers_as_were_sold() -> None:
    sold = [1.0 * n for n in range(ANSWERS - 2)]
    right = paid_check(session(sold, [7.0, 8.0, SOLD, SOLD], []))
    assert right.verdict is PASS
    assert right.found == f"{ANSWERS} were answered; refusals: {{'FAILED_PRECONDITION': 2}}."
    assert right.tried.startswith(f"{ANSWERS + 2} different questions were asked: {ANSWERS - 2} by")
    for further, removed in (
        ([7.0, 8.0, 9.0, SOLD], True),
        ([7.0, SOLD, SOLD], True),
        ([7.0, 8.0, Refusal("INTERNAL", ""), SOLD], True),
        ([7.0, 8.0], True),
        ([7.0, 8.0, SOLD], False),
    ):
        assert paid_check(session(sold, further, [], removed=removed)).verdict is FAIL


def test_the_same_question_has_one_answer() -> None:
    right = same_check(session([1.5], [], [1.5, 1.5, 1.5]))
    assert (right.verdict, right.found) == (PASS, "0 answers differ.")
    assert "asked 3 more times" in right.tried
    other = same_check(session([1.5], [], [1.5, 1.25, SOLD]))
    assert (other.verdict, other.found) == (FAIL, "2 answers differ.")
    assert same_check(session([SOLD], [], [SOLD])).verdict is FAIL


def with_noise(noise: Any, scales: Any, whole: bool = True) -> SessionAnswers:
    found = session([], [], [])
    found.__dict__["noise"] = np.asarray(noise), np.asarray(scales, dtype=float), whole
    return found


@pytest.mark.parametrize("fraction", [0.0, 0.25, -0.25])
def test_noise_is_what_is_left_of_answers(fraction: float) -> None:
    """A refusal has none, and sums are whole numbers."""
    gain = PairedGain.of_prior(*MANIFEST.message.marginal("revenue"), "squared")
    labels, question = np.array([0.0, 4.0, 1.0]), np.array([1.5, 2.5, 0.5])
    true = int(gain.differences(question, labels).sum())
    answers = [(true + n + fraction) * gain.bound / RESOLUTION / 3 for n in (7, -2)]
    found = SessionAnswers(MANIFEST, labels, [question] * 3, [answers[0], SOLD, answers[1]]).noise
    assert found[0].tolist() == [7, -2]
    assert found[1].tolist() == [gain.span(question[:1]) * 100 / 2] * 2
    assert found[2] is (fraction == 0)


class Client:
    """Answers every question with its place among those that were asked."""

    def __init__(self, asked: list[tuple[int, Any]], number: int) -> None:
        self.asked, self.number = asked, number

    def describe(self) -> Any:
        return SimpleNamespace(manifest=MANIFEST.to_bytes())

    def ask(self, described: Any, question: Any) -> float:
        self.asked.append((self.number, question))
        return float(len(self.asked))


@pytest.mark.parametrize("kept", [True, False])
def test_more_is_asked_than_was_sold(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """98 of 100 by one client, then 13 more; the first again by each, and twice at later starts."""
    starts: list[tuple[Any, list[tuple[int, Any]]]] = []

    @contextmanager
    def clients(world: Any) -> Iterator[list[Client]]:
        starts.append((world, []))
        yield [Client(starts[-1][1], number) for number in range(10)]

    monkeypatch.setattr(sessions, "clients", clients)
    lost = SimpleNamespace(folder=tmp_path)
    if kept:
        (tmp_path / "outcome.bin").touch()
    world: Any = SimpleNamespace(secrets=np.array([0, 1, 1, 0]), copied=lambda name: lost)
    found = ask_for_more(world)
    assert found.labels.tolist() == [0.0, 10.0, 10.0, 0.0]
    assert found.removed is kept
    assert not (tmp_path / "outcome.bin").exists()
    assert (len(found.answers), len(found.again), len(found.further)) == (98, 12, 13)
    (first, one), (second, two), (third, three) = starts
    assert (first, second, third) == (world, world, lost)
    place = lambda question: float(question[0])  # noqa: E731
    sold = [place(question) for _, question in one[:98]]
    assert {number for number, _ in one[:98]} == {0}
    assert [place(question) for question in found.questions] == sold
    assert all(0 < at < 10 and question.tolist() == [at] * 4
               for at, (_, question) in zip(sold, one, strict=False))  # fmt: skip
    assert sorted((n, place(q)) for n, q in one[98:]) == [(n, sold[0]) for n in range(10)]
    assert [place(two[0][1]), place(three[0][1])] == [sold[0]] * 2
    assert two[0][0] != 0  # whoever asks
    assert {number for number, _ in two[1:11]} == set(range(10))
    spare = [place(question) for _, question in [*two[1:], *three[1:]]]
    assert (len(spare), len({*sold, *spare})) == (13, 98 + 13)


def test_noise_of_answers_is_judged_in_units_of_its_scale() -> None:
    rng = RNG(3)
    scales = np.full(98, 1000.0)
    drawn = np.rint(rng.laplace(0, 1000, 98)).astype(np.int64)
    right = noise_check(with_noise(drawn, scales))
    assert right.verdict is PASS
    total = float(np.abs(drawn).sum() / 1000)
    tail = 2 * min(stats.gamma.cdf(total, 98), stats.gamma.sf(total, 98))
    assert f"Mean |noise| is {total / 98:.3g} of its scale" in right.found
    assert f"; probabilities {tail:.2g}, " in right.found
    assert (
        f"{int((drawn % 2 == 0).sum())} are even, {int((drawn > 0).sum())} positive" in right.found
    )
    assert noise_check(with_noise(drawn, scales, False)).verdict is FAIL
    assert noise_check(with_noise(drawn // 3, scales)).verdict is FAIL
    assert noise_check(with_noise(drawn * 3, scales)).verdict is FAIL
    assert noise_check(with_noise(2 * (drawn // 2), scales)).verdict is FAIL
    assert noise_check(with_noise(np.abs(drawn), scales)).verdict is FAIL
    # the share at which even the sum's 95 % quantile is refuted
    narrow = right.power[0].least
    most = stats.gamma.isf(0.05, 98)
    assert stats.gamma.cdf(most * (1 - narrow), 98) == pytest.approx(1e-6 / 6, rel=0.05)


def test_noise_that_comes_twice_is_counted() -> None:
    scales = np.full(50, 1e6)
    apart = np.arange(50) * 1000 - 25_000
    right = twice_check(with_noise(apart, scales))
    assert (right.verdict, numbers(right.found)[0]) == (PASS, 0)
    most = next(n for n in range(51) if stats.binom.sf(n - 1, 50, 100 / 1e6) <= 0.5e-6)
    assert numbers(right.found)[1] == most
    again = apart.copy()
    again[: most + 1] = 7
    found = twice_check(with_noise(again, scales))
    assert (found.verdict, numbers(found.found)[0]) == (FAIL, most)
    again[most] = 999_999
    assert twice_check(with_noise(again, scales)).verdict is PASS
    # one word at two scales: alike in units of these
    two = np.concatenate([apart, 2 * apart])
    word = twice_check(with_noise(two, [1e6] * 50 + [2e6] * 50))
    assert word.verdict is FAIL
    assert twice_check(with_noise([], [])).verdict is FAIL


def outcomes(**changed: Any) -> Outcomes:
    world: Any = SimpleNamespace(settings=CanarySettings(epsilon=0.5))
    summed: Any = object()
    ended = ["released", "released", "refused: budget"]
    given = {"world": world, "stored": ["stored"] * 3, "ended": ended, "elsewhere": [*ended],
             "spent": Fraction(1), "kept": True, "summed": summed}  # fmt: skip
    return Outcomes(**given | changed)


def test_an_event_pays_for_each_answer_about_it() -> None:
    right = charged_check(outcomes())
    assert (right.verdict, right.claimed, right.bound) == (PASS, 1.0, 1.0)
    assert right.found == "2 of 3 epochs were released, and 1 charged."
    less = charged_check(outcomes(spent=Fraction(1, 2)))
    assert (less.verdict, less.claimed, less.bound) == (FAIL, 0.5, 1.0)
    assert answered_check(outcomes()).verdict is PASS
    none = answered_check(outcomes(summed=None, stored=["stored", "INTERNAL: no", "stored"]))
    assert none.verdict is FAIL
    assert none.found.startswith("Submissions: stored; INTERNAL: no; stored. Releases: released;")
    assert endings_check(outcomes()).found == "They ended alike."
    other = endings_check(outcomes(elsewhere=["released", "released", "refused: label"]))
    assert (other.verdict, "The other: released; released; refused: label" in other.found) == (
        FAIL, True,
    )  # fmt: skip
    assert kept_check(outcomes()).found == "The sums are the same."
    assert kept_check(outcomes(kept=False)).verdict is FAIL


def test_an_event_that_is_sent_twice_is_another_set_of_events() -> None:
    one, twice = Observation(("a", "b")), Observation(("a", "a", "b"))
    found = {check.name: check.verdict for check in ONE_LABEL.checks(one, twice)}
    assert found["id set"] is found["row order"] is FAIL


def test_a_check_of_each_section_is_as_bad_as_the_worst() -> None:
    evidence: Any = None
    sections = [SimpleNamespace(labels=["a"]), SimpleNamespace(labels=["b"])]
    for bad in ("a", "b"):
        check = each(lambda evidence: sections)(
            lambda evidence, section, bad=bad: Check(  # type: ignore[misc]
                verdict_of(section.labels != [bad]), "Tried.", f"of {section.labels[0]}"
            )
        )
        made = check(evidence)
        assert (made.verdict, made.found) == (FAIL, "a: of a b: of b")
