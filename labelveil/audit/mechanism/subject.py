"""What `audit mechanism` is pointed at: a randomizer by name, or anybody's Python callable.

Sums over groups are either: ours by name, or a callable that answers a question about groups.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from labelveil.audit.attacks.implementation import release_sources, sources_of
from labelveil.audit.attacks.one_run import Mechanism, Outputs
from labelveil.audit.attacks.replay import Published
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import Entropy, system_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.exact.rational import decimal_value
from labelveil.common.mechanisms.group_sums import GroupQuestion, Lattice, NoisySums
from labelveil.common.randomizers import (
    LabelTerms,
    NoisyPrior,
    Randomizer,
    build_randomizer,
    plan_message,
    private_prior,
)
from labelveil.common.randomizers.base import ROUNDING_STREAM
from labelveil.common.randomizers.grid import Grid

REPLAY_EPSILON = 1.5
"""Budget of replayed releases; their few rows make ε₁ large enough for histograms to coincide."""


@dataclass(frozen=True, eq=False)
class NamedSubject:
    """A randomizer that :func:`build_randomizer` knows, for a uniform prior."""

    name: str
    labels: Floats  # (k,) grid
    epsilon: float  # claimed ε of one label
    loss: str = "squared"

    @cached_property
    def randomizer(self) -> Randomizer:
        prior = np.ones(self.labels.size)
        return self._build(labels=self.labels, prior=prior, epsilon=self.epsilon)

    def _build(self, **terms: Any) -> Randomizer:
        return build_randomizer(self.name, **terms, loss=self.loss)

    @property
    def title(self) -> str:
        return f"randomizer {self.name}"

    def mechanism(self, labels: Floats) -> Outputs:
        """Labels to output values, with fresh noise at each call."""
        codes = self.randomize(labels, system_entropy())
        # two outputs of one value are still two messages: the code is what is sent
        return codes.astype(np.min_scalar_type(self.randomizer.channel.outputs.size))

    def randomize(self, labels: Floats, entropy: Entropy) -> Outputs:
        return self.randomizer.randomize(labels, entropy)

    def noise(self, entropy: Entropy) -> Integers:
        """Noise on the histogram of one label of each kind."""
        counts = np.ones(self.labels.size, dtype=np.int64)
        return private_prior(counts, REPLAY_EPSILON, entropy).noisy_counts - counts

    def release(self, labels: Floats, entropy: Entropy) -> Published:
        """The two-step procedure over this grid's first three points, as a release runs it.

        ``ConfigError`` if it has no first step.
        """
        grid = Grid(self.labels[:3])
        counts = np.bincount(labels.astype(np.int64), minlength=len(grid))
        terms = LabelTerms("label", grid.lower, grid.upper, grid, self.loss, randomizer=self.name)
        plan = plan_message([terms], len(labels), REPLAY_EPSILON, prior_share=Fraction(1, 2))
        if not plan.histograms:
            raise ConfigError("of these labels no histogram is released, whose noise would count")
        released = plan.release([counts], entropy)
        (channel,) = plan.build(released).codebook.channels
        (prior,) = released.priors.values()
        return Published(
            tuple(prior.noisy_counts.tolist()),
            prior.scale,
            prior.exact_epsilon,
            (channel.outputs.tobytes(), channel.weights),
        )

    def channel_of(self, noisy: tuple[int, ...], rows: int) -> FiniteChannel:
        """What is built of the noisy counts of a tiny grid, with ε₁ = ε₂ = 1/2."""
        prior = NoisyPrior(np.array(noisy), Fraction(1, 2), rows).probabilities
        return self._build(
            labels=np.arange(float(len(noisy))), prior=prior, epsilon=0.5, rows=rows
        ).channel

    def shown(self, label: float) -> str:
        return f"{label:g}"

    @property
    def sources(self) -> list[Path]:
        return release_sources()


@dataclass(frozen=True, eq=False)
class CallableSubject:
    """An importable callable ``module:function`` from (n,) or (n, m) labels to (n,) outputs."""

    target: str  # ``package.module:function``; found from the working directory, too
    labels: Floats  # (k,) labels that it may be called with
    epsilon: float  # claimed ε of one label, or of all labels of an event
    events: Floats | None = None
    """(k, m) what it is called with instead where an event has several labels; ``labels`` are
    then the numbers 0 … k − 1 of these rows, and neighbours differ in any or all labels of an
    event."""

    @classmethod
    def of_several(cls, target: str, ends: Sequence[Sequence[float]], epsilon: float) -> Self:
        """Call it with every combination of each label's values."""
        events = np.array([*product(*ends)])
        return cls(target, np.arange(float(len(events))), epsilon, events)

    @cached_property
    def function(self) -> Mechanism:
        """What the target names.

        ``ConfigError`` if there is no such module or callable.
        """
        return cast(Mechanism, _named(self.target))

    @property
    def title(self) -> str:
        return f"callable {self.target}"

    def mechanism(self, labels: Floats) -> Outputs:
        """Labels to outputs, one for each label, or event."""
        unit = "a label" if self.events is None else "an event"
        if self.events is not None:  # the labels are numbers of events
            last = len(self.events) - 1
            # a number beyond the last stands for labels as far beyond their upper ends
            beyond = np.maximum(labels / last - 1, 0)[:, None] * (self.events[-1] - self.events[0])
            labels = self.events[np.minimum(labels, last).astype(np.int64)] + beyond
        outputs = np.asarray(self.function(labels))
        if outputs.shape != labels.shape[:1]:
            raise ConfigError(
                f"{self.target} gave outputs of shape {outputs.shape} for {len(labels)}"
                f" {unit.split()[1]}s; it must give one {unit}"
            )
        return outputs

    def shown(self, label: float) -> str:
        """A label, or all labels of an event, in words."""
        if self.events is None:
            return f"{label:g}"
        return f"({', '.join(f'{value:g}' for value in self.events[int(label)])})"

    @property
    def sources(self) -> list[Path]:
        """The file that the callable is defined in."""
        return _source(self.function)


