"""The ridge says what it does not know, and learns from a sample of large groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import labelveil as lv
from labelveil.common.arrays import Floats, Indices
from labelveil.feature_party.notebook.sources import problem_of
from labelveil.feature_party.ridge import fit as ridges
from labelveil.feature_party.ridge.codes import CodeRows
from labelveil.feature_party.ridge.fit import RidgeFit
from labelveil.feature_party.ridge.law import SumRows
from labelveil.feature_party.ridge.ridge import Ridge, Sparse, compressed, features_of
from labelveil.feature_party.ridge.wave_sums import WaveSums

ROWS, GROUPS = 6000, 200


def rows_of(groups: Indices, labels: Floats) -> SumRows:
    """Sums of all rows' labels, with next to no noise."""
    n, count = groups.size, int(groups.max()) + 1
    sums = np.bincount(groups, labels, minlength=count)
    none, all_open = np.zeros(n), np.ones(n, dtype=np.bool_)
    return SumRows(
        np.arange(n), groups, none, none + 10, all_open, none + 1, sums, np.full(count, 0.01)
    )


def fitted(inputs: Floats, groups: Indices) -> tuple[Ridge, Floats]:
    rng = np.random.default_rng(1)
    truth = 5 + 2 * np.sin(2 * inputs[:, 0])
    labels = truth + 0.3 * rng.normal(size=truth.size)
    return RidgeFit(
        inputs[: groups.size], rows_of(groups, labels[: groups.size]), 0, 10, 0
    ).run(), truth


@pytest.mark.slow
def test_what_is_not_known_is_where_nothing_was_asked() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2, 0, size=(ROWS, 2))
    order = np.argsort(inputs[:, 0])
    groups = np.empty(ROWS, dtype=np.int64)
    groups[order] = np.arange(ROWS) * GROUPS // ROWS
    ridge, truth = fitted(inputs, groups)
    assert np.mean((ridge.predict(inputs) - truth) ** 2) < 0.02
    seen, beyond = (
        np.sum(ridge.predict_with_doubts(at)[1] ** 2, axis=1).mean() for at in (inputs, inputs + 2)
    )
    assert beyond > 10 * seen
    # these directions hold most of what the posterior says
    assert 0.9 * ridge.doubt**2 < seen < 1.001 * ridge.doubt**2


