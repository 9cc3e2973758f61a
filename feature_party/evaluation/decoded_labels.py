"""Labels decoded from their codes, row by row: without bias, with little, with the model's help.

*Unbiased*: of all u with E[u | y] = y the one of least variance. Of a channel that does not tell
all labels apart it errs by b(y) = E[u | y] − y, which is 0 on average over the prior.

*Bounded*: the u with the least ``E b(y)² + E u² / n``. Whatever labels have to do with predictions,
a mean of s_i u_i is off by at most √(E s² · E b²), of which the histogram tells E b².

*Helped*: the biased u with the least ``E b(y)² + E u² / (n κ²)``, and the model's own word for the
bias: u(z) − E_q[b(y) | x]. It is right if either the decoding or the model is. The model's word may
err by as much as a correlation κ between what it is weighted with and b(y) − E_q[b(y) | x], or by
as much as it differs from the word of another model with these means, the prior tilted to them: a
law whose tail is too short says next to nothing of the labels there.

Sources: Donoho, *Statistical Estimation and Optimal Recovery*, Annals of Statistics 1994, for bias
in exchange for variance where its worst is known; Robins, Rotnitzky, Zhao, *Estimation of
Regression Coefficients When Some Regressors Are Not Always Observed*, JASA 1994, for the form of
the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelveil.common.arrays import Booleans, Floats
from labelveil.feature_party.evaluation.intervals import mean_error
from labelveil.feature_party.evaluation.spread import ReleasedCodes, label_means
from labelveil.feature_party.learning.decoding import decoder
from labelveil.feature_party.learning.problem import LabelProblem, sums
from labelveil.feature_party.learning.support import Support
from labelveil.feature_party.model.model import Predictions

MISFIT = 0.12
"""κ of distributions without noise. Chosen, not derived; docs/appendix/coverage.md shows its true
value, and how often intervals cover with it."""
_OF_MEANS = 2.0
"""Times that, of distributions that know the mean alone."""

_GROUPS = 16
"""Groups of rows with decoders of their own."""
_OPEN = 0.2
"""Share of the released prior in what such a decoder expects of the labels."""
_DOUBT = 0.3
"""Standard deviations of the histogram's noise that count as labels where bias is traded for
variance: without them it lies where the histogram shows next to nothing, and cannot be bounded."""
_TILTS = 201
_STEEPEST = 40.0


@dataclass(frozen=True, eq=False)
class Scored:
    """(n,) rows with predictions of models that have not seen them.

    ``held_out`` are those that the whole model has not seen; of others, the networks that predict
    them. To these the noise of other rows adds something, of which ``echo`` is the mean square.
    """

    predicted: Predictions
    held_out: Booleans
    averaging: float = 0.0  # by how much the whole model's loss is below that of such networks
    echo: float = 0.0

    def noise(self, centre: float) -> float:
        """What share of E(f − centre)² is other rows' noise, 0 … 1."""
        difference = self.predicted.points - centre
        return min(self.echo / max(float(np.mean(difference**2)), 1e-300), 1.0)

    def misfit(self, centre: float) -> float:
        """κ, the correlation by which the model's word may err as one standard error."""
        known = MISFIT if self.predicted.distributions is not None else _OF_MEANS * MISFIT
        return known * math.sqrt(1 + 2 * self.noise(centre))

    def dependence(self, centre: float) -> float:
        """Factor >= 1 between the variance of Σ (f − centre) u and that of independent terms.

        Of two rows in different folds each one's noise may be in the other's prediction: that adds
        no more than what the noise in a prediction does to its square, and at most doubles it.
        """
        return 1 + float(1 - self.held_out.mean()) * self.noise(centre)


def believed(support: Support, predicted: Predictions) -> Floats:
    """(n, m) predicted distributions; of a model of points p(y) e^{θ y} with their means."""
    if predicted.distributions is not None:
        return predicted.distributions
    return _with_means(support, predicted.points)


def _with_means(support: Support, means: Floats) -> Floats:
    """(n, m) priors tilted to (n,) means."""
    table = tilted(support)
    at = np.interp(means, table @ support.values, np.arange(float(_TILTS)))
    low = np.minimum(at.astype(np.int64), _TILTS - 2)
    share = (at - low)[:, None]
    return np.asarray((1 - share) * table[low] + share * table[low + 1])


