"""Canaries that came back: rows beside each other, the stated laws, and another release."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.audit.attacks.laws import same_noise_tails
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.attacks.rows_apart import (
    GROUPS,
    Association,
    Rows,
    agreement,
    influence,
    worst,
)
from labelveil.audit.canaries.planting import ANOTHER_RELEASE, Planted
from labelveil.audit.certificate.run import Evidence
from labelveil.audit.power import bernstein_threshold, least_share
from labelveil.audit.probes import Probes
from labelveil.audit.verdict import GATE, Check, Power, Verdict
from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import ReleaseError
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.rows import keys_column

BLOCKS = 16  # of the events in the order of either side, looked at by themselves


@dataclass(frozen=True, eq=False)
class Returned:
    """Canaries that came back, in the order of the release's rows."""

    planted: Planted
    manifest: Manifest
    labels: Floats
    """(k, m) labels of each secret as the rules make them, in the manifest's order: several rows by
    the planned rule, what the release counts missing ones as, and, where there are users, the same
    for events above their limit."""
    secrets: Integers
    codes: Integers  # (m,) of the canaries that came back
    places: Integers  # (m,) of each among those that were planted
    missing: int  # canaries that did not
    others: int  # events that are no canaries
    epsilon: float  # the claim for one label
    before: tuple[Returned, ...] = ()  # the same canaries in other releases

    @cached_property
    def rows(self) -> Rows:
        """Their codes beside the stated laws."""
        return Rows.by_laws(self.codes, self.secrets, self.laws)

    @cached_property
    def laws(self) -> Floats:
        """(k, d) stated probabilities of each secret's codes."""
        return self.manifest.codebook.laws(self.labels)

    @cached_property
    def orders(self) -> dict[str, Integers]:
        """The rows in every order that a party may know."""
        keys = self.planted.keys.to_numpy()[self.places].astype(str)
        ends = np.array([key[::-1] for key in keys])
        return {
            "of the release": np.arange(self.codes.size),
            "of the population": np.argsort(self.places, kind="stable"),
            "of the keys": np.argsort(keys, kind="stable"),
            "of the keys' ends": np.argsort(ends, kind="stable"),
        }

    @cached_property
    def groups(self) -> dict[str, Integers]:
        """(m,) which part of the events each row is in, by all that is known of them."""
        return {
            f"block in the order {name}": BLOCKS * np.argsort(order) // order.size
            for name, order in self.orders.items()
        }

    @cached_property
    def words(self) -> tuple[Floats, Floats]:
        """(m,) the middle of the words that each code stands for, less 1/2, and its variance."""
        middles = self.laws.cumsum(axis=1) - self.laws / 2 - 0.5
        spread = (self.laws * middles**2).sum(axis=1)
        return middles[self.secrets, self.codes], spread[self.secrets]


def match(planted: Planted, evidence: Evidence, secret: Path) -> Returned:
    """Find the canaries among a release's rows; a submitted population has them in its order."""
    manifest, rows = evidence.manifest, evidence.labels
    hashed = hash_keys(planted.keys, read_secret(secret))
    canaries = pl.DataFrame({"key": keys_column(hashed), "secret": planted.secrets})
    canaries = canaries.with_row_index("place")
    if manifest.content.key_bytes:
        joined = rows.select("key", "code").join(
            canaries, on="key", how="inner", maintain_order="left"
        )
    else:
        whole = hashlib.sha256(hashed).hexdigest() == manifest.population.digest
        joined = canaries.with_columns(rows["code"]) if whole else canaries.clear()
    if not joined.height:
        raise ReleaseError(
            "no canary is in the release; check --secret, and that this data set got the canaries"
        )
    columns = [name for name, *_ in planted.planting.columns]
    named = [label.name for label in manifest.labels]
    if sorted(columns) != sorted(named):
        raise ReleaseError(
            f"labels {', '.join(columns)} were planted, and the release has {', '.join(named)}"
        )
    labels = planted.labels[:, [columns.index(name) for name in named]]
    missing = np.array([label.missing for label in manifest.labels])
    if planted.planting.duplicates == "missing":
        labels[-2] = missing
    labels[-1] = missing
    places, secrets = (joined[name].to_numpy().astype(np.int64) for name in ("place", "secret"))
    if limit := planted.planting.users:  # the first of each user, in the order of the rows
        order = np.argsort(users := planted.users[places], kind="stable")
        first = np.searchsorted(users[order], users[order])
        secrets[order[np.arange(order.size) - first >= limit]] = len(labels)
        labels = np.vstack([labels, missing])
    return Returned(
        planted,
        manifest,
        labels,
        secrets,
        joined["code"].to_numpy().astype(np.int64),
        places,
        planted.secrets.size - joined.height,
        rows.height - joined.height,
        manifest.labels_guarantee.epsilon / manifest.privacy.records_per_unit,
    )


CODES = Probes[Returned]()
"""What codes of canaries say, in the order in which it is looked at."""


