"""Label inference where an event has several labels: all of them are attacked at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from labelveil.audit.canaries.inference import audit_inference, inference_cost
from labelveil.audit.canaries.model import SecretBits, attack_predictions
from labelveil.audit.settings import RunFiles
from labelveil.audit.verdict import Audit, Verdict
from labelveil.common.entropy import Entropy
from labelveil.common.errors import DataError
from labelveil.common.randomizers.message.codebooks import Codebook
from tests.effort import one_in
from tests.feature_party.two_labels import CELLS, NAMES, Division, Draw, randomize, two_labels
from tests.feature_party.worlds import SECRET

EVENTS = 5000
ENDS = np.array([[grid.points[end] for grid in CELLS.grids] for end in (0, -1)])


def too_much(codebook: Codebook, labels: np.ndarray, entropy: Entropy) -> np.ndarray:
    """Codes drawn as if each label, or both at once, had twice its ε."""
    laws = codebook.laws(labels) ** 2
    laws /= laws.sum(axis=1, keepdims=True)
    uniform = (entropy.words("twin", 0, len(labels)) >> np.uint64(11)) * 2.0**-53
    return np.asarray((laws.cumsum(axis=1) < uniform[:, None]).sum(axis=1), dtype=np.uint16)


def finished_run(
    folder: Path, division: Division, draw: Draw = randomize, *, planted: bool
) -> RunFiles:
    """What a simulation leaves behind, with predictions that are the true labels' own noise."""
    secrets = np.random.default_rng(1).integers(2, size=EVENTS)
    labels = ENDS[secrets] if planted else None
    # each of two labels has half of 1
    release, table, truth = two_labels(EVENTS, division, 0.5, labels=labels, draw=draw)
    release.write(folder / "release")
    (folder / "certificates").mkdir()
    (folder / "truth").mkdir()
    (folder / "certificates" / "join.key").write_text(SECRET.hex())
    (folder / "certificates" / "join.key").chmod(0o600)
    key = table["event"]
    true = {name: truth[:, j] for j, name in enumerate(NAMES)}
    pl.DataFrame({"key": key, **true}).write_parquet(folder / "truth" / "labels.parquet")
    guesses = {name: 0 * values for name, values in true.items()}
    pl.DataFrame({"event": key, **guesses}).write_parquet(folder / "predictions.parquet")
    canaries = folder / "canaries.parquet"
    pl.DataFrame({"key": key, "secret": secrets}).write_parquet(canaries)
    return RunFiles(canaries=canaries if planted else None).in_folder(folder)


def verdicts(audit: Audit) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in audit.checks}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("division", "planted"), one_in(3, [("split", True), ("joint", True), ("joint", False)])
)
def test_a_right_release_passes(tmp_path: Path, division: Division, planted: bool) -> None:
    files = finished_run(tmp_path, division, planted=planted)
    audit = audit_inference(files)
    found = verdicts(audit)
    assert Verdict.FAIL not in found.values()
    assert list(found)[:3] == [
        "additive advantage",
        "multiplicative advantage",
        "change of beliefs",
    ]
    beliefs = audit.checks[2]
    assert beliefs.bound == pytest.approx(1.0, abs=1e-6)  # two halves, for both labels at once
    if planted:
        control = audit.checks[-1]
        assert control.verdict is Verdict.PASS
        assert (control.shown or 0) > 0.75
    assert inference_cost(files) > 2


def test_canaries_of_other_kinds_than_the_ends_are_not_guessed(tmp_path: Path) -> None:
    """`audit canaries plant` draws labels beyond the bounds, several rows, and none, too."""
    files = finished_run(tmp_path, "joint", planted=True)
    made = pl.read_parquet(files.canaries or "")
    odd = made.with_columns(
        secret=pl.when(pl.arange(0, EVENTS) % 4 == 0).then(6).otherwise("secret")
    )
    odd.write_parquet(files.canaries or "")
    control = audit_inference(files).checks[-1]
    assert control.verdict is Verdict.PASS
    assert control.details["guesses"] <= EVENTS * 3 // 4


@pytest.mark.parametrize("division", ["split", "joint"])
def test_codes_that_tell_twice_of_each_label_are_caught(tmp_path: Path, division: Division) -> None:
    audit = audit_inference(finished_run(tmp_path, division, too_much, planted=True))
    control = audit.checks[-1]
    assert control.verdict is Verdict.FAIL
    assert (control.bound or 0) > 1.4


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    files = finished_run(tmp_path, "split", planted=False)
    table = pl.read_parquet(files.predictions)
    table.rename({"amount": "prediction"}).write_parquet(files.predictions)
    with pytest.raises(DataError, match=r"predictions\.parquet has no column 'amount'"):
        audit_inference(files)


def test_what_two_predictions_remember_adds_up() -> None:
    rng = np.random.default_rng(3)
    secrets = rng.integers(2, size=EVENTS)
    canaries = SecretBits(np.arange(EVENTS), secrets, np.full((2, 2), 0.5), planted=True)
    each = {name: secrets + 1.5 * rng.normal(size=EVENTS) for name in NAMES}
    both = attack_predictions(each, None, canaries)
    alone = [attack_predictions({name: one}, None, canaries) for name, one in each.items()]
    assert both.view == "all labels"
    assert both.result.shown > max(found.result.shown for found in alone)
