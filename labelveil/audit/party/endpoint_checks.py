"""Checks of one labels party's answers, and of two whose data sets differ in one label."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from common.entropy import system_entropy
from common.release.blocks import KEY_BYTES
from common.release.manifest import Manifest
from common.release.table import write_release
from labelveil.audit.attacks.implementation import (
    TIMING_BINS,
    id_set_check,
    row_order_check,
    slowness_power,
)
from labelveil.audit.attacks.two_worlds import View, choose_event, count_event
from labelveil.audit.certificate.run import certificate, read_evidence
from labelveil.audit.party.endpoint import REQUESTS, Endpoint, Fetched
from labelveil.audit.verdict import Audit, Check, Verdict, statistical, verdict_of


def resume_check(endpoint: Endpoint, whole: Fetched) -> Check:
    """Small messages and a resumed fetch give the same rows."""
    rows = Manifest.parse(whole.manifest).population.rows
    small = endpoint.fetch(chunk=4096)
    middle = rows // 2
    rest = endpoint.fetch(start_row=middle)
    same = small.keys == whole.keys and small.codes == whole.codes
    width = len(whole.codes) // rows
    tail = whole.codes[middle * width :] == rest.codes
    return Check(
        name="resumed and cut fetches",
        question="Has each row one output, however it is fetched?",
        verdict=verdict_of(same and tail),
        claim="However a fetch is cut or resumed, each row has one output forever.",
        tried=f"The release was fetched in messages of 4 KB, and again from row {middle:,}.",
        found=f"The rows {'agree' if same else 'differ'}, the resumed ones"
        f" {'agree' if tail else 'differ'}.",
        confidence=1.0,
    )


def refusals_check(endpoint: Endpoint) -> Check:
    """Wrong requests get the status that the contract names, with a constant text."""
    found = {name: endpoint.refuse(name) for name in REQUESTS}
    wrong = {n: r.status for n, r in found.items() if r.status != REQUESTS[n]}
    again = {name: endpoint.refuse(name) for name in REQUESTS}
    return Check(
        name="refusals",
        question="Does the server refuse what it must, in constant words?",
        verdict=verdict_of(not wrong and found == again),
        claim="Errors depend on the request alone.",
        tried=f"{len(REQUESTS)} wrong requests were made twice: {', '.join(REQUESTS)}.",
        found=f"{len(wrong)} of them did not get the status that the contract names"
        + (f" ({wrong})" if wrong else "")
        + f"; the texts are {'constant' if found == again else 'not constant'}.",
        confidence=1.0,
        details={name: [r.status, r.text] for name, r in found.items()},
    )


def fetched_certificate(answer: Fetched) -> Audit:
    """The certificate of exactly what was fetched."""
    with tempfile.TemporaryDirectory() as folder:
        write_release(Path(folder), answer.manifest, answer.keys, answer.codes)
        return certificate(read_evidence(Path(folder)))


def decided(audit: Audit) -> list[Check]:
    """Its checks, less those that decided nothing."""
    return [check for check in audit.checks if check.verdict is not Verdict.NOT_CHECKABLE]


def beyond_an_endpoint() -> list[Check]:
    """What nobody can see who only asks a running party, and what would show it."""
    tried = "Not over the wire, without labels of the auditor's own."
    return [
        Check(name, Verdict.NOT_CHECKABLE, claim, tried, how, question=question)
        for name, question, claim, how in (
            (
                "cold starts differ",
                "Does a server that starts again draw the same noise?",
                "Every release has fresh randomness.",
                "Plant the same canaries in two epochs, or run `labelveil audit party` without"
                " --address on the software.",
            ),
            (
                "latency and refusals do not depend on labels",
                "Do times, sizes or errors change with a label?",
                "What the server does depends on requests and the public population alone.",
                "It takes two data sets that differ in one label: run the software, without"
                " --address.",
            ),
            (
                "labels that change later",
                "What happens when a label is changed after its release?",
                "A release is frozen, or charged again.",
                "Plant canaries, have labels changed, and fetch again.",
            ),
            (
                "logs and backups",
                "Do logs or backups hold labels or keys of noise?",
                "Nothing that leaves the machine holds them.",
                "Look at the labels party's machine.",
            ),
        )
    ]


def two_answers_checks(one: Fetched, other: Fetched) -> list[Check]:
    """Id set, order and message sizes of two data sets over one population."""
    first, second = keys_of(one), keys_of(other)
    sizes = one.sizes == other.sizes
    return [
        id_set_check(first, second),
        row_order_check(first, second),
        Check(
            name="message sizes",
            question="Do sizes of messages say anything about labels?",
            verdict=verdict_of(sizes),
            claim="The number and size of messages depend on the public population alone.",
            tried="Two data sets, one of them with a label less, were fetched.",
            found=f"{len(one.sizes)} and {len(other.sizes)} messages, of"
            f" {'equal' if sizes else 'different'} sizes.",
            confidence=1.0,
        ),
    ]


def same_refusals_check(one: Endpoint, other: Endpoint) -> Check:
    """Two parties whose data differ in one label refuse alike."""
    differing = [name for name in REQUESTS if one.refuse(name) != other.refuse(name)]
    return Check(
        name="refusals do not depend on labels",
        question="Do refusals say anything about labels?",
        verdict=verdict_of(not differing),
        claim="Errors do not depend on any label.",
        tried="The same wrong requests were made to two parties whose data differ in one label.",
        found=f"{len(differing)} of {len(REQUESTS)} end differently.",
        confidence=1.0,
        details={"differing": differing},
    )


def latency_check(one: Endpoint, other: Endpoint, claimed: float, fetches: int = 150) -> Check:
    """How long a fetch takes does not tell two worlds apart.

    Fetches go to either party in random order; even ones choose the event, odd ones are counted.
    """
    coins = system_entropy().words("order", 0, 2 * fetches)
    world = np.zeros(2 * fetches, dtype=np.int64)
    world[np.argsort(coins)[:fetches]] = 1
    ends = (one, other)
    for end in ends:
        end.fetch()
    seconds = np.empty(world.size)
    for call, which in enumerate(world.tolist()):
        begun = time.perf_counter()
        ends[which].fetch()
        seconds[call] = time.perf_counter() - begun
    first = np.arange(world.size) % 2 == 0
    edges = np.unique(np.quantile(seconds[first], np.linspace(0, 1, TIMING_BINS + 1)[1:-1]))
    codes = np.searchsorted(edges, seconds, side="right")
    view = View("duration", lambda x: x, edges.size + 1)
    event = choose_event([view], codes[first & (world == 0)], codes[first & (world == 1)])
    found = count_event(event, codes[~first & (world == 0)], codes[~first & (world == 1)])
    medians = [float(np.median(seconds[world == which])) * 1000 for which in (0, 1)]
    return statistical(
        "latency of fetches",
        question="Does the time that a fetch takes say anything about labels?",
        claim="Latency does not depend on any label.",
        tried=f"{fetches} fetches from each of two parties whose data differ in one label, in"
        f" random order; medians {medians[0]:.2f} and {medians[1]:.2f} ms.",
        claimed=claimed,
        bound=found.bound,
        shown=found.shown,
        power=(slowness_power(fetches, claimed),),
    )


def keys_of(answer: Fetched) -> list[bytes]:
    """Keys in row order."""
    keys = answer.keys
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
