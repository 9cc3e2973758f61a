"""Checks of a release of sums over groups: its noise, worked out again from what was asked.

What the strict reader does is written a second time here on purpose, from the bytes: a question is
read as docs/formats.md says, and scales are rebuilt from widths, weights and ε.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from labelveil.audit.certificate.evidence import CONTENT, Evidence, of_sums
from labelveil.audit.verdict import GATE, Check, Power, Probes, Verdict, number, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.errors import ReleaseError, not_none
from labelveil.common.exact.rational import decimal_value, parse_rational
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import SumsSection, WidthSection

CHECKS = Probes[Evidence](refused=Verdict.FAIL)
check = partial(CHECKS.add, fits=of_sums)

GRAIN = Fraction(1, 1 << 12)
"""Of scales that are rounded up, because they could not be drawn otherwise."""

_FIRST_LINE = b"labelveil-groups/1\n"
_HEADER = struct.Struct("<dd5I")
NONE = (1 << 32) - 1  # the group of an event that is in none


@dataclass(frozen=True, eq=False)
class ParsedQuestion:
    """A question about n events in G groups, read from its bytes."""

    bounds: tuple[float, float]
    steps: int
    offsets: Integers  # (L,)
    widths: Integers  # (G,)
    squared: Integers  # (G,) 1 where squares are asked for, else 0
    groups: Integers  # (n,), or NONE
    levels: Integers  # (n,)
    weights: Integers  # (n,)
    largest_weight: int  # as it is said; 0 without weights

    @property
    def ways(self) -> Counter[tuple[int, int]]:
        """How many groups have a width, of sums (0) or of squares (1)."""
        return Counter(zip(self.squared.tolist(), self.widths.tolist(), strict=True))

    def scales(self, stated: SumsSection) -> Floats:
        """(G,) scales that are stated for these groups' noise; 0 where none is."""
        of = {(int(w.squares), w.half_width): float(parse_rational(w.scale)) for w in stated.widths}
        ways, at = np.unique((self.squared << 32) + self.widths, return_inverse=True)
        each = [of.get((way >> 32, way & 0xFFFFFFFF), 0.0) for way in ways.tolist()]
        return np.asarray(np.array(each)[at.reshape(-1)], dtype=np.float64)

    def sums(self, places: Integers) -> Integers:
        """(…, G) sums, in steps or steps², of (…, n) labels on the lattice."""
        grouped = np.flatnonzero(self.groups != NONE)
        group = self.groups[grouped]
        left = places[..., grouped] - self.offsets[self.levels[grouped]]
        kept = np.clip(left, -self.widths[group], self.widths[group])
        kept = np.where(self.squared[group] == 1, kept**2, kept)
        sums = np.zeros((self.widths.size, *places.shape[:-1]), dtype=np.int64)
        np.add.at(sums, group, np.moveaxis(kept * self.weights[grouped], -1, 0))
        return np.moveaxis(sums, 0, -1)

    @property
    def ranges(self) -> tuple[Integers, Integers]:
        """(G,) the least and the most that labels can add up to, in steps or steps²."""
        grouped = np.flatnonzero(self.groups != NONE)
        group = self.groups[grouped]
        width, offset = self.widths[group], self.offsets[self.levels[grouped]]
        low = -np.minimum(offset, width)
        high = np.minimum(self.steps - offset, width)
        squared = self.squared[group] == 1
        most = np.where(squared, np.maximum(low**2, high**2), high)
        ends = np.stack([np.where(squared, 0, low), most]) * self.weights[grouped]
        sums = np.zeros((2, self.widths.size), dtype=np.int64)
        np.add.at(sums[0], group, ends.min(axis=0))
        np.add.at(sums[1], group, ends.max(axis=0))
        return sums[0], sums[1]


def parsed_question(data: bytes, rows: int) -> ParsedQuestion:
    """Read a question about n events; ``ReleaseError`` if its bytes are none."""
    if not data.startswith(_FIRST_LINE):
        raise ReleaseError(f"the question does not begin with {_FIRST_LINE.decode().strip()!r}")
    body = memoryview(data)[len(_FIRST_LINE) :]
    if len(body) < _HEADER.size:
        raise ReleaseError("the question ends in its header")
    lower, upper, steps, count, levels, weight, squares = _HEADER.unpack_from(body)
    sizes = [("<u4", levels), ("<u4", count), ("<u4", rows)]
    sizes += [("u1", rows * (levels > 1)), ("<i4", rows * (weight > 0))]
    lengths = [np.dtype(form).itemsize * size for form, size in sizes]
    if len(body) != _HEADER.size + sum(lengths) or squares > count:
        raise ReleaseError(f"a question about {rows:,} events has another length than its own")
    read, at = [], _HEADER.size
    for (form, size), length in zip(sizes, lengths, strict=True):
        read.append(np.frombuffer(body, form, size, at).astype(np.int64))
        at += length
    offsets, widths, groups, level, weights = read
    named = groups[groups != NONE]
    if not rows or not levels or not count or (named >= count).any() or (level >= levels).any():
        raise ReleaseError("the question names groups or offsets that it does not have")
    return ParsedQuestion(
        bounds=(lower, upper),
        steps=steps,
        offsets=offsets,
        widths=widths,
        squared=(np.arange(count) >= count - squares).astype(np.int64),
        groups=groups,
        levels=level if levels > 1 else np.zeros(rows, np.int64),
        weights=weights if weight else np.ones(rows, np.int64),
        largest_weight=weight,
    )


