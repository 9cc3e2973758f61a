"""Every number that a certificate states, worked out here from a manifest's JSON or by hand."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from labelveil.audit.attacks.exact_channel import WORDS
from labelveil.audit.certificate.epochs import EPOCHS
from labelveil.audit.certificate.evidence import Evidence, read_evidence
from labelveil.audit.certificate.facts import facts, plots
from labelveil.audit.certificate.fields import BEYOND, FIELDS, fields
from labelveil.audit.certificate.manifest_checks import (
    arithmetic_check,
    channel_check,
    options_check,
    prior_scale_check,
    prior_support_check,
    split_check,
    weights_check,
)
from labelveil.audit.certificate.rebuild import _details_distance, _distance, rebuilt_check
from labelveil.audit.certificate.run import (
    CHECKS,
    FORM,
    certificate,
    certify,
    content_check,
    order_check,
    outputs_check,
    population_check,
)
from labelveil.audit.certificate.sums import (
    NONE,
    lattice_check,
    parsed_question,
    possible_check,
    question_check,
    scales_check,
)
from labelveil.audit.verdict import Check, Verdict
from labelveil.common.errors import ReleaseError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice
from labelveil.common.release.folder import POPULATION_FILE, QUESTION_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import encode_question
from labelveil.common.release.table import write_release
from labelveil.common.version import software
from tests.common.release.releases import make_release, text_of, words_of
from tests.effort import effort
from tests.labelveil.audit.certificate.answers import answered
from tests.labelveil.audit.certificate.summed import QUESTION, sums_of, write_sums
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN, numbers
from tests.labelveil.audit.conftest import evidence_of, in_key_order

MANIFEST, KEYS, CODES = in_key_order(*make_release(300))
DATA = json.loads(MANIFEST.to_bytes())
Change = Callable[[dict[str, Any]], None]


def changed(change: Change, data: dict[str, Any] = DATA) -> Evidence:
    """A manifest after a change of its JSON, without rows."""
    data = json.loads(json.dumps(data))
    change(data)
    return evidence_of(Manifest.model_validate(data))


def test_rows_of_weights_are_added_up_and_counted() -> None:
    assert numbers(weights_check(evidence_of(MANIFEST)).found) == [0, 5, 5]

    def less(data: dict[str, Any]) -> None:
        rows = data["randomizers"][0]["channel"]["rows"]
        first, *others = words_of(rows[0])
        rows[0] = text_of([first - 1, *others])

    assert weights_check(found := changed(less)).verdict is FAIL
    assert numbers(weights_check(found).found) == [1, 5, 5]
    # a single word stands for all of 2⁶⁴
    for word, wrong in ((0, 0), (WORDS - 1, 1)):
        check = weights_check(channel_of([word], [0], epsilon="1"))
        assert (check.verdict is FAIL, numbers(check.found)) == (wrong, [wrong, 5, 5])
    (stated,) = MANIFEST.randomizers
    channel = {**stated.channel, "row_of": stated.channel["row_of"][:-1]}
    fewer = [stated.model_copy(update={"channel": channel})]
    check = weights_check(evidence_of(MANIFEST.model_copy(update={"randomizers": fewer})))
    assert (check.verdict, numbers(check.found)) == (FAIL, [0, 4, 5])


def channel_of(*rows: list[int], epsilon: str, records: int = 1) -> Evidence:
    """A release whose channel has these two rows."""

    def change(data: dict[str, Any]) -> None:
        stated = data["randomizers"][0]
        stated["channel"] |= {"outputs": [*range(len(rows[0]))], "row_of": [0, 1, 1, 0, 1]}
        stated["channel"] |= {"rows": [*map(text_of, rows)]}
        stated["guarantee"]["epsilon"] = epsilon
        data["privacy"]["records_per_unit"] = records

    return changed(change)


def test_the_worst_ratio_is_that_of_the_weights() -> None:
    quarter = WORDS // 4
    rows = [quarter, 3 * quarter], [3 * quarter, quarter]
    least = Fraction(math.log(3)) + Fraction(1, 10**12)
    for records in (1, 3):
        check = channel_check(channel_of(*rows, epsilon=str(records * least), records=records))
        assert check.verdict is PASS
        assert check.found.startswith("The worst ratio is 3/1 (output ")
        assert f"exactly ε = {math.log(3):.12g}" in check.found
        assert (", 3 times that for one unit." in check.found) is (records == 3)
        assert check.bound == check.shown == pytest.approx(records * math.log(3))
        assert check.claimed == pytest.approx(float(records * least), abs=1e-15)
        assert "strata" not in check.tried
    below = str(Fraction(math.log(3)) - Fraction(1, 10**12))
    assert channel_check(channel_of(*rows, epsilon=below)).verdict is FAIL
    excluded = channel_check(channel_of([0, WORDS - 1, 1], [1, WORDS - 2, 1], epsilon="5"))
    assert (excluded.verdict, excluded.bound) == (FAIL, math.inf)
    assert excluded.found == "output 0 excludes a label: no ε is enough."


def test_long_ratios_are_shown_as_a_number() -> None:
    long = [WORDS // 3, WORDS - WORDS // 3], [WORDS // 3 + 1, WORDS - WORDS // 3 - 1]
    found = channel_check(channel_of(*long, epsilon="1")).found
    assert "/" in found.partition(" (output")[0]


def test_the_parts_of_epsilon_are_added_as_fractions() -> None:
    check = arithmetic_check(evidence_of(MANIFEST))
    prior, labels = (
        Fraction(DATA[name][0]["guarantee"]["epsilon"]) for name in ("priors", "randomizers")
    )
    assert (check.verdict, check.bound, check.claimed) == (PASS, 1.0, 1.0)
    assert check.found.startswith(
        f"{float(prior):.12g} (prior) + {float(labels):.12g} (labels) = 1;"
    )
    assert "no more than the 1 asked for" in check.claim
    # a channel's ε may be rounded up by one unit in the last place of what was asked for

    def more(ulps: int) -> Change:
        def change(data: dict[str, Any]) -> None:
            larger = labels + ulps * Fraction(math.ulp(1.0))
            data["randomizers"][0]["guarantee"]["epsilon"] = str(larger)
            data["privacy"]["total"]["epsilon"] = str(prior + larger)

        return change

    assert [arithmetic_check(changed(more(n))).verdict for n in (-1, 1, 2)] == [PASS, PASS, FAIL]


@pytest.mark.parametrize(("scale", "records", "verdict"), [
    ("16", 1, PASS), ("15", 1, FAIL), ("17", 1, PASS), ("16", 2, FAIL), ("32", 2, PASS),
    ("0", 1, FAIL),
])  # fmt: skip
def test_noise_of_the_histogram_pays_for_its_part(
    scale: str, records: int, verdict: Verdict
) -> None:
    def change(data: dict[str, Any]) -> None:
        data["priors"][0]["scale"] = scale
        data["privacy"]["records_per_unit"] = records

    check = prior_scale_check(changed(change))  # of ε₁ = 1/8
    assert (check.verdict, check.claimed) == (verdict, 0.125)
    if scale == "0":
        assert (check.bound, check.found) == (math.inf, "No noise at all.")
        return
    assert check.bound == pytest.approx(2 * records / float(scale))
    assert numbers(check.found) == pytest.approx([2 * records, float(scale), check.bound])


@pytest.mark.parametrize("scale", ["0", "1/2", "3", "16"])
def test_cells_without_noise_are_as_many_as_chance_does_not_make(scale: str) -> None:
    """The number of exact zeros among n cells against a binomial law's tail."""
    q = math.exp(-1 / float(Fraction(scale))) if Fraction(scale) else 0.0
    chance, cells = (1 - q) / (1 + q), 40
    expected = [float(stats.binom.sf(zeros - 1, cells, chance)) for zeros in range(cells + 1)]
    least = next((n for n, tail in enumerate(expected) if tail < 1e-6), math.inf)
    for zeros in {0, 1, 7, *(n for n in (least - 1, least) if n <= cells)}:
        counts = [0] * int(zeros) + [-3] * 4 + [9] * (cells - int(zeros) - 4)
        stated = {"noisy_counts": counts[:cells], "scale": scale}
        prior = MANIFEST.priors[0].model_copy(update=stated)
        check = prior_support_check(evidence_of(MANIFEST.model_copy(update={"priors": [prior]})))
        found = numbers(check.found)
        assert found[0] == zeros
        assert found[2] == pytest.approx(expected[int(zeros)], rel=0.01)
        assert check.verdict is (FAIL if zeros >= least else PASS)
        assert check.power[0].least == least
        if zeros <= cells - 4:
            assert found[1] == 4
    assert check.confidence == 1 - 1e-6


