"""The common shape of every guarantee, and the rules under which two of them may be combined.

A guarantee is a statement about *neighbouring* data sets of one *privacy unit*. Numbers about
different neighbours do not add, so :func:`compose` refuses to add them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any, ClassVar, Self

from common.errors import PrivacyError


class Adjacency(StrEnum):
    """Which pairs of data sets a guarantee compares."""

    REPLACE_LABEL = "replace-label"
    """One label is replaced by another; the set of events is fixed and public (label DP)."""
    REPLACE_RECORD = "replace-record"
    """One whole record is replaced by another; the number of records is public."""
    ADD_REMOVE = "add-remove"
    """One record, or all records of one user, is added or removed."""


class Unit(StrEnum):
    """Whose data one step between neighbours may change."""

    RECORD = "record"
    USER = "user"


@dataclass(frozen=True)
class Guarantee(ABC):
    """A guarantee about one release: subclasses add its parameters.

    Attributes
    ----------
    adjacency
        Which data sets are neighbours.
    unit
        Whether neighbours differ in one record or in all records of one user.
    """

    adjacency: Adjacency
    unit: Unit

    kind: ClassVar[str]

    @abstractmethod
    def compose(self, other: Self) -> Self:
        """Return the guarantee of releasing both; ``other`` has the same kind, adjacency, unit."""

    @abstractmethod
    def repeat(self, times: int) -> Self:
        """Return the guarantee of ``times`` >= 0 independent releases, equal to composing them."""

    @abstractmethod
    def scale(self, group: int) -> Self:
        """Return the guarantee for neighbours that differ in ``group`` >= 1 units."""

    @abstractmethod
    def within(self, limit: Self) -> bool:
        """Whether this guarantee is at least as strong as ``limit``, decided without rounding."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return the parameters as exact JSON values."""

    @classmethod
    @abstractmethod
    def from_parameters(
        cls, parameters: Mapping[str, Any], adjacency: Adjacency, unit: Unit
    ) -> Self:
        """Rebuild a guarantee from :meth:`parameters`."""

    def to_json(self) -> dict[str, Any]:
        """Return ``{"kind", "adjacency", "unit", ...parameters}``."""
        return {
            "kind": self.kind,
            "adjacency": str(self.adjacency),
            "unit": str(self.unit),
            **self.parameters(),
        }

    def same_neighbours(self, other: Guarantee) -> None:
        """Raise ``PrivacyError`` if the two guarantees are about different neighbours."""
        for name, mine, theirs in (
            ("adjacency", self.adjacency, other.adjacency),
            ("privacy unit", self.unit, other.unit),
        ):
            if mine != theirs:
                raise PrivacyError(
                    f"guarantees with {name} {mine} and {theirs} do not compose;"
                    f" restate one of them for the other's {name} first"
                )


_KINDS: dict[str, type[Guarantee]] = {}


def register(kind: str) -> Callable[[type[Guarantee]], type[Guarantee]]:
    """Class decorator: make a guarantee readable by :func:`guarantee_from_json`."""

    def add(cls: type[Guarantee]) -> type[Guarantee]:
        cls.kind = kind
        _KINDS[kind] = cls
        return cls

    return add


def guarantee_from_json(data: Mapping[str, Any]) -> Guarantee:
    """Rebuild any registered guarantee from its JSON form."""
    try:
        kind, adjacency, unit = data["kind"], data["adjacency"], data["unit"]
        return _KINDS[kind].from_parameters(data, Adjacency(adjacency), Unit(unit))
    except (KeyError, ValueError, TypeError, ArithmeticError) as error:
        raise PrivacyError(f"{data!r:.200} is not a guarantee: {error!r:.200}") from error


def compose(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Return the guarantee of releasing everything, for one or more guarantees of one kind.

    Raises
    ------
    PrivacyError
        If the list is empty or mixes kinds, adjacencies or privacy units.
    """
    items = list(guarantees)
    if not items:
        raise PrivacyError("nothing to compose; pass at least one guarantee")
    for item in items[1:]:
        items[0].same_neighbours(item)
        if item.kind != items[0].kind:
            raise PrivacyError(
                f"a {items[0].kind} and a {item.kind} guarantee do not add; convert one first"
            )
    return reduce(lambda left, right: left.compose(right), items)
