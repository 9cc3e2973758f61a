"""`inference`: label inference from the message and from the model that was trained on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.csv_files import read_table
from common.randomizers.cells import Codebook
from common.release.folder import MANIFEST_FILE
from common.release.manifest import Manifest, manifest_digest
from labelveil.audit.attacks.canaries import Canaries, find_canaries
from labelveil.audit.attacks.message_attack import (
    beliefs_plot,
    message_checks,
    worst_pair,
)
from labelveil.audit.attacks.model_attack import (
    Attack,
    attack_control,
    attack_predictions,
)
from labelveil.audit.bounds import expected_one_run_bound, guess_probability
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.inference.run_folder import Run, RunFiles, read_run
from labelveil.audit.power import detectable_epsilon
from labelveil.audit.verdict import (
    GATE,
    SHOWN,
    Audit,
    Check,
    Power,
    Verdict,
    cpu_seconds,
    statistical,
    verdict_of,
)

Progress = Callable[[str], None]

POWER = 0.9
"""Share of the ceiling's bound that the positive control must reach for the attack to count."""

_PACE_EVENTS = 4000

STEPS = ("message", "read the run", "model", "control")


def audit_inference(files: RunFiles, progress: Progress = lambda name: None) -> Audit:
    """Attack a release and, if predictions are at hand, the model trained on it.

    Parameters
    ----------
    files
        Where everything is.
    progress
        Told each stage before it runs.
    """
    data = _manifest_bytes(files.release)
    manifest = Manifest.from_bytes(data)
    group = manifest.privacy.records_per_unit
    epsilon = manifest.labels_guarantee.epsilon / group
    audit = Audit("inference", f"release {manifest.data_set} · {manifest.epoch}")
    audit.claimed = claims.claimed_epsilon(manifest)
    audit.facts = claims.facts(manifest, manifest_digest(data))
    progress(STEPS[0])
    codebook = manifest.codebook
    priors = [
        (manifest.group(prior.labels), histogram.probabilities)
        for prior, histogram in zip(manifest.priors, manifest.histograms, strict=True)
    ]
    audit.add(*message_checks(codebook, priors, epsilon))
    audit.plots["beliefs"] = beliefs_plot(codebook, priors, epsilon)
    progress(STEPS[1])
    run = read_run(files)
    if run is None:
        audit.add(_no_model(files))
        return audit
    canaries = choose_canaries(run, codebook)
    if canaries is None:
        audit.add(_no_canaries())
        return audit
    total = audit.claimed if audit.claimed is not None else epsilon
    attacks: dict[str, Attack] = {}
    progress(STEPS[2])
    audit.run(lambda: _model_check(run, canaries, total, attacks))
    progress(STEPS[3])
    audit.run(lambda: _control_check(run, canaries, epsilon, attacks))
    audit.plots["attack"] = {
        "ceiling": guess_probability(total),
        "model": attacks["model"].curve,
        "control": attacks["control"].curve,
    }
    return audit


def inference_cost(files: RunFiles) -> float:
    """CPU seconds that an audit will take, from the attack on a few made-up events.

    The attack is most of it; what does not grow with the events takes about two seconds.
    """
    if not files.predictions.is_file():
        return 2.0
    rows = np.arange(_PACE_EVENTS)
    made_up = Canaries(rows, rows % 2, np.full((2, 2), 0.5), planted=True)
    values = np.asarray(rows % 2, dtype=np.float64)
    features = np.asarray(np.sin(np.outer(rows, np.arange(1.0, 9.0))), dtype=np.float64)
    pace = cpu_seconds(lambda: attack_predictions({"": values}, features, made_up)) / _PACE_EVENTS
    labels = len(Manifest.from_bytes(_manifest_bytes(files.release)).labels)
    return 2.0 + 1.5 * pace * labels * read_table(files.predictions).height


