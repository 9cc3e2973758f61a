"""Canaries that are planted with the real labels party come back; what is wrong with them shows."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

import labelveil.commands.cli
from labelveil.audit.attacks.laws import noise_probability, output_probability
from labelveil.audit.canaries.codes import Returned, distinguish, match
from labelveil.audit.canaries.planting import (
    PLAN_FILE,
    SECRETS_FILE,
    Planted,
    plant,
    read_planted,
)
from labelveil.audit.canaries.score import bounds_check, score
from labelveil.audit.certificate.evidence import Evidence, read_evidence
from labelveil.audit.power import detectable_epsilon, guess_probability, one_run_bound
from labelveil.audit.settings import Planting
from labelveil.audit.verdict import GATE, Verdict
from labelveil.common.errors import ConfigError, DataError, ReleaseError
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.security.new_keys import write_secret
from labelveil.label_party.config.sections import load
from labelveil.label_party.release.run import run_release
from tests.commands import RunCommand
from tests.effort import effort, one_in
from tests.labelveil.audit.conftest import without_power
from tests.labelveil.audit.twins import drawn
from tests.labelveil.audit.twins.drawn import Message

PLANTING = Planting(events=16_000, lower=0.0, upper=10.0)
CONFIG = """
[data]
labels = "partner/labels.parquet"
population = "partner/labels-population.parquet"
[domain]
lower = 0
upper = 10
[privacy]
epsilon = 2
[keys]
secret_file = "join.key"
"""


@dataclass(frozen=True)
class Grown:
    """Canaries, the release that a labels party made of them, and the secret of their keys."""

    planted: Planted
    evidence: Evidence
    secret: Path

    def failed(self, evidence: Evidence) -> set[str]:
        audit = score(self.planted, evidence, self.secret)
        return {check.name for check in audit.checks if check.verdict is Verdict.FAIL}

    def with_codes(self, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Evidence:
        """Another release, whose codes are a function of the codes and of the secrets."""
        found = match(self.planted, self.evidence, self.secret)
        codes = pl.Series("code", change(found.codes.copy(), found.secrets), dtype=pl.UInt16)
        return replace(self.evidence, labels=self.evidence.labels.with_columns(codes))


def grow(folder: Path, planting: Planting, config: str) -> Grown:
    """Plant canaries with a labels party that then makes a release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert plant(folder, planting)
        write_secret(folder / "join.key")
        (folder / "label_party.toml").write_text(config)
        run_release(load(Path("label_party.toml")), quiet=True)
    evidence = read_evidence(folder / "label_store" / "releases" / "labels" / "1")
    return Grown(read_planted(folder), evidence, folder / "join.key")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return grow(tmp_path_factory.mktemp("grown"), PLANTING, CONFIG)


@pytest.mark.slow
def test_a_right_party_passes(grown: Grown) -> None:
    audit = score(grown.planted, grown.evidence, grown.secret)
    verdicts = {check.name: check.verdict for check in audit.checks}
    assert Verdict.FAIL not in verdicts.values()
    assert verdicts["noise of the histogram"] is Verdict.PASS
    assert all(check.question for check in audit.checks[:10])
    assert without_power(audit) == []