GROUP_SUMS = "group-sums"
"""The name of our own sums over groups."""


@dataclass(frozen=True, eq=False)
class Answered:
    """The answer to a question about G groups, and what is said of its noise."""

    sums: Outputs  # (G,) in steps of the lattice
    scales: tuple[Integers, int]
    """(G,) numerators of the noise's scales, in steps, and the denominator that they share."""
    variances: Floats  # (G,) of the noise, in steps²
    epsilon: Fraction  # that the answer is charged with


Answering = Callable[[Floats, GroupQuestion, Fraction, Entropy], Answered]
"""(n,) labels, a question about them, ε, and the entropy from which all noise is drawn."""


def answer_exactly(
    labels: Floats, question: GroupQuestion, epsilon: Fraction, entropy: Entropy
) -> Answered:
    """Answer by our own mechanism."""
    noisy = NoisySums(question, epsilon)
    coins = entropy.coins(ROUNDING_STREAM, 0, labels.size)
    sums = noisy.draw(question.lattice.round(labels, coins), entropy)
    return Answered(sums, noisy.scale_terms, noisy.variances, noisy.guarantee.exact_epsilon)


@dataclass(frozen=True, eq=False)
class SumsSubject:
    """Sums over groups: our own, or a callable ``module:function``, an :data:`Answering`.

    As a mechanism from labels to outputs every label is in a group of its own.
    """

    target: str  # or GROUP_SUMS
    labels: Floats  # (k,) points of the lattice, all of them
    epsilon: float  # claimed ε of one label

    @property
    def own(self) -> bool:
        """Whether it is this project's."""
        return self.target == GROUP_SUMS

    @cached_property
    def function(self) -> Answering:
        """What the target names; ``ConfigError`` as for any callable."""
        return answer_exactly if self.own else cast(Answering, _named(self.target))

    @property
    def exact(self) -> Fraction:
        """ε as it is written."""
        return decimal_value(self.epsilon)

    @cached_property
    def lattice(self) -> Lattice:
        return Lattice(float(self.labels[0]), float(self.labels[-1]), self.labels.size - 1)

    @property
    def title(self) -> str:
        return self.target if self.own else f"sums over groups {self.target}"

    def answer(self, labels: Floats, question: GroupQuestion, entropy: Entropy) -> Answered:
        """Answer a question about labels at the claimed ε."""
        return self.function(labels, question, self.exact, entropy)

    def mechanism(self, labels: Floats) -> Outputs:
        """Sums of one label each, all of it, with fresh noise at each call."""
        widths = np.full(labels.size, self.lattice.steps)
        question = GroupQuestion(self.lattice, np.arange(labels.size), widths)
        return self.answer(labels, question, system_entropy()).sums

    def shown(self, label: float) -> str:
        return f"{label:g}"

    @property
    def sources(self) -> list[Path]:
        """Of the callable; of our own, with all that they import."""
        return (
            sources_of("labelveil.common.mechanisms.group_sums")
            if self.own
            else _source(self.function)
        )


def _named(target: str) -> Callable[..., Any]:
    """What ``module:function`` names; ``ConfigError`` if there is no such callable."""
    module, _, name = target.partition(":")
    if not (module and name):
        raise ConfigError(f"{target!r} must be module:function")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigError(f"module {module!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ConfigError(f"{module!r} has no callable {name!r}")
    return cast(Callable[..., Any], function)


def _source(function: Callable[..., Any]) -> list[Path]:
    """The file that a callable is defined in."""
    with suppress(TypeError):
        if path := inspect.getsourcefile(inspect.unwrap(function)):
            return [Path(path)]
    return []


Subject = NamedSubject | CallableSubject | SumsSubject


def starts_anew(subject: Subject) -> bool:
    """Whether each call is a start: our own code keeps no noise between two."""
    return isinstance(subject, NamedSubject) or subject.target == GROUP_SUMS
