"""`inference`: label inference from the message and from the model that was trained on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common.csv_files import read_table
from common.errors import ReleaseError
from common.randomizers.cells import Codebook
from common.release.folder import MANIFEST_FILE
from common.release.manifest import Manifest, manifest_digest
from labelveil.audit.attacks.canaries import Canaries, find_canaries
from labelveil.audit.attacks.message_attack import beliefs_plot, message_checks, worst_pair
from labelveil.audit.attacks.model_attack import attack_control, attack_predictions
from labelveil.audit.bounds import expected_one_run_bound, guess_probability
from labelveil.audit.certificate import manifest_checks as claims
from labelveil.audit.certificate.run import read_evidence
from labelveil.audit.inference.run_folder import Run, read_run
from labelveil.audit.settings import RunFiles
from labelveil.audit.verdict import (
    GATE,
    SHOWN,
    Audit,
    Check,
    Power,
    Progress,
    Verdict,
    cpu_seconds,
    silent,
    statistical,
    verdict_of,
)

POWER = 0.9
"""Share of the ceiling's bound that the positive control must reach for the attack to count."""

_PACE_EVENTS = 4000

STEPS = 4  # how many are named on the way


def audit_inference(files: RunFiles, progress: Progress = silent) -> Audit:
    """Attack a release and, if predictions are at hand, the model trained on it."""
    data = _manifest_bytes(files.release)
    manifest = Manifest.from_bytes(data)
    epsilon = manifest.labels_guarantee.epsilon / manifest.privacy.records_per_unit
    subject = f"release {manifest.data_set} · {manifest.epoch}"
    audit = Audit("inference", subject, claims.claimed_epsilon(manifest), progress=progress)
    audit.facts = claims.facts(manifest, manifest_digest(data))
    progress("message")
    # of strata the largest: what its codes say of a label, and what was made of them
    stratum = int(np.argmax([each.rows for each in manifest.strata])) if manifest.strata else 0
    if manifest.strata:
        audit.facts["attacked"] = f"events of {manifest.strata[stratum].name}, the largest stratum"
    books, released = manifest.codebooks, manifest.released
    codebook = books.books[stratum]
    priors = [*(released.laws_of_strata or [released.laws])[stratum].items()]
    audit.add(*message_checks(codebook, priors, epsilon))
    audit.plots["beliefs"] = beliefs_plot(codebook, priors, epsilon)
    progress("read the run")
    run = read_run(files)
    if run is not None:
        run = run.within(books.starts[stratum], books.starts[stratum + 1])
    canaries = None if run is None else choose_canaries(run, codebook)
    if run is None or canaries is None:
        audit.add(_nothing_to_attack(files, run))
        return audit
    total = audit.claimed if audit.claimed is not None else epsilon
    audit.plots["attack"] = curves = dict[str, Any](ceiling=guess_probability(total))
    audit.run(lambda: _model_check(run, canaries, total, curves), "model")
    audit.run(lambda: _control_check(run, canaries, epsilon, curves), "control")
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
    canaries = find_canaries(codebook, run.labels[known], run.codes[known], laws)
    return replace(canaries, rows=known[canaries.rows])


def _model_check(run: Run, canaries: Canaries, claimed: float, curves: dict[str, Any]) -> Check:
    attack = attack_predictions(run.predictions, run.features, canaries)
    curves["model"] = attack.curve
    result, origin = attack.result, "planted" if canaries.planted else "found"
    return statistical(
        "label inference from the model",
        result,
        question="Does the trained model remember labels?",
        claim=f"From the model a canary's secret bit is guessed with probability at most"
        f" {guess_probability(claimed):.4f}.",
        tried=f"{canaries.rows.size:,} {origin} canaries that the model was trained on were guessed"
        f" from its predictions ({attack.view}): {result.correct:,} of {result.guesses:,} guesses"
        " were right.",
        claimed=claimed,
        details={"correct": result.correct, "guesses": result.guesses, "view": attack.view},
        power=(Power("excess of ε in what is predicted", result.excess(claimed)),),
    )


def _control_check(run: Run, canaries: Canaries, epsilon: float, curves: dict[str, Any]) -> Check:
    attack = attack_control(run.codes, run.features, canaries, epsilon)
    curves["control"] = attack.curve
    result = attack.result
    reach = expected_one_run_bound(epsilon, max(result.guesses, 1), SHOWN)
    strong = result.shown >= POWER * reach
    return Check(
        name="positive control",
        question="Would this attack see a model that learns labels by heart?",
        verdict=verdict_of(result.bound <= epsilon) if strong else Verdict.NOT_CHECKABLE,
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
        power=(Power("excess of ε in what is remembered", result.excess(epsilon)),),
    )


def _manifest_bytes(release: Path) -> bytes:
    if not (release / MANIFEST_FILE).is_file():
        raise ReleaseError(
            f"{release / MANIFEST_FILE} is missing; name a run's folder, or --release"
        )
    return read_evidence(release).data


def _nothing_to_attack(files: RunFiles, run: Run | None) -> Check:
    if run is None:
        tried = f"Looked for {files.predictions} and {files.secret}."
        remedy = "There are no predictions to attack; name a folder of `labelveil simulate`."
    else:
        tried = (
            "Looked for planted canaries, and for true labels among which canaries can be found."
        )
        remedy = "There are neither; plant canaries with --canaries, or run on a simulation."
    return Check(
        "label inference from the model",
        Verdict.NOT_CHECKABLE,
        "The trained model gives away no more than the message.",
        tried,
        remedy,
    )