def test_the_commands(
    grown: Grown, tmp_path: Path, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main, folder = labelveil.commands.cli.main, grown.secret.parent
    same = ["--lower=0", "--upper=10", "--events=16000", f"--folder={folder}"]
    planted = run_command(main, "audit", "canaries", "plant", *same)
    assert (planted.code, "were planted before" in planted.out) == (0, True)
    words = ["audit", "canaries", "score", str(folder), f"--secret={grown.secret}"]
    words.append(f"--release={grown.evidence.directory}")
    scored = run_command(main, *words, "--json")
    assert scored.code == 0, scored
    assert scored.err.startswith("cost: 16,000 canaries")
    checks = {check["name"]: check for check in json.loads(scored.out)["checks"]}
    told_apart = checks["canaries told apart"]
    assert told_apart["question"] == "How well do outputs tell labels apart, whatever made them?"
    assert told_apart["power_95"][0]["least"] > 0
    assert run_command(main, *words, "--address=localhost:1").error.count("--release and --address")


def sometimes_raw(codes: np.ndarray, secrets: np.ndarray) -> np.ndarray:
    """Every second row sends the output that goes with its label best."""
    codes[::2] = np.where(secrets[::2] == 1, codes.max(), codes.min())
    return codes


def rare(codes: np.ndarray, secrets: np.ndarray) -> np.ndarray:
    """A hundred rows send an output that is rare for their label."""
    codes[np.flatnonzero(secrets == 1)[:100]] = codes.min()
    return codes


def of_the_row_before(codes: np.ndarray, secrets: np.ndarray) -> np.ndarray:
    """Every second row is randomized from the label of the row before, as one with that label."""
    kinds = {kind: np.flatnonzero(secrets == kind) for kind in np.unique(secrets)}
    for row in range(1, codes.size, 2):
        rows = kinds[secrets[row - 1]]
        codes[row] = codes[rows[row % rows.size]]
    return codes


@pytest.mark.parametrize(
    ("twin", "names"),
    [
        (sometimes_raw, {"canaries told apart", "outputs follow the stated channel"}),
        (rare, {"outputs follow the stated channel"}),
        (of_the_row_before, {"labels of other rows"}),
    ],
)
def test_what_is_wrong_with_codes_is_seen(
    grown: Grown, twin: Callable[[np.ndarray, np.ndarray], np.ndarray], names: set[str]
) -> None:
    assert names <= grown.failed(grown.with_codes(twin))


def test_a_dropped_row_and_an_order_are_seen(grown: Grown) -> None:
    found = match(grown.planted, grown.evidence, grown.secret)
    rows = grown.evidence.labels
    dropped = replace(grown.evidence, labels=rows.filter(pl.Series(found.secrets != 2)))
    assert "every canary comes back" in grown.failed(dropped)
    ordered = replace(grown.evidence, labels=rows[np.argsort(found.secrets, kind="stable")])
    assert "rows are not ordered by label" in grown.failed(ordered)


def test_a_histogram_with_too_little_noise_is_seen(grown: Grown) -> None:
    found = match(grown.planted, grown.evidence, grown.secret)
    manifest = grown.evidence.manifest
    labels = found.labels[found.secrets, 0].clip(0, 10)
    counts = [int((labels == point).sum()) for point in manifest.label.grid]
    prior = manifest.prior.model_copy(update={"noisy_counts": counts})
    exact = replace(grown.evidence, manifest=manifest.model_copy(update={"priors": [prior]}))
    assert "noise of the histogram" in grown.failed(exact)


@pytest.mark.slow
def test_users_above_their_limit_that_keep_their_labels_are_seen(tmp_path: Path) -> None:
    users = PLANTING.model_copy(update={"users": 3})
    unit = 'epsilon = 6\nunit = "user"\nuser = "user"\nmax_records_per_user = 3'
    grown = grow(tmp_path, users, CONFIG.replace("epsilon = 2", unit))
    assert grown.failed(grown.evidence) == set()
    found = match(grown.planted, grown.evidence, grown.secret)
    beyond = found.secrets == 7
    assert abs(beyond.sum() - users.events / 2) <= 6
    kept = np.where(beyond, grown.planted.secrets[found.places], found.secrets)
    laws = found.laws.cumsum(axis=1)[kept, :-1]
    codes = (np.random.default_rng(1).random((kept.size, 1)) >= laws).sum(axis=1)
    failed = grown.failed(grown.with_codes(lambda *_: codes))
    assert "outputs follow the stated channel" in failed


def messages(grown: Grown) -> tuple[Message, Returned]:
    found = match(grown.planted, grown.evidence, grown.secret)
    keys = grown.planted.keys.to_list()
    return Message(keys, found.places, grown.planted.secrets, found.laws), found


def of_twin(grown: Grown, codes: np.ndarray) -> Evidence:
    """The release with these codes of canaries in the order of the population."""
    found = match(grown.planted, grown.evidence, grown.secret)
    return grown.with_codes(lambda *_: codes[found.places])


def earlier(evidence: Evidence, moved: int = 1) -> Evidence:
    """The same release, but for its histogram's noise: another epoch's."""
    manifest = evidence.manifest
    counts = [count + moved for count in manifest.prior.noisy_counts]
    prior = manifest.prior.model_copy(update={"noisy_counts": counts})
    return replace(evidence, manifest=manifest.model_copy(update={"priors": [prior]}))


def drawn_messages() -> list[Any]:
    seeds = range(effort(2, 12))
    return [
        pytest.param(
            kind(seed), id=f"{kind.__name__}-{seed}", marks=[pytest.mark.slow] * (seed > 0)
        )
        for kind in drawn.every(drawn.MessageTwin)
        for seed in seeds
    ]


@pytest.mark.parametrize("twin", drawn_messages())
def test_messages_of_a_twin_that_is_drawn_give_it_away(
    grown: Grown, twin: drawn.MessageTwin
) -> None:
    message, _ = messages(grown)
    now, before = (of_twin(grown, twin(message)) for _ in range(2))
    audit = score(grown.planted, now, grown.secret, before=[earlier(before)])
    failed = {check.name for check in audit.checks if check.verdict is Verdict.FAIL}
    assert failed & set(twin.caught_by), failed


@pytest.mark.slow
def test_right_messages_pass(grown: Grown) -> None:
    """Of many right builds none is taken for a wrong one: 1 in 10⁶ for each check."""
    message, _ = messages(grown)
    right = drawn.MessageTwin(0)
    for _ in range(effort(3, 300)):
        now, before = (of_twin(grown, right(message)) for _ in range(2))
        audit = score(grown.planted, now, grown.secret, before=[earlier(before)])
        failed = {check.name for check in audit.checks if check.verdict is Verdict.FAIL}
        assert failed <= {"content digest"}


def test_a_histogram_with_the_noise_of_another_epoch_is_seen(grown: Grown) -> None:
    message, _ = messages(grown)
    right = drawn.MessageTwin(0)
    now, before = (of_twin(grown, right(message)) for _ in range(2))
    for moved, failed in ((0, True), (1, False)):
        audit = score(grown.planted, now, grown.secret, before=[earlier(before, moved)])
        (check,) = (check for check in audit.checks if check.name == "noise of two epochs")
        assert (check.verdict is Verdict.FAIL) is failed
        assert len(check.power) == 2


def test_bounds_of_the_data_are_seen(grown: Grown) -> None:
    manifest = grown.evidence.manifest
    grid = [*manifest.label.grid[:-1], 27.0]
    label = manifest.label.model_copy(update={"grid": grid})
    wide = replace(grown.evidence, manifest=manifest.model_copy(update={"labels": [label]}))
    found = replace(match(grown.planted, grown.evidence, grown.secret), manifest=wide.manifest)
    assert bounds_check(found).verdict is Verdict.FAIL


def test_the_partner_is_not_warned_of_canaries(grown: Grown) -> None:
    """Of labels outside the bounds only above 5 %, where it stops to ask."""
    rows = pl.read_parquet(grown.secret.parent / "partner" / "labels.parquet")["label"]
    assert 0.01 < ((rows < 0) | (rows > 10)).mean() < 0.045
    assert grown.planted.shares.sum() == pytest.approx(1)


def test_secrets_of_other_shares_are_fair_coins() -> None:
    """Outputs that say nothing do not tell a rare label from a common one."""
    shares = np.array([0.9, 0.1])
    secrets = (np.random.default_rng(3).random(20_000) < shares[1]).astype(np.int64)
    pair = (0,), (1,)
    (told,) = distinguish(np.zeros(20_000, np.int64), secrets, [pair], shares).values()
    assert told.bound == 0
    (told,) = distinguish(secrets, secrets, [pair], shares).values()
    assert told.bound > 4


def test_another_secret_finds_no_canary(grown: Grown, tmp_path: Path) -> None:
    write_secret(tmp_path / "other.key")
    with pytest.raises(ReleaseError, match="check --secret"):
        match(grown.planted, grown.evidence, tmp_path / "other.key")
    with pytest.raises(ReleaseError, match="labels other were planted, and the release has label"):
        match(replace(grown.planted, names=["other"]), grown.evidence, grown.secret)


def test_canaries_that_were_submitted_are_in_the_order_of_their_population(grown: Grown) -> None:
    keyed = match(grown.planted, grown.evidence, grown.secret)
    hashed = hash_keys(grown.planted.keys, read_secret(grown.secret))
    place = np.argsort(np.frombuffer(hashed, "S16"), kind="stable")
    codes = np.empty(place.size, dtype=np.int64)
    codes[place] = grown.evidence.codes
    data = json.loads(grown.evidence.data)
    data["content"]["key_bytes"], data["population"]["keys"] = 0, "submitted"
    for digest in (sha256(hashed).hexdigest(), "0" * 64):
        data["population"]["digest"] = digest
        sent = replace(
            grown.evidence,
            manifest=Manifest.model_validate(data),
            labels=pl.DataFrame({"code": codes}),
        )
        if digest == "0" * 64:
            with pytest.raises(ReleaseError, match="no canary is in the release"):
                match(grown.planted, sent, grown.secret)
        else:
            found = match(grown.planted, sent, grown.secret)
            assert found.codes.tolist() == codes.tolist()
            assert found.secrets.tolist() == grown.planted.secrets.tolist()
            assert keyed.codes.tolist() == codes[place].tolist()


def test_planting_goes_on_where_it_was(tmp_path: Path) -> None:
    assert plant(tmp_path, PLANTING)
    first = read_planted(tmp_path)
    assert stat.S_IMODE((tmp_path / SECRETS_FILE).stat().st_mode) == 0o600
    given = pl.read_parquet(tmp_path / "partner" / "labels.parquet")
    below, above, between = first.labels[2:5, 0]
    assert below < 0 < between < 10 < above
    assert set(given["label"].unique()) == {0.0, 10.0, below, above, between}
    rows = np.bincount(first.secrets, minlength=7) @ [1, 1, 1, 1, 1, 2, 0]
    assert (given.height, given["key"].n_unique()) == (rows, (first.secrets < 6).sum())
    assert not plant(tmp_path, PLANTING)
    assert read_planted(tmp_path).keys.equals(first.keys)
    with pytest.raises(ConfigError, match="other settings"):
        plant(tmp_path, PLANTING.model_copy(update={"upper": 9.0}))
    (tmp_path / PLAN_FILE).unlink()  # as if it had been killed
    with pytest.raises(DataError, match="audit canaries plant"):
        read_planted(tmp_path)
    assert plant(tmp_path, PLANTING)
    assert not read_planted(tmp_path).keys.equals(first.keys)


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": 10},
        {"upper": -1.0},
        {"values": 1},
        {"values": 99},
        {"name": "a/b"},
        {"date": "day"},
    ],
)
def test_a_planting_that_shows_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="--"):
        Planting(**PLANTING.model_dump() | wrong)


