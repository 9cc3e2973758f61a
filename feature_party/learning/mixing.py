"""Mixing distributions: the weights under which a mixture explains held-out labels best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Floats

_NEGLIGIBLE = 0.02
_LEAST_MASS = 1e-12
_ENOUGH = 1000.0
"""True labels that a family's shape takes to be trusted as much as the first's, and the labels
themselves as much as the released prior."""
_SHARES = np.linspace(0, 1, 51)
_PLAIN = 100.0
"""Nats in all that leave no doubt that a model has learned something."""
_STANDARD_ERRORS = 2.0
_FARTHEST = 4.0
"""Standard errors from which on it does not matter how far behind a candidate is: what adds to the
others grows from there."""
_ROUNDS = 500
_BLOCK = 1 << 13
"""Rows that are weighed at once: they stay in the processor's cache."""
_LIKELY_SHARE = 0.25  # by squared errors, before any code is seen: about so far from none
_BELIEF = 10.0
"""Rows that the shares before any is seen stand for. A candidate that moves them must explain the
labels better by about as many nats in all: the best of several, stopped in time, does so by a few
where there is nothing to learn."""


def choose_mixture(
    plain: Floats, flexible: Floats, effective_labels: float
) -> tuple[Floats, Floats]:
    """Weights of plain and flexible candidates, (a,) and (b,), together 1, from their out-of-fold
    losses.

    The plain ones are mixed. Where labels are too noisy to tell them apart, weights stay near where
    they began: alike, or mostly with the first where there is little to go by, since the others say
    more about the shape of a distribution than so few labels can. One of the others that is behind
    the best by z standard errors of the paired difference begins with exp(−z² / 2) of that.
    Flexible ones take part only if the best of them beats that mixture by more than two standard
    errors.

    ``plain`` and ``flexible`` are (a, n) and (b, n) losses −ln L of the same rows; b may be 0.
    ``effective_labels`` are how many true labels the privatized ones say as much as; infinite where
    there is no shape to tell, of few values.
    """
    others = len(plain) - 1
    first = 1 / (1 + min(effective_labels / _ENOUGH, others))
    start = np.array([first, *[(1 - first) / max(others, 1)] * others])
    behind = plain - plain[plain.mean(axis=1).argmin()]
    errors = np.maximum(_standard_errors(behind), 1e-12)
    apart = np.minimum(behind.mean(axis=1) / errors, _FARTHEST)
    start[1:] *= np.exp(-0.5 * apart[1:] ** 2)
    weights = mixture_weights(np.exp(-plain), start / start.sum())
    if len(flexible):
        mixed = -np.log(weights @ np.exp(-plain))
        if Gain.between(mixed, flexible[flexible.mean(axis=1).argmin()]).certain:
            both = mixture_weights(np.exp(-np.concatenate([plain, flexible])))
            return both[: len(plain)], both[len(plain) :]
    return weights, np.zeros(len(flexible))


def null_share(model: Floats, nothing: Floats, effective_labels: float) -> float:
    """Share of the prior that predictions should be mixed with, from out-of-fold losses; 0 if
    negligible.

    Before privatized labels are seen, it is as likely that the model has learned nothing as that
    some share of it is right, any share being as likely as another; and as that all of it is, where
    labels are worth a thousand true ones, and less so where they are worth fewer. The expectation
    of 1 less that share, given the labels, is returned: a gain of a few nats whose standard error
    is as large speaks for a model that is right in part.

    ``model`` and ``nothing`` are (n,) losses −ln L of the same rows under the model, and under the
    prior alone; ``effective_labels`` >= 0 as in :func:`choose_mixture`.
    """
    gains = nothing - model
    if gains.sum() > _PLAIN:
        return 0.0
    with np.errstate(divide="ignore"):
        mixed = [np.logaddexp(np.log1p(-a), np.log(a) + gains).sum() for a in _SHARES]
    weights = np.full(_SHARES.size, 1 / _SHARES.size)
    weights[0] += 1
    weights[-1] += min(effective_labels / _ENOUGH, 1.0)
    posterior = weights * np.exp(np.array(mixed) - max(mixed))
    share = 1 - float(posterior @ _SHARES / posterior.sum())
    return share if share > _NEGLIGIBLE else 0.0


