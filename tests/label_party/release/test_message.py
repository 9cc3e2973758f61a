"""Building the message: exact ε, noise of the stated scale, and nothing raw in the manifest."""

from __future__ import annotations

import hashlib
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from labelveil.common.entropy import Entropy, seeded_entropy, system_entropy
from labelveil.common.errors import PrivacyError, ReleaseError
from labelveil.common.exact.rational import exp_lower_bound
from labelveil.common.randomizers import decoded_prior
from labelveil.common.randomizers.message.plan import plan_message
from labelveil.common.randomizers.message.terms import LabelTerms
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.events.steps import Events
from labelveil.label_party.release.message import count_labels
from tests.label_party.made_up import Kept, build_counted, numbered
from tests.statistics import fits, laplace_mass, mean_fits


def configuration(**sections: dict[str, object]) -> LabelPartyConfig:
    base: dict[str, dict[str, object]] = {
        "data": {"labels": "none.csv"},
        "domain": {"lower": 0, "upper": 2, "grid": "whole"},
        "privacy": {"epsilon": 1.0},
        "randomizer": {"name": "rr-on-bins"},
    }
    for name, values in sections.items():
        base.setdefault(name, {}).update(values)
    return LabelPartyConfig.model_validate(base)


def completed(values: list[float]) -> Events:
    return numbered(np.array(values, dtype=np.float64)[:, None])


def fixed_entropy(seed: int) -> Entropy:
    """Entropy that a test can repeat and a release accepts."""
    return Entropy(hashlib.sha256(f"test {seed}".encode()).digest())


def built(values: list[float], config: LabelPartyConfig, seed: int = 0) -> tuple[Manifest, Kept]:
    rows = Kept()
    events = completed(values)
    plan = config.plan_message(events.rows)
    done: list[int] = []
    made = build_counted(events, config, plan, fixed_entropy(seed), rows, done.append)
    assert sum(done) == events.rows  # what a bar shows is all of it at the end
    return made, rows


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.3, 1.0, 2.5, 8.0])
@pytest.mark.parametrize("group", [1, 3])
def test_the_claimed_epsilon_follows_from_the_integers_and_never_passes_the_request(
    epsilon: float, group: int
) -> None:
    privacy: dict[str, object] = {"epsilon": epsilon}
    if group > 1:
        privacy |= {"unit": "user", "user": "u", "max_records_per_user": group}
    config = configuration(privacy=privacy, domain={"upper": 5})
    result, _ = built([float(i % 6) for i in range(500)], config)
    manifest = Manifest.from_bytes(result.to_bytes())
    prior = Fraction(2 * group) / Fraction(manifest.prior.scale)
    rows = manifest.channel.rows
    assert all(sum(row) == 2**64 for row in rows)
    ratio = max(Fraction(max(column), min(column)) for column in zip(*rows, strict=True))
    requested = Fraction(str(epsilon))
    # e^(ε₂ / group) bounds every ratio, with ε₂ what the request leaves after the prior
    assert ratio <= exp_lower_bound((requested - prior) / group)
    assert manifest.prior_guarantee.exact_epsilon == prior
    assert manifest.total_guarantee.within(config.privacy.charge)
    assert math.log(ratio) * group + float(prior) <= epsilon * (1 + 1e-12)
    assert str(manifest.total_guarantee.unit) == config.privacy.unit


def test_rows_codes_and_digests_fit_together() -> None:
    manifest, rows = built([0.0, 1.0, 2.0] * 50_000, configuration())
    assert len(manifest.content.blocks) == 3
    assert manifest.population.digest == hashlib.sha256(rows.keys).hexdigest()
    codes = decode_codes(rows.codes, manifest.content.code_bytes)
    assert codes.size == 150_000
    assert codes.max() < manifest.channel.outputs.size


def test_each_label_that_is_sent_apart_is_counted_for_itself() -> None:
    terms = [LabelTerms(name, 0, 2, whole=True) for name in "ab"]
    labels = np.zeros((30_000, 2))
    labels[:9000, 0], labels[:, 1] = 2, 2
    plan = plan_message(terms, 30_000, 8.0, division="split")
    message = count_labels(plan, numbered(labels), fixed_entropy(1))
    (first, one), (second, other) = message.histograms
    assert (first.labels, second.labels) == ((0,), (1,))
    for prior, true in ((one, [21_000, 0, 9000]), (other, [0, 0, 30_000])):
        np.testing.assert_allclose(prior.noisy_counts, true, atol=2000)  # noise of scale 200


def test_repeatable_entropy_is_refused() -> None:
    with pytest.raises(PrivacyError, match="system_entropy"):
        build_counted(
            completed([1.0]),
            configuration(),
            configuration().plan_message(1),
            seeded_entropy(0),
            Kept(),
        )


