"""A section's settings as the keywords of a Python function."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, getdoc, signature
from typing import ParamSpec, TypeVar, cast, get_type_hints

from common.config.declare import Section, declared
from common.config.load import checked

ParamsT = ParamSpec("ParamsT")
SectionT = TypeVar("SectionT")
ResultT = TypeVar("ResultT")


def with_keywords(
    section: Callable[ParamsT, SectionT],
) -> Callable[[Callable[[SectionT], ResultT]], Callable[ParamsT, ResultT]]:
    """Have a function called with a section's settings, each a keyword, and given the section.

    ::

        @with_keywords(Settings)
        def simulate(settings: Settings) -> Outcome: ...

        simulate(epsilon=1, labels="sales.parquet", …)

    Editors and type checkers see the settings with their types; a wrong value is one line.
    """
    model = cast(type[Section], section)
    shown = _shown(model)

    def decorate(function: Callable[[SectionT], ResultT]) -> Callable[ParamsT, ResultT]:
        @wraps(function)
        def call(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
            given = shown.bind(*args, **kwargs).arguments
            return function(cast(SectionT, checked(model, given)))

        lines = (f"{one.key}\n    {one.description}" for one in declared(model))
        head = f"{getdoc(function)}\n\nParameters\n----------"
        call.__doc__ = "\n".join([head, *lines])
        call.__dict__["__signature__"] = shown.replace(
            return_annotation=signature(function, eval_str=True).return_annotation
        )
        return call

    return decorate


def _shown(model: type[Section]) -> Signature:
    """Return the keywords of a section, with their types alone."""
    kinds = get_type_hints(model)
    found = signature(model).parameters.values()
    return Signature([one.replace(annotation=kinds[one.name]) for one in found])
