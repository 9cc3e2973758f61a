"""Train a model on a release: join, split, encode, fit, choose, mix."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import ConfigError
from common.keys import read_secret
from common.release import Release, manifest_digest, read_release
from feature_party.batches import MemorySource
from feature_party.config import FeaturePartyConfig, TrainingSection
from feature_party.encoding import Encoded, Encoder
from feature_party.fitting import EpochRecord, Fit, FitSettings, Fitter
from feature_party.join import (
    Joined,
    Table,
    join_release,
    join_releases,
    split_events,
    split_holdout,
)
from feature_party.learning.calibration import decoding_slope
from feature_party.learning.decoding import decoder
from feature_party.learning.heads import candidate_heads
from feature_party.learning.joint import join_problems, starts
from feature_party.learning.mixing import Gain, choose_mixture, decoded_gain, shrinkage
from feature_party.learning.objectives import Objective, PointObjective, build_objective
from feature_party.learning.problem import Floats, LabelProblem
from feature_party.learning.support import Support
from feature_party.model import Expert, Model
from feature_party.network import NetworkShape
from feature_party.workers import ALONE, Workers

ProgressCallback = Callable[[str, EpochRecord], None]
"""Called after every epoch with what is being trained."""

CHECKPOINTS = "checkpoints"

_MANY_ROWS = 100_000
_RIVAL = ("debiased", "")


@dataclass(frozen=True)
class Prepared:
    """Matched events, split and encoded.

    Attributes
    ----------
    joined
        All matched events.
    training, holdout
        Their rows to train on, and to score on.
    problem
        The release's public facts.
    release_id
        Digest of the release's manifest, or of several manifests' digests.
    """

    joined: Joined
    training: np.ndarray[Any, np.dtype[np.int64]]
    holdout: np.ndarray[Any, np.dtype[np.int64]]
    problem: LabelProblem
    release_id: str


def prepare(
    release: Release | Path | Sequence[Release | Path],
    features: Table,
    config: FeaturePartyConfig,
    secret: bytes | None = None,
) -> Prepared:
    """Join a release with features and set the holdout apart.

    Parameters
    ----------
    release
        A verified release, or the directory of one; or several, oldest first, that one model is to
        learn from.
    features
        One row an event.
    config
        Uses the sections ``data``, ``keys`` and ``training``.
    secret
        The shared key secret; None reads the configured file.
    """
    several = [release] if isinstance(release, Release | Path) else list(release)
    releases = [read_release(one) if isinstance(one, Path) else one for one in several]
    if secret is None:
        secret = read_secret(config.secret_file)
    if len(releases) > 1:
        return _prepare_several(releases, features, config, secret)
    joined = join_release(releases[0], features, config.key, secret)
    problem = LabelProblem.from_manifest(releases[0].manifest)
    problem.check_codes(joined.codes)
    training, holdout = split_holdout(
        joined.table.height, config.training.holdout, config.training.seed
    )
    digest = manifest_digest(releases[0].manifest_bytes)
    return Prepared(joined, training, holdout, problem, digest)


def _prepare_several(
    releases: Sequence[Release], features: Table, config: FeaturePartyConfig, secret: bytes
) -> Prepared:
    parts = [LabelProblem.from_manifest(release.manifest) for release in releases]
    for release, part in zip(releases, parts, strict=True):
        part.check_codes(release.codes)
    first = starts(parts)
    joined = join_releases(releases, first[:-1].tolist(), features, config.key, secret)
    rows = np.histogram(joined.codes, bins=first)[0]
    problem = join_problems(parts, rows.tolist())
    section = config.training
    training, holdout = split_events(joined.rows, section.holdout, section.seed)
    digests = "".join(manifest_digest(release.manifest_bytes) for release in releases)
    identity = hashlib.sha256(digests.encode()).hexdigest()
    return Prepared(joined, training, holdout, problem, identity)


def train(
    release: Release | Path | Sequence[Release | Path] | Prepared,
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
    if not isinstance(release, Prepared):
        if features is None:
            raise ConfigError("features are missing; pass a table or a path")
        release = prepare(release, features, config, secret)
    begun = time.monotonic()
    run = _Run(release, config, true_labels, on_epoch, checkpoints, workers)
    model = run.train()
    model.facts["seconds"] = round(time.monotonic() - begun, 3)
    return model


class _Run:
    def __init__(
        self,
        data: Prepared,
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
        table = data.joined.table
        self.codes = data.joined.codes[data.training]
        rows = table if not data.holdout.size else table[data.training]
        section = config.data
        self.encoder = Encoder.fit(
            rows,
            numeric=section.numeric,
            categorical=section.categorical,
            ignore=[*section.ignore, section.key],
            pieces=resolve_pieces(section.pieces, self._worth * len(rows)),
        )
        self.inputs: Encoded = self.encoder.encode(rows)
        self.device = choose_device(self.section.device)
        self.warnings: list[str] = []

    def train(self) -> Model:
        plain, flexible = self._candidates()
        fits = {name: self._fit(*name) for name in (*plain, *flexible)}
        weights = {plain[0]: 1.0}
        if len(fits) > 1:
            losses = np.stack([fit.losses for fit in fits.values()])
            shares = choose_mixture(losses[: len(plain)], losses[len(plain) :])
            both = np.concatenate(shares)
            weights = {name: float(w) for name, w in zip(fits, both, strict=True) if w > 0}
        main = max(weights, key=lambda name: weights[name])
        shrunk = self._shrinkage(fits, weights) if main[0] == "likelihood" else 0.0
        automatic = self.section.objective == self.section.head == "auto"
        gain = self._rival(fits, weights, shrunk) if automatic else None
        if gain is not None and gain.certain:
            main, shrunk = _RIVAL, 0.0
            weights = {main: 1.0}
        experts = [
            Expert(self._objective(*name), fits[name].network.cpu(), weight)
            for name, weight in weights.items()
        ]
        for expert in experts:
            expert.objective.to(torch.device("cpu"))
        facts = self._facts(fits, weights, main, shrunk)
        facts["debiased_gain"] = None if gain is None else asdict(gain)
        return Model(self.encoder, self.data.problem, self.support, experts, shrunk, facts)

    def _rival(
        self,
        fits: dict[tuple[str, str], Fit],
        weights: dict[tuple[str, str], float],
        shrunk: float,
    ) -> Gain | None:
        """Train on decoded labels, too: right whatever the label's distribution, if noisier.

        It has no likelihood to be mixed by. Its squared error is compared with the mixture's on
        labels decoded without bias; None where the channel or the loss does not allow that.
        """
        problem = self.data.problem
        decoded = decoder(problem, problem.grid)
        if not decoded.exact or problem.loss == "absolute":
            return None
        mixed = self._mixed_predictions(fits, weights, shrunk)
        fits[_RIVAL] = rival = self._fit(*_RIVAL)
        return decoded_gain(decoded.values[self.codes[rival.rows], 0], mixed, rival.predictions)

    def _mixed_predictions(
        self,
        fits: dict[tuple[str, str], Fit],
        weights: dict[tuple[str, str], float],
        shrunk: float,
    ) -> Floats:
        """(v,) out-of-fold predictions of the whole model."""
        mixed = np.asarray(sum(w * fits[name].predictions for name, w in weights.items()))
        return np.asarray((1 - shrunk) * mixed + shrunk * self.data.problem.mean)

    def _shrinkage(
        self, fits: dict[tuple[str, str], Fit], weights: dict[tuple[str, str], float]
    ) -> float:
        """How far the mixture's out-of-fold likelihoods speak for the prior alone."""
        rows = next(iter(fits.values())).rows
        mixed = sum(w * np.exp(-fits[name].losses) for name, w in weights.items())
        likelihood = self.support.likelihood  # losses are relative to each code's largest
        alone = self.support.prior @ (likelihood / likelihood.max(axis=0))
        return shrinkage(-np.log(mixed), -np.log(alone[self.codes[rows]]))

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
    def _worth(self) -> float:
        """How many true labels one label to train on is worth."""
        true = self.section.objective == "true"
        return 1.0 if true else self.data.problem.informativeness

    @property
    def _counts(self) -> bool:
        grid = self.data.problem.grid
        return bool(grid[0] == 0 and np.allclose(np.diff(grid), 1.0))

    def _objective(self, objective: str, head: str) -> Objective:
        return build_objective(objective, self.data.problem, self.support, head)

    def _fit(self, name: str, head: str) -> Fit:
        objective = self._objective(name, head)
        if isinstance(objective, PointObjective) and name == "true":
            if self.true_labels is None:
                raise ConfigError(
                    "objective='true' needs true labels; pass --true-labels FILE --true-label"
                    " COLUMN"
                )
            targets = objective.value_targets(self.true_labels[self.data.training])
        else:
            targets = objective.targets(self.codes)
        settings = resolve_settings(self.section, len(self.inputs))
        shape = NetworkShape(
            self.encoder.inputs,
            self.encoder.cardinalities,
            tuple(self.section.hidden),
            objective.outputs,
            settings.members,
        )
        source = MemorySource(self.inputs, targets, self.device)
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
        shrunk: float,
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
            mixed = self._mixed_predictions(fits, weights, shrunk)
            slope = decoding_slope(self.data.problem, self.codes[first.rows], mixed)
            if slope is not None and slope.misspecified:
                self.warnings.append(slope.sentence)
        poor = self.data.joined.poor_match(self.config.data.min_match)
        if poor:
            self.warnings.append(poor)
        return {
            "objective": main[0],
            "head": " + ".join(
                f"{head} ({weight:.0%})" if len(weights) > 1 else head
                for (_, head), weight in sorted(weights.items(), key=lambda item: -item[1])
            ),
            "heads": heads,
            "shrinkage": shrunk,
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
            "matched": self.data.joined.matches.matched,
            "training_rows": int(self.data.training.size),
            "holdout": self.section.holdout,
            "seed": self.section.seed,
            "settings": asdict(resolve_settings(self.section, len(self.inputs))),
            "warnings": self.warnings,
        }


