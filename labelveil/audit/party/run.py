"""`party`: a labels party from the outside, and the same software on canary data sets."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.arrays import Integers
from common.exact.rational import parse_rational
from common.release.blocks import decode_codes
from common.release.manifest import Manifest, manifest_digest
from common.security.pilot_certificates import write_certificates
from labelveil.audit.attacks.canaries import Canaries
from labelveil.audit.attacks.implementation import (
    byte_equality_check,
    cold_start_check,
    permutation_check,
)
from labelveil.audit.attacks.model_attack import attack_control
from labelveil.audit.attacks.static_rule import release_sources, static_check
from labelveil.audit.attacks.two_noises import same_noise_check
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.party.canary_parties import UPPER, CanarySettings, World, Worlds, make_worlds
from labelveil.audit.party.endpoint import (
    Connection,
    Fetched,
    Refusal,
    connected,
    unknown_client,
)
from labelveil.audit.party.endpoint_checks import (
    beyond_an_endpoint,
    decided,
    fetched_certificate,
    latency_check,
    refusals_check,
    resume_check,
    same_refusals_check,
    two_answers_checks,
)
from labelveil.audit.power import smallest_excess
from labelveil.audit.verdict import (
    GATE,
    Audit,
    Check,
    Power,
    cpu_seconds,
    statistical,
    verdict_of,
)
from labelveil.children import child_command, child_environment

Progress = Callable[[str], None]

RUNNING_COST = "5 fetches of the release, 20 small requests: all of it is in the partner's log"
_STARTS, _STARTS_A_ROW = 18.0, 4e-5
"""What canaries cost, in starts of a labels party's process: measured with 2,000 to 200,000 rows.
"""

RUNNING_STEPS = ("fetch", "fetch again", "refusals", "unknown clients", "certificate")
CANARY_STEPS = (
    "release two worlds",
    "serve two worlds",
    "compare",
    "latency",
    "budget",
    "update a label",
    "static rule",
)

_VOLATILE = ("time", "seconds", "peer", "address")
"""Fields of a log line that differ from run to run."""


def audit_party(
    connection: Connection | None,
    plan: CanarySettings | None,
    progress: Progress = lambda name: None,
) -> Audit:
    """Audit a running labels party, its software on canary data sets, or both.

    Parameters
    ----------
    connection
        A running party; None to look at canaries alone.
    plan
        Canary data sets for parties that are started here; None to look at the running one alone.
    progress
        Told each stage before it runs.
    """
    subject = connection.address if connection else "label-party on canary data sets"
    audit = Audit("party", f"labels party {subject}")
    if connection is not None:
        _running(audit, connection, progress)
    if plan is not None:
        _canaries(audit, plan, progress, certify=connection is None)
    return audit


def canary_cost(plan: CanarySettings) -> float:
    """CPU seconds that canaries will take, from one start of a process of the labels party."""
    start = child_command("label_party.release.run")  # imports what a release does, and ends
    run = partial(subprocess.run, start, env=child_environment(), check=True)
    return (_STARTS + _STARTS_A_ROW * plan.rows) * cpu_seconds(run)


def _running(audit: Audit, connection: Connection, progress: Progress) -> None:
    with connected(connection) as endpoint, tempfile.TemporaryDirectory() as folder:
        progress(RUNNING_STEPS[0])
        whole = endpoint.fetch()
        manifest = Manifest.parse(whole.manifest)
        audit.claimed = claims.claimed_epsilon(manifest)
        audit.facts = claims.facts(manifest, manifest_digest(whole.manifest))
        audit.plots |= claims.plots(manifest)
        progress(RUNNING_STEPS[1])
        audit.run(lambda: byte_equality_check(lambda: endpoint.fetch().to_bytes()))
        audit.run(lambda: resume_check(endpoint, whole))
        progress(RUNNING_STEPS[2])
        audit.run(lambda: refusals_check(endpoint))
        progress(RUNNING_STEPS[3])
        audit.run(lambda: _unknown_clients_check(connection, Path(folder)))
        progress(RUNNING_STEPS[4])
        certified = fetched_certificate(whole)
        audit.fields = certified.fields
        here = "errors and latency say nothing"  # some was tried, and the rest is named
        audit.add(*(check for check in certified.checks if check.name != here))
        audit.add(*beyond_an_endpoint())


def _canaries(audit: Audit, plan: CanarySettings, progress: Progress, *, certify: bool) -> None:
    progress(CANARY_STEPS[0])
    canaries = make_worlds(plan)
    for world in (canaries.whole, canaries.less, canaries.again):
        refused = world.release()
        if refused:
            audit.add(_unable(refused))
            return
    progress(CANARY_STEPS[1])
    with (
        canaries.whole.serving() as first,
        canaries.less.serving() as second,
        connected(first) as one,
        connected(second) as other,
    ):
        answers = one.fetch(), other.fetch()
        manifest = Manifest.parse(answers[0].manifest)
        audit.claimed = audit.claimed or claims.claimed_epsilon(manifest)
        audit.facts |= {"canary events": f"{plan.rows:,}", "canary ε": f"{plan.epsilon:g}"}
        progress(CANARY_STEPS[2])
        audit.run(lambda: byte_equality_check(lambda: one.fetch().to_bytes()))
        for check in two_answers_checks(*answers):
            audit.add(check)
        _labels(audit, canaries.whole, answers[0], manifest)
        audit.run(lambda: same_refusals_check(one, other))
        progress(CANARY_STEPS[3])
        audit.run(lambda: latency_check(one, other, plan.epsilon))
    if certify:  # of a running party it has been done already
        audit.add(*decided(fetched_certificate(answers[0])))
    audit.run(lambda: _logs_check(canaries))
    with canaries.again.serving() as third, connected(third) as endpoint:
        again = endpoint.fetch()
    audit.run(lambda: cold_start_check(_noise(answers[0]), _noise(again)))
    sent = _codes(answers[0]), _codes(again)
    audit.run(lambda: same_noise_check(sent[0], sent[1], manifest.codebook))
    progress(CANARY_STEPS[4])
    audit.run(lambda: _budget_check(canaries.whole, manifest))
    progress(CANARY_STEPS[5])
    audit.run(lambda: _frozen_check(canaries.whole, answers[0]))
    progress(CANARY_STEPS[6])
    audit.run(lambda: static_check(release_sources(), "the labels party"))


def _labels(audit: Audit, world: World, answer: Fetched, manifest: Manifest) -> None:
    """What the order and the outputs of the rows say about the canary labels."""
    secrets = world.in_row_order
    audit.run(lambda: permutation_check(secrets.astype(np.float64)))
    codes, codebook = decode_codes(answer.codes, manifest.content.code_bytes), manifest.codebook
    several = len(manifest.labels) > 1
    epsilon = manifest.labels_guarantee.epsilon

    def check() -> Check:
        planted = Canaries(np.arange(codes.size), secrets, codebook.at_the_ends, planted=True)
        found = attack_control(codes.astype(np.int64), None, planted, epsilon).result
        return statistical(
            "one run",
            question="How well does an output tell two labels apart?",
            claim=f"An output reveals at most ε₂ = {epsilon:.4g} about its label{'s' * several}.",
            tried=f"{codes.size:,} labels were secret bits"
            f"{', all labels of an event the same one' * several}; {found.correct:,} of"
            f" {found.guesses:,} guesses from the message were right.",
            claimed=epsilon,
            bound=found.bound,
            shown=found.shown,
            power=(
                Power(
                    "excess of ε between the two outermost labels",
                    smallest_excess(1.0, found.guesses, epsilon, GATE),
                ),
            ),
        )

    audit.run(check)


def _unknown_clients_check(connection: Connection, folder: Path) -> Check:
    """Nobody without the right certificate is answered."""
    foreign = write_certificates(folder / "foreign", days=1)
    found = {
        "no certificate": unknown_client(connection, None, None),
        "a certificate of another authority": unknown_client(
            connection, foreign.feature_party_certificate, foreign.feature_party_key
        ),
    }
    let_in = [name for name, refusal in found.items() if refusal == Refusal("OK", "")]
    return Check(
        name="unknown clients are refused",
        question="Is anybody answered who should not be?",
        verdict=verdict_of(not let_in),
        claim="Only a client with the configured certificate is answered.",
        tried=f"A describe request was made with {' and with '.join(found)}.",
        found=f"{len(let_in)} of them were answered.",
        confidence=1.0,
        details={name: [refusal.status, refusal.text] for name, refusal in found.items()},
    )


def _logs_check(canaries: Worlds) -> Check:
    """The servers' logs of two worlds say the same."""
    logs = [_normalised(world.folder / "serve.log") for world in (canaries.whole, canaries.less)]
    differing = sorted(logs[0] ^ logs[1])
    return Check(
        name="logs do not depend on labels",
        question="Do the server's logs say anything about labels?",
        verdict=verdict_of(not differing),
        claim="What the server logs depends on requests and the public population alone.",
        tried="The kinds of lines in the logs of two parties whose data differ in one label were"
        " compared, numbers left out where they are times, ports or durations.",
        found=f"{len(differing)} kinds of lines occur in one log only"
        + (f": {differing[:2]}" if differing else "."),
        confidence=1.0,
        not_looked_at="What is logged more than once, and numbers that are times.",
    )


