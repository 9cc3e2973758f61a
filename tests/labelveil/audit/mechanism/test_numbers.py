"""What probes of a mechanism try and say, of mechanisms whose answer is known beforehand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from labelveil.audit.attacks import implementation
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.mechanism import black_box, cold_start, exact, run
from labelveil.audit.mechanism.subject import (
    CallableSubject,
    NamedSubject,
    SumsSubject,
    starts_anew,
)
from labelveil.audit.mechanism.trial import SOME, Sizes, Trial
from labelveil.audit.power import rarest_event, rarest_seen, smallest_excess
from labelveil.audit.verdict import Verdict
from labelveil.common.entropy import Entropy, seeded_entropy, system_entropy
from labelveil.common.errors import ConfigError
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN, numbers
from tests.labelveil.audit.twins.library import TINY
from tests.labelveil.audit.twins.samplers import CLOCK

HERE = __name__


def as_it_is(labels: Any) -> Any:
    return labels


def coins(labels: Any) -> Any:
    """Bits that depend on no label."""
    return (system_entropy().words("x", 0, labels.size) & np.uint64(1)).astype(np.uint8)


def of(name: str, *labels: float, sizes: Sizes = TINY, **more: Any) -> Trial:
    grid = np.array(labels or (0.0, 1.0))
    return Trial(CallableSubject(f"{HERE}:{name}", grid, 1.0), sizes, **more)


def test_every_size_grows_with_the_effort_but_for_small_calls() -> None:
    usual = Sizes()
    twice, tenth = usual.times(2), usual.times(0.1)
    assert twice == Sizes(**{
        name: getattr(usual, name) * (1 if name == "small_rows" else 2)
        for name in Sizes.__dataclass_fields__
    })  # fmt: skip
    assert (tenth.runs, tenth.seeds, tenth.small_rows) == (100_000, 100, 512)


def test_labels_are_drawn_within_their_bounds() -> None:
    grid = np.arange(7.0)
    trial = of("as_it_is", *grid)
    assert trial.ends == (0.0, 6.0)
    pairs = {trial.pair() for _ in range(300)}
    assert {low for low, _ in pairs} == {0.0, 1.0, 2.0}
    assert {high for _, high in pairs} == {4.0, 5.0, 6.0}
    assert {*map(trial.about, [100] * 400)} <= {*range(100, 126)}
    assert {trial.about(4) for _ in range(100)} == {4, 5}
    assert trial.labels.size == 7 + 2 * 6
    assert set(grid + 0.5) - {6.5} < set(trial.labels)
    assert (np.diff(trial.labels) > 0).all()
    assert {trial.label() for _ in range(600)} == set(trial.labels)
    assert trial.some.size == SOME
    assert set(trial.some) < set(trial.labels)
    assert (np.diff(trial.some) > 0).all()
    assert trial.between == "two between each two included"
    alone = of("as_it_is", *grid, grid_only=True)
    assert (alone.labels.tolist(), alone.between) == (grid.tolist(), "no others")
    assert alone.some.size == 7
    assert trial.of_bits(np.array([0, 1, 1]), (2.0, 5.0)).tolist() == [2.0, 5.0, 5.0]


def test_a_label_that_is_sent_is_told_by_every_probe_that_looks() -> None:
    """All that looks at one label's output alone; nothing else is wrong with it."""
    trial = of("as_it_is", 1002.0, 1003.0)
    told = black_box.every_label_check(trial)
    assert told.verdict is FAIL
    assert told.details == {"labels": 2, "worst": told.details["worst"], "of": 2}
    assert sorted(told.details["worst"]) == ["1002", "1003"]
    assert told.claim.endswith("than for another, ε = 1.")
    assert told.tried.startswith("2,000 pilot runs over 2 labels (no others) and 2,000 more")
    one = black_box.one_run_check(trial)
    assert (one.verdict, one.details["correct"]) == (FAIL, one.details["guesses"])
    records = numbers(one.tried)[0]
    assert 4000 <= records <= 5000
    assert one.details["guesses"] == pytest.approx(0.9 * records, abs=1)
    assert "= 0.7311." in one.claim
    assert [power.fault[:6] for power in one.power] == ["excess", "the sa"]
    assert one.power[0].least < one.power[1].least
    far = black_box.black_box_range_check(trial)
    assert far.verdict is FAIL
    assert numbers(far.tried)[0] == 400
    pairs = far.details["pairs"]
    assert [near for near, _ in pairs] == [1002.0, 1003.0, 1003.0, 1002.0]
    assert all(
        1 <= abs(other - end) <= 21
        for (_, other), end in zip(pairs, (1003.0, 1002.0, 1003.0, 1002.0), strict=True)
    )
    assert [other > 1003 for _, other in pairs] == [True, False, True, False]
    assert far.tried.count("one far above 1003") == far.tried.count("one far below 1002") == 2
    assert far.power[0].least == rarest_event(math.inf, 200, 1.0, 1e-6 / 4)
    # of several labels, which are numbered, one that is farther than the last alone
    several = CallableSubject.of_several(f"{HERE}:rows_summed", [(0.0, 1.0), (0.0, 10.0)], 1.0)
    far = black_box.black_box_range_check(Trial(several, TINY))
    ((near, other),) = far.details["pairs"]
    assert (far.verdict, near, other > 3) == (FAIL, 0.0, True)