@pytest.mark.parametrize(("place", "verdict"), [
    (("privacy", "requested_epsilon", 1.23456), PASS),
    (("privacy", "requested_epsilon", 1.234567), FAIL),
    (("labels", 0, "weight", 1.234567), FAIL),
    (("randomizers", 0, "details", {"options": {"clip": 0.1234567}}), FAIL),
])  # fmt: skip
def test_settings_have_few_digits(place: tuple[Any, ...], verdict: Verdict) -> None:
    def change(data: dict[str, Any]) -> None:
        *folders, last, value = place
        for folder in folders:
            data = data[folder]
        data[last] = value

    if "details" in place:
        details = MANIFEST.randomizers[0].model_copy(update={"details": place[-1]})
        evidence = evidence_of(MANIFEST.model_copy(update={"randomizers": [details]}))
    else:
        evidence = changed(change)
    check = options_check(evidence)
    assert check.verdict is verdict
    assert ("Shown: none." in check.found) is (verdict is PASS)


def written(tmp_path: Path, change: Change = lambda data: None, **parts: bytes) -> Evidence:
    data = json.loads(json.dumps(DATA))
    change(data)
    keys, codes = parts.get("keys", KEYS), parts.get("codes", CODES)
    write_release(tmp_path / "r", Manifest.model_validate(data).to_bytes(), keys, codes)
    return read_evidence(tmp_path / "r")