def resolve_settings(section: TrainingSection, rows: int) -> FitSettings:
    """Replace every ``auto`` by what suits the number of training rows."""
    members = section.ensemble
    if members == "auto":
        members = 8 if rows < _MANY_ROWS else 4
    batch = section.batch_size
    if batch == "auto":
        batch = int(np.clip(2 ** round(np.log2(max(rows, 1) / 64)), 64, 4096))
    epochs = section.epochs
    if epochs == "auto":
        epochs = int(np.clip(round(20 * (16_000 / max(rows, 1)) ** 0.5), 6, 60))
    decay = section.weight_decay
    if decay == "auto":
        decay = 0.01
    return FitSettings(
        members=members,
        epochs=epochs,
        batch_size=batch,
        learning_rate=section.learning_rate,
        optimizer=section.optimizer,
        weight_decay=decay,
        hidden=tuple(section.hidden),
        dropout=section.dropout,
        validation=section.validation,
        patience=section.patience,
        seed=section.seed,
    )


def resolve_pieces(pieces: int | str, worth: float) -> int:
    """Pieces that a numeric column's range is cut into: one a hundred labels' worth, at most 32.

    ``worth`` is the number of true labels that say as much: n privatized labels are worth
    :attr:`LabelProblem.informativeness` n true ones. Where they afford fewer than 8 pieces, their
    noise costs more than the bends gain.
    """
    if isinstance(pieces, int):
        return pieces
    affordable = int(worth / 100)
    return 0 if affordable < 8 else min(affordable, 32)


def choose_device(name: str) -> torch.device:
    """Return the device to train on; ``auto`` takes a GPU if there is one.

    Raises
    ------
    ConfigError
        If the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is unknown; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r} is not available on this machine; use auto or cpu")
    return device


__all__ = [
    "Model",
    "Prepared",
    "choose_device",
    "prepare",
    "resolve_settings",
    "train",
]
