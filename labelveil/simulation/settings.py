"""What a simulation is asked to do, checked before anything is read or started."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, PrivateAttr, model_validator

from labelveil.common.config import Section, one_of, setting
from labelveil.common.config.names import bounded_column
from labelveil.common.console import stderr
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.randomizers import randomizer_names
from labelveil.common.randomizers.base import MAX_EPSILON
from labelveil.common.randomizers.losses import LOSS_NAMES

AUTO = "auto"
FEWEST_IN_ROUNDS = 4_000
"""Events that rounds need: a sixth of fewer teaches no model that could ask."""
_DECIDED = "0.15,0.25,0.6"
"""Where rounds may pay: better than two of a third and two (docs/ideas/rounds.md)."""
MOST_ROUNDS = 9

CODES, GROUPS, MESSAGE = "codes", "groups", "message"
_INSTEAD = "--rounds 1 sends one message, as two companies do unless they agree on rounds"
LEAST_GAIN = 2.0
"""How many times as much sums have to tell as codes do: what differs within groups, they do not."""
FEW_LABELS, LEAST_GAIN_OF_FEW = 1_250, 1.4
"""Where codes in rounds are worth fewer labels than that, they tell little apart that sums do not,
so that these need to tell less: at ε = 1 sums keep 7 % less of five sets' errors than codes in
rounds, in geometric mean, of up to 8,000 events, and of more than 17,000 7 % more of three."""
LEAST_GAIN_OF_ROUNDS = 1.1
"""How many times as much codes have to tell in rounds: with 1.13, at ε = 4, four of ten sets keep
10 to 24 % less than with one message, five as much, and one of 5,620 events keeps 14 % more."""


def best_way(epsilon: float, rows: int, no_sums: str = "") -> tuple[str, str]:
    """What is likely to teach most, ``codes`` or sums over ``groups`` in rounds or one ``message``,
    and a sentence that says why, from ε and the number of events; ``no_sums`` is why sums cannot be
    asked for, if so."""
    # a party's own modules are loaded where they work, and by no import of the face
    from labelveil.feature_party.config.usual_shares import usual_shares
    from labelveil.feature_party.groups.asking import gain_of_rounds, gain_of_sums, worth_of_code

    in_rounds = rows >= FEWEST_IN_ROUNDS
    gain = gain_of_sums(epsilon, in_rounds=in_rounds)
    few = in_rounds and rows * worth_of_code(epsilon) < FEW_LABELS
    least = LEAST_GAIN_OF_FEW if few else LEAST_GAIN
    tell = f"tell {gain:.1f} times as much as codes of {rows:,} events at ε = {epsilon:g}"
    if gain >= least and not no_sums:
        count = {3: "three", 5: "five"}[len(usual_shares(rows, epsilon))]
        return GROUPS, f"sums over groups in {count} rounds, as they {tell}"
    why = no_sums or f"sums over groups {tell}, below {least:g}"
    of_rounds = gain_of_rounds(epsilon)
    against = {
        f"{rows:,} events are fewer than the {FEWEST_IN_ROUNDS:,} of rounds": not in_rounds,
        f"codes in rounds tell {of_rounds:.2f} times as much at ε = {epsilon:g}, below"
        f" {LEAST_GAIN_OF_ROUNDS:g}": of_rounds < LEAST_GAIN_OF_ROUNDS,
    }
    if none := next((reason for reason, holds in against.items() if holds), ""):
        return MESSAGE, f"one message, as {none}, and {why}"
    return CODES, f"codes in three rounds, as {why}"


_OWN_OPTIONS = {
    "strata.column": "--strata",
    "data.labels": "--labels",
    "data.population": "--population",
    "labels_party.submit": "--submit-population",
    "data.key": "--key",
    "data.label": "--label",
    "data.missing": "--missing",
    "data.duplicates": "--duplicates",
    "domain.lower": "--lower",
    "domain.upper": "--upper",
    "privacy.epsilon": "--epsilon",
    "randomizer.name": "--randomizer",
    "randomizer.loss": "--loss",
    "data.features": "--features",
    "data.ignore": "--ignore",
    "rounds.shares": "--rounds",
    "training.objective": "--objective",
    "training.head": "--head",
    "training.holdout": "--holdout",
    "training.seed": "--seed",
}
"""Settings that scoring depends on, so that they may be given in one way only."""


@dataclass(frozen=True)
class LabelColumn:
    """A column of labels, and their public bounds."""

    column: str
    lower: float
    upper: float
    whole: bool = False  # whether they were said to be whole numbers


_OneAlone = BeforeValidator(lambda label: [label] if isinstance(label, str) else label)


class DataSettings(Section):
    """Labels and features in one place, as a simulation and a comparison start from them."""

    labels: Path = setting(..., "Labels: CSV or Parquet.")
    features: Path = setting(
        ...,
        "Features: CSV or Parquet; may be the labels' file. Its label column is then withheld from"
        " the features party.",
    )
    label: Annotated[list[str], _OneAlone] = setting(
        ...,
        "Label column, a number; with its bounds, COLUMN:LOWER:UPPER, repeatable for several labels"
        " of one event. A column of integers or booleans is one of whole numbers; of floats if"
        " :whole stands behind the bounds.",
        metavar="COLUMN[:LOWER:UPPER[:whole]]",
        min_length=1,
    )
    lower: float | None = setting(None, "Public lower bound of the labels.")
    upper: float | None = setting(None, "Public upper bound of the labels.")
    out: Path = setting(..., "Folder for everything that the run leaves behind.")
    key: str | None = setting(
        None, "Column that names the event in both files; default for one file: rows."
    )
    holdout: float = setting(0.2, "Share of events kept for scoring.", gt=0, lt=1)
    loss: Annotated[str, one_of(LOSS_NAMES)] = setting(
        "squared", "By which labels are randomized, and models predict."
    )
    ignore: list[str] = setting(
        list, "Column withheld from the features party; repeatable.", metavar="COLUMN"
    )
    quiet: bool = setting(False, "No progress, no table.", flag="--quiet")

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        columns = Counter(label.column for label in self.label_columns)
        if (repeated := columns.most_common(1)[0])[1] > 1:
            raise ConfigError(f"--label {repeated[0]} stands twice; name each column once")
        return self

    @property
    def label_columns(self) -> tuple[LabelColumn, ...]:
        return tuple(map(self._column, self.label))

    def _column(self, text: str) -> LabelColumn:
        try:
            column, lower, upper, whole = bounded_column("--label", text)
        except ConfigError:
            if len(self.label) > 1:
                raise ConfigError(
                    f"--label {text} needs bounds of its own among several, which are numbers:"
                    " COLUMN:LOWER:UPPER"
                ) from None
            if self.lower is None or self.upper is None:
                option = "--lower" if self.lower is None else "--upper"
                raise ConfigError(f"{option} is missing: a public bound of {text}") from None
            column, lower, upper, whole = text, self.lower, self.upper, False
        else:
            if self.lower is not None or self.upper is not None:
                raise ConfigError(f"--label {text} has its bounds; leave out --lower and --upper")
        if not -math.inf < lower < upper < math.inf:
            low, high = ("lower", "upper") if self.lower is None else ("--lower", "--upper")
            raise ConfigError(
                f"{low} {lower:g} must be below {high} {upper:g}; the label domain of {column} is"
                " empty"
            )
        return LabelColumn(column, lower, upper, whole)

    @property
    def same_file(self) -> bool:
        return self.labels.resolve() == self.features.resolve()


class Settings(DataSettings):
    """One simulation."""

    epsilon: float = setting(
        ..., "What the release may reveal about one label.", gt=0, le=MAX_EPSILON
    )
    seed: int = setting(0, "Chooses splits and initial weights, never noise.", ge=0)
    randomizer: Annotated[str, one_of(randomizer_names())] = setting(
        "auto", "What labels are randomized with.", metavar="NAME"
    )
    objective: str = setting("auto", "What the model is trained for.")
    head: str = setting("auto", "Shape of the predicted distribution.")
    columns: dict[str, str] = setting(
        dict,
        "What the cells of features mean, by their columns' names, as in [data.columns] of the"
        " features party, instead of what all of them look like.",
        metavar='{ COLUMN = "MEANING" }',
    )
    population: Path | None = setting(None, "Every event both sides know, with the key column.")
    submit_population: bool = setting(
        False,
        "The features' events are the population; they are submitted.",
        flag="--submit-population",
    )
    rounds: str = setting(
        AUTO,
        "Rounds in which the features' events are submitted, each asked what a model of those"
        " before does not know: 1 for one message of codes without any question, another number,"
        " their shares, such as 0.15,0.25,0.6, or auto: these where they may pay.",
        metavar="N|SHARES|auto",
    )
    ask: Literal["codes", "groups", "auto"] = setting(
        AUTO,
        "What the labels party is asked for: a code of each event; sums over groups of events, in"
        " three rounds or five unless --rounds names others; or auto: codes where"
        " --rounds names rounds, else what is likely to teach more, by epsilon and the number of"
        " events.",
    )
    strata: str | None = setting(
        None,
        "Column of the features that both parties know, such as a country: events of each value are"
        " asked the question that fits its labels.",
        metavar="COLUMN",
    )
    missing: float | None = setting(
        None, "Label of an event without one; default 0, or the lower bound where 0 is outside."
    )
    duplicates: Literal["missing", "last", "sum", "mean"] | None = setting(
        None, "The label of an event that has several rows. Must be chosen where some have."
    )
    label_settings: list[str] = setting(
        list,
        "Setting of the labels party; repeatable.",
        flag="--set-label",
        metavar="SECTION.KEY=VALUE",
    )
    feature_settings: list[str] = setting(
        list,
        "Setting of the features party; repeatable.",
        flag="--set-feature",
        metavar="SECTION.KEY=VALUE",
    )
    nonprivate: bool = setting(True, "Also train boosted trees on the true labels, to compare.")
    overwrite: bool = setting(False, "Replace an earlier run in the folder.", flag="--overwrite")
    _decision: str = PrivateAttr("")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ask == GROUPS and (why := self._against_sums):
            raise ConfigError(f"--ask {GROUPS} and {why} exclude each other; leave one of them out")
        if self.submit_population and self.population is not None:
            raise ConfigError(
                f"--population {self.population} and --submit-population exclude each other; give"
                " one of them"
            )
        if self.shares and self.population is not None:
            raise ConfigError(
                f"--population {self.population} and --rounds {self.rounds} exclude each other: in"
                " rounds the features' events are the population; give one of them"
            )
        if self.shares and self.randomizer != "auto":
            raise ConfigError(
                f"--randomizer {self.randomizer} and --rounds {self.rounds} exclude each other:"
                " what is asked decides the channels; leave one of them out"
            )
        if self.strata is not None and self.submitted:
            raise ConfigError(
                f"--strata {self.strata} and a submitted population exclude each other: who submits"
                " events in rounds gathers them in strata; leave one of them out"
            )
        for label in self.label_columns:
            if not label.lower <= self.missing_value(label) <= label.upper:
                raise ConfigError(
                    f"--missing {self.missing:g} must lie in {label.lower:g} … {label.upper:g}"
                )
        for option, settings in (
            ("--set-label", self.label_settings),
            ("--set-feature", self.feature_settings),
        ):
            for text in settings:
                name = text.partition("=")[0].strip()
                if name in _OWN_OPTIONS:
                    raise ConfigError(f"{option} {text!r}: use {_OWN_OPTIONS[name]} instead")
        return self

    @property
    def _named(self) -> str:
        """A setting beside which nothing is asked, unless that was said; empty if there is none."""
        named = {
            f"several --label ({len(self.label)})": len(self.label) > 1,
            f"--population {self.population}": self.population is not None,
            f"--strata {self.strata}": self.strata is not None,
            f"--randomizer {self.randomizer}": self.randomizer != AUTO,
            f"--loss {self.loss}": self.loss != "squared",
            f"--objective {self.objective}": self.objective != AUTO,
            f"--head {self.head}": self.head != AUTO,
            "--set-label": bool(self.label_settings),
        }
        return next((option for option, given in named.items() if given), "")

    @property
    def _against_sums(self) -> str:
        """A setting that sums over groups know nothing of; empty if there is none."""
        return self._named or ("--set-feature" if self.feature_settings else "")

    @property
    def shares(self) -> list[float]:
        """The rounds' shares of the events; none for one message. Until it is :meth:`decided`,
        one message or question."""
        if self.rounds == AUTO:
            return [1.0] if self.ask == GROUPS else []
        try:
            given = [float(share) for share in self.rounds.split(",")]
            if len(given) == 1 and given[0] in range(1, MOST_ROUNDS + 1):
                count = int(given[0])
                # each twice the one before: little is asked before much is known
                shares = [2**at / (2**count - 1) for at in range(count)]
                return shares if count > 1 or self.ask == GROUPS else []
            if len(given) == 1 or abs(sum(given) - 1) > 1e-9 or min(given) <= 0:
                raise ValueError
            return given
        except ValueError:
            raise ConfigError(
                f"--rounds {self.rounds} must be a number from 1 to {MOST_ROUNDS}, or shares of the"
                " events that are 1 in all, such as 0.15,0.25,0.6"
            ) from None

    def decided(self, rows: int, *, binary: bool = False, others: str = "") -> Self:
        """Decide what was left open, from public facts: ε, how many events there are, whether the
        label has two values alone, and why the features' events are other ones than the labels'.

        Between one message, codes in three rounds, and sums over groups in three or five.
        """
        from labelveil.feature_party.config.usual_shares import usual_shares

        of_sums = ",".join(map(str, usual_shares(rows, self.epsilon)))
        if self.ask == GROUPS:
            return self if self.rounds != AUTO else self._with("", rounds=of_sums)
        if self.rounds != AUTO:
            return self._with("", ask=CODES)
        against = {
            f"nothing is asked beside {self._named}": bool(self._named),
            "labels of two values are best asked in one way": binary,
            others: bool(others) and not self.submit_population,
        }
        if why := next((reason for reason, holds in against.items() if holds), ""):
            return self._with(f"one message, as {why}", ask=CODES, rounds="1")
        from labelveil.feature_party.groups.scoring import FEWEST

        against = {
            "codes are asked for": self.ask == CODES,
            f"sums over groups know nothing of {self._against_sums}": bool(self._against_sums),
            f"sums over groups need {FEWEST} events kept": round(rows * self.holdout) < FEWEST,
        }
        no_sums = next((reason for reason, holds in against.items() if holds), "")
        taken, decision = best_way(self.epsilon, rows, no_sums)
        if taken == MESSAGE:
            return self._with(decision, ask=CODES, rounds="1")
        rounds = _DECIDED if taken == CODES else of_sums
        return self._with(f"{decision}; {_INSTEAD}", ask=taken, rounds=rounds)

    def check_kept(self, rows: int) -> None:
        """``DataError`` if sums are asked for, and of so many events too few are kept to score."""
        if self.ask != GROUPS:
            return
        from labelveil.feature_party.groups.scoring import FEWEST

        if (kept := round(rows * self.holdout)) < FEWEST:
            raise DataError(
                f"--holdout {self.holdout:g} keeps {kept} of {rows:,} events, and {FEWEST} are the"
                " fewest that can be scored; keep a larger share, or give more events"
            )

    def _with(self, decision: str, **settings: str) -> Self:
        """The same with what was decided, which is said, and kept for the report."""
        decided = self.model_copy(update=settings)
        if decision:
            decided._decision = decision
            if not self.quiet:
                stderr.print(decision, soft_wrap=True)
        return decided

    @property
    def decision_facts(self) -> dict[str, str]:
        """What ``metrics.json`` says of what was decided for the user, and why."""
        return {"decision": self._decision} if self._decision else {}

    @property
    def submitted(self) -> bool:
        """Whether the features party names the events, all at once or in rounds."""
        return self.submit_population or bool(self.shares)

    def missing_value(self, label: LabelColumn) -> float:
        """Value of a label where an event has none."""
        if self.missing is not None:
            return self.missing
        return 0.0 if label.lower <= 0 <= label.upper else label.lower
