"""The same noise in every run of the tests: what passes once passes always, and a failure repeats.

Several thousand tests look at noise. With fresh noise one of them fails by chance every few runs,
whatever each accepts, and that run tells nothing. So the operating system's random bytes are here a
function of a seed, of the test or fixture that asks, and of how often it has asked.
``LABELVEIL_TEST_SEED`` is another seed, or ``fresh`` for bytes that nobody can repeat, as ``make
test-exhaustive`` has them. Other processes that a test starts always draw fresh ones: what looks at
their noise has to hold but once in a million runs.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SEED = os.environ.get("LABELVEIL_TEST_SEED", "0")

_fresh = os.urandom
_process = os.getpid()
_asked: Counter[str] = Counter()
_who = ""


def _repeatable(size: int) -> bytes:
    """As ``os.urandom``, but a fork asks the system: two processes never draw the same."""
    if os.getpid() != _process:
        return _fresh(size)
    _asked[_who] += 1
    return hashlib.shake_256(f"{SEED} {_who} {_asked[_who]}".encode()).digest(size)


@contextmanager
def noise_of(who: str) -> Iterator[None]:
    """Let what a test or fixture draws follow from its name, whatever ran before."""
    global _who
    before, _who = _who, who
    _asked.pop(who, None)
    try:
        yield
    finally:
        _who = before


def install(patch: pytest.MonkeyPatch) -> None:
    """Put the repeatable bytes in the place of the system's, for our code and all libraries."""
    if SEED == "fresh":
        return
    patch.setattr(os, "urandom", _repeatable)
    patch.setattr(random, "_urandom", _repeatable)  # of the module secrets
