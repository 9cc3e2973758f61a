"""Every dataclass can be compared and, where it says so, hashed; all are found by introspection.

What holds arrays, tables, lists or mappings is compared by identity (``eq=False``). Where what it
holds is to be compared, a list or a mapping is left out of the hash (``field(hash=False)``).
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
import torch

from tests.imports import import_name, modules

ARRAYS: dict[Any, Any] = {
    np.ndarray: np.zeros(2),
    pl.DataFrame: pl.DataFrame({"a": [1, 2]}),
    pl.Series: pl.Series([1, 2]),
    torch.Tensor: torch.zeros(2),
}
UNHASHABLE = {dict: {}, list: [], set: set(), bytearray: bytearray()}
MAPPINGS = (collections.abc.Mapping, collections.abc.MutableMapping)


def records() -> list[type]:
    """Every dataclass of the packages."""
    found = []
    for name in map(import_name, sorted(modules())):
        if ".wire." not in name:
            for thing in vars(import_module(name)).values():
                ours = inspect.isclass(thing) and thing.__module__ == name
                if ours and "__dataclass_fields__" in vars(thing) and not inspect.isabstract(thing):
                    found.append(thing)
    return found


class _Scope(dict[str, Any]):
    """Names of a module; what only type checkers import is anything."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(vars(module))

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def annotations(record: type) -> Iterator[tuple[str, Any]]:
    """The type of every field, inherited ones included."""
    for field in dataclasses.fields(record):
        owners = (cls for cls in record.__mro__ if field.name in inspect.get_annotations(cls))
        yield field.name, evaluated(field.type, next(owners))


def evaluated(annotation: Any, owner: type) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, _Scope(import_module(owner.__module__)))
    except TypeError:  # such as a subscript of what only type checkers know
        return Any


def examples(kind: Any, within: frozenset[type] = frozenset()) -> Iterator[Any]:
    """Values of a type; of those that are compared with trouble, at least one."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, None) or isinstance(kind, typing.TypeVar | str):
        yield None
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from examples(argument, within)
    elif origin is typing.Literal:
        yield arguments[0]
    elif origin is tuple:
        parts = [[*examples(argument, within)] for argument in arguments if argument is not ...]
        longest = max(map(len, parts), default=0)
        for i in range(longest):
            yield tuple(part[min(i, len(part) - 1)] for part in parts)
    elif origin in (collections.abc.Sequence, collections.abc.Iterable):
        for example in examples(arguments[0], within):
            yield (example,)
    elif (cls := origin or kind) in MAPPINGS:
        yield {}
    elif inspect.isclass(cls):
        yield from _instances(cls, within)
    else:
        yield None


def _instances(cls: type, within: frozenset[type]) -> Iterator[Any]:
    for known, value in {**ARRAYS, **UNHASHABLE}.items():
        if issubclass(cls, known):
            yield type(value)(value) if known in UNHASHABLE else value
            return
    if dataclasses.is_dataclass(cls) and not inspect.isabstract(cls) and cls not in within:
        yield from made(cls, within)
    elif issubclass(cls, enum.Enum):
        yield next(iter(cls))
    else:
        yield None


def made(record: type, within: frozenset[type] = frozenset()) -> Iterator[Any]:
    """Instances without a constructor: as many as the field of the most different values has.

    ``within`` are those that this one is made for, which hold no more of themselves.
    """
    within |= {record}
    values = {name: [*examples(kind, within)] for name, kind in annotations(record)}
    for i in range(max(map(len, values.values()), default=1)):
        instance = object.__new__(record)
        for name, several in values.items():
            object.__setattr__(instance, name, several[min(i, len(several) - 1)])
        yield instance


def copied(instance: Any) -> Any:
    """An equal instance that shares nothing: shared parts are equal without being compared."""
    if isinstance(instance, tuple):
        return tuple(map(copied, instance))
    if isinstance(instance, np.ndarray):
        return instance.copy()
    if isinstance(instance, pl.DataFrame | pl.Series | torch.Tensor):
        return instance.clone()
    if dataclasses.is_dataclass(instance):
        other = object.__new__(type(instance))
        for name, value in vars(instance).items():
            object.__setattr__(other, name, copied(value))
        return other
    return instance


def troubles(record: type) -> Iterator[str]:
    """What goes wrong in comparing and hashing instances of a record."""
    for instance in made(record):
        try:
            if not isinstance(instance == copied(instance), bool):
                yield "== is no truth"
            if instance != instance:
                yield "it is not itself"
        except Exception as error:
            yield f"== raises {error!r}"
        if record.__hash__ is not None:
            try:
                hash(instance)
            except Exception as error:
                yield f"hash raises {error!r}"


def test_every_record_is_compared_and_hashed_without_an_error() -> None:
    found = records()
    assert len(found) > 300
    wrong = {
        f"{record.__module__}.{record.__qualname__}": sorted(said)
        for record in found
        if (said := {*troubles(record)})
    }
    assert wrong == {}


def test_what_is_compared_by_identity_inherits_no_other_comparison() -> None:
    for record in records():
        if record.__dataclass_params__.eq is False and record.__eq__ is not object.__eq__:
            owner = next(cls for cls in record.__mro__ if "__eq__" in vars(cls))
            assert owner is record or not dataclasses.is_dataclass(owner), record


@dataclasses.dataclass(frozen=True)
class _Array:
    numbers: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class _Nested:
    several: tuple[_Array, ...]


@dataclasses.dataclass(frozen=True)
class _Mapping:
    options: collections.abc.Mapping[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class _Right:
    numbers: np.ndarray


def test_records_with_trouble_are_found() -> None:
    for record, starts in ((_Array, "= h"), (_Nested, "= h"), (_Mapping, "h")):
        assert {said[0] for said in troubles(record)} == {*starts.split()}, record
    assert [*troubles(_Right)] == []
