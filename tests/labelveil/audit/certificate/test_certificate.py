"""The certificate holds for a right release and names whatever was tampered with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.manifest_checks import decoded_check, prior_support_check
from labelveil.audit.certificate.run import STEPS, certificate
from labelveil.audit.verdict import Audit, Verdict
from labelveil.commands.cli import app
from labelveil.common.errors import ReleaseError
from labelveil.common.release.folder import CODES_FILE, KEYS_FILE, MANIFEST_FILE, SIGNATURE_FILE
from labelveil.common.release.table import write_release
from tests.common.release.releases import make_release, text_of, words_of
from tests.labelveil.audit.conftest import (
    WriteRelease,
    evidence_of,
    other_population,
    without_power,
)

Change = Callable[[dict[str, Any]], None]


def failed(audit: Audit) -> set[str]:
    return {check.name for check in audit.checks if check.verdict is Verdict.FAIL}


@pytest.mark.parametrize("randomizer", ["rr-on-bins", "randomized-thresholds", "auto"])
def test_a_right_release_holds(write: WriteRelease, randomizer: str) -> None:
    steps: list[str] = []
    audit = certificate(read_evidence(write(randomizer=randomizer)), progress=steps.append)
    assert audit.passed
    assert audit.count(Verdict.PASS) == 14
    assert steps == [check.name for check in audit.checks]
    assert len(steps) <= STEPS
    assert all(check.question.endswith("?") and check.claim for check in audit.checks)
    exact = next(check for check in audit.checks if check.name == "exact ε of the labels")
    assert exact.bound is not None
    assert exact.claimed is not None
    assert 0 <= exact.claimed - exact.bound <= 1e-15
    assert all(c.found for c in audit.checks if c.verdict is Verdict.NOT_CHECKABLE)
    assert without_power(audit) == []


def test_empty_cells_without_noise() -> None:
    manifest, _, _ = make_release(200, points=60)
    counts = [0] * 55 + [40] * 5
    emptied = manifest.model_copy(
        update={"priors": [manifest.prior.model_copy(update={"noisy_counts": counts})]}
    )
    assert prior_support_check(evidence_of(manifest)).verdict is Verdict.PASS
    assert prior_support_check(evidence_of(emptied)).verdict is Verdict.FAIL


def test_a_release_without_a_prior_holds(write: WriteRelease) -> None:
    audit = certificate(read_evidence(write(points=2, randomizer="auto")))
    assert audit.passed
    assert audit.facts["ε for the histogram"] == "0: decoded from the codes"
    assert "histogram is decoded from the codes" in {check.name for check in audit.checks}
    assert {field.name for field in audit.fields if not field.decided_by} == set()


def test_a_histogram_that_says_more_than_the_codes_is_named(write: WriteRelease) -> None:
    def one_more(data: dict[str, Any]) -> None:
        data["priors"][0]["noisy_counts"][1] += 1

    evidence = read_evidence(write(one_more, points=2, randomizer="auto"))
    assert failed(certificate(evidence)) == {"histogram is decoded from the codes"}
    right = read_evidence(write(points=2, randomizer="auto"))
    for rows, found in (
        (right.labels, "All 2 cells agree."),
        (right.labels[:0], "No such codes."),
        (right.labels.with_columns(code=pl.lit(2)), "No such codes."),
    ):
        check = decoded_check(replace(right, labels=rows))
        assert (check.found, check.verdict is Verdict.PASS) == (found, found.startswith("All"))
    said = {"labels": ["another"]}
    (prior,) = right.manifest.priors
    stated = right.manifest.model_copy(update={"priors": [prior.model_copy(update=said)]})
    assert decoded_check(replace(right, manifest=stated)).verdict is Verdict.FAIL


def doubled_claim(data: dict[str, Any]) -> None:
    """The channel is made twice as telling while its guarantee stays as it was."""
    rows = data["randomizers"][0]["channel"]["rows"]
    for i, row in enumerate(map(words_of, rows)):
        top = row.index(max(row))
        halves = [weight - weight // 2 if z != top else 0 for z, weight in enumerate(row)]
        halves[top] = (1 << 64) - sum(halves)
        rows[i] = text_of(halves)


def impossible_output(data: dict[str, Any]) -> None:
    rows = data["randomizers"][0]["channel"]["rows"]
    first, second, *others = words_of(rows[0])
    rows[0] = text_of([0, min(first + second, (1 << 64) - 1), *others])


def half_noise(data: dict[str, Any]) -> None:
    data["priors"][0]["scale"] = str(Fraction(data["priors"][0]["scale"]) / 2)


def no_charge_for_the_histogram(data: dict[str, Any]) -> None:
    data["privacy"]["total"] = data["randomizers"][0]["guarantee"]


def other_bins(data: dict[str, Any]) -> None:
    outputs = data["randomizers"][0]["channel"]["outputs"]
    data["randomizers"][0]["channel"]["outputs"] = [value + 0.01 for value in outputs]


def other_counts(data: dict[str, Any]) -> None:
    counts = data["priors"][0]["noisy_counts"]
    data["priors"][0]["noisy_counts"] = [count + 7 * i * i for i, count in enumerate(counts)]


def other_content(data: dict[str, Any]) -> None:
    data["content"]["blocks"][0] = "0" * 64


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (doubled_claim, {"exact ε of the labels"}),
        (impossible_output, {"exact ε of the labels"}),
        (half_noise, {"prior noise scale"}),
        (no_charge_for_the_histogram, {"arithmetic of the ε split"}),
        (other_bins, {"channel is a function of the noisy histogram"}),
        (other_counts, {"channel is a function of the noisy histogram"}),
        (other_population, {"population digest"}),
        (other_content, {"content digest"}),
    ],
)
def test_every_change_is_named(write: WriteRelease, change: Change, names: set[str]) -> None:
    assert names <= failed(certificate(read_evidence(write(change))))


def test_another_version_is_no_verdict_on_the_channel(write: WriteRelease) -> None:
    def other(data: dict[str, Any]) -> None:
        other_counts(data)
        data["software"] = "labelveil/0.0.1"

    audit = certificate(read_evidence(write(other)))
    found = next(c for c in audit.checks if c.name.startswith("channel is a function"))
    assert found.verdict is Verdict.NOT_CHECKABLE
    assert "labelveil/0.0.1" in found.found


REBUILD = """
import sys
from pathlib import Path
import polars as pl
from labelveil.audit.certificate.evidence import Evidence
from labelveil.audit.certificate.rebuild import rebuilt_check
from labelveil.common.release.manifest import Manifest
manifest = Manifest.from_bytes(sys.stdin.buffer.read())
print(rebuilt_check(Evidence(Path(), b"", manifest, pl.DataFrame())).found)
"""


@pytest.mark.slow
def test_another_processor_fails_no_right_release() -> None:
    """Outputs that agree but for the last digit come in another order where sums are rounded so."""
    manifest, _, _ = make_release(2000, points=24, randomizer="auto")
    older = {**os.environ, "OPENBLAS_CORETYPE": "Prescott"}  # without fused multiplication
    found = subprocess.run(
        [sys.executable, "-c", REBUILD],
        input=manifest.to_bytes(),
        env=older,
        capture_output=True,
        check=True,
    ).stdout.decode()
    assert "another processor" in found or "integer weights and details agree" in found


@pytest.mark.parametrize(
    ("rows", "named"), [(slice(None, None, -1), "row order"), (slice(1, None), "population digest")]
)
def test_rows_in_another_order_and_a_missing_row(
    write: WriteRelease, rows: slice, named: str
) -> None:
    folder = write()
    keys, codes = ((folder / name).read_bytes() for name in (KEYS_FILE, CODES_FILE))
    others = b"".join([keys[at : at + 16] for at in range(0, len(keys), 16)][rows])
    write_release(folder, (folder / MANIFEST_FILE).read_bytes(), others, codes[rows])
    assert {named, "content digest"} <= failed(certificate(read_evidence(folder)))


def test_signatures(write: WriteRelease, tmp_path: Path) -> None:
    folder, key = write(), Ed25519PrivateKey.generate()
    public = tmp_path / "key.pem"
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )

    def verdict() -> Verdict:
        audit = certificate(read_evidence(folder), public_key=public)
        return next(check.verdict for check in audit.checks if check.name == "signature")

    assert verdict() is Verdict.FAIL  # a key was given, and nothing is signed
    for place in (folder, folder.parent):
        command = ["audit", "certificate", str(place), "--out", str(tmp_path / "audit")]
        for more, code in (([], 0), (["--public-key", str(public)], 1)):
            assert CliRunner().invoke(app, [*command, *more]).exit_code == code
    manifest = (folder / MANIFEST_FILE).read_bytes()
    (folder / SIGNATURE_FILE).write_bytes(key.sign(manifest))
    assert verdict() is Verdict.PASS
    check = next(c for c in certificate(read_evidence(folder)).checks if c.name == "signature")
    assert check.verdict is Verdict.NOT_CHECKABLE  # by a key that nobody knows
    assert "--public-key" in check.found
    (folder / SIGNATURE_FILE).write_bytes(key.sign(manifest + b" "))
    assert verdict() is Verdict.FAIL


def test_a_folder_without_a_release_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="holds no release"):
        read_evidence(tmp_path)
