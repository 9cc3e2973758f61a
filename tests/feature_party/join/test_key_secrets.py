"""Each release is joined under the secret that its keys are hashed with, of those configured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from labelveil.common.config.load import load_config
from labelveil.common.errors import ConfigError, DataError, LabelveilError
from labelveil.common.release.event_keys import hash_keys
from labelveil.common.release.folder import POPULATION_FILE
from labelveil.common.release.table import write_release
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.join.shards import JoinedShards
from labelveil.feature_party.pipeline.learning import Learning
from tests.feature_party.worlds import World, build_manifest, build_world

OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
ROWS = 300


@pytest.fixture
def world(tmp_path: Path) -> World:
    return build_world(tmp_path, rows=ROWS)


def released(
    world: World, epoch: str, secret: bytes, *, first: bool = False, submitted: bool = False
) -> None:
    """Write an epoch of the world's events as a fetch leaves it; ``first`` is format 1."""
    keys = hash_keys(pl.read_parquet(world.truth)["event"], secret)
    channel, prior = world.release.manifest.channel, world.release.manifest.message.histograms[0][1]
    sent = b"" if submitted else keys
    manifest = build_manifest(
        channel, prior, sent, world.codes, submitted=keys if submitted else b"", secret=secret
    ).model_copy(update={"epoch": epoch})
    data = manifest.to_bytes()
    if first:
        document = json.loads(data) | {"format": "labelveil-release/1"}
        del document["population"]["secret_check"]
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        data = text.encode()
    folder = world.directory.parent / "releases" / epoch
    write_release(folder, data, sent, world.codes)
    if submitted:
        (folder / POPULATION_FILE).write_bytes(keys)


def stages(world: World, *secrets: bytes, **keys: Any) -> Learning:
    folder = world.directory.parent
    files = [folder / f"secret-{number}" for number in range(len(secrets))]
    for path, secret in zip(files, secrets, strict=True):
        path.write_text(secret.hex())
        path.chmod(0o600)
    settings = {
        "data": {"features": world.features, "key": "event"},
        "keys": {"secret_file": files[0], "old_secret_files": files[1:], **keys},
        "release": {"directory": folder / "releases"},
        "join": {"directory": folder / "joined"},
    }
    return Learning(FeaturePartyConfig.model_validate(settings), quiet=True)


def joined(world: World, *secrets: bytes, **keys: Any) -> JoinedShards:
    return stages(world, *secrets, **keys).join()


def refusal(world: World, *secrets: bytes, **keys: Any) -> str:
    with pytest.raises(LabelveilError) as error:
        joined(world, *secrets, **keys)
    assert "\n" not in str(error.value)
    assert not (world.directory.parent / "joined").exists()
    return str(error.value)


def whole(shards: JoinedShards) -> bool:
    """Whether each event was joined once with each epoch's code of its own."""
    counts = [sum(each) for each in zip(*shards.labels, strict=True)]
    return shards.matches.matched == len(counts) * ROWS and set(counts) == {ROWS}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("secrets", [(NEW, OLD), (OLD, NEW), (NEW, OTHER, NEW, OLD)])
def test_epochs_before_and_after_a_change_are_joined_together(
    world: World, secrets: Sequence[bytes], first: bool
) -> None:
    released(world, "1", OLD, first=first)
    released(world, "2", NEW, first=first)
    released(world, "3", NEW)
    assert whole(joined(world, *secrets))


@pytest.mark.parametrize("kept", ["whole", "damaged", "gone"])
@pytest.mark.parametrize("first", [False, True])
def test_submitted_populations_are_too(world: World, kept: str, first: bool) -> None:
    for epoch, secret in (("1", OLD), ("2", NEW)):
        released(world, epoch, secret, first=first, submitted=True)
        path = world.directory.parent / "releases" / epoch / POPULATION_FILE
        if kept == "damaged":  # the features are the list then, in its order
            path.write_bytes(bytes(path.stat().st_size))
        elif kept == "gone":
            path.unlink()
    pl.read_parquet(world.features).sort(pl.col("event").str.slice(1).cast(int)).write_parquet(
        world.features
    )
    assert whole(joined(world, NEW, OLD))


