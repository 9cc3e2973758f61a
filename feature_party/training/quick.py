"""Learners that take seconds: a linear model for every law, boosted trees and ridges on random
features for the likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.derivatives import Derivatives, derivatives_of
from labelveil.feature_party.learning.objectives import (
    LikelihoodObjective,
    Objective,
    PointObjective,
)
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.network import EMBEDDING
from labelveil.feature_party.training.fitting import EpochRecord
from labelveil.feature_party.training.folds import FoldedRows
from labelveil.feature_party.training.kernel import MOST_COLUMNS, KernelFit, columns
from labelveil.feature_party.training.linear import Design, fit_linear
from labelveil.feature_party.training.mixture import Candidate, ProgressCallback, Trained
from labelveil.feature_party.training.trees import EXACT, LARGE, SMALL, Fold, fit_trees, folds_of

MOST_LINEAR = 50_000
"""Rows up to which a linear model is tried unasked: many rows bear a richer one."""
_TREES = 2
"""Laws that trees are boosted for at most, the likeliest first."""


class QuickLearners:
    """Linear models, ridges on random features and boosted trees for those laws that a table
    serves, in seconds.

    ``learner`` is one of ``linear``, ``kernel`` and ``trees``, or ``auto`` for all; what is asked
    for says why it cannot serve. ``objective`` finds a candidate's law. What only ``asks`` has
    small trees and no ridges. Of true labels trees alone learn.
    """

    def __init__(
        self,
        learner: str,
        rows: FoldedRows,
        support: Support,
        objective: Callable[[Candidate], Objective],
        on_epoch: ProgressCallback | None,
        asks: bool = False,
    ) -> None:
        self.learner, self.rows, self.support = learner, rows, support
        self.on_epoch, self.asks = on_epoch, asks
        self._found = objective
        self._kernel: KernelFit | None = None

    def linear(self, laws: Sequence[Candidate]) -> list[Trained]:
        """Linear models; unasked only where rows are few.

        ``ConfigError`` if they are asked for and serve none of the laws.
        """
        unasked = self.learner == "auto" and len(self.rows.codes) > MOST_LINEAR
        served = self._served(laws)
        if self.learner in ("trees", "kernel") or unasked:
            return []
        # what a category adds to each output is kept in its embedding
        most = EMBEDDING if self.rows.encoder.cardinalities else MOST_LINEAR
        served = [law for law in served if self._objective(law).outputs <= most]
        if self.learner == "linear" and not served:
            raise ConfigError(
                f"learner='linear' serves at most {EMBEDDING} values where features have"
                " categories; use learner=trees or networks"
            )
        return [self._fit(law, "linear") for law in served]

    def kernel(self, likeliest: Sequence[Candidate], linear: Sequence[Trained]) -> list[Trained]:
        """Ridges on random features, for the likeliest laws; unasked only where rows and columns
        are few, codes are likelier under half of the models of the first law than under linear
        ones, and more than a question hangs on it: to ask by them teaches no more."""
        if self.learner == "kernel":
            return [self._fit(law, "kernel") for law in likeliest]
        heads = [law.head for law in likeliest[:1]]
        rival = next((each.fit.losses for each in linear if each.candidate.head in heads), None)
        if rival is None or self.asks or columns(self.rows) > MOST_COLUMNS:
            return []
        objective, table = self._objective(law := likeliest[0]), self._table(law)
        if not isinstance(objective, LikelihoodObjective) or table is None:
            return []
        first = self._waves(law).first_losses(objective, table(), lambda record: None)
        if first.mean() >= rival[: first.size].mean():
            return []
        return [self._fit(law, "kernel") for law in likeliest]

    def _waves(self, law: Candidate) -> KernelFit:
        """Along the columns, of one scale for all laws: on the first one's axis."""
        if self._kernel is None:
            self._kernel = KernelFit(self.rows, self.support, law.name)
        return self._kernel

    def likeliest(self, laws: Sequence[Candidate], linear: Sequence[Trained]) -> list[Candidate]:
        """Laws for trees and ridges, in order: linear models say which are likely.

        ``ConfigError`` if the learner that is asked for serves none of the laws.
        """
        if self.learner == "linear":
            return []
        losses = {each.candidate.head: float(each.fit.losses.mean()) for each in linear}
        served = self._served(laws)
        return sorted(served, key=lambda law: losses.get(law.head, 0.0))[:_TREES]

    def trees(self, law: Candidate) -> tuple[list[Trained], list[str]]:
        """Boosted trees, or why there are none.

        ``ConfigError`` if they are asked for and cannot be boosted here.
        """
        if self.learner not in ("auto", "trees"):
            return [], []
        try:
            return [self._fit(law, "trees")], []
        except ConfigError as error:
            if self.learner == "trees":
                raise
            return [], [str(error)]

    @cached_property
    def _design(self) -> Design:
        return Design(self.rows, self.rows.inputs.numeric)

    @cached_property
    def _folds(self) -> list[Fold]:
        return folds_of(self.rows)

    def _objective(self, law: Candidate) -> Objective:
        """A candidate's, which has the true labels if there are any."""
        found, labels = self._found(law), self.rows.labels
        if labels is None or not isinstance(found, PointObjective):
            return found
        return replace(found, decoded=labels)

    def _table(self, law: Candidate) -> Callable[[], Derivatives] | None:
        return derivatives_of(self._objective(law))

    def _served(self, laws: Sequence[Candidate]) -> list[Candidate]:
        served = [law for law in laws if self._table(law) is not None]
        if not served and self.learner != "auto":
            raise ConfigError(
                f"learner={self.learner!r} needs a law of one or two parameters and a channel of"
                " few outputs; use head=gaussian, or learner=networks"
            )
        return served

    def _fit(self, law: Candidate, learner: str) -> Trained:
        candidate, callback = replace(law, learner=learner), self.on_epoch

        def on_epoch(record: EpochRecord) -> None:
            if callback is not None:
                callback(str(candidate), record)

        objective, table = self._objective(law), self._table(law)
        if table is None:
            raise TypeError(f"no table serves {law}")
        if learner == "trees":
            sizes = [SMALL] if self.asks else [SMALL, LARGE]
            if self.rows.labels is not None:
                sizes = [EXACT]
            fit = fit_trees(objective, table(), self.rows, self._folds, on_epoch, sizes)
        elif isinstance(objective, LikelihoodObjective) and learner == "kernel":
            fit = self._waves(law).fit(objective, table(), on_epoch)
        elif isinstance(objective, LikelihoodObjective):
            fit = fit_linear(objective, table(), self.rows, self._design, on_epoch)
        else:
            raise TypeError(f"no linear model serves {law}")
        return Trained(candidate, fit)
