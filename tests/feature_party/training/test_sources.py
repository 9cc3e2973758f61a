"""One model of several labels parties, each with a grid, a channel and units of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import private_prior
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.blocks import encode_codes
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import write_release
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.scores import score
from labelveil.feature_party.export.torch_module import ServedModel, served_columns
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem, first_codes, join_legs
from labelveil.feature_party.learning.sources import join_sources, own_cells, own_labels
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Model
from labelveil.feature_party.model.prediction import predict_file
from labelveil.feature_party.training.in_memory import Prepared
from labelveil.feature_party.training.prepare import Preparation
from labelveil.feature_party.training.streamed import PreparedShards
from tests.feature_party.learn import train
from tests.feature_party.worlds import SECRET, build_manifest, made_up_events, thresholds_channel

Channel = Callable[[np.ndarray, float], FiniteChannel]
SECRETS = {"euro": SECRET, "yen": bytes(reversed(SECRET))}
SCALES = {"euro": 1.0, "yen": 150.0}
EACH = 1200
SHARED = 40


def response_channel(grid: np.ndarray, epsilon: float) -> FiniteChannel:
    return FiniteChannel(grid, grid, randomized_response_rows(grid.size, epsilon))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two labels parties with 1,200 events each, 40 of them the same; labels of one are 150 times
    those of the other, on another grid, through another channel, under another key secret."""
    folder = tmp_path_factory.mktemp("sources")
    table, labels = made_up_events(2 * EACH - SHARED, 3)
    truth = []
    laws: list[tuple[str, Channel, int, slice]] = [
        ("euro", thresholds_channel, 9, slice(0, EACH)),
        ("yen", response_channel, 33, slice(EACH - SHARED, 2 * EACH - SHARED)),
    ]
    for number, (name, make, points, part) in enumerate(laws):
        own = labels[part] * SCALES[name]
        grid = Grid(np.linspace(0, 4 * SCALES[name], points))
        entropy = seeded_entropy(number)
        indices = grid.round(own, entropy.words("rounding", 0, EACH))
        prior = private_prior(np.bincount(indices, minlength=points), 0.5, entropy)
        channel = make(grid.points, 3.0 + number)
        codes = encode_codes(
            channel.sample(indices, entropy.words("labels", 0, EACH)), channel.code_bytes
        )
        keys = hash_keys(table["event"][part], SECRETS[name])
        manifest = build_manifest(channel, prior, keys, codes, secret=SECRETS[name])
        manifest = manifest.model_copy(update={"data_set": name})
        write_release(folder / name, manifest.to_bytes(), keys, codes)
        truth.append(
            pl.DataFrame({"event": table["event"][part], "labels_party": name, "amount": own})
        )
    table.write_parquet(folder / "features.parquet")
    pl.concat(truth).write_parquet(folder / "truth.parquet")
    return folder


def config(sources: Path, **training: object) -> FeaturePartyConfig:
    values = {"ensemble": 2, "epochs": 6, "hidden": [16], "batch_size": 64, "head": "gaussian"}
    return FeaturePartyConfig.model_validate(
        {
            "data": {"key": "event", "features": sources / "features.parquet"},
            "training": {**values, **training},
            "join": {"directory": sources / "joined", "shard_rows": 500},
        }
    )


def prepare(sources: Path, settings: FeaturePartyConfig, **secrets: bytes) -> object:
    parties = tuple(Party(secret, name) for name, secret in {**SECRETS, **secrets}.items())
    folders = tuple(sources / name for name in SECRETS)
    inputs = JoinInputs(folders, settings.features, "event", parties)
    sections = settings.training, settings.join, settings.engine
    (events,) = Preparation(inputs, *sections).events().values()
    return events


@pytest.fixture(scope="module")
def trained(sources: Path) -> tuple[Prepared, Model]:
    settings = config(sources)
    events = prepare(sources, settings)
    assert isinstance(events, Prepared)
    return events, train(events, settings)


def problems() -> list[LabelProblem]:
    """One law of labels in two units, on two grids."""
    fine = np.linspace(0, 4, 9)
    law = np.arange(9.0, 0, -1)
    coarse = np.linspace(0, 600, 5)
    rounded = np.repeat(np.eye(5), 2, axis=0)[:9]
    return [
        LabelProblem.from_channel(thresholds_channel(fine, 1.0), law),
        LabelProblem.from_channel(thresholds_channel(coarse, 2.0), law @ rounded),
    ]


def test_labels_of_sources_meet_on_one_axis() -> None:
    parts = problems()
    joint = join_sources(parts, [30, 10], ["a", "b"])
    assert joint.channel.sum(axis=1) == pytest.approx(1)
    for part, (source, _), own in zip(parts, joint.each_source(), joint.releases, strict=True):
        assert (source.location, source.scale) == (0.0, pytest.approx(part.mean))
        assert own.mean == pytest.approx(1)  # of y over its mean
    assert [source.name for source in joint.sources] == ["a", "b"]