def test_outputs_are_counted_up_to_the_last(tmp_path: Path) -> None:
    check = outputs_check(written(tmp_path, codes=b"\0" * 299 + b"\1"))
    assert (check.verdict, numbers(check.found)) == (PASS, [0, 2])
    check = outputs_check(written(tmp_path, codes=b"\0" * 298 + b"\2\3"))
    assert (check.verdict, numbers(check.found)) == (FAIL, [2, 3])
    assert numbers(check.tried) == [300]
    # a code of a release in strata is an output of one of them: 3 channels of 34
    evidence = read_evidence(answered(tmp_path / "a"))
    assert "one of the 102 declared outputs" in outputs_check(evidence).claim


def test_every_block_of_rows_is_hashed(tmp_path: Path) -> None:
    check = content_check(written(tmp_path))
    assert (check.verdict, numbers(check.found)) == (PASS, [0, 5])
    other = bytearray(CODES)
    other[64] ^= 1
    check = content_check(written(tmp_path, codes=bytes(other)))
    assert (check.verdict, numbers(check.found)) == (FAIL, [1, 5])

    def one_more(data: dict[str, Any]) -> None:
        data["content"]["blocks"].append("0" * 64)

    check = content_check(written(tmp_path, one_more))
    assert (check.verdict, numbers(check.found)) == (FAIL, [1, 5])
    assert "do not fit the digest of all" in check.found
    assert check.details == {"digest": DATA["content"]["digest"]}
    other_whole = written(tmp_path, lambda data: data["content"].update(digest="0" * 64))
    check = content_check(other_whole)
    assert (check.verdict, numbers(check.found)) == (FAIL, [0, 5])
    fewer = replace(written(tmp_path), labels=written(tmp_path).labels[:299])
    check = content_check(fewer)
    assert (check.verdict, check.found) == (FAIL, "299 rows instead of 300.")


def test_events_are_those_agreed_on_once_and_in_order(tmp_path: Path) -> None:
    right = written(tmp_path)
    assert numbers(population_check(right).found) == [0]
    assert numbers(population_check(right).tried)[1] == 300
    assert (order_check(right).verdict, numbers(order_check(right).found)) == (PASS, [0])
    twice = KEYS[16:32] + KEYS[16:]
    repeated = written(tmp_path, keys=twice)
    assert (population_check(repeated).verdict, order_check(repeated).verdict) == (FAIL, FAIL)
    assert numbers(population_check(repeated).found) == [1]
    assert numbers(order_check(repeated).found) == [1]

    def agreed(data: dict[str, Any]) -> None:
        data["population"]["digest"] = hashlib.sha256(twice).hexdigest()

    check = population_check(written(tmp_path, agreed, keys=twice))
    assert (check.verdict, check.found) == (FAIL, "The digest fits; 1 keys are repeated.")


def test_a_submitted_population_is_looked_for_where_parties_keep_it(tmp_path: Path) -> None:
    """Beside the release or in a store, of the length that is stated and no other."""
    store = tmp_path / "store"
    folder = store / "releases" / "clicks" / "1"
    write_sums(folder)
    stated = read_evidence(folder).manifest.population.digest
    data = (folder / POPULATION_FILE).read_bytes()
    (folder / POPULATION_FILE).write_bytes(data[:-16])
    assert read_evidence(folder).events is None
    (folder / POPULATION_FILE).write_bytes(data + b"\0")
    assert read_evidence(folder).events is None
    (folder / POPULATION_FILE).unlink()
    found = population_check(read_evidence(folder))
    assert (found.verdict, stated in found.found, POPULATION_FILE in found.found) == (
        UNKNOWN, True, True,
    )  # fmt: skip
    kept = store / "populations" / "clicks" / "1"
    kept.mkdir(parents=True)
    (kept / f"{stated}.keys").write_bytes(data)
    assert population_check(read_evidence(folder)).verdict is PASS
    # a folder that lies too high is in no store
    for high in ("/", "/clicks", "/clicks/1"):
        alone = replace(read_evidence(folder), directory=Path(high))
        assert population_check(alone).verdict is UNKNOWN


