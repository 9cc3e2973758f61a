"""Train a model on matched events: encode, fit, choose, mix."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from common.arrays import Floats
from common.errors import ConfigError
from feature_party.config import DataSection, TrainingSection
from feature_party.learning.calibration import decoding_slope
from feature_party.learning.decoding import decoder
from feature_party.learning.heads import candidate_heads
from feature_party.learning.mixing import (
    Gain,
    choose_mixture,
    decoded_gain,
    null_share,
    prior_adjustment,
)
from feature_party.learning.objectives import Objective, SharedObjective, build_objective
from feature_party.learning.support import Support
from feature_party.model.encoding import Encoder
from feature_party.model.facts import FitSettings, ModelFacts
from feature_party.model.model import Expert, Model
from feature_party.model.network import NetworkShape
from feature_party.tables import SOURCE
from feature_party.training.batches import group_size
from feature_party.training.events import Encoding, Events
from feature_party.training.fitting import Fit, Fitter
from feature_party.training.mixture import (
    DEBIASED,
    Candidate,
    FindLearners,
    Fits,
    Learners,
    Mixture,
    ProgressCallback,
)
from feature_party.training.settings import choose_device, resolve_pieces, resolve_settings
from feature_party.training.workers import ALONE, Workers

_MANY_LABELS = 2000.0
"""True labels' worth that laws of many parameters are tried for: with fewer none was taken up."""