def span_of(manifest: Manifest, sums: SumsSection, stated: WidthSection) -> int:
    """How far one label can move a sum of some width, in steps or steps²."""
    steps, width = len(manifest.labels[0].grid) - 1, stated.half_width
    moved = width * width if stated.squares else min(2 * width, steps)
    return moved * max(sums.largest_weight, 1)


@check(
    "exact ε of the sums",
    "What do all sums say about one label, at most and exactly?",
    decides=(
        *("sums.groups", "sums.offsets", "sums.largest_weight", "sums.widths", "sums.guarantee"),
        "privacy.records_per_unit",
    ),
)
def scales_check(evidence: Evidence) -> Check:
    """Each scale is a span over ε, or that rounded up to whole grains: no digit is left over."""
    manifest, sums = evidence.manifest, not_none(evidence.manifest.sums)
    records = manifest.privacy.records_per_unit
    requested = decimal_value(manifest.privacy.requested_epsilon) / records
    claimed = parse_rational(sums.guarantee["epsilon"])
    spent, loose = Fraction(0), 0
    for stated in sums.widths:
        scale, span = parse_rational(stated.scale), span_of(manifest, sums, stated)
        if not scale:
            return _scales(Verdict.FAIL, claimed, math.inf, "Some sums have no noise at all.")
        spent = max(spent, span / scale)
        least = span / requested
        loose += scale not in (least, math.ceil(least / GRAIN) * GRAIN)
    total = spent * records
    holds = total == claimed and spent <= requested and not loose
    found = (
        f"The largest is {float(total):.12g}"
        + (", as claimed" if total == claimed else f", and {float(claimed):.12g} is claimed")
        + f"; {loose} of {len(sums.widths)} scales are others than widths, weights and ε give."
    )
    return _scales(verdict_of(holds), claimed, float(total), found)


def _scales(verdict: Verdict, claimed: Fraction, bound: float, found: str) -> Check:
    return Check(
        verdict,
        "How far one label moves a sum, min(2h, steps) max|w| steps, or h² max|w| steps² of"
        " squares, was divided by the stated scale, as a fraction; an event is in one group.",
        found,
        claim=f"All sums together spend at most ε = {float(claimed):.12g} on one label, and their"
        f" noise"
        " is what widths, weights and ε give.",
        claimed=float(claimed),
        bound=bound,
        shown=bound,
    )


@check(
    "lattice of the sums",
    "Could a fraction of a sum say anything about labels?",
    "Labels, offsets and widths are whole steps of one lattice, so that no sum has a fraction that"
    " noise would leave as it is.",
    decides=("label.grid",),
)
def lattice_check(evidence: Evidence) -> Check:
    manifest, sums = evidence.manifest, not_none(evidence.manifest.sums)
    grid = np.array(manifest.labels[0].grid)
    steps = grid.size - 1
    even = grid[0] + (grid[-1] - grid[0]) / max(steps, 1) * np.arange(grid.size)
    off = float(np.abs(grid - even).max() / ((grid[-1] - grid[0]) / max(steps, 1)))
    wrong = sum(not 1 <= stated.half_width <= steps for stated in sums.widths)
    wrong += sum(not 0 <= offset <= steps for offset in sums.offsets)
    return Check(
        verdict_of(off <= 1e-9 and not wrong),
        f"Distances of the {grid.size:,} points of the grid were compared, and {len(sums.offsets)}"
        f" offsets and {len(sums.widths)} widths with its {steps:,} steps; the sums themselves are"
        " whole numbers in their bytes.",
        f"Points are off by {off:.2g} steps at most; {wrong} offsets and widths do not fit.",
    )


