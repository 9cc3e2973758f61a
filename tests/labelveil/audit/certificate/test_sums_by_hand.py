"""Every number that a certificate of sums states, worked out here by hand."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.run import (
    certificate,
    certify,
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
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, Lattice
from labelveil.common.release.folder import QUESTION_FILE
from labelveil.common.release.question import encode_question
from labelveil.common.release.table import write_release
from tests.effort import effort
from tests.labelveil.audit.certificate.changed import CODES, KEYS, MANIFEST, Change, changed
from tests.labelveil.audit.certificate.summed import QUESTION, sums_of, write_sums
from tests.labelveil.audit.checks import FAIL, PASS, numbers


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

    def finer(data: dict[str, Any]) -> None:
        ends = data["labels"][0]["grid"]
        data["labels"][0]["grid"] = np.linspace(ends[0], ends[-1], 2 * len(ends) - 1).tolist()

    for change in (grid, finer):
        assert differs(change) == "Other bounds are stated."


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
