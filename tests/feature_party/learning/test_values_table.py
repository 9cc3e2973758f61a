"""Derivatives of few values: those of the likelihood, and the information they come from."""

from __future__ import annotations

import numpy as np
import pytest

from labelveil.common.randomizers import build_randomizer
from labelveil.feature_party.learning.derivatives import ValuesTable
from labelveil.feature_party.learning.heads import LinearHead, build_head
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support

CASES = [("bernoulli", 2), ("softmax", 2), ("softmax", 5)]


def table_of(head: str, values: int) -> tuple[ValuesTable, LabelProblem]:
    prior = np.arange(1, values + 1) / np.arange(1, values + 1).sum()
    response = build_randomizer(
        "randomized-response", labels=np.arange(values), prior=prior, epsilon=1.5
    )
    problem = LabelProblem.from_channel(response.channel, prior)
    support = Support.from_problem(problem)
    built = build_head(head, support)
    assert isinstance(built, LinearHead)
    return ValuesTable(built, support.likelihood), problem


@pytest.mark.parametrize(("head", "values"), CASES)
def test_gradients_are_those_of_the_loss(head: str, values: int) -> None:
    table, problem = table_of(head, values)
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(100, table.outputs))
    codes = rng.integers(0, problem.outputs.size, 100)
    losses, gradient, _ = table.derivatives(raw, codes)
    np.testing.assert_allclose(losses, table.loss(raw, codes))
    for output in range(table.outputs):
        step = 1e-5 * np.eye(table.outputs)[output]
        slope = (table.loss(raw + step, codes) - table.loss(raw - step, codes)) / 2e-5
        np.testing.assert_allclose(gradient[:, output], slope, rtol=0.2, atol=1e-6)
        near = np.abs(raw[:, output]) < 0.5  # beyond, Bernoulli's outputs are softly bounded
        np.testing.assert_allclose(gradient[near, output], slope[near], rtol=0.02, atol=1e-7)


@pytest.mark.parametrize(("head", "values"), CASES)
def test_the_hessian_is_the_fisher_information(head: str, values: int) -> None:
    table, problem = table_of(head, values)
    raw = np.random.default_rng(0).normal(size=(50, table.outputs))
    codes = problem.outputs.size
    expected = np.zeros_like(raw)
    for code in range(codes):
        losses, gradient, information = table.derivatives(raw, np.full(50, code))
        expected += np.exp(-losses)[:, None] * gradient**2
    np.testing.assert_allclose(information, expected, rtol=1e-9)