def rebuilt(by: float) -> Check:
    """The verdict on a channel one of whose outputs is off by a share of their range."""

    def change(data: dict[str, Any]) -> None:
        outputs = data["randomizers"][0]["channel"]["outputs"]
        outputs[0] -= by * (outputs[-1] - outputs[0])

    return rebuilt_check(changed(change))


def test_differences_that_another_processor_explains_are_no_verdict() -> None:
    assert rebuilt(0.0).found == "All 2 outputs, integer weights and details agree."
    for by, verdict in ((1e-7, UNKNOWN), (0.9e-6, UNKNOWN), (1.2e-6, FAIL), (0.5, FAIL)):
        check = rebuilt(by)
        assert check.verdict is verdict, by
        assert numbers(check.found)[0] == pytest.approx(by / (1 + by), rel=0.01)

    def weights(data: dict[str, Any]) -> None:
        rows = data["randomizers"][0]["channel"]["rows"]
        first, second = words_of(rows[0])
        rows[0] = text_of([first - (1 << 44), second + (1 << 44)])

    check = rebuilt_check(changed(weights))
    assert check.verdict is UNKNOWN
    assert numbers(check.found)[0] == pytest.approx(2.0**-20, rel=0.01)

    def detail(value: Any) -> Check:
        return rebuilt_check(changed(lambda data: data["randomizers"][0]["details"].update(value)))

    stated = DATA["randomizers"][0]["details"]
    check = detail({"bins": stated["bins"] + 1})
    assert check.found == "The shape of the channel or of its details differs."
    assert check.verdict is FAIL
    assert detail({"bin_edges": stated["bin_edges"][:-1]}).verdict is FAIL
    more = {**stated, "points": [1.0]}  # which nothing here is built with
    assert _details_distance(more, stated) == _details_distance(stated, more) == math.inf
    last = len(stated["bin_edges"]) - 1
    for by, verdict in ((1e-7, UNKNOWN), (1e-5, FAIL)):
        edges = [*stated["bin_edges"]]
        edges[last] *= 1 + by
        check = detail({"bin_edges": edges})
        assert check.verdict is verdict
        assert numbers(check.found)[0] == pytest.approx(by, rel=0.01)


def test_outputs_of_one_value_may_stand_in_another_order() -> None:
    """They are told apart by their probabilities, to a millionth."""
    rows = [[1 << 62, 1 << 61, 5 << 61], [3 << 61, 1 << 62, 3 << 61]]

    def channel(outputs: list[float], order: list[int]) -> FiniteChannel:
        weights = [[row[at] for at in order] for row in rows]
        return FiniteChannel([0.0, 1.0], np.array(outputs), weights)

    near = 1 + 2**-40
    right = channel([1.0, near, 3.0], [0, 1, 2])
    assert _distance(right, channel([1.0, near, 3.0], [0, 1, 2])) == 0
    swapped = _distance(right, channel([1.0, near, 3.0], [1, 0, 2]))
    assert 0 < swapped < 1e-6
    # outputs that are apart are not the same in another order
    assert _distance(right, channel([1.0, near, 3.0], [2, 1, 0])) > 0.1
    far = channel([1.0, 2.0, 3.0], [0, 1, 2])
    assert _distance(far, channel([1.0, 2.0, 3.0], [1, 0, 2])) > 0.1
    assert _distance(far, channel([1.0, 2.0, 3.5], [0, 1, 2])) == pytest.approx(0.5 / 2)
    assert math.isinf(_distance(far, FiniteChannel([0.0, 1.0], np.array([1.0, 2.0]), [
        [1 << 63, 1 << 63], [1 << 62, 3 << 62],
    ])))  # fmt: skip


@pytest.mark.parametrize(
    ("epsilon", "rows", "share", "most", "said"),
    [
        (2.0, 300, None, 1 / 4, ""),
        (0.5, 300, None, (80 / 300**2) ** (1 / 3), ""),
        (0.5, 300, 0.125, 1 / 16, " for a share of at most 0.125"),
        (1.0, 5000, None, 1 / 8, ""),
    ],
)
def test_the_split_follows_from_epsilon_points_and_rows(
    epsilon: float, rows: int, share: float | None, most: float, said: str
) -> None:
    """√(points/rows), at most an eighth of ε, or more of few events, or what a setting says."""
    manifest, _, _ = make_release(rows, epsilon=epsilon, prior_share=share)
    evidence = evidence_of(manifest.model_copy(update={"software": software()}))
    check = split_check(evidence)
    spent = float(Fraction(manifest.priors[0].guarantee["epsilon"]))
    assert spent == pytest.approx(min(math.sqrt(5 / rows), most), rel=1e-2)
    assert check.verdict is PASS
    assert check.found == f"The rule gives {spent:.6g}{said}."

    def other(data: dict[str, Any]) -> None:
        data["priors"][0]["guarantee"]["epsilon"] = str(Fraction(spent) / 3)

    data = json.loads(manifest.to_bytes()) | {"software": software()}
    assert split_check(changed(other, data)).verdict is FAIL
    older = split_check(changed(other, data | {"software": "labelveil/0.0.1"}))
    assert older.verdict is UNKNOWN
    assert older.found.endswith("'labelveil/0.0.1' made the release: audit it with that version.")


