"""What is asked of labels parties, and what follows from answers that are made up."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from labelveil.audit.attacks.laws import detectable_probability, shift_probability, two_sided
from labelveil.audit.attacks.one_run import OneRun, draw_secrets
from labelveil.audit.canaries import codes, endpoint, noises, planting, sessions, sums
from labelveil.audit.canaries.endpoint import REQUESTS, Fetched, Part, Refusal, Served
from labelveil.audit.canaries.inference import numeric_features
from labelveil.audit.canaries.message import (
    LabelsCounted,
    Leakage,
    additive_check,
    leakage,
    log_odds_change,
    multiplicative_check,
)
from labelveil.audit.canaries.model import (
    SecretBits,
    _curve,
    attack_control,
    attack_predictions,
    smooth_fit,
)
from labelveil.audit.canaries.noises import Known, decisions_check
from labelveil.audit.canaries.one_label import ONE_LABEL, Observation, log_kinds, shown_by
from labelveil.audit.canaries.sessions import (
    ANSWERS,
    Session,
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
from labelveil.audit.settings import CanarySettings, Planting
from labelveil.audit.verdict import Check, Verdict, verdict_of
from labelveil.common.errors import LabelveilError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.mechanisms.paired_gain import RESOLUTION, PairedGain
from labelveil.common.randomizers import cells
from labelveil.common.randomizers.grid import Grid
from tests.common.release.releases import make_release

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.NOT_CHECKABLE
MANIFEST, KEYS, CODES = make_release(300)
RNG = np.random.default_rng


def numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*\.?\d*", text)]


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
    assert {check.verdict for check in ONE_LABEL.checks((one, one))} == {PASS}
    names = ["id set", "row order", "refusals do not depend on labels",
             "logs do not depend on labels"]  # fmt: skip
    others = [
        replace(one, events=one.events[:-1]),
        replace(one, events=one.events[1::-1] + one.events[2:]),
        replace(one, refusals={**one.refusals, "a short digest": Refusal("OK", "")}),
        replace(one, log=frozenset({"a", "b"})),
    ]
    for other, name, more in zip(others, names, ({"row order"}, set(), set(), set()), strict=True):
        checks = {check.name: check for check in ONE_LABEL.checks((one, other))}
        assert {n for n, check in checks.items() if check.verdict is FAIL} == {name, *more}
        assert checks[name].bound == math.inf
    found = dict(zip(names, ONE_LABEL.checks((one, others[1])), strict=True))["row order"]
    assert found.found == "2 differ, such as place 0; place 1."
    assert "300 and 300 of these" in found.tried
    twice = replace(one, events=(*one.events[:-1], one.events[0]))
    assert ONE_LABEL.checks((one, twice))[0].verdict is FAIL


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


def session(answers: list[Any], further: list[Any], again: list[Any], **more: Any) -> Session:
    manifest: Any = MANIFEST
    return Session(
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


def with_noise(noise: Any, scales: Any, whole: bool = True) -> Session:
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
    found = Session(MANIFEST, labels, [question] * 3, [answers[0], SOLD, answers[1]]).noise
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


def test_advantages_are_sums_over_outputs() -> None:
    """Of two parts by enumerating all pairs of labels and outputs."""
    rng = RNG(5)
    parts = []
    for labels, outputs in ((3, 2), (2, 4)):
        channel = rng.dirichlet(np.ones(outputs) * 3, labels)
        parts.append(LabelsCounted(channel, rng.dirichlet(np.ones(labels))))
    joint = [part.prior[:, None] * part.channel for part in parts]
    best = sum(max(a[y] * b[x] for y in range(3) for x in range(2))
               for a in joint[0].T for b in joint[1].T)  # fmt: skip
    known = parts[0].prior.max() * parts[1].prior.max()
    found = leakage(parts)
    assert found.additive == pytest.approx(best - known)
    assert found.multiplicative == pytest.approx(best / known)
    changes = []
    for part, mass in zip(parts, joint, strict=True):
        each = np.empty(mass.shape)
        for y, z in itertools.product(*map(range, mass.shape)):
            posterior = mass[y, z] / mass[:, z].sum()
            odds = posterior / (1 - posterior) / (part.prior[y] / (1 - part.prior[y]))
            each[y, z] = math.log(odds)
        assert log_odds_change(part.channel, part.prior) == pytest.approx(each)
        ratio = max(
            math.log(part.channel[y, z] / part.channel[x, z])
            for z in range(mass.shape[1])
            for y, x in itertools.permutations(range(mass.shape[0]), 2)
        )
        assert part.ratio == pytest.approx(ratio)
        changes.append((each.ravel(), mass.ravel()))
    rises = sum(each.max() for each, _ in changes)
    falls = -sum(each.min() for each, _ in changes)
    assert found.largest == pytest.approx(max(rises, falls))
    (one, p), (two, q) = changes
    sizes = np.abs(np.add.outer(one, two)).ravel()
    weights = np.outer(p, q).ravel()
    order = np.argsort(sizes)
    at = order[np.searchsorted(np.cumsum(weights[order]), 0.98)]
    assert found.percentile == pytest.approx(sizes[at], abs=0.02)
    certain = leakage([LabelsCounted(parts[0].channel, np.array([0.0, 1.0, 0.0]))])
    assert (certain.additive, certain.largest) == (pytest.approx(0.0), 0.0)


def test_each_advantage_has_its_bound() -> None:
    """Under the released prior, a uniform one, and of two that are as likely: one at a time."""
    epsilon, small = 1.0, Leakage(0.0, 1.0, 0.0, 0.0)
    group = cells.Group((0,), cells.Cells((Grid.from_edges([0, 1]),)))

    def message(sent: float, **changed: Leakage) -> Any:
        channel = FiniteChannel([0, 1], [0, 1], randomized_response_rows(2, sent))
        codebook = cells.Codebook(("y",), (group,), (channel,))
        facts = {"released": small, "uniform": small, **changed}
        return SimpleNamespace(codebook=codebook, epsilon=epsilon, **facts)

    assert additive_check(message(1.0)).verdict is PASS
    assert additive_check(message(1.1)).verdict is FAIL  # tanh(ε/2)/2 of two
    assert multiplicative_check(message(1.0)).verdict is PASS
    for law in ("released", "uniform"):
        more = {law: Leakage(math.tanh(epsilon / 4) + 1e-6, math.e + 1e-6, 0.0, 0.0)}
        assert additive_check(message(0.5, **more)).verdict is FAIL
        assert multiplicative_check(message(0.5, **more)).verdict is FAIL


def test_an_event_that_is_sent_twice_is_another_set_of_events() -> None:
    one, twice = Observation(("a", "b")), Observation(("a", "a", "b"))
    found = {check.name: check.verdict for check in ONE_LABEL.checks((one, twice))}
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


def test_a_curve_has_the_surest_guesses_first() -> None:
    right = np.array([True] * 300 + [False] * 100)
    found = _curve(right)
    assert (found["share"][0], found["share"][-1]) == (0.5, 1.0)
    assert (found["right"][0], found["right"][-1]) == (1.0, 0.75)
    assert len(found["share"]) <= 60
    assert _curve(np.array([True, False]))["right"] == [0.5]
    assert _curve(np.array([], dtype=np.bool_)) == {"share": [], "right": []}


@pytest.mark.slow
def test_a_smooth_fit_has_no_memory_of_events() -> None:
    rng = RNG(6)
    x = np.tile(rng.normal(size=(1000, 2)), (17, 1))  # in two blocks
    smooth = np.sin(x[:, 0]) + 0.5 * x[:, 1]
    fitted = smooth_fit(x, smooth)
    assert np.mean((fitted - smooth) ** 2) < 0.01 * smooth.var()
    noise = rng.normal(size=1000)
    assert smooth_fit(x[:1000], noise).var() < 0.4
    assert fitted[:1000] == pytest.approx(fitted[-1000:])


def secret_bits(rows: int = 4000) -> SecretBits:
    laws = np.array([[0.75, 0.25], [0.25, 0.75]])
    return SecretBits(np.arange(rows), draw_secrets(rows), laws, planted=True)


def test_a_model_that_remembers_gives_its_labels_away() -> None:
    canaries = secret_bits()
    sign = 2.0 * canaries.secrets - 1
    features = RNG(7).normal(size=(4000, 2))
    smooth = 3 * np.sin(features[:, 0])
    told = attack_predictions({"y": 0.1 * sign + smooth}, features, canaries)
    assert told.view == "y less a smooth fit"
    assert told.result.guesses <= 3200
    assert told.result.correct / told.result.guesses > 0.9
    assert told.curve["right"][0] > 0.95
    noise = RNG(8).normal(size=4000)
    turned = attack_predictions({"y": 0.01 * noise - sign}, None, canaries)
    assert turned.curve["right"][0] > 0.97
    assert turned.view == "y"
    assert turned.result.correct > 0.97 * turned.result.guesses
    both = attack_predictions({"a": sign + 9 * noise, "b": 9 * noise}, None, canaries)
    assert both.view == "all labels"
    nothing = attack_predictions({"y": noise}, None, canaries)
    assert nothing.result.bound == 0


def test_a_control_remembers_each_events_own_code() -> None:
    canaries = secret_bits()
    kept = RNG(9).random(4000) < 0.75
    sent = np.where(kept, canaries.secrets, 1 - canaries.secrets)
    found = attack_control(sent, np.zeros((4000, 1)), canaries, math.log(3))
    assert (found.result.guesses, found.result.correct) == (4000, int(kept.sum()))
    assert attack_control(sent, None, canaries, math.log(3)).result.correct == int(kept.sum())
    # of three outputs the surest alone are guessed, and one that tells nothing is not
    for low, high in ((0.1, 0.6), (0.25, 0.45)):
        laws = np.array([[high, 0.3, low], [low, 0.3, high]])
        three = SecretBits(np.arange(6), np.array([0, 1, 0, 1, 1, 0]), laws, planted=True)
        found = attack_control(np.array([0, 2, 1, 1, 0, 0]), None, three, 5.0)
        assert (found.result.guesses, found.result.correct) == (4, 3)


def test_features_are_standardised_and_categories_counted() -> None:
    table = pl.DataFrame({
        "x": [1.0, 3.0, None, float("nan")], "b": [True, False, True, True],
        "c": ["u", "v", "u", None], "k": [5, 5, 5, 5],
    })  # fmt: skip
    found = numeric_features(table)
    assert found.shape == (4, 1 + 1 + 2 + 1)  # what is missing is no category
    assert sorted(np.sign(found[:, 2:4]).sum(axis=1)) == [-2.0, 0.0, 0.0, 0.0]
    x = np.array([1.0, 3.0, 2.0, 2.0])
    assert found[:, 0] == pytest.approx((x - 2) / x.std())
    assert found[:, -1].tolist() == [0.0] * 4
    assert found.mean(axis=0) == pytest.approx(0, abs=1e-12)
    many = pl.DataFrame({"c": [f"v{at % 30:02}" for at in range(300)]})
    assert numeric_features(many).shape == (300, 20)


def planted(**more: Any) -> planting.Planted:
    return planting.draw(Planting(events=64_000, lower=1002.0, upper=1012.0, **more))


def test_canaries_have_the_planned_shares() -> None:
    made = planted(values=3)
    # of 64: 1 below, 1 above, 8 between, 4 with several rows, 8 without; the rest planned
    assert made.shares * 64 == pytest.approx([14, 14, 14, 1, 1, 8, 4, 8])
    counts = np.bincount(made.secrets, minlength=8)
    assert counts / 1000 == pytest.approx(made.shares * 64, rel=0.15)
    labels = made.labels[:, 0]
    assert labels[:3].tolist() == [1002.0, 1007.0, 1012.0]
    below, above, between, several, none = labels[3:]
    assert 971 <= below <= 1001
    assert 1013 <= above <= 1043
    assert 1002.5 <= between <= 1011.5
    assert several == 1012.0
    assert math.isnan(none)
    assert made.repeated == 6
    assert made.counted([7.0])[:, 0].tolist()[-2:] == [7.0, 7.0]
    last = planted(values=3, duplicates="last")
    assert last.counted([7.0])[:, 0].tolist()[-2:] == [1012.0, 7.0]
    assert [made.in_words(at) for at in (1, 6, 7, 8)] == [
        "1007", "several rows", "no label", "above the limit of a user",
    ]  # fmt: skip
    two = planted(also=["paid:0:1"])
    assert two.labels[:4].tolist() == [[1002, 0], [1002, 1], [1012, 0], [1012, 1]]
    assert two.in_words(1) == "1002 with 1"
    users = planted(users=100)
    assert np.bincount(users.users).tolist() == [200] * 320
    assert len(set(made.keys.to_list())) == 64_000
    assert {len(key) for key in made.keys.to_list()} == {32}
    dated = planted(date="day:2026-03-01")
    assert dated.public.columns == ["key", "day"]
    assert dated.public["day"].unique().to_list() == ["2026-03-01"]


def test_tables_hold_every_label_once_but_for_those_twice() -> None:
    made = planting.draw(Planting(events=1000, lower=2.0, upper=12.0))
    known, population = made.tables()
    assert population["key"].to_list() == made.keys.to_list()
    rows = dict(known.group_by("key").agg("label").iter_rows())
    for key, secret in zip(made.keys, made.secrets.tolist(), strict=True):
        expected = [made.labels[secret, 0]] * (2 if secret == made.repeated else 1)
        assert rows.get(key, []) == ([] if secret == len(made.labels) - 1 else expected)
    less = made.without(3)
    assert less.secrets[3] == len(made.labels) - 1
    assert np.array_equal(np.delete(less.secrets, 3), np.delete(made.secrets, 3))
    turned = made.mirrored(2.0, 12.0)
    assert turned.labels[0].tolist() == [12.0]
    ends = planting.at_the_ends(np.array([0, 1]), ["a", "b"], 2.0, 3.0, {"c": ["x", "y"]})
    table, population = ends.tables()
    assert population.columns == ["key", "c"]
    assert sorted(table.select("a", "b", "c").rows()) == [(2.0, 2.0, "x"), (3.0, 3.0, "y")]
    assert table.columns == ["key", "a", "b", "c"]


@dataclass
class Group:
    """Sums of canaries, of which noise alone is known."""

    noise: Any
    scales: Any
    sizes: Any
    kinds: Any
    groups: Any = None
    before: Any = ()

    class planted:
        in_words = str


def test_a_kind_of_label_that_is_counted_otherwise_moves_its_sums() -> None:
    rng = RNG(10)
    kinds = np.repeat([0, 1, 2, -1], 60)
    sizes = np.tile([1, 2, 5, 20], 60)
    noise = np.rint(rng.laplace(0, 30, 240)).astype(np.int64)
    of = Group(noise, np.full(240, 30.0), sizes, kinds)
    right = sums.kinds_check(of)  # type: ignore[arg-type]
    tails = {
        (kind, size): shift_probability(
            noise[(kinds == kind) & (sizes >= size)],
            np.full(int(((kinds == kind) & (sizes >= size)).sum()), 30.0),
        )
        for kind in (0, 1, 2)
        for size in (1, 2, 5, 20)
    }
    (kind, size), least = min(tails.items(), key=lambda each: each[1])
    assert right.verdict is PASS
    assert right.found.endswith(f"has probability at most {min(1, least * 12):.3g} in all.")
    assert f"at least {size} canaries of {kind}:" in right.found
    assert "of 3 kinds" in right.tried
    assert right.power[0].least == right.power[1].least > 0
    moved = noise + np.where(kinds == 1, 75, 0)
    found = sums.kinds_check(Group(moved, np.full(240, 30.0), sizes, kinds))  # type: ignore[arg-type]
    assert (found.verdict, found.bound) == (FAIL, math.inf)
    assert "canaries of 1:" in found.found


def test_noise_of_sums_is_looked_at_by_size_and_kind() -> None:
    rng = RNG(11)
    kinds, sizes = np.repeat([0, 1], 200), np.tile([1, 20], 200)
    noise = np.rint(rng.laplace(0, 30, 400)).astype(np.int64)
    right = sums.sums_check(Group(noise, np.full(400, 30.0), sizes, kinds))  # type: ignore[arg-type]
    assert right.verdict is PASS
    assert right.tried.startswith("The canaries' labels, those beyond the bounds")
    assert "off 400 sums, of groups of 1 to 20." in right.tried
    narrow = np.where(sizes == 20, noise // 3, noise)
    found = sums.sums_check(Group(narrow, np.full(400, 30.0), sizes, kinds))  # type: ignore[arg-type]
    assert found.verdict is FAIL
    assert "groups of 20 events" in found.found


def test_signs_of_two_releases_agree_by_chance() -> None:
    rng = RNG(12)
    groups = np.arange(300)
    first, second = (np.rint(rng.laplace(0, 30, 300)).astype(np.int64) for _ in range(2))
    ones = np.ones(300)
    before = Group(second[10:], ones, ones, ones, groups[10:])
    right = sums.epochs_check(Group(first, ones, ones, ones, groups, (before,)))  # type: ignore[arg-type]
    signs = np.sign(first[10:]) * np.sign(second[10:])
    p = two_sided(int((signs > 0).sum()), int((signs != 0).sum()), 0.5)
    assert (right.verdict, right.bound) == (PASS, 0.0)
    assert right.found == f"As many agree, or as few, with probability {p:.3g} by chance."
    assert f"noise of {int((signs != 0).sum())} groups were compared with those of 1" in right.tried
    runs = int((signs != 0).sum())
    assert right.power[0].least == pytest.approx(
        2 * (detectable_probability(runs, 1, 1e-6, 0.5) - 0.5)
    )
    same = Group(first, ones, ones, ones, groups)
    found = sums.epochs_check(Group(first, ones, ones, ones, groups, (before, same)))  # type: ignore[arg-type]
    assert (found.verdict, found.bound) == (FAIL, math.inf)
    # of as many groups as were compared with some release
    most = 2 * (detectable_probability(int((first != 0).sum()), 1, 0.5e-6, 0.5) - 0.5)
    assert found.power[0].least == pytest.approx(most)
    opposite = Group(-first, ones, ones, ones, groups)
    assert sums.epochs_check(Group(first, ones, ones, ones, groups, (opposite,))).verdict is FAIL  # type: ignore[arg-type]
    assert sums.epochs_check(same).verdict is UNKNOWN  # type: ignore[arg-type]


def test_a_question_asks_of_canaries_whose_labels_are_known() -> None:
    made = planting.draw(Planting(events=4000, lower=0.0, upper=10.0))
    question = sums.ask(made, 21)
    assert question.lattice.steps == 20
    asked = question.groups < question.half_widths.size
    assert not (made.secrets[asked] == 4).any()  # between two points
    assert asked.sum() == (made.secrets != 4).sum()
    sizes = np.bincount(question.groups[asked].astype(int), minlength=question.half_widths.size)
    assert set(sizes.tolist()) - {0} >= {1, 2, 5, 20}
    empty = int((sizes == 0).sum())
    assert empty == pytest.approx(question.half_widths.size / 11, abs=2)
    assert question.squares == question.half_widths.size // 8
    assert question.half_widths[-question.squares :].max() <= 32
    assert set(question.half_widths.tolist()) <= {1, 5, 20}
    assert question.weights is not None
    assert set(np.unique(question.weights)) == {-2, -1, 1, 2}
    alike = [
        group
        for group in range(sizes.size)
        if len(set(made.secrets[question.groups == group].tolist())) == 1 and sizes[group] > 1
    ]
    assert len(alike) > 0.3 * (sizes > 1).sum()
    assert question.offsets.tolist() == [0, 10]


@pytest.mark.parametrize(("points", "offsets", "widths"), [
    (2, [0], {1}), (3, [0, 1], {1, 2}), (22, [0, 10], {1, 5, 21}), (81, [0, 40], {1, 20, 80}),
])  # fmt: skip
def test_a_question_has_widths_of_a_few_steps(
    points: int, offsets: list[int], widths: set[int]
) -> None:
    question = sums.ask(planting.draw(Planting(events=1000, lower=2.0, upper=12.0)), points)
    assert question.offsets.tolist() == offsets
    assert (question.levels is None) is (len(offsets) == 1)
    squares = question.half_widths[-question.squares :]
    assert set(question.half_widths[: -question.squares].tolist()) == widths
    assert set(squares.tolist()) <= {min(width, 32) for width in widths}


def test_canaries_of_another_format_are_not_read(tmp_path: Path) -> None:
    planting.plant(tmp_path, Planting(events=1000, lower=2.0, upper=12.0))
    (path,) = tmp_path.glob("*.json")
    plan = json.loads(path.read_bytes())
    assert planting.read_planted(tmp_path).planting.upper == 12.0
    for changed, said in (
        ({"format": "older"}, "is not of format"),
        ({"lower": "low"}, "no canaries"),
        ({"events": 1}, "no canaries"),
    ):
        path.write_text(json.dumps(plan | changed))
        with pytest.raises(LabelveilError, match=said):
            planting.read_planted(tmp_path)


def test_decisions_are_coins_of_the_stated_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noises, "DECISIONS", 300)
    found = decisions_check(Known([]))
    assert found.verdict is PASS
    drifted, of, expected, named, _, likelier = numbers(found.found)[:6]
    q = math.exp(-1)
    assert (of, expected) == (300, round(300 * q / (1 + q)))
    assert likelier == round(300 / (1 + math.exp(-1.5)))
    assert abs(drifted - expected) < 45
    assert abs(named - likelier) < 45
    assert found.power[0].least == pytest.approx(detectable_probability(300, 2, 1e-6, 0.5) - 0.5)


def test_pairs_of_worlds_are_fair_coins_and_few_are_tested() -> None:
    rng = RNG(13)
    shares = np.array([0.5, 0.3, 0.2])
    secrets = rng.choice(3, 30_000, p=shares)
    pairs: list[Any] = [((a,), (b,)) for a, b in itertools.combinations(range(3), 2)]
    told = codes.distinguish(secrets, secrets, pairs, shares)
    assert set(told) == set(pairs)
    for (low, high), run in told.items():
        rarer = min(shares[low[0]], shares[high[0]])
        assert run.correct == run.guesses == pytest.approx(0.9 * 30_000 * 2 * rarer, rel=0.05)
        assert run.tests == codes.TESTED
    many: list[Any] = [((a,), (b,)) for a, b in itertools.permutations(range(5), 2)]
    blind = codes.distinguish(
        np.zeros(9000, np.int64), rng.integers(0, 5, 9000), many, np.full(5, 0.2)
    )
    assert len(blind) <= codes.TESTED
    assert all(isinstance(run, OneRun) and run.bound == 0 for run in blind.values())
