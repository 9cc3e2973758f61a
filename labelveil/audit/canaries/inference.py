"""`inference`: label inference from the message and from the model that was trained on it.

What a code reveals about its event's labels, at most and on average: for a prior π over labels and
a channel K,

    Adv₊ = Σ_z max_y π_y K[y, z] - max_y π_y,      Adv× = Σ_z max_y π_y K[y, z] / max_y π_y,

the gain of the best guess by seeing the output, as a difference and as a ratio. Under ε-DP Adv₊ is
at most tanh(ε/4) for every prior (attained by randomized response over 1 + e^(ε/2) equally likely
labels) and tanh(ε/2)/2 for two equally likely ones, Adv× at most e^ε, and no log-odds move by more
than ε.

The labels of an event are guessed together. Where they have histograms of their own, they are
independent under the prior, and so are their codes: both sums are products over these *parts*, and
the log-odds of "all are as said" against "none is" move by the sum of what the parts move.

Source: Busa-Fekete, Dick, Gentile, Medina, Smith, Swanberg, *Auditing Privacy Mechanisms via Label
Inference Attacks*, NeurIPS 2024; Braun, Chatzikokolakis, Palamidessi, *Quantitative Notions of
Leakage for One-try Attacks*, MFPS 2009, for the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from labelveil.audit.canaries.model import (
    MODEL,
    Attacked,
    Run,
    SecretBits,
    attack_predictions,
    choose_canaries,
    worst_pair,
)
from labelveil.audit.certificate.evidence import (
    claimed_epsilon,
    facts,
    label_epsilon,
    read_evidence,
)
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
    verdict_of,
)
from labelveil.common.arrays import Floats
from labelveil.common.csv_files import read_table
from labelveil.common.errors import DataError, ReleaseError, not_none
from labelveil.common.randomizers.cells import Group, row_products
from labelveil.common.randomizers.message.codebooks import Codebook
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import Manifest, manifest_digest
from labelveil.common.release.rows import keys_column
from labelveil.common.release.table import read_release

_SLACK = 1e-9
_DOTS = 1500
_BINS = 2000  # half of the steps in which changes of log-odds are counted
_INFINITE = 100.0  # log-odds are counted up to here


@dataclass(frozen=True, eq=False)
class LabelsCounted:
    """Labels that one histogram counts: (k, d) probabilities of outputs in each of their cells, and
    (k,) of the cells."""

    channel: Floats
    prior: Floats

    @cached_property
    def ratio(self) -> float:
        """Largest log-ratio of two labels' probabilities of one output."""
        with np.errstate(divide="ignore"):
            return float(np.log(self.channel.max(axis=0) / self.channel.min(axis=0)).max())


def counted_labels(
    codebook: Codebook, priors: Sequence[tuple[Group, Floats]]
) -> list[LabelsCounted]:
    """What codes say of labels that a histogram counts together, for each of the histograms.

    ``priors`` are each histogram's labels and the (k,) probabilities of their cells; every channel
    is of labels that one of them counts.
    """
    parts = []
    for counted, prior in priors:
        indices = np.zeros((len(counted.cells), len(codebook.names)), dtype=np.int64)
        indices[:, counted.labels] = counted.cells.indices(np.arange(len(counted.cells)))
        law = np.ones((len(counted.cells), 1))
        for group, channel in zip(codebook.groups, codebook.channels, strict=True):
            if set(group.labels) <= set(counted.labels):
                law = row_products(law, channel.probabilities[group.number(indices)])
        parts.append(LabelsCounted(law, prior))
    return parts


@dataclass(frozen=True)
class Leakage:
    """What one output gives away under one prior."""

    additive: float  # Adv₊
    multiplicative: float  # Adv×
    largest: float  # change of log-odds
    percentile: float  # 98th, of changes over labels and outputs as they occur


