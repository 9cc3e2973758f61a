"""``label-party release``, and what it prints; counts of raw labels go no further."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from labelveil.common.errors import not_none
from labelveil.label_party.commands.options import OutputOptions, options
from labelveil.label_party.commands.preflight import (
    Preflight,
    PreflightOptions,
    aligned,
    label_facts,
    noise_range,
    question_words,
)
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.budget import short

if TYPE_CHECKING:
    from labelveil.common.release.manifest import Manifest
    from labelveil.common.release.sections import SumsSection
    from labelveil.label_party.release.run import ReleaseOutcome
    from labelveil.label_party.store.purchase import Payment


@options(
    *("data.labels", "data.population", "data.key", "data.label", "data.data_set", "data.epoch"),
    *("domain.lower", "domain.upper", "privacy.epsilon", "privacy.total_epsilon"),
    *("randomizer.name", "randomizer.loss", "keys.secret_file", "store.directory"),
)
def release(config: LabelPartyConfig, shown: OutputOptions, how: PreflightOptions) -> None:
    from labelveil.common.allocator import keep_freed_memory
    from labelveil.label_party.release.run import ReadElsewhere, run_release, sign_again

    keep_freed_memory()
    with Preflight(config, how, shown) as preflight:
        try:
            outcome = run_release(config, quiet=shown.quiet, confirm=preflight)
        except ReadElsewhere as sold:
            if not how.dry_run:
                sign_again(config)
            shown.answer(_payment(sold.payment), str(sold), "next: label-party serve")
            return
        if outcome.payment.existed and not how.dry_run:
            sign_again(config)
        shown.answer(document(outcome), *_lines(outcome), "next: label-party serve")


def document(outcome: ReleaseOutcome) -> dict[str, Any]:
    """Return a release's facts and the budget that is left as JSON values."""
    manifest = outcome.manifest
    return {
        **_payment(outcome.payment),
        "events": manifest.population.rows,
        "found": None if outcome.tally is None else outcome.tally.to_json(),
        "randomizer": ", ".join(each.name for each in manifest.by_stratum[0]),
        "strata": len(manifest.strata),
        "loss": ", ".join(dict.fromkeys(label.loss for label in manifest.labels)),
        "outputs": 0 if manifest.sums else manifest.codebooks.outputs,
        "sums": 0 if manifest.sums is None else manifest.sums.groups,
        "question_bits": manifest.question_bits,
        "guarantee": manifest.total_guarantee.to_json(),
        "prior_paid": manifest.prior_paid,
    }


def _payment(paid: Payment) -> dict[str, Any]:
    return {
        "data_set": paid.charge.data_set,
        "epoch": paid.charge.epoch,
        "existed": paid.existed,
        "total": paid.limit.to_json(),
        "left": None if paid.left is None else paid.left.to_json(),
        "digest": paid.charge.digest,
        "taken_back": paid.recovered,
    }


def _lines(outcome: ReleaseOutcome) -> Iterator[str]:
    manifest = outcome.manifest
    if outcome.payment.existed:
        yield (
            f"already released: data set {manifest.data_set!r}, epoch {manifest.epoch!r};"
            " serving the same bytes, nothing spent"
        )
    yield from aligned([*_facts(outcome)])


def epoch_line(outcome: ReleaseOutcome) -> str:
    """Say what an epoch of a watch was, in a line."""
    manifest = outcome.manifest
    parts = [("labels", manifest.labels_guarantee.epsilon)]
    if manifest.prior_paid:
        parts.insert(0, ("prior", manifest.prior_guarantee.epsilon))
    test = manifest.test_guarantee
    if test is not None:
        parts.insert(0, ("test", test.epsilon))
    spent = " + ".join(f"{value:.4g} ({name})" for name, value in parts)
    return (
        f"{manifest.epoch}: {manifest.population.rows:,} events, {_prior(manifest)}; ε = {spent};"
        f" left {short(outcome.payment.left)}"
    )


