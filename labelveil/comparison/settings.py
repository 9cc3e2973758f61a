"""What a comparison is asked to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from common.config import Words, parse_settings, setting
from common.console import numbers
from common.errors import ConfigError
from common.mechanisms.central.names import CENTRAL, NEED_DELTA
from common.randomizers.base import MAX_EPSILON
from labelveil.comparison.jobs import DIVISIONS, Job, Method, default_methods, make_jobs
from labelveil.simulation.inputs import LABEL, Inputs
from labelveil.simulation.settings import DataSettings, Settings


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
        "What to compare; repeatable. Default: the default, the published method, more. For several"
        " labels RANDOMIZER is how they share ε: auto, joint, split, or separate messages (all four"
        " by default).",
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
    rows: int | None = setting(None, "Use only so many events, drawn once.", ge=1)
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
                for label in self.columns
            ],
            "loss": self.loss,
            "holdout": self.holdout,
            "training": parse_settings(self.training),
        }
        needed = any(job.method.randomizer in NEED_DELTA for job in jobs)
        return {**shared, **({"delta": self.delta} if needed else {})}
