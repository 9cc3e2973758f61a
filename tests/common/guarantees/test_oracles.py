"""Agreement with dp-accounting and autodp where they are right, and not where they err."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from labelveil.common.errors import PrivacyError
from labelveil.common.guarantees import (
    PureDP,
    ZeroConcentratedDP,
    epsilon_at,
    for_replacement,
    optimal_composition,
    pld,
    poisson_subsample,
    subsampled_gaussian,
    to_renyi,
)
from labelveil.common.guarantees.gaussian import gaussian_delta, gaussian_zcdp
from labelveil.common.guarantees.pld import PrivacyLoss, available
from tests.common.guarantees import examples

needs_pld = pytest.mark.skipif(
    not available(), reason="dp-accounting is not installed (labelveil[pld])"
)
DELTA = 1e-6


@needs_pld
def test_rdp_of_dp_sgd_agrees_with_dp_accounting() -> None:
    import dp_accounting

    rate, sigma, steps = Fraction(1, 100), 1.1, 1000
    ours = subsampled_gaussian(sigma, rate).repeat(steps)
    orders = [float(order) for order in ours.orders]
    theirs = dp_accounting.rdp.RdpAccountant(orders)
    event = dp_accounting.PoissonSampledDpEvent(float(rate), dp_accounting.GaussianDpEvent(sigma))
    theirs.compose(event, steps)
    assert epsilon_at(ours, DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-6)


@needs_pld
def test_approximations_below_the_truth_are_caught() -> None:
    """A central-limit accountant can claim less than the truth; a bound cannot."""
    law = PrivacyLoss.of_gaussian(1.1, rate=0.01).repeat(300)
    exact = law.epsilon(DELTA)
    bound = epsilon_at(subsampled_gaussian(1.1, Fraction(1, 100)).repeat(300), DELTA)
    assert exact * 0.999 <= bound <= exact * 1.5
    general = poisson_subsample(to_renyi(gaussian_zcdp(Fraction(121, 100))), Fraction(1, 100))
    assert bound <= epsilon_at(general.repeat(300), DELTA)


@needs_pld
def test_repeats_of_randomized_response_count() -> None:
    one = PrivacyLoss.of_pure(PureDP.of(0.75))
    seven = one.repeat(7)
    by_hand = one
    for _ in range(6):
        by_hand = by_hand.compose(one)
    assert seven.epsilon(DELTA) == pytest.approx(by_hand.epsilon(DELTA), rel=1e-3)
    assert seven.epsilon(DELTA) > 5
    assert seven.epsilon(DELTA) == pytest.approx(
        optimal_composition([PureDP.of(0.75)] * 7, DELTA).epsilon, rel=1e-3
    )


@needs_pld
def test_pure_epsilon_survives_at_delta_zero() -> None:
    law = PrivacyLoss.of_pure(PureDP.of(0.5)).repeat(4)
    assert law.epsilon(0) == 2
    assert law.epsilon(1e-300) <= 2
    assert law.delta(2) == 0
    assert PrivacyLoss.of_gaussian(2.0).epsilon(0) == math.inf
    laplace = PrivacyLoss.of_discrete_laplace(Fraction(2))
    assert laplace.pure == Fraction(1, 2)


@needs_pld
@pytest.mark.parametrize("times", [1, 3, 6])
@pytest.mark.parametrize("ratio", [Fraction(3, 2), Fraction(7)])
def test_pld_is_never_below_enumeration(times: int, ratio: Fraction) -> None:
    law = examples.response(ratio)
    p, q = examples.power(law[0], times), examples.power(law[1], times)
    bound = PrivacyLoss.of_pure(PureDP.of(examples.log_ratio_up(ratio))).repeat(times)
    for delta in (1e-2, 1e-4):
        epsilon = bound.epsilon(delta)
        assert examples.hockey_stick(p, q, Fraction(epsilon)) <= delta
        assert (
            examples.hockey_stick(p, q, Fraction(epsilon) * Fraction(99, 100)) > delta
            or not epsilon
        )


ONE_SIDED = ({0: 0.527, 1: 0.473}, {0: 1.0})
"""An outcome that one neighbour alone has: nothing is lost in one direction, everything is in the
other."""
SKEWED = ({0: 0.6, 1: 0.4, 2: 0.0}, {0: 0.5, 1: 0.1, 2: 0.4})


@needs_pld
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("pair", [ONE_SIDED, ONE_SIDED[::-1], SKEWED, SKEWED[::-1]])
def test_a_pair_of_laws_counts_in_both_directions(
    pair: tuple[dict[int, float], dict[int, float]], times: int
) -> None:
    exact = [{z: Fraction(law.get(z, 0.0)) for z in range(3)} for law in pair]
    powers = [examples.power(law, times) for law in exact]
    law = PrivacyLoss.of_pair(*pair).repeat(times)
    for epsilon in (0.0, 0.5, 2.0):
        truth = max(
            examples.hockey_stick(p, q, Fraction(epsilon)) for p, q in (powers, powers[::-1])
        )
        assert truth <= law.delta(epsilon) + 1e-12 <= float(truth) + 1e-2


@pytest.mark.parametrize(
    "law",
    [{0: math.nan, 1: 1.0}, {0: 1.0, 1: math.nan}, {0: 1.5, 1: -0.5}, {0: math.inf}, {0: 0.9}],
)
def test_masses_that_are_no_law_are_refused(law: dict[int, float]) -> None:
    right = {0: 0.5, 1: 0.5}
    for pair in ((law, right), (right, law)):
        with pytest.raises(PrivacyError, match="must be >= 0 and sum to 1"):
            PrivacyLoss.of_pair(*pair)


@needs_pld
def test_a_law_of_one_direction_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = pld._backend()

    class OneWay:
        @staticmethod
        def from_two_probability_mass_functions(*laws: Any, **options: Any) -> Any:
            return backend.from_two_probability_mass_functions(
                *laws, **{**options, "symmetric": True}
            )

    monkeypatch.setattr(pld, "_backend", lambda: OneWay)
    claimed = [PrivacyLoss.of_pair(*pair).delta(2.0) for pair in (ONE_SIDED, ONE_SIDED[::-1])]
    assert min(claimed) < 1e-9 < 0.473 <= max(claimed) + 1e-9


def test_replacing_costs_the_doubled_sensitivity() -> None:
    """σ = 1, δ = 1e-6: about 11.0 for replacing one value, not the 5.2 of adding one."""
    added = ZeroConcentratedDP(*examples.ADD, Fraction(1, 2), Fraction(0))
    replaced = epsilon_at(for_replacement(added), DELTA)
    assert gaussian_delta(1.0, replaced, 2.0) <= DELTA
    assert 10.5 < replaced < 12.5
    assert gaussian_delta(1.0, epsilon_at(added, DELTA), 2.0) > DELTA


def test_rdp_agrees_with_autodp() -> None:
    rdp_bank = pytest.importorskip("autodp.rdp_bank", reason="autodp is not installed")
    response, gaussian = to_renyi(PureDP.of(0.8)), to_renyi(gaussian_zcdp(Fraction(9)))
    for order in (Fraction(2), Fraction(7), Fraction(32)):
        theirs = rdp_bank.RDP_randresponse({"p": 1 / (1 + math.exp(-0.8))}, float(order))
        assert float(response.at(order)) == pytest.approx(theirs, rel=1e-6)
        theirs = rdp_bank.RDP_gaussian({"sigma": 3.0}, float(order))
        assert float(gaussian.at(order)) == pytest.approx(theirs, rel=1e-9)


def test_dp_sgd_agrees_with_autodp() -> None:
    accountants = pytest.importorskip("autodp.rdp_acct", reason="autodp is not installed")
    rdp_bank = pytest.importorskip("autodp.rdp_bank")
    rate, sigma, steps = Fraction(1, 100), 1.1, 1000
    theirs = accountants.anaRDPacct()
    law = {"sigma": sigma}
    theirs.compose_poisson_subsampled_mechanisms(
        lambda order: rdp_bank.RDP_gaussian(law, order), float(rate), coeff=steps
    )
    curve = subsampled_gaussian(sigma, rate).repeat(steps)
    converted = min(  # as autodp converts; ours is tighter
        float(curve.at(order)) + math.log(1 / DELTA) / (float(order) - 1) for order in curve.orders
    )
    assert converted == pytest.approx(theirs.get_eps(DELTA), rel=1e-3)
    assert epsilon_at(curve, DELTA) < converted
