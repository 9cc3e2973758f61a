"""The marginal likelihood of linear functions, against the normal law of what is seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from labelveil.feature_party.ridge.evidence import Posterior, Seen, falling


def seen(rows: int, width: int) -> tuple[torch.Tensor, ...]:
    """Features, sizes of coefficients, targets and variances."""
    rng = np.random.default_rng(rows)
    features, sizes = rng.normal(size=(rows, width)), rng.uniform(0.5, 2, size=(1, width))
    targets, variance = rng.normal(size=rows), rng.uniform(0.2, 3, size=rows)
    return tuple(map(torch.as_tensor, (features, sizes, targets, variance)))


@pytest.mark.parametrize(("rows", "width"), [(3, 5), (250, 5)])
def test_the_evidence_is_the_likelihood_of_what_is_seen(rows: int, width: int) -> None:
    given = seen(rows, width)
    features, sizes, targets, variance = (each.numpy() for each in given)
    known = Posterior.of(Seen.parts(*given), width)
    weighed = features * sizes
    law = stats.multivariate_normal(cov=np.diag(variance) + weighed @ weighed.T)
    constant = -0.5 * rows * np.log(2 * np.pi)
    assert known.evidence + constant == pytest.approx(law.logpdf(targets), rel=1e-9)
    precision = np.eye(width) + weighed.T @ (weighed / variance[:, None])
    np.testing.assert_allclose((known.factor @ known.factor.T).numpy(), precision, rtol=1e-9)
    mean = np.linalg.solve(precision, weighed.T @ (targets / variance))
    np.testing.assert_allclose(known.mean[:, 0].numpy(), mean, rtol=1e-9)
    unsure = np.sum((weighed @ np.linalg.inv(precision)) * weighed, axis=1)
    off = np.sqrt((targets - weighed @ mean) ** 2 + unsure)
    np.testing.assert_allclose(known.misses(Seen.parts(*given)), off, rtol=1e-4)


@pytest.mark.parametrize(("rows", "more"), [(3, 0), (250, 0), (3, 200), (0, 300)])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_a_loss_falls_as_the_evidence_rises(rows: int, more: int, kind: torch.dtype) -> None:
    """In any direction that features move in; few rows, many, and rows of another precision."""
    width = 5
    first, others = seen(rows, width), seen(more, width)
    ways = [
        torch.as_tensor(np.random.default_rng(9).normal(size=each[0].shape))
        for each in (first, others)
    ]

    def parts(moved: torch.Tensor) -> list[Seen]:
        whole = Seen.parts(first[0] + moved * ways[0], *first[1:])
        single = Seen.parts((others[0] + moved * ways[1]).to(kind), *others[1:], kind)
        return [*whole, *(single if more else ())]

    moved = torch.zeros((), dtype=torch.float64, requires_grad=True)
    falling(parts(moved)).backward()  # type: ignore[no-untyped-call]
    low, high = (
        Posterior.of(parts(torch.tensor(by, dtype=torch.float64)), width).evidence
        for by in (-1e-3, 1e-3)
    )
    assert moved.grad is not None
    assert float(moved.grad) == pytest.approx((low - high) / 2e-3, rel=0.005)