def _prior(manifest: Manifest) -> str:
    match manifest.prior_source:
        case "none":
            return f"{not_none(manifest.sums).groups:,} sums over groups"
        case "question":
            return f"asked in {len(manifest.strata)} strata"
        case "public":
            return "a public prior"
        case "codes":
            return "no prior needed"
    if (drift := manifest.drift) is None:
        return "a prior of its own"
    origin, session = drift.in_force.epoch, ""
    if drift.test is not None and drift.test.session is not None:
        state = drift.test.session.state
        session = f", {state['hits'][0]} of {state['terms']['hits']} hits"
    if drift.drifted:
        return f"drifted from {origin}: a new prior{session}"
    if drift.test is None:
        return f"prior of {origin}, no test: all hits are spent"
    return f"prior of {origin}{session}"


def _facts(outcome: ReleaseOutcome) -> Iterator[tuple[str, str]]:
    manifest, paid, tally = outcome.manifest, outcome.payment, outcome.tally
    origin = " (submitted by the features party)" if manifest.content.key_bytes == 0 else ""
    yield "data set", f"{manifest.data_set}, epoch {manifest.epoch}"
    yield "events", f"{manifest.population.rows:,}{origin}"
    if tally is not None:
        yield from label_facts(tally, {label.name: label.missing for label in manifest.labels})
        yield "  labels left out", f"{tally.left_out:,} (keys outside the population)"
        yield "  keys merged", f"{tally.merged:,}"
        if manifest.privacy.records_per_unit > 1 or tally.over_limit:
            yield "  over a user's limit", f"{tally.over_limit:,}"
    if manifest.sums is None:
        yield from _channel_facts(manifest)
    else:
        yield from _sums_facts(manifest, manifest.sums)
    yield "privacy", str(manifest.total_guarantee)
    if manifest.test_guarantee is not None:
        yield "  test for drift", f"ε = {manifest.test_guarantee.epsilon:.6g}"
    yield "  histogram", _histogram(manifest)
    yield "  labels", f"ε = {manifest.labels_guarantee.epsilon:.6g}"
    yield "budget left", f"{short(paid.left)} of {short(paid.limit)}"
    yield "digest", paid.charge.digest
    if paid.recovered:
        yield "taken back", f"{paid.recovered} unfinished release(s) of dead processes"


def _histogram(manifest: Manifest) -> str:
    match manifest.prior_source:
        case "none":
            return "none: sums need none"
        case "question":
            return "none: the features party said what it expects"
        case "public":
            return "none: a public prior takes its place, free"
        case "codes":
            return "decoded from the codes, free"
        case "labels":
            return f"ε = {manifest.prior_guarantee.epsilon:.6g}"
        case "earlier":
            return f"that of epoch {not_none(manifest.drift).in_force.epoch}, free"


def _sums_facts(manifest: Manifest, sums: SumsSection) -> Iterator[tuple[str, str]]:
    yield "sums", f"{sums.groups:,}, one for each group of events"
    grid = manifest.label.grid
    yield "grid", f"{len(grid):,} points, {manifest.lattice.step:g} apart"
    yield "question", question_words(manifest.question_bits)
    yield "  its digest", sums.question
    yield "noise", noise_range([float(Fraction(stated.scale)) for stated in sums.widths])


def _channel_facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    grids = {label.name: len(label.grid) for label in manifest.labels}
    radices = zip(*(book.radices for book in manifest.codebooks.books), strict=True)
    for each, outputs in zip(manifest.by_stratum[0], map(max, radices), strict=True):
        of = f" of {' and '.join(each.labels)}" if len(grids) > 1 else ""
        losses = [label.loss for label in manifest.labels if label.name in each.labels]
        yield f"randomizer{of}", f"{each.name}, {', '.join(dict.fromkeys(losses))} loss"
        points = " × ".join(f"{grids[name]:,}" for name in each.labels)
        yield f"grid{of}", f"{points} points, {outputs:,} outputs"
    if manifest.strata:
        largest = max(manifest.strata, key=lambda stratum: stratum.rows)
        share = largest.rows / manifest.population.rows
        about = f"the largest, {largest.name}, has {share:.0%} of the events"
        if manifest.questioned:
            about = f"what the features party predicts: {manifest.question_bits:.1f} bits an event"
        yield "strata", f"{len(manifest.strata)}, each with a channel of its own; {about}"
