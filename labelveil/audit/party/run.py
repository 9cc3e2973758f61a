"""`party`: a labels party from the outside, and the same software on canary data sets."""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

from labelveil.audit.attacks.implementation import (
    byte_equality_check,
    permutation_check,
    release_sources,
    static_check,
)
from labelveil.audit.attacks.laws import same_noise_tails
from labelveil.audit.attacks.model_attack import Canaries, attack_control
from labelveil.audit.attacks.two_noises import same_noise_check
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.party import endpoint, noises
from labelveil.audit.party.canary_parties import HISTOGRAMS, QUERIED, UPPER, World, make_worlds
from labelveil.audit.party.endpoint import Fetched, connected
from labelveil.audit.party.one_label import latency_check, log_kinds, one_label_checks, shown_by
from labelveil.audit.party.sessions import OFFER, sessions_checks
from labelveil.audit.party.sums import SumsWorld, sums_checks
from labelveil.audit.settings import CanarySettings, Connection
from labelveil.audit.verdict import (
    GATE,
    Audit,
    Check,
    Power,
    Progress,
    Verdict,
    cpu_seconds,
    silent,
    verdict_of,
)
from labelveil.children import child_command, child_environment
from labelveil.common.arrays import Integers
from labelveil.common.exact.rational import parse_rational
from labelveil.common.release.blocks import decode_codes
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.simulation.processes import StageFailed

RUNNING_COST = "8 fetches of the release, 20 small requests: all of it is in the partner's log"
# what canaries cost, in starts of a labels party's process: measured with 2,000 to 200,000 rows
_STARTS, _STARTS_A_ROW = 52.0, 6e-5

RUNNING_STEPS, CANARY_STEPS = 5, 10  # how many are named on the way


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
        whole = client.fetch()
        manifest = Manifest.parse(whole.manifest)
        audit.claimed = claims.claimed_epsilon(manifest)
        audit.facts = claims.facts(manifest, manifest_digest(whole.manifest))
        audit.plots |= claims.plots(manifest)
        audit.run(lambda: byte_equality_check(lambda: client.fetch().to_bytes()), "fetch again")
        audit.run(lambda: endpoint.resume_check(client, whole))
        audit.run(lambda: endpoint.sizes_check(client, whole))
        audit.run(lambda: endpoint.refusals_check(client), "refusals")
        audit.run(lambda: endpoint.unknown_clients_check(connection), "unknown clients")
        audit.progress("certificate")
        certified = endpoint.fetched_certificate(whole)
        audit.fields = certified.fields
        here = "errors and latency say nothing"  # some was tried, and the rest is named
        audit.checks += (check for check in certified.checks if check.name != here)
        audit.checks += endpoint.beyond_an_endpoint()


def _canaries(audit: Audit, folder: Path, settings: CanarySettings, *, certify: bool) -> None:
    audit.progress("release two worlds")
    whole, less, again, asked, small = make_worlds(folder, settings, OFFER)
    for world in (whole, less, again, asked, *small):
        refusal = world.release()
        if refusal:
            check = Check(
                name="canary releases",
                question="Can the labels party release the canaries?",
                verdict=Verdict.FAIL,
                claim="The labels party builds a release of the canary data sets.",
                tried="`label-party release` was run on them.",
                found=refusal,
            )
            audit.checks.append(check)
            return
    audit.progress("serve two worlds")
    with (
        whole.serving() as connection,
        less.serving() as other_connection,
        connected(connection) as client,
        connected(other_connection) as other_client,
    ):
        answer, other = client.fetch(), other_client.fetch()
        manifest = Manifest.parse(answer.manifest)
        audit.claimed = audit.claimed or claims.claimed_epsilon(manifest)
        audit.facts |= {"canary events": f"{settings.rows:,}", "canary ε": f"{settings.epsilon:g}"}
        audit.run(lambda: byte_equality_check(lambda: client.fetch().to_bytes()), "compare")
        audit.run(lambda: endpoint.sizes_check(client, answer))
        shown, other_shown = shown_by(client, answer), shown_by(other_client, other)
        _labels(audit, whole, answer, manifest)
        audit.run(
            lambda: latency_check(client, other_client, settings.epsilon, 600 * settings.effort),
            "latency",
        )
    # the logs are whole once their servers have ended
    shown = replace(shown, log=log_kinds(whole.log))
    audit.checks += one_label_checks(shown, replace(other_shown, log=log_kinds(less.log)))
    if certify:  # of a running party it has been done already
        checks = endpoint.fetched_certificate(answer).checks
        audit.checks += (c for c in checks if c.verdict is not Verdict.NOT_CHECKABLE)
    with again.serving() as connection, connected(connection) as client:
        second = client.fetch()
    audit.run(lambda: _cold_start_check(answer, second))
    audit.run(lambda: same_noise_check(_codes(answer), _codes(second), manifest.codebook))
    audit.run(lambda: noises.histograms_check(small), "noise")
    for queries in (noises.leaders_check, noises.tables_check):
        audit.run(partial(_answered, queries, small[: QUERIED * settings.effort]))
    audit.run(lambda: noises.decisions_check(noises.DECISIONS * settings.effort))
    audit.progress("sessions")
    audit.checks += sessions_checks(asked)
    audit.progress("sums")
    audit.checks += sums_checks(
        SumsWorld(asked.settings, folder / "sums", asked.files, asked.secrets)
    )
    audit.run(lambda: _budget_check(whole, manifest), "budget")
    audit.run(lambda: _frozen_check(whole, answer), "update a label")
    audit.run(lambda: static_check(release_sources(), "the labels party"), "static rule")


