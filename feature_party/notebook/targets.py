"""Numbers in place of codes, for anything that fits numbers."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.arrays import Floats
from common.errors import ConfigError
from feature_party.learning.decoding import decoder
from feature_party.learning.problem import LabelProblem

Method = Literal["unbiased", "low-variance"]


class Targets(NamedTuple):
    """What least squares is given.

    Attributes
    ----------
    targets
        (n,) numbers, in label units.
    weights
        (n,) weights, 1 on average: of several releases, the inverse of each one's noise.
    """

    targets: Floats
    weights: Floats


def decode_targets(
    problem: LabelProblem, codes: NDArray[np.integer], method: Method = "unbiased"
) -> Targets:
    """Decode codes to numbers whose mean given the features is that of the label.

    ``unbiased``: E[u(z) | y] = y for every label y, where the channel allows it; of all such u the
    one of least variance under the prior. ``low-variance``: u = m + (E[y | z] − m)/I with m the
    prior's mean and I = Var(E[y | z])/Var(y), so that Cov(u, y) = Var(y). Its variance Var(y)/I is
    the least that can be; what it says of labels that the channel hardly tells apart is wrong, in
    return, by a function of the label that is uncorrelated with the label.

    Raises
    ------
    ConfigError
        For another method.
    """
    if method not in ("unbiased", "low-variance"):
        raise ConfigError(f"method={method!r} must be unbiased or low-variance")
    targets, noise = np.empty(codes.size), np.empty(codes.size)
    for part, mine, own in problem.by_release(codes):
        told = part.channel * part.prior[:, None]
        if method == "unbiased":
            values = decoder(part, part.grid).values[:, 0]
        else:
            means = (part.grid - part.mean) @ told / np.maximum(part.output_prior, 1e-300)
            values = part.mean + means / max(part.informativeness, 1e-12)
        targets[mine] = values[own]
        noise[mine] = np.sum(told * (values - part.grid[:, None]) ** 2)
    weights = 1 / np.maximum(noise, 1e-12 * problem.deviation**2)
    return Targets(targets, weights / weights.mean())