def test_sums_spend_their_span_over_their_scale(tmp_path: Path) -> None:
    """Widths 4 and 20 of 20 steps move a sum by 8 and 20, twice for weight 2; squares by h²."""
    evidence = read_evidence(write_sums(tmp_path / "s", epsilon="0.25"))
    check = scales_check(evidence)
    assert (check.verdict, check.bound, check.claimed) == (PASS, 0.25, 0.25)
    assert (
        check.found
        == "The largest is 0.25, as claimed; 0 of 4 scales are others than widths,"
        + (" weights and ε give.")
    )
    stated = {(w.squares, w.half_width): w.scale for w in evidence.manifest.sums.widths}  # type: ignore[union-attr]
    spans = {(False, 4): 16, (False, 20): 40, (True, 4): 32, (True, 20): 800}
    assert {way: Fraction(scale) for way, scale in stated.items()} == {
        way: Fraction(spans[way]) * 4 for way in stated
    }

    def wider(data: dict[str, Any]) -> None:
        widths = data["sums"]["widths"]
        widths[0]["scale"] = str(2 * Fraction(widths[0]["scale"]))

    data = json.loads(evidence.data)
    check = scales_check(changed(wider, data))
    assert (check.verdict, check.bound) == (FAIL, 0.25)
    assert "1 of 4 scales" in check.found

    def none(data: dict[str, Any]) -> None:
        data["sums"]["widths"][0]["scale"] = "0"

    check = scales_check(changed(none, data))
    assert (check.verdict, check.bound, check.found) == (
        FAIL, math.inf, "Some sums have no noise at all.",
    )  # fmt: skip

    def less(data: dict[str, Any]) -> None:
        data["sums"]["guarantee"]["epsilon"] = "1/5"

    check = scales_check(changed(less, data))
    assert (check.verdict, check.claimed, check.bound) == (FAIL, 0.2, 0.25)
    assert "and 0.2 is claimed" in check.found

    def of_users(claimed: str, requested: float) -> Check:
        """Who have two events each, and pay for both."""

        def change(data: dict[str, Any]) -> None:
            data["privacy"] |= {"records_per_unit": 2, "requested_epsilon": requested}
            data["sums"]["guarantee"]["epsilon"] = claimed

        return scales_check(changed(change, data))

    assert (of_users("1/2", 0.5).verdict, of_users("1/2", 0.5).bound) == (PASS, 0.5)

    def rounded(up: int) -> Check:
        """Scales of ε = 0.3, in grains of 1/4096, which spend a little less or more."""

        def change(data: dict[str, Any]) -> None:
            spans = {16: 0, 40: 0, 32: 0, 800: 0}
            for stated, span in zip(data["sums"]["widths"], spans, strict=True):
                spans[span] = math.floor(span * 4096 / Fraction("0.3")) + up
                stated["scale"] = str(Fraction(spans[span], 4096))
            spent = max(Fraction(4096 * span, grains) for span, grains in spans.items())
            data["privacy"]["requested_epsilon"] = 0.3
            data["sums"]["guarantee"]["epsilon"] = str(spent)

        return scales_check(changed(change, data))

    assert [rounded(up).verdict for up in (0, 1, 2)] == [FAIL, PASS, FAIL]
    assert 0.2999 < rounded(1).bound < 0.3  # type: ignore[operator]
    assert of_users("1/4", 0.5).verdict is FAIL
    assert of_users("1/2", 0.25).verdict is FAIL


def test_points_and_widths_lie_on_one_lattice(tmp_path: Path) -> None:
    data = json.loads(read_evidence(write_sums(tmp_path / "s")).data)

    def moved(by: float) -> Check:
        def move(data: dict[str, Any]) -> None:
            data["labels"][0]["grid"][3] += by

        return lattice_check(changed(move, data))

    assert moved(0).verdict is PASS
    assert numbers(moved(0).tried)[:4] == [21, 2, 4, 20]
    assert moved(0.4e-9).verdict is PASS  # of steps of one half
    assert moved(0.6e-9).verdict is FAIL
    for by in (0.005, -0.005):
        assert numbers(moved(by).found)[0] == pytest.approx(0.01)

    def offsets(*values: int) -> Check:
        return lattice_check(changed(lambda d: d["sums"].update(offsets=[*values]), data))

    assert [offsets(0, 20).verdict, offsets(0, 21).verdict] == [PASS, FAIL]
    assert numbers(offsets(21, 22).found)[1] == 2

    def width(value: int) -> Check:
        return lattice_check(
            changed(lambda d: d["sums"]["widths"][0].update(half_width=value), data)
        )

    assert [width(wide).verdict for wide in (1, 20, 21)] == [PASS, PASS, FAIL]