def _normalised(path: Path) -> set[str]:
    """The kinds of lines in a log: times, ports, peers and digests are blanked out."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {_kind(line.strip()) for line in lines if line.strip()}


def _kind(line: str) -> str:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if isinstance(fields, dict):  # of a structured log
        line = json.dumps({k: "#" if k in _VOLATILE else v for k, v in fields.items()})
    line = re.sub(r"\b[0-9a-f]{16,}\b", "#", line)
    line = re.sub(rf"({'|'.join(_VOLATILE)})=\S+", r"\1=#", line)
    line = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*", "#", line)
    return re.sub(r"127\.0\.0\.1:\d+", "#", line)


def _budget_check(world: World, manifest: Manifest) -> Check:
    """One release is charged exactly what was asked, and a second one is refused."""
    before = _spent(world.budget())
    refused = world.release("--epoch", "2")
    after = _spent(world.budget())
    asked = Fraction(repr(manifest.privacy.requested_epsilon))
    total = parse_rational(manifest.privacy.total["epsilon"])
    holds = (
        before == after == asked and refused is not None and total <= asked + Fraction(1, 1 << 50)
    )
    return Check(
        name="budget arithmetic",
        question="Is a release charged, and a further one refused?",
        verdict=verdict_of(holds),
        claim=f"A release of ε = {float(asked):g} is charged to the ledger, and the data set's"
        " total cannot be passed.",
        tried="The ledger was read, a second epoch was asked for, and the ledger read again.",
        found=f"Charged {float(before):g}, {float(after):g} after the second request, which was"
        f" {'refused' if refused else 'granted'}; the manifest says {float(total):.9g}.",
        claimed=float(asked),
        bound=float(total),
        confidence=1.0,
        details={"refusal": refused},
    )


def _frozen_check(world: World, answer: Fetched) -> Check:
    """Labels that change after a release change nothing that is served."""
    world.write_labels(1 - world.secrets)
    refused = world.release()
    with world.serving() as connection, connected(connection) as endpoint:
        same = endpoint.fetch().to_bytes() == answer.to_bytes()
    spent = _spent(world.budget())
    return Check(
        name="updated labels",
        question="What is sent after a label has changed?",
        verdict=verdict_of(same),
        claim="A label that is updated between requests is frozen, or charged again.",
        tried=f"All labels were exchanged ({UPPER:g} for 0 and back), the same epoch was released"
        " again, and fetched.",
        found=f"The bytes are {'the same' if same else 'others'};"
        f" {float(spent):g} is charged in all" + (f" ({refused})." if refused else "."),
        confidence=1.0,
    )


def _spent(accounts: list[dict[str, Any]]) -> Fraction:
    return sum(
        (parse_rational(entry["spent"]["epsilon"]) for entry in accounts if entry["spent"]),
        Fraction(0),
    )


def _noise(answer: Fetched) -> bytes:
    """Everything random in an answer."""
    counts = [prior.noisy_counts for prior in Manifest.parse(answer.manifest).priors]
    return repr(counts).encode() + answer.codes


def _codes(answer: Fetched) -> Integers:
    """(n,) outputs, in the order of the rows."""
    code_bytes = Manifest.parse(answer.manifest).content.code_bytes
    return decode_codes(answer.codes, code_bytes).astype(np.int64)


def _unable(refused: str) -> Check:
    return Check(
        name="canary releases",
        question="Can the labels party release the canaries?",
        verdict=verdict_of(False),
        claim="The labels party builds a release of the canary data sets.",
        tried="`label-party release` was run on them.",
        found=refused,
    )