@pytest.mark.parametrize("spent", [0.5, 1.0, 1.001, 1.5, math.inf])
def test_both_steps_together_are_held_to_their_sum(
    spent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    worst = SimpleNamespace(epsilon=spent, messages=1234, data_set=(1, 2, 0), neighbour=(0, 3, 0))
    monkeypatch.setattr(exact, "joint_audit", lambda *given, **more: worst)
    trial = SimpleNamespace(named=SimpleNamespace(channel_of=lambda noisy, rows: None))
    found = exact.joint_check(cast(Trial, trial))
    assert found.verdict is (PASS if spent <= 1 else FAIL)
    assert (found.claimed, found.bound, found.shown) == (1.0, spent, spent)
    assert "(1,234 histograms)" in found.tried
    assert f"is {spent:.10g}, for counts (1, 2, 0) and (0, 3, 0)." in found.found


RESPONSE = NamedSubject("randomized-response", np.arange(3.0), 1.0)
POINTS = RESPONSE.labels


@pytest.mark.parametrize(("check", "said"), [
    (exact.far_labels_check, "0 of 64 outputs differ."),
    (exact.shared_words_check, "No word is drawn twice."),
    (exact.noise_correlation_check, ""),
])  # fmt: skip
def test_a_right_randomizer_passes(check: Any, said: str) -> None:
    found = check(Trial(RESPONSE, TINY))
    assert (found.verdict, said in found.found) == (PASS, True)


@pytest.mark.parametrize(("name", "broken", "check"), [
    ("randomize", lambda self, labels, entropy: labels, exact.far_labels_check),
    ("noise", lambda self, entropy: self.randomize(POINTS, entropy), exact.shared_words_check),
])  # fmt: skip
def test_a_broken_randomizer_fails(
    name: str, broken: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NamedSubject, name, broken)
    assert check(Trial(RESPONSE, TINY)).verdict is FAIL


def test_noise_that_is_in_the_rows_too_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, Any] = {}
    right = NamedSubject.randomize

    def randomize(self: Any, labels: Any, entropy: Entropy) -> Any:
        return sent.setdefault(id(entropy), right(self, labels, entropy))

    monkeypatch.setattr(NamedSubject, "randomize", randomize)
    noise = lambda self, entropy: sent[id(entropy)].astype(np.int64)  # noqa: E731
    monkeypatch.setattr(NamedSubject, "noise", noise)
    trial = Trial(RESPONSE, replace(TINY, small_calls=600))
    assert exact.noise_correlation_check(trial).verdict is FAIL


def test_histogram_and_label_are_looked_at_together() -> None:
    found = exact.two_step_check(Trial(replace(RESPONSE, epsilon=0.5), TINY))
    assert (found.verdict, found.claimed) == (PASS, 0.5)
    assert "was looked for in 1,000 releases" in found.tried
    # h_a and h_b pass their thresholds by noise of scale 2 / 0.25, and one label of four is kept
    kept = math.exp(0.25) / (math.exp(0.25) + 3)
    chance = kept / (1 + math.exp(-0.125)) ** 2
    assert found.power[0].least == smallest_excess(chance, 1000, 0.5, 1e-6)


def predictable(labels: Any) -> Any:
    return np.random.default_rng(0).integers(2, size=labels.size)


def test_sources_of_a_callable_are_its_file() -> None:
    """Where a generator that repeats stands, if not in the callable itself."""
    found = black_box.sources_check(of("coins"))
    assert (found.verdict, "1 source files" in found.tried) == (
        FAIL,
        True,
    )


