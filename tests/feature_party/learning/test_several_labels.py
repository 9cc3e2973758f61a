"""A view of one label among several, and the law of all labels that a channel sends together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.randomizers import build_randomizer, private_prior
from labelveil.common.randomizers.cells import Cells, Group
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.message.codebooks import Codebook, Codebooks
from labelveil.common.randomizers.prior import NoisyPrior
from labelveil.feature_party.learning.decoding import convex_targets, decoder
from labelveil.feature_party.learning.objectives import JointObjective, build_objective
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_labels import joint_support, label_view, strata_view
from labelveil.feature_party.learning.several_releases import join_problems
from labelveil.feature_party.learning.sources import join_sources
from labelveil.feature_party.learning.support import Support
from tests.effort import one_in
from tests.feature_party.two_labels import (
    BOTH,
    CELLS,
    EACH,
    NAMES,
    channel_of_both,
    channels_alone,
)


def counted() -> NoisyPrior:
    """A histogram in which returned orders are the dear ones."""
    amounts = np.arange(10)
    kept, returned = 900 * 0.7**amounts, 60 * 0.9**amounts
    counts = np.concatenate([kept, returned]).astype(np.int64)
    return private_prior(counts, 0.5, seeded_entropy(7))


@pytest.mark.slow
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


@pytest.mark.parametrize(("amounts", "outputs"), [(8, 16), (9, 6)])
def test_few_cells_have_a_logit_each(amounts: int, outputs: int) -> None:
    """Of 2 × 8; of more the six directions that the channel tells of most."""
    cells = Cells((Grid.from_count(0, 1, 2), Grid.from_count(0, amounts - 1, amounts)))
    group = Group((0, 1), cells)
    count = len(cells)
    rows = randomized_response_rows(count, 2.0)
    book = Codebook(NAMES, (group,), (FiniteChannel(np.arange(count), np.arange(count), rows),))
    prior = private_prior(np.arange(50, 50 + count), 0.5, seeded_entropy(1))
    problem = label_view(book, [(group, prior)], "amount", "squared").problem
    support = Support.from_problem(problem)
    joint, _ = joint_support(problem, support)
    assert (joint.size, joint.discrete) == (count, count == 16)
    assert build_objective("likelihood", problem, support, "joint").outputs == outputs


def test_releases_that_count_labels_together_are_of_one_grid() -> None:
    prior = counted()
    first, second = (
        label_view(channel_of_both(prior, epsilon), [(BOTH, prior)], "amount", "squared").problem
        for epsilon in (1.0, 2.0)
    )
    joint = join_problems([first, second], [1, 3])
    assert joint.joint_values is first.joint_values
    assert join_problems([first, replace(second, joint_values=None)], [1, 1]).joint_values is None
    other = second.grid.copy()
    other[(other > 0) & (other < 90)] += 1
    with pytest.raises(DataError, match="count several labels together on other grids cannot be"):
        join_problems([first, replace(second, grid=other)], [1, 1])
    with pytest.raises(DataError, match="counted together, of several labels parties, cannot be"):
        join_sources([first, second], [1, 1], ["a", "b"])


def test_a_label_of_strata_is_seen_through_each_ones_channel() -> None:
    """With the law of its own, and all of them with the histogram that counted all."""
    laws = np.array([0.8, 0.2, *[0.0] * 8]), np.array([*[0.0] * 8, 0.5, 0.5])
    own = EACH[1]
    books = Codebooks(
        tuple(
            Codebook(("amount",), (Group((0,), own.cells),), (book.channels[1],))
            for book in (channels_alone(counted(), epsilon) for epsilon in (1.0, 2.0))
        )
    )
    (group,), pooled = books.groups, private_prior(np.full(10, 50), 0.5, seeded_entropy(1))
    released: Any = SimpleNamespace(
        laws_of_strata=[{group: law} for law in laws], priors={group: pooled}
    )
    view = strata_view(books, released, [100, 300], "amount", "absolute")
    assert view.histogram.probabilities.tolist() == pooled.probabilities.tolist()
    assert view.problem.loss == "absolute"
    assert [leg.share for leg in view.problem.legs] == [0.25, 0.75]
    assert [leg.release for leg in view.problem.legs] == [0, 0]
    for leg, law, book in zip(view.problem.legs, laws, books.books, strict=True):
        assert leg.prior == pytest.approx(law)
        assert leg.channel == pytest.approx(book.channels[0].probabilities)
    assert view.codes.tolist() == [*range(books.outputs)]


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
