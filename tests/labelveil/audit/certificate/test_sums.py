"""The certificate of a release of sums holds for a right one, and names whatever is not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.audit.certificate.epochs import epochs_certificate
from labelveil.audit.certificate.run import certify
from labelveil.audit.verdict import Audit, Verdict
from labelveil.common.arrays import Integers
from labelveil.common.errors import ReleaseError
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice
from labelveil.common.release.folder import CODES_FILE, POPULATION_FILE, QUESTION_FILE
from labelveil.common.release.question import encode_question
from labelveil.common.release.table import write_release
from tests.common.release.releases import make_release
from tests.labelveil.audit.certificate.summed import (
    EVENTS,
    GROUPS,
    KEYS,
    LABELS,
    QUESTION,
    Change,
    sums_of,
    write_sums,
)
from tests.labelveil.audit.conftest import in_key_order, without_power

FORM, SPLIT = "manifest is consistent", "arithmetic of the ε split"
SCALES, LATTICE = "exact ε of the sums", "lattice of the sums"
ASKED, POSSIBLE = "sums answer the question", "sums are possible"


def failed(audit: Audit) -> set[str]:
    return {check.name for check in audit.checks if check.verdict is Verdict.FAIL}


@pytest.mark.parametrize("epsilon", ["0.1", "1", "0.37"])
def test_a_right_release_holds(tmp_path: Path, epsilon: str) -> None:
    audit = certify(write_sums(tmp_path / "release", epsilon=epsilon))
    assert failed(audit) == set()
    passed = {check.name for check in audit.checks if check.verdict is Verdict.PASS}
    assert {SCALES, LATTICE, ASKED, POSSIBLE, SPLIT} < passed
    assert "population digest" in passed
    assert without_power(audit) == []
    exact = next(check for check in audit.checks if check.name == SCALES)
    assert exact.bound == exact.claimed == float(epsilon)
    assert audit.claimed == pytest.approx(float(epsilon))
    unknown = [field.name for field in audit.fields if not field.decided_by]
    assert unknown == []


def test_without_the_question_it_is_not_known_whose_sums_these_are(tmp_path: Path) -> None:
    folder = write_sums(tmp_path / "release")
    (folder / QUESTION_FILE).unlink()
    (folder / POPULATION_FILE).unlink()
    verdicts = {check.name: check.verdict for check in certify(folder).checks}
    for name in (ASKED, POSSIBLE, "population digest"):
        assert verdicts[name] is Verdict.NOT_CHECKABLE
    assert verdicts[SCALES] is Verdict.PASS


def test_a_stores_own_question_is_found(tmp_path: Path) -> None:
    folder = write_sums(tmp_path / "releases" / "clicks" / "1")
    stored = tmp_path / "populations" / "clicks" / "1"
    stored.mkdir(parents=True)
    for name, end in ((QUESTION_FILE, "question"), (POPULATION_FILE, "keys")):
        data = (folder / name).read_bytes()
        (folder / name).rename(stored / f"{hashlib.sha256(data).hexdigest()}.{end}")
    verdicts = {check.name: check.verdict for check in certify(folder).checks}
    assert {verdicts[ASKED], verdicts["population digest"]} == {Verdict.PASS}


def of_width(at: int, **changed: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        data["sums"]["widths"][at] |= changed

    return change


def half_a_scale(data: dict[str, Any]) -> None:
    widths = data["sums"]["widths"]
    widths[0]["scale"] = str(Fraction(widths[0]["scale"]) / 2)


def half_a_scale_and_twice_the_claim(data: dict[str, Any]) -> None:
    half_a_scale(data)
    for stated in (data["sums"]["guarantee"], data["privacy"]["total"]):
        stated["epsilon"] = str(2 * Fraction(stated["epsilon"]))


def digits(data: dict[str, Any]) -> None:
    """More noise than is needed, in digits that have room for a label."""
    widths = data["sums"]["widths"]
    widths[0]["scale"] = str(Fraction(widths[0]["scale"]) + Fraction(12345, 10**9))


def float_epsilon(data: dict[str, Any]) -> None:
    """0.1 as a float is 5.6e-18 more."""
    for stated in (data["sums"]["guarantee"], data["privacy"]["total"]):
        stated["epsilon"] = str(Fraction(0.1))
    for width in data["sums"]["widths"]:
        width["scale"] = str(Fraction(width["scale"]) / 10 / Fraction(0.1))


def weights_forgotten(data: dict[str, Any]) -> None:
    data["sums"]["largest_weight"] = 0


def a_point_off(data: dict[str, Any]) -> None:
    data["labels"][0]["grid"][3] += 0.1


def an_offset_beyond(data: dict[str, Any]) -> None:
    data["sums"]["offsets"][1] = 21


def two_records(data: dict[str, Any]) -> None:
    """A user has two events, and pays for one."""
    data["privacy"]["records_per_unit"] = 2


def other_counts(data: dict[str, Any]) -> None:
    first, second, *_ = data["sums"]["widths"]
    first["groups"], second["groups"] = first["groups"] - 1, second["groups"] + 1


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (half_a_scale, {FORM, SCALES}),
        (half_a_scale_and_twice_the_claim, {FORM, SCALES, SPLIT}),
        (of_width(0, scale="0"), {FORM, SCALES}),
        (digits, {FORM, SCALES}),
        (float_epsilon, {FORM, SCALES, SPLIT}),
        (weights_forgotten, {FORM, SCALES, ASKED}),
        (two_records, {FORM, SCALES}),
        (a_point_off, {FORM, LATTICE}),
        (an_offset_beyond, {FORM, LATTICE, ASKED}),
        (of_width(1, half_width=21), {FORM, LATTICE, ASKED}),
        (other_counts, {ASKED}),
    ],
)
def test_what_is_stated_wrongly_is_named(tmp_path: Path, change: Change, names: set[str]) -> None:
    """By a check of its own, besides the strict reader where that refuses it."""
    found = failed(certify(write_sums(tmp_path / "release", change, epsilon="0.1")))
    assert names - {FORM} <= found


def other_groups() -> bytes:
    """Two events change their groups: widths and counts are the same."""
    groups = QUESTION.groups.copy()
    groups[[0, 1]] = groups[[1, 0]]
    return encode_question(replace(QUESTION, groups=groups))


@pytest.mark.parametrize(
    "question",
    [
        other_groups(),
        *(encode_question(QUESTION)[:n] for n in (-1, 54)),
        encode_question(QUESTION) + b"\0",
        b"",
        b"?",
    ],
    ids=["other groups", "shorter", "no header", "longer", "empty", "none"],
)
def test_another_question_is_named(tmp_path: Path, question: bytes) -> None:
    folder = write_sums(tmp_path / "release")
    (folder / QUESTION_FILE).write_bytes(question)
    assert ASKED in failed(certify(folder))


def test_an_event_is_there_once(tmp_path: Path) -> None:
    """A repeated key is an event in two groups, whose label is paid for once."""
    keys = KEYS.copy()
    keys[1] = keys[0]
    assert failed(certify(write_sums(tmp_path / "release", keys=keys.tobytes()))) == {
        "population digest"
    }


def test_other_rows_are_named(tmp_path: Path) -> None:
    folder = write_sums(tmp_path / "release")
    data = bytearray((folder / CODES_FILE).read_bytes())
    data[0] ^= 1
    (folder / CODES_FILE).write_bytes(data)
    assert failed(certify(folder)) == {"content digest"}
    (folder / CODES_FILE).write_bytes(data[:-8])
    assert failed(certify(folder)) == {"content digest", POSSIBLE}
    (folder / CODES_FILE).write_bytes(data[:-1])
    with pytest.raises(ReleaseError, match="bytes of keys"):
        certify(folder)


def exact(noisy: Integers) -> Integers:
    return QUESTION.sums(LABELS)


def even(noisy: Integers) -> Integers:
    return QUESTION.sums(LABELS) + 2 * ((noisy - QUESTION.sums(LABELS)) // 2)


def empty_ones_exact(noisy: Integers) -> Integers:
    return np.where(QUESTION.sizes > 0, noisy, 0)


def out_of_reach(noisy: Integers) -> Integers:
    return noisy + np.where(np.arange(GROUPS) == 5, 1 << 20, 0)


def overflowing(noisy: Integers) -> Integers:
    return np.where(np.arange(GROUPS) == 5, np.iinfo(np.int64).min, noisy)


@pytest.mark.statistical
@pytest.mark.parametrize("twin", [exact, even, empty_ones_exact, out_of_reach, overflowing])
def test_sums_that_cannot_be_are_named(
    tmp_path: Path, twin: Callable[[Integers], Integers]
) -> None:
    """Of empty groups the noise is known: these have none, or too little, or are no sums."""
    answer = twin(sums_of(QUESTION, "0.3"))
    assert failed(certify(write_sums(tmp_path / "release", answer=answer))) == {POSSIBLE}


def test_an_event_that_is_sent_as_a_code_and_in_a_sum_pays_twice(tmp_path: Path) -> None:
    manifest, keys, codes = in_key_order(*make_release(EVENTS))
    folders = [tmp_path / "1", tmp_path / "2"]
    write_release(folders[0], manifest.to_bytes(), keys, codes)
    write_sums(folders[1], lambda data: data.update(epoch="2"), keys=keys)
    audit = epochs_certificate(folders)
    check = next(check for check in audit.checks if check.name == "events in several epochs")
    assert check.verdict is Verdict.NOT_CHECKABLE
    assert check.bound == pytest.approx(1.3)
    assert "600 events are in more than one" in check.found
    # of what both epochs pass, it says how the first did
    passed = [{c.name: c for c in certify(f).checks if c.verdict is Verdict.PASS} for f in folders]
    both = {c.name: c.found for c in audit.checks if all(c.name in each for each in passed)}
    assert both
    for name in both.keys() - {"priors in force"}:
        assert both[name] == f"In all 2 epochs. {manifest.epoch}: {passed[0][name].found}"
    write_sums(folders[1], lambda data: data.update(epoch="2"))
    audit = epochs_certificate(folders)
    check = next(check for check in audit.checks if check.name == "events in several epochs")
    assert (check.verdict, check.bound) == (Verdict.PASS, pytest.approx(1.0))


def test_squares_move_by_their_square(tmp_path: Path) -> None:
    question = GroupQuestion(
        Lattice(0.0, 10.0, 20), np.arange(EVENTS) % GROUPS, np.full(GROUPS, 7), squares=GROUPS
    )
    folder = write_sums(tmp_path / "release", question=question)
    assert failed(certify(folder)) == set()

    def like_sums(data: dict[str, Any]) -> None:
        data["sums"]["widths"][0]["scale"] = "140/3"

    assert SCALES in failed(certify(write_sums(tmp_path / "other", like_sums, question=question)))


def test_noise_of_any_width_is_looked_at(tmp_path: Path) -> None:
    """A gain is asked for with weights of a million, whose noise is as wide."""
    weights = np.where(np.arange(EVENTS) % 2 == 0, 1 << 20, -(1 << 20))
    question = replace(QUESTION, weights=weights)
    assert failed(certify(write_sums(tmp_path / "right", question=question))) == set()
    none = question.sums(LABELS)
    found = failed(certify(write_sums(tmp_path / "none", question=question, answer=none)))
    assert found == {POSSIBLE}


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0xFF])
def test_a_question_of_any_bytes_is_a_verdict(tmp_path: Path, value: int) -> None:
    folder = write_sums(tmp_path / "release")
    right = (folder / QUESTION_FILE).read_bytes()
    for at in range(0, 80, 3):
        asked = bytearray(right)
        asked[at] = value
        (folder / QUESTION_FILE).write_bytes(asked)
        assert (ASKED in failed(certify(folder))) is (bytes(asked) != right)


def test_codes_of_eight_bytes_are_refused(tmp_path: Path) -> None:
    manifest, keys, codes = make_release(EVENTS)
    content = manifest.content.model_copy(update={"code_bytes": 8})
    wide = manifest.model_copy(update={"content": content})
    write_release(tmp_path / "release", wide.to_bytes(), keys, 8 * codes)
    with pytest.raises(ReleaseError, match="rows of 8 bytes"):
        certify(tmp_path / "release")
