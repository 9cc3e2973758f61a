"""Every number that a certificate states, worked out here from a manifest's JSON or by hand."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from labelveil.audit.attacks.exact_channel import WORDS
from labelveil.audit.certificate.epochs import EPOCHS
from labelveil.audit.certificate.evidence import Evidence, facts, plots, read_evidence
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
from labelveil.audit.certificate.row_checks import (
    content_check,
    order_check,
    outputs_check,
    population_check,
)
from labelveil.audit.certificate.run import CHECKS, FIELDS, FORM, NOT_CHECKABLE, fields
from labelveil.audit.verdict import Check, Verdict
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.release.folder import POPULATION_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import write_release
from labelveil.common.version import software
from tests.common.release.releases import make_release, text_of, words_of
from tests.labelveil.audit.certificate.answers import answered
from tests.labelveil.audit.certificate.changed import CODES, DATA, KEYS, MANIFEST, Change, changed
from tests.labelveil.audit.certificate.summed import write_sums
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN, numbers
from tests.labelveil.audit.conftest import evidence_of


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
    for probe in (*FORM, *CHECKS, *NOT_CHECKABLE, *FIELDS, *EPOCHS):
        assert probe.question.endswith("?"), probe.name
        assert probe.claim == "" or probe.claim.endswith("."), probe.name
    for probe in NOT_CHECKABLE:
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
    assert {probe.refused for probe in (*FORM, *NOT_CHECKABLE, *FIELDS)} == {UNKNOWN}
