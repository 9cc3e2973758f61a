"""The same keys, names and moments again: what two runs then write differs by what they read."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, ClassVar

import pytest

from labelveil import label_party
from labelveil.common.randomizers.design.assessment import Assessor
from labelveil.label_party.release import plan

NOW = datetime(2024, 6, 10, 12)
_NOT_A_CALLER = {"os", "random", "secrets", "tempfile", __name__}


class Stopped(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Stopped:
        return cls.combine(NOW.date(), NOW.time(), tz)


class Judged(Assessor):
    """Judges the same randomizers for the same numbers once: a fifth of what a look takes."""

    known: ClassVar[dict[bytes, Any]] = {}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.given = given

    def compare(self, epsilon: float, names: Iterable[str] | None = None) -> Any:
        key = pickle.dumps((self.given, epsilon, names))
        if key not in self.known:
            self.known[key] = super().compare(epsilon, names)
        return self.known[key]


@cache
def _import_all() -> None:
    for module in walk_packages(label_party.__path__, "labelveil.label_party."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


@contextmanager
def replayed() -> Iterator[None]:
    """Give each place that asks for random bytes the same ones as in every other such block.

    A place is a function of ours, and how often it asked before: one that asks once more moves no
    other's bytes, and is seen in its own.
    """
    asked: Counter[tuple[str, int]] = Counter()

    def urandom(count: int) -> bytes:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__") in _NOT_A_CALLER:
            frame = frame.f_back
        module = str(frame.f_globals.get("__name__")).removeprefix("labelveil.")
        place = f"{module} {frame.f_code.co_qualname}"
        asked[place, count] += 1
        seed = f"{place} {asked[place, count]}".encode()
        return hashlib.shake_256(seed).digest(count)

    _import_all()
    with pytest.MonkeyPatch.context() as patch:
        for name, imported in list(sys.modules.items()):
            ours = name.startswith(("labelveil.label_party.", "labelveil.common."))
            # certificates are in force by the real clock, and nothing that is written says so
            ours = ours and not name.startswith("labelveil.common.security.")
            if ours and getattr(imported, "datetime", None) is datetime:
                patch.setattr(imported, "datetime", Stopped)
        patch.setattr(plan, "Assessor", Judged)
        patch.setattr(os, "urandom", urandom)
        patch.setattr(random, "_urandom", urandom)  # of the module secrets
        yield
