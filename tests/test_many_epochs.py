"""Six epochs through both parties and the audit: a small version of the published comparison."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.audit.certificate.epochs import epochs_certificate
from labelveil.audit.verdict import Audit, Verdict
from labelveil.common.errors import ReleaseError
from labelveil.common.release.folder import release_folders
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.release.watch import release_new
from tests.statistics import repeatable_entropy
from tests.watched import KEY, LABEL, Arm, fetched, label_config, released, run_arm, write_epochs

EPOCHS, SHIFTED, ROWS = 6, 3, 1000
SECTIONS: dict[str, dict[str, object]] = {
    "domain": {"lower": 0, "upper": 20, "grid": "step", "step": 1.0},
    "privacy": {"epsilon": 2.0},
    "randomizer": {"name": "randomized-thresholds"},
}
TRAINING: dict[str, object] = {
    **{"ensemble": 1, "hidden": [16], "epochs": 4, "batch_size": 64, "checkpoint": False},
    **{"objective": "likelihood", "head": "gaussian"},
}


def days() -> list[pl.DataFrame]:
    """Labels that follow one feature, the other way round from epoch 3 on; keys of their own."""
    rng = np.random.default_rng(3)
    made = []
    for epoch in range(EPOCHS):
        x = rng.normal(size=ROWS)
        late = epoch >= SHIFTED
        label = (4 + 2 * x + 0.5 * rng.normal(size=ROWS)).clip(0, 20)
        label = 20 - label if late else label
        keys = [f"{epoch}-{i}" for i in range(ROWS)]
        columns = {KEY: keys, "x": x, "late": [late] * ROWS, LABEL: label}
        made.append(pl.DataFrame(columns))
    return made


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arm]:
    folder = tmp_path_factory.mktemp("days") / "data"
    tables = days()
    write_epochs(folder, tables)
    truth = pl.concat(tables).select(KEY, LABEL)
    with repeatable_entropy():
        return {
            arm: run_arm(folder, arm, truth, TRAINING, **SECTIONS) for arm in ("watch", "daily")
        }


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Manifest]]:
    """What the features party has of the epochs, released as drift asks for it; nobody learns."""
    folder = tmp_path_factory.mktemp("watched") / "data"
    write_epochs(folder, days())
    with repeatable_entropy():
        _, manifests = released(label_config(folder, "watch", **SECTIONS), folder, "watch")
    return folder / "watch-fetched", manifests


@pytest.mark.slow
def test_few_priors_are_paid_for_and_the_shift_is_noticed_at_once(
    arms: dict[str, Arm],
) -> None:
    """The shift is missed with probability e^-20; false alarms, 1% each, are those of the seed."""
    watch, daily = arms["watch"], arms["daily"]
    assert daily.paid == list(range(EPOCHS))
    assert watch.paid == [0, SHIFTED]
    assert watch.prior_epsilon < 0.6 * daily.prior_epsilon
    totals = {one.privacy.requested_epsilon for arm in (watch, daily) for one in arm.manifests}
    assert totals == {2.0}


@pytest.mark.slow
def test_the_model_learns_from_all_epochs_as_well_as_with_a_prior_a_day(
    arms: dict[str, Arm],
) -> None:
    watch, daily = arms["watch"], arms["daily"]
    assert watch.test_mse < 0.5 * watch.constant_mse
    # so few labels: the ratio of two such errors wanders by a tenth, and sixty epochs show 2%
    assert watch.test_mse < 1.5 * daily.test_mse


def audited(folder: Path) -> Audit:
    return epochs_certificate(release_folders(folder))


def verdicts(audit: Audit) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in audit.checks}


@pytest.mark.slow
def test_the_audit_follows_priors_through_the_epochs(watched: tuple[Path, list[Manifest]]) -> None:
    found = audited(watched[0])
    assert found.passed
    shown = verdicts(found)
    for name in ("priors in force", "sessions", "events in several epochs", "exact ε of the labels",
                 "channel is a function of the noisy histogram"):  # fmt: skip
        assert shown[name] is Verdict.PASS, name
    assert found.claimed == pytest.approx(2.0, abs=1e-6)


def changed(
    watched: tuple[Path, list[Manifest]], to: Path, epoch: str, change: Callable[[Any], None]
) -> Audit:
    """Audit the watched epochs after one manifest was rewritten."""
    shutil.copytree(watched[0], to / "releases")
    path = to / "releases" / epoch / "manifest.json"
    stated = json.loads(path.read_bytes())
    change(stated)
    path.write_text(json.dumps(stated))
    return audited(to / "releases")


def more_counts(stated: Any) -> None:
    stated["priors"][0]["noisy_counts"][0] += 1


def labels_alone(stated: Any) -> None:
    """Leave the test out of the total."""
    stated["privacy"]["total"] = stated["randomizers"][0]["guarantee"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "check"),
    [(more_counts, "priors in force"), (labels_alone, "arithmetic of the ε split")],
)
def test_what_nobody_paid_for_fails(
    watched: tuple[Path, list[Manifest]],
    tmp_path: Path,
    change: Callable[[Any], None],
    check: str,
) -> None:
    manifests = watched[1]
    number = next(n for n, manifest in enumerate(manifests) if not manifest.prior_paid)
    assert verdicts(changed(watched, tmp_path, f"{number:03}", change))[check] is Verdict.FAIL


def test_a_prior_whose_release_is_missing_is_not_checkable(
    watched: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    shutil.copytree(watched[0], tmp_path / "releases")
    shutil.rmtree(tmp_path / "releases" / "000")
    found = audited(tmp_path / "releases")
    assert verdicts(found)["priors in force"] is Verdict.NOT_CHECKABLE


def test_an_event_in_two_epochs_adds_them_up(
    watched: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    shutil.copytree(watched[0], tmp_path / "releases")
    shutil.copytree(tmp_path / "releases" / "000", tmp_path / "releases" / "again")
    found = audited(tmp_path / "releases")
    assert verdicts(found)["events in several epochs"] is Verdict.NOT_CHECKABLE
    assert found.claimed == pytest.approx(4.0, abs=1e-6)


@pytest.mark.slow
def test_a_session_that_forgets_a_hit_fails(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_epochs(folder, [days()[n] for n in (0, SHIFTED, 1, SHIFTED + 1)])
    sections = {
        **SECTIONS,
        "privacy": {"epsilon": 2.0, "epochs": "additive", "total_epsilon": 50, "total_delta": 1e-6},
        "watch": {"hits": 5, "epsilon": 0.15},
    }
    config = label_config(folder, "watch", **sections)
    assert release_new(config, lambda outcome: None, quiet=True) == 4
    fetched(config, folder / "fetched")
    audit = audited(folder / "fetched")
    assert verdicts(audit)["sessions"] is Verdict.PASS
    finding = next(check.found for check in audit.checks if check.name == "sessions")
    assert "3 of 5 hits after 3 calls" in finding
    path = folder / "fetched" / "003" / "manifest.json"
    stated = json.loads(path.read_bytes())
    for hits in (2, 9):
        stated["drift"]["test"]["session"]["state"]["hits"] = [hits]
        path.write_text(json.dumps(stated))
        assert verdicts(audited(folder / "fetched"))["sessions"] is Verdict.FAIL


def test_two_data_sets_are_not_audited_as_one(
    watched: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    with pytest.raises(ReleaseError, match="one data set at a time"):
        changed(watched, tmp_path, "001", lambda stated: stated.update(data_set="other"))