def train(
    events: Events,
    training: TrainingSection,
    data: DataSection,
    *,
    learners: FindLearners | None = None,
    shards: Path = Path("shards"),
    true_labels: Floats | None = None,
    on_epoch: ProgressCallback | None = None,
    checkpoints: Path | None = None,
    workers: Workers = ALONE,
) -> Model:
    """Train a model on privatized labels.

    Parameters
    ----------
    events
        What :func:`feature_party.training.prepare.prepare` made of releases and features.
    training, data
        How to train, and what the features' columns are.
    learners
        Finds what learns beside networks, where rows lie in memory; None for nothing.
    shards
        Folder for encoded rows that memory is too small for, where ``training`` names none.
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
    begun = time.monotonic()
    if training.objective != "true":
        true_labels = None
    elif true_labels is None:
        raise ConfigError(
            "objective='true' needs true labels; pass --true-labels FILE --true-label COLUMN"
        )
    elif events.problem.sources:
        raise ConfigError(
            "objective='true' trains on the labels of one labels party; configure one"
        )
    run = _Run(events, training, data, learners, on_epoch, checkpoints, workers)
    run.encode(shards, true_labels)
    model = run.train()
    seconds = round(time.monotonic() - begun, 3)
    return replace(model, facts=model.facts.model_copy(update={"seconds": seconds}))


class _Run:
    def __init__(
        self,
        events: Events,
        training: TrainingSection,
        data: DataSection,
        learners: FindLearners | None,
        on_epoch: ProgressCallback | None,
        checkpoints: Path | None,
        workers: Workers,
    ) -> None:
        self.events = events
        self.section = training
        self.data = data
        self.learners = learners
        self.on_epoch = on_epoch
        self.checkpoints = checkpoints
        self.workers = workers
        self.warnings: list[str] = []
        self.problem = events.problem
        self.support = Support.of(events.problem)
        self.device = choose_device(training.device)

    def encode(self, folder: Path, true_labels: Floats | None) -> None:
        data = self.data
        fit = partial(
            Encoder.fit,
            numeric=data.numeric,
            categorical=[*data.categorical, *([SOURCE] if self.problem.sources else [])],
            ignore=[*data.ignore, self.events.key],
            pieces=resolve_pieces(data.pieces, self._effective_labels),
        )
        how = Encoding(fit, self.section, data, folder, self.workers, true_labels)
        self.rows = self.events.encoded(how)
        self.encoder = self.rows.encoder

    def train(self) -> Model:
        mixture = self._mixture()
        likely = mixture.main.objective == "likelihood"
        shrinkage = self._null_share(mixture) if likely else 0.0
        gain = adjustment = None
        if self._everything:
            adjustment = self._adjustment(mixture)
            mixture, gain = self._with_debiased(mixture, shrinkage)
            if gain is not None and gain.certain:
                mixture = replace(mixture, weights={DEBIASED: 1.0})
                shrinkage, adjustment = 0.0, None
        experts = [
            Expert(self._objective(one), mixture.fits[one].learned.cpu(), weight)
            for one, weight in mixture.weights.items()
        ]
        for expert in experts:
            expert.objective.to(torch.device("cpu"))
        facts = self._facts(mixture, shrinkage, gain, adjustment is not None)
        return Model(
            self.encoder, self.problem, self.support, experts, facts, shrinkage, adjustment
        )

    def _mixture(self) -> Mixture:
        """Train the candidates that may win, and mix them by their out-of-fold losses."""
        plain, flexible = self._candidates()
        others, alone = self._learners(plain), self.workers.first
        linear = self.workers.from_first(others.linear() if others and alone else {})
        networks = self._fit(plain) if self.section.learner in ("auto", "networks") else {}
        # the first is trusted where little can be told: of few values, the fewest parameters
        fits = linear | networks if self.support.values_alone else networks | linear

        def helps(trees: Fits) -> bool:
            return [*trees][-1] in self._mixed(fits | trees, {}).weights

        boosted = others.trees(linear, helps) if others and alone else ({}, [])
        trees, notes = self.workers.from_first(boosted)
        self.warnings += notes
        fits |= trees
        mixture = self._mixed(fits, {})
        if not flexible or not networks or self._effective_labels < _MANY_LABELS:
            return mixture
        mixed = -np.log(mixture.average(lambda fit: np.exp(-fit.losses)))

        def gain(tried: Mapping[Candidate, Fit]) -> Gain:
            best = min((fit.losses for fit in tried.values()), key=np.mean)
            return Gain.between(mixed[: best.size], best)

        proven, tried = self._try(flexible, gain, mixed)
        return replace(self._mixed(fits, proven), tried=tried)

    def _mixed(self, plain: dict[Candidate, Fit], flexible: dict[Candidate, Fit]) -> Mixture:
        fits = plain | flexible
        if len(fits) == 1:
            return Mixture(fits, dict.fromkeys(fits, 1.0))
        losses = np.stack([fit.losses for fit in fits.values()])
        shares = choose_mixture(losses[: len(plain)], losses[len(plain) :], self._effective_labels)
        weights = zip(fits, np.concatenate(shares).tolist(), strict=True)
        return Mixture(fits, {one: weight for one, weight in weights if weight > 0})

    def _try(
        self,
        rivals: Sequence[Candidate],
        gain: Callable[[Mapping[Candidate, Fit]], Gain],
        losses: Floats,
    ) -> tuple[dict[Candidate, Fit], dict[Candidate, Fit]]:
        """Train rivals in full only if they are ahead on the rows that the first group leaves out.

        ``losses`` are those of the mixture, which end a trial that cannot come below them.

        Returns
        -------
        Those that were trained in full, and those that were only tried.
        """
        members = self._settings.members
        group = group_size(members)
        if group == members:
            return self._fit(rivals), {}
        beat = float(losses[: losses.size * group // members].mean())
        tried = self._fit(rivals, group, beat)
        if gain(tried).likely:
            return self._fit(rivals), {}
        if self.on_epoch is not None:
            last = next(iter(tried.values())).history[-1]
            behind = "behind the mixture on a part of the rows, left out"
            self.on_epoch(_called(rivals, members), replace(last, ended=behind))
        return {}, tried

    def _learners(self, laws: Sequence[Candidate]) -> Learners | None:
        """What learns beside networks, and takes seconds: worker 0 trains it alone."""
        learner = self.section.learner
        if learner == "networks" or (learner == "auto" and not self._everything):
            return None
        rows = self.rows.folded(self.problem, self._settings)
        if self.learners is None or rows is None:
            if learner == "auto":
                return None
            raise ConfigError(
                f"learner={learner!r} trains in memory alone; set [training] shards to never"
            )
        return self.learners(learner, laws, self._objective, rows, self.on_epoch)

    def _adjustment(self, mixture: Mixture) -> Floats | None:
        """Factors towards the released prior, for a mixture of heads.

        One family of distributions alone owes most of the distance to its own shape, which factors
        do not correct: they would make its means too steep.
        """
        if len(mixture.weights) == 1:
            return None
        marginal = mixture.average(lambda fit: fit.marginal)
        return prior_adjustment(marginal, self.support.prior, self._effective_labels)

    def _with_debiased(self, mixture: Mixture, shrinkage: float) -> tuple[Mixture, Gain | None]:
        """Train on decoded labels, too: right whatever the label's distribution, if noisier.

        It has no likelihood to be mixed by. Its squared error is compared with the mixture's on
        labels decoded without bias; not at all where the channel or the loss does not allow that.
        """
        decoded = decoder(self.problem, self.problem.grid)
        if not decoded.exact or self.problem.loss == "absolute":
            return mixture, None
        labels = decoded.values[self.rows.codes_of(mixture.fits[mixture.main].rows), 0]
        mixed = self._predictions(mixture, shrinkage)

        def gain(fits: Mapping[Candidate, Fit]) -> Gain:
            rival = fits[DEBIASED].predictions
            return decoded_gain(labels[: rival.size], mixed[: rival.size], rival)

        errors = np.full(mixed.size, np.inf)
        if self.problem.loss == "squared":
            errors = ((mixed - labels) / self.problem.deviation) ** 2  # as it is trained
        proven, tried = self._try([DEBIASED], gain, errors)
        beside = replace(mixture, fits={**mixture.fits, **proven}, tried={**mixture.tried, **tried})
        return beside, gain(proven | tried)

    def _predictions(self, mixture: Mixture, shrinkage: float) -> Floats:
        """(v,) out-of-fold predictions of the whole model, before any adjustment."""
        mixed = mixture.average(lambda fit: fit.predictions)
        return np.asarray((1 - shrinkage) * mixed + shrinkage * self.problem.mean)

    def _null_share(self, mixture: Mixture) -> float:
        """How much of the prior out-of-fold likelihoods leave in the predictions."""
        codes = self.rows.codes_of(mixture.fits[mixture.main].rows)
        mixed = mixture.average(lambda fit: np.exp(-fit.losses))
        likelihood = self.support.likelihood  # losses are relative to each code's largest
        alone = self.support.prior @ (likelihood / likelihood.max(axis=0))
        return null_share(-np.log(mixed), -np.log(alone[codes]), self._effective_labels)

    def _candidates(self) -> tuple[list[Candidate], list[Candidate]]:
        """Those trusted, and those that must prove themselves."""
        objective, head = self.section.objective, self.section.head
        if objective not in ("auto", "likelihood"):
            if self.section.learner in ("trees", "linear"):
                raise ConfigError(
                    f"objective={objective!r} is for networks alone; set [training] learner to"
                    " networks, or objective to likelihood"
                )
            return [Candidate(objective)], []
        if head != "auto":
            return [Candidate("likelihood", head)], []
        plain, flexible = (
            [Candidate("likelihood", name) for name in names]
            for names in candidate_heads(self.support, self._counts)
        )
        if self.problem.together is not None:
            plain.append(Candidate("likelihood", "joint"))
        return plain, flexible

    @property
    def _everything(self) -> bool:
        """Whether nothing is chosen, so that all that may do well is tried."""
        return self.section.objective == self.section.head == self.section.learner == "auto"

    @property
    def _settings(self) -> FitSettings:
        settings = resolve_settings(self.section, self.events.training_rows)
        return replace(settings, validation=self.rows.left_out(settings.validation))

    @property
    def _effective_labels(self) -> float:
        """How many true labels all labels to train on are worth."""
        true = self.section.objective == "true"
        each = 1.0 if true else self.problem.informativeness * self.problem.evenness
        return each * self.events.training_rows

    @property
    def _counts(self) -> bool:
        grid = self.problem.values
        return bool(grid[0] == 0 and np.allclose(np.diff(grid), 1.0))

    def _objective(self, candidate: Candidate) -> Objective:
        return build_objective(candidate.objective, self.problem, self.support, candidate.head)

    def _fit(
        self,
        candidates: Sequence[Candidate],
        members: int | None = None,
        beat: float = math.inf,
    ) -> dict[Candidate, Fit]:
        """Train networks, all laws on the same hidden layers; or only some members of them."""
        laws, settings = [self._objective(one) for one in candidates], self._settings
        objective = laws[0] if len(laws) == 1 else SharedObjective(laws)
        whole = settings.members
        settings = replace(settings, members=members or whole)
        shape = NetworkShape(
            self.encoder.inputs,
            self.encoder.cardinalities,
            tuple(self.section.hidden),
            objective.outputs,
            settings.members,
        )
        source = self.rows.source(objective, self.device)
        fitter = Fitter(objective, source, shape, settings, self.device, self.workers, whole, beat)
        callback, called = self.on_epoch, _called(candidates, members)
        fits = fitter.run(
            (lambda record: callback(called, record)) if callback else None,
            self.checkpoints / f"{called}.pt" if self.checkpoints is not None else None,
        )
        return dict(zip(candidates, fits, strict=True))

    def _facts(
        self, mixture: Mixture, shrinkage: float, gain: Gain | None, adjusted: bool
    ) -> ModelFacts:
        slope, warnings = None, self.warnings
        if mixture.main.objective != "true":
            codes = self.rows.codes_of(mixture.fits[mixture.main].rows)
            slope = decoding_slope(self.problem, codes, self._predictions(mixture, shrinkage))
            if slope is not None and slope.misspecified:
                warnings.append(slope.sentence)
        poor = self.events.matches.poor(self.data.min_match)
        if poor:
            warnings.append(poor)
        return ModelFacts(
            objective=mixture.main.objective,
            head=mixture.head,
            heads=mixture.heads,
            shrinkage=shrinkage,
            history=mixture.history,
            slope=slope,
            release=self.events.release_id,
            matched=self.events.matches.matched,
            training_rows=self.events.training_rows,
            holdout=self.section.holdout,
            seed=self.section.seed,
            settings=self._settings,
            warnings=warnings,
            debiased_gain=gain,
            adjusted=adjusted,
        )


def _called(candidates: Sequence[Candidate], members: int | None) -> str:
    """Name of what is trained, for people and for checkpoints."""
    first, *others = candidates
    name = "+".join([str(first), *(one.name for one in others)])
    return f"tried-{name}" if members else name
