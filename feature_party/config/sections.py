"""The features party's configuration: one immutable section for each table of feature_party.toml.

Relative paths are relative to the working directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

from pydantic import Field, model_validator

from labelveil.common.config import Section, Sections, Words, one_of, setting
from labelveil.common.config.names import NAME_WORDS
from labelveil.common.engine.task import EngineSection
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.release.folder import MANIFEST_FILE, POPULATION_FILE
from labelveil.feature_party.config.labels_party import (
    GroupsSection,
    KeysSection,
    LabelsPartySection,
    RoundsSection,
    is_name,
)
from labelveil.feature_party.config.usual_shares import FIVE
from labelveil.feature_party.learning.names import HEAD_NAMES, LEARNER_NAMES, OBJECTIVE_NAMES

if TYPE_CHECKING:
    from labelveil.feature_party.schema import Stated

DEFAULT_CONFIG = Path("feature_party.toml")

ValueT = TypeVar("ValueT")
Auto = Literal["auto"]
ShardRows = Annotated[int, Field(ge=100)] | Auto


class DataSection(Section):
    """The features and their columns.

    Text and identifiers are categorical; numbers, dates and booleans are numeric, in text too. What
    a column is, all of its cells decide. Name a column where that is wrong.
    """

    features: Path | None = setting(
        None,
        "The features, one row an event: CSV or Parquet, or a directory of Parquet files.",
        example="features.parquet",
        write=True,
    )
    key: str = setting(
        "",
        "Column with the event's key. The labels party knows the same keys.",
        example="event_id",
        write=True,
    )
    numeric: list[str] = setting(list, "Columns to take as numbers.")
    categorical: list[str] = setting(list, "Columns to take as categories.")
    ignore: list[str] = setting(list, "Columns not to learn from.")
    columns: dict[str, str] = setting(
        dict,
        "What the cells of columns mean, by the column's name, instead of what all of them look"
        " like: `number` (also as `number 1,234.5`, `1.234,5`, `1 234.5`, `1 234,5`, `1'234.5`),"
        " `date` (also as `date %d/%m/%Y`, with ` %H:%M` behind it where times follow),"
        " `true/false`, `time`, `category`, `category of numbers` (17850.0 is 17850) or `ignore`;"
        " with `; missing: word, word` behind it where a value is missing. `init` writes what it"
        " found; the model keeps it, and later files are read by it.",
        example={"amount": "number 1,234.5", "day": "date %d/%m/%Y"},
    )
    pieces: Annotated[int, Field(ge=0, le=256)] | Auto = setting(
        "auto",
        "Pieces that a numeric column's range is cut into, so that the network can bend in"
        " each. auto takes more the more the privatized labels say. In a column of 32 values or"
        " fewer each begins one. 0 leaves columns whole; 1 does so, too, but parts a value that two"
        " fifths of the rows have from those next to it.",
    )

    min_match: float = setting(
        0.9,
        "Share of the events on either side that must find a counterpart, or there is a warning.",
        ge=0,
        le=1,
    )

    @property
    def stated(self) -> Stated:
        """What is said of columns; ``ConfigError`` for a contradiction, or a line without sense."""
        from labelveil.feature_party.schema import Stated  # imports Polars, which few commands need

        return Stated.from_settings(self.columns, self.numeric, self.categorical, self.ignore)

    @model_validator(mode="after")
    def _columns_make_sense(self) -> Self:
        if self.columns:
            _ = self.stated
        return self


class ReleaseSection(Section):
    """Where the fetched and verified release is kept."""

    directory: Path = setting(Path("release"), "Folder of the release.", flag="--release")
    parquet: bool = setting(
        False, "Whether to write the rows as labels.parquet, too, for other programs."
    )
    withdrawn: bool = setting(
        False,
        "Whether to learn, all the same, from a release that its labels party has withdrawn. It"
        " said why when it was asked for it last, and will send it no more.",
    )


class JoinSection(Section):
    """Where events are matched that do not fit into memory: in shards on disk.

    `train` does so itself, or `feature-party join` beforehand. Two or three times the size of the
    features is needed meanwhile. Later commands start from the shards as long as neither release
    nor features change.
    """

    directory: Path = setting(
        Path("joined"),
        "Folder of the shards, a copy of the features with their labels.",
        flag="--out",
    )
    shard_rows: ShardRows = setting(
        "auto",
        "Rows of the features that become one shard. auto takes 524,288, and fewer of wide tables."
        " A few shards are in memory at a time, for each worker.",
    )


class TrainingSection(Section):
    """How the model is trained; auto is the best choice known."""

    objective: Annotated[str, one_of(("auto", *OBJECTIVE_NAMES))] = setting(
        "auto",
        "What is minimised. auto mixes models by the privatized validation likelihood, then by what"
        " codes say of squared errors, models of means alone among them, and moves what a mixture"
        " of heads predicts on average towards the released prior, by half the way where the labels"
        " say as much as 1,000 true ones.",
    )
    head: Annotated[str, one_of(("auto", *HEAD_NAMES))] = setting(
        "auto", "Shape of the predicted distribution."
    )
    learner: Annotated[str, one_of(("auto", *LEARNER_NAMES))] = setting(
        "auto",
        "What learns: networks, boosted trees, a ridge on random features (kernel), or a"
        " regularised linear model. auto mixes them by the privatized validation likelihood where"
        " `objective` and `head` are auto, takes trees for objective = true (of few rows the better"
        " of trees and networks), and networks elsewhere.",
    )
    ensemble: Annotated[int, Field(ge=1, le=64)] | Auto = setting(
        "auto",
        "Networks trained side by side and averaged. Averaging pays under label noise. auto is"
        " 8, or 4 from 100,000 events on.",
    )
    epochs: Annotated[int, Field(ge=1)] | Auto = setting(
        "auto", "Most passes over the data. Training stops early; auto fits the amount of data."
    )
    batch_size: Annotated[int, Field(ge=1)] | Auto = setting("auto", "Rows of one step.")
    learning_rate: float = setting(
        2e-3, "Peak of the learning rate, which falls along a cosine.", gt=0, le=1
    )
    optimizer: Literal["adamw", "rmsprop"] = setting("adamw", "What takes the steps.")
    weight_decay: Annotated[float, Field(ge=0, le=100)] | Auto = setting(
        "auto", "Pull of the weights towards 0."
    )
    hidden: list[Annotated[int, Field(ge=1, le=8192)]] = setting(
        [128, 64], "Units of the hidden layers.", min_length=1
    )
    dropout: float = setting(0.0, "Share of the units dropped while training.", ge=0, lt=1)
    holdout: float = setting(
        0.2,
        "Share of the matched events never trained on. The test error is estimated from them.",
        ge=0,
        lt=1,
    )
    validation: Annotated[float, Field(gt=0, le=0.5)] | Auto = setting(
        "auto",
        "Share of the other events that each network leaves out, to know when to stop and how"
        " good it is. auto leaves out each event in turn: a quarter for each of 8 or 4 networks.",
    )
    patience: int = setting(6, "Epochs without improvement after which training stops.", ge=1)
    seed: int = setting(
        0, "Chooses splits and initial weights. The privacy noise never depends on it.", ge=0
    )
    device: str = setting("auto", "Where to train: auto, cpu or cuda.")
    checkpoint: bool = setting(
        True, "Keep checkpoints beside the model. A killed run goes on where it stopped."
    )
    shards: Annotated[str, Field(min_length=1), Words('"auto", "never" or a folder')] = setting(
        "auto",
        "Encoded rows on disk, for features larger than memory. auto streams them through"
        " Parquet shards beside the model, which go when it is trained; a folder always does so,"
        " and keeps them for the next training.",
    )
    shard_rows: ShardRows = setting(
        "auto", "Rows of such a shard. Two are in memory at a time; auto makes 64 MB of each."
    )


class OutputSection(Section):
    """What training and prediction leave behind."""

    model: Path = setting(Path("model"), "Folder of the model.")
    source: str = setting(
        "",
        "Whose labels to predict, where there are several labels parties: a name for all rows,"
        " or a column of the features with a name for each row. Default: every row for each of"
        " them.",
        example="shoes",
    )
    predictions: Path = setting(
        Path("predictions.parquet"),
        "Predictions: CSV if it is called so, else Parquet.",
        flag="--output -o",
    )
    metrics: Path = setting(Path("metrics.json"), "Metrics, JSON.")
    report: Path = setting(
        Path("report.html"), "Report, HTML; a model card of the same name, .md, is put beside it."
    )
    interval: float = setting(
        0.9, "Probability that a predictive interval covers the label.", gt=0, lt=1
    )
    quantiles: list[Annotated[float, Field(gt=0, lt=1)]] = setting(
        list, "Quantiles to predict. 0.25 gives the column quantile_0.25.", example=[0.25, 0.75]
    )
    above: list[float] = setting(
        list,
        "Label values t whose P(label > t) to predict. 100 gives the column above_100.",
        example=[100.0],
    )
    label_name: str = setting(
        "", "What the report calls the label. Default: its column.", example="order value"
    )
    label_unit: str = setting("", "The label's unit, for the report.", example="EUR")


def _configured(value: ValueT | None, what: str, remedy: str) -> ValueT:
    if not value:
        raise ConfigError(f"no {what} is configured; set {remedy}")
    return value


class FeaturePartyConfig(Section):
    """The whole file."""

    data: DataSection = setting(DataSection)
    labels_party: Sections[LabelsPartySection] = setting([LabelsPartySection()])
    rounds: RoundsSection = setting(RoundsSection)
    groups: GroupsSection = setting(GroupsSection)
    keys: KeysSection = setting(KeysSection)
    release: ReleaseSection = setting(ReleaseSection)
    join: JoinSection = setting(JoinSection)
    engine: EngineSection = setting(EngineSection)
    training: TrainingSection = setting(TrainingSection)
    output: OutputSection = setting(OutputSection)

    @property
    def several(self) -> bool:
        """Whether one model learns from several labels parties."""
        return len(self.labels_party) > 1

    @property
    def only_labels_party(self) -> LabelsPartySection:
        """The labels party, or one line saying that there are several."""
        if self.several:
            raise ConfigError(
                f"this is done with one labels party, and {len(self.labels_party)} are configured;"
                " name a file with one of them with --config"
            )
        return self.labels_party[0]

    def folder_of(self, party: LabelsPartySection) -> Path:
        return self.release.directory / party.called if self.several else self.release.directory

    def releases_of(self, party: LabelsPartySection) -> list[Path]:
        """Folders of its releases to learn from: of the epochs named, the one, or all within."""
        folder = self.folder_of(party)
        if party.epochs:
            return [folder / epoch for epoch in party.epochs]
        within = [] if (folder / MANIFEST_FILE).exists() else folder.glob(f"*/{MANIFEST_FILE}")
        found = {path.parent for path in within}
        if self.round_shares:
            found.discard(self.score_folder)
        return sorted(found) or [folder]

    @property
    def releases(self) -> list[tuple[LabelsPartySection, Path]]:
        """Folders of all releases to learn from, each with its labels party."""
        return [(party, path) for party in self.labels_party for path in self.releases_of(party)]

    @property
    def release_folders(self) -> list[Path]:
        return [folder for _, folder in self.releases]

    @property
    def round_shares(self) -> list[float]:
        """Shares of the events that rounds are about: of sums five, unless others are set."""
        return self.rounds.shares or (list(FIVE) if self.groups.configured else [])

    @model_validator(mode="after")
    def _in_rounds(self) -> Self:
        if self.groups.configured and not self.training.holdout:
            raise ConfigError(
                "holdout=0.0 keeps no events to tell how good a model of sums is, which sums of"
                " groups cannot tell; set [training] holdout > 0"
            )
        if self.groups.configured and self.release.parquet:
            raise ConfigError(
                "parquet=true writes the codes of releases for other programs, and releases of sums"
                " have none; set [release] parquet = false, or leave [groups] out"
            )
        if not self.round_shares:
            return self
        for party in self.labels_party:
            if self.several or not (party.submit and party.epoch):
                raise ConfigError(
                    f"[rounds] shares={self.round_shares} deal events that are submitted to one"
                    " labels party, for epochs named after one; set submit and epoch in its"
                    " [labels_party]"
                )
        return self

    def round_folder(self, number: int) -> Path:
        """The folder of a round's release, counted from 1."""
        return self.folder_of(self.only_labels_party) / self.round_epoch(number)

    def round_epoch(self, number: int) -> str:
        party = self.only_labels_party
        epoch = party.epoch or party.epochs[0].rpartition("-")[0]  # as of through()
        return f"{epoch}-{number}"

    @property
    def score_folder(self) -> Path:
        """The folder of the release that tells how good a model of all rounds is."""
        return self.round_folder(len(self.round_shares) + 1)

    @property
    def rounds_submitted(self) -> int:
        """How many rounds have been submitted from here.

        ``ConfigError`` if there is none.
        """
        numbers = range(1, len(self.round_shares) + 1)
        done = sum((self.round_folder(number) / POPULATION_FILE).is_file() for number in numbers)
        if not done:
            raise ConfigError("no round has been submitted yet; run feature-party submit")
        return done

    @property
    def least_match(self) -> float:
        """The share of events that must find a counterpart: of those that are held out, rounds are
        about the first one's at most."""
        kept = self.training.holdout * (1 - self.round_shares[0]) if self.round_shares else 0.0
        return self.data.min_match * (1 - kept)

    def through(self, number: int, *, scored: bool = False) -> Self:
        """This configuration, of ``number`` rounds' releases, and of a score that is there."""
        epochs = [self.round_epoch(each) for each in range(1, number + 1)]
        if scored and (self.score_folder / POPULATION_FILE).is_file():
            epochs.append(self.score_folder.name)
        party = self.only_labels_party.model_copy(update={"epoch": "", "epochs": epochs})
        few = {} if number == len(self.round_shares) else {"min_match": 0.0}
        data = self.data.model_copy(update=few)  # most events are still to be asked about
        return self.model_copy(update={"labels_party": [party], "data": data})

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        if not self.several:
            return self
        for index, party in enumerate(self.labels_party):
            if not party.called:
                raise ConfigError(
                    f"[[labels_party]] {index + 1} has neither name nor data_set; set name, which"
                    " tells it from the others"
                )
            if not is_name(party.called):  # it names a folder
                raise ConfigError(
                    f"data_set={party.data_set!r} must be {NAME_WORDS} to be what its labels party"
                    " is called; set name in its [[labels_party]]"
                )
            if party.submit:
                raise ConfigError(
                    f"submit of {party.called!r} is for one labels party alone: a submitted"
                    " population has no keys to tell several apart by; leave it out"
                )
            for other in self.labels_party[:index]:
                if (other.address, other.data_set) == (party.address, party.data_set):
                    raise ConfigError(
                        f"data_set={party.data_set!r} of {party.address} stands in two"
                        " [[labels_party]]; name its epochs in one of them"
                    )
                if other.called == party.called:
                    raise ConfigError(
                        f"two [[labels_party]] are called {party.called!r}; set name in one of them"
                    )
        return self

    @property
    def features(self) -> Path:
        """The features file, or one line saying that none is configured."""
        return _configured(
            self.data.features, "features file", "[data] features or pass --features FILE"
        )

    @property
    def key(self) -> str:
        """The key column, or one line saying that none is configured."""
        return _configured(self.data.key, "key column", "[data] key or pass --key COLUMN")

    def secret_of(self, party: LabelsPartySection) -> Path:
        """The file of the key secret that we share with a labels party, or one line likewise."""
        path = party.secret_file or self.keys.secret_file
        return _configured(path, "key secret", "[keys] secret_file or pass --secret-file FILE")

    def secrets_of(self, party: LabelsPartySection) -> list[Path]:
        """The files of all secrets that its releases may be hashed with, the present one first."""
        return [self.secret_of(party), *self.keys.old_secret_files]


class TrueLabels(Section):
    """A file of true labels, which a simulation alone has; flags name it, and no configuration."""

    true_labels: Path | None = setting(None, "File of true labels, in simulations alone.")
    true_label: str | None = setting(
        None,
        "Label column of the true labels; by default as the release names it, and of several labels"
        " always.",
    )
    true_key: str | None = setting(None, "Key column of the true labels, if it differs.")

    @model_validator(mode="after")
    def _both(self) -> Self:
        if self.true_labels is None and self.true_label is not None:
            raise ConfigError("--true-label COLUMN needs --true-labels FILE beside it")
        return self

    @property
    def table(self) -> Path:
        """The file; ``DataError`` if none is named."""
        if self.true_labels is None:
            raise DataError(
                "true labels are needed; pass --true-labels FILE --true-label COLUMN (simulations)"
            )
        return self.true_labels
