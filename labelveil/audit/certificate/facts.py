"""What a manifest says about itself: for a report's table and pictures, and in numbers."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from labelveil.audit.attacks.exact_channel import WORDS
from labelveil.common.errors import PrivacyError, ReleaseError, not_none
from labelveil.common.exact.channel import BETWEEN
from labelveil.common.exact.rational import parse_rational
from labelveil.common.guarantees import PureDP
from labelveil.common.release.claims import PureClaim
from labelveil.common.release.manifest import Manifest
from labelveil.common.release.sections import DriftSection, StatedRandomizer, SumsSection

CONTENT = (
    *("population.rows", "content.code_bytes", "content.key_bytes"),
    *("content.rows", "content.block_rows", "content.blocks", "content.digest"),
)
"""Fields that describe the rows."""


def claimed_epsilon(manifest: Manifest) -> float | None:
    """ε of the whole release as claimed, if that is a number."""
    try:
        total = manifest.total_guarantee
    except PrivacyError:
        return None
    return total.epsilon if isinstance(total, PureDP) else None


def facts(manifest: Manifest, digest: str) -> dict[str, str]:
    """What the manifest says about itself, for the report's table."""
    return {
        "data set": manifest.data_set,
        "epoch": manifest.epoch,
        "identity (SHA-256 of the manifest)": digest,
        "software": manifest.software,
        "events": f"{manifest.population.rows:,}",
        "label": "; ".join(
            f"{label.name}, {len(label.grid)} grid points from {label.grid[0]:g} to"
            f" {label.grid[-1]:g}"
            for label in manifest.labels
        ),
        **_sent_facts(manifest),
        "a missing label counts as": "; ".join(f"{label.missing!r}" for label in manifest.labels),
        "ε requested": f"{manifest.privacy.requested_epsilon:g}",
        "protects": f"one {manifest.privacy.total['unit']}, at most"
        f" {manifest.privacy.records_per_unit} labels",
    }


def _sent_facts(manifest: Manifest) -> dict[str, str]:
    if manifest.sums is not None:
        return _sums_facts(manifest, manifest.sums)
    return {
        "randomizer": "; ".join(
            f"{stated.name}, {len(stated.channel.get('outputs', []))} outputs"
            + of_labels(manifest, stated.labels)
            for stated in manifest.randomizers
        ),
        "options": options_in_words(manifest),
        **_prior_facts(manifest),
        "ε for the labels": shown([stated.guarantee for stated in worst_stratum(manifest)]),
    }


def _prior_facts(manifest: Manifest) -> dict[str, str]:
    named: dict[str, str] = {}
    if manifest.strata:
        named["strata"] = f"{len(manifest.strata)}, each with channels of its own: " + ", ".join(
            stratum.name for stratum in manifest.strata
        )
    match manifest.prior_source:
        case "public":
            cost = "0: a public prior takes its place"
        case "question":
            cost = "0: what was asked says what is expected of each stratum"
        case "codes":
            cost = "0: decoded from the codes"
        case "earlier":
            origin = not_none(manifest.drift).in_force
            cost = f"0: that of epoch {origin.epoch}, {origin.manifest}"
        case _:
            counted = (*manifest.priors, *manifest.tables)
            cost = shown([prior.guarantee for prior in counted])
    return {**named, "ε for the histogram": cost, **_drift_facts(manifest.drift)}


def _drift_facts(drift: DriftSection | None) -> dict[str, str]:
    if drift is None:
        return {}
    if drift.test is None:
        return {"test for drift": "none: the session's hits are spent"}
    charged = "" if drift.test.session is None else ", charged to a session over all epochs"
    return {
        "ε of the test for drift": shown([drift.test.guarantee]) + charged,
        "tested against": f"{drift.in_force.epoch}, {drift.in_force.manifest}",
    }


def _sums_facts(manifest: Manifest, sums: SumsSection) -> dict[str, str]:
    squares = sum(stated.groups for stated in sums.widths if stated.squares)
    return {
        "sums": f"{sums.groups:,} groups"
        + (f", {squares:,} of them of squares" if squares else "")
        + f"; {len(sums.offsets)} offsets, weights of at most {max(sums.largest_weight, 1):,}",
        "the question tells of an event": f"at most {manifest.question_bits:.3g} bits",
        "ε for the sums": f"{float(parse_rational(sums.guarantee['epsilon'])):.6g}",
    }


def plots(manifest: Manifest) -> dict[str, Any]:
    """Data for the report: the range of every output's probability over all labels."""
    if len(manifest.randomizers) != 1:
        return {}
    (randomizer,) = manifest.randomizers
    try:
        rows = weights_of(randomizer)
    except ReleaseError:
        return {}
    columns = list(zip(*rows, strict=True))
    return {
        "output_ranges": {
            "outputs": randomizer.channel["outputs"],
            "least": [min(column) / WORDS for column in columns],
            "most": [max(column) / WORDS for column in columns],
            "epsilon": float(epsilon_of(randomizer.guarantee)) / manifest.privacy.records_per_unit,
        }
    }


def weights_of(randomizer: StatedRandomizer) -> list[list[int]]:
    """The distinct rows of integer weights that some label uses, as the manifest writes them:
    base64 of little-endian words, of which a single one stands for 2**64.

    Those of labels between two such are not looked at: their weights lie between these two's.
    """
    rows = []
    try:
        channel = randomizer.channel
        for used in sorted(set(channel["row_of"]) - {BETWEEN}):
            data = b64decode(channel["rows"][used], validate=True)
            words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
            rows.append(words if len(words) > 1 else [word or WORDS for word in words])
    except (IndexError, ValueError) as error:
        raise ReleaseError(f"the manifest's channel cannot be read: {error!r}") from error
    if {len(row) for row in rows} != {len(channel["outputs"])}:
        raise ReleaseError("the manifest's channel has rows of another length than its outputs")
    return rows


def options_in_words(manifest: Manifest) -> str:
    """What the randomizers were asked for, once where several were asked for the same."""
    return "; ".join(dict.fromkeys(stated.shown_options for stated in manifest.randomizers))


def worst_stratum(manifest: Manifest) -> list[StatedRandomizer]:
    """The randomizers of the stratum that they claim to spend most in."""
    return max(
        manifest.by_stratum, key=lambda stratum: sum(epsilon_of(each.guarantee) for each in stratum)
    )


def epsilon_of(guarantee: PureClaim) -> Fraction:
    return parse_rational(guarantee["epsilon"])


def shown(guarantees: Sequence[PureClaim]) -> str:
    return " + ".join(f"{float(epsilon_of(guarantee)):.6g}" for guarantee in guarantees)


def of_labels(manifest: Manifest, names: Sequence[str]) -> str:
    """Say whose something is, where there are several labels."""
    return f" of {', '.join(names)}" if len(manifest.labels) > 1 else ""
