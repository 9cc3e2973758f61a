"""One model of many epochs: every label is read through its own epoch's channel."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import private_prior
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.blocks import encode_codes
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.table import write_release
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.error_estimates import estimate_absolute_error
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.heads import build_head
from labelveil.feature_party.learning.objectives import LikelihoodObjective
from labelveil.feature_party.learning.problem import LabelProblem, Leg, first_codes
from labelveil.feature_party.learning.several_releases import join_problems
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Model, Predictions
from tests.feature_party.learn import prepare, train
from tests.feature_party.worlds import (
    SECRET,
    build_manifest,
    made_up_events,
    thresholds_channel,
)

Channel = Callable[[np.ndarray, float], FiniteChannel]


def response_channel(grid: np.ndarray, epsilon: float) -> FiniteChannel:
    return FiniteChannel(grid, grid, randomized_response_rows(grid.size, epsilon))


@pytest.fixture(scope="module")
def epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three epochs of 900 events: another channel, another grid."""
    folder = tmp_path_factory.mktemp("epochs")
    table, labels = made_up_events(2700, 3)
    laws: list[tuple[str, Channel, int]] = [
        ("d1", thresholds_channel, 9),
        ("d2", response_channel, 9),
        ("d3", thresholds_channel, 5),
    ]
    for number, (name, make, points) in enumerate(laws):
        part = slice(900 * number, 900 * (number + 1))
        grid = Grid(np.linspace(0, 4, points))
        entropy = seeded_entropy(number)
        indices = grid.round(labels[part], entropy.words("rounding", 0, 900))
        prior = private_prior(np.bincount(indices, minlength=points), 0.5, entropy)
        channel = make(grid.points, 3.0)
        sampled = channel.sample(indices, entropy.words("labels", 0, 900))
        codes = encode_codes(sampled, channel.code_bytes)
        keys = hash_keys(table["event"][part], SECRET)
        manifest = build_manifest(channel, prior, keys, codes)
        manifest = manifest.model_copy(update={"epoch": name})
        write_release(folder / name, manifest.to_bytes(), keys, codes)
    table.write_parquet(folder / "features.parquet")
    pl.DataFrame({"event": table["event"], "amount": labels}).write_parquet(
        folder / "truth.parquet"
    )
    (folder / "key").write_text(SECRET.hex())
    (folder / "key").chmod(0o600)
    return folder


def config(epochs: Path, **training: object) -> FeaturePartyConfig:
    values = {"ensemble": 2, "epochs": 6, "hidden": [16, 8], "batch_size": 64, **training}
    return FeaturePartyConfig.model_validate(
        {
            "data": {"key": "event", "features": epochs / "features.parquet"},
            "keys": {"secret_file": epochs / "key"},
            "training": values,
        }
    )


def problems(count: int = 2) -> list[LabelProblem]:
    """Releases over one grid whose labels are spread in opposite ways."""
    grid = np.linspace(0, 4, 5)
    rising = np.arange(1.0, 6.0)
    made = [
        LabelProblem.from_channel(thresholds_channel(grid, 1.0), rising),
        LabelProblem.from_channel(response_channel(grid, 2.0), rising[::-1]),
        LabelProblem.from_channel(thresholds_channel(np.linspace(0, 4, 3), 1.0), np.ones(3)),
    ]
    return made[:count]


def test_one_release_stays_as_it_is() -> None:
    only = problems(1)
    assert join_problems(only, [7]) is only[0]


