"""What is taken for the same is the same in every field; what is about all rows is about all."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.errors import ReleaseError
from labelveil.common.release.manifest import Manifest
from labelveil.common.security.pilot_certificates import CertificateFiles
from labelveil.feature_party.client.release_client import ReleaseClient, RetryPolicy
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.evaluation.scores import release_metrics
from labelveil.feature_party.evaluation.true_labels import true_errors
from labelveil.feature_party.join.matches import JoinInputs, Party
from labelveil.feature_party.join.on_disk import JoinSizes, join_content
from labelveil.feature_party.model.prediction import predict_file
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.training.in_memory import Prepared
from tests.feature_party.learn import prepare, train
from tests.feature_party.servers import Behaviour, client_settings, serving
from tests.feature_party.two_labels import two_labels
from tests.feature_party.worlds import SECRET, World


@pytest.mark.parametrize("other", [{"epoch": "two"}, {"epoch": "on"}, {"data_set": "sale"}])
def test_another_release_than_asked_for_is_refused(
    world: World, files: CertificateFiles, tmp_path: Path, other: dict[str, str]
) -> None:
    """A labels party that answers any question with what it has."""
    behaviour = Behaviour()
    if "data_set" in other:
        stated = json.loads(world.release.manifest_bytes)
        behaviour.manifest = Manifest.from_bytes(
            json.dumps(stated | other, sort_keys=True, separators=(",", ":")).encode()
        ).to_bytes()
        other = {}
    with serving(world, behaviour, files) as address:
        asked = client_settings(address, files, **other)
        client = ReleaseClient(asked, RetryPolicy(attempts=1))
        for ask in (lambda: client.describe("show"), lambda: client.fetch(tmp_path / "release")):
            with pytest.raises(ReleaseError, match="instead of"):
                ask()
    assert not (tmp_path / "release").exists()


def altered(inputs: JoinInputs, folder: Path) -> dict[str, list[JoinInputs]]:
    """For each field of a join's inputs, others that differ there alone."""
    moved = folder / "moved.parquet"
    moved.write_bytes(inputs.features.read_bytes())
    second = folder / "second"
    second.mkdir()
    for name in inputs.releases[0].iterdir():
        data = name.read_bytes()
        (second / name.name).write_bytes(data.replace(b'"sales"', b'"salet"'))
    stated = {
        "given": Stated.from_settings({"x": "number"}).given,
        "numeric": ("x",),
        "ignored": ("x",),
    }
    return {
        "releases": [replace(inputs, releases=(second,))],
        "features": [replace(inputs, features=moved)],
        "key": [replace(inputs, key="shop")],
        "parties": [replace(inputs, parties=(Party(bytes(32)),))],
        "stated": [
            replace(inputs, stated=Stated(**{field.name: stated[field.name]}))
            for field in fields(Stated)
        ],
    }


