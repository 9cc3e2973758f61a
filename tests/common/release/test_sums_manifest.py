"""What a manifest of sums claims follows from its integers, or it is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.formats import GROUPS, RELEASE
from labelveil.common.guarantees import PureDP, Unit
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, NoisySums
from labelveil.common.release.folder import QUESTION_FILE
from labelveil.common.release.limits import MANIFEST_BYTES, VALUES
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.question import encode_question
from labelveil.common.release.sections import SumsSection, WidthSection
from labelveil.common.release.sums import read_sums
from tests.formats.make import kept, unpack
from tests.labelveil.audit.certificate.summed import QUESTION, write_sums

Change = Callable[[Any], None]


def at(*path: Any, value: Any) -> Change:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


def all_of(*changes: Change) -> Change:
    def change(document: Any) -> None:
        for each in changes:
            each(document)

    return change


def epsilon(value: str) -> Change:
    """Claim another ε everywhere."""
    return all_of(
        at("sums", "guarantee", "epsilon", value=value),
        at("privacy", "total", "epsilon", value=value),
        at("privacy", "requested_epsilon", value=float(Fraction(value))),
    )


def width(place: int, **members: Any) -> Change:
    return lambda document: document["sums"]["widths"][place].update(members)


# widths of the sample: 4 and 20 steps, and squares of 1; all of 20 steps, weights up to 2, ε = 1
FORGED: dict[str, Change] = {
    "half the noise": width(0, scale="8"),
    "less noise on one": width(1, scale="39"),
    "hardly any noise on squares": width(2, scale="1/1000000"),
    "no noise": width(0, scale="0"),
    "more noise on all": all_of(
        width(0, scale="32"),
        width(1, scale="80"),
        width(2, scale="4"),
    ),
    "a smaller epsilon": epsilon("1/2"),
    "a smaller epsilon of the sums alone": at("sums", "guarantee", "epsilon", value="1/2"),
    "a smaller one in all": at("privacy", "total", "epsilon", value="1/2"),
    "more than was asked for": at("privacy", "requested_epsilon", value=0.9),
    "a wider width": width(0, half_width=5),
    "a width beyond the grid": width(1, half_width=21),
    "squares that are none": width(2, squares=False),
    "sums that are squares": width(0, squares=True),
    "a larger weight": at("sums", "largest_weight", value=3),
    "a group too many": width(0, groups=2),
    "widths in another order": lambda document: document["sums"]["widths"].reverse(),
    "a width twice": lambda document: document["sums"]["widths"].append(
        document["sums"]["widths"][-1]
    ),
    "no widths": at("sums", "widths", value=[]),
    "an offset beyond the grid": at("sums", "offsets", value=[0, 21]),
    "no offsets": at("sums", "offsets", value=[]),
    "another digest": at("sums", "question", value="no digest"),
    "other noise": at("sums", "noise", value="gaussian"),
    "an uneven grid": at("labels", 0, "grid", 3, value=1.6),
    "a grid that is off by a bit": at("labels", 0, "grid", 3, value=float(np.nextafter(1.5, 2))),
    "a grid of one point": at("labels", 0, "grid", value=[0.0]),
    "no grid": at("labels", 0, "grid", value=[]),
    "two labels": lambda document: document["labels"].append(
        document["labels"][0] | {"name": "other"}
    ),
    "strata": at("strata", value=[{"name": "0", "rows": 40, "law": [1] * 21}]),
    "an earlier format": at("format", value="labelveil-release/2"),
    "fewer sums": at("content", "rows", value=2),
    "more sums than groups": at("content", "rows", value=4),
    "no number of sums": lambda document: document["content"].pop("rows"),
    "no sums": lambda document: document.pop("sums"),
    "sums of two bytes": at("content", "code_bytes", value=2),
    "keys": at("content", "key_bytes", value=16),
    "a population of somebody else": at("population", "keys", value="aes-256-cmac-128"),
    "a smaller population": at("population", "rows", value=2),
    "a digest of other sums": at("content", "blocks", value=["0" * 64]),
    "something more": at("sums", "more", value=1),
    "nothing said": at("sums", value=None),
    "rows that are not said": at("content", "rows", value=None),
    "users": at("privacy", "records_per_unit", value=2),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpack(kept(GROUPS), tmp_path / "release")


def written(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_claim_that_does_not_hold_is_refused(folder: Path, change: Change) -> None:
    data = (folder / "manifest.json").read_bytes()
    document = json.loads(data)
    assert written(document) == data
    assert Manifest.from_bytes(data).total_guarantee == PureDP.of(1)
    change(document)
    with pytest.raises(ReleaseError) as error:
        Manifest.from_bytes(written(document))
    assert "\n" not in str(error.value)


def test_each_event_may_be_a_group_of_its_own(folder: Path) -> None:
    document = json.loads((folder / "manifest.json").read_bytes())
    document["population"]["rows"] = document["sums"]["groups"]
    assert Manifest.from_bytes(written(document)).rows == 3


def test_codes_have_no_rows_of_their_own(tmp_path: Path) -> None:
    folder = unpack(kept(RELEASE), tmp_path / "codes")
    document = json.loads((folder / "manifest.json").read_bytes())
    Manifest.from_bytes(written(document))
    for change in (
        at("content", "rows", value=40),
        at("content", "code_bytes", value=8),
        at("sums", value=None),
    ):
        changed = copy.deepcopy(document)
        change(changed)
        with pytest.raises(ReleaseError):
            Manifest.from_bytes(written(changed))


@pytest.mark.parametrize("member", ["secret_check", "optional"])
def test_a_first_format_says_nothing_of_later_ones(tmp_path: Path, member: str) -> None:
    folder = unpack(kept(RELEASE, 1), tmp_path / "codes")
    document = json.loads((folder / "manifest.json").read_bytes())
    Manifest.from_bytes(written(document))
    if member == "optional":
        document["optional"] = {"more": 1}
    else:
        document["population"]["secret_check"] = "ab" * 16
    with pytest.raises(ReleaseError, match="format 1 says neither secret_check nor"):
        Manifest.from_bytes(written(document))


def test_a_manifest_states_what_its_question_asks(folder: Path) -> None:
    """True to itself, of another question: whoever reads it compares the two."""
    assert read_sums(folder).sums.size == 3
    data = (folder / "manifest.json").read_bytes()
    other = {
        "another offset": at("sums", "offsets", value=[0, 7]),
        "more noise on some": width(0, scale="20"),
        "widths of other groups": all_of(width(0, half_width=3, scale="12")),
    }
    for change in other.values():
        document = json.loads(data)
        change(document)
        assert Manifest.from_bytes(written(document)).total_guarantee == PureDP.of(1)
        (folder / "manifest.json").write_bytes(written(document))
        with pytest.raises(ReleaseError, match=r"than\s+the question that it says it answers"):
            read_sums(folder)
    (folder / "manifest.json").write_bytes(data)
    question = (folder / QUESTION_FILE).read_bytes()
    (folder / QUESTION_FILE).write_bytes(question[:-4] + bytes(4))
    with pytest.raises(ReleaseError, match="but the labels party answered"):
        read_sums(folder)
    with (folder / "codes.bin").open("r+b") as sums:
        sums.truncate(16)
    (folder / "manifest.json").write_bytes(data)
    (folder / QUESTION_FILE).write_bytes(question)
    with pytest.raises(ReleaseError, match="has 2 sums instead of 3"):
        read_sums(folder)
    # of weights 1 and -1 sums move as far as without any
    signs = replace(QUESTION, weights=np.sign(QUESTION.weights))
    for largest in (1, 0):
        folder = write_sums(
            folder.parent / str(largest),
            at("sums", "largest_weight", value=largest),
            question=signs,
        )
        with nullcontext() if largest else pytest.raises(ReleaseError, match="states other"):
            read_sums(folder)


def test_noise_on_the_sums_of_users_is_that_of_one_of_their_records(tmp_path: Path) -> None:
    spent = PureDP.of(Fraction(9, 10), unit=Unit.USER)

    def of_three(document: dict[str, Any]) -> None:
        document["sums"]["guarantee"] = document["privacy"]["total"] = spent.to_json()
        document["privacy"] |= {"records_per_unit": 3, "requested_epsilon": 0.9}

    folder = write_sums(tmp_path / "users", of_three, epsilon="0.3")
    assert read_sums(folder).noisy.epsilon == Fraction(3, 10)


def test_the_largest_question_has_a_manifest_that_is_read() -> None:
    """Every width that there is, of sums and of squares, at an ε whose scales are rounded up."""
    steps, rows = 8191, 4 * 8191
    every = np.concatenate([np.arange(1, steps + 1)] * 2)
    asked = GroupQuestion(
        Lattice(0.1, 1e6 + 0.3, steps), np.arange(rows) % every.size, every,
        np.arange(256), levels=np.arange(rows) % 256, weights=np.full(rows, 251), squares=steps,
    )  # fmt: skip
    noisy = NoisySums(asked, Fraction(repr(3.1415926535)))
    assert noisy.guarantee.exact_epsilon <= Fraction(repr(3.1415926535))
    section = SumsSection(
        question="0" * 64,
        groups=every.size,
        offsets=asked.offsets.tolist(),
        largest_weight=asked.largest_weight,
        noise="discrete-laplace",
        widths=[
            WidthSection(half_width=width, squares=squares, groups=groups, scale=str(scale))
            for (width, squares, groups), scale in noisy.widths
        ],
        guarantee=noisy.guarantee.to_json(),
    )
    size = len(section.model_dump_json()) + 26 * (steps + 1)
    assert size < MANIFEST_BYTES - (2 << 20)  # block digests, and what is said besides
    assert 5 * len(section.widths) < VALUES
    assert len(encode_question(asked)) < 13 * rows + 1_124


def test_as_many_widths_as_there_are_cost_one_look_at_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partner's question of 16,382 widths and 10⁷ weights would take hours else."""
    looks, real = [], GroupQuestion.largest_weight.fget  # type: ignore[attr-defined]
    every = np.concatenate([np.arange(1, 8192)] * 2)
    asked = GroupQuestion(
        Lattice(0.0, 1.0, 8191), np.arange(every.size), every,
        weights=np.full(every.size, -3), squares=8191,
    )  # fmt: skip
    monkeypatch.setattr(
        GroupQuestion, "largest_weight", property(lambda self: looks.append(1) or real(self))
    )
    noisy = NoisySums(asked, Fraction(1, 3))
    assert len(noisy.widths) == 16_382
    assert noisy.guarantee == PureDP.of(Fraction(1, 3))
    assert len(looks) <= 3
