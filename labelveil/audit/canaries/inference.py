"""`inference`: label inference from the message and from the model that was trained on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from labelveil.audit.canaries.message import MESSAGE, Message, beliefs_plot
from labelveil.audit.canaries.model import (
    MODEL,
    Attacked,
    Run,
    SecretBits,
    attack_predictions,
    choose_canaries,
)
from labelveil.audit.certificate.evidence import read_evidence
from labelveil.audit.certificate.facts import claimed_epsilon, facts
from labelveil.audit.power import guess_probability
from labelveil.audit.settings import RunFiles
from labelveil.audit.verdict import (
    Audit,
    Check,
    Probes,
    Progress,
    Verdict,
    cpu_seconds,
    silent,
)
from labelveil.common.arrays import Floats
from labelveil.common.csv_files import read_table
from labelveil.common.errors import DataError, ReleaseError, not_none
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.common.release.rows import keys_column
from labelveil.common.release.table import read_release

_PACE_EVENTS = 4000


def audit_inference(files: RunFiles, progress: Progress = silent) -> Audit:
    """Attack a release and, if predictions are at hand, the model trained on it."""
    data = _manifest_bytes(files.release)
    manifest = Manifest.from_bytes(data)
    epsilon = _epsilon(manifest)
    subject = f"release {manifest.data_set} · {manifest.epoch}"
    audit = Audit("inference", subject, claimed_epsilon(manifest), progress=progress)
    audit.facts = facts(manifest, manifest_digest(data))
    if manifest.sums is not None:
        SUMS.audit(audit, manifest)
        return audit
    # of strata the largest: what its codes say of a label, and what was made of them
    stratum = int(np.argmax([each.rows for each in manifest.strata])) if manifest.strata else 0
    if manifest.strata:
        audit.facts["attacked"] = f"events of {manifest.strata[stratum].name}, the largest stratum"
    books, released = manifest.codebooks, manifest.message.released
    codebook = books.books[stratum]
    priors = [*(released.laws_of_strata or [released.laws])[stratum].items()]
    message = Message(codebook, priors, epsilon)
    MESSAGE.audit(audit, message)
    audit.plots["beliefs"] = beliefs_plot(message)
    progress("read the run")
    run = read_run(files, *books.starts[stratum : stratum + 2])
    canaries = None if run is None else choose_canaries(run, codebook)
    total = audit.claimed if audit.claimed is not None else epsilon
    curves = dict[str, Any](ceiling=guess_probability(total))
    attacked = Attacked(files, run, canaries, total, epsilon, curves)
    MODEL.audit(audit, attacked)
    if attacked.possible:
        audit.plots["attack"] = curves
    return audit


def inference_cost(files: RunFiles) -> float:
    """CPU seconds that an audit will take, from the attack on a few made-up events.

    The attack is most of it; what does not grow with the events takes about two seconds.
    """
    if not files.predictions.is_file():
        return 2.0
    rows = np.arange(_PACE_EVENTS)
    made_up = SecretBits(rows, rows % 2, np.full((2, 2), 0.5), planted=True)
    values = np.asarray(rows % 2, dtype=np.float64)
    features = np.asarray(np.sin(np.outer(rows, np.arange(1.0, 9.0))), dtype=np.float64)
    pace = cpu_seconds(lambda: attack_predictions({"": values}, features, made_up)) / _PACE_EVENTS
    labels = len(Manifest.from_bytes(_manifest_bytes(files.release)).labels)
    return 2.0 + 1.5 * pace * labels * read_table(files.predictions).height


def _epsilon(manifest: Manifest) -> float:
    """Of one event's labels."""
    return manifest.labels_guarantee.epsilon / manifest.privacy.records_per_unit


def _manifest_bytes(release: Path) -> bytes:
    if not (release / MANIFEST_FILE).is_file():
        raise ReleaseError(
            f"{release / MANIFEST_FILE} is missing; name a run's folder, or --release"
        )
    return read_evidence(release).data


SUMS = Probes[Manifest]()


