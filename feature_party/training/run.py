"""Train a model on a release: join, split, encode, fit, choose, mix."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from common.arrays import Floats, Integers
from common.errors import ConfigError, DataError
from common.release.folder import Release
from feature_party.config import FeaturePartyConfig
from feature_party.learning.calibration import decoding_slope
from feature_party.learning.decoding import decoder
from feature_party.learning.heads import candidate_heads
from feature_party.learning.mixing import (
    Gain,
    choose_mixture,
    decoded_gain,
    null_probability,
    prior_adjustment,
)
from feature_party.learning.objectives import Objective, PointObjective, build_objective
from feature_party.learning.support import Support
from feature_party.model.encoding import Encoded, Encoder
from feature_party.model.model import Expert, Model
from feature_party.model.network import NetworkShape
from feature_party.tables import Table
from feature_party.training.batches import MemorySource, Source
from feature_party.training.encoded_shards import (
    Shards,
    ShardSource,
    fit_encoder,
    shards_content,
    write_shards,
)
from feature_party.training.examples import MOST_HELD_OUT, Codes, Prepared, PreparedShards
from feature_party.training.fitting import EpochRecord, Fit, FitSettings, Fitter
from feature_party.training.prepare import prepare
from feature_party.training.settings import choose_device, resolve_pieces, resolve_settings
from feature_party.training.workers import ALONE, Workers

ProgressCallback = Callable[[str, EpochRecord], None]
"""Called after every epoch with what is being trained."""

CHECKPOINTS = "checkpoints"
SHARDS = "shards"

DEBIASED = ("debiased", "")


def train(
    release: Release | Path | Sequence[Release | Path] | Prepared | PreparedShards,
    features: Table | None = None,
    config: FeaturePartyConfig | None = None,
    *,
    secret: bytes | None = None,
    true_labels: Floats | None = None,
    on_epoch: ProgressCallback | None = None,
    checkpoints: Path | None = None,
    workers: Workers = ALONE,
) -> Model:
    """Train a model on privatized labels.

    Parameters
    ----------
    release, features, config, secret
        As in :func:`prepare`; or an already prepared join in place of the first two.
    true_labels
        (m,) true labels of the matched events, for the objective ``true`` alone.
    on_epoch
        Progress.
    checkpoints
        Folder in which a killed run finds its state again.
    workers
        Those who train together; each is given the same data, and returns the same model.

    Returns
    -------
    The model. Its ``facts`` say what was chosen and why, and hold warnings.
    """
    config = config or FeaturePartyConfig()
    if not isinstance(release, Prepared | PreparedShards):
        if features is None:
            raise ConfigError("features are missing; pass a table or a path")
        release = prepare(release, features, config, secret, workers=workers)
    begun = time.monotonic()
    run = _Run(release, config, true_labels, on_epoch, checkpoints, workers)
    model = run.train()
    model.facts["seconds"] = round(time.monotonic() - begun, 3)
    return model


class InMemory:
    """Encoded rows to train on, in memory.

    Parameters
    ----------
    encoder
        How they are encoded.
    rows
        What is encoded.
    codes
        Their privatized labels.
    """

    def __init__(self, encoder: Encoder, rows: pl.DataFrame, codes: Codes) -> None:
        self.encoder, self.codes = encoder, codes
        self.inputs: Encoded = encoder.encode(rows)

    def codes_of(self, rows: Integers) -> Codes:
        """(v,) privatized labels of some rows."""
        return self.codes[rows]


class _Run:
    def __init__(
        self,
        data: Prepared | PreparedShards,
        config: FeaturePartyConfig,
        true_labels: Floats | None,
        on_epoch: ProgressCallback | None,
        checkpoints: Path | None,
        workers: Workers,
    ) -> None:
        self.data = data
        self.config = config
        self.section = config.training
        self.true_labels = true_labels
        self.on_epoch = on_epoch
        self.checkpoints = checkpoints
        self.workers = workers
        self.support = Support.of(data.problem)
        self.device = choose_device(self.section.device)
        self.warnings: list[str] = []
        section = config.data
        fit = partial(
            Encoder.fit,
            numeric=section.numeric,
            categorical=section.categorical,
            ignore=[*section.ignore, section.key],
            pieces=resolve_pieces(section.pieces, self._effective_labels),
        )
        if isinstance(data, PreparedShards):
            self.rows: Shards | InMemory = self._shards(data, fit)
        else:
            table = data.joined.table
            rows = table if not data.holdout.size else table[data.training]
            self.rows = InMemory(fit(rows), rows, data.joined.codes[data.training])
        self.encoder = self.rows.encoder

    def _shards(self, data: PreparedShards, fit: Callable[[pl.DataFrame], Encoder]) -> Shards:
        """The rows to train on in shards: those of an earlier run, or written by worker 0."""
        section = self.section
        content = shards_content(
            data.joined.content,
            self.config.data.model_dump(mode="json"),
            [section.holdout, section.seed, section.shard_rows, section.objective == "true"],
        )
        directory = self.config.output.model / SHARDS
        if section.shards not in ("auto", "never"):
            directory = Path(section.shards)

        def write() -> None:
            if Shards.open(directory, content) is not None:
                return
            columns = [name for name in data.joined.columns if name not in self.config.data.ignore]
            size = None if section.shard_rows == "auto" else section.shard_rows
            rows, stream = data.training_rows, partial(data.training_events, columns)
            encoder = fit_encoder(stream, rows, fit, section.seed)
            write_shards(directory, content, stream, rows, encoder, section.seed, size)

        if self.workers.first:
            write()
        self.workers.from_first(None)  # the others wait
        found = Shards.open(directory, content)
        if found is None:
            raise DataError(
                f"worker {self.workers.rank} does not see the shards in {directory}; set [training]"
                " shards to a folder that all workers share"
            )
        return found

    def train(self) -> Model:
        plain, flexible = self._candidates()
        fits = {name: self._fit(*name) for name in (*plain, *flexible)}
        weights = {plain[0]: 1.0}
        if len(fits) > 1:
            losses = np.stack([fit.losses for fit in fits.values()])
            shares = choose_mixture(
                losses[: len(plain)], losses[len(plain) :], self._effective_labels
            )
            both = np.concatenate(shares)
            weights = {name: float(w) for name, w in zip(fits, both, strict=True) if w > 0}
        main = max(weights, key=lambda name: weights[name])
        shrinkage = self._null_probability(fits, weights) if main[0] == "likelihood" else 0.0
        automatic = self.section.objective == self.section.head == "auto"
        gain = self._debiased_gain(fits, weights, shrinkage) if automatic else None
        adjustment = self._adjustment(fits, weights) if automatic else None
        if gain is not None and gain.certain:
            main, shrinkage, adjustment = DEBIASED, 0.0, None
            weights = {main: 1.0}
        experts = [
            Expert(self._objective(*name), fits[name].network.cpu(), weight)
            for name, weight in weights.items()
        ]
        for expert in experts:
            expert.objective.to(torch.device("cpu"))
        facts = self._facts(fits, weights, main, shrinkage)
        facts["debiased_gain"] = None if gain is None else asdict(gain)
        facts["adjusted"] = adjustment is not None
        return Model(
            self.encoder, self.data.problem, self.support, experts, shrinkage, facts, adjustment
        )

    def _adjustment(
        self, fits: dict[tuple[str, str], Fit], weights: dict[tuple[str, str], float]
    ) -> Floats | None:
        """Factors towards the released prior, for a mixture of heads.

        One family of distributions alone owes most of the distance to its own shape, which factors
        do not mend: they would make its means too steep.
        """
        if len(weights) == 1:
            return None
        mixed = np.asarray(sum(w * fits[name].marginal for name, w in weights.items()))
        return prior_adjustment(mixed, self.support.prior, self._effective_labels)

    def _debiased_gain(
        self,
        fits: dict[tuple[str, str], Fit],
        weights: dict[tuple[str, str], float],
        shrinkage: float,
    ) -> Gain | None:
        """Train on decoded labels, too: right whatever the label's distribution, if noisier.

        It has no likelihood to be mixed by. Its squared error is compared with the mixture's on
        labels decoded without bias; None where the channel or the loss does not allow that.
        """
        problem = self.data.problem
        decoded = decoder(problem, problem.grid)
        if not decoded.exact or problem.loss == "absolute":
            return None
        mixed = self._mixed_predictions(fits, weights, shrinkage)
        fits[DEBIASED] = rival = self._fit(*DEBIASED)
        return decoded_gain(
            decoded.values[self.rows.codes_of(rival.rows), 0], mixed, rival.predictions
        )

    def _mixed_predictions(
        self,
        fits: dict[tuple[str, str], Fit],
        weights: dict[tuple[str, str], float],
        shrinkage: float,
    ) -> Floats:
        """(v,) out-of-fold predictions of the whole model, before any adjustment."""
        mixed = np.asarray(sum(w * fits[name].predictions for name, w in weights.items()))
        return np.asarray((1 - shrinkage) * mixed + shrinkage * self.data.problem.mean)

    def _null_probability(
        self, fits: dict[tuple[str, str], Fit], weights: dict[tuple[str, str], float]
    ) -> float:
        """How far out-of-fold likelihoods leave it open that the mixture has learned nothing."""
        codes = self.rows.codes_of(next(iter(fits.values())).rows)
        mixed = np.asarray(sum(w * np.exp(-fits[name].losses) for name, w in weights.items()))
        likelihood = self.support.likelihood  # losses are relative to each code's largest
        alone = self.support.prior @ (likelihood / likelihood.max(axis=0))
        return null_probability(-np.log(mixed), -np.log(alone[codes]))

    def _candidates(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Objectives with their heads: those trusted, and those that must prove themselves."""
        objective, head = self.section.objective, self.section.head
        if objective == "auto":
            objective = "likelihood"
        if objective != "likelihood":
            return [(objective, "")], []
        if head != "auto":
            return [(objective, head)], []
        plain, flexible = candidate_heads(self.support, self._counts)
        return [(objective, name) for name in plain], [(objective, name) for name in flexible]

    @property
    def _settings(self) -> FitSettings:
        rows = self.data.training_rows
        settings = resolve_settings(self.section, rows)
        if isinstance(self.rows, InMemory):
            return settings
        share = min(settings.validation, MOST_HELD_OUT / rows)
        return replace(settings, validation=share)

    @property
    def _effective_labels(self) -> float:
        """How many true labels all labels to train on are worth."""
        true = self.section.objective == "true"
        each = 1.0 if true else self.data.problem.informativeness
        return each * self.data.training_rows

    @property
    def _counts(self) -> bool:
        grid = self.data.problem.grid
        return bool(grid[0] == 0 and np.allclose(np.diff(grid), 1.0))

    def _objective(self, objective: str, head: str) -> Objective:
        return build_objective(objective, self.data.problem, self.support, head)

    def _fit(self, name: str, head: str) -> Fit:
        objective, targets = self._objective(name, head), None
        if isinstance(objective, PointObjective) and name == "true":
            if self.true_labels is None:
                raise ConfigError(
                    "objective='true' needs true labels; pass --true-labels FILE --true-label"
                    " COLUMN"
                )
            if not isinstance(self.data, Prepared):
                raise ConfigError(
                    "objective='true' trains in memory alone; set [training] shards to never"
                )
            targets = objective.value_targets(self.true_labels[self.data.training])
        settings = self._settings
        shape = NetworkShape(
            self.encoder.inputs,
            self.encoder.cardinalities,
            tuple(self.section.hidden),
            objective.outputs,
            settings.members,
        )
        source: Source
        if isinstance(self.rows, InMemory):
            if targets is None:
                targets = objective.targets(self.rows.codes)
            source = MemorySource(self.rows.inputs, targets, self.device)
        else:
            source = ShardSource(self.rows, objective, self.device)
        fitter = Fitter(objective, source, shape, settings, self.device, self.workers)
        what = "-".join(part for part in (name, head) if part)
        callback = self.on_epoch
        return fitter.run(
            (lambda record: callback(what, record)) if callback else None,
            self.checkpoints / f"{what}.pt" if self.checkpoints is not None else None,
        )

    def _facts(
        self,
        fits: dict[tuple[str, str], Fit],
        weights: dict[tuple[str, str], float],
        main: tuple[str, str],
        shrinkage: float,
    ) -> dict[str, Any]:
        heads = {
            head or name: {
                "validation_loss": float(fit.losses.mean()),
                "weight": weights.get((name, head), 0.0),
                "epochs": len(fit.history),
            }
            for (name, head), fit in fits.items()
        }
        slope = None
        if main[0] != "true":
            first = next(iter(fits.values()))
            mixed = self._mixed_predictions(fits, weights, shrinkage)
            slope = decoding_slope(self.data.problem, self.rows.codes_of(first.rows), mixed)
            if slope is not None and slope.misspecified:
                self.warnings.append(slope.sentence)
        poor = self.data.matches.poor(self.config.data.min_match)
        if poor:
            self.warnings.append(poor)
        return {
            "objective": main[0],
            "head": " + ".join(
                f"{head} ({weight:.0%})" if len(weights) > 1 else head
                for (_, head), weight in sorted(weights.items(), key=lambda item: -item[1])
            ),
            "heads": heads,
            "shrinkage": shrinkage,
            "history": [
                {
                    "epoch": record.epoch,
                    "train_loss": record.training,
                    "validation_loss": record.validation,
                }
                for record in fits[main].history
            ],
            "slope": None if slope is None else asdict(slope),
            "release": self.data.release_id,
            "matched": self.data.matches.matched,
            "training_rows": self.data.training_rows,
            "holdout": self.section.holdout,
            "seed": self.section.seed,
            "settings": asdict(self._settings),
            "warnings": self.warnings,
        }


__all__ = [
    "Model",
    "Prepared",
    "PreparedShards",
    "choose_device",
    "prepare",
    "resolve_settings",
    "train",
]