@pytest.fixture
def unequal(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Events in groups of very different sizes, of which scales are learned by a sixth."""
    monkeypatch.setattr(ridges, "_EVENTS", ROWS // 6)
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-2, 2, size=(ROWS, 3))
    order = np.argsort(inputs[:, 0])
    groups = np.empty(ROWS, dtype=np.int64)
    sizes = rng.dirichlet(np.ones(GROUPS))
    groups[order] = np.minimum(
        np.searchsorted(np.cumsum(sizes), np.arange(ROWS) / ROWS), GROUPS - 1
    )
    return inputs, np.unique(groups, return_inverse=True)[1]


def test_of_large_groups_some_events_stand_for_all(unequal: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, groups = unequal
    fit = RidgeFit(inputs, rows_of(groups, np.zeros(ROWS)), 0, 10, 0)
    fit.z = fit.first_predictions
    fit._linearize()
    picked = fit._picked()
    whole, there = np.bincount(groups), np.bincount(groups[picked.numpy()])
    assert there.sum() <= ROWS // 6
    most = there.max()
    assert np.array_equal(there, np.minimum(whole, most))  # as many of each, and none left out
    with torch.no_grad():
        events = picked, torch.arange(ROWS)
        some, every = (fit._summed(fit._part(each)).numpy() for each in events)
    assert np.allclose(some[:, 0], whole)  # a constant's
    # and of the column that groups are alike in
    assert np.linalg.norm((some - every)[:, 1]) < 0.1 * np.linalg.norm(every[:, 1])


@pytest.mark.slow
def test_scales_are_learned_by_some_events(unequal: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, groups = unequal
    ridge, truth = fitted(inputs, groups)
    assert np.mean((ridge.predict(inputs) - truth) ** 2) < 0.1
    scales = ridge.scales.numpy()
    assert scales[0] > 3 * scales[1:].max()


@pytest.mark.slow
def test_values_of_categories_are_learned_from_alike_in_either_form() -> None:
    """Columns of mostly zeros, whole and as what is not 0 of them."""
    rng = np.random.default_rng(6)
    values, groups = rng.integers(0, 40, ROWS), rng.integers(0, GROUPS, ROWS)
    inputs = np.column_stack([rng.normal(size=ROWS), values[:, None] == np.arange(40)])
    inputs = inputs.astype(np.float32)
    labels = 5 + inputs[:, 0] + (values < 20)
    few = compressed(inputs)
    assert isinstance(few, Sparse)
    assert few.nnz == np.count_nonzero(inputs)
    found = [
        RidgeFit(rows, rows_of(groups, labels), 0, 10, 0).run().predict(inputs)
        for rows in (inputs, few)
    ]
    np.testing.assert_allclose(*found, atol=0.01)


@pytest.mark.slow
def test_of_many_sums_those_that_teach_no_scales_teach_coefficients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one column changes is told by sums that no scale is learned by."""
    monkeypatch.setattr(ridges, "_SUMS", 60)
    rng = np.random.default_rng(7)
    inputs = rng.uniform(-2, 2, size=(ROWS, 2))
    groups = np.argsort(np.argsort(inputs[:, 0])) * GROUPS // ROWS
    labels = 5 + np.sin(4 * inputs[:, 0])
    clipped = replace(rows_of(groups, labels), open_ended=np.zeros(ROWS, dtype=np.bool_))
    points = RidgeFit(inputs, clipped, 0, 10, 0).run().predict(inputs)
    assert np.mean((points - labels) ** 2) < 0.02


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_of_waves_and_their_slopes_are_those_of_single_rows(sparse: bool) -> None:
    """Against double precision that follows every row back by itself."""
    rng = np.random.default_rng(3)
    rows, width, waves, count = 1500, 40, 7, 3  # more than the cache holds at a time
    inputs = rng.normal(size=(rows, width)).astype(np.float32)
    inputs[rng.random(inputs.shape) < 0.95] = 0
    x = compressed(inputs) if sparse else torch.as_tensor(inputs)
    assert isinstance(x, Sparse) == sparse
    groups = torch.as_tensor(rng.integers(0, count, rows))
    weights = torch.as_tensor(rng.uniform(-2, 2, rows).astype(np.float32))
    frequencies = torch.as_tensor(rng.normal(size=(width, waves)).astype(np.float32))
    phases = torch.as_tensor(rng.uniform(0, 6, waves).astype(np.float32))
    scales = torch.as_tensor(rng.uniform(0.5, 2, width).astype(np.float32)).requires_grad_()
    room = torch.empty(rows, waves)
    found = WaveSums.apply(  # type: ignore[no-untyped-call]
        scales, x, weights, groups, count, frequencies, phases, room
    )
    pulled = torch.as_tensor(rng.normal(size=(count, waves)))
    (found.double() * pulled).sum().backward()

    exact = scales.detach().double().requires_grad_()
    angles = (torch.as_tensor(inputs).double() * exact) @ frequencies.double() + phases.double()
    each = weights.double()[:, None] * (2 / waves) ** 0.5 * torch.cos(angles)
    expected = torch.stack([each[groups == group].sum(dim=0) for group in range(count)])
    (expected * pulled).sum().backward()
    np.testing.assert_allclose(found.detach(), expected.detach(), atol=1e-3)
    assert scales.grad is not None
    assert exact.grad is not None
    np.testing.assert_allclose(scales.grad, exact.grad, rtol=1e-3, atol=1e-3)


def test_some_sums_keep_all_that_belongs_to_them() -> None:
    rng = np.random.default_rng(4)
    events, count = 60, 9
    groups = np.append(np.arange(count), rng.integers(0, count, events - count))
    facts = [rng.normal(size=events) for _ in range(3)]
    data = SumRows(
        *(rng.permutation(100)[:events], groups, facts[0], facts[1], facts[0] > 0, facts[2]),
        *(rng.normal(size=count), rng.normal(size=count)),
    )
    chosen = np.array([1, 2, 5, 8])
    some = data.select(chosen)
    within = np.isin(groups, chosen)
    assert chosen[some.groups].tolist() == groups[within].tolist()
    assert (some.sums.tolist(), some.noise.tolist()) == (
        data.sums[chosen].tolist(), data.noise[chosen].tolist()
    )  # fmt: skip
    for name in ("rows", "offsets", "widths", "open_ended", "weights"):
        assert np.array_equal(getattr(some, name), getattr(data, name)[within])
    assert np.allclose(some.by_group(some.weights), data.by_group(data.weights)[chosen])


def test_scales_are_learned_by_some_sums_and_coefficients_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a step costs is bounded; of 40 sums out of 400 scales are found, and no more is known
    of coefficients than all of them tell."""
    monkeypatch.setattr(ridges, "_SUMS", 40)
    for name, steps in (("STEPS", (15, 3)), ("FEATURES", 40)):
        monkeypatch.setattr(ridges, name, steps)
    rng = np.random.default_rng(6)
    rows = 1200
    inputs = rng.uniform(-2, 2, size=(rows, 3))
    groups = np.argsort(np.argsort(inputs[:, 0])) * 400 // rows
    truth = 5 + 2 * np.sin(2 * inputs[:, 0])
    clipped = {"offsets": np.full(rows, 5.0), "widths": np.full(rows, 2.5)}
    data = replace(rows_of(groups, truth - 5), open_ended=truth < 6, **clipped)
    fit = RidgeFit(inputs, data, 0, 10, 0)
    assert (fit.few_sums.sums.size, fit.data.sums.size) == (40, 400)
    seen, falling = set[int](), fit._falling

    def count(sums: torch.Tensor, coded: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        seen.add(len(sums))
        return falling(sums, coded)

    monkeypatch.setattr(fit, "_falling", count)
    ridge = fit.run()
    assert seen == {40}
    assert fit.far is not None
    assert fit.far.size == 400
    assert ridge.scales[0] > 3 * ridge.scales[1:].max()
    assert np.mean((ridge.predict(inputs) - truth) ** 2) < 0.05 * truth.var()


@pytest.mark.slow
def test_what_columns_do_one_by_one_takes_few_sums_to_learn() -> None:
    rng = np.random.default_rng(2)
    inputs = rng.uniform(-2, 2, size=(1_600, 8))
    truth = 5 + np.sin(2 * inputs).sum(axis=1)
    groups = np.arange(600)
    ridge = RidgeFit(inputs[:600], rows_of(groups, truth[:600]), 0, 10, 0, along=0.5).run()
    left = np.mean((ridge.predict(inputs[600:]) - truth[600:]) ** 2) / truth.var()
    assert left < 0.35


def test_the_evidence_of_a_constant_is_the_likelihood_of_the_sums() -> None:
    rng = np.random.default_rng(5)
    inputs, labels = rng.uniform(-1, 1, size=(300, 3)), rng.uniform(0, 10, size=300)
    codes = lv.randomize_labels(labels[200:], lower=0, upper=10, epsilon=2)
    beside = CodeRows.from_problem(problem_of(codes, codes.codes), codes.codes, np.arange(200, 300))
    for coded in (None, beside):
        rows = rows_of(np.arange(200) % 40, labels[:200])
        fit = RidgeFit(inputs, rows, 0, 10, 0, codes=coded)
        found, likely = fit.constant_evidence(), []
        for fit.deviation in ridges._DEVIATIONS:
            fit._linearize()
            seen, noise = fit.targets.numpy(), fit.variance.numpy()
            level, more = fit.data.by_group(fit.slopes.double().numpy()), 0.0
            if coded is not None:
                seen = np.append(seen, fit.seen.numpy())
                noise = np.append(noise, fit.seen_variance.numpy())
                level, more = np.append(level, np.ones(100)), float(fit.likelier.sum())
            law = stats.multivariate_normal(cov=np.diag(noise) + np.outer(level, level))
            prior = stats.norm(0, ridges._SPREAD).logpdf(np.log(fit.deviation / ridges._DEVIATION))
            constant = (seen.size + 1) / 2 * np.log(2 * np.pi) + np.log(ridges._SPREAD)
            likely.append(law.logpdf(seen) + prior + constant + more)
        assert found == pytest.approx(max(likely), rel=1e-6)


def small(noise: float = 1.0, coded: bool = False, groups: int = 30) -> RidgeFit:
    """A fit to sums of a wave's labels, and codes of others, of few waves: in milliseconds."""
    rng = np.random.default_rng(8)
    inputs = rng.uniform(-2, 2, size=(300, 3)).astype(np.float32)
    labels = 5 + 2 * np.sin(2 * inputs[:, 0]) + 0.5 * rng.normal(size=300)
    data = rows_of(np.argsort(np.argsort(inputs[:200, 0])) * groups // 200, labels[:200])
    sums = data.sums + rng.laplace(scale=noise, size=groups)
    data = replace(data, sums=sums, noise=np.full(groups, 2 * noise**2))
    beside = None
    if coded:
        codes = lv.randomize_labels(labels[200:], lower=0, upper=10, epsilon=2)
        beside = CodeRows.from_problem(
            problem_of(codes, codes.codes), codes.codes, np.arange(200, 300)
        )
    return RidgeFit(inputs, data, 0, 10, 0, codes=beside, waves=30, steps=(5, 2))


@pytest.mark.parametrize("coded", [False, True])
def test_the_evidence_is_the_likelihood_of_sums_and_codes_and_is_climbed(coded: bool) -> None:
    """Against a normal law of all of them at once, in covariances, and differences of it."""
    fit = small(coded=coded)
    fit.z, picked = fit.first_predictions, fit._picked()
    fit._linearize()
    ridge = fit.log_scales.exp(), fit.frequencies, fit.phases, fit.logs[1].exp()
    with torch.no_grad():
        rows = features_of(fit.inputs, *ridge).double().numpy()  # type: ignore[arg-type]
    seen = np.stack([fit.data.by_group(column[:200]) for column in rows.T], axis=1)
    targets, noise, more = fit.targets.numpy(), fit.variance.numpy(), 0.0
    if coded:
        seen = np.concatenate([seen, rows[200:]])
        targets = np.append(targets, fit.seen.numpy())
        noise = np.append(noise, fit.seen_variance.numpy())
        more = float(fit.likelier.sum())
    size = float(fit.logs[0].detach().exp())
    expected = np.append(1.0, np.full(seen.shape[1] - 1, size))
    signal = (seen * expected**2) @ seen.T
    law = stats.multivariate_normal(cov=signal + np.diag(noise))
    level = targets.size / 2 * np.log(2 * np.pi) + more

    part, codes = fit._part(picked), fit._parts_of_codes(fit.few_codes)

    def evidence() -> float:
        with torch.no_grad():
            return fit._posterior(fit._summed(part), fit._of_codes(codes)).evidence

    assert evidence() == pytest.approx(law.logpdf(targets) + level, rel=1e-4)
    # what is off: the miss of what is then predicted, and its own deviation
    with torch.no_grad():
        summed = fit._summed(part)
        known = fit._posterior(summed, fit._of_codes(codes))
        off = known.misses(fit._seen(summed, []))
    gain = signal[:30] @ np.linalg.inv(signal + np.diag(noise))
    unsure = np.diag(signal)[:30] - np.einsum("ij,ij->i", gain, signal[:30])
    np.testing.assert_allclose(off**2, (targets[:30] - gain @ targets) ** 2 + unsure, rtol=1e-2)
    # and its slope is what is stepped along
    fit._falling(fit._summed(part), fit._of_codes(codes)).backward()  # type: ignore[no-untyped-call]
    for learned in (fit.log_scales, fit.logs):
        assert learned.grad is not None
        for place, slope in enumerate(learned.grad):
            at, around = float(learned[place].detach()), []
            for moved in (0.02, -0.02):
                learned.data[place] = at + moved
                around.append(evidence())
            learned.data[place] = at
            assert float(slope) == pytest.approx((around[1] - around[0]) / 0.04, rel=0.02, abs=0.02)


def test_where_a_constant_is_far_likelier_the_mean_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ridges, "_SUMS", 12)  # scales are learned by some of them
    fit = small()
    ridge = fit.run(constant=1e6)
    points = ridge.predict(fit.inputs)
    assert points.std() < 1e-4
    assert points.mean() == pytest.approx(5, abs=1)
    # and where it is not, what columns say; by all sums, around what was predicted of all events
    fit = small()
    ridge = fit.run(constant=-1e6)
    points = ridge.predict(fit.inputs)
    assert points.std() > 0.5
    others = ~np.isin(fit.data.groups, fit.places)
    assert fit.z[:200][others].std() > 0.5
    assert ridge.miss == pytest.approx((ridge.deviation**2 + ridge.doubt**2) ** 0.5)


def test_codes_are_looked_at_around_what_is_predicted_whichever_sums_teach_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ridges, "_SUMS", 12)
    fit, spread = small(coded=True), list[float]()
    predict = fit._predict

    def noted(ridge: Ridge) -> None:
        predict(ridge)
        spread.append(float(fit.z[200:].std()))

    monkeypatch.setattr(fit, "_predict", noted)
    fit.run(constant=-1e6)
    assert len(spread) == 3
    assert min(spread) > 0.1