@pytest.mark.parametrize("claimed", [0.5, 2.0])
def test_an_excess_is_found_as_often_as_is_said(claimed: float) -> None:
    guesses = 5000
    true = detectable_epsilon(claimed, guesses, GATE)
    right = np.arange(guesses + 1)
    refuted = np.array([one_run_bound(v, guesses, GATE) > claimed for v in right])
    power = [
        float(binom.pmf(right, guesses, guess_probability(epsilon))[refuted].sum())
        for epsilon in (true, claimed)
    ]
    assert power[0] == pytest.approx(0.95, abs=1e-3)
    assert power[1] <= GATE


def test_laws_hold_for_draws_of_them_and_not_for_others() -> None:
    laws = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    expected = np.array([[7000, 2000, 1000], [1000, 2000, 7000]])
    assert output_probability(expected, laws)[0] == 1.0
    p, label, output = output_probability(expected + np.array([[0, 0, 0], [0, 400, -400]]), laws)
    assert (label, p < GATE) == (1, True)
    assert output in (1, 2)


@pytest.mark.parametrize("scale", [2.0, 40.0])
def test_so_little_noise_is_as_improbable_as_is_said(scale: float) -> None:
    """The bounds lie above the exact tails of a sum of five, and far below 1 far out."""
    q = np.exp(-1 / scale)
    one = 2 * (1 - q) / (1 + q) * q ** np.arange(int(60 * scale))
    one[0] /= 2
    law = one
    for _ in range(4):
        law = np.convolve(law, one)
    for total in np.unique(np.linspace(0, 15 * scale, 20).astype(int)):
        noise = np.array([total, 0, 0, 0, 0])
        little, much = noise_probability(noise, scale)
        assert little >= law[: total + 1].sum() * (1 - 1e-9)
        assert much >= law[total:].sum() * (1 - 1e-9) - 1e-12
    assert noise_probability(np.full(20, int(5 * scale)), scale)[1] < GATE
    assert noise_probability(np.zeros(20, dtype=np.int64), scale)[0] < GATE


