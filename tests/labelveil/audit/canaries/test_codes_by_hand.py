"""What codes of canaries say, of messages that are drawn here by the stated laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from labelveil.audit.canaries import codes
from labelveil.audit.canaries.codes import Returned
from labelveil.audit.canaries.planting import draw
from labelveil.audit.settings import Planting
from labelveil.common.release.sections import DriftSection, InForceSection
from tests.common.release.releases import make_release
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN

EPSILON = make_release(12_000)[0].labels_guarantee.epsilon


@pytest.fixture(scope="module")
def returned() -> Returned:
    """Canaries that were sent by the stated channel, in an order of their own."""
    planted = draw(Planting(events=12_000, lower=0.0, upper=4.0))
    manifest, _, _ = make_release(12_000)
    labels = np.clip(planted.counted([0.0]), 0, 4)
    rng = np.random.default_rng(1)
    places = rng.permutation(12_000)
    secrets = planted.secrets[places]
    channel = manifest.codebooks.only.laws(labels)
    sent = (rng.random((12_000, 1)) >= channel.cumsum(axis=1)[secrets, :-1]).sum(axis=1)
    return Returned(planted, manifest, labels, secrets, sent, places, 0, 0, EPSILON)


def test_codes_of_canaries_that_are_right_pass(returned: Returned) -> None:
    assert codes.channel_law_check(returned).verdict is PASS
    groups = codes.groups_check(returned)
    assert groups.verdict is PASS
    assert groups.tried.startswith("In 4 orders")
    assert codes.other_rows_check(returned).verdict is PASS
    assert codes.noise_check(returned).verdict is PASS
    assert codes.order_check(returned).verdict is PASS
    assert codes.returned_check(returned).found == "0 are missing; 0 other events are there."
    missing = codes.returned_check(replace(returned, missing=3, others=2))
    assert (missing.verdict, missing.found) == (FAIL, "3 are missing; 2 other events are there.")
    assert missing.tried.startswith("The keys of 12,003 canaries")
    told = codes.distinguish_check(returned)
    assert (told.verdict, told.claimed) == (PASS, EPSILON)
    assert told.claim == "An output reveals at most ε₂ = 0.9796 about its label."
    assert told.tried.startswith("On a tenth of 12,000 canaries")
    correct, guesses = told.details["correct"], told.details["guesses"]
    assert f"Of {guesses:,} guesses between" in told.tried
    assert f" {correct:,} were right." in told.tried
    assert told.power[0].least < told.power[1].least
    assert {name: order.tolist() for name, order in returned.orders.items()}["of the release"] == [
        *range(12_000)
    ]
    by_place = returned.places[returned.orders["of the population"]]
    assert by_place.tolist() == [*range(12_000)]
    keys = returned.planted.keys.to_numpy()[returned.places]
    assert keys[returned.orders["of the keys"]].tolist() == sorted(keys)
    ends = [key[::-1] for key in keys[returned.orders["of the keys' ends"]]]
    assert ends == sorted(ends)
    for name, part in returned.groups.items():
        assert np.bincount(part).tolist() == [750] * 16, name
        order = returned.orders[name.removeprefix("block in the order ")]
        assert (np.diff(part[order]) >= 0).all()


def test_a_law_that_codes_do_not_follow_is_named(returned: Returned) -> None:
    outputs = returned.laws.shape[1]
    secret = 1
    other = returned.codes.copy()
    rows = np.flatnonzero(returned.secrets == secret)
    other[rows] = 0
    found = codes.channel_law_check(replace(returned, codes=other))
    assert found.verdict is FAIL
    assert f"of {returned.planted.in_words(secret)}:" in found.found
    assert f"of {rows.size:,} where" in found.found
    assert f"of {len(returned.labels)} labels and {outputs} outputs" in found.tried
    raw = returned.codes.copy()
    rows = returned.orders["of the keys"][750 * 3 : 750 * 4]
    raw[rows] = returned.laws.argmax(axis=1)[returned.secrets[rows]]
    found = codes.groups_check(replace(returned, codes=raw))
    assert found.verdict is FAIL
    assert "block in the order of the keys, part 3" in found.found


def test_the_words_behind_codes_are_compared_between_releases(returned: Returned) -> None:
    middles, spread = returned.words
    law = returned.laws
    for row in (0, 7, 99):
        secret, code = returned.secrets[row], returned.codes[row]
        assert middles[row] == pytest.approx(law[secret, :code].sum() + law[secret, code] / 2 - 0.5)
        each = law[secret].cumsum() - law[secret] / 2 - 0.5
        assert spread[row] == pytest.approx(law[secret] @ each**2)
    assert codes.epochs_check(returned).verdict is UNKNOWN
    again = codes.epochs_check(replace(returned, before=(returned,)))
    assert again.verdict is FAIL
    assert again.tried.startswith("1 other releases of the same canaries")
    rng = np.random.default_rng(2)
    fresh = (rng.random((12_000, 1)) >= law.cumsum(axis=1)[returned.secrets, :-1]).sum(axis=1)
    counts = [count + 100 for count in returned.manifest.prior.noisy_counts]
    prior = returned.manifest.prior.model_copy(update={"noisy_counts": counts})
    manifest = returned.manifest.model_copy(update={"priors": [prior]})
    other = replace(returned, codes=fresh, manifest=manifest)
    right = codes.epochs_check(replace(returned, before=(other,)))
    assert right.verdict is PASS
    size = abs(float(middles @ other.words[0]))
    half = np.arange(6000)
    part = replace(
        returned, codes=returned.codes[half], secrets=returned.secrets[half],
        places=returned.places[half], manifest=manifest,
    )  # fmt: skip
    assert codes.epochs_check(replace(returned, before=(other, part))).verdict is FAIL
    assert size < float(np.abs(middles) @ np.abs(other.words[0]))


def test_a_histogram_is_judged_where_its_counts_are_known(returned: Returned) -> None:
    """Cells that a label between two points may fall in are left out."""
    labels = returned.labels[returned.secrets, 0]
    whole = labels[np.abs(labels - np.rint(labels)) < 1e-9].astype(int)
    counts = np.bincount(whole, minlength=5)
    between = returned.labels[4, 0]
    near = {math.floor(between), math.ceil(between)}
    noise = np.where(np.isin(np.arange(5), [*near]), 4000, [3, -20, 9, 12, -7])
    stated = {"noisy_counts": (counts + noise).tolist(), "scale": "16"}
    prior = returned.manifest.prior.model_copy(update=stated)
    manifest = returned.manifest.model_copy(update={"priors": [prior]})
    found = codes.histogram_check(replace(returned, manifest=manifest))
    assert found.verdict is PASS
    assert f"in the histogram of {5 - len(near)} cells of scale 16" in found.found
    exact = {"noisy_counts": (counts + np.where(noise == 4000, 4000, 400)).tolist(), "scale": "16"}
    wrong = returned.manifest.prior.model_copy(update=exact)
    manifest = returned.manifest.model_copy(update={"priors": [wrong]})
    assert codes.histogram_check(replace(returned, manifest=manifest)).verdict is FAIL
    unknown = codes.histogram_check(replace(returned, others=1))
    assert (unknown.verdict, unknown.found) == (
        UNKNOWN, "Other events are in the release, whose labels are not known.",
    )  # fmt: skip
    decoded = returned.manifest.prior.model_copy(update={"noise": "randomized-response"})
    manifest = returned.manifest.model_copy(update={"priors": [decoded]})
    none = codes.histogram_check(replace(returned, manifest=manifest))
    assert none.found.startswith("The histogram is decoded from the codes, or public")
    in_force = InForceSection(epoch="1", manifest="0" * 64, rows=100)
    later = {"drift": DriftSection(in_force=in_force), "priors": [wrong]}
    manifest = returned.manifest.model_copy(update=later)
    other = codes.histogram_check(replace(returned, manifest=manifest))
    assert (other.verdict, other.found) == (UNKNOWN, "The prior is that of another release.")
