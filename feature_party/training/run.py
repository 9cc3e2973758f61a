"""Train a model on matched events: encode, fit, choose, mix."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.calibration import decoding_slope
from labelveil.feature_party.learning.heads import candidate_heads
from labelveil.feature_party.learning.mixing import (
    Gain,
    choose_mixture,
    least_squares_share,
    null_share,
    prior_adjustment,
)
from labelveil.feature_party.learning.objectives import (
    LikelihoodObjective,
    Objective,
    SharedObjective,
    build_objective,
)
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.facts import ModelFacts
from labelveil.feature_party.model.model import Expert, Model, threads_for
from labelveil.feature_party.model.network import NetworkShape
from labelveil.feature_party.model.reach import Reach
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.tables import SOURCE
from labelveil.feature_party.training.batches import group_size
from labelveil.feature_party.training.events import Events, TrainingSetup
from labelveil.feature_party.training.fitting import Fitter
from labelveil.feature_party.training.mixture import (
    MEAN,
    OF_MEANS,
    Candidate,
    Fits,
    Mixture,
)
from labelveil.feature_party.training.quick import QuickLearners, SharedRows
from labelveil.feature_party.training.settings import (
    choose_device,
    resolve_pieces,
    resolve_settings,
)

_MANY_LABELS = 2000.0
"""True labels' worth that laws of many parameters are tried for: with fewer none was taken up."""


def train(events: Events, setup: TrainingSetup) -> Model:
    """Train a model on privatized labels.

    ``events`` are what :class:`labelveil.feature_party.training.prepare.Preparation` made of
    releases and features. The model's ``facts`` say what was chosen and why, and hold warnings.
    """
    begun = time.monotonic()
    if setup.training.objective != "true":
        setup = replace(setup, true_labels=None)
    elif setup.true_labels is None:
        raise ConfigError(
            "objective='true' needs true labels; pass --true-labels FILE --true-label COLUMN"
        )
    elif events.problem.sources:
        raise ConfigError(
            "objective='true' trains on the labels of one labels party; configure one"
        )
    with threads_for(events.training_rows):
        model = _Run(events, setup).train()
    seconds = round(time.monotonic() - begun, 3)
    return replace(model, facts=model.facts.model_copy(update={"seconds": seconds}))