def test_scales_are_learned_around_what_is_predicted_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the deviation that is taken now, which decides how much a sum counts."""
    fit, fresh = small(coded=True), list[bool]()
    learn = fit._learn

    def noted(steps: int, picked: torch.Tensor, after_step: Any) -> None:
        known = fit.variance.clone(), fit.seen.clone()
        fit._linearize(picked)
        fresh.append(torch.equal(known[0], fit.variance) and torch.equal(known[1], fit.seen))
        learn(steps, picked, after_step)

    monkeypatch.setattr(fit, "_learn", noted)
    fit.run()
    assert fresh == [True] * 3


def test_what_is_not_known_is_in_units_of_the_label() -> None:
    """Twenty directions hold nearly all of it."""
    fit = small()
    ridge = fit.run()
    unknown = np.sum(ridge.predict_with_doubts(fit.inputs)[1] ** 2, axis=1).mean()
    assert 0.8 * ridge.doubt**2 < unknown < 1.001 * ridge.doubt**2


def test_of_neighbouring_deviations_the_likeliest_is_taken() -> None:
    """Of all quarters of a doubling, and not of every other one alone."""
    found = []
    for noise in (0.1, 0.3, 1.0, 3.0):
        fit = small(noise, groups=200)
        fit.z, picked = fit.first_predictions, fit._picked()
        fit._linearize(picked)
        fit._learn_deviation(picked)
        best = round(4 * np.log2(fit.deviation / ridges._DEVIATION))
        evidence = {}
        for quarter in (best - 1, best, best + 1):
            fit.deviation = ridges._DEVIATION * 2 ** (quarter / 4)
            fit._linearize(picked)
            with torch.no_grad():
                evidence[quarter] = fit._posterior(fit._summed(fit._part(picked)), []).evidence
        if best - 1 in ridges._QUARTERS and best + 1 in ridges._QUARTERS:
            assert max(evidence, key=lambda quarter: evidence[quarter]) == best
            found.append(best)
    assert any(best % 2 for best in found)


def test_a_wave_runs_along_some_column() -> None:
    fit = RidgeFit(np.zeros((9, 8)), rows_of(np.arange(9), np.ones(9)), 0, 10, 0, along=0.3)
    assert (fit.frequencies != 0).any(dim=0).all()
    assert (fit.frequencies != 0).float().mean() < 0.5


def test_of_picked_events_each_stands_for_as_many_as_are_left_out(
    unequal: tuple[np.ndarray, np.ndarray],
) -> None:
    inputs, groups = unequal
    fit = RidgeFit(inputs, rows_of(groups, np.full(ROWS, 3.0)), 0, 10, 0)
    fit.z = fit.first_predictions + 7  # alike in all of them
    fit._linearize()
    whole = fit.targets.clone()
    fit._linearize(fit._picked())
    np.testing.assert_allclose(fit.targets, whole, rtol=1e-6)


def test_a_sum_that_is_far_off_counts_for_less() -> None:
    """Of Laplace noise alone a miss r has the variance r b, with b its scale."""
    fit = small(noise=20.0)
    fit.z = fit.first_predictions
    fit._linearize()
    own = fit.variance.clone()
    fit.far = np.full(30, np.nan)
    fit.far[:2] = 2.0, 40.0
    fit._weigh()
    expected = np.array([2.0, 40.0]) * 20 / 10
    np.testing.assert_allclose(fit.variance[:2], expected, rtol=0.1)
    np.testing.assert_array_equal(fit.variance[2:], own[2:])


def test_columns_of_mostly_zeros_are_compressed_wherever_the_others_lie() -> None:
    few = np.zeros((20_000, 100), dtype=np.float32)
    few[:1_200] = 1
    assert isinstance(compressed(few), Sparse)
    assert (compressed(few).toarray() == few).all()  # type: ignore[union-attr]
    assert not isinstance(compressed(few[:, :8]), Sparse)
    assert not isinstance(compressed(np.ones((50, 100), dtype=np.float32)), Sparse)


@pytest.mark.slow
def test_scales_follow_the_slope_of_the_evidence() -> None:
    rng = np.random.default_rng(5)
    inputs, labels = rng.uniform(-1, 1, size=(3_000, 3)), rng.uniform(0, 10, size=3_000)
    groups = np.arange(2_000) % 40  # parts of rows that the cache holds are of all groups
    codes = lv.randomize_labels(labels[2_000:], lower=0, upper=10, epsilon=2)
    beside = CodeRows.from_problem(
        problem_of(codes, codes.codes), codes.codes, np.arange(2_000, 3_000)
    )
    fit = RidgeFit(inputs, rows_of(groups, labels[:2_000]), 0, 10, 0, codes=beside)
    fit.z, picked = fit.first_predictions, fit._picked()
    fit._linearize()

    part, coded = fit._part(picked), fit._parts_of_codes(fit.few_codes)

    def evidence() -> float:
        with torch.no_grad():
            return fit._posterior(fit._summed(part), fit._of_codes(coded)).evidence

    fit._falling(fit._summed(part), fit._of_codes(coded)).backward()  # type: ignore[no-untyped-call]
    for learned in (fit.log_scales, fit.logs):
        assert learned.grad is not None
        for place, slope in enumerate(learned.grad):
            at, around = float(learned[place].detach()), []
            for moved in (0.01, -0.01):
                learned.data[place] = at + moved
                around.append(evidence())
            learned.data[place] = at
            assert float(slope) == pytest.approx((around[1] - around[0]) / 0.02, rel=0.01)


@pytest.mark.slow
def test_where_no_column_matters_predictions_are_nearly_a_constant() -> None:
    """Sums of noise alone: a ridge half as likely as a constant counts for a third beside it. By
    itself it strays three times as far, by 0.16 in the mean of these."""
    inputs, groups = np.random.default_rng(3).normal(size=(1000, 3)), np.empty(1000, dtype=np.int64)
    groups[np.argsort(inputs[:, 0])] = np.arange(1000) // 25
    data, strayed = rows_of(groups, np.full(1000, 5.0)), []
    for seed in range(3):
        noise = 60 * np.random.default_rng(seed).normal(size=data.sums.size)
        noisy = replace(data, sums=data.sums + noise, noise=np.full(noise.size, 60.0**2))
        ridge = RidgeFit(inputs, noisy, 0, 10, seed).run()
        assert ridge.gain < 0
        strayed.append(ridge.predict(inputs).std())
    assert np.mean(strayed) < 0.1
