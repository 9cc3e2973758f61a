"""Labels stay private: what a notebook imports, ``import labelveil as lv``.

Its names are those of ``__init__.pyi``, where editors and type checkers look for them. Each is
imported when it is first used, so that this import costs nothing and needs no torch.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from labelveil.own_packages import check_own_packages

_MODULES = {
    alias.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for alias in statement.names
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_own_packages()
    if name == "__version__":
        value: Any = import_module("common.version").version()
    else:
        value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