class _Run:
    def __init__(self, events: Events, setup: TrainingSetup) -> None:
        self.events, self.setup = events, setup
        self.section, self.workers = setup.training, setup.workers
        self.warnings: list[str] = []
        self._laws: dict[Candidate, Objective] = {}
        self._mixtures: dict[tuple[Candidate, ...], Mixture] = {}
        self.problem, self.support = events.problem, Support.from_problem(events.problem)
        self.device = choose_device(self.section.device)
        # how many true labels all labels to train on are worth
        true = self.section.objective == "true"
        each = 1.0 if true else self.problem.informativeness * self.problem.evenness
        self.effective_labels = each * events.training_rows
        # whether nothing is chosen, so that all that may do well is tried
        section = self.section
        self.everything = section.objective == section.head == section.learner == "auto"
        data, found = setup.data, events.found
        categorical = [*data.categorical, *([SOURCE] if self.problem.sources else [])]
        ignored = [*data.ignore, events.key]
        fit = partial(
            Encoder.fit,
            schema=None if found is None else found.schema,
            stated=Stated.of(data.columns, data.numeric, categorical, ignored),
            pieces=resolve_pieces(data.pieces, self.effective_labels),
        )
        self.rows = events.encoded(setup, fit)
        settings = resolve_settings(section, events.training_rows)
        self.settings = replace(settings, validation=self.rows.left_out(settings.validation))

    def train(self) -> Model:
        mixture = self._mixture()
        likely = mixture.main.objective == "likelihood"
        shrinkage = self._null_share(mixture) if likely else 0.0
        adjustment = reach = None
        if self.everything:
            mixture = self._least_squares(mixture, shrinkage)
            reach = self._reach(mixture)
            if len(mixture.weights) > 1:
                # one family of distributions alone owes most of the distance to the released prior
                # to its own shape, which factors do not correct: they would make means too steep
                # what keeps the prior's cells from being empty is no sign of labels in a tail
                marginal = self.support.floored(mixture.average(lambda fit: fit.marginal))
                adjustment = prior_adjustment(marginal, self.support.prior, self.effective_labels)
        weights = dict(mixture.weights)
        if reach is not None:  # the last one's word limits the others, whatever its share is
            weights[OF_MEANS] = weights.pop(OF_MEANS, 0.0)
        experts = [
            Expert(self._objective(candidate), mixture.fits[candidate].learned.cpu(), weight)
            for candidate, weight in weights.items()
        ]
        for expert in experts:
            expert.objective.to(torch.device("cpu"))
        facts = self._facts(mixture, shrinkage, adjustment is not None)
        return Model(
            self.rows.encoder,
            self.problem,
            self.support,
            experts,
            facts,
            shrinkage,
            adjustment,
            reach,
        )

    def _mixture(self) -> Mixture:
        """Train the candidates that may win, and mix them by their out-of-fold losses."""
        plain, flexible = self._candidates()
        others, alone = self._learners(plain), self.workers.first
        linear = self.workers.from_first(others.linear() if others and alone else {})
        networks = self._fit(plain) if self.section.learner in ("auto", "networks") else {}
        # the first keeps its share however far it is behind: of few values, the fewest parameters
        fits = linear | networks if self.support.discrete else networks | linear

        def helps(trees: Fits) -> bool:
            return [*trees][-1] in self._mixed(fits | trees, {}).weights

        boosted = others.trees(linear, helps) if others and alone else ({}, [])
        trees, notes = self.workers.from_first(boosted)
        self.warnings += notes
        fits |= trees
        self._drop_tables()
        mixture = self._mixed(fits, {})
        if not flexible or not networks or self.effective_labels < _MANY_LABELS:
            return mixture
        mixed = -np.log(mixture.average(lambda fit: np.exp(-fit.losses)))

        def gain(tried: Fits) -> Gain:
            best = min((fit.losses for fit in tried.values()), key=np.mean)
            return Gain.between(mixed[: best.size], best)

        proven, tried = self._try(flexible, gain, mixed)
        self._drop_tables()
        return replace(self._mixed(fits, proven), tried=tried)

    def _mixed(self, plain: Fits, flexible: Fits) -> Mixture:
        fits = plain | flexible
        if len(fits) == 1:
            return Mixture(fits, dict.fromkeys(fits, 1.0))
        known = self._mixtures.get(tuple(fits))
        if known is not None:
            return known
        losses = np.stack([fit.losses for fit in fits.values()])
        # all begin alike where distributions have no shape that the first would be trusted for
        labels = math.inf if self.support.discrete else self.effective_labels
        shares = choose_mixture(losses[: len(plain)], losses[len(plain) :], labels)
        weights = zip(fits, np.concatenate(shares).tolist(), strict=True)
        mixture = Mixture(fits, {candidate: weight for candidate, weight in weights if weight > 0})
        self._mixtures[tuple(fits)] = mixture
        return mixture

    def _try(
        self, rivals: Sequence[Candidate], gain: Callable[[Fits], Gain], losses: Floats
    ) -> tuple[Fits, Fits]:
        """Train rivals in full only if they are ahead on the rows that the first group leaves out.

        ``losses`` are those of the mixture, which end a trial that cannot come below them. Returns
        those that were trained in full, and those that were only tried.
        """
        members = self.settings.members
        group = group_size(members)
        if group == members:
            return self._fit(rivals), {}
        beat = float(losses[: losses.size * group // members].mean())
        tried = self._fit(rivals, group, beat)
        if gain(tried).likely:
            return self._fit(rivals), {}
        if self.setup.on_epoch is not None:
            last = next(iter(tried.values())).history[-1]
            behind = "behind the mixture on a part of the rows, left out"
            self.setup.on_epoch(_name(rivals, tried=True), replace(last, ended=behind))
        return {}, tried

    def _learners(self, laws: Sequence[Candidate]) -> QuickLearners | None:
        """What learns beside networks, and takes seconds: worker 0 trains it alone."""
        learner = self.section.learner
        if learner == "networks" or (learner == "auto" and not self.everything):
            return None
        if self._shared is None:
            if learner == "auto":
                return None
            raise ConfigError(
                f"learner={learner!r} trains in memory alone; set [training] shards to never"
            )
        objectives = {law: self._law(law) for law in laws}
        return QuickLearners(learner, objectives, self._shared, self.setup.on_epoch)

    @cached_property
    def _shared(self) -> SharedRows | None:
        """What learns beside networks has the rows in this form; None where they are in shards."""
        rows = self.rows.folded(self.problem, self.settings)
        return None if rows is None else SharedRows(rows)

    def _law(self, candidate: Candidate) -> Objective:
        """The same for all learners, which share its table; but for networks on another device."""
        if candidate not in self._laws:
            self._laws[candidate] = self._objective(candidate)
        return self._laws[candidate]

    def _drop_tables(self) -> None:
        for law in self._laws.values():
            if isinstance(law, LikelihoodObjective):
                law.drop_table()

    def _least_squares(self, mixture: Mixture, shrinkage: float) -> Mixture:
        """Give every candidate the share that makes the squared error least, one after another.

        A likelihood judges the shapes of distributions, too, and cannot judge trees that learn
        means alone, which take part here. What codes say beyond what they should by the mixture
        stands for what labels are beyond its predictions: with far less noise than labels decoded
        without bias. Where the loss is of medians, or channels say different things, nothing does.
        """
        if not self._means_are_told:
            return mixture
        said = self.support.estimates
        learners, alone = self._learners([MEAN]), self.workers.first
        boosted = learners.trees({}, lambda _: True) if learners and alone else ({}, [])
        trees, _ = self.workers.from_first(boosted)
        mixture = replace(mixture, fits={**trees, **mixture.fits})
        for each, fit in mixture.fits.items():
            codes = self.rows.codes_of(fit.rows)
            expected = (1 - shrinkage) * mixture.average(lambda fit: fit.estimates)
            residual = said.of_code[codes] - expected
            difference = fit.predictions - self._predictions(mixture, shrinkage)
            weight = np.sqrt(said.information)[self.support.channel_of[codes]]
            share = least_squares_share(
                weight * residual, weight * difference / self.problem.deviation
            )
            if share:
                weights = {other: (1 - share) * w for other, w in mixture.weights.items()}
                weights[each] = weights.get(each, 0.0) + share
                mixture = replace(mixture, weights=weights)
        return mixture

    def _reach(self, mixture: Mixture) -> Reach | None:
        """How far above those of trees its means may lie; None where none lies too far."""
        trees = mixture.fits.get(OF_MEANS)
        if trees is None or not self._means_are_told:
            return None
        means = mixture.average(lambda fit: fit.predictions)
        return Reach.from_means(self.support, means, trees.predictions, self.effective_labels)

    @property
    def _means_are_told(self) -> bool:
        """Whether means are predicted, and all codes say about the same of them."""
        medians, values = self.problem.loss == "absolute", self.support.discrete
        return not medians and not values and self.support.estimates.alike

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
        return null_share(-np.log(mixed), -np.log(alone[codes]), self.effective_labels)

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
        grid = self.problem.values
        counts = bool(grid[0] == 0 and np.allclose(np.diff(grid), 1.0))
        plain, flexible = (
            [Candidate("likelihood", name) for name in names]
            for names in candidate_heads(self.support, counts)
        )
        if self.problem.joint_values is not None:
            plain.append(Candidate("likelihood", "joint"))
        return plain, flexible

    def _objective(self, candidate: Candidate) -> Objective:
        return build_objective(candidate.objective, self.problem, self.support, candidate.head)

    def _fit(
        self, candidates: Sequence[Candidate], members: int | None = None, beat: float = math.inf
    ) -> Fits:
        """Train networks, all laws on the same hidden layers; or only some members of them."""
        law = self._law if self.device.type == "cpu" else self._objective
        laws = [law(candidate) for candidate in candidates]
        objective = laws[0] if len(laws) == 1 else SharedObjective(laws)
        encoder, settings, setup = self.rows.encoder, self.settings, self.setup
        sizes = encoder.inputs, encoder.cardinalities, settings.hidden, objective.outputs
        shape = NetworkShape(*sizes, members or settings.members)
        parts = self.rows.parts(objective, self.device)
        fitter = Fitter(objective, parts, shape, settings, self.device, self.workers, beat)
        callback, name = setup.on_epoch, _name(candidates, tried=members is not None)
        keep = setup.folder if self.section.checkpoint else None
        fits = fitter.run(
            (lambda record: callback(name, record)) if callback else None,
            None if keep is None else keep / "checkpoints" / f"{name}.pt",
        )
        return dict(zip(candidates, fits, strict=True))

    def _facts(self, mixture: Mixture, shrinkage: float, adjusted: bool) -> ModelFacts:
        slope, warnings = None, self.warnings
        if mixture.main.objective != "true":
            codes = self.rows.codes_of(mixture.fits[mixture.main].rows)
            slope = decoding_slope(self.problem, codes, self._predictions(mixture, shrinkage))
            if slope is not None and slope.misspecified:
                warnings.append(slope.sentence)
        poor = self.events.matches.poor(self.setup.data.min_match)
        if poor:
            warnings.append(poor)
        return ModelFacts(
            objective=mixture.main.objective,
            key=self.events.key,
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
            settings=self.settings,
            warnings=warnings,
            adjusted=adjusted,
        )


def _name(candidates: Sequence[Candidate], *, tried: bool) -> str:
    """Name of what is trained, for people and for checkpoints."""
    first, *others = candidates
    name = "+".join([str(first), *(each.name for each in others)])
    return f"tried-{name}" if tried else name
