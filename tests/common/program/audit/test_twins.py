"""Every broken twin is caught, at a false-alarm rate of one in a million, by the check named."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from common.entropy import seeded_entropy, system_entropy
from common.exact.channel import FiniteChannel, randomized_response_rows
from common.program.audit.attacks import implementation
from common.program.audit.attacks.exact_channel import certify, count_weights
from common.program.audit.attacks.exact_joint import joint_audit
from common.program.audit.attacks.histogram_event import histogram_event
from common.program.audit.attacks.implementation import (
    byte_equality_check,
    cold_start_check,
    id_set_check,
    mantissa_check,
    permutation_check,
    row_order_check,
    timing_check,
)
from common.program.audit.attacks.one_run import draw_secrets, one_run
from common.program.audit.attacks.replay import (
    function_check,
    noise_scale_check,
    range_check,
    replay,
    sensitivity_check,
    support_check,
)
from common.program.audit.attacks.static_rule import static_check
from common.program.audit.attacks.two_worlds import two_worlds
from common.program.audit.certificate import manifest_checks as claims
from common.program.audit.mechanism.black_box import black_box_range_check
from common.program.audit.mechanism.subject import CallableSubject, cold_digests
from common.program.audit.verdict import Verdict
from common.randomizers import NoisyPrior, build_randomizer
from tests.common.program.audit.twins import samplers as twins
from tests.common.release.releases import make_release

RECORDS = 1_000_000
LABELS = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 2.0])
COUNTS = (3, 1, 2)

pytestmark = pytest.mark.statistical


def one_run_of(rows: twins.Rows, records: int = RECORDS) -> float:
    """Bound at the gate from one run of two labels' secrets."""
    secrets = draw_secrets(records, 2)
    return one_run(twins.mechanism(twins.word_sampler(rows))(secrets.astype(float)), secrets).bound


def exact(rows: twins.Rows, claim: float) -> tuple[float, bool]:
    """ε counted from the sampler, and whether the claim holds."""
    counted = count_weights(twins.word_sampler(rows), len(rows))
    found = certify(counted.weights, claim)
    return found.epsilon, found.holds


@pytest.mark.parametrize(
    ("rows", "claim", "epsilon"),
    [
        (twins.doubled(), 1.0, 2.0),
        (twins.own_bin(2), 1.0, 1.862),
        (twins.own_bin(8), 1.0, 1.413),
        (twins.rounded_up(1.0, 0.01), 1.0, 1.046),
        (twins.rounded_up(4.0, 2**-8), 4.0, 4.143),
        (twins.rounded_up(4.0, 2**-16), 4.0, 4.00064),
        (twins.raw_leak(), 1.0, math.inf),
    ],
)
def test_exact(rows: twins.Rows, claim: float, epsilon: float) -> None:
    found, holds = exact(rows, claim)
    assert found == pytest.approx(epsilon, abs=1e-3 if epsilon < 4.001 else 1e-2)
    assert not holds


@pytest.mark.slow
def test_exact_sees_scattered_words() -> None:
    counted = count_weights(twins.low_bits_leak, 2, 1 << 23)
    assert not certify(counted.weights, 1.0).holds


@pytest.mark.parametrize(
    ("rows", "claim"),
    [
        (twins.doubled(), 1.0),
        (twins.rounded_up(1.0, 0.01), 1.0),
        (twins.rounded_up(4.0, 2**-8), 4.0),
        (twins.own_bin(2), 1.0),
    ],
)
def test_one_run(rows: twins.Rows, claim: float) -> None:
    assert one_run_of(rows) > claim


@pytest.mark.parametrize("outputs", [2, 8])
def test_two_worlds_see_a_redrawn_own_bin(outputs: int) -> None:
    run = twins.mechanism(twins.word_sampler(twins.own_bin(outputs)))
    assert two_worlds(run(np.zeros(200_000)), run(np.ones(200_000))).bound > 1


