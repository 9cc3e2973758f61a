"""The common shape of every guarantee, and the rules under which two of them may be combined.

A guarantee is a statement about *neighbouring* data sets of one *privacy unit*. Numbers about
different neighbours do not add, so :func:`compose` refuses to add them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from fractions import Fraction
from functools import reduce
from typing import Any, ClassVar, Self, TypeVar

from labelveil.common.errors import PrivacyError
from labelveil.common.exact.rational import parse_rational
from labelveil.common.guarantees.limits import at_least


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


_KINDS: dict[str, type[Guarantee]] = {}


@dataclass(frozen=True)
class Guarantee(ABC):
    """A guarantee about one release: subclasses add its parameters."""

    adjacency: Adjacency
    """Which data sets are neighbours."""
    unit: Unit
    """Whether neighbours differ in one record or in all records of one user."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        """Make a guarantee of this kind readable by :func:`guarantee_from_json`."""
        super().__init_subclass__()
        if kind:
            cls.kind = kind
            _KINDS[kind] = cls

    @property
    def neighbours(self) -> tuple[Adjacency, Unit]:
        """What every kind is constructed with first."""
        return self.adjacency, self.unit

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

    def parameters(self) -> dict[str, Any]:
        """Return the parameters, rational numbers or tuples of them, as exact JSON values."""
        values = ((name, getattr(self, name)) for name in self._names())
        return {
            name.removeprefix("exact_"): list(map(str, v)) if isinstance(v, tuple) else str(v)
            for name, v in values
        }

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, Any], adjacency: Adjacency, unit: Unit
    ) -> Self:
        """Rebuild a guarantee from :meth:`parameters`."""
        values = (parameters[name.removeprefix("exact_")] for name in cls._names())
        exact = (
            tuple(map(parse_rational, value)) if isinstance(value, list) else parse_rational(value)
            for value in values
        )
        return cls(adjacency, unit, *exact)

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name not in ("adjacency", "unit")]

    def to_json(self) -> dict[str, Any]:
        """Return ``{"kind", "adjacency", "unit", ...parameters}``."""
        return {
            "kind": self.kind,
            "adjacency": str(self.adjacency),
            "unit": str(self.unit),
            **self.parameters(),
        }

    def same_neighbours(self, other: Guarantee) -> None:
        """Check that the two guarantees are about the same neighbours.

        Raises
        ------
        PrivacyError
            If adjacency or privacy unit differ.
        """
        for name, mine, theirs in (
            ("adjacency", self.adjacency, other.adjacency),
            ("privacy unit", self.unit, other.unit),
        ):
            if mine != theirs:
                raise PrivacyError(
                    f"guarantees with {name} {mine} and {theirs} do not compose;"
                    f" restate one of them for the other's {name} first"
                )


def guarantee_from_json(data: Mapping[str, Any]) -> Guarantee:
    """Rebuild any registered guarantee from its JSON form.

    Raises
    ------
    PrivacyError
        If the data are no guarantee.
    """
    try:
        kind, adjacency, unit = data["kind"], data["adjacency"], data["unit"]
        return _KINDS[kind].from_parameters(data, Adjacency(adjacency), Unit(unit))
    except (KeyError, ValueError, TypeError, ArithmeticError) as error:
        raise PrivacyError(f"{data!r:.200} is not a guarantee: {error!r:.200}") from error


GuaranteeT = TypeVar("GuaranteeT", bound=Guarantee)


def about_the_same(guarantees: Iterable[GuaranteeT]) -> list[GuaranteeT]:
    """Return them as a list, or raise ``PrivacyError`` if none is there or neighbours differ."""
    items = list(guarantees)
    if not items:
        raise PrivacyError("nothing to compose; pass at least one guarantee")
    for item in items[1:]:
        items[0].same_neighbours(item)
    return items


def compose(guarantees: Iterable[GuaranteeT]) -> GuaranteeT:
    """Return the guarantee of releasing everything, for one or more guarantees of one kind.

    Raises
    ------
    PrivacyError
        If the list is empty or mixes kinds, adjacencies or privacy units.
    """
    items = about_the_same(guarantees)
    for item in items[1:]:
        if item.kind != items[0].kind:
            raise PrivacyError(
                f"a {items[0].kind} and a {item.kind} guarantee do not add; convert one first"
            )
    return reduce(lambda sum_, item: sum_.compose(item), items)


def check_group(group: int, kind: str, failure: Fraction) -> None:
    """Refuse groups with a failure probability, for which no group theorem is known."""
    at_least(1, group=group)
    if group > 1 and failure > 0:
        raise PrivacyError(
            f"{kind} with a failure probability ({float(failure)}) has no group property; convert"
            " it to (epsilon, delta) first, or calibrate the noise to the group"
        )
