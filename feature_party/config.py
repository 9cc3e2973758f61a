"""The features party's configuration file, ``feature_party.toml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from common.config import Section
from common.engine.task import EngineSection
from common.errors import ConfigError
from feature_party.learning.names import HEAD_NAMES, OBJECTIVE_NAMES

_EPOCH = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _at_least(bound: int, value: int | str) -> int | str:
    if isinstance(value, int) and value < bound:
        raise ValueError(f"must be auto or a whole number >= {bound}")
    return value


class DataSection(Section):
    """The features file and its columns."""

    features: Path | None = None
    """CSV or Parquet, or a directory of Parquet files."""
    key: str = ""
    """Column that names the event; also known to the labels party."""
    numeric: list[str] = Field(default=[])
    categorical: list[str] = Field(default=[])
    ignore: list[str] = Field(default=[])
    pieces: int | Literal["auto"] = "auto"
    """Pieces that the range of a numeric column is cut into; auto fits what the labels say."""
    min_match: float = Field(0.9, ge=0, le=1)
    """Share of events that must match on either side before a warning is printed."""

    @field_validator("pieces")
    @classmethod
    def _few_pieces(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 0 <= value <= 256:
            raise ValueError("must be auto or a whole number in 0 … 256")
        return value


class LabelsPartySection(Section):
    """Where the labels party serves, and who it must prove to be."""

    address: str = "localhost:50051"
    server_name: str | None = None
    """Name in the server's certificate, where it is not the host in ``address``."""
    ca: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    signing_key: Path | None = None
    """The labels party's public key; a release that it did not sign is then refused."""
    data_set: str = ""
    epoch: str = ""
    epochs: list[str] = Field(default=[])
    """Several epochs that one model is to learn from; each has a folder in the release's."""
    timeout: float = Field(60.0, gt=0, le=3600)
    """Seconds without any progress after which the server counts as down."""
    deadline: float | None = Field(None, gt=0)
    """Seconds after which a fetch ends, finished or not; what has arrived is kept."""
    submit: bool = False
    """Whether ``run`` submits our key list as the population first."""
    wait: float = Field(0.0, ge=0, le=7 * 24 * 3600)
    """Seconds for which a fetch waits for a release that does not exist yet."""

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if self.epochs and self.epoch:
            raise ConfigError(
                f"epoch={self.epoch!r} has no effect beside epochs; set one of [labels_party] epoch"
                " and epochs"
            )
        bad = [name for name in self.epochs if not re.fullmatch(_EPOCH, name)]
        if bad or len(set(self.epochs)) < len(self.epochs):
            raise ConfigError(
                f"epochs must be different names of up to 64 letters, digits, dots, dashes and"
                f" underscores{f', not {bad[0]!r}' if bad else ''}; set [labels_party] epochs"
            )
        return self


class KeysSection(Section):
    """The secret that event keys are hashed with."""

    secret_file: Path | None = None


class ReleaseSection(Section):
    """Where the fetched release is kept."""

    directory: Path = Path("release")


class JoinSection(Section):
    """Where events are matched that do not fit into memory."""

    directory: Path = Path("joined")
    """Folder of the matched events, in shards."""
    shard_rows: int | Literal["auto"] = "auto"
    """Rows of the features that become one shard."""

    @field_validator("shard_rows")
    @classmethod
    def _enough_rows(cls, value: int | str) -> int | str:
        return _at_least(100, value)