@pytest.mark.parametrize(
    ("rows", "claim"), [(twins.rounded_up(4.0, 2**-16), 4.0), (twins.raw_leak(), 1.0)]
)
def test_only_the_exact_check_sees_the_smallest_leaks(rows: twins.Rows, claim: float) -> None:
    assert one_run_of(rows, 100_000) <= claim


def test_half_the_histogram_noise() -> None:
    claimed, half = Fraction(1), Fraction(2)
    honest = replay(
        twins.releaser(drawn_epsilon=half, stated_scale=2 / half), LABELS, 0, 1.0, COUNTS, 60
    )
    assert sensitivity_check(honest).verdict is Verdict.FAIL
    assert sensitivity_check(honest).bound == 2 * claimed
    lying = replay(twins.releaser(drawn_epsilon=half), LABELS, 0, 1.0, COUNTS, 100)
    assert sensitivity_check(lying).verdict is Verdict.PASS
    assert noise_scale_check(lying).verdict is Verdict.FAIL
    counts = np.array([2, 2, 0, 0])
    assert histogram_event(twins.TwoStepTwin(1.0, 0.5), counts, 200_000).bound > 1
    assert one_run_of(randomized_response_rows(2, 0.5), 100_000) < 1  # it looks at labels alone


def test_an_uncharged_histogram() -> None:
    counts = np.array([2, 2, 0, 0])
    assert histogram_event(twins.TwoStepTwin(0.5, 0.5), counts, 200_000).bound > 0.5
    manifest, _, _ = make_release(200)
    data = manifest.model_dump()
    data["privacy"]["total"] = data["randomizer"]["guarantee"]
    wrong = type(manifest).model_validate(data)
    assert claims.arithmetic_check(manifest).verdict is Verdict.PASS
    assert claims.arithmetic_check(wrong).verdict is Verdict.FAIL


@pytest.mark.slow
def test_bins_from_the_raw_histogram() -> None:
    found = replay(twins.releaser(raw_bins=True), LABELS, 0, 1.0, COUNTS)
    assert function_check(found).verdict is Verdict.FAIL


def test_noise_on_occupied_cells_alone() -> None:
    labels = np.array([0.0, 0.0, 1.0, 1.0])
    found = replay(twins.releaser(skip_empty=True), labels, 0, 1.0, (2, 2, 0), 60)
    assert support_check(found).verdict is Verdict.FAIL
    manifest, _, _ = make_release(200, points=60)
    counts = [0] * 55 + [40] * 5
    emptied = manifest.model_copy(
        update={"prior": manifest.prior.model_copy(update={"noisy_counts": counts})}
    )
    assert claims.prior_support_check(manifest).verdict is Verdict.PASS
    assert claims.prior_support_check(emptied).verdict is Verdict.FAIL


@pytest.mark.parametrize("times", [2, 5])
def test_fresh_noise_on_each_request(times: int) -> None:
    assert byte_equality_check(twins.serving(system_entropy), times).verdict is Verdict.FAIL
    frozen = system_entropy()
    assert byte_equality_check(twins.serving(lambda: frozen), times).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "verdict"), [("constant_seed", Verdict.FAIL), ("right_response", Verdict.PASS)]
)
def test_cold_starts(name: str, verdict: Verdict) -> None:
    subject = CallableSubject(
        f"tests.common.program.audit.twins.samplers:{name}", np.array([0.0, 1.0]), 1.0
    )
    one, other = (cold_digests(subject, 256, 1, 0)[0] for _ in range(2))
    assert cold_start_check(one, other).verdict is verdict


def test_float_laplace() -> None:
    outputs = [twins.float_laplace(np.full(50_000, label)) for label in (0.0, 1.0)]
    found = mantissa_check(outputs[0], outputs[1], 1.0)
    assert found.verdict is Verdict.FAIL
    assert found.bound is not None
    assert found.bound > 1
    right = [twins.right_response(np.full(50_000, label)) for label in (0.0, 1.0)]
    assert mantissa_check(right[0], right[1], 1.0).verdict is Verdict.PASS


