"""What a mechanism guarantees, with its adjacency and privacy unit, and how guarantees compose.

========================  ==========================================================
:class:`PureDP`           ε-DP
:class:`ApproximateDP`    (ε, δ)-DP
:class:`BoundedRange`     the exponential mechanism's stronger form of ε-DP
:class:`ZeroConcentratedDP`  ρ-zCDP, also with a failure probability
:class:`RenyiDP`          an RDP curve, also with a failure probability
========================  ==========================================================

Parameters are rational numbers, so that composing and repeating are exact and independent of order;
only conversions round, and always towards less privacy claimed.
"""

from labelveil.common.guarantees.accountant import Filter, Odometer, adaptive_total, total
from labelveil.common.guarantees.additive import ApproximateDP, PureDP, ZeroConcentratedDP
from labelveil.common.guarantees.base import (
    Adjacency,
    Guarantee,
    Unit,
    compose,
    guarantee_from_json,
)
from labelveil.common.guarantees.bounded_range import BoundedRange
from labelveil.common.guarantees.calibration import calibrate, largest_rho
from labelveil.common.guarantees.composition import advanced_composition, optimal_composition
from labelveil.common.guarantees.conversion import (
    epsilon_at,
    for_replacement,
    to_approximate,
    to_pure,
    to_renyi,
    to_zcdp,
)
from labelveil.common.guarantees.renyi import DEFAULT_ORDERS, RenyiDP
from labelveil.common.guarantees.subsampling import (
    fixed_size_gaussian,
    fixed_size_subsample,
    poisson_subsample,
    subsampled_gaussian,
)

__all__ = [
    "DEFAULT_ORDERS",
    "Adjacency",
    "ApproximateDP",
    "BoundedRange",
    "Filter",
    "Guarantee",
    "Odometer",
    "PureDP",
    "RenyiDP",
    "Unit",
    "ZeroConcentratedDP",
    "adaptive_total",
    "advanced_composition",
    "calibrate",
    "compose",
    "epsilon_at",
    "fixed_size_gaussian",
    "fixed_size_subsample",
    "for_replacement",
    "guarantee_from_json",
    "largest_rho",
    "optimal_composition",
    "poisson_subsample",
    "subsampled_gaussian",
    "to_approximate",
    "to_pure",
    "to_renyi",
    "to_zcdp",
    "total",
]
