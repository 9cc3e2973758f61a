"""``label-party release``, and what it prints; counts of raw labels go no further."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from label_party.commands.before import Before, BeforeOptions, aligned, label_facts
from label_party.commands.options import Shown, options
from label_party.config.sections import LabelPartyConfig
from label_party.store.budget import short

if TYPE_CHECKING:
    from common.release.manifest import Manifest
    from label_party.events.intention import Intention
    from label_party.release.run import ReleaseOutcome


@options(
    *("data.labels", "data.population", "data.key", "data.label", "data.data_set", "data.epoch"),
    *("domain.lower", "domain.upper", "privacy.epsilon", "privacy.total_epsilon"),
    *("randomizer.name", "randomizer.loss", "keys.secret_file", "store.directory"),
)
def release(config: LabelPartyConfig, shown: Shown, how: BeforeOptions) -> None:
    """Build the one message for this data set and epoch, and charge the budget for it.

    What is odd about the labels is said beforehand, on standard error. On a terminal the command
    then asks; without one it goes on, for a job that stops by itself tells of labels, too.
    """
    from common.allocator import keep_freed_memory
    from label_party.release.message import Count, count_labels
    from label_party.release.run import run_release
    from label_party.release.signing import sign_again

    def confirm(intention: Intention) -> None:
        before(with_prediction(config, intention))

    keep_freed_memory()
    with Before(config, how, shown) as before:
        count: Count = count_labels
        if config.rounds.questions:
            from label_party.release.answer import answering

            count = answering(config)
        outcome = run_release(
            config, quiet=shown.quiet, confirm=confirm, find_prior=lambda store, ledger: count
        )
        if outcome.existed and not how.dry_run:
            sign_again(config)
        shown.answer(document(outcome), *_lines(outcome), "next: label-party serve")


def with_prediction(config: LabelPartyConfig, intention: Intention) -> Intention:
    """Let it say, too, where so few events are predicted to be worth next to nothing."""
    from label_party.release.plan import too_few_events

    return replace(intention, too_few=lambda: too_few_events(config, intention.tally.rows))


def document(outcome: ReleaseOutcome) -> dict[str, Any]:
    """Return a release's facts and the budget that is left as JSON values."""
    manifest, left = outcome.manifest, outcome.left
    return {
        "data_set": manifest.data_set,
        "epoch": manifest.epoch,
        "existed": outcome.existed,
        "events": manifest.population.rows,
        "found": None if outcome.tally is None else outcome.tally.to_json(),
        "randomizer": ", ".join(one.name for one in manifest.by_stratum[0]),
        "strata": len(manifest.strata),
        "loss": ", ".join(dict.fromkeys(one.loss for one in manifest.labels)),
        "outputs": manifest.codebooks.outputs,
        "guarantee": manifest.total_guarantee.to_json(),
        "prior_paid": manifest.prior_paid,
        "total": outcome.limit.to_json(),
        "left": None if left is None else left.to_json(),
        "digest": outcome.digest,
        "taken_back": outcome.recovered,
    }


def _lines(outcome: ReleaseOutcome) -> Iterator[str]:
    manifest = outcome.manifest
    if outcome.existed:
        yield (
            f"already released: data set {manifest.data_set!r}, epoch {manifest.epoch!r};"
            " serving the same bytes, nothing spent"
        )
    yield from aligned(_facts(outcome))


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
        f" left {short(outcome.left)}"
    )


def _prior(manifest: Manifest) -> str:
    drift = manifest.drift
    if manifest.asked:
        return f"asked in {len(manifest.strata)} strata"
    if all(prior.decoded for prior in manifest.priors):
        return "no prior needed"
    if drift is None:
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


def _facts(outcome: ReleaseOutcome) -> list[tuple[str, str]]:
    manifest, tally = outcome.manifest, outcome.tally
    facts = [
        ("data set", f"{manifest.data_set}, epoch {manifest.epoch}"),
        ("events", f"{manifest.population.rows:,}{_origin(manifest)}"),
    ]
    if tally is not None:
        facts += [
            *label_facts(tally, {one.name: one.missing for one in manifest.labels}),
            ("  labels left out", f"{tally.left_out:,} (keys outside the population)"),
            ("  keys merged", f"{tally.merged:,}"),
        ]
        if manifest.privacy.records_per_unit > 1 or tally.over_limit:
            facts.append(("  over a user's limit", f"{tally.over_limit:,}"))
    facts += [
        *_label_facts(manifest),
        ("privacy", str(manifest.total_guarantee)),
        *_prior_facts(manifest),
        ("  labels", f"ε = {manifest.labels_guarantee.epsilon:.6g}"),
        ("budget left", f"{short(outcome.left)} of {short(outcome.limit)}"),
        ("digest", outcome.digest),
    ]
    if outcome.recovered:
        facts.append(("taken back", f"{outcome.recovered} unfinished release(s) of dead processes"))
    return facts


def _label_facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    grids = {label.name: len(label.grid) for label in manifest.labels}
    each = [book.radices for book in manifest.codebooks.books]
    for one, outputs in zip(manifest.by_stratum[0], map(max, zip(*each, strict=True)), strict=True):
        of = f" of {' and '.join(one.labels)}" if len(grids) > 1 else ""
        losses = [label.loss for label in manifest.labels if label.name in one.labels]
        yield f"randomizer{of}", f"{one.name}, {', '.join(dict.fromkeys(losses))} loss"
        points = " × ".join(f"{grids[name]:,}" for name in one.labels)
        yield f"grid{of}", f"{points} points, {outputs:,} outputs"
    if manifest.strata:
        largest = max(manifest.strata, key=lambda stratum: stratum.rows)
        share = largest.rows / manifest.population.rows
        told = f"the largest, {largest.name}, has {share:.0%} of the events"
        if manifest.asked:
            bits = manifest.question_bits
            told = f"what the features party predicts: {bits:.1f} bits an event"
        yield "strata", f"{len(manifest.strata)}, each with a channel of its own; {told}"


def _prior_facts(manifest: Manifest) -> list[tuple[str, str]]:
    facts = []
    if manifest.test_guarantee is not None:
        facts.append(("  test for drift", f"ε = {manifest.test_guarantee.epsilon:.6g}"))
    if manifest.asked:
        facts.append(("  histogram", "none: the features party said what it expects"))
    elif all(prior.decoded for prior in manifest.priors):
        facts.append(("  histogram", "decoded from the codes, free"))
    elif manifest.prior_paid:
        facts.append(("  histogram", f"ε = {manifest.prior_guarantee.epsilon:.6g}"))
    elif manifest.drift is not None:
        facts.append(("  histogram", f"that of epoch {manifest.drift.in_force.epoch}, free"))
    return facts


def _origin(manifest: Manifest) -> str:
    return " (submitted by the features party)" if manifest.content.key_bytes == 0 else ""