def test_a_missing_label_drops_the_row() -> None:
    labels: dict[str, float | None] = {f"k{i}": float(i) for i in range(9)}
    less = labels | {"k4": None}
    dropped = id_set_check(twins.dropped_rows(labels), twins.dropped_rows(less))
    assert dropped.verdict is Verdict.FAIL
    whole = id_set_check(twins.whole_population(labels), twins.whole_population(less))
    assert whole.verdict is Verdict.PASS


def test_clipping_after_the_noise() -> None:
    assert range_check(twins.clip_after, 0, 10).verdict is Verdict.FAIL
    assert range_check(twins.clip_before, 0, 10).verdict is Verdict.PASS
    subject = CallableSubject(
        "tests.common.program.audit.twins.samplers:clip_after_black_box", np.arange(11.0), 1.0
    )
    assert black_box_range_check(subject).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\ndef f(n):\n    return np.random.default_rng().laplace(size=n)\n",
        "from numpy.random import default_rng\n",
        "import numpy.random as r\nx = r.laplace()\n",
        "import random\nx = random.random()\n",
        "import torch\nx = torch.randn(3)\n",
    ],
)
def test_a_generator_on_the_wire(tmp_path: Path, source: str) -> None:
    path = tmp_path / "noise.py"
    path.write_text(source)
    assert static_check([path], "a twin").verdict is Verdict.FAIL
    path.write_text("import numpy as np\nx = np.zeros(3)\n")
    assert static_check([path], "a twin").verdict is Verdict.PASS


def test_rows_sorted_by_label() -> None:
    words = seeded_entropy(3).words("labels", 0, 400)
    labels = {f"k{i:03}": float(w % np.uint64(5)) for i, w in enumerate(words)}
    other = labels | {"k200": 5.0 - labels["k200"]}
    one, two = twins.sorted_by_label(labels), twins.sorted_by_label(other)
    assert row_order_check(one, two).verdict is Verdict.FAIL
    in_order = np.array([labels[key] for key in one])
    assert permutation_check(in_order).verdict is Verdict.FAIL
    right = twins.whole_population(labels)
    assert row_order_check(right, twins.whole_population(other)).verdict is Verdict.PASS
    assert permutation_check(np.array([labels[key] for key in right])).verdict is Verdict.PASS


@pytest.mark.slow
def test_latency_that_depends_on_keep_or_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "clock", twins.CLOCK)
    assert timing_check(twins.slow_flips, 0.0, 1.0, 1.0, 1000).verdict is Verdict.FAIL


def test_right_replays_pass() -> None:
    found = replay(twins.releaser(), LABELS, 0, 1.0, COUNTS)
    checks = (sensitivity_check, noise_scale_check, function_check, support_check)
    assert [check(found).verdict for check in checks] == [Verdict.PASS] * 4


def built(prior: np.ndarray) -> FiniteChannel:
    return build_randomizer("rr-on-bins", labels=[0.0, 1.0, 2.0], prior=prior, epsilon=0.5).channel


class _Rule:
    """From noisy (or raw) counts to the channel, each built once."""

    def __init__(self, raw: bool) -> None:
        self._raw, self._built = raw, dict[tuple[int, ...], FiniteChannel]()

    def __call__(self, noisy: tuple[int, ...], counts: tuple[int, ...]) -> FiniteChannel:
        key = counts if self._raw else noisy
        if key not in self._built:
            prior = np.array(counts) / 4
            if not self._raw:
                prior = NoisyPrior(np.array(noisy), Fraction(1, 2), 4).probabilities
            self._built[key] = built(prior)
        return self._built[key]


def test_the_exact_joint_audit() -> None:
    right, half = _Rule(raw=False), Fraction(1, 2)
    assert joint_audit(right, 2 / half).epsilon == pytest.approx(1.0, abs=1e-9)
    assert joint_audit(right, 1 / half).epsilon == pytest.approx(1.5, abs=1e-9)
    assert joint_audit(_Rule(raw=True), 2 / half).epsilon == math.inf
    assert joint_audit(right, 2 / half, noise_on_empty=False).epsilon == math.inf
