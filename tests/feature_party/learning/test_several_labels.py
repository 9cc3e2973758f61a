"""A view of one label among several, and the law of all labels that a channel sends together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.entropy import seeded_entropy
from common.errors import ConfigError
from common.exact.channel import TOTAL, FiniteChannel
from common.randomizers import build_randomizer, private_prior
from common.randomizers.cells import Cells, Codebook, Group
from common.randomizers.grid import Grid
from common.randomizers.prior import NoisyPrior
from feature_party.learning.decoding import convex_targets, decoder
from feature_party.learning.objectives import JointObjective, build_objective
from feature_party.learning.problem import LabelProblem
from feature_party.learning.several_labels import joint_support, label_view
from feature_party.learning.support import Support

RETURNED, AMOUNT = Grid.from_count(0, 1, 2), Grid.from_count(0, 90, 10)
CELLS = Cells((RETURNED, AMOUNT))
BOTH = Group((0, 1), CELLS)
NAMES = ("returned", "amount")


def counted() -> NoisyPrior:
    """A histogram in which returned orders are the dear ones."""
    amounts = np.arange(10)
    kept, returned = 900 * 0.7**amounts, 60 * 0.9**amounts
    counts = np.concatenate([kept, returned]).astype(np.int64)
    return private_prior(counts, 0.5, seeded_entropy(7))


def alone(prior: NoisyPrior) -> Codebook:
    """A channel for each label."""
    channels = [
        build_randomizer(
            "auto", labels=grid.points, prior=CELLS.marginal(prior.probabilities, j), epsilon=1.0
        ).channel
        for j, grid in enumerate(CELLS.grids)
    ]
    return Codebook(
        NAMES, tuple(Group((j,), Cells((CELLS.grids[j],))) for j in (0, 1)), (*channels,)
    )


def together(prior: NoisyPrior) -> Codebook:
    """The same channels as one of cells, whose outputs are the combined codes."""
    told = alone(prior).likelihood
    rows = [[int(p * 2.0**53) << 11 for p in row] for row in told.tolist()]
    for row in rows:
        row[0] += TOTAL - sum(row)
    channel = FiniteChannel(np.arange(len(CELLS)), np.arange(told.shape[1]), rows)
    return Codebook(NAMES, (BOTH,), (channel,))


@pytest.mark.parametrize("book", [alone, together])
@pytest.mark.parametrize("label", [0, 1])
def test_a_label_is_decoded_without_bias_whatever_the_others_are(book, label: int) -> None:  # type: ignore[no-untyped-def]
    prior = counted()
    codebook = book(prior)
    view = label_view(codebook, [(BOTH, prior)], NAMES[label], "squared")
    decoded = decoder(view.problem, view.problem.grid)
    assert decoded.exact
    told = np.einsum("kd,d->k", codebook.channels[view.column].probabilities, decoded.values[:, 0])
    group = codebook.groups[view.column]
    for cell, mean in enumerate(told):
        wanted = group.cells.points[cell, group.labels.index(label)]
        assert mean == pytest.approx(wanted, abs=1e-5 * np.ptp(CELLS.grids[label].points))


@pytest.mark.parametrize("label", [0, 1])
def test_a_label_with_a_channel_of_its_own_is_learned_as_if_it_were_alone(label: int) -> None:
    prior = counted()
    codebook = alone(prior)
    view = label_view(codebook, [(BOTH, prior)], NAMES[label], "squared")
    marginal = CELLS.marginal(prior.probabilities, label)
    single = LabelProblem.from_channel(codebook.channels[label], marginal)
    seen, known = Support.of(view.problem), Support.of(single)
    np.testing.assert_allclose(seen.values, known.values)
    np.testing.assert_allclose(seen.likelihood, known.likelihood, atol=1e-12)
    np.testing.assert_allclose(seen.prior, known.prior, atol=2e-3)  # floors are by cell
    assert view.column == label
    assert view.problem.together is None
    for name in ("mean", "deviation", "informativeness", "evenness", "values_alone"):
        assert getattr(view.problem, name) == pytest.approx(getattr(single, name), rel=1e-9)
    square = convex_targets(view.problem, np.square)
    np.testing.assert_allclose(square, convex_targets(single, np.square)[view.problem.value_of])


def test_a_label_that_nothing_else_was_counted_with_is_as_a_release_of_its_own() -> None:
    prior = private_prior(np.full(10, 50), 0.5, seeded_entropy(1))
    channel = build_randomizer(
        "auto", labels=AMOUNT.points, prior=prior.probabilities, epsilon=1.0
    ).channel
    own = Group((0,), Cells((AMOUNT,)))
    view = label_view(
        Codebook(("amount",), (own,), (channel,)), [(own, prior)], "amount", "absolute"
    )
    known = LabelProblem.from_channel(channel, prior.probabilities, "absolute")
    assert view.problem.to_json() == known.to_json()
    assert view.histogram is prior


@pytest.mark.parametrize("label", [0, 1])
def test_the_law_of_all_labels_is_about_cells_and_predicts_one(label: int) -> None:
    prior = counted()
    problem = label_view(together(prior), [(BOTH, prior)], NAMES[label], "squared").problem
    support = Support.of(problem)
    joint, belongs = joint_support(problem, support)
    assert joint.size == len(CELLS)
    objective = build_objective("likelihood", problem, support, "joint")
    assert isinstance(objective, JointObjective)
    at_prior = torch.zeros(1, objective.outputs)
    np.testing.assert_allclose(objective.distributions(at_prior)[0], support.prior, atol=1e-6)
    raw = torch.randn(1, objective.outputs, generator=torch.Generator().manual_seed(3))
    law = objective.family.log_probabilities(raw)[0].exp().numpy()
    marginal = np.bincount(belongs, weights=law)
    np.testing.assert_allclose(objective.distributions(raw)[0], marginal, atol=1e-6)
    assert objective.points(raw).item() == pytest.approx(marginal @ support.values, rel=1e-5)
    codes = np.arange(problem.outputs.size)
    losses = objective.loss(raw.expand(codes.size, -1), objective.targets(codes))
    wanted = -np.log(law @ joint.likelihood / support.likelihood.max(axis=0))
    np.testing.assert_allclose(losses, wanted, atol=1e-5)
    nothing = -np.log(support.prior @ (support.likelihood / support.likelihood.max(axis=0)))
    start = objective.loss(at_prior.expand(codes.size, -1), objective.targets(codes))
    np.testing.assert_allclose(start, nothing, atol=1e-5)  # on one scale with any law's losses


def test_a_law_of_all_labels_needs_labels_that_are_sent_together() -> None:
    prior = counted()
    problem = label_view(alone(prior), [(BOTH, prior)], "amount", "squared").problem
    with pytest.raises(ConfigError, match="one channel sends together; use auto"):
        build_objective("likelihood", problem, Support.of(problem), "joint")


def test_a_view_is_kept_with_a_model() -> None:
    prior = counted()
    problem = label_view(together(prior), [(BOTH, prior)], "amount", "poisson").problem
    again = LabelProblem.from_json(problem.to_json())
    support, kept = Support.of(problem), Support.of(again)
    tilts = JointObjective(problem, support).family.statistics
    assert tilts is not None
    found = JointObjective(again, kept, tilts.T.numpy().astype(np.float64))
    raw = torch.ones(1, found.outputs)
    torch.testing.assert_close(
        found.distributions(raw), JointObjective(problem, support).distributions(raw)
    )