def test_the_joint_channel_is_a_published_mixture() -> None:
    joint = join_problems(problems(3), [10, 20, 10])
    first = first_codes(joint.releases)
    assert joint.channel.sum(axis=1) == pytest.approx(1)
    for number, (part, share) in enumerate(zip(joint.releases, (0.25, 0.5, 0.25), strict=True)):
        own = joint.channel[:, first[number] : first[number + 1]]
        assert own == pytest.approx(share * part.channel)
    # labels between the points of a coarser grid are rounded to it at random, without bias
    coarse = joint.releases[2]
    assert coarse.channel[1] == pytest.approx((coarse.channel[0] + coarse.channel[2]) / 2)
    assert coarse.mean == pytest.approx(problems(3)[2].mean)
    assert coarse.prior.min() > 0.1  # which is where some of them were
    for parts in (problems(3)[::-1], problems(3)):  # the finest grid, whoever has it
        assert join_problems(parts, [10, 20, 10]).grid.tolist() == [0, 1, 2, 3, 4]


def test_releases_of_other_labels_or_losses_are_not_joined() -> None:
    first, second = problems()
    wide = thresholds_channel(np.linspace(0, 5, 5), 1.0)
    for other in (replace(second, loss="absolute"), LabelProblem.from_channel(wide, np.ones(5))):
        for parts in ([first, other], [other, first]):
            with pytest.raises(DataError, match="name releases of one domain and loss"):
                join_problems(parts, [1, 1])


def test_a_code_has_the_likelihood_of_its_own_channel() -> None:
    parts = problems()
    joint = join_problems(parts, [300, 100])
    first = first_codes(joint.releases)
    support = Support.from_problem(joint)
    objective = LikelihoodObjective(joint, support, build_head("softmax", support))
    for number, part in enumerate(parts):
        # one grid point a cell here, so that the cells' likelihood is the channel's
        wanted = part.channel / part.channel.max(axis=0)
        own = objective.factors.numpy()[first[number] : first[number + 1]]
        assert pytest.approx(wanted, rel=1e-5) == own.T


def test_decoding_is_unbiased_for_every_epoch_and_not_only_on_average() -> None:
    parts = problems()
    joint = join_problems(parts, [300, 100])
    first = first_codes(joint.releases)
    found = decoder(joint, joint.grid)
    assert found.exact
    for number, part in enumerate(parts):
        own = found.values[first[number] : first[number + 1], 0]
        assert part.channel @ own == pytest.approx(joint.grid)
    # the broken twin: a decoder of the mixture alone
    plain = replace(joint, legs=(Leg(joint.prior, joint.rows, joint.row_of, joint.outputs),))
    twin = decoder(plain, joint.grid)
    assert twin.exact
    pooled = [
        part.channel @ twin.values[first[n] : first[n + 1], 0] for n, part in enumerate(parts)
    ]
    assert max(np.abs(value - joint.grid).max() for value in pooled) > 0.3


def test_errors_are_estimated_without_bias_though_labels_drift() -> None:
    """4 standard errors: a false alarm has a probability below 1e-4, and the seed is fixed."""
    parts = problems()
    joint = join_problems(parts, [20_000, 20_000])
    first = first_codes(joint.releases)
    rng, entropy = np.random.default_rng(0), seeded_entropy(0)
    laws = [np.array([0.7, 0.3, 0, 0, 0]), np.array([0, 0, 0, 0.3, 0.7])]
    channels = [thresholds_channel(joint.grid, 1.0), response_channel(joint.grid, 2.0)]
    labels = [rng.choice(5, 20_000, p=law) for law in laws]
    codes = np.concatenate(
        [
            channel.sample(drawn, entropy.words(f"{n}", 0, 20_000)).astype(np.int64) + start
            for n, (channel, drawn, start) in enumerate(
                zip(channels, labels, first[:-1], strict=True)
            )
        ]
    )
    true = joint.grid[np.concatenate(labels)]
    predicted = Predictions(np.full(true.size, 1.5), None)
    support = Support.from_problem(joint)
    found = estimate_absolute_error(joint, support, predicted, codes)
    assert found.method == "unbiased"
    loss = np.abs(1.5 - true)
    assert abs(found.value - loss.mean()) < 4 * (found.value - found.low) / 1.96


