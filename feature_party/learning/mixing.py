"""Stacking: the shares of candidates' predictions that explain held-out labels best."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labelveil.common.arrays import Booleans, Floats

_LEAST_MASS = 1e-12
_ENOUGH = 1000.0
"""True labels that a family's shape takes to be trusted as much as the first's, and the labels
themselves as much as the released prior."""
_CERTAIN = 2.0
_FARTHEST = 4.0
"""Standard errors from which on it does not matter how far behind a candidate is: what adds to the
others grows from there."""
_SHARES = np.linspace(0, 1, 51)
_PLAIN = 100.0
"""Nats in all that leave no doubt that a model has learned something."""
NEGLIGIBLE = 0.02
"""Share that costs a model and changes nothing."""
_ROUNDS = 100
_ROUNDING = 1e-9
_BLOCK = 1 << 13
"""Rows that are weighed at once: they stay in the processor's cache."""
_LEAST_NOISE = 1e-12
ROWS = 10.0
"""Rows that the shares before any is seen stand for. A candidate that moves them must explain the
labels better by about as many nats in all: the best of several, stopped in time, does so by a few
where there is nothing to learn."""

Evidence = Callable[[Floats], tuple[float, Floats, Floats]]
"""What labels say against (h,) shares, in nats: a convex loss, its slopes and its curvature."""


def stack(evidence: Evidence, rows: Floats) -> Floats:
    """Shares w, (h,) and together 1, that make least the evidence's loss less Σ_h c_h ln w_h.

    The second term is a Dirichlet prior, as if c_h more rows had each candidate, the (h,) ``rows``:
    what labels cannot tell stays as believed before, and what has no rows stays without a share.
    Newton's method finds the one minimum, in steps that leave every share above 0 and lower the
    loss.
    """
    free = rows > 0
    rows = rows[free]

    def at(shares: Floats) -> tuple[float, Floats, Floats]:
        loss, slopes, curvature = evidence(_among(shares, free))
        curvature = curvature[np.ix_(free, free)] + np.diag(rows / shares**2)
        return loss - float(rows @ np.log(shares)), slopes[free] - rows / shares, curvature

    shares = rows / rows.sum()
    loss, slopes, curvature = at(shares)
    for _ in range(_ROUNDS):
        steepest, one = np.linalg.solve(curvature, np.stack([slopes, np.ones(shares.size)], 1)).T
        step = one * steepest.sum() / one.sum() - steepest  # the shares' sum stays
        fall = -float(slopes @ step)
        length = min(1.0, 0.9 / max(float((-step / shares).max()), 0.9))
        tried = at(shares + length * step)
        while tried[0] > loss - 1e-4 * length * fall and length > _ROUNDING:
            length /= 2
            tried = at(shares + length * step)
        if fall < _ROUNDING or length <= _ROUNDING:
            break
        shares, (loss, slopes, curvature) = shares + length * step, tried
    return _among(shares / shares.sum(), free)


def _among(shares: Floats, free: Booleans) -> Floats:
    every = np.zeros(free.size)
    every[free] = shares
    return every


def likelihoods(losses: Floats) -> Evidence:
    """−Σ_i ln Σ_h w_h L_h(i) of a mixture of distributions, from (h, n) out-of-fold −ln L."""
    starts = range(0, losses.shape[1], _BLOCK)
    parts = [losses[:, start : start + _BLOCK] for start in starts]
    # kept in single precision, half as much memory: its rounding averages out over the rows
    blocks = [np.exp(part.min(axis=0) - part).astype(np.float32) for part in parts]

    def against(shares: Floats) -> tuple[float, Floats, Floats]:
        loss, slopes = 0.0, np.zeros(shares.size)
        curvature = np.zeros((shares.size, shares.size))
        for block in blocks:
            mixed = shares @ block
            ratios = block / mixed
            loss -= float(np.log(mixed).sum())
            slopes -= ratios.sum(axis=1)
            curvature += ratios @ ratios.T
        return loss, slopes, curvature

    return against


def squares(residual: Floats, predictions: Floats, before: Floats) -> Evidence:
    """Σ_i (r_i − Σ_h (w_h − v_h) g_h(i))² / (2 Var r) of a mixture of point predictions.

    The (n,) ``residual`` r is what is known of labels less what they should be by the mixture with
    the (h,) shares v ``before``, unbiased; ``predictions`` are the (h, n) g, of rows that none of
    them has seen. But for a constant it is the true squared error, in units of the noise.
    """
    noise = max(float(residual.var()), _LEAST_NOISE)
    curvature, towards = predictions @ predictions.T / noise, predictions @ residual / noise

    def against(shares: Floats) -> tuple[float, Floats, Floats]:
        moved = shares - before
        slopes = curvature @ moved - towards
        return float(moved @ (slopes - towards)) / 2, slopes, curvature

    return against


def choose_mixture(plain: Floats, flexible: Floats, effective_labels: float) -> Floats:
    """Shares of plain and flexible candidates, (a + b,) and together 1, from their out-of-fold
    losses.

    Where labels are too noisy to tell the plain ones apart, shares stay near where they began:
    alike, or mostly with the first where there is little to go by, since the others say more about
    the shape of a distribution than so few labels can. One of the others that is behind the best by
    z standard errors of the paired difference begins with exp(−z² / 2) of that. Flexible ones take
    part, all beginning alike, only if the best of them beats that mixture by more than two standard
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
    losses = np.concatenate([plain, flexible])
    evidence = likelihoods(losses)
    shares = stack(evidence, np.append(ROWS * start / start.sum(), np.zeros(len(flexible))))
    if len(flexible):
        mixed = -np.log(shares @ np.exp(-losses))
        if ahead(mixed, flexible[flexible.mean(axis=1).argmin()]):
            return stack(evidence, np.full(len(losses), ROWS / len(losses)))
    return shares


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
    return share if share > NEGLIGIBLE else 0.0


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


def ahead(losses: Floats, rival: Floats, errors: float = _CERTAIN) -> bool:
    """Whether a rival's mean loss is lower by more than so many standard errors of the difference,
    from (n,) losses of both."""
    gain = losses - rival
    return bool(gain.mean() > errors * _standard_errors(gain))


def _standard_errors(values: Floats) -> Floats:
    """(…,) standard errors of (…, n) values' means; infinite for a single one."""
    rows = values.shape[-1]
    if rows < 2:
        return np.full(values.shape[:-1], np.inf)
    return np.asarray(values.std(axis=-1, ddof=1) / np.sqrt(rows))