@pytest.mark.parametrize(("name", "verdict"), [("slow_where_high", FAIL), ("coins", PASS)])
def test_the_time_of_a_call_is_looked_at_with_its_output(
    name: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(implementation, "clock", CLOCK)
    sizes = replace(TINY, calls=200)
    found = black_box.clock_check(of(name, 0.0, 0.5, 1.0, sizes=sizes, grid_only=True))
    assert found.verdict is verdict
    assert found.tried.startswith("200 single calls showed which of 3 labels (no others)")
    assert "Of 400 more" in found.tried
    assert ("1 and 0" in found.tried) or name == "coins"


def slow_where_high(labels: Any) -> Any:
    CLOCK.work(int(500 * labels[0]))
    return coins(labels)


def test_outputs_that_depend_on_nothing_pass() -> None:
    trial = of("coins", *np.arange(4.0))
    for check in (
        black_box.every_label_check, black_box.one_run_check, black_box.repeats_check,
        black_box.influence_check, black_box.order_check, black_box.black_box_range_check,
    ):  # fmt: skip
        found = check(trial)
        assert found.verdict is PASS, found
    said = black_box.repeats_check(trial)
    equal, mixed, long = numbers(re.sub(r"labels \S+,", "labels,", said.tried))[:3]
    assert 2000 <= equal <= 2500
    assert 2000 <= mixed <= 2500
    assert 4000 <= long <= 5000
    assert len(said.power) == 3
    said = black_box.influence_check(trial)
    size, calls, rows = numbers(said.tried)[:3]
    assert (1000 <= size <= 1400, calls, rows) == (True, 64, 16)
    assert len(said.power) == 2
    few = black_box.calls_check(trial)
    assert numbers(few.tried)[:2] == [16, 16]
    assert numbers(black_box.order_check(trial).tried)[0] == 1000
    more = Trial(trial.subject, replace(TINY, records=8000))
    assert numbers(black_box.order_check(more).tried)[0] == 2000


def in_order(labels: Any) -> Any:
    return np.sort(coins(labels) + labels)


def the_row_before(labels: Any) -> Any:
    return np.roll(labels, 1)


def the_same_again(labels: Any) -> Any:
    """Words that come again after 300 rows."""
    drawn = (seeded_entropy(1).words("x", 0, 300) & np.uint64(1)).astype(np.uint8)
    return np.resize(drawn, labels.size)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("in_order", black_box.order_check),
        ("the_row_before", black_box.influence_check),
        ("the_same_again", black_box.repeats_check),
    ],
)
def test_what_rows_have_to_do_with_rows_is_seen(name: str, check: Any) -> None:
    assert check(of(name)).verdict is FAIL
    assert check(of("coins")).verdict is PASS


def refusing(labels: Any) -> Any:
    if ((labels < 0) | (labels > 1)).any():
        raise ValueError("no such label")
    return coins(labels)


def test_who_refuses_far_labels_is_not_judged_by_them() -> None:
    found = black_box.black_box_range_check(of("refusing"))
    assert (found.verdict, found.found) == (
        UNKNOWN, "It was refused: ValueError('no such label').",
    )  # fmt: skip
    assert black_box.opaque_check(of("coins")).verdict is UNKNOWN


def test_starts_are_counted_and_labels_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of each label are compared with each other: one label's repeat is enough."""
    asked: list[Any] = []

    def digests(subject: Any, labels: Any, rows: int, starts: int, forks: int) -> Any:
        asked.append((labels.tolist(), rows, starts, forks))
        return [[b"%d" % at for at in range(starts + 2 * forks)] for _ in labels]

    monkeypatch.setattr(black_box, "cold_digests", digests)
    trial = of("coins", 0.0, 1.0)
    found = black_box.starts_check(trial)
    assert found.verdict is PASS
    labels, rows, starts, forks = asked[0]
    assert (labels, starts, forks) == ([0.0, 1.0], 3, 1)
    # two labels, 25/2 pairs of five starts, of outputs that agree in half of all rows
    assert 2 * 25 / 2 * 0.5**rows < 1e-6
    assert rows & (rows - 1) == 0
    assert "5 starts (3 in one process" in found.tried
    constant = black_box.starts_check(of("whole_zero"))
    assert (constant.verdict, constant.found) == (
        UNKNOWN, "They vary too little: two starts would agree by chance.",
    )  # fmt: skip


def whole_zero(labels: Any) -> Any:
    return np.zeros(labels.size)