SEVERAL = """
[data]
labels = "partner/labels.parquet"
population = "partner/labels-population.parquet"
[privacy]
epsilon = 2
division = "{division}"
[[label]]
name = "label"
lower = 0
upper = 10
grid = "step"
step = 5
[[label]]
name = "returned"
kind = "binary"
[keys]
secret_file = "join.key"
"""


@pytest.fixture(scope="module", params=one_in(2, ["joint", "split"]))
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Grown:
    """Canaries of two labels, at the ends of both."""
    two = PLANTING.model_copy(update={"events": 40_000, "also": ["returned:0:1"]})
    return grow(tmp_path_factory.mktemp("pairs"), two, SEVERAL.format(division=request.param))


def by_law(law: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Codes of each secret drawn by other laws than those stated: (4, d), others as the nearest."""

    def drawn(codes: np.ndarray, secrets: np.ndarray) -> np.ndarray:
        generator = np.random.default_rng(5)
        rows = np.array([0, 1, 2, 3, 0, 2, 0, 0, 0])[secrets]
        return (generator.random((codes.size, 1)) > law[rows].cumsum(axis=1)[:, :-1]).sum(axis=1)

    return drawn


def tilted(slopes: tuple[float, float]) -> np.ndarray:
    """Of two codes, the odds of the second: e to the slopes of the labels that are high."""
    odds = np.exp([0.0, slopes[1], slopes[0], sum(slopes)]) * np.exp(-sum(slopes) / 2)
    return np.column_stack([1 / (1 + odds), odds / (1 + odds)])


@pytest.mark.slow
def test_a_right_party_of_two_labels_passes(pairs: Grown) -> None:
    audit = score(pairs.planted, pairs.evidence, pairs.secret)
    verdicts = {check.name: check.verdict for check in audit.checks}
    assert Verdict.FAIL not in verdicts.values(), audit.checks
    assert verdicts["noise of the histogram"] is Verdict.PASS
    within = pairs.with_codes(by_law(tilted((1.0, 1.0))))
    assert "canaries told apart" not in pairs.failed(within)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", one_in(2, ["epsilon on each of two labels", "both labels at once"])
)
def test_what_two_labels_tell_together_is_seen(pairs: Grown, name: str) -> None:
    """A change of either label alone stays within the claim, and one of both does not."""
    if name == "both labels at once":
        law = tilted((2.6, 2.6))
        assert (law[1] / law[0]).max() < np.e**2 < (law[3] / law[0]).max()
    else:  # a code of two halves, each of which spends all of epsilon on its own label
        keep = 1 / (1 + np.exp(-1.9))
        half = np.array([[keep, 1 - keep], [1 - keep, keep]])
        law = np.einsum("ac,bd->abcd", half, half).reshape(4, 4)
    assert "canaries told apart" in pairs.failed(pairs.with_codes(by_law(law)))


def test_secrets_of_two_labels_are_planted_by_the_command(
    tmp_path: Path, run_command: RunCommand
) -> None:
    words = ["audit", "canaries", "plant", "--lower=0", "--upper=10", "--events=1000"]
    words += [f"--folder={tmp_path / 'out'}"]
    main = labelveil.commands.cli.main
    done = run_command(main, *words, "--also=returned:0:1")
    assert "label from 0 to 10, returned from 0 to 1" in done.out
    table = pl.read_parquet(tmp_path / "out" / "partner" / "labels.parquet")
    assert table.unique(["label", "returned"]).height == 7
    assert "COLUMN:LOWER:UPPER" in run_command(main, *words, "--also=returned:1").error