@settings(max_examples=effort(25, 500))
@given(st.data())
def test_a_question_is_read_as_it_was_written(data: st.DataObject) -> None:
    """Its sums and their ranges by trying every label of every event."""
    integers = lambda low, high: st.integers(low, high)  # noqa: E731
    steps, rows = data.draw(integers(1, 6)), data.draw(integers(3, 6))
    groups, levels = data.draw(integers(1, 3)), data.draw(integers(1, 3))

    def column(low: int, high: int, size: int) -> Any:
        return np.array(data.draw(st.lists(integers(low, high), min_size=size, max_size=size)))

    of = column(-1, groups - 1, rows)
    weights = column(-3, 3, rows) if data.draw(st.booleans()) else None
    question = GroupQuestion(
        Lattice(-1.0, 2.0, steps),
        np.where(of < 0, NO_GROUP, of),
        column(1, steps, groups),
        column(0, steps, levels),
        levels=column(0, levels - 1, rows) if levels > 1 else None,
        weights=weights,
        squares=data.draw(integers(0, groups)),
    )
    found = parsed_question(encode_question(question), rows)
    assert (found.bounds, found.steps) == ((-1.0, 2.0), steps)
    assert np.array_equal(found.groups == NONE, of < 0)
    assert (found.widths.tolist(), found.offsets.tolist()) == (
        question.half_widths.tolist(), question.offsets.tolist(),
    )  # fmt: skip
    labels = column(0, steps, rows)
    expected, low, high = ([0] * groups for _ in range(3))
    for event in range(rows):
        if of[event] < 0:
            continue
        group = int(of[event])
        width = int(question.half_widths[group])
        level = 0 if question.levels is None else int(question.levels[event])
        weight = 1 if weights is None else int(weights[event])
        power = 2 if group >= groups - question.squares else 1
        parts = [
            weight * max(-width, min(width, label - int(question.offsets[level]))) ** power
            for label in range(steps + 1)
        ]
        expected[group] += parts[labels[event]]
        low[group] += min(parts)
        high[group] += max(parts)
    assert found.sums(labels).tolist() == expected
    assert found.sums(np.stack([labels, labels]))[1].tolist() == expected
    assert [each.tolist() for each in found.ranges] == [low, high]
    assert sum(found.ways.values()) == groups
    # after two doubles and the steps: as many groups, levels, a weight, and squares
    written, said = encode_question(question), len(b"labelveil-groups/1\n") + 20
    for place, wrong in enumerate((groups + 1, levels + 1, int(weights is None), groups + 1)):
        at = said + 4 * place
        with pytest.raises(ReleaseError):
            parsed_question(written[:at] + wrong.to_bytes(4, "little") + written[at + 4 :], rows)


@pytest.mark.parametrize(("changed", "said"), [
    ({}, ""), ({"groups": [1, 0, 1]}, ""), ({"groups": [2, 0, 1]}, "does not have"),
    ({"levels": [1, 0, 1]}, ""), ({"levels": [1, 0, 2]}, "does not have"),
    ({"groups": []}, "does not have"), ({"offsets": []}, "does not have"),
    ({"widths": [], "squares": 0, "groups": [NONE] * 3}, "does not have"),
    ({"squares": 2}, ""), ({"squares": 3}, "another length"),
])  # fmt: skip
def test_a_question_names_what_it_has(changed: dict[str, Any], said: str) -> None:
    """Packed here: two bounds, five numbers, and the columns."""
    asked = {"groups": [0, 0, 1], "widths": [3, 3], "offsets": [0, 2], "levels": [], "squares": 1}
    asked |= changed
    levels = asked["levels"] or [0] * len(asked["groups"])
    counts = [5, len(asked["widths"]), len(asked["offsets"]), 0, asked["squares"]]
    data = b"labelveil-groups/1\n" + struct.pack("<dd5I", 0.0, 5.0, *counts)
    for column in (asked["offsets"], asked["widths"], asked["groups"]):
        data += np.array(column, dtype="<u4").tobytes()
    data += bytes(levels) if len(asked["offsets"]) > 1 else b""
    if said:
        with pytest.raises(ReleaseError, match=said):
            parsed_question(data, len(asked["groups"]))
    else:
        found = parsed_question(data, len(asked["groups"]))
        assert (found.groups.tolist(), found.levels.tolist()) == (asked["groups"], levels)
        assert found.squared.sum() == asked["squares"]


