"""Nothing is in a manifest that no check decides."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from labelveil.audit.certificate.epochs import epochs_certificate
from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.run import DECIDED, NOT_CHECKABLE, certificate, certify
from labelveil.audit.verdict import Audit, Verdict
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import DriftSection, InForceSection
from tests.labelveil.audit.certificate.answers import answered
from tests.labelveil.audit.certificate.summed import write_sums
from tests.labelveil.audit.conftest import WriteRelease, other_population

DRIFT = DriftSection(in_force=InForceSection(epoch="1", manifest="0" * 64, rows=300))


def names(audit: Audit, verdict: Verdict) -> set[str]:
    return {field.name for field in audit.fields if field.verdict is verdict}


def test_every_field_is_proved_or_named(write: WriteRelease) -> None:
    folder = write(group=2)
    audit = certify(folder)
    said = json.loads((folder / MANIFEST_FILE).read_bytes())
    assert {field.name.partition(".")[0] for field in audit.fields} == set(said)
    assert not names(audit, Verdict.FAIL)
    assert names(audit, Verdict.NOT_CHECKABLE) == {
        *("software", "data_set", "epoch", "labels.0.name", "labels.0.grid", "labels.0.missing"),
        *("labels.0.loss", "labels.0.weight", "labels.0.asked", "privacy.division"),
        *("privacy.requested_epsilon", "privacy.records_per_unit"),
        *("priors.0.noisy_counts", "priors.0.noise", "population.secret_check"),
    }


def test_every_check_that_a_field_names_exists(write: WriteRelease, tmp_path: Path) -> None:
    evidence = read_evidence(write(group=2))
    drifting = evidence.manifest.model_copy(update={"drift": DRIFT})
    made = {check.name for check in certificate(evidence).checks}
    made |= {check.name for check in NOT_CHECKABLE.checks(drifting)}
    start = [1] * len(evidence.manifest.priors[0].noisy_counts)
    corrected = evidence.manifest.priors[0].model_copy(update={"start": start})
    known = evidence.manifest.model_copy(update={"priors": [corrected]})
    made |= {check.name for check in NOT_CHECKABLE.checks(known)}
    decoded = read_evidence(write(points=2, randomizer="auto"))
    made |= {check.name for check in certificate(decoded).checks}
    asked = read_evidence(answered(tmp_path / "asked"))
    made |= {check.name for check in certificate(asked).checks}
    made |= {check.name for check in certify(write_sums(tmp_path / "sums")).checks}
    assert {name for decided_by in DECIDED.values() for name in decided_by} <= made


def digits_of_epsilon(data: dict[str, Any]) -> None:
    data["privacy"]["requested_epsilon"] += 1e-9


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (other_population, {"population.digest", "population.keys"}),
        (digits_of_epsilon, {"privacy.requested_epsilon"}),
    ],
)
def test_a_field_follows_its_checks(
    write: WriteRelease, change: Callable[[dict[str, Any]], None], failed: set[str]
) -> None:
    assert names(certify(write(change)), Verdict.FAIL) == failed


def test_the_least_epsilon_is_a_verdict(write: WriteRelease) -> None:
    def shrink(data: dict[str, Any]) -> None:
        data["privacy"]["requested_epsilon"] = sys.float_info.min

    assert "privacy.requested_epsilon" in names(certify(write(shrink)), Verdict.FAIL)


@pytest.mark.parametrize("place", [(), ("priors", 0), ("randomizers", 0, "channel"), ("content",)])
def test_unknown_fields_fail(write: WriteRelease, place: tuple[Any, ...]) -> None:
    folder = write()
    path = folder / MANIFEST_FILE
    said = json.loads(path.read_bytes())
    inner = said
    for key in place:
        inner = inner[key]
    inner["note"] = [0.0, 1.0]
    path.write_text(json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    audit = certify(folder)
    assert [check.verdict for check in audit.checks] == [Verdict.FAIL] * 2
    assert all(".".join([*map(str, place), "note"]) in check.found for check in audit.checks)


def test_a_member_that_may_be_skipped_is_not_accounted_for(write: WriteRelease) -> None:
    """A client may skip it; who proves that nothing hides in a manifest may not."""

    def say_more(data: dict[str, Any]) -> None:
        data["optional"] = {"note": [0.0, 1.0]}

    folder = write(say_more)
    Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes())  # a client takes it
    audit = certify(folder)
    assert "optional.note" in names(audit, Verdict.FAIL)
    (check,) = [each for each in audit.checks if each.name == "every field is accounted for"]
    assert check.verdict is Verdict.FAIL


@pytest.mark.parametrize("same", [True, False])
def test_keys_under_two_secrets_are_not_compared(
    write: WriteRelease, tmp_path: Path, same: bool
) -> None:
    """The same event has another key then: that none is in both epochs would say nothing."""
    folders = []
    for epoch in ("1", "2"):

        def name(data: dict[str, Any], epoch: str = epoch) -> None:
            data["epoch"] = epoch
            data["population"]["secret_check"] = (epoch if not same else "1") * 32

        folders.append(write(name).rename(tmp_path / epoch))
    audit = epochs_certificate(folders)
    (check,) = [each for each in audit.checks if each.name == "events in several epochs"]
    assert ("under 2 secrets" in check.found) is not same
    assert ("300 events are in more than one" in check.found) is same
    assert check.verdict is Verdict.NOT_CHECKABLE


def test_no_json_at_all_is_a_verdict(write: WriteRelease) -> None:
    folder: Path = write()
    for document in (b'{"a": 1, "a": 2}', b"[]"):
        (folder / MANIFEST_FILE).write_bytes(document)
        audit = certify(folder)
        assert not audit.passed
        assert "" not in {field.name for field in audit.fields}


def test_digits_of_the_noise_scale_hide_nothing(write: WriteRelease) -> None:
    """Scale, guarantee and total agree, and the scale spells 31 labels."""

    def hide(data: dict[str, Any]) -> None:
        spent = Fraction(data["priors"][0]["guarantee"]["epsilon"])
        total = Fraction(data["privacy"]["total"]["epsilon"])
        less = Fraction(1203410234120341023412034102341, 10**40)
        data["priors"][0]["guarantee"]["epsilon"] = str(spent - less)
        data["priors"][0]["scale"] = str(2 / (spent - less))
        data["privacy"]["total"]["epsilon"] = str(total - less)
        Manifest.model_validate(data).check()

    audit = certify(write(hide))
    assert "split of ε" in {check.name for check in audit.checks if check.verdict is Verdict.FAIL}
    assert {"priors.0.scale", "priors.0.guarantee.epsilon"} <= names(audit, Verdict.FAIL)
