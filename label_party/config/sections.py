"""The labels party's configuration: one immutable section for each table of label_party.toml.

What a single value may be is checked here, so that a mistake is reported before any file is read.
Relative paths are relative to the working directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import model_validator

from labelveil.common.config import Section, Sections, load_config, one_of, setting
from labelveil.common.engine.task import EngineSection
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import LabelTerms, MessagePlan, plan_message, randomizer_names
from labelveil.common.randomizers.losses import LOSS_NAMES
from labelveil.common.randomizers.message.terms import MOST_LABELS
from labelveil.common.release.facts import check_digits, check_options
from labelveil.label_party.config.data import DataSection
from labelveil.label_party.config.labels import DomainSection, LabelTable
from labelveil.label_party.config.offers import (
    EvaluationSection,
    PublicPriorSection,
    RoundsSection,
    StrataSection,
    WatchSection,
)
from labelveil.label_party.config.privacy import NOT_IN_REQUEST, PrivacySection
from labelveil.label_party.config.serving import ObservabilitySection, ServerSection
from labelveil.label_party.sources.query_columns import gives_away, made_of, tables_of

DEFAULT_CONFIG = Path("label_party.toml")


class RandomizerSection(Section):
    """Which label randomizer, and the loss by which it is judged."""

    name: Annotated[str, one_of(randomizer_names())] = setting(
        "auto",
        'How labels are randomized. "auto" chooses the best for training; `labelveil compare`'
        " compares.",
        flag="--randomizer",
    )
    loss: Annotated[str, one_of(LOSS_NAMES)] = setting("squared", "Loss of the regression.")
    options: dict[str, Any] = setting(
        dict, "Options of the randomizer, where it takes any.", example={"points": 32}
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_options(self.name, self.options)
        check_digits(self.options)
        return self


class KeysSection(Section):
    """The secret under which both parties hash event keys, and the key that signs manifests."""

    secret_file: Path = setting(
        Path("certificates/join.key"),
        "Secret that both parties share and hash keys with. 64 hexadecimal digits, new for"
        " each partner. `label-party init --new-secret` makes one, `labelveil certificates` one"
        " for tests.",
    )
    signing_key: Path | None = setting(
        None,
        "Ed25519 private key (PEM, mode 0600) with which `label-party release` signs the"
        " manifest. The features party can pin its public half. `label-party init"
        " --new-signing-key` makes a pair, `labelveil certificates --signing-key` one for tests."
        " The server does not need it.",
        example="certificates/signing.key",
    )


class StoreSection(Section):
    """Where releases and the ledger live."""

    directory: Path = setting(
        Path("label_store"),
        "Directory of the releases and of the ledger, on a local disk. Back it up: it is the proof"
        " of what has been spent.",
        flag="--store",
    )


class LabelPartyConfig(Section):
    """The whole of label_party.toml."""

    data: DataSection
    domain: DomainSection | None = setting(None)
    label: Sections[LabelTable] = setting(list)
    privacy: PrivacySection
    randomizer: RandomizerSection = setting(RandomizerSection)
    keys: KeysSection = setting(KeysSection)
    evaluation: EvaluationSection = setting(EvaluationSection)
    watch: WatchSection = setting(WatchSection)
    strata: StrataSection = setting(StrataSection)
    prior: PublicPriorSection = setting(PublicPriorSection)
    rounds: RoundsSection = setting(RoundsSection)
    store: StoreSection = setting(StoreSection)
    engine: EngineSection = setting(EngineSection)
    server: ServerSection = setting(ServerSection)
    observability: ObservabilitySection = setting(ObservabilitySection)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.data.submitted:
            self._check_submitted()
        if self.watch.hits is not None and self.privacy.epochs == "disjoint":
            raise ConfigError(
                "hits has no effect when epochs='disjoint': no event is tested twice, so each test"
                " is part of its own epoch; remove [watch] hits"
            )
        self._check_labels()
        self._check_roles()
        chosen = self.randomizer
        if self.strata.column is not None and (chosen.name != "auto" or chosen.options):
            raise ConfigError(
                f"[strata] have channels designed for them, and randomizer={chosen.name!r} with"
                f' options {chosen.options} none; set [randomizer] name = "auto", without options'
            )
        if self.rounds.questions:
            self._check_questions()
        several = len(self.labels) > 1
        if not self.tests_drift and self.watch.hits is not None:
            raise ConfigError(
                "hits has no effect on several [[label]], [strata] or a [prior] file, whose epochs"
                " are not tested; remove [watch] hits"
            )
        if self.strata.column is not None and self.prior.file and not self.prior.corrected:
            raise ConfigError(
                f"file={str(self.prior.file)!r} says nothing of each of the [strata]; set [prior]"
                " corrected = true, which counts them, or remove one of the two"
            )
        if several and self.evaluation.largest_loss is not None:
            raise ConfigError(
                f"largest_loss={self.evaluation.largest_loss:g} is in units of one label, and there"
                " are several [[label]]; remove [evaluation] largest_loss"
            )
        return self

    def _check_questions(self) -> None:
        refused = {
            f"population={str(self.data.population)!r} names the events": not self.data.submitted,
            "there are several [[label]]": len(self.labels) > 1,
            f"randomizer={self.randomizer.name!r} fits no stratum": self.randomizer.name != "auto",
        }
        for reason, holds in refused.items():
            if holds:
                raise ConfigError(
                    f"[rounds] questions has no effect where {reason}; it takes the events that"
                    " the features party submits, one label and the randomizer auto: leave it out"
                )

    def _check_labels(self) -> None:
        if not self.label and self.domain is None:
            raise ConfigError("domain is missing; set [domain] lower and upper, or list [[label]]")
        defaults = RandomizerSection()
        of_one_label = {  # said in each [[label]], or of the only label alone
            "[domain]": self.domain is not None,
            "[data] label": "label" in self.data.model_fields_set,
            "[data] missing": self.data.missing is not None,
            "[randomizer] name": len(self.label) > 1 and self.randomizer.name != defaults.name,
            "[randomizer] loss": self.randomizer.loss != defaults.loss,
            "[randomizer] options": len(self.label) > 1 and bool(self.randomizer.options),
        }
        for place, is_set in of_one_label.items():
            if self.label and is_set:
                raise ConfigError(
                    f"{place} has no effect beside [[label]], which says it of every label; remove"
                    " one of the two"
                )
        if len(self.label) > MOST_LABELS:
            raise ConfigError(
                f"{len(self.label)} labels are more than the {MOST_LABELS} that one message may"
                " have; remove some [[label]]"
            )
        for key in ("name", "column"):
            values = [str(getattr(label, key)) for label in self.labels]
            if repeated := sorted({value for value in values if values.count(value) > 1}):
                raise ConfigError(
                    f"{key}={repeated[0]!r} is that of two labels; set [[label]] {key}"
                )
        for label in self.labels:
            lower, upper = label.bounds
            if not lower <= label.missing <= upper:
                where = f"[[label]] missing of {label.name!r}" if self.label else "[data] missing"
                raise ConfigError(
                    f"missing={label.missing:g} must lie within the domain {lower:g} … {upper:g};"
                    f" set {where}"
                )

    def _check_roles(self) -> None:
        """What is public of an event is no label, under whatever name."""
        data, columns = self.data, dict[str, str]()
        roles = {"[data] key": data.key, "[data] date": data.date}
        roles |= {"[privacy] user": self.privacy.user, "[strata] column": self.strata.column}
        for label in self.labels:
            columns |= {label.name: label.column, label.column: label.column}
        for place, column in roles.items():
            if column in columns:
                raise ConfigError(
                    f"{place} = {column!r} is public, and {column!r} is a label; name another"
                    " column there"
                )
        query = data.labels_query if data.population is None else data.population_query
        if query is None or data.labels_query is None:
            return
        if data.population and not tables_of(query) & tables_of(data.labels_query):
            return
        for place, column in roles.items():
            made = made_of(query, column or "")
            for name in columns.values():
                if column and gives_away(made_of(data.labels_query, name), made):
                    raise ConfigError(
                        f"{place} = {column!r} is public, and the query makes it of all that the"
                        f" label {name!r} is made of; let it select another column there"
                    )

    @property
    def labels(self) -> list[LabelTable]:
        """Every label; [domain] and what goes with it are short for one [[label]]."""
        if self.domain is None:
            return self.label
        data, loss = self.data, self.randomizer.loss
        return [_only_label(data.label, data.missing, loss, self.domain.model_dump_json())]

    @property
    def tests_drift(self) -> bool:
        """Whether a watch tests that an epoch's labels follow the prior that an earlier one paid
        for; otherwise every epoch counts its labels anew, or starts from a public prior."""
        return len(self.labels) == 1 and self.strata.column is None and self.prior.file is None

    def place_of(self, name: str | None) -> int:
        """Where a label stands among all; the only one needs no name.

        ``ConfigError`` if there is none of that name, or one must be named.
        """
        names = [label.name for label in self.labels]
        if name is None and len(names) > 1:
            raise ConfigError(f"this takes one of the labels {', '.join(names)}; set --label")
        if name is not None and name not in names:
            raise ConfigError(f"--label {name!r} must be one of {', '.join(names)}")
        return 0 if name is None else names.index(name)

    def _check_submitted(self) -> None:
        if self.strata.column is not None:
            raise ConfigError(
                f'column={self.strata.column!r} has no effect where population="submitted": who'
                " submits the events says with its question in which stratum each is; remove"
                " [strata], or name a file in [data] population"
            )
        if self.privacy.unit == "user":
            raise ConfigError(
                "unit='user' needs to know whose event is whose, labelled or not, and a submitted"
                " population does not say; name a file in [data] population, or set [privacy] unit"
            )

    def at(self, epoch: str) -> Self:
        return self.model_copy(update={"data": self.data.at(epoch)})

    @property
    def account(self) -> str:
        """Whose budget pays: the account that is named, or the data set's own."""
        return self.privacy.account or self.data.data_set

    @property
    def terms(self) -> list[LabelTerms]:
        return [
            LabelTerms(
                label.name,
                *label.bounds,
                label.fixed,
                label.loss,
                label.weight,
                label.grid == "values",
                label.whole,
                self.randomizer.name,
                self.randomizer.options,
            )
            for label in self.labels
        ]

    def plan_message(self, rows: int, epsilon: float | None = None) -> MessagePlan:
        """What public facts decide of a message about n events, at the configured ε or
        another.

        Raises
        ------
        ConfigError
            For labels that one message cannot carry.
        """
        privacy = self.privacy
        return plan_message(
            self.terms,
            rows,
            privacy.message_epsilon if epsilon is None else epsilon,
            division=privacy.division,
            records=privacy.group,
            prior_share=privacy.prior_share,
        )

    @property
    def entitlements(self) -> dict[str, frozenset[str]]:
        """Which named certificate may fetch which data sets."""
        if self.server.clients:
            return {name: frozenset(sets) for name, sets in self.server.clients.items()}
        names = self.server.data_sets or [self.data.data_set]
        return {self.server.client_san: frozenset(names)}

    def request(self) -> dict[str, Any]:
        """Return what a release of this configuration *means*, as JSON values.

        Two configurations with the same meaning ask for the same release of the same events; where
        files lie and how the server is set up are no part of it.
        """
        # what was sold with a cap as its default is still found where none is set
        unset = set() if self.privacy.prior_share else {"prior_share"}
        return {
            "labels": [label.model_dump(mode="json") for label in self.labels],
            **({"division": self.privacy.division} if len(self.labels) > 1 else {}),
            "privacy": self.privacy.model_dump(mode="json", exclude=NOT_IN_REQUEST | unset),
            "randomizer": self.randomizer.model_dump(mode="json", exclude={"loss"}),
        }


@lru_cache(maxsize=64)
def _only_label(name: str, missing: float | None, loss: str, domain: str) -> LabelTable:
    """What [domain] is short for: a command asks some twenty times, and each is a check."""
    return LabelTable(name=name, missing=missing, loss=loss, **json.loads(domain))


def load(
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
) -> LabelPartyConfig:
    """Read and check the labels party's configuration; errors are one line."""
    return load_config(LabelPartyConfig, path, overrides, settings)