def test_a_sum_beyond_reach_is_told_from_noise(tmp_path: Path) -> None:
    """Noise of scale s passes t with probability 2 e^(-t/s): of 160 sums that is one in 4e6."""
    answer = sums_of(QUESTION, "0.3")
    folder = write_sums(tmp_path / "s", answer=answer)
    asked = parsed_question((folder / QUESTION_FILE).read_bytes(), QUESTION.groups.size)
    _, high = asked.ranges
    scales = asked.scales(read_evidence(folder).manifest.sums)  # type: ignore[arg-type]
    group = 0
    reach = scales[group] * math.log(4 * 160 / 1e-6)
    for beyond, far in ((math.floor(reach), 0), (math.ceil(reach), 1)):
        moved = answer.copy()
        moved[group] = high[group] + beyond
        check = possible_check(read_evidence(write_sums(tmp_path / "s", answer=moved)))
        assert numbers(check.found)[0] == far
        assert check.verdict is (FAIL if far else PASS)
    assert check.confidence == 1 - 1e-6
    # a third of the groups have events, of which some have one weight only, 0
    assert numbers(check.tried)[:2] == [160, np.count_nonzero(asked.ranges[0] == asked.ranges[1])]
    assert check.power[0].least == pytest.approx(math.log(640 / 1e-6))


@pytest.mark.parametrize(("share", "verdict"), [(1.01, PASS), (0.99, FAIL)])
def test_known_noise_fails_together_as_seldom_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, verdict: Verdict
) -> None:
    """Sums of nobody have noise of four scales here, at which one aspect each is looked at: with
    sums beyond reach, for which there is the other half, they fail once in a million."""
    asked: list[float] = []

    def tails(noise: object, scale: float) -> dict[str, float]:
        asked.append(scale)
        return {"made up": share * 1e-6 / 2 / 4 if len(asked) == 4 else 1.0}

    monkeypatch.setattr("labelveil.audit.certificate.sums._tails", tails)
    assert possible_check(read_evidence(write_sums(tmp_path / "s"))).verdict is verdict
    assert len(set(asked)) == len(asked) == 4


def test_a_question_that_differs_says_in_what(tmp_path: Path) -> None:
    def differs(change: Change) -> str:
        folder = write_sums(tmp_path / "s", change)
        check = question_check(read_evidence(folder))
        assert check.verdict is FAIL
        return check.found

    def put(**values: Any) -> Change:
        return lambda data: data["sums"].update(values)

    right = question_check(read_evidence(write_sums(tmp_path / "s")))
    assert (right.verdict, numbers(right.found)) == (PASS, [599, 600, 160])
    assert differs(put(question="0" * 64)) == "Other SHA-256 are stated."
    assert differs(put(offsets=[0, 7])) == "Other offsets are stated."
    assert differs(put(largest_weight=3)) == "Other weights, largest weight are stated."
    assert differs(put(groups=159)) == "Other groups are stated."
    evidence = read_evidence(write_sums(tmp_path / "s"))
    content = evidence.manifest.content.model_copy(update={"rows": 161})
    manifest = evidence.manifest.model_copy(update={"content": content})
    check = question_check(replace(evidence, manifest=manifest))
    assert (check.verdict, check.found) == (FAIL, "Other groups are stated.")

    def grid(data: dict[str, Any]) -> None:
        data["labels"][0]["grid"][-1] = 10.5

    assert differs(grid) == "Other bounds are stated."


def test_facts_are_those_of_the_manifest(tmp_path: Path) -> None:
    shown = facts(MANIFEST, "abc")
    assert shown == {
        "data set": "clicks",
        "epoch": "2026-11",
        "identity (SHA-256 of the manifest)": "abc",
        "software": MANIFEST.software,
        "events": "300",
        "label": "revenue, 5 grid points from 0 to 4",
        "randomizer": "rr-on-bins, 2 outputs",
        "options": "none",
        "ε for the histogram": "0.125",
        "ε for the labels": "0.875",
        "a missing label counts as": "0.0",
        "ε requested": "1",
        "protects": "one record, at most 1 labels",
    }
    sums = facts(read_evidence(write_sums(tmp_path / "s")).manifest, "")
    assert sums["sums"] == "160 groups, 5 of them of squares; 2 offsets, weights of at most 2"
    assert sums["ε for the sums"] == "0.3"
    assert "randomizer" not in sums
    strata = facts(read_evidence(answered(tmp_path / "a")).manifest, "")
    assert strata["strata"] == "3, each with channels of its own: 0, 1, 2"
    assert strata["ε for the histogram"].startswith("0: what was asked says what is expected")


