"""A section's settings as the keywords of a Python function."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, getdoc, signature
from typing import ParamSpec, TypeVar, cast, get_type_hints

from labelveil.common.config.declare import Section, declared
from labelveil.common.config.load import checked

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
    kinds, parameters = get_type_hints(model), signature(model).parameters.values()
    # the types alone: defaults are the section's
    shown = Signature([each.replace(annotation=kinds[each.name]) for each in parameters])

    def decorate(function: Callable[[SectionT], ResultT]) -> Callable[ParamsT, ResultT]:
        @wraps(function)
        def call(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
            values = shown.bind(*args, **kwargs).arguments
            return function(cast(SectionT, checked(model, values, keywords=True)))

        lines = (f"{option.key}\n    {option.description}" for option in declared(model))
        head = f"{getdoc(function)}\n\nParameters\n----------"
        call.__doc__ = "\n".join([head, *lines])
        call.__dict__["__signature__"] = shown.replace(
            return_annotation=signature(function, eval_str=True).return_annotation
        )
        return call

    return decorate
