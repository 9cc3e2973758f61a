"""Numbers in place of codes, for anything that fits numbers."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.notebook.laws_by_mean import LawsByMean
from labelveil.feature_party.notebook.torch_loss import SKEWED, likelihood

_LEAST_TOLD = 1e-3
"""Share of a law's variance that a code is taken to explain at least: targets stay bounded."""
_LEAST_NOISE = 0.05
"""Of decoded labels around any prediction, as a share of that around the prior's mean."""

Method = Literal["unbiased", "low-variance"]


class Targets(NamedTuple):
    """What least squares is given."""

    targets: Floats  # (n,) numbers, in label units
    # (n,) weights, 1 on average: of several releases, the inverse of each one's noise
    weights: Floats


def decode_targets(
    problem: LabelProblem,
    codes: NDArray[np.integer],
    method: Method = "unbiased",
    around: Floats | None = None,
) -> Targets:
    """Decode codes to numbers whose mean given the features is that of the label.

    ``unbiased``: E[u(z) | y] = y for every label y, where the channel allows it; of all such u the
    one of least variance under the prior. ``low-variance``: u = m + (E[y | z] − m)/I with m the
    prior's mean and I = Var(E[y | z])/Var(y), so that Cov(u, y) = Var(y). Its variance Var(y)/I is
    the least that can be; what it says of labels that the channel hardly tells apart is wrong, in
    return, by a function of the label that is uncorrelated with the label.

    ``around`` predictions, the same under the law that each event's label is taken to have, in the
    prior's place: least squares on these targets and weights is a step of Fisher scoring.
    """
    if method not in ("unbiased", "low-variance"):
        raise ConfigError(f"method={method!r} must be unbiased or low-variance")
    targets, noise = np.empty(codes.size), np.empty(codes.size)
    for part, mine, own in problem.by_release(codes):
        if around is not None:
            targets[mine], variance = _around(part, own, around[mine])
            least = _LEAST_NOISE * part.deviation**2 / part.informativeness
            noise[mine] = np.maximum(variance, least)
        elif method == "unbiased":
            values = decoder(part, part.grid).values[:, 0]
            joint = part.channel * part.prior[:, None]
            targets[mine] = values[own]
            noise[mine] = np.sum(joint * (values - part.grid[:, None]) ** 2)
        else:
            blind = _LowVariance.under(part.prior[None], part.grid, part.channel)
            targets[mine], noise[mine] = blind.targets[0, own], blind.noise[0]
    weights = 1 / np.maximum(noise, 1e-12 * problem.deviation**2)
    return Targets(targets, weights / weights.mean())


class _LowVariance(NamedTuple):
    """Under each of m laws: (m, d) targets of codes, and (m,) their variance."""

    targets: Floats
    noise: Floats

    @classmethod
    def under(cls, laws: Floats, values: Floats, likelihood: Floats) -> _LowVariance:
        """Of (m, k) laws over (k,) labels, whose codes have (k, d) probabilities."""
        means = (laws @ values)[:, None]
        marginal = np.maximum(laws @ likelihood, 1e-300)
        moved = (laws * values) @ likelihood / marginal - means
        variance = np.maximum(laws @ values**2 - means[:, 0] ** 2, 1e-300)
        told_of = np.sum(marginal * moved**2, axis=1) / variance
        informative = np.maximum(told_of, _LEAST_TOLD)
        return cls(means + moved / informative[:, None], variance / informative)


def _around(
    problem: LabelProblem, codes: NDArray[np.integer], points: Floats
) -> tuple[Floats, Floats]:
    """(n,) targets and their variances, given (n,) predictions.

    Labels are taken to have normal laws, or log-normal ones if they are >= 0 and skewed, with the
    predicted means; their width is the one that makes the codes likeliest.
    """
    support = Support.from_problem(problem)
    skewed = support.values[0] >= 0 and support.skewness > SKEWED
    law = likelihood(problem, "log-normal" if skewed else "gaussian")
    laws = LawsByMean.fitted(law, points, codes)
    at = laws.nearest(points)
    decoded = _LowVariance.under(laws.probabilities, support.values, support.likelihood)
    return decoded.targets[at, codes], decoded.noise[at]
