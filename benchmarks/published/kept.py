"""Results that outlast the run that found them."""

from __future__ import annotations

import math
import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTimeError(Exception):
    """The minutes that were given are over; what was found is kept."""


class Kept:
    """Results, each in a file of its own, taken up again by a run that is started later.

    After so many minutes nothing is begun that has no result yet.
    """

    def __init__(self, folder: Path, minutes: float = math.inf) -> None:
        self.folder = folder
        self._end = time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, find: Callable[..., T], *given: Any) -> T:
        """Return the result of this name, or find and keep it; a name states all settings."""
        place = self.folder / (re.sub(r"[^\w.=]+", "-", name) + ".pickle")
        if not place.exists():
            self.check_time()
            began = time.process_time()
            found = find(*given)
            half = place.with_suffix(".half")
            half.write_bytes(pickle.dumps(found))
            os.replace(half, place)
            print(f"{name}: {time.process_time() - began:.1f} s of CPU", flush=True)
        kept: T = pickle.loads(place.read_bytes())
        return kept

    def check_time(self) -> None:
        """Raise if no time is left."""
        if time.monotonic() > self._end:
            raise OutOfTimeError
