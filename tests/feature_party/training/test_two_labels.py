"""Two labels, one of them rare: as good as logistic regression on randomized response."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import labelveil as lv
from labelveil.common.arrays import Floats, Integers

torch = pytest.importorskip("torch")
metrics = pytest.importorskip("sklearn.metrics")

from labelveil.feature_party.config.sections import TrainingSection  # noqa: E402
from labelveil.feature_party.notebook.sources import problem_of  # noqa: E402
from labelveil.feature_party.training import quick, trees  # noqa: E402
from labelveil.feature_party.training.events import TrainingSetup  # noqa: E402
from labelveil.feature_party.training.in_memory import Prepared  # noqa: E402
from labelveil.feature_party.training.run import train  # noqa: E402
from tests.effort import effort  # noqa: E402

COLUMNS, RATE, EPSILON = 8, 0.025, 2.0


def events(rows: int, seed: int, signal: float = 1.0) -> tuple[Floats, Integers]:
    """Features, and labels that a logistic law draws: 1 for about one event in forty."""
    rng = np.random.default_rng(seed)
    features, slopes = rng.normal(size=(rows, COLUMNS)), rng.normal(size=COLUMNS)
    logits = signal * features @ (slopes / np.linalg.norm(slopes))
    # the mean of a logistic law over a normal score, nearly
    start = np.log(RATE / (1 - RATE)) - signal**2 / 2
    return features, (rng.random(rows) < expit(logits + start)).astype(int)


def logistic(features: Floats, codes: Floats, truth: float) -> Callable[[Floats], Floats]:
    """Logistic regression on randomized response that tells the truth with a probability.

    P(code 1 | x) = (1 − t) + (2t − 1) σ(a + w·x), maximised with the penalty |w|²/2.
    """
    inputs = np.c_[np.ones(len(features)), features]
    penalty = np.r_[0.0, np.ones(COLUMNS)]

    def objective(weights: Floats) -> tuple[float, Floats]:
        positive = expit(inputs @ weights)
        one = (1 - truth) + (2 * truth - 1) * positive
        seen = np.where(codes, one, 1 - one)
        slope = np.where(codes, 1, -1) / seen * (2 * truth - 1) * positive * (1 - positive)
        value = -np.log(seen).sum() + penalty @ weights**2 / 2
        return float(value), -inputs.T @ slope + penalty * weights

    start = np.r_[-3.0, np.zeros(COLUMNS)]
    found = minimize(objective, start, jac=True, method="L-BFGS-B").x
    return lambda new: expit(np.c_[np.ones(len(new)), new] @ found)


def compare(rows: int, seed: int, section: TrainingSection, signal: float = 1.0) -> Floats:
    """Log loss and AUC of a model and of the reference, and the log loss of a constant."""
    features, labels = events(rows + 20_000, seed, signal)
    private = lv.randomize_labels(labels[:rows], lower=0, upper=1, epsilon=EPSILON)
    table = pl.DataFrame({f"x{i}": column for i, column in enumerate(features.T)})
    prepared = Prepared.of_table(table[:rows], private.codes, problem_of(private))
    model = train(prepared, TrainingSetup(section))
    held = model.distributions(model.encoder.encode(table[rows:])).distributions
    assert held is not None
    truth = private.channel.probabilities[1, 1]
    reference = logistic(features[:rows], private.codes == 1, truth)(features[rows:])
    constant = np.full(20_000, private.prior[1])
    figures = [metrics.log_loss(labels[rows:], p) for p in (held[:, 1], reference, constant)]
    figures += [metrics.roc_auc_score(labels[rows:], p) for p in (held[:, 1], reference)]
    return np.array(figures)


@pytest.mark.slow
def test_a_linear_model_is_logistic_regression(repeatable: None) -> None:
    section = TrainingSection(learner="linear", checkpoint=False)
    found = np.mean([compare(30_000, seed, section) for seed in range(3)], axis=0)
    assert found[0] < 1.01 * found[1]
    assert found[3] > found[4] - 0.01


@pytest.mark.parametrize("size", [trees.SMALL, trees.LARGE])
def test_trees_doubt_a_logit_as_much_as_some_labels_say_of_it(
    monkeypatch: pytest.MonkeyPatch, repeatable: None, size: trees._Size
) -> None:
    """A true label tells of a logit a quarter at most; a pull of 30 would be that of 120 labels."""
    for name in ("SMALL", "LARGE"):
        monkeypatch.setattr(quick, name, size)
    monkeypatch.setattr(trees, "ROUNDS", 1)
    side = np.arange(200) % 2
    private = lv.randomize_labels(side, lower=0, upper=1, epsilon=4)
    table = pl.DataFrame({"side": side})
    prepared = Prepared.of_table(table, private.codes, problem_of(private))
    section = TrainingSection(learner="trees", checkpoint=False)
    model = train(prepared, TrainingSetup(section))
    (expert,), ends = model.experts, model.encoder.encode(table[:2])
    outputs = expert.learned(
        torch.as_tensor(ends.numeric)[None], torch.as_tensor(ends.categories)[None]
    )
    step = float((outputs[:, 1, 0] - outputs[:, 0, 0]).mean())
    # what the mean of half the codes says, as Fisher scoring takes it: (t - 1/2) / (t (1 - t))
    told, seen = private.channel.probabilities[1, 1], private.codes[side == 1].mean()
    slope = (2 * told - 1) / 4
    whole = 2 * (seen - 0.5) / 0.25 * slope / (slope**2 / 0.25)
    rows, believed = 75 * slope**2 / 0.25, size.pull * 0.25
    rate = trees._PARAMETERS["learning_rate"]
    assert step == pytest.approx(rate * whole * rows / (rows + believed), rel=0.1)


@pytest.mark.slow
def test_all_learners_begin_alike(repeatable: None) -> None:
    """Two labels have no shape that many parameters could get wrong: not even 72 true labels' worth
    leaves the first learner alone."""
    features, labels = events(1000, 0)
    private = lv.randomize_labels(labels, lower=0, upper=1, epsilon=EPSILON)
    table = pl.DataFrame({f"x{i}": column for i, column in enumerate(features.T)})
    prepared = Prepared.of_table(table, private.codes, problem_of(private))
    section = TrainingSection(epochs=2, checkpoint=False)
    model = train(prepared, TrainingSetup(section))
    assert max(head.weight for head in model.facts.heads.values()) < 0.75


@pytest.mark.slow
def test_nothing_to_learn_is_no_worse_than_a_constant(repeatable: None) -> None:
    section = TrainingSection(learner="linear", checkpoint=False)
    for seed in range(3):
        found = compare(30_000, seed, section, signal=0.0)
        assert found[0] < 1.01 * found[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_default_is_as_good_over_some_releases(repeatable: None) -> None:
    section = TrainingSection(checkpoint=False)
    found = np.array([compare(30_000, seed, section) for seed in range(effort(2, 10))])
    assert (found[:, 0] < 1.01 * found[:, 2]).all()
    mean = found.mean(axis=0)
    assert mean[0] < 1.01 * mean[1]
    assert mean[3] > mean[4] - 0.01
