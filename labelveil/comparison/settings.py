"""What a comparison is asked to do, and what it then runs: methods, budgets, repetitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from labelveil.common.config import Words, parse_settings, setting
from labelveil.common.console import numbers
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import randomizer_names
from labelveil.common.randomizers.base import MAX_EPSILON
from labelveil.common.release.facts import check_options
from labelveil.comparison.names import (
    AS_PUBLISHED,
    CENTRAL,
    GROUPS,
    NEED_DELTA,
    SEPARATE,
    TRUE_LABELS,
)
from labelveil.comparison.published_labels import CONTINUOUS_NOISE
from labelveil.simulation.inputs import LABEL, Inputs
from labelveil.simulation.settings import DataSettings, Settings

DIVISIONS = ("auto", "joint", "split", SEPARATE)  # how several labels of one event share ε


@dataclass(frozen=True, order=True)
class Method:
    """A randomizer and how to learn from it."""

    # a name that :func:`labelveil.common.randomizers.build_randomizer` knows, ``true-labels``,
    # ``groups``, or one of :data:`CENTRAL`. For several labels of one event, which the library
    # chooses randomizers for, one of :data:`DIVISIONS`.
    randomizer: str
    # objective, head: as for training: ``raw``, ``debiased``, ``likelihood`` or ``auto``; a head
    # for the last two. Or ``as-published``: the labels and the training of the paper.
    objective: str = "auto"
    head: str = "auto"
    # names and values of the randomizer's options; also ``prior_share``, the largest share of ε
    # that the prior may take, and ``continuous``, for noise in floating point as published
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str, *, several: bool = False) -> Method:
        """Read ``RANDOMIZER[,OPTION=VALUE…][:OBJECTIVE[:HEAD]]``.

        With ``several`` labels, one of :data:`DIVISIONS` stands for the randomizer.
        """
        parts = text.split(":")
        if len(parts) > 3 or not all(parts):
            raise ConfigError(
                f"method {text!r} must look like RANDOMIZER[,OPTION=VALUE][:OBJECTIVE[:HEAD]]"
            )
        name, *options = parts[0].split(",")
        objective, head = (*parts[1:], "auto", "auto")[:2]
        method = cls(name, objective, head, tuple(sorted(parse_settings(options).items())))
        try:
            method._check(several)
        except ConfigError as error:
            raise ConfigError(f"method {text!r}: {error}") from error
        return method

    def _check(self, several: bool) -> None:
        name, how = self.randomizer, (self.objective, self.head)
        if several and (name not in DIVISIONS or self.options or AS_PUBLISHED in how):
            raise ConfigError(
                f"several labels are sent by one of {', '.join(DIVISIONS)}, without options;"
                " compare randomizers on one label"
            )
        alone = (GROUPS, *CENTRAL)
        if name in alone and (how != ("auto", "auto") or self.options):
            raise ConfigError(f"{name} has no objective, head or options to choose")
        known = [*randomizer_names(), *alone]
        if not several and name not in (TRUE_LABELS, *known):
            raise ConfigError(f"randomizer must be one of {', '.join(known)}")
        options, published = dict(self.options), self.objective == AS_PUBLISHED
        share, continuous = options.pop("prior_share", None), options.pop("continuous", False)
        if name == TRUE_LABELS:
            if self.options:
                raise ConfigError("true labels take no options")
        elif options:
            check_options(name, options)
        if published and self.head != "auto":
            raise ConfigError(f"{AS_PUBLISHED} has no head to choose")
        if share is not None and (
            published or not isinstance(share, float | int) or not 0 < share < 1
        ):
            raise ConfigError(
                f"prior_share={share} must lie above 0 and below 1; {AS_PUBLISHED} takes none,"
                " its prior costs √(4k/n)"
            )
        fits = published and name in CONTINUOUS_NOISE and options.keys() <= {"clip"}
        if not isinstance(continuous, bool) or (continuous and not fits):
            raise ConfigError(
                f"continuous={continuous} is true or false, and true for"
                f" {' and '.join(CONTINUOUS_NOISE)} with the objective {AS_PUBLISHED} alone, beside"
                " no option but clip: floats tell more than ε says, and no release is made of them"
            )

    def __str__(self) -> str:
        if self.randomizer == TRUE_LABELS:
            return "true labels"
        if self.randomizer == GROUPS:
            return "sums over groups"
        if self.randomizer in CENTRAL:
            return self.randomizer
        options = [
            name if value is True else f"{name} {str(value).lower()}"
            for name, value in self.options
        ]
        head = [] if self.head == "auto" else [self.head]
        return " · ".join([", ".join([self.randomizer, *options]), self.objective, *head])


@dataclass(frozen=True, order=True)
class Job:
    """One release and one trained model."""

    epsilon: float  # whole budget of a label, the prior included; infinite for the true labels
    run: int  # chooses the split and the initial weights; the noise is fresh in every job
    method: Method

    def to_json(self) -> dict[str, Any]:
        epsilon = None if math.isinf(self.epsilon) else self.epsilon
        method = {**asdict(self.method), "options": dict(self.method.options)}
        return {"epsilon": epsilon, "run": self.run, **method}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        epsilon = math.inf if data["epsilon"] is None else float(data["epsilon"])
        options = tuple(sorted(data.get("options", {}).items()))
        method = Method(data["randomizer"], data["objective"], data["head"], options)
        return cls(epsilon, int(data["run"]), method)


def default_methods() -> list[Method]:
    """The default, the published method in three ways, and what else is worth its time."""
    return [
        Method("auto", "auto"),
        Method("rr-on-bins", "raw"),
        Method("rr-on-bins", "debiased"),
        Method("rr-on-bins", "likelihood"),
        Method("laplace", "raw"),
        Method("unbiased", "debiased"),
        Method("unbiased", "likelihood"),
        Method("randomized-thresholds", "likelihood"),
    ]


def make_jobs(methods: Iterable[Method], epsilons: Sequence[float], runs: int) -> list[Job]:
    """List all jobs, run by run, so that an interrupted comparison has whole runs."""
    chosen = list(dict.fromkeys(methods))
    if not chosen:
        raise ConfigError("no method is given; name at least one with --method")
    published = all(method.objective == AS_PUBLISHED for method in chosen)
    reference = Method(TRUE_LABELS, AS_PUBLISHED if published else "true")
    jobs = []
    for run in range(runs):
        jobs.append(Job(math.inf, run, reference))
        jobs += [Job(epsilon, run, method) for epsilon in epsilons for method in chosen]
    return jobs


def _numbers(value: Any) -> Any:
    """A flag's value is text such as 0.5,1,2, or a single number."""
    return value if isinstance(value, list | tuple) else numbers("--epsilons", str(value))


