"""Engines: where the tasks of a release or a join run. What they compute does not depend on it.

A task is a small immutable object that says what to read, what to compute and what to write; the
secrets that it needs are handed to it apart, so that no task, and nothing that an engine logs,
queues or stores of one, contains any. Running a task twice, or on two machines at once, does
nothing that running it once does not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, Self, TypeVar

from pydantic import model_validator

from labelveil.common.config import Section, setting
from labelveil.common.entropy import Entropy
from labelveil.common.errors import ConfigError, LabelveilError

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class EngineSection(Section):
    """Where work on many rows is done. What comes out does not depend on it."""

    name: Literal["local", "spark"] = setting(
        "local",
        "Here, in worker processes, or on Spark. Spark (pip install '.[spark]') needs"
        " workers that see the same files under the same names.",
    )
    workers: int = setting(1, 'Worker processes of "local".', ge=1, le=1024)
    master: str | None = setting(
        None,
        'The master of "spark". Default: as spark-submit knows it.',
        example="spark://head:7077",
    )
    partitions: int = setting(
        0,
        'Tasks that work is cut into at a time on "spark". At 0 as many as there are.',
        ge=0,
        le=1 << 20,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        spark = self.name == "spark"
        idle = {"workers"} if spark else {"master", "partitions"}
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        if alone := sorted(name for name in idle if getattr(self, name) != defaults[name]):
            raise ConfigError(
                f"{alone[0]} has no effect when name={self.name!r}; remove it or set"
                f" [engine] name = {'local' if spark else 'spark'!r}"
            )
        return self


class EngineError(LabelveilError):
    """An engine cannot be had, or lost its workers."""


@dataclass(frozen=True)
class Secrets:
    """What tasks need and nobody may see. It never shows its values."""

    join: bytes  # event keys are hashed under it
    release: bytes = b""  # the key of a release's randomness, for tasks that draw any
    secure: bool = True  # whether that key came from the operating system
    fingerprints: bytes = b""  # events are fingerprinted under it, by tasks that do

    def entropy(self) -> Entropy:
        """Return the release's randomness: a task that is run again draws the same noise."""
        return Entropy(self.release, secure=self.secure)

    def __repr__(self) -> str:
        return "Secrets(…)"


class Task(Protocol, Generic[ResultT_co]):
    """One piece of work; it can be pickled, and holds no secret."""

    def run(self, secrets: Secrets) -> ResultT_co:
        """Do it. The result is small."""
        ...


class Engine(ABC):
    """Runs tasks."""

    @abstractmethod
    def stream(self, tasks: Sequence[Task[ResultT]], secrets: Secrets) -> Iterator[ResultT]:
        """Yield the tasks' results as they come, in the tasks' order; raise what a task raised."""

    def run(self, tasks: Sequence[Task[ResultT]], secrets: Secrets) -> list[ResultT]:
        """Do all tasks and return their results."""
        return list(self.stream(tasks, secrets))