@check(
    "sums answer the question",
    "Are these the sums that were asked for?",
    "The sums answer the question that was submitted, in which every event has one group.",
    decides=(
        *("sums.question", "sums.groups", "sums.offsets", "sums.largest_weight", "sums.widths"),
        *CONTENT,
    ),
)
def question_check(evidence: Evidence) -> Check:
    manifest, sums, data = evidence.manifest, not_none(evidence.manifest.sums), evidence.question
    if data is None:
        return Check(
            Verdict.NOT_CHECKABLE,
            "Looked for the question beside the release, and in its store.",
            f"It is not here: put the question with SHA-256 {sums.question} beside the manifest as"
            " question.bin.",
        )
    question = parsed_question(data, manifest.population.rows)
    grid = manifest.labels[0].grid
    stated = Counter({(int(w.squares), w.half_width): w.groups for w in sums.widths})
    fits = {
        "SHA-256": hashlib.sha256(data).hexdigest() == sums.question,
        "bounds": (*question.bounds, question.steps) == (grid[0], grid[-1], len(grid) - 1),
        "groups": question.widths.size == sums.groups == manifest.content.rows,
        "offsets": question.offsets.tolist() == sums.offsets,
        "weights": question.largest_weight == sums.largest_weight,
        "largest weight": int(np.abs(question.weights).max()) == max(sums.largest_weight, 1),
        "widths": question.ways == stated,
    }
    others = [name for name, same in fits.items() if not same]
    return Check(
        verdict_of(not others),
        f"Its {len(data):,} bytes were read again, and compared with what the manifest states.",
        f"Other {', '.join(others)} are stated."
        if others
        else f"All is as stated: {np.count_nonzero(question.groups != NONE):,} of"
        f" {question.groups.size:,} events are in one of {question.widths.size:,} groups each, the"
        " others in none.",
    )


@check(
    "sums are possible",
    "Could these be sums of labels, with such noise?",
    "Every sum is one that labels of its group can have, with noise of the stated scale.",
    not_looked_at="The noise of groups that have events: their labels are not known here.",
)
def possible_check(evidence: Evidence) -> Check:
    """Sums within what labels can give, but for noise; of groups whose sum is known, noise alone.

    A discrete Laplace variable of scale s is beyond t with probability at most 2 e^(-t/s).
    """
    answer, data = evidence.answer, evidence.question
    if data is None:
        remedy = "Without the question nobody knows whose sums these are."
        return Check(Verdict.NOT_CHECKABLE, "Looked for the question.", remedy)
    question = parsed_question(data, evidence.manifest.population.rows)
    scales = question.scales(not_none(evidence.manifest.sums))
    if answer.size != scales.size or not scales.min() > 0:
        raise ReleaseError("the sums are of other groups than the question's, or without noise")
    low, high = question.ranges
    beyond = np.maximum(np.maximum(low - answer, answer - high), 0)
    far = beyond > scales * math.log(4 * scales.size / GATE)
    known = low == high
    tails = {
        f"{aspect} noise of scale {scale:.4g}": tail
        for scale in np.unique(scales[known]).tolist()
        for aspect, tail in _tails((answer - low)[known & (scales == scale)], scale).items()
    }
    level = GATE / (2 * max(len(tails), 1))
    least = min(tails, key=lambda each: tails[each], default=None)
    powers = [Power("scales by which a sum is beyond its range", math.log(4 * scales.size / GATE))]
    if known.any():
        from labelveil.audit.attacks.laws import detectable_narrowness  # SciPy: as in _tails

        kinds, counts = np.unique(scales[known], return_counts=True)
        at = int(counts.argmax())
        narrow = detectable_narrowness(int(counts[at]), float(kinds[at]), level)
        powers.append(Power("share by which noise is too narrow, where a sum is known", narrow))
    return Check(
        verdict_of(not far.any() and (least is None or tails[least] >= level)),
        f"{scales.size:,} sums were compared with what their events' labels can add up to;"
        f" {np.count_nonzero(known):,} of them, as of empty groups, can have one value only, so"
        " that their noise is known.",
        f"{np.count_nonzero(far):,} are out of reach"
        + (
            f"; the least probable is {least}, at most {number(tails[least], 3)}."
            if least is not None
            else "."
        ),
        confidence=1 - GATE,
        power=tuple(powers),
    )


def _tails(noise: Integers, scale: float) -> dict[str, float]:
    """How improbable known noise is under a discrete Laplace law, by aspect, at most."""
    # its SciPy takes longer to import than all that those need who add up what epochs cost
    from labelveil.audit.attacks.laws import noise_probability, two_sided

    q = math.exp(-1 / scale)
    little, much = noise_probability(noise, scale)
    even, moved = (1 + q * q) / (1 + q) ** 2, int(np.count_nonzero(noise))
    return {
        "so little": little,
        "so much": much,
        "so often even": two_sided(int(np.count_nonzero(noise % 2 == 0)), noise.size, even),
        "so often positive": two_sided(int(np.count_nonzero(noise > 0)), moved, 0.5),
    }
