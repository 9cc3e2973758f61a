"""Numbers that dp-accounting's own tests hold its accountants to, written out.

Source: github.com/google/differential-privacy, python/dp_accounting/dp_accounting,
rdp/rdp_privacy_accountant_test.py and pld/pld_privacy_accountant_test.py (Apache 2.0).
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from labelveil.common.guarantees import epsilon_at, subsampled_gaussian, to_renyi
from labelveil.common.guarantees.gaussian import gaussian_delta, gaussian_zcdp
from labelveil.common.guarantees.pld import PrivacyLoss, available

needs_pld = pytest.mark.skipif(
    not available(), reason="dp-accounting is not installed (labelveil[pld])"
)

POISSON_SAMPLED = {1.5: 6.70579741e-04, 2.5: 1.08548710e-03, 5: 2.18075656e-03, 50: 2.3846e-02}
"""Rényi divergence by order: 50 steps of rate 0.01 with a noise multiplier of 2.5."""


@pytest.mark.parametrize("order", POISSON_SAMPLED)
def test_rdp_of_a_sampled_gaussian(order: float) -> None:
    """Whole orders agree; between them ours is a bound, and not below."""
    ours = float(subsampled_gaussian(2.5, Fraction(1, 100)).repeat(50).at(Fraction(order)))
    theirs = POISSON_SAMPLED[order]
    if order % 1:
        assert theirs < ours < 1.5 * theirs
    else:
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_gaussian_of_exactly_one_and_a_millionth() -> None:
    """σ = 4.530877117 is the least whose Rényi curve, of every order, gives (1, 10⁻⁶)."""
    sigma = 4.530877117
    curve = to_renyi(gaussian_zcdp(Fraction(sigma) ** 2))
    assert epsilon_at(curve, 1e-6) == pytest.approx(1, abs=2e-3)
    assert epsilon_at(curve, 1e-6) >= 1 - 1e-7  # of fewer orders, it is not below
    assert gaussian_delta(sigma, 1.0) < 1e-6


def test_three_gaussians_of_variance_three() -> None:
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.126936, abs=1e-6)


@pytest.mark.slow
@needs_pld
def test_losses_add_up_as_published() -> None:
    gaussian = PrivacyLoss.of_gaussian(3**0.5).repeat(3)
    assert gaussian.delta(1.0) == pytest.approx(0.126936, abs=1e-3)
    sampled = PrivacyLoss.of_gaussian(0.5, rate=0.2).repeat(3)
    assert sampled.delta(1.0) == pytest.approx(0.15594, abs=1e-3)
    assert sampled.epsilon(0.15594) == pytest.approx(1, abs=1e-3)
    first, second = (PrivacyLoss.of_discrete_laplace(Fraction(scale)) for scale in (1, 2))
    laplace = first.repeat(3).compose(second.repeat(2))
    assert laplace.delta(4.0) <= 1e-6
    assert laplace.epsilon(1e-14) == pytest.approx(4, abs=1e-6)