def test_a_start_is_a_digest_of_what_each_label_gave() -> None:
    subject = CallableSubject(f"{HERE}:as_it_is", np.array([0.0, 1.0]), 1.0)
    table = np.array([[0.0, 0.0], [1.0, 1.0]])
    shown = cold_start._digest(subject, table)
    assert len(shown) == 2 * cold_start.DIGEST_BYTES
    assert shown[:16] != shown[16:]
    assert cold_start._digest(subject, table[::-1]) == shown[16:] + shown[:16]


def test_a_cost_is_that_of_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = of("coins", sizes=Sizes(starts=0))
    trial.__dict__["pace"] = (1e-6, 1e-3)
    sizes = trial.sizes
    rows = 5.5e6 + 1.3e6 + 2 * (2**22 + 2**19) + 1.25 * (1e6 + 4096 * 512)
    calls = 1.25 * 4096 + 3 * 2000
    assert run.mechanism_cost(trial) == pytest.approx(1 + 11 + rows * 1e-6 + calls * 1e-3, rel=0.01)
    loaded = Trial(trial.subject, replace(sizes, starts=1000))
    loaded.__dict__["pace"] = (0.0, 0.0)
    assert run.mechanism_cost(loaded) == pytest.approx(1 + 11 + 10)
    named = Trial(NamedSubject("laplace", np.arange(2.0), 1.0), loaded.sizes)
    named.__dict__["pace"] = (0.0, 0.0)
    assert run.mechanism_cost(named) == pytest.approx(12)
    assert starts_anew(named.subject)
    assert not starts_anew(trial.subject)
    assert starts_anew(SumsSubject("group-sums", np.arange(2.0), 1.0))


def test_an_audit_says_what_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PROBES", run.Probes())
    trial = of("coins", 0.0, 2.5, 4.0)
    trial.__dict__["pace"] = (0.0, 0.0)
    seen: list[str] = []
    audit = run.audit_mechanism(trial, seen.append)
    assert audit.facts == {
        "subject": f"callable {HERE}:coins",
        "labels": "3 from 0 to 4",
        "ε claimed for one label": "1",
        "CPU seconds expected": f"{run.mechanism_cost(trial):.0f}",
    }
    assert (audit.kind, audit.claimed) == ("mechanism", 1.0)
    with pytest.raises(ConfigError, match="cannot be imported"):
        run.audit_mechanism(Trial(CallableSubject("no.where:f", np.arange(2.0), 1.0), TINY))


def too_few(labels: Any) -> Any:
    return labels[:-1]


def rows_summed(events: Any) -> Any:
    return events.sum(axis=1)


def test_a_callable_gives_one_output_an_event() -> None:
    with pytest.raises(ConfigError, match=r"shape \(2,\) for 3 labels; it must give one a label"):
        of("too_few").subject.mechanism(np.arange(3.0))
    several = CallableSubject.of_several(f"{HERE}:rows_summed", [(0.0, 1.0), (0.0, 10.0)], 1.0)
    assert several.labels.tolist() == [0, 1, 2, 3]
    assert several.mechanism(np.array([0.0, 1.0, 2.0, 3.0])).tolist() == [0, 10, 1, 11]
    # a number beyond the last is as far beyond the upper ends
    assert several.mechanism(np.array([6.0])).tolist() == [22.0]
    assert several.shown(2.0) == "(1, 0)"
    assert [path.name for path in several.sources] == [Path(__file__).name]
    assert of("coins").subject.shown(0.5) == "0.5"


def test_a_named_randomizer_is_what_its_builder_makes() -> None:
    subject = NamedSubject("randomized-response", np.arange(3.0), 1.5)
    assert subject.title == "randomizer randomized-response"
    assert subject.randomizer.channel.outputs.tolist() == [0, 1, 2]
    assert subject.mechanism(np.array([0.0, 1.0])).dtype == np.uint8
    noise = subject.noise(seeded_entropy(0))
    assert noise.size == 3
    # of one label each: noise of scale 2 / 1.5 alone
    drawn = np.concatenate([subject.noise(seeded_entropy(at)) for at in range(400)])
    assert np.abs(drawn).mean() == pytest.approx(4 / 3, rel=0.15)
    channel = subject.channel_of((3, 1, 2), 6)
    assert channel.epsilon == pytest.approx(0.5, abs=1e-6)
    published = NamedSubject("rr-on-bins", np.arange(5.0), 1.0).release(
        np.array([0.0, 1.0, 2.0, 2.0, 2.0, 1.0]), seeded_entropy(1)
    )
    assert len(published.noisy) == 3
    assert published.scale * published.prior_epsilon == 2
    with pytest.raises(ConfigError, match="no histogram is released"):
        NamedSubject("randomized-response", np.arange(2.0), 1.0).release(
            np.zeros(6), seeded_entropy(0)
        )


