"""Modules whose names stand in a stub beside them, and are imported when they are first used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazily(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module, from the imports in its stub.

    So type checkers and editors see every name, and importing the module costs nothing. ``__all__``
    is every name of the stub; ``*`` there stands for all of another module's ``__all__``.
    """
    stub = Path(sys.modules[module].__file__ or "").with_suffix(".pyi")
    places: dict[str, str] = {}
    whole: list[str] = []
    for statement in ast.parse(stub.read_text("utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                if alias.name == "*":
                    whole.append(statement.module)
                else:
                    places[alias.name] = statement.module

    def every_name() -> list[str]:
        others = (name for other in whole for name in import_module(other).__all__)
        return sorted({*places, *others})

    def get(name: str) -> Any:
        if name == "__all__":
            value: Any = every_name()
        elif places.get(name) == module:  # a module in this package
            value = import_module(f"{module}.{name}")
        elif name in places or (not name.startswith("_") and name in every_name()):
            others = (other for other in whole if name in import_module(other).__all__)
            value = getattr(import_module(places.get(name) or next(others)), name)
        else:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        setattr(sys.modules[module], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[module]), *every_name()})