def test_ranges_of_outputs_are_shares_of_their_weights() -> None:
    drawn = plots(MANIFEST)["output_ranges"]
    rows = [words_of(row) for row in DATA["randomizers"][0]["channel"]["rows"]]
    used = sorted({at for at in DATA["randomizers"][0]["channel"]["row_of"] if at >= 0})
    columns = [*zip(*(rows[at] for at in used), strict=True)]
    assert drawn["least"] == [min(column) / 2**64 for column in columns]
    assert drawn["most"] == [max(column) / 2**64 for column in columns]
    assert drawn["outputs"] == DATA["randomizers"][0]["channel"]["outputs"]
    assert drawn["epsilon"] == pytest.approx(0.875)
    halved = MANIFEST.privacy.model_copy(update={"records_per_unit": 2})
    users = MANIFEST.model_copy(update={"privacy": halved})
    assert plots(users)["output_ranges"]["epsilon"] == pytest.approx(0.875 / 2)


def test_long_values_of_fields_are_cut() -> None:
    long = {
        "a": "x" * 64, "b": "x" * 65, "c": [*range(40)], "d": [[1, 2, 3]] * 30,
        "labels": [{"name": "y"}], "e": 1.5, "f": [], "g": {"h": [1, 2]},
    }  # fmt: skip
    found = {field.name: field for field in fields(long, [], {"g": ["one"]})}
    assert {name: field.value for name, field in found.items()} == {
        "a": "x" * 64, "b": "x" * 63 + "…", "c": "40: 0 … 39", "d": "30 rows of 3",
        "labels.0.name": "y", "e": "1.5", "f": "[]", "g.h": "[1, 2]",
    }  # fmt: skip
    # what a check decides is undecided where it was not made, and what none decides fails
    assert (found["g.h"].verdict, found["g.h"].decided_by) == (UNKNOWN, ("one",))
    assert (found["e"].verdict, found["e"].decided_by) == (FAIL, ())


def test_every_check_asks_claims_and_says_what_would_show_more() -> None:
    """Whether or not it fits a manifest at hand."""
    for probe in (*FORM, *CHECKS, *BEYOND, *FIELDS, *EPOCHS):
        assert probe.question.endswith("?"), probe.name
        assert probe.claim == "" or probe.claim.endswith("."), probe.name
    for probe in BEYOND:
        check = probe.run(MANIFEST)
        assert check.verdict is UNKNOWN, probe.name
        assert check.tried == "Not from a manifest and its rows.", probe.name
        assert check.found.endswith("."), probe.name
        assert probe.claim, probe.name
        assert check.found != probe.claim, probe.name
        words = ("Run", "run", "Plant", "Ask", "Read", "Compare", "compare", "Audit", "chose")
        assert any(word in check.found for word in words), probe.name


def test_what_a_party_refuses_to_say_does_not_hold() -> None:
    """Of rows and numbers a refusal is a failure; of behaviour it decides nothing."""
    assert {probe.refused for probe in CHECKS} == {FAIL}
    assert {probe.refused for probe in (*FORM, *BEYOND, *FIELDS)} == {UNKNOWN}


def test_without_a_question_its_digest_is_named(tmp_path: Path) -> None:
    folder = write_sums(tmp_path / "s")
    digest = hashlib.sha256((folder / QUESTION_FILE).read_bytes()).hexdigest()
    (folder / QUESTION_FILE).unlink()
    evidence = read_evidence(folder)
    asked = question_check(evidence)
    assert asked.tried == "Looked for the question beside the release, and in its store."
    assert f"SHA-256 {digest} beside the manifest as question.bin." in asked.found
    possible = possible_check(evidence)
    assert possible.tried == "Looked for the question."
    assert possible.found == "Without the question nobody knows whose sums these are."


def test_a_manifest_of_sums_and_one_of_codes_are_asked_what_fits_them(tmp_path: Path) -> None:
    """Every check of one is none of the other, but for what both are."""
    write_release(tmp_path / "c", MANIFEST.to_bytes(), KEYS, CODES)
    codes = {check.name: check for check in certify(tmp_path / "c").checks}
    sums = {check.name: check for check in certify(write_sums(tmp_path / "s")).checks}
    assert set(codes) - set(sums) == {
        *("weights", "exact ε of the labels", "prior noise scale", "split of ε", "outputs"),
        *("prior noise on empty cells", "channel is a function of the noisy histogram"),
        *("row order", "the codes were drawn by this channel"),
        "the histogram's noise was drawn as stated",
    }
    assert set(sums) - set(codes) == {
        *("exact ε of the sums", "lattice of the sums", "sums answer the question"),
        *("sums are possible", "the sums' noise was drawn as stated"),
    }
    both = {check.name for check in certificate(read_evidence(tmp_path / "c")).checks}
    assert both == set(codes)
    for check in (*codes.values(), *sums.values()):
        assert check.question.endswith("?"), check.name
        assert check.claim.endswith("."), check.name
        assert check.found.endswith("."), check.name
        assert check.tried.endswith("."), check.name