def prior_adjustment(marginal: Floats, prior: Floats, effective_labels: float) -> Floats:
    """Factors of the cells that adjust predicted distributions towards the released prior.

    Over the training rows they should average to the distribution of all labels. Multiplied by
    prior over average and normalised they nearly do. What a few noisy labels cannot tell, the prior
    says: how far the means of a heavy tail reach. The prior is noisy, too, and the more labels say
    the better is the average without it, so the two are pooled: the factors take the ratio to the
    power 1 / (1 + effective_labels / 1000). (m,) ``marginal`` is the average of the predicted
    distributions, ``prior`` the released one, > 0.

    Source: Saerens, Latinne, Decaestecker, *Adjusting the Outputs of a Classifier to New a Priori
    Probabilities*, Neural Computation 2002, for the power 1; the power is our own.
    """
    power = 1 / (1 + effective_labels / _ENOUGH)
    return np.asarray((prior / np.maximum(marginal, _LEAST_MASS)) ** power)


@dataclass(frozen=True)
class Gain:
    """By how much a rival's error lies below another's on the same rows.

    ``value`` and ``error`` are the mean difference and its standard error; of squared errors,
    judged by decoded labels, in squared label units.
    """

    value: float
    error: float

    @classmethod
    def between(cls, losses: Floats, rival: Floats) -> Gain:
        """Of a rival, from (n,) losses of both."""
        gain = losses - rival
        return cls(float(gain.mean()), float(_standard_errors(gain)))

    @property
    def likely(self) -> bool:
        """Whether the rival, as far ahead on four times the rows, would be better for certain."""
        return self.value > 0.5 * _STANDARD_ERRORS * self.error

    @property
    def certain(self) -> bool:
        """Whether the rival is better by more than two standard errors."""
        return self.value > _STANDARD_ERRORS * self.error


def least_squares_share(residual: Floats, difference: Floats) -> float:
    """Share s of a rival's predictions g in f + s (g − f) that makes the squared error least, 0 …
    1.

    With r what is known of y − f, E[(s (g − f) − r)²] is the true error but for a constant, and
    least at s = E[r (g − f)] / E[(g − f)²]. Before any label is seen s is about 0, give or take a
    quarter; the expectation under that normal prior is returned if it is above its deviation, so
    that labels that are too noisy to tell leave f as it is, and 0 where it is negligible. Of rows
    that neither prediction has seen, ``residual`` are (n,) values r, and ``difference`` are (n,)
    g − f.
    """
    information = max(difference @ difference + residual.var() / _LIKELY_SHARE**2, 1e-300)
    share = float(np.clip(difference @ residual / information, 0.0, 1.0))
    return share if share > max((residual.var() / information) ** 0.5, _NEGLIGIBLE) else 0.0


def _standard_errors(values: Floats) -> Floats:
    """(…,) standard errors of (…, n) values' means; infinite for a single one."""
    rows = values.shape[-1]
    if rows < 2:
        return np.full(values.shape[:-1], np.inf)
    return np.asarray(values.std(axis=-1, ddof=1) / np.sqrt(rows))


def mixture_weights(likelihoods: Floats, believed: Floats | None = None) -> Floats:
    """Weights w maximising Σ_i ln Σ_h w_h L_h(i) + c Σ_h v_h ln w_h, by expectation maximisation.

    The second term is a Dirichlet prior around the weights v that are believed before, as if c = 10
    more rows had them. The problem is concave, so that the rounds climb to its one maximum, unless
    the likelihoods hardly differ. Weights under 2% are dropped: they cost a network and change
    nothing.

    ``likelihoods``, (h, n) > 0, are out-of-fold ones of the privatized labels; ``believed`` the
    (h,) weights v to start from, > 0 and together 1: if None equal ones, and c = 0.
    """
    count = likelihoods.shape[0]
    prior = np.zeros(count) if believed is None else _BELIEF * believed
    weights = np.full(count, 1.0 / count) if believed is None else believed
    starts = range(0, likelihoods.shape[1], _BLOCK)
    parts = (likelihoods[:, start : start + _BLOCK] for start in starts)
    # in single precision, which takes half as long: its rounding averages out over the rows
    blocks = [(part / part.max(axis=0)).astype(np.float32) for part in parts]
    for _ in range(_ROUNDS):
        single = weights.astype(np.float32)
        shares = sum((block @ (1 / (single @ block)) for block in blocks), np.zeros(count))
        update = weights * shares + prior
        update /= update.sum()
        if np.abs(update - weights).max() < 1e-7:
            break
        weights = update
    weights = np.where(weights < _NEGLIGIBLE, 0.0, weights)
    return np.asarray(weights / weights.sum())