def test_one_source_is_what_it_was_before() -> None:
    for part, name in zip(problems(), "ab", strict=True):
        joint = join_sources(problems(), [30, 10], ["a", "b"])
        own = own_labels(joint, name)
        assert own.grid[[0, -1]] == pytest.approx(part.grid[[0, -1]])
        assert own.mean == pytest.approx(part.mean)
        at = [int(np.abs(own.grid - value).argmin()) for value in part.grid]
        assert own.grid[at] == pytest.approx(part.grid)
        assert own.channel[at] == pytest.approx(part.channel)
        assert own.outputs == pytest.approx(part.outputs)
        assert len(joint.codes_of(name)) == part.outputs.size


def test_the_releases_of_a_source_are_what_they_were_before() -> None:
    low, high = problems()
    again = join_legs([high, high], [1, 1], strata=True)
    joint = join_sources([low, high, again], [30, 10, 20], ["a", "b", "b"])
    own = own_labels(joint, "b")
    assert [leg.release for leg in own.legs] == [0, 1, 1]
    assert [leg.share for leg in own.legs] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert own.grid[[0, -1]] == pytest.approx(high.grid[[0, -1]])
    for found in own.legs:
        assert found.outputs == pytest.approx(high.outputs)
    (_, _), (source, start) = joint.each_source()
    for moved in joint.legs[start:]:
        assert source.location + source.scale * moved.outputs == pytest.approx(high.outputs)


def test_decoding_is_exact_though_one_range_ends_before_the_other() -> None:
    low, high = problems()
    narrow = low.with_prior(np.eye(9)[8])  # all at the upper end: the axis ends at its mean
    joint = join_sources([narrow, high], [1, 1], ["a", "b"])
    assert joint.sources[0].last < joint.grid.size - 1
    found = decoder(joint, joint.grid)
    assert found.exact
    first = first_codes(joint.releases)
    for number, (part, (source, _)) in enumerate(
        zip(joint.releases, joint.each_source(), strict=True)
    ):
        values = found.values[first[number] : first[number + 1], 0]
        inside = slice(source.first, source.last + 1)
        assert (part.channel @ values)[inside] == pytest.approx(joint.grid[inside])


def test_what_lies_beyond_a_sources_range_is_at_its_end() -> None:
    low, high = problems()
    joint = join_sources([low.with_prior(np.eye(9)[8]), high], [1, 1], ["a", "b"])
    support = Support.from_problem(joint)
    own, cells = own_cells(joint, support, "a", own_labels(joint, "a"))
    beyond = np.eye(support.size)[-1]
    assert beyond @ cells @ own.values == pytest.approx(4)
    assert cells.sum(axis=1) == pytest.approx(1)
    assert own.values[[0, -1]] == pytest.approx([0, 4])


def test_labels_below_zero_are_centred() -> None:
    parts = problems()
    moved = [replace(part, grid=part.grid - part.grid[-1] / 2) for part in parts]
    joint = join_sources(moved, [1, 1], ["a", "b"])
    assert [own.mean for own in joint.releases] == pytest.approx([0, 0])
    # labels between a party's own points vary less than those that were rounded to them
    assert all(0.95 < own.deviation < 1 for own in joint.releases)


def binary(values: tuple[float, float], share: float) -> LabelProblem:
    grid = np.array(values)
    return LabelProblem.from_channel(response_channel(grid, 1.0), [1 - share, share])


def test_two_values_are_the_same_two_for_all() -> None:
    joint = join_sources([binary((0, 1), 0.1), binary((1, 2), 0.4)], [1, 1], ["a", "b"])
    assert joint.discrete
    assert joint.grid == pytest.approx([0, 1])
    assert own_labels(joint, "b").grid == pytest.approx([1, 2])
    assert own_labels(joint, "b").prior == pytest.approx([0.6, 0.4])


def test_other_kinds_of_labels_are_refused() -> None:
    amounts = problems()[0]
    with pytest.raises(DataError, match=r"'a', 2 values .*'b', on a range .*a model for each"):
        join_sources([binary((0, 1), 0.5), amounts], [1, 1], ["a", "b"])
    with pytest.raises(DataError, match="under absolute loss"):
        join_sources([amounts, replace(amounts, loss="absolute")], [1, 1], ["a", "b"])
    one = join_sources([amounts], [1], ["a"])
    assert one is amounts


def truth_of(sources: Path, events: Prepared, model: Model, name: str) -> tuple[np.ndarray, ...]:
    own = events.for_source(name)
    assert isinstance(own, Prepared)
    held = own.table[own.holdout]
    truth = pl.read_parquet(sources / "truth.parquet").filter(labels_party=name)
    labels = held.join(truth, on="event", maintain_order="left")["amount"].to_numpy()
    return model.for_source(name).predict(held.drop("labels_party"))[
        "prediction"
    ].to_numpy(), labels


@pytest.mark.slow
def test_one_model_learns_from_all_and_predicts_in_everyones_units(
    sources: Path, trained: tuple[Prepared, Model], tmp_path: Path
) -> None:
    events, model = trained
    assert events.table.height == 2 * EACH  # an event of both has two rows
    assert model.sources == ("euro", "yen")
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    for name in model.sources:
        points, labels = truth_of(sources, events, model, name)
        assert np.mean((points - labels) ** 2) < 0.6 * labels.var()
        assert truth_of(sources, events, again, name)[0] == pytest.approx(points)
    with pytest.raises(
        ConfigError, match="must be a labels party that was learned from: euro, yen"
    ):
        model.for_source("dollar")


