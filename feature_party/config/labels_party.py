"""Sections about the labels party: who it is, and what it is asked, in which rounds."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from labelveil.common.config import Section, Words, setting
from labelveil.common.config.names import NAME_PATTERN, NAME_WORDS, Name, NameOrLatest
from labelveil.common.errors import ConfigError, not_none

_ADDRESS = "HOST:PORT of one machine, such as labels.example.com:50051"
_ANYWHERE = "0.0.0.0", "[::]"  # what a server listens on, and nobody calls


def is_name(value: str) -> bool:
    return not value or re.fullmatch(NAME_PATTERN, value) is not None


def _is_address(value: str) -> bool:
    parts = re.fullmatch(r"([\w.-]+|\[[0-9A-Fa-f:.%\w]+\]):(\d{1,5})", value)
    return parts is not None and parts[1] not in _ANYWHERE and 0 < int(parts[2]) < 1 << 16


class LabelsPartySection(Section):
    """Where the labels party serves, who it must prove to be, and which release to fetch.

    The table may stand several times, as `[[labels_party]]`: one model then learns from all of
    them.
    """

    name: Annotated[str, Words(f"{NAME_WORDS}, or empty", is_name)] = setting(
        "",
        "Name of this labels party where there are several: in predictions, in figures, and as"
        " the folder of its release. Default: its data set.",
        example="shoes",
    )
    address: Annotated[str, Words(_ADDRESS, _is_address)] = setting(
        "localhost:50051", "Host and port of the labels party."
    )
    server_name: str | None = setting(
        None,
        "Name in the labels party's certificate, where it is not the host in `address`.",
        example="labels.example",
    )
    ca: Path | None = setting(
        None,
        "Certificate authority that signed the labels party's certificate.",
        example="certificates/ca.pem",
        write=True,
    )
    certificate: Path | None = setting(
        None, "Our certificate.", example="certificates/feature-party.pem", write=True
    )
    private_key: Path | None = setting(
        None, "Its private key.", example="certificates/feature-party.key", write=True
    )
    signing_key: Path | None = setting(
        None,
        "The labels party's public signing key (Ed25519, PEM). If it is set, a release without its"
        " valid signature is refused before a row is fetched.",
        example="certificates/signing.key.pub",
    )
    data_set: str = setting("", "Name of the data set.", example="conversions", write=True)
    epoch: NameOrLatest = setting("", "Epoch of the release. An empty one means the latest.")
    epochs: list[Name] = setting(
        list,
        "Several epochs instead, oldest first, for one model that reads every label through its"
        " own epoch's channel. `fetch` keeps each in a folder of its own within the release's.",
        example=["2024-06-01", "2024-06-02"],
    )
    timeout: float = setting(
        60.0,
        "Time without any progress after which the server counts as down.",
        unit="seconds",
        gt=0,
        le=3600,
    )
    secret_file: Path | None = setting(
        None,
        "File of the secret that event keys are hashed with between this labels party and us."
        " Default: `secret_file` of [keys].",
        example="certificates/shoes.key",
    )
    max_rows: int | None = setting(
        None,
        "The most rows that a release may have. Default: as many as the disk has room for.",
        ge=1,
        example=100_000_000,
    )
    deadline: float | None = setting(
        None,
        "Time after which a fetch ends, finished or not; the next one goes on. Default: none.",
        unit="seconds",
        gt=0,
        example=3600.0,
    )
    submit: bool = setting(
        False,
        "Whether `run` first submits our keys as the population. Needs `epoch`, and a labels"
        " party that takes them. Labels come back in the order of these keys, which are kept beside"
        " the release.",
    )
    wait: float = setting(
        0.0,
        "How long a fetch waits for a release that does not exist yet.",
        unit="seconds",
        ge=0,
        le=7 * 24 * 3600,
    )

    @property
    def called(self) -> str:
        """Its name, or that of its data set."""
        return self.name or self.data_set

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if self.epochs and self.epoch:
            raise ConfigError(
                f"epoch={self.epoch!r} has no effect beside epochs; set one of [labels_party] epoch"
                " and epochs"
            )
        if len(set(self.epochs)) < len(self.epochs):
            raise ConfigError(
                f"epochs={self.epochs} names one twice; name different ones in [labels_party]"
                " epochs"
            )
        return self


class RoundsSection(Section):
    """Events in rounds: a model that learned from one asks the next what it does not know yet.

    The labels party must take submitted populations, and questions. It learns which stratum each
    event is in and what is expected of these: roughly what we predict.
    """

    shares: list[Annotated[float, Field(gt=0, le=1)]] = setting(
        list,
        "Shares of our events that are submitted one after another, to 1 in all; dealt by their"
        " hashed keys. Needs submit, epoch and wait of [labels_party]; the epochs of rounds have"
        " its name and a number. With [groups] five, 0.15, 0.15, 0.2, 0.2 and 0.3, if none is set.",
        example=[0.15, 0.25, 0.6],
        max_length=9,
    )
    strata: int = setting(
        16, "Strata of like predictions that a question gathers events in.", ge=1, le=32
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.shares and abs(sum(self.shares) - 1) > 1e-9:
            raise ConfigError(
                f"shares={self.shares} are {sum(self.shares):g} of the events, and must be all of"
                " them; set [rounds] shares to numbers whose sum is 1"
            )
        return self


class GroupsSection(Section):
    """Noisy sums over groups of events, which [rounds] then ask for in place of labels.

    All three are to be set, or none. A last epoch asks how good the model is, of the events that
    `holdout` of [training] keeps: two sums more.
    """

    epsilon: float | None = setting(
        None,
        "What the labels party spends of each label, as agreed with it. The size of groups follows"
        " from it; the privacy does not.",
        gt=0,
        le=40,
        example=0.25,
    )
    lower: float | None = setting(
        None, "Least label that is agreed: lower ones are moved to it.", example=0.0
    )
    upper: float | None = setting(
        None, "Largest label that is agreed: larger ones are moved to it.", example=400.0
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = self.epsilon, self.lower, self.upper
        if None in given and any(each is not None for each in given):
            raise ConfigError(
                f"epsilon={self.epsilon}, lower={self.lower} and upper={self.upper} belong"
                " together; set all three in [groups], or none"
            )
        if self.epsilon is not None and not 0 < self.span < math.inf:
            raise ConfigError(
                f"lower={self.lower} must be below upper={self.upper}, both finite; set [groups]"
                " lower and upper to the label's bounds"
            )
        return self

    @property
    def span(self) -> float:
        """How far apart labels may be."""
        return not_none(self.upper) - not_none(self.lower)

    @property
    def configured(self) -> bool:
        """Whether sums are asked for."""
        return self.epsilon is not None


class KeysSection(Section):
    """The secret that event keys are hashed with."""

    secret_file: Path | None = setting(
        None,
        "File of the secret that both parties share: 64 hexadecimal digits.",
        example="certificates/join.key",
        write=True,
    )
    old_secret_files: list[Path] = setting(
        list,
        "Files of the secrets of earlier epochs, once both parties have changed theirs. Each"
        " release is joined under the one of these and `secret_file` that its manifest recognises;"
        " what we submit is hashed with `secret_file`.",
        example=["certificates/join-2025.key"],
    )