def test_epochs_under_none_of_the_secrets_are_named_with_what_to_do(world: World) -> None:
    released(world, "1", OLD)
    released(world, "2", OLD)
    released(world, "3", NEW)
    line = refusal(world, NEW)
    assert "the keys of epochs '1', '2' are hashed with another secret than" in line
    assert "secret-0" in line
    assert "old_secret_files" in line
    assert "'3'" not in line
    for wrong in (OTHER, NEW):  # beside the right one, and twice the same
        assert "epochs '1', '2'" in refusal(world, NEW, wrong)
    assert whole(joined(world, NEW, OTHER, OLD))


@pytest.mark.parametrize("first", [False, True])
def test_features_without_their_key_are_named_before_any_secret_is_tried(
    world: World, first: bool
) -> None:
    released(world, "1", OLD, first=first)
    pl.read_parquet(world.features).rename({"event": "other"}).write_parquet(world.features)
    line = refusal(world, NEW, OLD)
    assert "event" in line
    assert "other" in line


def test_of_format_1_the_only_secret_is_taken_and_a_hint_is_given(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest that does not say its secret: what matches nothing is named."""
    released(world, "1", OLD, first=True)
    released(world, "2", NEW, first=True)
    counts = joined(world, NEW).matches
    assert (counts.matched, counts.unmatched) == (ROWS, ("1",))
    said = " ".join(capsys.readouterr().err.split())
    assert "no event of epoch '1' is in the features" in said
    assert "old_secret_files" in said
    assert "epoch '1'" in refusal_beside(world, NEW, OTHER)


def refusal_beside(world: World, *secrets: bytes) -> str:
    with pytest.raises(DataError) as error:
        joined(world, *secrets)
    return str(error.value)


def test_where_the_secret_is_right_nobody_is_sent_to_look_at_it(world: World) -> None:
    released(world, "1", OLD)
    table = pl.read_parquet(world.features)
    spelled = {"in lower case": pl.col("event").str.to_uppercase()}
    spelled["without white space around them"] = pl.col("event") + " "
    for how, event in spelled.items():
        table.with_columns(event=event).write_parquet(world.features)
        line = refusal(world, OLD)
        assert "none of the 300 events" in line
        assert "how keys are written; the key secret is the right one" in line
        assert line.endswith(f"written {how}, 300 of the first 300 are among them")
    table.with_columns(event=pl.col("event") + "?").write_parquet(world.features)
    assert refusal(world, OLD).endswith("the key secret is the right one")


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [(OLD.hex(), 0o644, "chmod 600"), ("short", 0o600, "64 hexadecimal"), (None, 0o600, "cannot")],
)
def test_an_old_secret_that_cannot_be_used_is_told(
    world: World, content: str | None, mode: int, said: str
) -> None:
    released(world, "1", NEW)  # even where it is not needed
    path = world.directory.parent / "old"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=said):
        joined(world, NEW, old_secret_files=[path])


def test_a_repeated_key_is_counted_once_under_two_secrets(world: World) -> None:
    released(world, "1", OLD)
    released(world, "2", NEW)
    table = pl.read_parquet(world.features)
    pl.concat([table, table.head(2)]).write_parquet(world.features)
    assert "2 rows repeat a key" in refusal(world, NEW, OLD)


def test_the_file_takes_them_as_a_list(world: World, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(
        '[keys]\nsecret_file = "new.key"\nold_secret_files = ["old.key", "older.key"]\n'
    )
    config = load_config(FeaturePartyConfig, tmp_path / "f.toml")
    names = ["new.key", "old.key", "older.key"]
    assert config.secrets_of(config.only_labels_party) == [Path(name) for name in names]
