"""Sections of label_party.toml for what comes on top of a release: strata, answers, a watch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelveil.common.config import Section, setting
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.base import MAX_EPSILON


class StrataSection(Section):
    """Public classes of events, such as countries: each is sent by a channel that fits its labels.

    You declare that both parties may know which event is in which.
    """

    column: str | None = setting(
        None,
        "Column of the population with the class of each event: of `labels`, where its own keys are"
        " the population. Its meaning must be public, and not made from labels.",
        example="country",
    )
    values: Path | None = setting(
        None,
        "File with the values of that column, one a line, known without a look at labels. The 31"
        " with most events are strata, if they have enough; all other events are one more."
        " `label-party init --strata-column` writes it from the population.",
        example="countries.txt",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.column is None) != (self.values is None):
            raise ConfigError(
                f"column={self.column!r} and values={self.values and str(self.values)!r} go"
                " together: the column and the list of its public values; set both in [strata]"
            )
        return self


class PublicPriorSection(Section):
    """What is publicly known of the labels before any is looked at, in place of a histogram."""

    file: Path | None = setting(
        None,
        "Table with columns label and weight (of several labels a column named as each of them, and"
        " weight): how likely each label is, from public knowledge alone, never from these labels."
        " No epsilon is then spent on a histogram, and a wrong file costs accuracy, not privacy."
        " Both parties see it. Default: a histogram is paid for.",
        example="known_prior.csv",
    )
    corrected: bool = setting(
        False,
        "Whether to pay for a histogram all the same: the file then only says which distribution to"
        " expect behind it. [strata] need it.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.corrected and self.file is None:
            raise ConfigError(
                "corrected=true has nothing to correct; set [prior] file, or remove it"
            )
        return self


class RoundsSection(Section):
    """Events in rounds: what the features party has learned from one, it may ask in the next."""

    questions: bool = setting(
        False,
        'For population = "submitted": whether the features party may say, with its keys, which'
        " stratum each event is in and what it expects of the labels of each. They are then sent"
        " by channels that fit, for the same epsilon, and you learn so much of what it predicts. Or"
        " it asks for noisy sums over groups of its events instead of labels."
        ' Set [privacy] epochs = "disjoint" for rounds about different events.',
    )


class EvaluationSection(Section):
    """What the features party may ask about its models: how much they are better than a constant.

    A question is about predictions for some events. Its answer is by how much their mean loss is
    below that of the released prior's mean (or median), from true labels, with noise.
    """

    offered: bool = setting(
        False,
        "Whether predictions may be compared with true labels (`feature-party evaluate --ask`)."
        " All answers of an epoch are charged at the first question. From then on the server"
        " keeps the labels in memory, 8 bytes each; a question takes 8 an event.",
    )
    epsilon: float = setting(
        0.5,
        "What all answers may reveal together, on top of the release.",
        gt=0,
        le=MAX_EPSILON,
    )
    answers: int = setting(
        1,
        "How many questions are answered. They share epsilon: m answers have m times the noise of"
        " one. The same question again is free.",
        ge=1,
        le=10_000,
    )
    tolerance: float = setting(
        0.5,
        "How far off an answer may be (95%), as a share of the constant's loss. A question with"
        " more noise is refused before it costs anything.",
        ge=0,
        le=1,
    )
    loss: Literal["squared", "absolute"] = setting("squared", "What is compared.")
    largest_loss: float | None = setting(
        None,
        "The most that one event counts for, in label units, squared or not. A smaller one"
        " brings less noise, and answers that are too small where labels are far off. Default:"
        " what one released label in a thousand exceeds.",
        gt=0,
        example=100.0,
    )


class WatchSection(Section):
    """How `label-party watch` releases epochs as they arrive.

    The prior of the last one stays in force until a private test says that the labels have drifted
    from it; only then is a new one paid for.
    """

    epsilon: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = setting(
        "auto",
        'What one test may reveal, far below what a release does. "auto" is what the tolerance'
        " needs, at most a quarter of what a prior costs.",
    )
    tolerance: float = setting(
        0.05,
        "Largest distance of two distribution functions that does not count as drift.",
        ge=0,
        lt=1,
    )
    false_alarm: float = setting(
        0.01,
        "Approximate probability that an epoch without drift pays for a prior.",
        gt=0,
        lt=1,
    )
    hits: int | None = setting(
        None,
        "Charge all tests together, once, as a session that ends after this many hits. Otherwise"
        " tests add up where events or users come again in later epochs. Needs total_delta.",
        ge=1,
        le=10_000,
        example=5,
    )
    interval: Annotated[float, Field(gt=0)] | Literal["auto"] = setting(
        "auto",
        'Time between two looks for new epochs. "auto" is a minute where populations are submitted,'
        " whose senders wait, and else an hour.",
        unit="seconds",
    )
