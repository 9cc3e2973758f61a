"""A report's inputs, made from a small release with seeded noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.common.entropy import seeded_entropy
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.blocks import encode_codes
from labelveil.common.release.manifest import Manifest
from labelveil.feature_party.evaluation.breakdown import segments, tenths
from labelveil.feature_party.evaluation.decoded_labels import DecodedLabels
from labelveil.feature_party.evaluation.explained import Explained
from labelveil.feature_party.evaluation.fitting import Fitting
from labelveil.feature_party.evaluation.intervals import Estimate, Measured
from labelveil.feature_party.evaluation.scores import Scores
from labelveil.feature_party.evaluation.true_labels import TrueErrors
from labelveil.feature_party.join.matches import MatchCounts
from labelveil.feature_party.learning.calibration import Slope
from labelveil.feature_party.model.encoding import ColumnShares
from labelveil.feature_party.model.facts import EpochLosses, FitSettings, ModelFacts
from labelveil.feature_party.report import ReportInputs
from labelveil.feature_party.schema import ColumnMeaning, Schema
from tests.common.release.releases import manifest_of
from tests.one_label import one_label

ROWS = 6000

MakeInputs = Callable[..., ReportInputs]

EXPLAINED = Explained(
    share=Measured(0.35, 0.27, 0.43),
    assumption_free=Measured(0.33, 0.23, 0.47),
    loss=Estimate(5.1, 4.2, 6.0),
    assumption_free_loss=Estimate(5.3, 4.0, 6.5),
    constant=7.9,
    association=9.0,
    events=None,
    epsilon=None,
)


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
    codes = both.message.codebooks.randomize(labels[:, None], None, entropy)
    channel = both.channel
    ((name, details),) = both.message.randomizers
    manifest = manifest_of(
        {label: grid.points},
        [([label], both.prior)],
        [([label], channel)],
        b"",
        encode_codes(codes, channel.code_bytes),
        randomizer=name,
        details=details,
        epsilon=1.0,
        software="labelveil/0.1.0",
        data_set=data_set,
        epoch="2026-01",
    )
    manifest.check()
    return means, labels, manifest, codes


@pytest.fixture(scope="session")
def make_inputs() -> MakeInputs:
    """Build inputs; keyword arguments replace figures of the scores."""

    def make(
        *,
        simulated: bool = True,
        label: str = "visits",
        data_set: str = "clinic",
        name: str = "",
        unit: str = "",
        matches: MatchCounts = MatchCounts(ROWS, ROWS - 100, ROWS - 100),  # noqa: B008
        facts: dict[str, Any] | None = None,
        **changes: Any,
    ) -> ReportInputs:
        means, labels, manifest, codes = _release(label, data_set)
        channel = manifest.channel
        decoded = np.linalg.lstsq(channel.probabilities, channel.inputs, rcond=None)[0]
        scored = slice(0, ROWS // 5)
        points, sent = means[scored], decoded[codes[scored]]
        exact = DecodedLabels(sent, np.zeros(sent.size), sent, sent, sent, *[0.0] * 5)
        figures = exact, float(labels.mean()), float(labels.var())
        truth = labels[scored] if simulated else None
        shops = np.arange(points.size) % 3
        events = SimpleNamespace(
            release_id="ab" * 32,
            key="id",
            matches=matches,
            training_rows=ROWS - points.size,
            problem=SimpleNamespace(
                grid=channel.inputs,
                by_release=lambda codes: [(None, np.ones(codes.size, np.bool_), codes)],
            ),
        )
        settings = FitSettings(8, 15, 512, 0.01, "adamw", 0.01, (64,), 0.0, 0.25, 5, 0)
        known = {
            "objective": "likelihood",
            "head": "softmax",
            "heads": {},
            "shrinkage": 0.0,
            "history": [
                EpochLosses(epoch, 2 + 1 / epoch, 2.1 + 1 / epoch + 0.004 * epoch)
                for epoch in range(1, 16)
            ],
            "slope": None,
            "release": events.release_id,
            "matched": matches.matched,
            "training_rows": events.training_rows,
            "holdout": 0.2,
            "seed": 0,
            "settings": settings,
            "warnings": [],
        }
        model = SimpleNamespace(
            facts=ModelFacts.model_validate(known | (facts or {})),
            encoder=SimpleNamespace(
                columns=("age",),
                schema=Schema((ColumnMeaning("age", "number"), ColumnMeaning("row", "number"))),
                shares=(ColumnShares("age", 0.1, 0.0),),
                left_out=(("row", "numbers the rows"),),
            ),
        )
        table = pl.DataFrame(schema=["id", "age", "note"])
        fields: dict[str, Any] = {
            "manifests": [manifest],
            "events": events,
            "model": model,
            "keys": pl.Series("id", np.arange(points.size)),
            "points": points,
            "codes": codes[scored],
            "unseen": SimpleNamespace(table=table, codes=codes[scored]),
            "explained": EXPLAINED,
            "clipped": None,
            "slope": Slope(0.97, 0.02),
            "tenths": segments(tenths(points), points, *figures, truth),
            "segments": {
                "shop": segments(
                    [(f"shop {one}", np.flatnonzero(shops == one)) for one in range(3)],
                    points,
                    *figures,
                )
            },
            "coverage": {},
            "importance": {"age": Measured(0.2, 0.1, 0.3), "shop": Measured(0.0, -0.1, 0.1)},
            "absolute": Estimate(1.2, 1.1, 1.3),
            "fitting": Fitting({"deviance": Measured(1.2, 1.1, 1.3)}, 1.4),
            "truth": None if truth is None else TrueErrors(truth, 4.8, 1.2, 7.7, 4.1),
            "sources": {},
            "label": "",
        }
        return ReportInputs(Scores(**(fields | changes)), name, unit)

    return make