def test_two_builds_of_the_same_labels_differ() -> None:
    config = configuration()
    outcomes = []
    for _ in range(2):
        rows = Kept()
        plan = config.plan_message(300)
        result = build_counted(
            completed([0.0, 1.0, 2.0] * 100), config, plan, system_entropy(), rows
        )
        outcomes.append((rows.codes, tuple(result.prior.noisy_counts)))
    assert outcomes[0][0] != outcomes[1][0]
    assert outcomes[0][1] != outcomes[1][1]


def test_only_the_noisy_histogram_and_the_codes_depend_on_labels() -> None:
    """With the noise frozen, moving every label changes counts by what moved and nothing else."""
    config = configuration()
    low, _ = built([0.0] * 400, config, seed=3)
    high, _ = built([-50.0] * 200 + [0.0] * 200, config, seed=3)
    assert low.to_bytes() == high.to_bytes()  # clipped labels leave no trace


def test_one_swapped_label_moves_the_counts_by_two_and_the_bins_not_at_all_if_counts_stay() -> None:
    config = configuration()
    values = [0.0, 1.0, 2.0] * 100
    before, rows_before = built(values, config, seed=4)
    after, rows_after = built([2.0, *values[1:]], config, seed=4)
    change = np.abs(np.array(before.prior.noisy_counts) - after.prior.noisy_counts)
    assert change.sum() == 2
    if before.randomizer == after.randomizer:
        codes = [np.frombuffer(r.codes, dtype=np.uint8) for r in (rows_before, rows_after)]
        assert not np.any(codes[0][1:] != codes[1][1:])


def test_clipping_happens_before_anything_random() -> None:
    inside, rows_inside = built([2.0] * 300, configuration(), seed=5)
    outside, rows_outside = built([2e6] * 300, configuration(), seed=5)
    assert rows_inside.codes == rows_outside.codes
    assert inside.prior == outside.prior


@pytest.mark.slow
@pytest.mark.statistical
def test_noise_on_every_cell_is_discrete_laplace_of_scale_two_over_epsilon_one() -> None:
    """Pooled over cells, empty and full, of 300 builds; twins 30% off and halved are rejected."""
    config = configuration(domain={"upper": 3})
    values = [0.0] * 30 + [1.0] * 10  # points 2 and 3 are empty
    counts = np.array([30, 10, 0, 0])
    noise = []
    for seed in range(300):
        result, _ = built(values, config, seed)
        noise.append(np.array(result.prior.noisy_counts) - counts)
    pooled = np.array(noise)
    scale = float(Fraction(result.prior.scale))
    assert scale == pytest.approx(2 / result.prior_guarantee.epsilon)
    for cell in range(4):
        assert fits(pooled[:, cell], laplace_mass(scale))
    assert fits(pooled.ravel(), laplace_mass(scale))

    def has_scale(scale: float) -> bool:
        return mean_fits(np.abs(pooled), 1 / math.sinh(1 / scale), scale)

    assert has_scale(scale)
    # the same data judged against other scales: noise of 1/ε₁ would look like this
    for wrong in (2, 1.3, 1 / 1.3):
        assert not has_scale(wrong * scale)


@pytest.mark.parametrize(
    "domain",
    [{"upper": 1}, {"grid": "values", "values": [0, 1, 2]}],
    ids=["two labels", "three classes"],
)
def test_few_labels_spend_nothing_on_a_prior(domain: dict[str, object]) -> None:
    config = configuration(domain=domain, randomizer={"name": "auto"})
    result, rows = built([float(i % 2) for i in range(3000)], config)
    manifest = Manifest.from_bytes(result.to_bytes())
    assert manifest.randomizer.name == "randomized-response"
    assert manifest.prior.decoded
    assert not manifest.prior_paid
    assert manifest.total_guarantee == manifest.labels_guarantee
    codes = np.bincount(decode_codes(rows.codes, 1), minlength=len(manifest.label.grid))
    decoded = decoded_prior(manifest.channel, codes)
    assert decoded.noisy_counts.tolist() == manifest.prior.noisy_counts
    ((_, told),) = manifest.message.histograms
    assert told.deviation == decoded.deviation
    assert abs(told.probabilities[0] - 0.5) < 7 * decoded.deviation / 3000


def test_a_decoded_histogram_claims_no_more_than_the_codes() -> None:
    config = configuration(domain={"upper": 1}, randomizer={"name": "auto"})
    data = json.loads(built([0.0, 1.0] * 50, config)[0].to_bytes())
    half = {**data["priors"][0]["guarantee"], "epsilon": "1/2"}
    for prior in ({"guarantee": half}, {"scale": "4"}, {"noise": "discrete-laplace"}):
        changed = {**data, "priors": [{**data["priors"][0], **prior}]}
        with pytest.raises(ReleaseError, match=r"spends 0|must be 2"):
            Manifest.model_validate(changed).check()
    changed = {**data, "randomizers": [{**data["randomizers"][0], "name": "two-point"}]}
    with pytest.raises(ReleaseError, match="decoded from the codes of randomized response"):
        Manifest.model_validate(changed).check()
