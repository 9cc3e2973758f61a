"""What a comparison runs: methods, budgets, repetitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common.errors import ConfigError
from common.mechanisms.central.names import CENTRAL, EQUAL_INFORMATION, TRUE_LABELS
from common.randomizers import randomizer_names


@dataclass(frozen=True, order=True)
class Method:
    """A randomizer and how to learn from it.

    Attributes
    ----------
    randomizer
        A name that :func:`common.randomizers.build_randomizer` knows, ``true-labels``,
        ``equal-information``, or one of :data:`CENTRAL`.
    objective, head
        As for training: ``raw``, ``debiased``, ``likelihood`` or ``auto``; a head for the last two.
    """

    randomizer: str
    objective: str = "auto"
    head: str = "auto"

    @classmethod
    def parse(cls, text: str) -> Method:
        """Read ``RANDOMIZER[:OBJECTIVE[:HEAD]]``."""
        parts = text.split(":")
        if not 1 <= len(parts) <= 3 or not all(parts):
            raise ConfigError(f"method {text!r} must look like RANDOMIZER[:OBJECTIVE[:HEAD]]")
        method = cls(*parts)
        if method.randomizer in (*CENTRAL, EQUAL_INFORMATION) and len(parts) > 1:
            raise ConfigError(f"method {text!r}: {parts[0]} has no objective or head to choose")
        if method.randomizer not in (TRUE_LABELS, EQUAL_INFORMATION, *CENTRAL, *randomizer_names()):
            raise ConfigError(
                f"method {text!r}: randomizer must be one of"
                f" {', '.join([*randomizer_names(), *CENTRAL, EQUAL_INFORMATION])}"
            )
        return method

    def __str__(self) -> str:
        if self.randomizer == TRUE_LABELS:
            return "true labels"
        if self.randomizer in (*CENTRAL, EQUAL_INFORMATION):
            return self.randomizer
        return " · ".join([self.randomizer, self.objective, *self._head])

    @property
    def _head(self) -> list[str]:
        return [] if self.head == "auto" else [self.head]


@dataclass(frozen=True, order=True)
class Job:
    """One release and one trained model.

    Attributes
    ----------
    epsilon
        Whole budget of a label, the prior included; infinite for the true labels.
    run
        Repetition: chooses the split and the initial weights. The noise is fresh in every job.
    method
        What is compared.
    """

    epsilon: float
    run: int
    method: Method

    def to_json(self) -> dict[str, Any]:
        epsilon = None if math.isinf(self.epsilon) else self.epsilon
        return {"epsilon": epsilon, "run": self.run, **asdict(self.method)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        epsilon = math.inf if data["epsilon"] is None else float(data["epsilon"])
        method = Method(data["randomizer"], data["objective"], data["head"])
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


def baselines(name: str) -> list[Method]:
    """Read ``--baselines``: ``central`` for the default and what a trusted curator would reach."""
    if name != "central":
        raise ConfigError(f"--baselines {name!r} must be 'central'")
    return [Method("auto"), *(Method(central) for central in CENTRAL)]


def make_jobs(methods: Iterable[Method], epsilons: Sequence[float], runs: int) -> list[Job]:
    """List all jobs, run by run, so that an interrupted comparison has whole runs.

    Raises
    ------
    ConfigError
        If nothing is to be compared.
    """
    chosen = list(dict.fromkeys(methods))
    if not chosen:
        raise ConfigError("no method is given; name at least one with --method")
    jobs = []
    for run in range(runs):
        jobs.append(Job(math.inf, run, Method(TRUE_LABELS, "true", "auto")))
        jobs += [Job(epsilon, run, method) for epsilon in epsilons for method in chosen]
    return jobs
