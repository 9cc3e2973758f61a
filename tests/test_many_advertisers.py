"""One model of two labels parties, each a server of its own, by the features party's commands."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from labelveil.common.config.wording import as_toml
from labelveil.common.errors import ConfigError, ConnectionFailed, DataError
from labelveil.common.security.pilot_certificates import write_certificates
from labelveil.feature_party.commands.cli import app
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.release.run import run_release
from labelveil.label_party.server.run import running
from tests.statistics import repeatable_entropy

EACH, SHARED = 600, 20
SCALES = {"shoes": 1.0, "lamps": 150.0}
EPSILONS = {"shoes": 4.0, "lamps": 6.0}
TRAINING = {"learner": "linear", "head": "gaussian", "ensemble": 2, "checkpoint": False}


@dataclass(frozen=True)
class Publisher:
    """A features party's folder, and what its file says."""

    folder: Path
    sections: dict[str, Any]

    def changed(self, party: int = 0, **settings: object) -> Publisher:
        """The same with other settings of one labels party."""
        parties = [dict(one) for one in self.sections["labels_party"]]
        parties[party].update(settings)
        return Publisher(self.folder, {**self.sections, "labels_party": parties})

    def run(self, command: str, *arguments: str) -> str:
        sets = [
            f"--set={section}={as_toml(values)}"
            if isinstance(values, list)
            else f"--set={section}.{name}={as_toml(value)}"
            for section, values in self.sections.items()
            for name, value in (values.items() if isinstance(values, dict) else [("", None)])
        ]
        done = CliRunner().invoke(app, [command, *sets, *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    """Two labels parties that serve 600 events each, 20 of them the same, with secrets of their
    own; one's amounts are 150 times the other's."""
    folder = tmp_path_factory.mktemp("advertisers")
    rng = np.random.default_rng(1)
    rows = 2 * EACH - SHARED
    x = rng.uniform(0, 2, rows)
    table = pl.DataFrame({"click": [f"c{row}" for row in range(rows)], "x": x})
    amounts = (2 * x + 0.3 * rng.normal(size=rows)).clip(0, 4)
    table.write_parquet(folder / "clicks.parquet")
    parties, truth = [], []
    with ExitStack() as serving, repeatable_entropy():
        for start, (name, scale) in zip((0, EACH - SHARED), SCALES.items(), strict=True):
            files = write_certificates(folder / name)
            labels = (
                table[start : start + EACH]
                .select("click")
                .with_columns(amount=pl.Series(scale * amounts[start : start + EACH]))
            )
            labels.write_parquet(folder / f"{name}.parquet")
            truth.append(labels.with_columns(labels_party=pl.lit(name)))
            config = LabelPartyConfig.model_validate(
                {
                    "data": {
                        "labels": folder / f"{name}.parquet",
                        "key": "click",
                        "label": "amount",
                        "data_set": name,
                    },
                    "domain": {"lower": 0, "upper": 4 * scale},
                    "privacy": {"epsilon": EPSILONS[name]},
                    "keys": {"secret_file": files.join_secret},
                    "store": {"directory": folder / f"{name}-store"},
                    "server": {
                        "listen": "localhost:0",
                        "certificate": files.label_party_certificate,
                        "private_key": files.label_party_key,
                        "client_ca": files.authority,
                        "grace_seconds": 1.0,
                    },
                }
            )
            run_release(config, quiet=True)
            parties.append(
                {
                    "data_set": name,
                    "address": serving.enter_context(running(config)),
                    "secret_file": str(files.join_secret),
                    "ca": str(files.authority),
                    "certificate": str(files.feature_party_certificate),
                    "private_key": str(files.feature_party_key),
                }
            )
        pl.concat(truth).write_parquet(folder / "truth.parquet")
        yield Publisher(
            folder,
            {
                "data": {"features": str(folder / "clicks.parquet"), "key": "click"},
                "release": {"directory": str(folder / "release")},
                "training": TRAINING,
                "output": {
                    "model": str(folder / "model"),
                    "predictions": str(folder / "predictions.parquet"),
                    "metrics": str(folder / "metrics.json"),
                    "report": str(folder / "report.html"),
                },
                "labels_party": parties,
            },
        )


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_run_says_everything_by_labels_party(publisher: Publisher) -> None:
    truth = str(publisher.folder / "truth.parquet")
    said = publisher.run("run", f"--true-labels={truth}", "--true-label=amount")
    metrics = json.loads((publisher.folder / "metrics.json").read_text())
    predicted = pl.read_parquet(publisher.folder / "predictions.parquet")
    assert predicted.height == 2 * (2 * EACH - SHARED)
    for name, epsilon in EPSILONS.items():
        own = metrics["sources"][name]
        assert (own["epsilon"], own["matched"]) == (epsilon, EACH)
        assert own["test_r2"] > 0.5
        assert own["test_mse"] < 2 * SCALES[name] ** 2
        assert f"{name}, ε = {epsilon:g}: R²" in said
        page = (publisher.folder / f"report-{name}.html").read_text()
        (other,) = set(EPSILONS) - {name}
        assert name in page
        assert other not in page
        assert f"report-{name}.html" in (publisher.folder / "report.html").read_text()
    means = predicted.group_by("labels_party").agg(pl.col("prediction").mean())
    means_of = dict(means.iter_rows())
    assert means_of["lamps"] / means_of["shoes"] == pytest.approx(150, rel=0.3)


@pytest.mark.slow
def test_one_that_cannot_be_reached_keeps_nobody_elses_back(
    publisher: Publisher, tmp_path: Path
) -> None:
    lost = publisher.changed(0, server_name="elsewhere.example")
    lost.sections["release"] = {"directory": str(tmp_path / "release")}
    with pytest.raises(
        ConnectionFailed, match=r"^1 of 2 labels parties .*; shoes: .* another name"
    ):
        lost.run("fetch")
    assert not (tmp_path / "release" / "shoes" / "manifest.json").exists()
    assert (tmp_path / "release" / "lamps" / "manifest.json").exists()


def test_another_partners_secret_is_found_out(publisher: Publisher) -> None:
    publisher.run("fetch")
    theirs = publisher.sections["labels_party"][1]["secret_file"]
    with pytest.raises(
        DataError,
        match=r"epoch '1' of 'shoes' are hashed with another secret .* old_secret_files",
    ):
        publisher.changed(0, secret_file=theirs).run("train")


@pytest.mark.slow
def test_labels_are_written_for_each(publisher: Publisher, tmp_path: Path) -> None:
    publisher.run("fetch")
    publisher.run("labels", f"--output={tmp_path / 'labels.csv'}")
    for name, scale in SCALES.items():
        table = pl.read_csv(tmp_path / f"labels-{name}.csv")
        assert table.height == EACH
        channel = json.loads((tmp_path / f"labels-{name}.json").read_text())
        assert channel["grid"][-1] == pytest.approx(4 * scale)
        assert len(channel["channel"][0]) > table["code"].max()


def parsed(text: str) -> FeaturePartyConfig:
    return FeaturePartyConfig.model_validate(tomllib.loads(text))


def test_one_table_is_what_it_was() -> None:
    config = parsed('[labels_party]\ndata_set = "a"\n')
    assert config.only_labels_party.data_set == "a"
    assert config.release_folders == [Path("release")]
    assert parsed("").only_labels_party.data_set == ""


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ('data_set = "a"', 'data_set = "a"', "stands in two"),
        ('data_set = "a"', 'name = "a"\ndata_set = "b"', "are called 'a'"),
        ('data_set = "a"', 'address = "x:1"', "neither name nor data_set"),
        ('data_set = "a"', 'data_set = "b"\nsubmit = true', "submit of 'b'"),
        ('data_set = "a"', 'data_set = "../b"', "'../b' must be"),
    ],
)
def test_tables_that_cannot_be_told_apart_are_refused(first: str, second: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed(f"[[labels_party]]\n{first}\n[[labels_party]]\n{second}\n")


def test_a_folder_for_each_and_for_each_of_its_epochs() -> None:
    config = parsed(
        '[[labels_party]]\ndata_set = "a"\nepochs = ["1", "2"]\n'
        '[[labels_party]]\ndata_set = "a"\naddress = "x:1"\nname = "b"\n'
    )
    assert config.release_folders == [Path("release", *p) for p in (("a", "1"), ("a", "2"), ("b",))]
    with pytest.raises(ConfigError, match="done with one labels party, and 2 are configured"):
        _ = config.only_labels_party
