"""Learners that take seconds: a linear model for every law, boosted trees for the likeliest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from common.errors import ConfigError
from feature_party.learning.derivatives import Derivatives, derivatives_of
from feature_party.learning.objectives import LikelihoodObjective, Objective
from feature_party.model.network import EMBEDDING
from feature_party.training.fitting import Fit
from feature_party.training.folds import FoldedRows
from feature_party.training.linear import fit_linear
from feature_party.training.mixture import Candidate, Fits, ProgressCallback
from feature_party.training.trees import fit_trees

MOST_LINEAR = 50_000
"""Rows up to which a linear model is tried unasked: many rows bear a richer one."""
_TREES = 2
"""Laws that trees are boosted for at most, the likeliest first."""


@dataclass(frozen=True)
class QuickLearners:
    """What takes seconds to train.

    Attributes
    ----------
    laws
        Those that a table serves, as candidates of networks, the likeliest first.
    rows
        What to train on.
    learner
        ``linear``, ``trees``, or ``auto`` for both; what is asked for says why it cannot serve.
    on_epoch
        Progress.
    """

    laws: Mapping[Candidate, tuple[LikelihoodObjective, Derivatives]]
    rows: FoldedRows
    learner: str
    on_epoch: ProgressCallback | None = None

    @classmethod
    def of(
        cls,
        learner: str,
        laws: Sequence[Candidate],
        build: Callable[[Candidate], Objective],
        rows: FoldedRows,
        on_epoch: ProgressCallback | None = None,
    ) -> QuickLearners:
        """Find the laws that a table serves; ``build`` makes a candidate's objective.

        Raises
        ------
        ConfigError
            If the learner that is asked for serves none of the laws.
        """
        found = {}
        for law in laws:
            objective = build(law)
            if not isinstance(objective, LikelihoodObjective):
                continue
            table = derivatives_of(objective.family, objective.support)
            if table is not None:
                found[law] = objective, table
        if not found and learner != "auto":
            raise ConfigError(
                f"learner={learner!r} needs a law of one or two parameters and a channel of few"
                " outputs; use head=gaussian, or learner=networks"
            )
        return cls(found, rows, learner, on_epoch)

    def linear(self) -> Fits:
        """Linear models; unasked only where rows are few.

        Raises
        ------
        ConfigError
            If they are asked for and serve none of the laws.
        """
        unasked = self.learner == "auto" and len(self.rows.codes) > MOST_LINEAR
        if self.learner == "trees" or unasked:
            return {}
        # what a category adds to each output is kept in its embedding
        most = EMBEDDING if self.rows.encoder.cardinalities else MOST_LINEAR
        served = [law for law, (objective, _) in self.laws.items() if objective.outputs <= most]
        if self.learner == "linear" and not served:
            raise ConfigError(
                f"learner='linear' serves at most {EMBEDDING} values where features have"
                " categories; use learner=trees or networks"
            )
        return dict(self._fit(law, "linear") for law in served)

    def trees(self, linear: Fits, helps: Callable[[Fits], bool]) -> tuple[Fits, list[str]]:
        """Boosted trees, as long as they help.

        Parameters
        ----------
        linear
            The linear models, which say what law is likely.
        helps
            Whether the last ones of those given add to what is trained already.

        Returns
        -------
        The trees, and why there are none.

        Raises
        ------
        ConfigError
            If they are asked for and cannot be boosted here.
        """
        losses = {one.head: float(fit.losses.mean()) for one, fit in linear.items()}
        laws = sorted(self.laws, key=lambda law: losses.get(law.head, 0.0))
        found: Fits = {}
        try:
            for law in laws[: 0 if self.learner == "linear" else _TREES]:
                found |= [self._fit(law, "trees")]
                if not helps(found):
                    break
        except ConfigError as error:
            if self.learner == "trees":
                raise
            return found, [str(error)]
        return found, []

    def _fit(self, law: Candidate, name: str) -> tuple[Candidate, Fit]:
        candidate, told = replace(law, learner=name), self.on_epoch
        train = fit_trees if name == "trees" else fit_linear
        told_by = None if told is None else lambda record: told(str(candidate), record)
        return candidate, train(*self.laws[law], self.rows, told_by)