def test_a_sampler_is_what_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "count_weights", partial(exact.count_weights, probes=1 << 12))
    subject = NamedSubject("randomized-response", np.arange(3.0), 1.0)
    found = exact.sampler_check(Trial(subject, TINY))
    assert (found.verdict, found.claimed) == (PASS, 1.0)
    assert found.bound == pytest.approx(1.0, abs=1e-9)
    assert found.tried.startswith("The words behind each of 3 outputs")
    assert "for 3 distinct rows" in found.tried
    assert found.found.endswith("the counts are the published weights.")
    more = NamedSubject("randomized-response", np.arange(3.0), 1.1)
    claims = Trial(replace(more, epsilon=1.0), TINY)
    claims.named.__dict__["randomizer"] = more.randomizer
    found = exact.sampler_check(claims)
    assert (found.verdict, found.claimed) == (FAIL, 1.0)
    assert found.bound == pytest.approx(1.1, abs=1e-9)
    other = Trial(NamedSubject("randomized-response", np.arange(3.0), 1.0), TINY)
    randomizer = other.named.randomizer
    moved = replace(randomizer, channel=more.randomizer.channel)

    def drawn(self: Any, indices: Any, entropy: Entropy) -> Any:
        return randomizer.channel.sample(indices, entropy.words("labels", 0, indices.size))

    monkeypatch.setattr(type(moved), "randomize_indices", drawn)
    other.named.__dict__["randomizer"] = moved
    found = exact.sampler_check(other)
    assert found.verdict is FAIL
    assert "are not the published weights" in found.found


def test_outputs_are_declared() -> None:
    trial = Trial(NamedSubject("randomized-response", np.arange(3.0), 1.0), TINY)
    found = exact.declared_check(trial)
    assert (found.verdict, found.found) == (PASS, "0 lie outside.")
    assert found.claim == "Every value sent is one of 3 declared outputs."
    assert found.tried == "200 values were compared with them."
    assert found.power[0].least == rarest_seen(200)


def test_calls_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes by what is asked: label 2 takes longest, label 1 the least."""
    now = [0]

    def slow(labels: Any) -> Any:
        now[0] += {0.0: 50, 1.0: 10, 2.0: 90}[float(labels[0])]
        return labels

    monkeypatch.setattr(implementation, "clock", lambda: now[0])
    assert implementation.most_apart(slow, np.arange(3.0), 300) == (2, 1)
    called: list[float] = []

    def by_size(labels: Any) -> Any:
        called.append(float(labels[0]))
        now[0] += int(labels[0])
        return labels

    # a label that no call was for is neither
    assert implementation.most_apart(by_size, np.arange(40.0), 8) == (
        max(called[1:]), min(called[1:]),
    )  # fmt: skip


@pytest.mark.parametrize(("slow", "told"), [
    (lambda world, bit: 0, False), (lambda world, bit: world, True),
    (lambda world, bit: world ^ bit, True), (lambda world, bit: bit, False),
])  # fmt: skip
def test_an_output_and_its_duration_are_one_observation(
    slow: Any, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, bits = [0], iter(draw_secrets(2002).tolist())
    monkeypatch.setattr(implementation, "clock", lambda: now[0])

    def call(world: int) -> float:
        bit = next(bits)
        now[0] += 100 + 900 * slow(world, bit)
        return float(bit)

    worlds = (lambda: call(0)), (lambda: call(1))
    found = implementation.timing_check(worlds, 1000, 1.0, tried="{:.4f} and {:.4f} ms")
    assert found.verdict is (FAIL if told else PASS)


def test_an_output_that_tells_is_not_hidden_by_its_duration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0 is slow and 1 is fast, or the other way round: as numbers they would add up alike."""
    now = [0]
    monkeypatch.setattr(implementation, "clock", lambda: now[0])

    def call(output: float, duration: int) -> float:
        now[0] += duration
        return output

    for first, second in ((1000, 100), (100, 1000)):
        worlds = partial(call, 0.0, first), partial(call, 1.0, second)
        found = implementation.timing_check(worlds, 400, 1.0, tried="{:.4f} and {:.4f} ms")
        assert found.verdict is FAIL
        assert found.tried == f"{first / 1e6:.4f} and {second / 1e6:.4f} ms"