@pytest.mark.slow
def test_a_model_learns_from_all_epochs(epochs: Path) -> None:
    settings = config(epochs)
    folders = [epochs / name for name in ("d1", "d2", "d3")]
    prepared = prepare(folders, epochs / "features.parquet", settings)
    assert prepared.table.height == 2700
    model = train(prepared, settings)
    truth = pl.read_parquet(epochs / "truth.parquet")
    held = prepared.table[prepared.holdout].join(truth, on="event", maintain_order="left")
    error = np.mean((model.predict(held)["prediction"] - held["amount"]).to_numpy() ** 2)
    assert error < 0.6 * held["amount"].var()
    model.save(epochs / "model")
    assert np.allclose(
        Model.load(epochs / "model").predict(held)["prediction"], model.predict(held)["prediction"]
    )


@pytest.mark.slow
def test_a_saved_model_keeps_what_its_head_owes_to_the_channels(epochs: Path) -> None:
    settings = config(epochs, head="canonical")
    folders = [epochs / name for name in ("d1", "d2")]
    model = train(prepare(folders, epochs / "features.parquet", settings), settings)
    model.save(epochs / "canonical")
    held = pl.read_parquet(epochs / "features.parquet")
    predicted = model.predict(held)["prediction"].to_numpy()
    assert predicted.std() > 0.1
    again = Model.load(epochs / "canonical")
    assert again.problem.rows.shape == (1, 1)  # the channels are gone
    np.testing.assert_array_equal(again.predict(held)["prediction"].to_numpy(), predicted)


@pytest.mark.slow
def test_codes_of_an_epoch_stand_behind_those_before(epochs: Path) -> None:
    folders = [epochs / name for name in ("d1", "d3")]
    prepared = prepare(folders, epochs / "features.parquet", config(epochs))
    joint = prepared.problem
    codes = prepared.codes.astype(np.int64)
    early, late = joint.by_release(codes)
    numbers = prepared.table["event"].str.strip_prefix("e").cast(pl.Int64).to_numpy()
    assert np.array_equal(late[1], numbers >= 1800)
    for (_, _, own), folder in zip((early, late), folders, strict=True):
        alone = prepare(folder, epochs / "features.parquet", config(epochs))
        assert np.array_equal(own, alone.codes)


def test_releases_that_do_not_belong_together_are_refused(epochs: Path) -> None:
    one, other = problems()
    with pytest.raises(DataError, match="cannot be learned from together"):
        join_problems([one, replace(other, grid=np.linspace(0, 5, 5))], [1, 1])
    with pytest.raises(ConfigError, match="set one of"):
        FeaturePartyConfig.model_validate({"labels_party": {"epoch": "a", "epochs": ["b"]}})
    with pytest.raises(ValueError, match="should match pattern"):
        FeaturePartyConfig.model_validate({"labels_party": {"epochs": ["../x"]}})


@pytest.mark.slow
def test_the_command_line_takes_a_folder_of_epochs(epochs: Path, tmp_path: Path) -> None:
    common = [
        *("--features", str(epochs / "features.parquet"), "--key", "event"),
        *("--secret-file", str(epochs / "key"), "--model", str(tmp_path / "model"), "--quiet"),
        *("--set", "training.hidden=[8]", "--set", "training.ensemble=2"),
        *("--set", "training.epochs=2", "--set", f"output.report='{tmp_path / 'report.html'}'"),
        *("--set", f"output.metrics='{tmp_path / 'metrics.json'}'"),
    ]
    everything = ["--release", str(epochs)]
    for command in ("train", "evaluate"):
        done = CliRunner().invoke(app, [command, *common, *everything], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["epochs"] == 3
    assert metrics["rows"] == 2700
    assert "One model of 3 epochs" in (tmp_path / "report.html").read_text()
    # a model of all epochs is not one of two of them
    some = [*everything, "--set", 'labels_party.epochs=["d1", "d3"]']
    with pytest.raises(DataError, match="trained with release"):
        CliRunner().invoke(app, ["evaluate", *common, *some], catch_exceptions=False)