def _answered(check: Callable[[Sequence[World]], Check], worlds: Sequence[World]) -> Check:
    """Run a check of answers; a labels party that gives none fails it."""
    try:
        return check(worlds)
    except StageFailed as refusal:
        return Check(
            name="answers about counts",
            question="Does the labels party answer what it sells?",
            verdict=Verdict.FAIL,
            claim="`top-k` and `synthesize` answer about data sets that are released.",
            tried="Both were asked of events that the auditor knows.",
            found=f"{refusal}",
        )


def _labels(audit: Audit, world: World, answer: Fetched, manifest: Manifest) -> None:
    """What the order and the outputs of the rows say about the canary labels."""
    secrets, codes = world.in_row_order, _codes(answer)
    audit.run(lambda: permutation_check(secrets.astype(np.float64)))
    several = len(manifest.labels) > 1
    epsilon = manifest.labels_guarantee.epsilon

    def check() -> Check:
        ends = manifest.codebook.at_the_ends
        planted = Canaries(np.arange(codes.size), secrets, ends, planted=True)
        run = attack_control(codes, None, planted, epsilon).result
        return run.check(
            "one run",
            question="How well does an output tell two labels apart?",
            claim=f"An output reveals at most ε₂ = {epsilon:.4g} about its label{'s' * several}.",
            tried=f"{codes.size:,} labels were secret bits"
            f"{', all labels of an event the same one' * several}; {run.correct:,} of"
            f" {run.guesses:,} guesses from the message were right.",
            claimed=epsilon,
            power=(Power("excess of ε between the two outermost labels", run.excess(epsilon)),),
        )

    audit.run(check)


def _cold_start_check(answer: Fetched, second: Fetched) -> Check:
    same = ["rows"] * (answer.codes == second.codes)
    tails = same_noise_tails(*(Manifest.parse(sent.manifest) for sent in (answer, second)))
    same += ["a histogram"] * any(tail < GATE / len(tails) for tail, _ in tails)
    return Check(
        name="two cold starts differ",
        question="Does a second start draw noise of its own?",
        verdict=verdict_of(not same),
        claim="Noise comes from the operating system's entropy, again in every process.",
        tried="The same labels were randomized in two processes, each started from nothing; rows"
        " were compared, and how many counts of the histograms are the same.",
        found=f"Both drew the noise of {' and '.join(same)}: anyone who knows it can take it off."
        if same
        else "The two outputs differ.",
        bound=math.inf if same else 0.0,
        confidence=1 - GATE,
        power=tuple(Power("cells of a histogram that are the same", least) for _, least in tails),
    )


def _budget_check(world: World, manifest: Manifest) -> Check:
    before = world.spent
    refusal = world.release("--epoch", "2")
    after = world.spent
    requested = Fraction(repr(manifest.privacy.requested_epsilon))
    total = parse_rational(manifest.privacy.total["epsilon"])
    within = before == after == requested and total <= requested + Fraction(1, 1 << 50)
    return Check(
        name="budget arithmetic",
        question="Is a release charged, and a further one refused?",
        verdict=verdict_of(within and refusal is not None),
        claim=f"A release of ε = {float(requested):g} is charged to the ledger, and the data set's"
        " total cannot be passed.",
        tried="The ledger was read, a second epoch was asked for, and the ledger read again.",
        found=f"Charged {float(before):g}, {float(after):g} after the second request, which was"
        f" {'refused' if refusal else 'granted'}; the manifest says {float(total):.9g}.",
        claimed=float(requested),
        bound=float(total),
        details={"refusal": refusal},
    )


def _frozen_check(world: World, answer: Fetched) -> Check:
    world.write_labels(1 - world.secrets)
    refusal = world.release()
    with world.serving() as connection, connected(connection) as client:
        same = client.fetch().to_bytes() == answer.to_bytes()
    spent = world.spent
    return Check(
        name="updated labels",
        question="What is sent after a label has changed?",
        verdict=verdict_of(same),
        claim="A label that is updated between requests is frozen, or charged again.",
        tried=f"All labels were exchanged ({UPPER:g} for 0 and back), the same epoch was released"
        " again, and fetched.",
        found=f"The bytes are {'the same' if same else 'others'};"
        f" {float(spent):g} is charged in all" + (f" ({refusal})." if refusal else "."),
    )


def _codes(answer: Fetched) -> Integers:
    """(n,) outputs, in the order of the rows."""
    code_bytes = Manifest.parse(answer.manifest).content.code_bytes
    return decode_codes(answer.codes, code_bytes).astype(np.int64)
