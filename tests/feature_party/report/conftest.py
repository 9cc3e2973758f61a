"""A report's inputs, made from a small release with seeded noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from common.entropy import seeded_entropy
from common.randomizers.grid import Grid
from common.release.blocks import encode_codes
from common.release.manifest import Manifest
from feature_party.evaluation.breakdown import segments, tenths
from feature_party.evaluation.decoded_labels import DecodedLabels
from feature_party.evaluation.intervals import Measured
from feature_party.join.matches import MatchCounts
from feature_party.model.facts import EpochLosses
from feature_party.report import ReportInputs
from tests.common.release.releases import manifest_of
from tests.one_label import one_label

ROWS = 6000

MakeInputs = Callable[..., ReportInputs]


@cache
def _release(label: str, data_set: str) -> tuple[np.ndarray, np.ndarray, Manifest, np.ndarray]:
    """Expected labels, labels, the manifest of their release, and its codes."""
    generator = np.random.default_rng(3)
    means = np.exp(generator.normal(0.6, 0.8, ROWS))
    labels = np.minimum(generator.poisson(means), 77).astype(float)
    grid = Grid.from_step(0, 77, 1)
    entropy = seeded_entropy(5)
    counts = np.bincount(labels.astype(int), minlength=len(grid))
    both = one_label(counts, grid, 1.0, entropy, "rr-on-bins")
    codes = both.randomizer.randomize(labels, entropy)
    channel = both.randomizer.channel
    manifest = manifest_of(
        {label: grid.points},
        [([label], both.prior)],
        [([label], channel)],
        b"",
        encode_codes(codes, channel.code_bytes),
        randomizer=both.randomizer.name,
        details=both.randomizer.details,
        epsilon=1.0,
        software="labelveil/0.1.0",
        data_set=data_set,
        epoch="2026-01",
    )
    manifest.check()
    return means, labels, manifest, codes


@pytest.fixture(scope="session")
def make_inputs() -> MakeInputs:
    """Build inputs; keyword arguments replace what the page is given."""

    def make(
        *,
        simulated: bool = True,
        label: str = "visits",
        data_set: str = "clinic",
        name: str = "",
        **changes: Any,
    ) -> ReportInputs:
        means, labels, manifest, codes = _release(label, data_set)
        channel = manifest.channel
        decoded = np.linalg.lstsq(channel.probabilities, channel.inputs, rcond=None)[0]
        scored = slice(0, ROWS // 5)
        points, sent = means[scored], decoded[codes[scored]]
        exact = DecodedLabels(sent, sent, sent, *[0.0] * 5)
        figures = exact, float(labels.mean()), float(labels.var())
        truth = labels[scored] if simulated else None
        shops = np.arange(points.size) % 3
        metrics: dict[str, Any] = {
            "estimated_mse": 5.1,
            "estimated_mse_low": 4.2,
            "estimated_mse_high": 6.0,
            "estimated_constant_mse": 7.9,
            "verdict": "better",
        }
        for kind, half in (("estimated", 0.12), ("assisted", 0.08)):
            ends = {"r2": 0.35, "r2_low": 0.35 - half, "r2_high": 0.35 + half}
            metrics |= {f"{kind}_{key}": value for key, value in ends.items()}
        if simulated:
            metrics |= {"test_mse": 4.8, "test_mae": 1.2, "constant_mse": 7.7}
            metrics |= {"nonprivate_mse": 4.1}
        fields: dict[str, Any] = {
            "manifest": manifest,
            "release_id": "ab" * 32,
            "matches": MatchCounts(ROWS, ROWS - 100, ROWS - 100),
            "history": [
                EpochLosses(epoch, 2 + 1 / epoch, 2.1 + 1 / epoch + 0.004 * epoch)
                for epoch in range(1, 16)
            ],
            "metrics": metrics,
            "verdict": "better than no features: yes",
            "fitting": "estimated deviance 1.2",
            "calibration": ["labels rise by 0.97 per unit predicted"],
            "tenths": segments(tenths(points), points, *figures, truth),
            "segments": {
                "shop": segments(
                    [(f"shop {one}", np.flatnonzero(shops == one)) for one in range(3)],
                    points,
                    *figures,
                )
            },
            "columns": {"id": "the key", "age": "used", "note": "left out: all the same"},
            "importance": {"age": Measured(0.2, 0.1, 0.3), "shop": Measured(0.0, -0.1, 0.1)},
            "predictions": means[scored],
            "codes": codes[scored],
            "objective": "likelihood",
            "head": "softmax",
            "settings": {"training": {"batch_size": 512, "seed": 0, "device": "cpu"}},
        }
        if simulated:
            fields |= {"true_labels": labels[scored]}
            fields |= {"release_codes": codes, "release_true_labels": labels}
        return ReportInputs(**(fields | {"label": name} | changes))

    return make
