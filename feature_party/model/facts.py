"""What is known about a trained model: how it was trained, what was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from feature_party.learning.calibration import Slope
from feature_party.learning.mixing import Gain


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
    """What ``model.json`` says under ``facts``; models of earlier versions lack some of it.

    Attributes
    ----------
    objective, head
        What predicts; heads with their shares, if several are mixed.
    heads
        Every candidate that was trained.
    shrinkage
        Share of the released prior in every prediction.
    history
        Of the candidate with the largest share.
    slope
        Of decoded labels on predictions; None where the channel decodes nothing.
    release, matched, holdout, seed
        The release, how many labels were matched, and how the held-out ones were drawn.
    training_rows
        Labels trained on.
    settings
        Of every candidate.
    warnings
        Sentences for the users of the model.
    debiased_gain
        How training on decoded labels compared, where ``auto`` tried it.
    adjusted
        Whether predictions are brought closer to the released prior.
    seconds
        How long training took.
    """

    model_config = ConfigDict(frozen=True)

    objective: str
    head: str
    heads: dict[str, HeadFacts]
    shrinkage: float
    history: list[EpochLosses]
    slope: Slope | None
    release: str
    matched: int
    training_rows: int
    holdout: float
    seed: int
    settings: FitSettings
    warnings: list[str]
    debiased_gain: Gain | None = None
    adjusted: bool = False
    seconds: float | None = None