class TrainingSection(Section):
    """How the model is trained; ``auto`` is the best choice known."""

    objective: str = "auto"
    head: str = "auto"
    ensemble: int | Literal["auto"] = "auto"
    epochs: int | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] = "auto"
    learning_rate: float = Field(2e-3, gt=0, le=1)
    optimizer: Literal["adamw", "rmsprop"] = "adamw"
    weight_decay: float | Literal["auto"] = "auto"
    hidden: list[int] = Field([128, 64], min_length=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    holdout: float = Field(0.2, ge=0, lt=1)
    validation: float = Field(0.1, gt=0, le=0.5)
    patience: int = Field(6, ge=1)
    seed: int = Field(0, ge=0)
    device: str = "auto"
    checkpoint: bool = True
    shards: str = "auto"
    """Folder of encoded training rows; ``auto`` writes them, for the training's time, beside the
    model where memory is too small for them, ``never`` does not."""
    shard_rows: int | Literal["auto"] = "auto"

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        if value not in ("auto", *OBJECTIVE_NAMES):
            raise ValueError(f"must be auto or one of {', '.join(OBJECTIVE_NAMES)}")
        return value

    @field_validator("head")
    @classmethod
    def _known_head(cls, value: str) -> str:
        if value not in ("auto", *HEAD_NAMES):
            raise ValueError(f"must be auto or one of {', '.join(HEAD_NAMES)}")
        return value

    @field_validator("ensemble")
    @classmethod
    def _affordable(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= 64:
            raise ValueError("must be auto or a whole number in 1 … 64")
        return value

    @field_validator("shards")
    @classmethod
    def _some_folder(cls, value: str) -> str:
        if not value:
            raise ValueError("must be auto, never or a folder")
        return value

    @field_validator("shard_rows")
    @classmethod
    def _enough_rows(cls, value: int | str) -> int | str:
        return _at_least(100, value)

    @field_validator("epochs", "batch_size")
    @classmethod
    def _at_least_one(cls, value: int | str) -> int | str:
        return _at_least(1, value)

    @field_validator("weight_decay")
    @classmethod
    def _not_negative(cls, value: float | str) -> float | str:
        if isinstance(value, float) and not 0 <= value <= 100:
            raise ValueError("must be auto or a number in 0 … 100")
        return value

    @field_validator("hidden")
    @classmethod
    def _sizes(cls, value: list[int]) -> list[int]:
        if any(not 1 <= size <= 8192 for size in value):
            raise ValueError("each layer must have 1 … 8192 units")
        return value


class OutputSection(Section):
    """What training and prediction leave behind."""

    model: Path = Path("model")
    predictions: Path = Path("predictions.parquet")
    metrics: Path = Path("metrics.json")
    report: Path = Path("report.html")
    interval: float = Field(0.9, gt=0, lt=1)
    """Probability that a predictive interval covers the label."""


class FeaturePartyConfig(Section):
    """The whole file."""

    data: DataSection = DataSection()
    labels_party: LabelsPartySection = LabelsPartySection()
    keys: KeysSection = KeysSection()
    release: ReleaseSection = ReleaseSection()
    join: JoinSection = JoinSection()
    engine: EngineSection = EngineSection()
    training: TrainingSection = TrainingSection()
    output: OutputSection = OutputSection()

    @property
    def release_folders(self) -> list[Path]:
        """Folders of the releases to learn from: of the epochs named, the one, or all within."""
        from common.release.folder import (
            MANIFEST_FILE,  # brings Polars, for which --help must not wait
        )

        folder = self.release.directory
        if self.labels_party.epochs:
            return [folder / epoch for epoch in self.labels_party.epochs]
        within = [] if (folder / MANIFEST_FILE).exists() else folder.glob(f"*/{MANIFEST_FILE}")
        return sorted(path.parent for path in within) or [folder]

    @property
    def features(self) -> Path:
        """The features file, or one line saying that none is configured."""
        if self.data.features is None:
            raise ConfigError(
                "no features file is configured; set [data] features or pass --features FILE"
            )
        return self.data.features

    @property
    def key(self) -> str:
        """The key column, or one line saying that none is configured."""
        if not self.data.key:
            raise ConfigError("no key column is configured; set [data] key or pass --key COLUMN")
        return self.data.key

    @property
    def secret_file(self) -> Path:
        """The key secret's file, or one line saying that none is configured."""
        if self.keys.secret_file is None:
            raise ConfigError(
                "no key secret is configured; set [keys] secret_file or pass --secret-file FILE"
            )
        return self.keys.secret_file


TEMPLATE = """\
# Configuration of the features party. Every key can be overridden on the command line:
#   feature-party train --set training.seed=3
# Relative paths are relative to the directory in which the command runs.

[data]
# CSV or Parquet file, or a directory of Parquet files, with one row for each event.
features = "features.parquet"
# Column that names the event; the labels party knows the same names.
key = "event_id"
# Kinds of columns, where the inferred one is wrong. Text and identifiers are categorical, numbers,
# dates and booleans numeric. Ignored columns are not learned from.
numeric = []
categorical = []
ignore = []
# Pieces that the range of a numeric column is cut into, so that the network can bend in each; auto
# takes more of them the more the privatized labels say.
pieces = "auto"
# Warn loudly when a smaller share of the events on either side finds its counterpart.
min_match = 0.9

[labels_party]
# Host and port at which the labels party serves.
address = "localhost:50051"
# Name in the labels party's certificate, where it is not the host above.
# server_name = "labels.example"
# The certificate authority that signed the server's certificate, and our own identity.
ca = "certificates/ca.pem"
certificate = "certificates/feature-party.pem"
private_key = "certificates/feature-party.key"
# The labels party's public signing key (Ed25519, PEM). If it is set, a release without its valid
# signature is refused before a row is fetched.
# signing_key = "certificates/signing.key.pub"
# Which release to fetch; an empty epoch means the latest one.
data_set = "conversions"
epoch = ""
# Several epochs instead, oldest first: `fetch` keeps each in a folder of its own within the release
# directory, and one model is trained on all of them, every label read through its own epoch's
# channel.
# epochs = ["2024-06-01", "2024-06-02"]
# Seconds without any progress after which the server counts as down.
timeout = 60.0
# Seconds after which a fetch ends, finished or not; the next one goes on. Default: none.
# deadline = 3600.0
# Whether `run` first submits the keys of our features as the population of the epoch, which must be
# named then; the labels party's configuration says whether it takes them. Labels come back in the
# order of the features file, which has to stay as it is.
submit = false
# Seconds to wait for a release that does not exist yet.
wait = 0.0

[keys]
# The secret both parties share for this epoch: 64 hexadecimal digits.
secret_file = "certificates/join.key"

[release]
# Where the fetched and verified release is kept.
directory = "release"

[join]
# What does not fit into memory is matched through shards on disk, by `train` itself or, beforehand,
# by `feature-party join`; the folder then has a copy of the features with their labels, which later
# commands use again as long as neither release nor features change. Two or three times their size
# is needed meanwhile.
directory = "joined"
# Rows of the features that become one shard; auto takes 524,288, and fewer of wide tables. A few
# shards are in memory at a time, for each worker.
shard_rows = "auto"

[engine]
# Where they are matched: "local", with so many worker processes, or "spark" (pip install
# 'labelveil[spark]'), whose workers must see the same files under the same names. The shards do not
# depend on it.
name = "local"
workers = 1
# For "spark": the master (as spark-submit knows it if left out), and into how many tasks work is
# cut at a time (0: as many as there are).
# master = "spark://head:7077"
# partitions = 0

[training]
# auto | likelihood | debiased | raw. auto chooses from the privatized validation likelihood, and
# brings what a mixture of heads predicts on average closer to the released prior, by half the way
# where the labels say as much as 1,000 true ones.
objective = "auto"
# Shape of the predicted distribution: auto | softmax | gaussian | log-normal | gamma | prior-tilt |
# log-prior-tilt | canonical | poisson | negative-binomial.
head = "auto"
# Networks trained side by side and averaged; averaging pays under label noise. auto is 8, or 4
# from 100,000 events on, where one network is steadier by itself.
ensemble = "auto"
# Upper bound of passes over the data; auto fits the amount of data. Training stops early.
epochs = "auto"
batch_size = "auto"
learning_rate = 2e-3
# adamw | rmsprop, with cosine decay of the learning rate.
optimizer = "adamw"
weight_decay = "auto"
# Units of the hidden layers, and the share of them dropped while training.
hidden = [128, 64]
dropout = 0.0
# Share of the matched events never trained on: the test error is estimated from them.
holdout = 0.2
# Share of the other events that each network leaves out to know when to stop.
validation = 0.1
# Epochs without improvement after which training stops.
patience = 6
# Chooses splits and initial weights; the privacy noise never depends on it.
seed = 0
# auto | cpu | cuda
device = "auto"
# Keep checkpoints in the model directory: a killed run goes on where it stopped.
checkpoint = true
# Where features are larger than memory: auto streams them, encoded, through Parquet shards beside
# the model, which go when it is trained; a folder always does so, and keeps them for the next
# training; never does not. Rows of a shard: two are in memory at a time, auto makes 64 MB of each.
shards = "auto"
shard_rows = "auto"

[output]
model = "model"
predictions = "predictions.parquet"
metrics = "metrics.json"
report = "report.html"
# Probability that a predictive interval covers the label.
interval = 0.9
"""
