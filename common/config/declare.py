"""What an option is: a field of a section, with its description, unit, bounds, default, example."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from labelveil.common.config.wording import NOUNS, arms, in_words, metavar


def _kinds(annotation: Any) -> Iterator[Any]:
    """Every type that an annotation names."""
    inner = get_args(annotation)
    yield from chain.from_iterable(map(_kinds, inner)) if inner else [annotation]


@cache
def _kinds_of(section: type[BaseModel], name: str) -> set[Any]:
    """Every type that a field may be of; a command checks some hundred values."""
    return set(_kinds(section.model_fields[name].annotation))


class Section(BaseModel):
    """Base of every section: values are immutable; unknown keys, NaN, infinity, and numbers so
    close to 0 that their digits are gone are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_of_its_kind(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _kinds_of(cls, info.field_name or "")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bool) and kinds & {int, float} and bool not in kinds:
                raise ValueError("must be a number, and not true or false")
            if isinstance(each, str) and Path in kinds and "\0" in each:
                raise ValueError("is no name of a file: it holds a NUL character")
        return value

    @field_validator("*")
    @classmethod
    def _has_its_digits(cls, value: Any) -> Any:
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and 0 < abs(number) < sys.float_info.min:
                raise ValueError(f"must be 0, or at least {sys.float_info.min:.3g}")
        return value


SectionT = TypeVar("SectionT", bound=Section)

Sections = Annotated[
    list[SectionT],
    Field(min_length=1),
    BeforeValidator(lambda given: [given] if isinstance(given, dict) else given),
]
"""A table of the file that may stand several times, ``[[so]]``; one alone may stand as ``[so]``."""


def setting(
    default: Any,
    description: str = "",
    *,
    unit: str = "",
    example: Any = None,
    write: bool = False,
    flag: str = "",
    metavar: str = "",
    **bounds: float,
) -> Any:
    """Declare an option, or a section of options.

    Parameters
    ----------
    default
        ``...`` where a value must be configured. A class (a section, ``list``, ``dict``) is called.
    description
        What it decides, in sentences. The first one alone is a command-line flag's help.
    unit
        What its number counts, in the plural: ``seconds``, ``label units``.
    example
        Where there is no default: a value, which the file that ``init`` writes shows as a comment.
    write
        Whether that file sets the example, although it is not the default.
    flag
        Its flags, ``--output -o``, where they are not ``--`` and its name.
    metavar
        What stands for its value in a command's help, where its type does not say it.
    bounds
        ``gt``, ``ge``, ``lt``, ``le``, ``min_length``. Beside a word, as in ``auto``, the number
        alone has bounds: ``Annotated[int, Field(ge=1)] | Literal["auto"]``.
    """
    extra = {"unit": unit, "example": example, "write": write, "flag": flag, "metavar": metavar}
    value = {"default_factory" if isinstance(default, type) else "default": default}
    return Field(description=description, json_schema_extra=extra, **value, **bounds)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Setting:
    """One option as files, flags and pages show it."""

    section: str  # empty for a key outside all tables
    key: str
    field: FieldInfo

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def place(self) -> str:
        return f"[{self.section}] {self.key}" if self.section else self.key

    @property
    def description(self) -> str:
        return " ".join((self.field.description or "").split())

    @property
    def summary(self) -> str:
        """The first sentence of the description, without its full stop."""
        return re.split(r"(?<=\.)\s", self.description)[0].removesuffix(".")

    @property
    def _extra(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], self.field.json_schema_extra or {})

    @property
    def example(self) -> Any:
        return self._extra.get("example")

    @property
    def written(self) -> bool:
        """Whether ``init`` sets the example."""
        return self.required or bool(self._extra.get("write"))

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(str(self._extra.get("flag") or f"--{self.key.replace('_', '-')}").split())

    @property
    def flags_are_named(self) -> bool:
        """Whether they are not made of the key."""
        return bool(self._extra.get("flag"))

    @property
    def required(self) -> bool:
        return self.field.is_required()

    @property
    def default(self) -> Any:
        """The default; None where a value is required, or there is none."""
        return None if self.required else self.field.get_default(call_default_factory=True)

    @property
    def bounds(self) -> str:
        """What a value may be, in words, with its unit: ``a number above 0, in seconds``."""
        unit = self._extra.get("unit")
        return in_words(self.field.annotation, self.field.metadata) + (
            f", in {unit}" if unit else ""
        )

    @property
    def bounds_of_entry(self) -> str:
        """What an entry of a table may be, in words."""
        return in_words(get_args(self.kind)[-1]) if get_args(self.kind) else "a value"

    @property
    def says_more_than_its_type(self) -> bool:
        """Whether the words on what it may be tell more than an example does."""
        return self.bounds not in {in_words(kind) for kind in (*NOUNS, list[str], dict)}

    @property
    def takes_text(self) -> bool:
        """Whether any text is a value, so that none must be read as a number."""
        return bool({str, Path} & set(arms(self.field.annotation)))

    @property
    def kind(self) -> Any:
        """The type, without None."""
        kinds = arms(self.field.annotation)
        return kinds[0] if len(kinds) == 1 else self.field.annotation

    @property
    def metavar(self) -> str:
        """What stands for its value in a command's help."""
        return str(self._extra.get("metavar") or metavar(self.field.annotation))


def sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a model's tables by name; the model itself, without a name, if it has keys outside."""
    inner = {name: _section(field) for name, field in model.model_fields.items()}
    if not all(inner.values()):
        yield "", model
    yield from ((name, section) for name, section in inner.items() if section)


def declared(model: type[BaseModel]) -> Iterator[Setting]:
    """Yield every option of a model and its sections, in order."""
    yield from _declared(model)


@cache
def _declared(model: type[BaseModel]) -> list[Setting]:
    return [
        Setting(name, key, field)
        for name, section in sections(model)
        for key, field in section.model_fields.items()
        if not _section(field)
    ]


def doc(section: type[BaseModel]) -> str:
    """Return what a section says of itself."""
    return inspect.cleandoc(section.__dict__.get("__doc__") or "")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind, *_ = arms(field.annotation)
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