def tilted(support: Support) -> Floats:
    """(t, m) the prior times e^{θ y}, from steeply falling to steeply rising: means ascend."""
    axis = (support.values - support.values.mean()) / np.ptp(support.values)
    logits = np.log(support.prior) + np.linspace(-_STEEPEST, _STEEPEST, _TILTS)[:, None] * axis
    table = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(table / table.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class DecodedLabels:
    """Labels of n rows, decoded in each way, and the root mean squares of their biases b(y)."""

    unbiased: Floats
    variances: Floats  # of the first, as expected of labels where their model has them
    bias_bounded: Floats
    model_assisted: Floats
    plain: Floats  # helped by what the predicted means alone would say
    hidden: float  # of the first
    limit: float  # at most of the second
    unsure: float  # standard error of ``limit``
    trusted: float  # of the third, without the model
    misfit: float  # κ


def decode_labels(
    sources: Sequence[ReleasedCodes], support: Support, scored: Scored, centre: float
) -> DecodedLabels:
    """Decode in groups of like predictions, each by the decoders that are best where its labels are
    expected: that takes the model's word and no code, so what is without bias stays so.

    Predictions are compared with the constant ``centre``: rows far from it count most.
    """
    points, beliefs = scored.predicted.points, believed(support, scored.predicted)
    plainly = _with_means(support, points)
    difference = points - centre
    rows, total = difference.size, max(float(difference @ difference), 1e-300)
    misfit, dependence = scored.misfit(centre), scored.dependence(centre)
    unbiased, variances, bias_bounded, model_assisted, plain = np.zeros((5, rows))
    hidden = trusted = 0.0
    worst = []
    group = np.empty(rows, np.int64)
    for number, part in enumerate(np.array_split(np.argsort(points, kind="stable"), _GROUPS)):
        group[part] = number
    for source in sources:
        histogram, squares = source.histogram, np.zeros(source.problem.grid.size)
        doubted = source.problem.prior + _DOUBT * histogram.deviation / histogram.rows
        common = decoder(source.problem, source.problem.grid)
        hidden += source.rows.size / rows * float(source.problem.prior @ common.bias[:, 0] ** 2)
        for number in np.unique(group[source.rows]):
            inside = group[source.rows] == number
            mine, codes = source.rows[inside], source.codes[inside]
            weight = difference[mine] ** 2
            share = float(weight.sum()) / total
            if share == 0.0:  # predicted as the constant does
                weight = np.ones(mine.size)
            expected = (weight @ beliefs[mine] / weight.sum())[support.cell_of] * support.within
            prior = _OPEN * source.problem.prior + (1 - _OPEN) * expected
            problem = source.problem.with_prior(prior)
            exact = decoder(problem, problem.grid) if common.exact else common
            near = decoder(problem, problem.grid, dependence / rows, doubted)
            biased = decoder(problem, problem.grid, ridge=1 / (rows * misfit**2))
            word = sums(support.cell_of, support.within * biased.bias[:, 0], support.size)
            unbiased[mine], bias_bounded[mine] = exact.values[codes, 0], near.values[codes, 0]
            variances[mine] = _variances(problem, exact.values[:, 0])[codes]
            squares = np.maximum(squares, near.bias[:, 0] ** 2)
            model_assisted[mine] = biased.values[codes, 0] - beliefs[mine] @ word
            plain[mine] = biased.values[codes, 0] - plainly[mine] @ word
            trusted += share * float(prior @ biased.bias[:, 0] ** 2)
        worst.append(squares[:, None])
    limit, unsure = _limit(sources, worst)
    hidden, trusted = math.sqrt(hidden), math.sqrt(trusted)
    ways = unbiased, variances, bias_bounded, model_assisted, plain
    return DecodedLabels(*ways, hidden, limit, unsure, trusted, misfit)


def _variances(problem: LabelProblem, values: Floats) -> Floats:
    """(d,) for each code the variance of (d,) decoding values, of all codes of its channel."""
    variances = []
    first = np.cumsum([leg.outputs.size for leg in problem.legs])[:-1]
    for leg, own in zip(problem.legs, np.split(values, first), strict=True):
        law = leg.output_prior
        variances.append(np.full(own.size, law @ (own - law @ own) ** 2))
    return np.concatenate(variances)


def _limit(sources: Sequence[ReleasedCodes], squares: Sequence[Floats]) -> tuple[float, float]:
    """√E b², b(y)² the largest of any group, with its standard error: no group's labels are known,
    those of all are."""
    values, variances, terms = label_means(sources, squares)
    error = math.hypot(math.sqrt(variances[0]), mean_error(terms))
    limit = math.sqrt(max(float(values[0]), 0.0))
    # the error of a root, also where the square itself cannot be told from 0
    return limit, min(error / (2 * max(limit, 1e-300)), math.sqrt(error))
