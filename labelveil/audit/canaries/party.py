"""`party`: a labels party from the outside, and the same software on canary data sets.

One event's label changes, and nothing else that a labels party shows may. Two parties are asked the
same: their data sets have one population and differ in one label, or in whether an event has one.
Whatever can be compared is compared exactly: the events and their order, refusals, logs. How long a
fetch takes is compared by its law.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.audit.attacks.implementation import (
    permutation_check,
    release_sources,
    static_check,
    timing_check,
)
from labelveil.audit.attacks.laws import same_histograms, same_noise_check
from labelveil.audit.canaries.endpoint import (
    NOT_CHECKABLE,
    REQUESTS,
    SERVED,
    Endpoint,
    Fetched,
    Refusal,
    Served,
    connected,
    fetched_certificate,
)
from labelveil.audit.canaries.model import SecretBits, attack_control
from labelveil.audit.canaries.noises import NOISES
from labelveil.audit.canaries.sessions import OFFER, SESSIONS, ask_for_more
from labelveil.audit.canaries.sums_asked import SUMS, ask_for_sums, make_sums_world
from labelveil.audit.canaries.worlds import HISTOGRAMS, QUERIED, UPPER, World, make_worlds
from labelveil.audit.certificate.evidence import claimed_epsilon
from labelveil.audit.certificate.run import BEHAVIOUR
from labelveil.audit.settings import CanarySettings, Connection
from labelveil.audit.verdict import (
    GATE,
    Audit,
    Check,
    Power,
    Probes,
    Progress,
    Verdict,
    cpu_seconds,
    silent,
    verdict_of,
)
from labelveil.children import child_command, child_environment
from labelveil.common.arrays import Integers
from labelveil.common.exact.rational import decimal_value, parse_rational
from labelveil.common.release.blocks import KEY_BYTES

RUNNING_COST = "9 fetches of the release, 20 small requests: all of it is in the partner's log"
# what canaries cost, in starts of a labels party's process: measured with 2,000 to 200,000 rows
_STARTS, _STARTS_A_ROW = 52.0, 6e-5


def audit_party(
    connection: Connection | None, settings: CanarySettings | None, progress: Progress = silent
) -> Audit:
    """Audit a running labels party, its software on canary data sets, or both."""
    subject = connection.address if connection else "label-party on canary data sets"
    audit = Audit("party", f"labels party {subject}", progress=progress)
    if connection is not None:
        _running(audit, connection)
    if settings is not None:
        with tempfile.TemporaryDirectory() as folder:
            _canaries(audit, Path(folder) / "canaries", settings, certify=connection is None)
    return audit


def canary_cost(settings: CanarySettings) -> float:
    """CPU seconds that canaries will take, from one start of a process of the labels party."""
    start = child_command(
        "labelveil.label_party.release.run"
    )  # imports what a release does, and ends
    run = partial(subprocess.run, start, env=child_environment(), check=True)
    starts = _STARTS + (HISTOGRAMS + 2 * QUERIED) * settings.effort + _STARTS_A_ROW * settings.rows
    return starts * cpu_seconds(run)


def _running(audit: Audit, connection: Connection) -> None:
    with connected(connection) as client:
        audit.progress("fetch")
        served = Served(client, client.fetch(), connection)
        SERVED.audit(audit, served)
    audit.progress("certificate")
    certified = fetched_certificate(served.whole)
    audit.claimed, audit.facts = certified.claimed, certified.facts
    audit.fields, audit.plots = certified.fields, certified.plots
    # of behaviour some was tried, and the rest is named
    audit.checks += (check for check in certified.checks if check.name != BEHAVIOUR.name)
    NOT_CHECKABLE.audit(audit, served)


RUNNING_STEPS = 2 + len(SERVED) + len(NOT_CHECKABLE)


def _canaries(audit: Audit, folder: Path, settings: CanarySettings, *, certify: bool) -> None:
    whole, less, again, questioned, small = make_worlds(folder, settings, OFFER)
    RELEASED.audit(audit, [whole, less, again, questioned, *small])
    if audit.checks[-1].verdict is Verdict.FAIL:
        return
    audit.progress("serve two worlds")
    with (
        whole.serving() as connection,
        less.serving() as other_connection,
        connected(connection) as client,
        connected(other_connection) as other_client,
    ):
        answer, other = client.fetch(), other_client.fetch()
        audit.claimed = audit.claimed or claimed_epsilon(answer.stated)
        audit.facts |= {"canary events": f"{settings.rows:,}", "canary ε": f"{settings.epsilon:g}"}
        shown, other_shown = shown_by(client, answer), shown_by(other_client, other)
        fetches = 600 * settings.effort
        TIMED.audit(audit, client, other_client, settings.epsilon, fetches)
    # the logs are whole once their servers have ended
    shown = replace(shown, log=log_kinds(whole.log))
    ONE_LABEL.audit(audit, shown, replace(other_shown, log=log_kinds(less.log)))
    if certify:  # of a running party it has been done already
        checks = fetched_certificate(answer).checks
        audit.checks += (c for c in checks if c.verdict is not Verdict.NOT_CHECKABLE)
    with again.serving() as connection, connected(connection) as client:
        served = Served(client, client.fetch(), connection)
        SERVED.audit(audit, served)  # here, as it leaves lines in the log that the other two lack
    SENT.audit(audit, whole.in_row_order, answer, served.whole)
    NOISES.audit(audit, small, settings.effort)
    audit.progress("ask for more than was sold")
    SESSIONS.audit(audit, ask_for_more(questioned))
    audit.progress("ask for sums")
    world = make_sums_world(folder / "sums", settings, questioned.files)
    SUMS.audit(audit, ask_for_sums(world))
    AFTERWARDS.audit(audit, whole, answer)


RELEASED = Probes[Sequence[World]]()


@RELEASED.add(
    "canary releases",
    "Can the labels party release the canaries?",
    "The labels party builds a release of the canary data sets.",
)
def released_check(worlds: Sequence[World]) -> Check:
    refusal = next(filter(None, (world.release() for world in worlds)), None)
    return Check(
        verdict_of(refusal is None),
        "`label-party release` was run on them.",
        refusal or f"All {len(worlds)} were released.",
    )


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


ONE_LABEL = Probes[Observation, Observation]()
"""Everything that is shown is the same in both worlds, aspect by aspect."""


def aspect(name: str, question: str, claim: str, seen_of: Callable[[Observation], Any]) -> None:
    """Declare something that must be the same, a sequence place by place, or a set."""

    @ONE_LABEL.add(name, question, claim)
    def check(shown: Observation, other_shown: Observation) -> Check:
        seen, other = seen_of(shown), seen_of(other_shown)
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


TIMED = Probes[Endpoint, Endpoint, float, int](refused=Verdict.FAIL)
"""Of two parties whose data differ in one label, at a claimed ε: fetches from each of them."""


@TIMED.add(
    "latency of fetches",
    "Does the time that a fetch takes say anything about labels?",
    "Latency does not depend on any label.",
)
def latency_check(party: Endpoint, neighbour: Endpoint, claimed: float, fetches: int) -> Check:
    return timing_check(
        (lambda: len(party.fetch().parts), lambda: len(neighbour.fetch().parts)),
        fetches,
        claimed,
        tried=f"{2 * fetches} fetches from one of two parties at random, whose data differ in"
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


SENT = Probes[Integers, Fetched, Fetched]()
"""Of (n,) secret bits, in the order of the rows, and what two starts of a labels party sent about
them: what order and outputs say about the bits, and the second start about the first."""


@SENT.add(
    "rows are not ordered by label",
    "Does the order of rows say anything about labels?",
    "The order of rows says nothing about labels.",
)
def order_check(secrets: Integers, *_: Fetched) -> Check:
    return permutation_check(secrets.astype(np.float64))


@SENT.add("one run", "How well does an output tell two labels apart?")
def one_run_check(secrets: Integers, first: Fetched, *_: Fetched) -> Check:
    manifest, codes = first.stated, first.outputs
    several = len(manifest.labels) > 1
    epsilon = manifest.labels_guarantee.epsilon
    ends = manifest.codebooks.only.at_the_ends
    planted = SecretBits(np.arange(codes.size), secrets, ends, planted=True)
    run = attack_control(codes, None, planted, epsilon).result
    return run.check(
        claim=f"An output reveals at most ε₂ = {epsilon:.4g} about its label{'s' * several}.",
        tried=f"{codes.size:,} labels were secret bits"
        f"{', all labels of an event the same one' * several}; {run.correct:,} of"
        f" {run.guesses:,} guesses from the message were right.",
        claimed=epsilon,
        power=(Power("excess of ε between the two outermost labels", run.excess(epsilon)),),
    )


@SENT.add(
    "two cold starts differ",
    "Does a second start draw noise of its own?",
    "Noise comes from the operating system's entropy, again in every process.",
)
def cold_start_check(_: Integers, first: Fetched, second: Fetched) -> Check:
    same = ["rows"] * (first.codes == second.codes)
    equal, powers = same_histograms(first.stated, [second.stated], GATE)
    same += ["a histogram"] * equal
    return Check(
        verdict_of(not same),
        "The same labels were randomized in two processes, each started from nothing; rows were"
        " compared, and how many counts of the histograms are the same.",
        f"Both drew the noise of {' and '.join(same)}: anyone who knows it can take it off."
        if same
        else "The two outputs differ.",
        bound=math.inf if same else 0.0,
        confidence=1 - GATE,
        power=powers,
    )


@SENT.add(
    "two noises: stretches",
    "Do two parties with the same labels draw the same noise?",
    "Messages about the same labels have independent noise.",
)
def stretches_check(_: Integers, first: Fetched, second: Fetched) -> Check:
    return same_noise_check(first.outputs, second.outputs, first.stated.codebooks.only)


AFTERWARDS = Probes[World, Fetched](refused=Verdict.FAIL)
"""What becomes of a party and its first release when it goes on."""


@AFTERWARDS.add("budget arithmetic", "Is a release charged, and a further one refused?")
def budget_check(world: World, answer: Fetched) -> Check:
    manifest, before = answer.stated, world.spent
    refusal = world.release("--epoch", "2")
    after = world.spent
    requested = decimal_value(manifest.privacy.requested_epsilon)
    total = parse_rational(manifest.privacy.total["epsilon"])
    within = before == after == requested and total <= requested + Fraction(1, 1 << 50)
    return Check(
        verdict_of(within and refusal is not None),
        "The ledger was read, a second epoch was asked for, and the ledger read again.",
        f"Charged {float(before):g}, {float(after):g} after the second request, which was"
        f" {'refused' if refusal else 'granted'}; the manifest says {float(total):.9g}.",
        claim=f"A release of ε = {float(requested):g} is charged to the ledger, and the data set's"
        " total cannot be passed.",
        claimed=float(requested),
        bound=float(total),
        details={"refusal": refusal},
    )


@AFTERWARDS.add(
    "updated labels",
    "What is sent after a label has changed?",
    "A label that is updated between requests is frozen, or charged again.",
)
def frozen_check(world: World, answer: Fetched) -> Check:
    world.exchange_labels()
    refusal = world.release()
    with world.serving() as connection, connected(connection) as client:
        same = client.fetch().to_bytes() == answer.to_bytes()
    return Check(
        verdict_of(same),
        f"All labels were exchanged ({UPPER:g} for 0 and back), the same epoch was released again,"
        " and fetched.",
        f"The bytes are {'the same' if same else 'others'};"
        f" {float(world.spent):g} is charged in all" + (f" ({refusal})." if refusal else "."),
    )


@AFTERWARDS.add(
    "static rule: no predictable generator",
    "Does any code on a label's way draw from a predictable generator?",
    "No NumPy generator, nor any other predictable one, is used on the way of a label.",
)
def sources_check(*_: object) -> Check:
    return static_check(release_sources(), "the labels party")


CANARY_STEPS = 3 + sum(
    len(each)
    for each in (
        *(RELEASED, SERVED, TIMED, ONE_LABEL, SENT),
        *(NOISES, SESSIONS, SUMS, AFTERWARDS),
    )
)
