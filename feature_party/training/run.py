"""Train a model on matched events: encode, fit, choose, mix."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch

from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.calibration import decoding_slope
from labelveil.feature_party.learning.heads import candidate_heads
from labelveil.feature_party.learning.mixing import ahead, prior_adjustment
from labelveil.feature_party.learning.objectives import (
    LikelihoodObjective,
    Objective,
    SharedObjective,
    build_objective,
)
from labelveil.feature_party.learning.problem import Codes
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.model.facts import ModelFacts
from labelveil.feature_party.model.model import Expert, Model
from labelveil.feature_party.model.network import NetworkShape
from labelveil.feature_party.model.reach import Reach
from labelveil.feature_party.schema import Stated
from labelveil.feature_party.tables import SOURCE
from labelveil.feature_party.threads import at_once, side_by_side, threads_for
from labelveil.feature_party.training.batches import group_size
from labelveil.feature_party.training.events import Events, TrainingSetup
from labelveil.feature_party.training.fitting import EpochRecord, Fitter
from labelveil.feature_party.training.holdout import holdout_digest
from labelveil.feature_party.training.mixture import (
    MEAN,
    OF_MEANS,
    Candidate,
    Mixture,
    Stack,
    Trained,
)
from labelveil.feature_party.training.quick import QuickLearners
from labelveil.feature_party.training.settings import (
    choose_device,
    resolve_pieces,
    resolve_settings,
)

T = TypeVar("T")

_MANY_LABELS = 2000.0
"""True labels' worth that laws of many parameters are tried for: with fewer none was taken up."""
_WORTH = 0.005
"""How far such a law must be ahead, as a share of what the mixture gains over the prior."""
_FEW = 5_000
"""Rows below which networks may learn true labels better than trees."""
_TREES_ASK = 50_000
"""Rows above which a model that only asks is of trees: of many they ask as well as beside networks,
in a third of the time."""


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
        self._objectives: dict[Candidate, Objective] = {}
        self.problem, self.support = events.problem, Support.from_problem(events.problem)
        self.device = choose_device(self.section.device)
        # how many true labels all labels to train on are worth
        true = self.section.objective == "true"
        each = 1.0 if true else self.problem.informativeness * self.problem.evenness
        self.effective_labels = each * events.training_rows
        # whether nothing is chosen, so that all that may do well is tried
        section = self.section
        self.all_auto = section.objective == section.head == section.learner == "auto"
        data, found = setup.data, events.found
        categorical = [*data.categorical, *([SOURCE] if self.problem.sources else [])]
        ignored = [*data.ignore, events.key]
        fit = partial(
            Encoder.fit,
            schema=None if found is None else found.schema,
            stated=Stated.from_settings(data.columns, data.numeric, categorical, ignored),
            pieces=resolve_pieces(data.pieces, self.effective_labels),
        )
        self.rows = events.encoded(setup, fit)
        worth, codes_of = self.effective_labels, self.rows.codes_of
        self.stack = Stack(self.problem, self.support, worth, codes_of)
        settings = resolve_settings(section, events.training_rows)
        self.settings = replace(settings, validation=self.rows.left_out(settings.validation))

    def train(self) -> Model:
        mixture = self._mixture()
        codes = self.rows.codes_of(mixture.main.fit.rows)
        adjustment = reach = None
        if self.all_auto:
            if self._can_stack_means:
                mixture = self.stack.by_squares(mixture, self._boosted(MEAN))
                reach = self._reach(mixture)
            if len(mixture.predicting) > 1:
                # one family of distributions alone owes most of the distance to the released prior
                # to its own shape, which factors do not correct: they would make means too steep
                # what keeps the prior's cells from being empty is no sign of labels in a tail
                marginal = self.support.floored(mixture.average(lambda fit: fit.marginal))
                adjustment = prior_adjustment(marginal, self.support.prior, self.effective_labels)
        # the last one's word limits the others, whatever its share is
        limits = [each for each in mixture.trained if reach and each.candidate == OF_MEANS]
        experts = [
            Expert(self._objective(each.candidate), each.fit.learned.cpu(), each.weight)
            for each in [*(each for each in mixture.predicting if each not in limits), *limits]
        ]
        for expert in experts:
            expert.objective.to(torch.device("cpu"))
        facts = self._facts(mixture, codes, adjustment is not None)
        return Model(
            encoder=self.rows.encoder,
            problem=self.problem,
            support=self.support,
            experts=experts,
            facts=facts,
            shrinkage=mixture.shrinkage,
            adjustment=adjustment,
            reach=reach,
        )

    def _mixture(self) -> Mixture:
        """Train the candidates that may win, and mix them by their out-of-fold losses."""
        plain, flexible = self._candidates()
        if self.setup.true_labels is not None:
            return self._on_true_labels(plain)
        networks: list[Trained] = []
        alone = self.setup.asks and self.all_auto and self.events.training_rows > _TREES_ASK
        linear, likeliest, first = self._quick_ones(plain) if alone else ([], [], [])
        if not first:  # as where trees cannot be boosted
            networks, quick = self._beside_networks(plain, lambda: self._quick_ones(plain))
            linear, likeliest, first = quick
        # the first keeps its share however far it is behind: of few values, the fewest parameters
        trained, mixture = linear + networks if self.support.discrete else networks + linear, None
        for candidate in likeliest:
            trees = first if candidate is likeliest[0] else self._boosted(candidate)
            if not trees:
                break
            trained += trees
            mixture = self.stack.by_likelihood(trained)
            if not mixture.trained[-1].weight:
                break
        self._drop_tables()
        mixture = mixture or self.stack.by_likelihood(trained)
        tried = not self.setup.asks and self.effective_labels >= _MANY_LABELS
        if flexible and networks and tried:
            mixture = self._with_flexible(mixture, flexible)
            self._drop_tables()
        return mixture

    def _on_true_labels(self, plain: Sequence[Candidate]) -> Mixture:
        """Trees, which come closer to what true labels of most tables bear, in a fraction of the
        time; of few rows the better of trees and networks, which alone serve other losses."""
        served = self._quick.likeliest(plain, []) if self._quick else []
        trained = [trees for each in served for trees in self._boosted(each)]
        if not trained or (self.section.learner == "auto" and self.events.training_rows < _FEW):
            trained += self._fit(plain)
        best = min(trained, key=lambda each: float(each.fit.losses.mean()))
        return Mixture((replace(best, weight=1.0),))

    def _quick_ones(
        self, plain: Sequence[Candidate]
    ) -> tuple[list[Trained], list[Candidate], list[Trained]]:
        """Linear models of all laws and ridges of the likeliest by these, which laws these are, and
        trees of the first."""
        quick = self._quick
        if quick is None:
            return [], [], []
        linear = self.workers.from_first(quick.linear(plain) if self.workers.first else [])
        likeliest = quick.likeliest(plain, linear)
        ridges = self.workers.from_first(
            quick.kernel(likeliest, linear) if self.workers.first else []
        )
        trees = [each for law in likeliest[:1] for each in self._boosted(law)]
        return linear + ridges, likeliest, trees

    def _beside_networks(
        self, plain: Sequence[Candidate], meanwhile: Callable[[], T]
    ) -> tuple[list[Trained], T]:
        """Networks for all laws, and what is done meanwhile: side by side where a core is free."""
        if self.section.learner not in ("auto", "networks"):
            return [], meanwhile()
        several = self.workers.size > 1 or self.device.type != "cpu"
        if several or self._quick is None or at_once() < 2:
            return self._fit(plain), meanwhile()
        for objective in map(self._shared_objective, plain):
            if isinstance(objective, LikelihoodObjective):
                objective.table()  # made once, before two threads ask for it
        with side_by_side() as (threads, go_on):
            networks = threads.submit(self._fit, plain, after_epoch=go_on)
            done = meanwhile()
            return networks.result(), done

    def _with_flexible(self, mixture: Mixture, rivals: Sequence[Candidate]) -> Mixture:
        """Train rivals, all members only if the first ones are ahead on the rows they left out.

        The losses of the mixture end a trial that cannot come below them.
        """
        members = self.settings.members
        group, losses = group_size(members), mixture.losses
        beat = float(losses[: losses.size * group // members].mean())
        tried = self._fit(rivals, range(group), beat)
        best = min((each.fit.losses for each in tried), key=np.mean)
        same = losses[: best.size]
        alone = self.stack.losses_of_prior(self.rows.codes_of(mixture.main.fit.rows))
        # one standard error now, on four times the rows, would be two; of very many rows a lead is
        # certain that changes nothing
        worth = _WORTH * float((alone - losses).mean())
        leads = ahead(same, best, 1.0) and float((same - best).mean()) > worth
        if group < members and not leads:
            if self.setup.on_epoch is not None:
                behind = "behind the mixture on a part of the rows, left out"
                last = replace(tried[0].fit.history[-1], ended=behind)
                self.setup.on_epoch(_name(rivals, tried=True), last)
            return replace(mixture, tried=tuple(tried))
        if group < members:
            pairs = zip(tried, self._fit(rivals, range(group, members)), strict=True)
            tried = [replace(one, fit=one.fit.followed_by(rest.fit)) for one, rest in pairs]
        return self.stack.by_likelihood(mixture.trained, tried)

    @cached_property
    def _quick(self) -> QuickLearners | None:
        """What learns beside networks, and takes seconds: worker 0 trains it alone."""
        learner = self.section.learner
        tried = self.all_auto or self.section.objective == "true"
        if learner == "networks" or (learner == "auto" and not tried):
            return None
        rows = self.rows.folded(self.problem, self.settings)
        if rows is None:
            if learner == "auto":
                return None
            raise ConfigError(
                f"learner={learner!r} trains in memory alone; set [training] shards to never"
            )
        given = self._shared_objective, self.setup.on_epoch, self.setup.asks
        return QuickLearners(learner, rows, self.support, *given)

    def _boosted(self, candidate: Candidate) -> list[Trained]:
        """Trees for a candidate's law, if they can be boosted here; worker 0 does it."""
        alone = self._quick is not None and self.workers.first
        boosted = self._quick.trees(candidate) if self._quick and alone else ([], [])
        trees, notes = self.workers.from_first(boosted)
        self.warnings += [note for note in notes if note not in self.warnings]
        return trees

    def _shared_objective(self, candidate: Candidate) -> Objective:
        """The same for all learners, which share its table; but for networks on another device."""
        if candidate not in self._objectives:
            self._objectives[candidate] = self._objective(candidate)
        return self._objectives[candidate]

    def _drop_tables(self) -> None:
        for objective in self._objectives.values():
            if isinstance(objective, LikelihoodObjective):
                objective.drop_table()

    def _reach(self, mixture: Mixture) -> Reach | None:
        """How far above those of trees its means may lie; None where none lies too far."""
        trees = [each.fit for each in mixture.trained if each.candidate == OF_MEANS]
        if not trees:
            return None
        means = mixture.average(lambda fit: fit.predictions)
        return Reach.from_means(self.support, means, trees[0].predictions, self.effective_labels)

    @property
    def _can_stack_means(self) -> bool:
        """Whether means are predicted, and all codes say about the same of them."""
        medians, values = self.problem.loss == "absolute", self.support.discrete
        return not medians and not values and self.support.estimates.alike

    def _candidates(self) -> tuple[list[Candidate], list[Candidate]]:
        """Those trusted, and those that must prove themselves."""
        objective, head = self.section.objective, self.section.head
        if objective not in ("auto", "likelihood"):
            by_trees = objective == "true" and self.problem.loss == "squared"
            learners = ["networks", *["trees"] * by_trees]
            if self.section.learner not in ("auto", *learners):
                raise ConfigError(
                    f"objective={objective!r} is for {' and '.join(learners)} alone; set [training]"
                    " learner to networks, or objective to likelihood"
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
        self,
        candidates: Sequence[Candidate],
        some: range | None = None,
        beat: float = math.inf,
        after_epoch: Callable[[], object] = lambda: None,
    ) -> list[Trained]:
        """Train networks, all laws on the same hidden layers; or some members alone, to ``beat``
        a loss if they are the first."""
        shared = self._shared_objective if self.device.type == "cpu" else self._objective
        laws = [shared(candidate) for candidate in candidates]
        objective = laws[0] if len(laws) == 1 else SharedObjective(laws)
        encoder, settings, setup = self.rows.encoder, self.settings, self.setup
        sizes = encoder.inputs, encoder.cardinalities, settings.hidden, objective.outputs
        every = range(settings.members)
        some = every if some is None else some
        shape = NetworkShape(*sizes, len(some))
        parts = self.rows.parts(objective, self.device)
        fitter = Fitter(
            objective, parts, shape, settings, self.device, self.workers, beat, some.start
        )
        tried = some != every and some.start == 0
        name = _name(candidates, tried=tried)
        keep = setup.folder if self.section.checkpoint else None

        def on_epoch(record: EpochRecord) -> None:
            after_epoch()
            if setup.on_epoch is not None:
                setup.on_epoch(name, record)

        checkpoint = None if keep is None else keep / "checkpoints" / f"{name}.pt"
        fits = fitter.run(on_epoch, checkpoint)
        return [Trained(*pair) for pair in zip(candidates, fits, strict=True)]

    def _facts(self, mixture: Mixture, codes: Codes, adjusted: bool) -> ModelFacts:
        slope, warnings = None, self.warnings
        main = mixture.main.candidate
        if main.objective != "true":
            slope = decoding_slope(self.problem, codes, self.stack.predictions(mixture))
            if slope is not None and slope.misspecified:
                warnings.append(slope.sentence)
        poor = self.events.matches.poor(self.setup.data.min_match)
        if poor:
            warnings.append(poor)
        return ModelFacts(
            objective=main.objective,
            key=self.events.key,
            head=mixture.head,
            heads=mixture.heads,
            shrinkage=mixture.shrinkage,
            history=mixture.history,
            slope=slope,
            release=self.events.release_id,
            matched=self.events.matches.matched,
            training_rows=self.events.training_rows,
            holdout=self.section.holdout,
            held_out=holdout_digest(self.events),
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