def test_a_join_is_another_one_if_any_input_is(world: World, tmp_path: Path) -> None:
    """The name that a single labels party has here changes no join."""
    inputs = JoinInputs((world.directory,), world.features, "event", (Party(SECRET),))
    sizes = JoinSizes()
    others = altered(inputs, tmp_path)
    assert {*others} == {field.name for field in fields(JoinInputs)}
    content = [join_content(inputs, sizes)]
    content += [join_content(other, sizes) for group in others.values() for other in group]
    content.append(join_content(inputs, replace(sizes, slice_rows=sizes.slice_rows // 2)))
    assert len({*content}) == len(content)
    assert join_content(replace(inputs), JoinSizes()) == content[0]


def test_a_join_is_another_one_if_its_features_were_written_again(
    world: World, tmp_path: Path
) -> None:
    path = tmp_path / "features.parquet"
    path.write_bytes(world.features.read_bytes())
    inputs = JoinInputs((world.directory,), path, "event", (Party(SECRET),))
    contents = {join_content(inputs, JoinSizes())}
    for size in (path.stat().st_size, 9):
        os.truncate(path, size)
        os.utime(path, ns=(1, 1))
        contents.add(join_content(inputs, JoinSizes()))
    assert len(contents) == 3


def config(world: World, **training: object) -> FeaturePartyConfig:
    return FeaturePartyConfig.model_validate(
        {
            "data": {"key": "event", "features": world.features},
            "keys": {"secret_file": world.secret_file},
            "training": {"ensemble": 2, "epochs": 2, "hidden": [8], "head": "gaussian", **training},
        }
    )


@pytest.fixture(scope="module")
def prepared(world: World) -> Prepared:
    found: Prepared = prepare(world.directory, world.features, config(world))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("batch_rows", [97, 10_000])
def test_every_row_is_held_out_or_trained_on_by_its_own_place(
    world: World, prepared: Prepared, tmp_path: Path, batch_rows: int
) -> None:
    rows = pl.read_parquet(world.features).height
    mask = np.random.default_rng(3).random(rows) < 0.7
    model = train(prepared, config(world, learner="linear"))
    predict_file(
        model,
        world.features,
        tmp_path / "out.parquet",
        key="event",
        trained=lambda start, stop: mask[start:stop],
        batch_rows=batch_rows,
    )
    found = pl.read_parquet(tmp_path / "out.parquet")["held_out"].to_numpy()
    np.testing.assert_array_equal(found, ~mask)


def test_the_constant_has_seen_no_event_that_is_scored(prepared: Prepared) -> None:
    labels = np.random.default_rng(4).uniform(0, 1, prepared.all_codes().size)
    labels[prepared.holdout] += 2.5  # by which a mean of all would be closer
    kept = np.setdiff1d(np.arange(labels.size), prepared.holdout)
    points = np.zeros(prepared.holdout.size)
    found = true_errors(points, labels, prepared, None, "amount")
    scored = labels[prepared.holdout]
    assert found.constant_mse == pytest.approx(np.mean((scored - labels[kept].mean()) ** 2))
    assert found.mse == pytest.approx(np.mean(scored**2))
    assert found.mae == pytest.approx(np.mean(scored))


def test_a_checkpoint_of_other_rows_is_not_taken_up(
    world: World, prepared: Prepared, tmp_path: Path
) -> None:
    """The same settings and columns, other labels."""
    other = replace(prepared, codes=prepared.codes[::-1].copy())
    settings = config(world)

    def epochs(rows: Any) -> list[int]:
        found: list[int] = []
        train(rows, settings, folder=tmp_path, on_epoch=lambda what, one: found.append(one.epoch))
        return found

    assert epochs(prepared) == [1, 2]
    assert epochs(prepared) == []
    assert epochs(other) == [1, 2]


@pytest.mark.parametrize("asked", [(3.0, 1.0), (1.0, 3.0), (1.0, 3.0, 2.0)])
def test_the_epsilon_of_several_epochs_is_the_largest(
    world: World, asked: tuple[float, ...]
) -> None:
    manifest = world.release.manifest
    epochs = []
    for epsilon in asked:
        privacy = manifest.privacy.model_copy(update={"requested_epsilon": epsilon})
        epochs.append(manifest.model_copy(update={"privacy": privacy}))
    assert release_metrics(epochs, "amount")["epsilon"] == 3.0


def test_what_a_release_states_of_a_label_is_of_that_one() -> None:
    manifest = two_labels(100, "separate")[0].manifest
    amount = next(one for one in manifest.labels if one.name == "amount")
    other = amount.model_copy(update={"loss": "poisson"})
    labels = [one if one.name != "amount" else other for one in manifest.labels]
    manifest = manifest.model_copy(update={"labels": labels})
    for name, loss in (("returned", "squared"), ("amount", "poisson")):
        (channel,) = (one.channel for one in manifest.randomizers if one.labels == [name])
        facts = release_metrics([manifest], name)
        assert (facts["loss"], facts["outputs"]) == (loss, len(channel["outputs"]))
