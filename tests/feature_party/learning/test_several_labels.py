"""A view of one label among several, and the law of all labels that a channel sends together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers import build_randomizer, private_prior
from labelveil.common.randomizers.cells import Cells, Codebook, Group
from labelveil.common.randomizers.prior import NoisyPrior
from labelveil.feature_party.learning.decoding import convex_targets, decoder
from labelveil.feature_party.learning.objectives import JointObjective, build_objective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_labels import joint_support, label_view
from labelveil.feature_party.learning.support import Support
from tests.effort import one_in
from tests.feature_party.two_labels import BOTH, CELLS, NAMES, channel_of_both, channels_alone


def counted() -> NoisyPrior:
    """A histogram in which returned orders are the dear ones."""
    amounts = np.arange(10)
    kept, returned = 900 * 0.7**amounts, 60 * 0.9**amounts
    counts = np.concatenate([kept, returned]).astype(np.int64)
    return private_prior(counts, 0.5, seeded_entropy(7))


@pytest.mark.parametrize("book", one_in(2, [channels_alone, channel_of_both], first=1))
@pytest.mark.parametrize("label", [0, 1])
def test_a_label_is_decoded_without_bias_whatever_the_others_are(book, label: int) -> None:  # type: ignore[no-untyped-def]
    prior = counted()
    codebook = book(prior)
    view = label_view(codebook, [(BOTH, prior)], NAMES[label], "squared")
    decoded = decoder(view.problem, view.problem.grid)
    assert decoded.exact
    told = codebook.likelihood @ decoded.values[view.codes, 0]
    span = np.ptp(CELLS.grids[label].points)
    np.testing.assert_allclose(told, CELLS.points[:, label], atol=1e-5 * span)


@pytest.mark.parametrize("label", [0, 1])
def test_a_label_with_a_channel_of_its_own_is_learned_as_if_it_were_alone(label: int) -> None:
    prior = counted()
    codebook = channels_alone(prior)
    view = label_view(codebook, [(BOTH, prior)], NAMES[label], "squared")
    marginal = CELLS.marginal(prior.probabilities, label)
    single = LabelProblem.from_channel(codebook.channels[label], marginal)
    seen, known = Support.from_problem(view.problem), Support.from_problem(single)
    np.testing.assert_allclose(seen.values, known.values)
    np.testing.assert_allclose(seen.likelihood, known.likelihood, atol=1e-12)
    np.testing.assert_allclose(seen.prior, known.prior, atol=2e-3)  # floors are by cell
    assert np.array_equal(view.codes, codebook.split(np.arange(codebook.outputs))[:, label])
    assert view.problem.joint_values is None
    for name in ("mean", "deviation", "informativeness", "evenness", "discrete"):
        assert getattr(view.problem, name) == pytest.approx(getattr(single, name), rel=1e-9)
    square = convex_targets(view.problem, np.square)
    np.testing.assert_allclose(square, convex_targets(single, np.square)[view.problem.value_of])


def test_a_label_that_nothing_else_was_counted_with_is_as_a_release_of_its_own() -> None:
    prior = private_prior(np.full(10, 50), 0.5, seeded_entropy(1))
    channel = build_randomizer(
        "auto", labels=CELLS.grids[1].points, prior=prior.probabilities, epsilon=1.0
    ).channel
    own = Group((0,), Cells((CELLS.grids[1],)))
    view = label_view(
        Codebook(("amount",), (own,), (channel,)), [(own, prior)], "amount", "absolute"
    )
    known = LabelProblem.from_channel(channel, prior.probabilities, "absolute")
    assert view.problem.to_json() == known.to_json()
    assert view.histogram is prior


@pytest.mark.parametrize("label", [0, 1])
def test_the_law_of_all_labels_is_about_cells_and_predicts_one(label: int) -> None:
    prior = counted()
    problem = label_view(channel_of_both(prior), [(BOTH, prior)], NAMES[label], "squared").problem
    support = Support.from_problem(problem)
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
    problem = label_view(channels_alone(prior), [(BOTH, prior)], "amount", "squared").problem
    with pytest.raises(ConfigError, match="one channel sends together; use auto"):
        build_objective("likelihood", problem, Support.from_problem(problem), "joint")


def test_a_view_is_kept_with_a_model() -> None:
    prior = counted()
    problem = label_view(channel_of_both(prior), [(BOTH, prior)], "amount", "poisson").problem
    again = LabelProblem.from_json(problem.to_json())
    support, kept = Support.from_problem(problem), Support.from_problem(again)
    tilts = JointObjective(problem, support).family.statistics
    assert tilts is not None
    found = JointObjective(again, kept, tilts.T.numpy().astype(np.float64))
    raw = torch.ones(1, found.outputs)
    torch.testing.assert_close(
        found.distributions(raw), JointObjective(problem, support).distributions(raw)
    )