@SUMS.add("label inference from sums", "Can labels be guessed from the sums?")
def sums_check(manifest: Manifest) -> Check:
    sums, epsilon = not_none(manifest.sums), _epsilon(manifest)
    return Check(
        Verdict.NOT_CHECKABLE,
        f"The release has {sums.groups:,} sums over groups, and no code of an event.",
        "This audit guesses labels from codes, and cannot see what sums, or a model of them, tell"
        " of one: the certificate proves the bound, and planted canaries test it.",
        claim="From all sums an event's label is told from another with probability at most"
        f" {guess_probability(epsilon):.4f}.",
    )


STEPS = 1 + len(MESSAGE) + len(MODEL)  # how many are named on the way

_MAX_LEVELS = 20


def read_run(files: RunFiles, start: int, stop: int) -> Run | None:
    """Join everything by key, of events whose codes are ``start`` … ``stop``, counted from the one.

    None where there are no predictions to attack. ``LabelveilError`` if a file that is there cannot
    be used.
    """
    if not (files.predictions.is_file() and files.secret.is_file()):
        return None
    release = read_release(files.release)
    predictions = read_table(files.predictions)
    names = release.manifest.names
    several = len(names) > 1
    columns = names if several else ["prediction"]
    _need(predictions, columns, files.predictions)
    key = predictions.columns[0]
    table = _keyed(predictions, key, files.secret).join(
        release.labels.select("key", "code"), on="key", how="inner", maintain_order="left"
    )
    if not table.height:
        raise DataError(f"{files.predictions} shares no event with the release; check the secret")
    table = table.filter(pl.col("code").is_between(start, stop, closed="left"))

    def beside(path: Path, key: str, needed: Sequence[str] = ()) -> pl.DataFrame:
        """Another file's columns, in the order of the table."""
        other = _keyed(read_table(path), key, files.secret)
        _need(other, needed, path)
        joined = table.select("key").join(other, on="key", how="left", maintain_order="left")
        return joined.drop("key")

    labels, planted, features = np.full((table.height, len(names)), np.nan), None, None
    if files.truth.is_file():
        known = names if several else ["label"]
        labels = _numbers(beside(files.truth, "key", known)[known])
    if files.canaries is not None:
        bits = _numbers(beside(files.canaries, "key", ["secret"]).select("secret"))[:, 0]
        # an event without a bit is no canary
        planted = np.where((bits == 0) | (bits == 1), bits, -1).astype(np.int64)
    if table.height and files.features.is_file():
        features = numeric_features(beside(files.features, key))
    held_out = (
        table["held_out"].to_numpy() if "held_out" in table.columns else np.zeros(table.height)
    )
    return Run(
        table["code"].to_numpy().astype(np.int64) - start,
        labels,
        {name: table[name].to_numpy().astype(np.float64) for name in columns},
        ~held_out.astype(np.bool_),
        features,
        planted,
    )


def numeric_features(table: pl.DataFrame) -> Floats:
    """(n, r) numbers of mean 0 and variance 1: categories become indicators of their commonest
    levels, missing values the mean."""
    columns = []
    for named in table.get_columns():
        series = named.alias("")
        if series.dtype.is_numeric() or series.dtype == pl.Boolean:
            values = series.cast(pl.Float64).fill_nan(None)
            mean = values.mean()
            filled = values.fill_null(mean if isinstance(mean, float) else 0.0)
            columns.append(filled.to_numpy())
        else:
            text = series.cast(pl.String)
            known = text.drop_nulls().value_counts(sort=True)
            common = known.head(_MAX_LEVELS)[series.name].to_list()
            columns += [(text == level).fill_null(False).to_numpy() * 1.0 for level in common]
    matrix = np.stack(columns, axis=1)
    spread = matrix.std(axis=0)
    return np.asarray((matrix - matrix.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _need(table: pl.DataFrame, columns: Sequence[str], path: Path) -> None:
    for name in columns:
        if name not in table.columns:
            raise DataError(f"{path} has no column {name!r}")


def _keyed(table: pl.DataFrame, key: str, secret: Path) -> pl.DataFrame:
    if key not in table.columns:
        raise DataError(f"a table has no key column {key!r}; its columns are {table.columns[:8]}")
    hashed = keys_column(hash_keys(table[key], read_secret(secret)))
    return table.drop(cs.by_name(key)).with_columns(key=hashed)


def _numbers(table: pl.DataFrame) -> Floats:
    """(n, m) a column each, NaN for what is missing."""
    return table.cast(pl.Float64).fill_null(float("nan")).to_numpy()