@pytest.mark.slow
def test_an_event_of_two_sources_is_on_one_side_of_the_holdout(
    trained: tuple[Prepared, Model],
) -> None:
    events, _ = trained
    names = events.table["event"].to_numpy()
    assert not set(names[events.training]) & set(names[events.holdout])
    both = events.table.group_by("event").len().filter(pl.col("len") == 2)
    assert both.height == SHARED


def test_shards_hold_the_same_events_of_each_source(
    sources: Path, trained: tuple[Prepared, Model]
) -> None:
    events, model = trained
    streamed = prepare(sources, config(sources, shards=str(sources / "encoded")))
    assert isinstance(streamed, PreparedShards)
    manifests = [(sources / name / "manifest.json").read_bytes() for name in SECRETS]
    facts = [*(hashlib.sha256(each).hexdigest() for each in manifests), *SECRETS]
    whose = hashlib.sha256("".join(facts).encode()).hexdigest()
    assert streamed.release_id == events.release_id == whose
    for name in model.sources:
        one, other = events.for_source(name), streamed.for_source(name)
        assert one.matches == other.matches
        assert one.training_rows == other.training_rows
        np.testing.assert_array_equal(one.holdout, other.holdout)
        np.testing.assert_array_equal(one.held_out()[1], other.held_out()[1])
        assert one.held_out()[0].equals(other.held_out()[0])
        assert one.keys().equals(other.keys())


def test_evaluation_says_it_by_source(sources: Path, trained: tuple[Prepared, Model]) -> None:
    events, model = trained
    manifests = [
        Manifest.from_bytes((sources / name / "manifest.json").read_bytes()) for name in SECRETS
    ]
    with pytest.raises(DataError, match="by='price' is no column of the features; columns: "):
        score(model, events, manifests, by=["price"])
    scores = score(model, events, manifests)
    assert list(scores.sources) == ["euro", "yen"]
    for name, own in scores.sources.items():
        points, labels = truth_of(sources, events, model, name)
        assert own.points == pytest.approx(points)
        # the seed is fixed; the interval is wide
        true = 1 - np.mean((points - labels) ** 2) / labels.var()
        interval = own.explained.assumption_free
        assert interval.low - 0.1 < true < interval.high + 0.1
        assert own.explained.constant == pytest.approx(labels.var(), rel=0.4)
        assert any(name in line for line in scores.summary)
        assert scores.to_json()["sources"][name]["matched"] == EACH
    assert [own.epsilon for own in scores.sources.values()] == [3.5, 4.5]


def test_true_labels_are_learned_from_of_one_party(
    sources: Path, trained: tuple[Prepared, Model]
) -> None:
    events, _ = trained
    with pytest.raises(ConfigError, match="trains on the labels of one labels party; configure"):
        train(events, config(sources, objective="true"), true_labels=np.zeros(2 * EACH))


def test_predictions_for_one_for_a_column_or_for_all(
    sources: Path, trained: tuple[Prepared, Model], tmp_path: Path
) -> None:
    model = trained[1]
    table = pl.read_parquet(sources / "features.parquet")[:6]
    table = table.with_columns(whose=pl.Series(["euro", "yen"] * 3))
    path, out = tmp_path / "new.parquet", tmp_path / "out.parquet"
    table.write_parquet(path)
    assert predict_file(model, path, out, key="event").rows == 12
    every = pl.read_parquet(out)
    assert every["labels_party"].to_list() == ["euro", "yen"] * 6
    assert predict_file(model, path, out, key="event", source="yen").rows == 6
    assert pl.read_parquet(out)["prediction"].equals(every["prediction"][1::2])
    assert predict_file(model, path, out, key="event", source="whose").rows == 6
    mixed = pl.read_parquet(out)
    assert mixed["event"].equals(table["event"])
    assert mixed["labels_party"].equals(table["whose"].alias("labels_party"))
    table.with_columns(whose=pl.lit("dollar")).write_parquet(path)
    with pytest.raises(DataError, match="whose='dollar' must name a labels party"):
        predict_file(model, path, out, source="whose")


def test_what_is_exported_is_the_model_of_one(
    sources: Path, trained: tuple[Prepared, Model]
) -> None:
    table = pl.read_parquet(sources / "features.parquet")[:50]
    for name in SECRETS:
        own = trained[1].for_source(name)
        columns = served_columns(own.encoder)
        assert "labels_party" not in [column.name for column in columns]
        inputs = [torch.as_tensor(column.values(table)) for column in columns]
        points, *_ = ServedModel(own).eval()(*inputs)
        assert points.detach().numpy() == pytest.approx(own.predict(table)["prediction"])


def test_a_source_whose_keys_do_not_match_is_named(sources: Path) -> None:
    with pytest.raises(DataError, match=r"none of the 1,200 events of 'yen' .* secret_file"):
        prepare(sources, config(sources), yen=SECRET)
