"""What is known about a trained model: how it was trained, what was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from labelveil.feature_party.learning.calibration import Slope


@dataclass(frozen=True)
class FitSettings:
    """How one ensemble is trained; every ``auto`` is already resolved."""

    members: int
    epochs: int
    batch_size: int
    learning_rate: float  # peak of the cosine schedule
    optimizer: str
    weight_decay: float  # decoupled (AdamW) or L2 (RMSProp) coefficient
    hidden: tuple[int, ...]
    dropout: float
    validation: float  # share of the rows that each member leaves out
    patience: int
    seed: int


@dataclass(frozen=True)
class HeadFacts:
    """One candidate: its out-of-fold loss, its share of the model, and how long it was trained."""

    validation_loss: float
    weight: float
    epochs: int


@dataclass(frozen=True)
class EpochLosses:
    """Mean losses after one epoch, both on privatized labels."""

    epoch: int
    train_loss: float
    validation_loss: float


class ModelFacts(BaseModel):
    """What ``model.json`` says under ``facts``; models of earlier versions lack some of it."""

    model_config = ConfigDict(frozen=True)

    objective: str  # of what predicts
    head: str  # the same; heads with their shares, if several are mixed
    heads: dict[str, HeadFacts]  # every candidate that was trained
    shrinkage: float  # share of the released prior in every prediction
    history: list[EpochLosses]  # of the candidate with the largest share
    slope: Slope | None  # of decoded labels on predictions; None where the channel decodes nothing
    release: str
    matched: int  # labels
    training_rows: int  # labels trained on
    holdout: float  # share of the events held out
    seed: int  # by which they were drawn
    settings: FitSettings  # of every candidate
    warnings: list[str]  # sentences for the users of the model
    adjusted: bool = False  # whether predictions are brought closer to the released prior
    seconds: float | None = None  # how long training took
    key: str = ""  # column of the events' keys
    held_out: str = ""  # digest of the keys of the events held out