class CompareSettings(DataSettings):
    """One comparison: randomizers × objectives × ε × runs on one data set."""

    epsilons: Annotated[
        tuple[Annotated[float, Field(gt=0, le=MAX_EPSILON)], ...],
        BeforeValidator(_numbers),
        Words(f"numbers above 0 and at most {MAX_EPSILON:g}, such as 0.5,1,2"),
    ] = setting((0.5, 1, 2, 4), "Budgets, the prior included.", metavar="NUMBER,…", min_length=1)
    methods: list[str] = setting(
        list,
        "What to compare; repeatable. Default: the default, the published method, more. Instead of"
        " RANDOMIZER groups: no codes, but sums over groups of events in three rounds or five. For"
        " several labels RANDOMIZER is how they share ε: auto, joint, split, or separate messages"
        " (all four by default).",
        flag="--method",
        metavar="RANDOMIZER[,OPTION=VALUE][:OBJECTIVE[:HEAD]]",
    )
    baselines: Literal["central"] | None = setting(
        None,
        "'central': the default beside what a trusted curator would reach, who holds features and"
        " labels in one place (DP-SGD needs labelveil[central]).",
    )
    delta: float = setting(1e-6, "δ of the baselines with Gaussian noise.", gt=0, lt=1)
    runs: int = setting(5, "Repetitions, each with its own split.", ge=1)
    rows: int | None = setting(None, "Use only this many events, drawn once.", ge=1)
    workers: int = setting(0, "Processes; 0: one for each core.", ge=0)
    training: list[str] = setting(
        list,
        "Setting of [training], such as ensemble=4; repeatable.",
        flag="--set-training",
        metavar="KEY=VALUE",
    )

    @model_validator(mode="after")
    def _check_baselines(self) -> Self:
        if self.several and self.baselines is not None:
            raise ConfigError(
                f"--baselines {self.baselines} is about one label, and --label stands"
                f" {len(self.label)} times; name one"
            )
        return self

    @property
    def several(self) -> bool:
        return len(self.label) > 1

    @property
    def jobs(self) -> list[Job]:
        methods = [Method.parse(text, several=self.several) for text in self.methods]
        if self.baselines is not None:
            methods += map(Method, ("auto", *CENTRAL))
        usual = [*map(Method, DIVISIONS)] if self.several else default_methods()
        return make_jobs(methods or usual, self.epsilons, self.runs)

    @property
    def simulation(self) -> Settings:
        """The same data, as a simulation reads them."""
        shared = self.model_dump(include=set(DataSettings.model_fields))
        return Settings(epsilon=self.epsilons[0], **shared)

    def for_workers(self, jobs: list[Job], inputs: Inputs) -> dict[str, Any]:
        """What every job has in common."""
        shared = {
            "columns": [
                asdict(label)
                | {"column": label.column if self.several else LABEL, "whole": inputs.whole(label)}
                for label in self.label_columns
            ],
            "loss": self.loss,
            "holdout": self.holdout,
            "training": parse_settings(self.training),
        }
        needed = any(job.method.randomizer in NEED_DELTA for job in jobs)
        return {**shared, **({"delta": self.delta} if needed else {})}
