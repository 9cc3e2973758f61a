"""`certificate` over a folder of epochs: every release by itself, and what ties them together.

An epoch whose labels had not drifted uses the prior that an earlier one paid for. Its certificate
rebuilds the channel from that prior, but only the earlier release shows that the prior is what it
is said to be, and only all of them together what one event pays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from labelveil.audit.certificate.evidence import Evidence, read_evidence
from labelveil.audit.certificate.run import DECIDED, certificate, fields_of_all
from labelveil.audit.verdict import (
    Audit,
    Check,
    Probes,
    Progress,
    Verdict,
    silent,
    verdict_of,
    worst,
)
from labelveil.common.errors import PrivacyError, ReleaseError, listed, not_none
from labelveil.common.exact.rational import parse_rational
from labelveil.common.mechanisms.interactive import Terms
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.common.release.rows import keys_column
from labelveil.common.release.sections import InForceSection, SessionSection, TrialSection

DELTA = 1e-6  # δ at which a session's guarantee is shown

ORIGIN = "priors in force"

_NAMED = 4


def epochs_certificate(
    folders: Sequence[Path], progress: Progress = silent, *, public_key: Path | None = None
) -> Audit:
    """Audit all releases of a data set, a folder each, as :func:`certificate` does one.

    ``ReleaseError`` if one cannot be understood, or they are of several data sets.
    """
    releases: list[Evidence] = []
    audits: list[tuple[str, Audit]] = []
    for folder in folders:
        progress(folder.name)
        try:
            evidence = read_evidence(folder)
        except ReleaseError as error:
            raise ReleaseError(f"{folder}: {error}") from error
        releases.append(evidence)
        audits.append((evidence.manifest.epoch, certificate(evidence, public_key=public_key)))
    manifests = [release.manifest for release in releases]
    names = sorted({manifest.data_set for manifest in manifests})
    if len(names) > 1:
        raise ReleaseError(
            f"{folders[0].parents[1]} holds releases of {names[0]!r} and {names[1]!r}; audit one"
            " data set at a time"
        )
    audit = Audit("certificate", f"{len(releases)} epoch{'s' * (len(releases) > 1)} of {names[0]}")
    audit.facts = _facts(manifests)
    checks: dict[str, list[tuple[str, Check]]] = defaultdict(list)
    for epoch, certified in audits:
        for check in certified.checks:
            if check.name != ORIGIN:  # all epochs together decide it
                checks[check.name].append((epoch, check))
    audit.checks += map(_worst, checks.values())
    EPOCHS.audit(audit, releases)
    audit.claimed = audit.checks[-1].claimed
    audit.fields = fields_of_all((certified for _, certified in audits), audit.checks, DECIDED)
    return audit


def _facts(manifests: Sequence[Manifest]) -> dict[str, str]:
    paid = [manifest.epoch for manifest in manifests if manifest.prior_paid]
    tests = [m.drift.test for m in manifests if m.drift is not None and m.drift.test is not None]
    return {
        "data set": manifests[0].data_set,
        "epochs": f"{len(manifests)}, {manifests[0].epoch} … {manifests[-1].epoch}",
        "events": f"{sum(manifest.population.rows for manifest in manifests):,}",
        "priors paid for": f"{len(paid)}: {listed(paid, _NAMED)}",
        "tests for drift": f"{len(tests)}",
    }


def _worst(checks: Sequence[tuple[str, Check]]) -> Check:
    """The worst of all epochs' checks of one name, and the epochs that have its verdict."""
    verdict = worst(check.verdict for _, check in checks)
    epochs = [epoch for epoch, check in checks if check.verdict is verdict]
    first = next(check for _, check in checks if check.verdict is verdict)
    if len(checks) == 1:
        return first
    where = f"In all {len(checks)} epochs."
    if len(epochs) < len(checks):
        where = f"{len(epochs)} of {len(checks)} epochs: {verdict} ({listed(epochs, _NAMED)})."
    return replace(
        first,
        claim=f"In every epoch: {first.claim}",
        found=f"{where} {epochs[0]}: {first.found}",
        claimed=None,  # its numbers are of one epoch
        bound=None,
        shown=None,
        details={},
        seconds=sum(check.seconds for _, check in checks),
        cpu_seconds=sum(check.cpu_seconds for _, check in checks),
    )


EPOCHS = Probes[Sequence[Evidence]](refused=Verdict.FAIL)


@EPOCHS.add(
    ORIGIN,
    "Did an earlier release pay for the prior that an epoch uses?",
    "An epoch that paid for no prior uses the one of an earlier epoch that did.",
)
def origin_check(releases: Sequence[Evidence]) -> Check:
    known = {manifest_digest(release.data): release.manifest for release in releases}
    drifts = [
        (release.manifest, release.manifest.drift.in_force)
        for release in releases
        if release.manifest.drift is not None
    ]
    wrong, absent = [], []
    for manifest, in_force in drifts:
        origin = known.get(in_force.manifest)
        if origin is None:
            absent.append(manifest.epoch)
        elif not _is_origin(manifest, origin, in_force):
            wrong.append(manifest.epoch)
    return Check(
        verdict=_undecided_if(bool(absent), not wrong),
        tried=f"{len(drifts)} epochs name the release whose prior was in force; histogram, noise"
        " and counted labels were compared with that release's.",
        found=f"{len(wrong)} differ{_which(wrong)}; the releases that {len(absent)} name are not"
        f" here{_which(absent)}.",
    )


