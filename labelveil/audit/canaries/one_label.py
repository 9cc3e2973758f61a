"""One event's label changes, and nothing else that a labels party shows may: from outside.

Two parties are asked the same. Their data sets have one population and differ in one label, or in
whether an event has one. Whatever can be compared is compared exactly: the events and their order,
refusals, logs. How long a fetch takes is compared by its law.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from labelveil.audit.attacks.implementation import timing_check
from labelveil.audit.canaries.endpoint import REQUESTS, Endpoint, Fetched, Refusal
from labelveil.audit.verdict import Check, Probes, Verdict, verdict_of
from labelveil.common.release.blocks import KEY_BYTES

_VOLATILE = ("time", "seconds", "peer", "address")
"""Fields of a log line that differ from run to run."""


@dataclass(frozen=True, eq=False)
class Observation:
    """What a labels party shows besides its randomized labels."""

    events: tuple[str, ...] = ()  # keys in the order of the rows
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    """How wrong requests end, by request."""
    log: frozenset[str] = frozenset()  # the kinds of lines in the server's log


def shown_by(endpoint: Endpoint, answer: Fetched) -> Observation:
    """What a party that has answered shows."""
    keys = answer.keys.hex()
    return Observation(
        tuple(keys[at : at + 2 * KEY_BYTES] for at in range(0, len(keys), 2 * KEY_BYTES)),
        {name: endpoint.refuse(wrong) for name, wrong in REQUESTS.items()},
    )


ONE_LABEL = Probes[tuple[Observation, Observation]]()
"""Everything that is shown is the same in both worlds, aspect by aspect."""


def aspect(name: str, question: str, claim: str, seen_of: Callable[[Observation], Any]) -> None:
    """Declare something that must be the same, a sequence place by place, or a set."""

    @ONE_LABEL.add(name, question, claim)
    def check(worlds: tuple[Observation, Observation]) -> Check:
        seen, other = map(seen_of, worlds)
        if isinstance(seen, tuple):
            places = enumerate(zip_longest(seen, other))
            differing = [f"place {place}" for place, (a, b) in places if a != b]
        else:
            differing = sorted(str(entry) for entry in seen ^ other)
        examples = f", such as {'; '.join(differing[:2])}" if differing else ""
        return Check(
            verdict_of(not differing),
            "Two parties that differ in one event's label, or in whether it has one, were compared:"
            f" {len(seen):,} and {len(other):,} of these.",
            f"{len(differing):,} differ{examples}.",
            bound=math.inf if differing else 0.0,
        )


aspect(
    "id set",
    "Does it depend on labels which events are sent?",
    "Which events are sent depends on the public population alone, not on who has a label.",
    lambda shown: set(Counter(shown.events).items()),
)
aspect(
    "row order",
    "Does the order of rows depend on labels?",
    "The order of rows depends on the public population alone.",
    lambda shown: shown.events,
)
aspect(
    "refusals do not depend on labels",
    "Do refusals say anything about labels?",
    "Errors do not depend on any label.",
    lambda shown: set(shown.refusals.items()),
)
aspect(
    "logs do not depend on labels",
    "Do the server's logs say anything about labels?",
    "What the server logs, but for repetitions and times, depends on requests and the public"
    " population alone.",
    lambda shown: shown.log,
)


@dataclass(frozen=True)
class Timed:
    """Two parties whose data differ in one label, to be fetched from so often each."""

    party: Endpoint
    neighbour: Endpoint
    claimed: float
    fetches: int


TIMED = Probes[Timed](refused=Verdict.FAIL)


@TIMED.add(
    "latency of fetches",
    "Does the time that a fetch takes say anything about labels?",
    "Latency does not depend on any label.",
)
def latency_check(timed: Timed) -> Check:
    return timing_check(
        (lambda: len(timed.party.fetch().parts), lambda: len(timed.neighbour.fetch().parts)),
        timed.fetches,
        timed.claimed,
        tried=f"{2 * timed.fetches} fetches from one of two parties at random, whose data differ in"
        " one label; medians {:.2f} and {:.2f} ms.",
    )


def log_kinds(path: Path) -> frozenset[str]:
    """The kinds of lines in a log: times, ports, peers and digests are blanked out."""
    kinds = set()
    for line in filter(str.strip, path.read_text(encoding="utf-8", errors="replace").splitlines()):
        try:  # of a structured log
            kind = json.dumps(
                {k: "#" if k in _VOLATILE else v for k, v in json.loads(line).items()}
            )
        except (ValueError, AttributeError):
            kind = line.strip()
        kind = re.sub(r"\b[0-9a-f]{16,}\b", "#", kind)
        kind = re.sub(rf"({'|'.join(_VOLATILE)})=\S+", r"\1=#", kind)
        kind = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*", "#", kind)
        kinds.add(re.sub(r"127\.0\.0\.1:\d+", "#", kind))
    return frozenset(kinds)
