"""What completing a population found: for the operator alone, and never a reason to refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from operator import add
from typing import Any, ClassVar, Literal

from labelveil.label_party.sources.anomalies import NOTHING, Anomalies

Duplicates = Literal["missing", "last", "sum", "mean"]


@dataclass(frozen=True)
class LabelTally:
    """What completing found of one label."""

    unlabelled: int = 0  # events that got the missing value because they had none
    outside: int = 0  # labels outside the domain
    # smallest, largest: of the completed labels
    smallest: float = math.inf
    largest: float = -math.inf

    def __add__(self, other: LabelTally) -> LabelTally:
        return LabelTally(
            self.unlabelled + other.unlabelled,
            self.outside + other.outside,
            min(self.smallest, other.smallest),
            max(self.largest, other.largest),
        )


def _each(some: tuple[LabelTally, ...], more: tuple[LabelTally, ...]) -> tuple[LabelTally, ...]:
    return tuple(map(add, some, more)) if some and more else some or more


@dataclass(frozen=True)
class Tally:
    """What completing found and did, of all events or of one range of keys; ranges add up.

    For the labels party alone, since all but ``rows`` depends on labels.
    """

    rows: int = 0  # events in the population
    left_out: int = 0  # labelled keys outside the population
    merged: int = 0  # events with several rows of labels, made one label by the configured rule
    # events that got the missing value because their user has too many, or is not named. What
    # follows is counted before that.
    over_limit: int = 0
    repeated: int = 0  # rows of the population whose key occurred before
    # label_rows, most_rows: rows of labels that were read, and the most of one key
    label_rows: int = 0
    most_rows: int = 0
    labels: tuple[LabelTally, ...] = ()  # what was found of each label
    # odd, odd_population: what is odd about rows of labels, and of the population
    odd: Anomalies = NOTHING
    odd_population: Anomalies = NOTHING

    _RULES: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {"most_rows": max, "labels": _each}

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(
                self._RULES.get(f.name, add)(getattr(self, f.name), getattr(other, f.name))
                for f in fields(self)
            )
        )

    @property
    def labelled(self) -> int:
        """Events with a label of their own, of the label that most events have."""
        return self.rows - min((label.unlabelled for label in self.labels), default=0)

    def to_json(self) -> dict[str, Any]:
        """Return its numbers; those of a label that is the only one stand among them."""
        numbers = asdict(self)
        numbers |= {"odd": self.odd.to_json(), "odd_population": self.odd_population.to_json()}
        labels = numbers.pop("labels")
        return numbers | (labels[0] if len(labels) == 1 else {"labels": list(labels)})
