"""Label inference: caps, exact distributions of canaries, and an attack that has power."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from labelveil.audit.attacks.one_run import bound_guesses
from labelveil.audit.canaries import model
from labelveil.audit.canaries.inference import (
    MESSAGE,
    EventMessage,
    LabelsCounted,
    audit_inference,
    counted_labels,
    leakage,
    read_run,
)
from labelveil.audit.canaries.model import (
    Attacked,
    Run,
    SecretBits,
    attack_control,
    attack_predictions,
    choose_canaries,
    control_check,
    find_canaries,
    model_check,
    worst_pair,
)
from labelveil.audit.settings import RunFiles
from labelveil.audit.verdict import Verdict
from labelveil.common.arrays import Words
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import DataError, ReleaseError
from labelveil.common.exact.channel import TOTAL, FiniteChannel, randomized_response_rows
from labelveil.common.guarantees import PureDP
from labelveil.common.randomizers import build_randomizer
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebook
from tests.feature_party.worlds import build_world
from tests.labelveil.audit.certificate.summed import write_sums
from tests.statistics import binomial_range, counts_fit

EVENTS = 20_000
GRID = np.arange(5.0)


def response(outputs: int, epsilon: float) -> FiniteChannel:
    grid = np.arange(float(outputs))
    return FiniteChannel(grid, grid, randomized_response_rows(outputs, epsilon))


def test_the_cap_is_attained() -> None:
    epsilon = 2 * math.log(7)  # 1 + e^(ε/2) = 8 labels
    found = leakage([LabelsCounted(response(8, epsilon).probabilities, np.full(8, 1 / 8))])
    assert found.additive == pytest.approx(math.tanh(epsilon / 4), abs=1e-12)


@pytest.mark.parametrize("outputs", [2, 3, 5, 20])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_nothing_passes_its_cap(outputs: int, epsilon: float) -> None:
    channel = response(outputs, epsilon).probabilities
    words = seeded_entropy(outputs).words("priors", 0, 40 * outputs).astype(float)
    for prior in words.reshape(40, outputs) ** 3:
        found = leakage([LabelsCounted(channel, prior / prior.sum())])
        assert -1e-12 <= found.additive <= math.tanh(epsilon / 4) + 1e-12
        assert found.multiplicative <= math.exp(epsilon)
        assert found.percentile <= found.largest <= epsilon + 1e-9


def one_label(channel: FiniteChannel) -> Codebook:
    cells = Cells((Grid.from_edges(channel.inputs),))
    return Codebook(("amount",), (Group((0,), cells),), (channel,))


def verdicts(codebook: Codebook, prior: np.ndarray, epsilon: float) -> list[Verdict]:
    """Of the checks of a message, where one histogram counts all labels."""
    everything = Group(tuple(range(len(codebook.names))), codebook.cells)
    return [
        one.verdict
        for one in MESSAGE.checks(EventMessage(codebook, [(everything, prior)], epsilon))
    ]


def test_a_channel_that_claims_too_little_fails() -> None:
    codebook, prior = one_label(response(2, 2.0)), np.array([0.5, 0.5])
    assert set(verdicts(codebook, prior, 2.0)) == {Verdict.PASS}
    assert verdicts(codebook, prior, 1.0) == [Verdict.FAIL, Verdict.PASS, Verdict.FAIL]


BINARY = Grid.from_edges([0.0, 1.0])
BOTH = Group((0, 1), Cells((BINARY, BINARY)))
EACH = tuple(Group((j,), Cells((BINARY,))) for j in (0, 1))
NAMES = ("returned", "bought")


def twice(epsilon: float) -> Codebook:
    """All of ε on each of two labels."""
    return Codebook(NAMES, EACH, (response(2, epsilon), response(2, epsilon)))


def both_at_once(epsilon: float) -> Codebook:
    """A channel of two labels: a change of one moves its output by ε, a change of both by more."""
    ends = math.exp(-epsilon) / 2
    shares = [ends, 0.5, 0.5, 1 - ends]
    rows = [[TOTAL - round(share * TOTAL), round(share * TOTAL)] for share in shares]
    channel = FiniteChannel(np.arange(4.0), np.arange(2.0), rows)
    return Codebook(NAMES, (BOTH,), (channel,))


@pytest.mark.parametrize("prior", [np.full(4, 0.25), np.array([0.6, 0.2, 0.1, 0.1])])
@pytest.mark.parametrize("twin", [twice, both_at_once])
def test_what_tells_more_of_two_labels_than_of_one_fails(
    twin: Callable[[float], Codebook], prior: np.ndarray
) -> None:
    codebook = twin(1.0)
    true = sum(PureDP.of_channel(channel).epsilon for channel in codebook.channels)
    assert true > 1.4
    assert set(verdicts(codebook, prior, true)) == {Verdict.PASS}
    assert verdicts(codebook, prior, 1.0)[2] == Verdict.FAIL
    assert verdicts(codebook, np.array([0.5, 0, 0, 0.5]), 1.0)[::2] == [Verdict.FAIL] * 2
    likelihood = codebook.likelihood.reshape(2, 2, -1)
    alone = [np.log(likelihood / np.flip(likelihood, axis)).max() for axis in (0, 1)]
    assert max(alone) <= 1.0 + 1e-9


@pytest.mark.parametrize("prior", [np.full(6, 1 / 6), np.arange(1.0, 7) / 21])
def test_independent_parts_are_what_their_product_is(prior: np.ndarray) -> None:
    grids = Grid.from_edges([0.0, 1.0]), Grid.from_edges([0.0, 1.0, 2.0])
    groups = tuple(Group((j,), Cells((grid,))) for j, grid in enumerate(grids))
    codebook = Codebook(NAMES, groups, (response(2, 0.5), response(3, 1.5)))
    shares = [prior.reshape(2, 3).sum(axis=1), prior.reshape(2, 3).sum(axis=0)]
    both = [(Group((0, 1), Cells(grids)), np.outer(*shares).ravel())]
    apart = leakage(counted_labels(codebook, list(zip(groups, shares, strict=True))))
    whole = leakage(counted_labels(codebook, both))
    assert apart.additive == pytest.approx(whole.additive)
    assert apart.multiplicative == pytest.approx(whole.multiplicative)
    # "none is as said" is farther from "all are" than "not all" is
    assert whole.largest < apart.largest <= 2.0 + 1e-9
    assert apart.percentile <= apart.largest


@pytest.mark.parametrize("outputs", [2, 5])
@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_the_cap_of_two_labels_is_attained(outputs: int, epsilon: float) -> None:
    channel = response(outputs, epsilon)
    low, high = channel.probabilities[worst_pair(one_label(channel))[:, 0]]
    gain = np.abs(high - low).sum() / 4
    assert gain <= math.tanh(epsilon / 2) / 2 + 1e-12
    assert (outputs > 2) == (gain < math.tanh(epsilon / 2) / 2 - 1e-3)


def uniform(words: Words) -> np.ndarray:
    return (words >> np.uint64(11)).astype(float) * 2.0**-53


@dataclass(frozen=True)
class Made:
    """A run: labels that depend on features, their codes, and canaries found among them."""

    channel: FiniteChannel
    features: np.ndarray
    labels: np.ndarray
    codes: np.ndarray
    canaries: SecretBits


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(model, "_CELLS", 20_011)  # so that events are looked at in several parts
    entropy = seeded_entropy(1)
    features = uniform(entropy.words("features", 0, 3 * EVENTS)).reshape(EVENTS, 3)
    labels = np.clip(np.rint(4 * features[:, 0] ** 2), 0, 4)
    prior = np.bincount(labels.astype(int), minlength=5) / EVENTS
    randomizer = build_randomizer(
        "randomized-thresholds", labels=GRID, prior=prior, epsilon=1.0, rows=EVENTS
    )
    codes, channel = randomizer.randomize(labels, entropy).astype(np.int64), randomizer.channel
    laws = channel.probabilities[[0, 4]]
    canaries = find_canaries(one_label(channel), labels[:, None], codes, laws)
    return Made(channel, (features - 0.5) * math.sqrt(12), labels, codes, canaries)


def test_found_canaries_have_the_law_of_planted_ones(run: Made) -> None:
    rows, canaries = run.channel.probabilities, run.canaries
    for secret, law in ((0, rows[0]), (1, rows[4])):
        sent = run.codes[canaries.rows[canaries.secrets == secret]]
        counts = np.bincount(sent, minlength=law.size)
        assert counts_fit(counts, law)
        assert not counts_fit(counts, rows[2])
    # true labels say nothing about the secret that was found
    for label in GRID:
        chosen = canaries.secrets[run.labels[canaries.rows] == label]
        low, high = binomial_range(chosen.size, 0.5)
        assert low <= chosen.sum() <= high


@pytest.mark.slow
def test_a_smooth_model_is_silent_and_the_control_is_not(run: Made) -> None:
    columns = np.concatenate([np.ones((EVENTS, 1)), run.features], axis=1)
    weights = np.linalg.lstsq(columns, run.channel.outputs[run.codes], rcond=None)[0]
    ridge = attack_predictions({"prediction": columns @ weights}, run.features, run.canaries)
    assert ridge.result.bound <= 1
    assert ridge.result.shown < 0.1
    control = attack_control(run.codes, run.features, run.canaries, 1.0)
    assert control.result.bound <= 1
    assert control.result.shown >= 0.9
    # each attack's curve is drawn under its own name
    predicted = {"prediction": columns @ weights}
    trained = np.ones(EVENTS, dtype=np.bool_)
    of_run = Run(run.codes, run.labels[:, None], predicted, trained, run.features, None)
    attacked = Attacked(cast(RunFiles, None), of_run, run.canaries, 1.0, 1.0)
    for check, attack in ((model_check, ridge), (control_check, control)):
        assert check(attacked).details["correct"] == attack.result.correct
    assert (attacked.curves["model"], attacked.curves["control"]) == (ridge.curve, control.curve)
    assert ridge.curve != control.curve
    assert attacked.curves["ceiling"] == pytest.approx(1 / (1 + math.exp(-1)))
    # codes that tell nothing: even a model that has them by heart is silent
    weak = control_check(
        replace(attacked, run=replace(of_run, codes=np.roll(run.codes, 1), features=None))
    )
    assert weak.verdict is Verdict.NOT_CHECKABLE
    assert weak.found.endswith("lacks power, and silence of the model would prove nothing.")
    for nothing, tried in (
        (replace(attacked, canaries=None), "Looked for planted canaries, and for true labels"),
        (replace(attacked, canaries=None, run=None, files=RunFiles()), "Looked for predictions.p"),
    ):
        check = model_check(nothing)
        assert (check.verdict, check.tried.startswith(tried)) == (Verdict.NOT_CHECKABLE, True)


def test_a_memorising_model_is_seen(run: Made) -> None:
    memory = run.labels + 0.3 * run.channel.outputs[run.codes]
    attack = attack_predictions({"prediction": memory}, run.features, run.canaries)
    assert attack.result.shown > 0.3
    assert attack.result.bound <= 1


def test_a_model_that_saw_planted_labels_is_caught() -> None:
    entropy = seeded_entropy(2)
    secrets = (entropy.words("secrets", 0, 5000) >> np.uint64(63)).astype(np.int64)
    assert bound_guesses(secrets, secrets).bound > 4


def test_what_sums_tell_is_said_not_to_be_seen(tmp_path: Path) -> None:
    files = RunFiles().in_folder(tmp_path)
    write_sums(files.release)
    (check,) = audit_inference(files).checks
    assert check.verdict is Verdict.NOT_CHECKABLE
    assert "cannot see what sums" in check.found
    assert "with probability at most 0.5744." in check.claim  # 1 / (1 + exp(-0.3))

    def of_users(data: dict[str, Any]) -> None:
        """Who have two events each, and pay for both."""
        data["privacy"] |= {"requested_epsilon": 0.6, "records_per_unit": 2}
        for stated in (data["sums"]["guarantee"], data["privacy"]["total"]):
            stated |= {"epsilon": "3/5", "unit": "user"}

    write_sums(files.release, of_users)
    (check,) = audit_inference(files).checks
    assert "with probability at most 0.5744." in check.claim
    with pytest.raises(ReleaseError, match="is missing; name a run's folder, or --release"):
        audit_inference(RunFiles().in_folder(tmp_path / "none"))


def test_a_run_is_joined_by_its_hashed_keys(tmp_path: Path) -> None:
    world = build_world(tmp_path, rows=60)
    events = [f"e{at}" for at in range(60)]
    code_of = dict(zip(events, world.codes, strict=True))
    asked = [*events[50:3:-1], "nobody", "e1"]
    made = {
        "predictions": {"event": asked, "prediction": range(49), "held_out": [0, 1] * 24 + [0]},
        "truth": {"key": events[:40], "label": [at / 4 for at in range(40)]},
        "canaries": {"key": [*events[:9], "nobody"], "secret": [0, 1, 2, 1, 0, 1, 0, 2, 1, 0]},
        "features": {"event": events, "x": range(60), "shop": ["a", "b", "b"] * 20},
    }
    for name, table in made.items():
        pl.DataFrame(table).write_parquet(tmp_path / f"{name}.parquet")
    paths = {name: tmp_path / f"{name}.parquet" for name in made}
    files = RunFiles(release=world.directory, secret=world.secret_file, **paths)
    run = read_run(files, 0, 1 << 16)
    assert run is not None
    known = [event for event in asked if event != "nobody"]
    numbers = [int(event[1:]) for event in known]
    assert run.codes.tolist() == [code_of[event] for event in known]
    expected = [[at / 4 if at < 40 else math.nan] for at in numbers]
    np.testing.assert_array_equal(run.labels, expected)
    assert run.trained.tolist() == [asked.index(event) % 2 == 0 for event in known]
    assert run.predictions["prediction"].tolist() == [asked.index(event) for event in known]
    bits = {1: 1, 4: 0, 5: 1, 6: 0, 8: 1}
    assert run.planted is not None
    assert run.planted.tolist() == [bits.get(at, -1) for at in numbers]
    assert run.features is not None
    assert run.features.shape == (48, 3)
    assert np.argsort(run.features[:, 0]).tolist() == np.argsort(numbers).tolist()
    # of one stratum, whose codes are counted from its first
    part = read_run(files, 5, 9)
    assert part is not None
    assert part.codes.tolist() == [code - 5 for code in run.codes.tolist() if 5 <= code < 9]
    # what is not there is not known
    alone = {"truth": tmp_path / "no", "features": tmp_path / "no", "canaries": None}
    pl.DataFrame(made["predictions"]).drop("held_out").write_parquet(paths["predictions"])
    bare = read_run(files.model_copy(update=alone), 0, 1 << 16)
    assert bare is not None
    assert np.isnan(bare.labels).all()
    assert (bare.features, bare.planted, bare.trained.all()) == (None, None, True)
    assert choose_canaries(bare, world.release.manifest.codebooks.only) is None
    for missing in ("predictions", "secret"):
        assert read_run(files.model_copy(update={missing: tmp_path / "no"}), 0, 9) is None
    for name, other, said in (
        ("predictions", {"event": ["nobody"], "prediction": [1.0]}, "shares no event with the rel"),
        ("predictions", {"event": events, "predicted": events}, "has no column 'prediction'"),
        ("features", {"id": events}, "a table has no key column 'event'; its columns are"),
    ):
        wrong = tmp_path / "wrong.parquet"
        pl.DataFrame(other).write_parquet(wrong)
        with pytest.raises(DataError, match=said):
            read_run(files.model_copy(update={name: wrong}), 0, 9)