def _is_origin(manifest: Manifest, origin: Manifest, named: InForceSection) -> bool:
    paid = origin.prior_paid and (origin.epoch, origin.population.rows) == (named.epoch, named.rows)
    if manifest.prior_paid:
        return paid and manifest.epoch != origin.epoch
    return paid and (manifest.prior, manifest.label.grid) == (origin.prior, origin.label.grid)


@EPOCHS.add(
    "sessions",
    "Are all tests for drift paid for?",
    "Tests that are charged to a session are within its terms, and every hit is counted.",
)
def session_check(releases: Sequence[Evidence]) -> Check:
    sessions: dict[str, list[tuple[Manifest, TrialSection, SessionSection]]] = defaultdict(list)
    for manifest in (release.manifest for release in releases):
        test = None if manifest.drift is None else manifest.drift.test
        if test is not None and test.session is not None:
            sessions[test.session.outcome].append((manifest, test, test.session))
    tried = f"Terms, hits and calls of {len(sessions)} sessions were followed through the epochs."
    if not sessions:
        uncharged = "No test is charged to a session: every epoch paid for its own."
        return Check(Verdict.PASS, tried, uncharged)
    wrong, gaps, shown = [], 0, []
    for epochs in sessions.values():
        epochs.sort(key=lambda epoch: epoch[2].state["calls"])
        terms = Terms.from_json(epochs[0][2].state["terms"])
        calls = hits = 0
        for manifest, test, session in epochs:
            before = calls, hits + not_none(manifest.drift).drifted
            calls, hits = session.state["calls"], session.state["hits"][0]
            # epochs that are not here may explain more calls and hits, never fewer
            gaps += (calls, hits) != (before[0] + 1, before[1])
            fits = calls > before[0] and before[1] <= hits <= terms.hits
            if not (fits and _within(test, session, terms)):
                wrong.append(manifest.epoch)
        shown.append(f"{hits} of {terms.hits} hits after {calls} calls, {terms.approximate(DELTA)}")
    return Check(
        verdict=_undecided_if(gaps > 0, not wrong),
        tried=tried,
        found=f"{'; '.join(shown)}, on top of what the epochs spend; {len(wrong)} epochs do not fit"
        f"{_which(wrong)}, {gaps} do not follow the one before.",
    )


def _within(test: TrialSection, session: SessionSection, terms: Terms) -> bool:
    try:
        same = Terms.from_json(session.state["terms"]) == terms
    except PrivacyError:
        return False
    stated = test.guarantee
    affordable = parse_rational(stated["epsilon"]) <= terms.target.epsilon
    return same and affordable and stated["unit"] == terms.unit


@EPOCHS.add(
    "events in several epochs",
    "Does any event pay in more than one epoch?",
    "No event occurs in two epochs.",
)
def disjoint_check(releases: Sequence[Evidence]) -> Check:
    """What one event pays in all epochs together: its own epoch's ε if it is in no other."""
    populations = [release.manifest.population for release in releases]
    events = [release.events for release in releases]
    reason = ""
    if any(keys is None for keys in events):
        reason = "Some populations were submitted, and their keys are not here."
    elif (secrets := len({population.secret_check for population in populations})) > 1:
        reason = (
            f"Keys are hashed under {secrets} secrets, so that the same event has another key in"
            " another epoch; the labels party's ledger compares events by their names."
        )
    if reason:
        return Check(Verdict.NOT_CHECKABLE, "Keys would be compared.", reason)
    totals = [parse_rational(release.manifest.privacy.total["epsilon"]) for release in releases]
    rows = pl.concat(
        pl.DataFrame({"key": keys_column(not_none(keys))}).with_columns(
            epsilon=pl.lit(float(total))
        )
        for keys, total in zip(events, totals, strict=True)
    )
    paid = rows.group_by("key").agg(pl.len(), pl.col("epsilon").sum())
    several = int((paid["len"] > 1).sum())
    most = float(paid["epsilon"].max())  # type: ignore[arg-type]
    return Check(
        verdict=_undecided_if(several > 0, True),
        tried=f"{rows.height:,} hashed keys were compared over all epochs; all are hashed under one"
        " secret.",
        found=f"{several:,} events are in more than one. The labels of one event pay at most ε ="
        f" {most:.6g} in all"
        + (
            ": their epochs add up, and the ledger must have charged them so. A user's events"
            " add up in any case."
            if several
            else "."
        ),
        claimed=most,
        bound=most,
    )


def _undecided_if(unknown: bool, holds: bool) -> Verdict:
    return Verdict.NOT_CHECKABLE if unknown and holds else verdict_of(holds)


def _which(epochs: Sequence[str]) -> str:
    return f" ({listed(epochs, _NAMED)})" if epochs else ""