@CODES.add(
    "groups of keys",
    "Are some events' labels randomized less, by their keys or places?",
    "Every event's label is randomized by the stated channel.",
    not_looked_at="Other groups of keys, of which there are as many as one likes.",
)
def groups_check(returned: Returned) -> Check:
    rows, most, associations = returned.rows, returned.rows.laws.max(axis=1), []
    surprise = (rows.laws.argmax(axis=1)[rows.kinds] == rows.cells) - most[rows.kinds]
    scores = [*map(rows.centred, np.eye(rows.laws.shape[1])), surprise]
    variances = [law * (1 - law) for law in (*rows.laws.T, most)]
    level = GATE / (2 * len(returned.groups) * BLOCKS * len(scores))
    for name, part in returned.groups.items():
        for score, variance in zip(scores, variances, strict=True):
            sums = np.abs(np.bincount(part, score, BLOCKS))
            each = np.bincount(part, variance[rows.kinds], BLOCKS).astype(np.float64)
            thresholds = bernstein_threshold(each, 1.0, level)
            at = int((sums / thresholds).argmax())
            where = f"{name}, part {at}"
            size, threshold = float(sums[at]), float(thresholds[at])
            associations.append(Association(size, threshold, where, BLOCKS, 1.0))
    certain = float((1 - most[rows.kinds]).mean()) * rows.cells.size / BLOCKS
    share = least_share(float(thresholds.mean()), float(each.mean()), certain)
    return replace(worst(*associations), least_share=share).check(
        f"share of one of {BLOCKS} parts of the events that sends its labels' likeliest codes",
        tried=f"In {len(returned.groups)} orders (of release, population, keys and their ends) each"
        f" of {BLOCKS} blocks of rows was compared with what is stated for its labels.",
    )


@CODES.add(
    "labels of other rows",
    "Does an output say anything about another row's label?",
    "A row's output depends on its own label alone.",
    not_looked_at="Dependence of an output on several other rows together.",
)
def other_rows_check(returned: Returned) -> Check:
    kinds, orders = len(returned.labels), ("of the release", "of the population")
    high = np.where(returned.labels[:, 0] >= np.median(returned.labels[:, 0]), 1.0, -1.0)
    signs = np.stack([high, np.where(draw_secrets(kinds) == 1, 1.0, -1.0)])
    groups, gaps = draw_secrets(kinds, GROUPS), [*((gap,) for gap in range(1, 9)), (1, 2)]
    sums = []
    for name in orders:
        rows = returned.rows.reordered(returned.orders[name])
        largest = influence(rows, signs, groups, gaps, GATE / len(orders))
        sums.append(replace(largest, where=f"{largest.where}, in the order {name}"))
    largest = worst(*sums)
    return largest.check(
        "share of rows that show another row's label",
        tried=f"{largest.sums:,} comparisons of an output with another canary's label, or with"
        " whether others agree, at every distance, in the orders of release and population.",
    )


@CODES.add(
    "noise of other rows",
    "Does any row repeat the noise of another?",
    "Every row has noise of its own.",
)
def noise_check(returned: Returned) -> Check:
    sums = []
    for name, order in returned.orders.items():
        largest = agreement(returned.rows.reordered(order), GATE / len(returned.orders))
        sums.append(replace(largest, where=f"{largest.where} in the order {name}"))
    largest = worst(*sums)
    return replace(largest, least_share=sums[0].least_share).check(
        "share of rows that repeat another's word at one lag",
        tried=f"Codes were compared given their labels at {largest.sums:,} lags, in the orders of"
        " release, population, keys and their ends.",
    )


@CODES.add(
    "noise of two epochs",
    "Does an event have the same noise in two releases?",
    "Every release has noise of its own.",
)
def epochs_check(returned: Returned) -> Check:
    """The same events' noise in other releases: the words that codes stand for, as far as is known.

    A code z of a label y comes of a word between P(Z < z) and P(Z <= z), if words are turned into
    codes in their order: the middle of that, less 1/2, has a mean of exactly 0.
    """
    if not (before := returned.before):
        return Check(Verdict.NOT_CHECKABLE, "One release was given.", ANOTHER_RELEASE)
    associations, tails = [], []
    level = GATE / (4 * len(before))
    for other in before:
        tails += same_noise_tails(returned.manifest, other.manifest)
        both = np.intersect1d(
            returned.places, other.places, assume_unique=True, return_indices=True
        )[1:]
        (words, spread), (others, _) = (
            [column[rows] for column in release.words]
            for release, rows in zip((returned, other), both, strict=True)
        )
        variance = float(spread @ others**2)
        threshold = float(bernstein_threshold(variance, 0.25, level))
        whole = words.size * math.sqrt(float((words**2).mean() * (others**2).mean()))
        share = least_share(threshold, variance, whole)
        size = abs(float(words @ others))
        where = f"epoch {other.manifest.epoch}, {words.size:,} events"
        associations.append(Association(size, threshold, where, 1, share))
    check = worst(*associations).check(
        "share of events that have the same noise again",
        tried=f"{len(before)} other releases of the same canaries were compared with this one:"
        " rows, and how many counts of histograms are the same.",
    )
    powers = [Power("cells of a histogram that are the same", cells) for _, cells in tails[:1]]
    if any(tail < GATE / (2 * len(tails)) for tail, _ in tails):
        twice = f"{check.found} A histogram has the same noise in two releases."
        check = replace(check, verdict=Verdict.FAIL, found=twice, bound=math.inf)
    return replace(check, power=(*check.power, *powers))
