"""A manifest has no place for anything but itself, and no release, however made, is a bomb."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.run import certificate
from labelveil.common.errors import ConfigError, PrivacyError, ReleaseError
from labelveil.common.guarantees import guarantee_from_json
from labelveil.common.randomizers import build_randomizer, randomizer_names
from labelveil.common.release.facts import check_details, check_digits, check_options
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.peers import is_bounded
from labelveil.common.release.rows import keys_bytes
from labelveil.common.release.sections import (
    ContentSection,
    InForceSection,
    LabelSection,
    ManifestSection,
    PopulationSection,
    PriorSection,
    StatedPrivacy,
    StatedRandomizer,
    StratumSection,
    SumsSection,
    TrialSection,
    WidthSection,
)
from labelveil.common.release.strict_json import parse_json
from labelveil.common.release.table import write_release
from labelveil.common.wire import label_release_pb2 as wire
from tests.common.release.releases import make_release, text_of, words_of
from tests.labelveil.audit.certificate.answers import answered
from tests.labelveil.audit.conftest import in_key_order

LABELS = [float(i % 5) for i in range(2000)]
MADE = in_key_order(*make_release(300, randomizer="randomized-thresholds"))
BOMB = "1e400000000"


def written(folder: Path, data: dict[str, Any]) -> Path:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    write_release(folder, text.encode(), *MADE[1:])
    return folder


def passes(folder: Path) -> bool:
    """Whether the certificate is good in every point that it can decide."""
    try:
        return certificate(read_evidence(folder)).passed
    except ReleaseError:
        return False


def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(MADE[0].to_bytes())
    return found


def test_the_release_itself_passes(tmp_path: Path) -> None:
    assert passes(written(tmp_path, data()))


IN_FORCE = {"epoch": "1", "manifest": "0" * 64, "rows": 300}
FREE = {
    "noise": "public",
    "scale": "0",
    "guarantee": MADE[0].priors[0].guarantee | {"epsilon": "0"},
}


def with_prior(**said: Any) -> dict[str, Any]:
    """The release with other words of its prior, which costs what is said of it."""
    found = data()
    found["priors"][0] |= said
    if found["priors"][0]["noise"] == "public":
        found["privacy"]["total"] = found["randomizers"][0]["guarantee"]
    return found


@pytest.mark.parametrize(
    ("prior", "drift", "said"),
    [
        (FREE, None, None),
        (FREE, {"in_force": IN_FORCE}, "a public prior goes without a test for drift"),
        (FREE | {"scale": "16"}, None, "a public prior spends 0, not "),
        (FREE | {"noisy_counts": [0] * 5}, None, "must have weights >= 0, not all of them 0"),
        (FREE | {"noisy_counts": [-1, 9, 9, 9, 9]}, None, "must have weights >= 0, not all"),
        (FREE | {"noisy_counts": [2**41, 0, 0, 0, 0]}, None, None),
        (FREE | {"noisy_counts": [2**41, 1, 0, 0, 0]}, None, "must have weights >= 0, not all"),
        (FREE | {"start": [1] * 5}, None, "must have a weight for each cell that is counted"),
        ({"start": [0, 1, 1, 1, 1]}, None, None),
        ({"start": [1] * 4}, None, "must have a weight for each cell that is counted"),
        ({"start": [0] * 5}, None, "must have weights that are not all 0"),
        ({"scale": "8"}, None, "prior noise of scale 8 does not give .*must be 2"),
        ({}, {"in_force": IN_FORCE, "drifted": True}, "new after a test that was not made"),
        ({"start": [1] * 5}, {"in_force": IN_FORCE}, "must have a weight for each cell"),
    ],
)
def test_what_is_said_of_a_prior_fits(
    prior: dict[str, Any], drift: dict[str, Any] | None, said: str | None
) -> None:
    manifest = Manifest.parse(json.dumps(with_prior(**prior) | {"drift": drift}).encode())
    with nullcontext() if said is None else pytest.raises(ReleaseError, match=said):
        manifest.check()


def strata(place: int, **said: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["strata"][place].update(said)


def beside(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update({name: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (strata(1, name="0"), "two strata have one name"),
        (strata(1, rows=101), "the strata must have all rows"),
        (strata(2, law=[0] * 11), "a weight for each point, and not all 0"),
        (strata(2, law=[1] * 10), "a weight for each point, and not all 0"),
        (strata(2, name="3"), "must be about one label, which no prior counts"),
        (beside("drift", {"in_force": IN_FORCE}), "and no test for drift"),
        (beside("priors", [MADE[0].priors[0].model_dump() | FREE]), "which no prior counts"),
        (lambda data: data["randomizers"].pop(), "must be in exactly one prior and one randomizer"),
        (
            lambda data: data.update(tables=[MADE[0].priors[0].model_dump()]),
            "must be in exactly one prior",
        ),
    ],
)
def test_what_is_said_of_strata_fits(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        answered(tmp_path, change)


NUMBERS: list[tuple[type[ManifestSection], str, int, int]] = [
    # what a member may be at least and at most, as the contract has it: 2**37 events, 2**40 of a
    # weight, grids of 8,192 points, groups numbered in four bytes but one
    (StratumSection, "rows", 0, 2**37),
    (PopulationSection, "rows", 1, 2**37),
    (InForceSection, "rows", 1, 2**37),
    (ContentSection, "rows", 1, 2**37),
    (ContentSection, "block_rows", 1, 2**37),
    (StatedPrivacy, "records_per_unit", 1, 2**37),
    (WidthSection, "half_width", 1, 8191),
    (WidthSection, "groups", 1, 2**32 - 2),
    (SumsSection, "groups", 1, 2**32 - 2),
    (SumsSection, "largest_weight", 0, 2**20),
    (TrialSection, "threshold", 0, 2**62),
]
LISTS: list[tuple[type[ManifestSection], str, Any, int, int]] = [
    (StratumSection, "name", "x", 0, 256),
    (LabelSection, "name", "x", 0, 256),
    (PriorSection, "labels", ["x"], 1, 8),
    (StatedRandomizer, "labels", ["x"], 1, 8),
    (SumsSection, "offsets", [8191], 1, 256),
    (Manifest, "strata", [{"name": "", "rows": 0, "law": [0, 2**40]}], 0, 32),
]


def refused(section: type[ManifestSection], name: str, value: Any) -> bool:
    """Whether this member alone is refused, whatever else is missing."""
    with pytest.raises(ValidationError) as said:
        section.model_validate({name: value}, strict=True)
    return any(error["loc"][:1] == (name,) for error in said.value.errors())


@pytest.mark.parametrize(("section", "name", "least", "most"), NUMBERS)
def test_a_number_of_a_manifest_has_its_bounds(
    section: type[ManifestSection], name: str, least: int, most: int
) -> None:
    assert [refused(section, name, n) for n in (least - 1, least, most, most + 1)] == [
        True, False, False, True,
    ]  # fmt: skip
    assert refused(section, name, float(least))
    assert refused(section, name, True)


@pytest.mark.parametrize(("section", "name", "one", "least", "most"), LISTS)
def test_a_list_of_a_manifest_is_no_longer_than_it_may_be(
    section: type[ManifestSection], name: str, one: Any, least: int, most: int
) -> None:
    assert [refused(section, name, one * n) for n in (least, most, most + 1)] == [
        False, False, True,
    ]  # fmt: skip
    assert not least or refused(section, name, [])


@pytest.mark.parametrize(
    ("section", "member"),
    [
        (PriorSection, {"noisy_counts": [2**62 + 1]}),
        (PriorSection, {"noisy_counts": [-(2**62) - 1]}),
        (PriorSection, {"start": [2**40 + 1]}),
        (PriorSection, {"start": [-1]}),
        (StratumSection, {"law": [2**40 + 1]}),
        (StratumSection, {"law": [-1]}),
        (SumsSection, {"offsets": [8192]}),
        (SumsSection, {"offsets": [-1]}),
        (LabelSection, {"weight": 0.0}),
        (StatedPrivacy, {"requested_epsilon": 0.0}),
        (PriorSection, {"scale": "2/4"}),
        (PriorSection, {"scale": "01"}),
        (ContentSection, {"digest": "AB" * 32}),
        (ContentSection, {"digest": "ab" * 31}),
        (ContentSection, {"digest": "ab" * 33}),
        (PopulationSection, {"secret_check": "ab" * 15}),
        (PopulationSection, {"secret_check": "ab" * 17}),
    ],
)
def test_an_item_beyond_its_bounds_is_refused(
    section: type[ManifestSection], member: dict[str, Any]
) -> None:
    ((name, value),) = member.items()
    assert refused(section, name, value)


def test_rows_of_different_lengths_fail_in_one_line(tmp_path: Path) -> None:
    manifest = data()
    rows = manifest["randomizers"][0]["channel"]["rows"]
    rows[0] = text_of(words_of(rows[0])[:-1])
    assert not passes(written(tmp_path, manifest))


def hide(*path: Any, value: Any = LABELS) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


def unused_row(manifest: dict[str, Any]) -> None:
    """Weights of no label: nothing but their sum is checked by an eye on labels."""
    channel = manifest["randomizers"][0]["channel"]
    row = words_of(channel["rows"][0])
    row[0] -= 1234
    row[1] += 1234
    channel["rows"].append(text_of(row))


def swapped_twins(manifest: dict[str, Any]) -> None:
    """Which of two equal rows a label names says a bit."""
    channel = manifest["randomizers"][0]["channel"]
    channel["rows"].append(channel["rows"][0])
    channel["row_of"] = [len(channel["rows"]) - 1, *channel["row_of"][1:]]


def padded_weight(manifest: dict[str, Any]) -> None:
    rows = manifest["randomizers"][0]["channel"]["rows"]
    rows[0] += "===="


def other_terms(manifest: dict[str, Any]) -> None:
    manifest["priors"][0]["scale"] = f"{int(manifest['priors'][0]['scale']) * 10**30}/{10**30}"


@pytest.mark.parametrize(
    "change",
    [
        hide("randomizers", 0, "details", "labels"),
        hide("randomizers", 0, "details", "thresholds"),
        hide("randomizers", 0, "details", "partitions", value=[[int(v) for v in LABELS]]),
        hide("randomizers", 0, "details", "threshold_weights", value=[0.1, 0.2, 0.3, 0.4000001]),
        hide("randomizers", 0, "details", "weights", value="0,1,2,3,4"),
        hide("randomizers", 0, "details", "options", value=LABELS),
        hide("randomizers", 0, "details", "options", value={"labels": LABELS}),
        hide("randomizers", 0, "details", "options", value={"bins": 2, "weights": "0123401234"}),
        hide(
            "randomizers", 0, "details", "options", value={"weights": [0.123456789, 1.0, 1.0, 1.0]}
        ),
        hide("randomizers", 0, "channel", "labels"),
        hide("randomizers", 0, "guarantee", "labels"),
        hide("randomizers", 0, "labels"),
        hide("randomizers", 0, "name", value="0123401234"),
        hide("labels", 0, "loss", value="0123401234"),
        hide("created", value="2026-11-20"),
        hide("priors", 0, "guarantee", "labels"),
        hide("privacy", "total", "labels"),
        hide("labels", 0, "labels"),
        hide("labels", 0, "name", value="01234" * 400),
        hide("software", value="labelveil/1 " + "01234" * 400),
        hide("epoch", value="01234" * 400),
        hide("labels_of_events"),
        unused_row,
        swapped_twins,
        padded_weight,
        other_terms,
    ],
)
@pytest.mark.parametrize("version", ["this", "labelveil/0.0.1"])
def test_labels_have_no_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], version: str
) -> None:
    """Whichever version the manifest says that it is of."""
    manifest = data()
    if version != "this":
        manifest["software"] = version
    change(manifest)
    if version == "this" or not _only_numbers(manifest):
        assert not passes(written(tmp_path, manifest))


def _only_numbers(manifest: dict[str, Any]) -> bool:
    """A number that only the other version could rebuild: the certificate says so."""
    details, own = manifest["randomizers"][0]["details"], MADE[0].randomizer.details
    return details.keys() == own.keys() and all(
        not isinstance(own[name], list) or len(own[name]) == len(details[name]) for name in own
    )


def test_the_way_of_writing_says_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path, data())
    text = (folder / MANIFEST_FILE).read_text()
    for other in (
        text + " ",
        text.replace('"epoch"', '"\\u0065poch"'),
        json.dumps(dict(reversed(data().items())), separators=(",", ":")),
        text.replace(":1.0,", ":1.00,", 1),
    ):
        assert other != text
        (folder / MANIFEST_FILE).write_text(other)
        assert not passes(folder)
        with pytest.raises(ReleaseError):
            Manifest.from_bytes(other.encode())


def test_every_randomizer_says_what_it_registered() -> None:
    for name in randomizer_names():
        built = build_randomizer(name, labels=np.arange(9.0), prior=np.ones(9), epsilon=1.0)
        check_details(built.name, json.loads(json.dumps(dict(built.details))))
        with pytest.raises(ConfigError, match="labels"):
            check_details(built.name, {**built.details, "labels": LABELS})
        check_options(name, {})
        with pytest.raises(ConfigError, match="labels"):
            check_options(name, {"labels": 1})


def test_an_option_has_six_digits() -> None:
    check_digits({"explained": 0.123456, "points": 32, "weights": [1e-9, 123456e10], "clip": True})
    for value in (0.1234567, 1 / 3, 1234567, 10**30, -0.1234567):
        with pytest.raises(ConfigError, match="6 significant digits"):
            check_digits({"explained": value})
        with pytest.raises(ConfigError, match="6 significant digits"):
            check_digits({"weights": [1.0, value]})
    with pytest.raises(ConfigError, match="at most"):
        check_options("laplace", {"tails": 10**12})
    thresholds = "randomized-thresholds"
    check_options(thresholds, {"weights": [1.0] * (1 << 19)})
    for kind, items in (("weights", [1.0]), ("partitions", [[]])):  # an empty list is something
        with pytest.raises(ConfigError, match="have 524,289 items, more than 524,288"):
            check_details(thresholds, {kind: items * ((1 << 19) + 1)})
    check_details("unbiased", {"outputs": 1 << 16})  # as many as two bytes tell apart
    with pytest.raises(ConfigError, match="outputs=65537 must be at most 65,536"):
        check_details("unbiased", {"outputs": (1 << 16) + 1})


@pytest.mark.parametrize(
    "claim",
    [
        {"kind": "pure", "epsilon": BOMB},
        {"kind": "approximate", "epsilon": BOMB, "delta": "0"},
        {"kind": "approximate", "epsilon": "1", "delta": f"1/{BOMB}"},
        {"kind": "zcdp", "rho": BOMB, "delta": "0"},
        {"kind": "renyi", "orders": [BOMB], "values": ["1"], "delta": "0"},
        {"kind": "renyi", "orders": ["2"], "values": [BOMB], "delta": "0"},
        {"kind": "bounded-range", "parts": [[BOMB, 1]]},
    ],
)
def test_a_number_is_no_bomb(tmp_path: Path, claim: dict[str, Any]) -> None:
    sides = {"adjacency": "replace-label", "unit": "record"}
    with pytest.raises(PrivacyError, match="must be an integer or a fraction"):
        guarantee_from_json(claim | sides)
    for *within, last in (
        ("priors", 0, "guarantee"),
        ("randomizers", 0, "guarantee"),
        ("privacy", "total"),
    ):
        manifest = data()
        reduce(lambda part, key: part[key], within, manifest)[last] = claim | sides
        assert not passes(written(tmp_path, manifest))


def test_a_block_is_no_bomb() -> None:
    manifest = data()
    for rows in (1 << 35, (1 << 16) + 1):
        manifest["content"]["block_rows"] = rows
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(ReleaseError, match=f"blocks of {rows:,} rows, more than 65,536"):
            Manifest.from_bytes(text)


def test_what_no_reader_of_json_reads_is_not_written() -> None:
    manifest = Manifest.model_validate(data())
    privacy = manifest.privacy.model_copy(update={"requested_epsilon": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifest.model_copy(update={"privacy": privacy}).to_bytes()


def test_a_claim_of_a_hundred_digits_is_judged_at_once(tmp_path: Path) -> None:
    """It was summed up, term by term."""
    manifest = data()
    manifest["randomizers"][0]["guarantee"]["epsilon"] = "9" * 150
    assert not passes(written(tmp_path, manifest))


def test_what_is_said_of_software_is_as_short_as_the_contract_has_it() -> None:
    def said(version: int, *formats: int) -> wire.Software:
        return wire.Software(version="v" * version, formats=["f" * size for size in formats])

    assert is_bounded(said(64, *[64] * 64))
    for long in (said(65), said(1, 65), said(1, *[1] * 63, 65), said(1, *[1] * 65)):
        assert not is_bounded(long)


def test_a_document_has_so_many_keys_and_values_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelveil.common.release.strict_json.VALUES", 70)
    for most, members in ((64, "keys, more than 64"), (70, "values are more than 70")):
        for size in (most, most + 1):
            keys = json.dumps({str(n): n for n in range(size)})
            data = keys if most == 64 else json.dumps([*range(size)])
            with nullcontext() if size == most else pytest.raises(ReleaseError, match=members):
                assert len(parse_json(data.encode())) == size


def test_json_that_two_readers_may_read_in_two_ways_is_refused() -> None:
    assert parse_json(b'{"a":{"b":1},"c":[{"b":2}]}') == {"a": {"b": 1}, "c": [{"b": 2}]}
    deep = b"[" * 16 + b"]" * 16
    assert parse_json(deep)
    for data in (b'{"a":1,"a":2}', b'[{"b":{"a":1,"a":1}}]', b"[" + deep + b"]"):
        with pytest.raises(ReleaseError, match="is not valid JSON"):
            parse_json(data)


def test_a_number_that_is_chosen_is_short_whatever_its_size() -> None:
    check_digits({"x": 123456e9, "y": 1e15, "z": [0.125, 7]})
    for value in (1e16, -1e300, [1, 1e16], 1.234567):
        with pytest.raises(ConfigError, match="has more than 6 significant digits"):
            check_digits({"x": value})


def test_a_key_of_another_length_is_none() -> None:
    whole = pl.Series([bytes(16), b"k" * 16])
    assert keys_bytes(whole).tobytes() == bytes(16) + b"k" * 16
    for other in ([b"k" * 15, b"k" * 17], [b"k" * 16, None], [b"", b"k" * 32]):
        with pytest.raises(ReleaseError, match="is not 16 bytes long"):
            keys_bytes(pl.Series(other, dtype=pl.Binary))
