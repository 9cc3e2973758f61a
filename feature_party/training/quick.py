"""Learners that take seconds: a linear model for every law, boosted trees for the likeliest two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from common.errors import ConfigError
from feature_party.learning.derivatives import derivatives_of
from feature_party.learning.objectives import LikelihoodObjective, Objective
from feature_party.learning.support import Support
from feature_party.model.network import EMBEDDING
from feature_party.training.fitting import EpochRecord, Fit
from feature_party.training.in_memory import FoldedRows
from feature_party.training.linear import fit_linear
from feature_party.training.mixture import Candidate
from feature_party.training.trees import fit_trees, lightgbm

MOST_LINEAR = 50_000
"""Rows up to which a linear model is tried unasked: many rows bear a richer one."""
_TREES = 2
"""Laws that trees are boosted for, the likeliest by the linear models."""


def quick_fits(
    learner: str,
    laws: Sequence[Candidate],
    build: Callable[[Candidate], Objective],
    support: Support,
    rows: FoldedRows,
    on_epoch: Callable[[str, EpochRecord], None] | None = None,
) -> tuple[dict[Candidate, Fit], list[str]]:
    """Train what takes seconds.

    Parameters
    ----------
    learner
        ``linear``, ``trees``, or ``auto`` for both.
    laws
        Candidates with the laws worth trying, the likeliest first; those that no table serves are
        left out.
    build
        Makes a candidate's objective.
    support, rows
        Cells of predicted distributions, and the rows to train on.
    on_epoch
        Progress.

    Returns
    -------
    What was trained, and why something was not.

    Raises
    ------
    ConfigError
        If the learner that is asked for serves none of the laws, or cannot be loaded.
    """
    found: dict[Candidate, Fit] = {}
    prepared = {}
    for law in laws:
        objective = build(law)
        if not isinstance(objective, LikelihoodObjective):
            continue
        table = derivatives_of(objective.family, support)
        if table is not None:
            prepared[law] = objective, table
    if not prepared and learner != "auto":
        raise ConfigError(
            f"learner={learner!r} needs a law of one or two parameters and a channel of few"
            " outputs; use head=gaussian, or learner=networks"
        )

    def fit(law: Candidate, name: str) -> Fit:
        candidate = replace(law, learner=name)
        told = None if on_epoch is None else lambda record: on_epoch(str(candidate), record)
        train = fit_trees if name == "trees" else fit_linear
        found[candidate] = train(*prepared[law], rows, told)
        return found[candidate]

    best = list(prepared)
    # what a category adds to each output is kept in its embedding
    most = EMBEDDING if rows.encoder.cardinalities else MOST_LINEAR
    linear = [law for law in best if prepared[law][0].outputs <= most]
    if learner == "linear" and not linear:
        raise ConfigError(
            f"learner='linear' serves at most {EMBEDDING} values where features have categories;"
            " use learner=trees or networks"
        )
    if learner == "linear" or (learner == "auto" and len(rows.codes) <= MOST_LINEAR):
        losses = {law: float(fit(law, "linear").losses.mean()) for law in linear}
        best.sort(key=lambda law: losses.get(law, 0.0))
    if learner in ("trees", "auto") and best:
        try:
            lightgbm()
        except ConfigError as error:
            if learner == "trees":
                raise
            return found, [str(error)]
        for law in best[:_TREES]:
            fit(law, "trees")
    return found, []