def leakage(parts: Sequence[LabelsCounted]) -> Leakage:
    """Compute the advantages of seeing one message, and how far it moves log-odds."""
    best = known = 1.0
    falls = rises = 0.0
    ratios = [min(part.ratio, _INFINITE) for part in parts]
    step = max(sum(ratios), _SLACK) / _BINS
    law = np.ones(1)  # of the whole change: that of a sum of independent ones
    for part, ratio in zip(parts, ratios, strict=True):
        seen = part.prior > 0
        joint = part.prior[seen, None] * part.channel[seen]
        best *= float(joint.max(axis=0).sum())
        known *= float(part.prior.max())
        change = log_odds_change(part.channel[seen], part.prior[seen])
        falls, rises = falls - float(change.min()), rises + float(change.max())
        reach = math.ceil(ratio / step)
        bins = np.rint(np.clip(change / step, -reach, reach)).astype(np.int64) + reach
        law = np.convolve(law, np.bincount(bins.ravel(), joint.ravel(), 2 * reach + 1))
    size = np.abs(np.arange(law.size) - law.size // 2)
    up_to = np.cumsum(np.bincount(size, law))
    largest = max(falls, rises)
    percentile = step * int(np.searchsorted(up_to, 0.98 * up_to[-1]))
    return Leakage(best - known, best / known, largest, min(percentile, largest))


def log_odds_change(channel: Floats, prior: Floats) -> Floats:
    """(k, d) posterior minus prior log-odds of each label after each output.

    It is ln K[y, z] - ln P[z | not y]: a ratio of the channel alone and of a mixture of its rows,
    so it never passes the channel's own ε.
    """
    # the other labels' mixture is summed, not subtracted from the whole: nothing cancels
    weights = np.broadcast_to(prior, (prior.size, prior.size)).copy()
    np.fill_diagonal(weights, 0.0)
    rest = weights.sum(axis=1, keepdims=True)
    others = weights @ channel / np.where(rest > 0, rest, 1.0)
    certain = rest[:, 0] == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.log(channel) - np.log(others)
    change[certain] = 0.0
    return np.asarray(change)


@dataclass(frozen=True, eq=False)
class EventMessage:
    """What is sent of one event, what was released of its labels' distribution, and the claim."""

    codebook: Codebook
    priors: Sequence[tuple[Group, Floats]]
    epsilon: float

    @cached_property
    def counted(self) -> list[LabelsCounted]:
        return counted_labels(self.codebook, self.priors)

    @cached_property
    def released(self) -> Leakage:
        """Under the released prior."""
        return leakage(self.counted)

    @cached_property
    def uniform(self) -> Leakage:
        """Under a uniform one."""
        sizes = (part.prior.size for part in self.counted)
        flat = (np.full(size, 1 / size) for size in sizes)
        return leakage([replace(p, prior=q) for p, q in zip(self.counted, flat, strict=True)])


MESSAGE = Probes[EventMessage]()
"""The advantages under the released prior and under the priors that help an attacker most."""


@MESSAGE.add(
    "additive advantage",
    "How much better does one message make the best guess of an event's labels?",
)
def additive_check(message: EventMessage) -> Check:
    codebook, epsilon = message.codebook, message.epsilon
    released, uniform = message.released.additive, message.uniform.additive
    pair = worst_pair(codebook)
    low, high = codebook.likelihood_of(pair)
    apart = float(np.abs(high - low).sum()) / 4
    cap, two = math.tanh(epsilon / 4), math.tanh(epsilon / 2) / 2  # the module says of what
    values = codebook.cells.values(pair)
    ends = " and ".join(" with ".join(f"{value:g}" for value in event) for event in values)
    return Check(
        verdict_of(max(released, uniform) <= cap + _SLACK and apart <= two + _SLACK),
        "The gain was computed exactly under the released prior, a uniform prior, and for two that"
        f" are distinguished best, {ends}.",
        f"{released:.4f}, {uniform:.4f} and {apart:.4f}.",
        claim="Seeing an event's output helps the best guess of its labels by at most"
        f" tanh(ε/4) = {cap:.4f}, whatever is known before, and by tanh(ε/2)/2 = {two:.4f} where"
        f" two"
        " are equally likely and no other.",
        details={"prior": released, "uniform": uniform, "pair": apart},
    )


@MESSAGE.add(
    "multiplicative advantage", "How many times as good does one message make the best guess?"
)
def multiplicative_check(message: EventMessage) -> Check:
    most = math.exp(message.epsilon)
    released, uniform = message.released.multiplicative, message.uniform.multiplicative
    return Check(
        verdict_of(max(released, uniform) <= most + _SLACK),
        "The ratio was computed exactly under the released prior and a uniform one.",
        f"{released:.4f} and {uniform:.4f}.",
        claim=f"The best guess becomes at most e^ε = {most:.3f} times as good.",
        details={"prior": released, "uniform": uniform},
    )


@MESSAGE.add(
    "change of beliefs", "How far can one message move what is believed of an event's labels?"
)
def beliefs_check(message: EventMessage) -> Check:
    released, epsilon = message.released, message.epsilon
    ratio = sum(part.ratio for part in message.counted)
    largest = max(released.largest, ratio)
    return Check(
        verdict_of(largest <= epsilon + _SLACK),
        "Prior and posterior log-odds were compared after every output, under the released prior"
        " and where only two events are possible, for all pairs.",
        f"The largest changes are {released.largest:.4f} and {ratio:.4f}; under the released prior"
        f" 98% of what happens changes them by at most {released.percentile:.4f}.",
        claim=f"No log-odds of an event's labels move by more than ε = {epsilon:.4g}.",
        claimed=epsilon,
        bound=largest,
        shown=largest,
        details={"percentile_98": released.percentile, "pairs": ratio},
    )


def beliefs_plot(message: EventMessage) -> dict[str, Any]:
    """Prior and posterior probabilities for the report, at most some hundreds of dots."""
    before, after = [], []
    for part in message.counted:
        joint = part.prior[:, None] * part.channel
        posterior = (joint / joint.sum(axis=0))[part.prior > 0]
        before.append(np.broadcast_to(part.prior[part.prior > 0, None], posterior.shape).ravel())
        after.append(posterior.ravel())
    prior, posterior = np.concatenate(before), np.concatenate(after)
    step = max(prior.size // _DOTS, 1)
    return {
        "prior": prior[::step].tolist(),
        "posterior": posterior[::step].tolist(),
        "epsilon": message.epsilon,
    }


_PACE_EVENTS = 4000


def audit_inference(files: RunFiles, progress: Progress = silent) -> Audit:
    """Attack a release and, if predictions are at hand, the model trained on it."""
    data = _manifest_bytes(files.release)
    manifest = Manifest.from_bytes(data)
    epsilon = label_epsilon(manifest)
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
    message = EventMessage(codebook, priors, epsilon)
    MESSAGE.audit(audit, message)
    audit.plots["beliefs"] = beliefs_plot(message)
    progress("read the run")
    run = read_run(files, *books.starts[stratum : stratum + 2])
    canaries = None if run is None else choose_canaries(run, codebook)
    total = audit.claimed if audit.claimed is not None else epsilon
    attacked = Attacked(files, run, canaries, total, epsilon)
    MODEL.audit(audit, attacked)
    if attacked.possible:
        audit.plots["attack"] = attacked.curves
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


def _manifest_bytes(release: Path) -> bytes:
    if not (release / MANIFEST_FILE).is_file():
        raise ReleaseError(
            f"{release / MANIFEST_FILE} is missing; name a run's folder, or --release"
        )
    return read_evidence(release).data


SUMS = Probes[Manifest]()


@SUMS.add("label inference from sums", "Can labels be guessed from the sums?")
def sums_check(manifest: Manifest) -> Check:
    sums, epsilon = not_none(manifest.sums), label_epsilon(manifest)
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
