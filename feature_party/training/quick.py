"""Learners that take seconds: a linear model for every law, boosted trees for the likeliest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.derivatives import Derivatives, derivatives_of
from labelveil.feature_party.learning.objectives import LikelihoodObjective, Objective
from labelveil.feature_party.model.network import EMBEDDING
from labelveil.feature_party.training.fitting import Fit
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.linear import Design, fit_linear
from labelveil.feature_party.training.mixture import Candidate, Fits, ProgressCallback
from labelveil.feature_party.training.trees import Fold, fit_trees, folds_of

MOST_LINEAR = 50_000
"""Rows up to which a linear model is tried unasked: many rows bear a richer one."""
_TREES = 2
"""Laws that trees are boosted for at most, the likeliest first."""


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Rows as learners take them, whatever law they learn."""

    rows: FoldedRows

    @cached_property
    def design(self) -> Design:
        """For linear models."""
        return Design(self.rows)

    @cached_property
    def folds(self) -> list[Fold]:
        """For boosted trees."""
        return folds_of(self.rows)


class QuickLearners:
    """Linear models and boosted trees for those laws that a table serves, in seconds.

    ``learner`` is ``linear``, ``trees``, or ``auto`` for both; what is asked for says why it cannot
    serve.

    Raises ``ConfigError`` if the learner that is asked for serves none of the laws.
    """

    def __init__(
        self,
        learner: str,
        objectives: Mapping[Candidate, Objective],
        shared: SharedRows,
        on_epoch: ProgressCallback | None,
    ) -> None:
        self.learner, self.shared, self.on_epoch = learner, shared, on_epoch
        self.laws: dict[Candidate, tuple[LikelihoodObjective, Callable[[], Derivatives]]] = {}
        for law, objective in objectives.items():
            if isinstance(objective, LikelihoodObjective):
                table = derivatives_of(objective)
                if table is not None:
                    self.laws[law] = objective, table
        if not self.laws and learner != "auto":
            raise ConfigError(
                f"learner={learner!r} needs a law of one or two parameters and a channel of few"
                " outputs; use head=gaussian, or learner=networks"
            )

    def linear(self) -> Fits:
        """Linear models; unasked only where rows are few.

        Raises ``ConfigError`` if they are asked for and serve none of the laws.
        """
        unasked = self.learner == "auto" and len(self.shared.rows.codes) > MOST_LINEAR
        if self.learner == "trees" or unasked:
            return {}
        # what a category adds to each output is kept in its embedding
        most = EMBEDDING if self.shared.rows.encoder.cardinalities else MOST_LINEAR
        served = [law for law, (objective, _) in self.laws.items() if objective.outputs <= most]
        if self.learner == "linear" and not served:
            raise ConfigError(
                f"learner='linear' serves at most {EMBEDDING} values where features have"
                " categories; use learner=trees or networks"
            )
        return dict(self._fit(law, "linear") for law in served)

    def trees(self, linear: Fits, helps: Callable[[Fits], bool]) -> tuple[Fits, list[str]]:
        """Boosted trees, as long as they help, and why there are none.

        ``linear`` models say what law is likely; ``helps`` tells whether the last trees of those
        given add to what is trained already.

        Raises ``ConfigError`` if they are asked for and cannot be boosted here.
        """
        losses = {law.head: float(fit.losses.mean()) for law, fit in linear.items()}
        laws = sorted(self.laws, key=lambda law: losses.get(law.head, 0.0))
        fits: Fits = {}
        try:
            for law in laws[: 0 if self.learner == "linear" else _TREES]:
                fits |= [self._fit(law, "trees")]
                if not helps(fits):
                    break
        except ConfigError as error:
            if self.learner == "trees":
                raise
            return fits, [str(error)]
        return fits, []

    def _fit(self, law: Candidate, learner: str) -> tuple[Candidate, Fit]:
        candidate, callback, shared = replace(law, learner=learner), self.on_epoch, self.shared
        if learner == "trees":
            train = partial(fit_trees, folds=shared.folds)
        else:
            train = partial(fit_linear, design=shared.design)
        objective, table = self.laws[law]
        on_epoch = None if callback is None else lambda record: callback(str(candidate), record)
        return candidate, train(objective, table(), shared.rows, on_epoch)
