"""Mixing distributions: the weights under which a mixture explains held-out labels best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, minimize
from scipy.special import expit

from feature_party.learning.problem import Floats

_NEGLIGIBLE = 0.02
_DOUBT = 0.75
_PRIOR_SHARE = 0.03
_FAITH = 3.0
_LEAST = 1e-4
_STANDARD_ERRORS = 2.0


def choose_mixture(plain: Floats, flexible: Floats) -> tuple[Floats, Floats]:
    """Weights of plain and flexible candidates, from their out-of-fold losses.

    The plain ones are mixed. Flexible ones take part only if the best of them beats that mixture by
    more than two standard errors of the paired difference.

    Parameters
    ----------
    plain, flexible
        (a, n) and (b, n) losses −ln L of the same rows; b may be 0.

    Returns
    -------
    (a,) and (b,) weights, together summing to 1.
    """
    weights = mixture_weights(np.exp(-plain))
    none = np.zeros(flexible.shape[0])
    if not flexible.shape[0]:
        return weights, none
    mixed = -np.log(weights @ np.exp(-plain))
    gain = mixed - flexible[flexible.mean(axis=1).argmin()]
    error = gain.std(ddof=1) / np.sqrt(gain.size)
    if gain.mean() <= _STANDARD_ERRORS * error:
        return weights, none
    both = mixture_weights(np.exp(-np.concatenate([plain, flexible])))
    return both[: plain.shape[0]], both[plain.shape[0] :]


def doubt(model: Floats, nothing: Floats) -> float:
    """Probability that the model has learned nothing, from out-of-fold losses.

    Before the privatized labels are seen it is 3/4 (a few noisy labels mostly teach noise). A model
    is thus believed once they speak for it by more than three to one, as a few hundred labels'
    worth of information do.

    Parameters
    ----------
    model, nothing
        (n,) losses −ln L of the same rows under the model, and under the prior alone.
    """
    return float(expit(np.log(_DOUBT / (1 - _DOUBT)) + np.sum(model - nothing)))


def mixture_for_means(decoded: Floats, means: Floats, weights: Floats, doubt: float) -> Floats:
    """Correct mixture weights by decoded labels, which tell how far the *means* are right.

    A likelihood cares for whole distributions: of two that explain the privatized labels equally
    well, one may have a tail that moves its mean twice as far as the label's. With u decoding the
    label, the weights minimise

        Σ_i (u_i − Σ_h w_h f_h(i))² / (2 Var u) − τ Σ_h w⁰_h ln w_h

    over the simplex: the posterior mode under a Dirichlet prior around w⁰, where weights stay if u
    is too noisy to say anything. w⁰ gives the prior alone the probability that nothing was learned
    and 3 % of the rest.

    Parameters
    ----------
    decoded
        (n,) decoded labels of rows that no prediction has seen.
    means
        (h + 1, n) out-of-fold means of the mixture's parts, the prior's last.
    weights
        (h,) weights by the likelihood, > 0, summing to 1.
    doubt
        Probability that nothing was learned.

    Returns
    -------
    (h + 1,) weights >= 0, summing to 1.
    """
    believed = (1 - _PRIOR_SHARE) * (1 - doubt) * weights
    centre = np.append(believed, 1 - believed.sum())
    variance = max(float(decoded.var()), 1e-300)
    products, square = means @ decoded / variance, means @ means.T / variance

    def value(w: Floats) -> float:
        return float(w @ square @ w / 2 - products @ w - _FAITH * centre @ np.log(w))

    def slope(w: Floats) -> Floats:
        return np.asarray(square @ w - products - _FAITH * centre / w)

    start = np.maximum(centre, _LEAST)
    found = minimize(
        value,
        start / start.sum(),
        jac=slope,
        method="SLSQP",
        bounds=[(_LEAST, 1.0)] * start.size,
        constraints=LinearConstraint(np.ones(start.size), 1.0, 1.0),
        options={"maxiter": 500, "ftol": 1e-10},
    )
    return without_negligible(np.asarray(found.x))


def without_negligible(weights: Floats) -> Floats:
    """Drop weights under 2 %: they cost a network and change nothing."""
    kept = np.where(weights < _NEGLIGIBLE, 0.0, weights)
    return np.asarray(kept / kept.sum())


@dataclass(frozen=True)
class Gain:
    """By how much a rival's squared error lies below another's, judged by decoded labels.

    Attributes
    ----------
    value, error
        Mean difference of the squared errors and its standard error, in squared label units.
    """

    value: float
    error: float

    @property
    def certain(self) -> bool:
        """Whether the rival is better by more than two standard errors."""
        return self.value > _STANDARD_ERRORS * self.error


def decoded_gain(decoded: Floats, mixed: Floats, rival: Floats) -> Gain:
    """Compare point predictions by labels decoded without bias.

    With u unbiased for the label y given y, E[(f − u)²] = (f − y)² + Var(u | y), and the variance
    is the same for both predictions: the paired difference estimates that of the true errors.

    Parameters
    ----------
    decoded
        (n,) unbiased decodings of rows that neither prediction has seen.
    mixed, rival
        (n,) out-of-fold predictions.
    """
    gain = (mixed - decoded) ** 2 - (rival - decoded) ** 2
    return Gain(float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(gain.size)))


def mixture_weights(likelihoods: Floats, rounds: int = 500) -> Floats:
    """Weights w maximising Σ_i ln Σ_h w_h L_h(i), by expectation maximisation.

    The problem is concave, so that the rounds climb to its one maximum.

    Parameters
    ----------
    likelihoods
        (h, n) out-of-fold likelihoods of the privatized labels under each candidate, > 0.

    Returns
    -------
    (h,) weights >= 0, summing to 1.
    """
    count = likelihoods.shape[0]
    scaled = likelihoods / likelihoods.max(axis=0)
    weights = np.full(count, 1.0 / count)
    for _ in range(rounds):
        shares = weights[:, None] * scaled
        update = (shares / shares.sum(axis=0)).mean(axis=1)
        if np.abs(update - weights).max() < 1e-7:
            break
        weights = update
    return without_negligible(weights)