def choose_canaries(run: Run, codebook: Codebook) -> Canaries | None:
    """Planted canaries if there are any, else those that are found among the events trained on."""
    if run.planted is not None:
        rows = np.flatnonzero((run.planted >= 0) & run.trained)
        return Canaries(rows, run.planted[rows], codebook.at_the_ends, planted=True)
    known = np.flatnonzero(~np.isnan(run.labels).any(axis=1) & run.trained)
    if not known.size:
        return None
    laws = codebook.of_labels(worst_pair(codebook))
    found = find_canaries(codebook, run.labels[known], run.codes[known], laws)
    return replace(found, rows=known[found.rows])


def _model_check(run: Run, canaries: Canaries, claimed: float, attacks: dict[str, Attack]) -> Check:
    found = attacks["model"] = attack_predictions(run.predictions, run.features, canaries)
    result = found.result
    return statistical(
        "label inference from the model",
        result,
        question="Does the trained model remember labels?",
        claim=f"From the model a canary's secret bit is guessed with probability at most"
        f" {guess_probability(claimed):.4f}.",
        tried=f"{canaries.rows.size:,} {_origin(canaries)} canaries that the model was trained on"
        f" were guessed from its predictions ({found.view}): {result.correct:,} of"
        f" {result.guesses:,} guesses were right.",
        claimed=claimed,
        details={"correct": result.correct, "guesses": result.guesses, "view": found.view},
        power=(
            Power(
                "excess of ε in what is predicted",
                detectable_epsilon(claimed, result.guesses, GATE) - claimed,
            ),
        ),
    )


def _control_check(
    run: Run, canaries: Canaries, epsilon: float, attacks: dict[str, Attack]
) -> Check:
    found = attacks["control"] = attack_control(run.codes, run.features, canaries, epsilon)
    result = found.result
    reach = expected_one_run_bound(epsilon, max(result.guesses, 1), SHOWN)
    strong = result.shown >= POWER * reach
    sound = result.bound <= epsilon
    verdict = verdict_of(sound) if strong else Verdict.NOT_CHECKABLE
    return Check(
        name="positive control",
        question="Would this attack see a model that learns labels by heart?",
        verdict=verdict,
        claim="A model that memorises is seen by this attack, and even it gives away no more than"
        f" ε₂ = {epsilon:.4g}.",
        tried="The same canaries were guessed from one nearest neighbour over the same release and"
        f" features: {result.correct:,} of {result.guesses:,} guesses were right.",
        found=f"It shows ε ≥ {result.shown:.3f} at 95%, of {reach:.3f} that can be reached with as"
        f" many guesses: the attack {'has' if strong else 'lacks'} power"
        + ("." if strong else ", and silence of the model would prove nothing."),
        claimed=epsilon,
        bound=result.bound,
        shown=result.shown,
        confidence=1 - GATE,
        details={"reach": reach, "correct": result.correct, "guesses": result.guesses},
        power=(
            Power(
                "excess of ε in what is remembered",
                detectable_epsilon(epsilon, result.guesses, GATE) - epsilon,
            ),
        ),
    )


def _origin(canaries: Canaries) -> str:
    return "planted" if canaries.planted else "found"


def _manifest_bytes(release: Path) -> bytes:
    from labelveil.audit.certificate.run import read_evidence

    return read_evidence(release).data if (release / MANIFEST_FILE).is_file() else _absent(release)


def _absent(release: Path) -> bytes:
    from common.errors import ReleaseError

    raise ReleaseError(f"{release / MANIFEST_FILE} is missing; name a run's folder, or --release")


def _no_model(files: RunFiles) -> Check:
    return Check(
        "label inference from the model",
        Verdict.NOT_CHECKABLE,
        "The trained model gives away no more than the message.",
        f"Looked for {files.predictions} and {files.secret}.",
        "There are no predictions to attack; name a folder of `labelveil simulate`.",
    )


def _no_canaries() -> Check:
    return Check(
        "label inference from the model",
        Verdict.NOT_CHECKABLE,
        "The trained model gives away no more than the message.",
        "Looked for planted canaries, and for true labels among which canaries can be found.",
        "There are neither; plant canaries with --canaries, or run on a simulation.",
    )
