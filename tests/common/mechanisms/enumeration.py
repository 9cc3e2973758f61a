"""The output law of a mechanism's own code, by trying everything that its exact samplers can draw.

The samplers of :mod:`labelveil.common.exact` are replaced, wherever they are imported, by choices
among all of their values with those values' probabilities. A mechanism is then run once for each
sequence of choices that is likely enough; what the rest could add is counted as lost, and granted
to whichever side a guarantee needs it on, so that what is found broken *is* broken. A mechanism
that takes random words in any other way is refused.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import Entropy
from labelveil.common.exact import exponential_choice, noise
from labelveil.common.guarantees import (
    ApproximateDP,
    BoundedRange,
    Guarantee,
    PureDP,
    to_approximate,
    to_renyi,
)

LEAST = 1e-5
DELTAS = (0.3, 0.1, 0.03, 1e-2, 1e-3, 1e-5)


@dataclass(frozen=True)
class Law:
    """Probabilities of outcomes, each a little too small, and what they lack of 1 together."""

    masses: Mapping[Hashable, float]
    lost: float


class _Path:
    """One run: the choices that it is to repeat, and the alternatives that it came by."""

    def __init__(self, prefix: tuple[int, ...], least: float) -> None:
        self.prefix, self.least = prefix, least
        self.taken: list[int] = []
        self.mass, self.lost = 1.0, 0.0
        self.others: list[tuple[int, ...]] = []

    def choose(self, values: Sequence[Any], masses: Sequence[float]) -> Any:
        """One of the values, likeliest first."""
        place = len(self.taken)
        if place < len(self.prefix):
            chosen = self.prefix[place]
        else:
            chosen, left = 0, 1.0 - masses[0]
            for i in range(1, len(values)):
                if self.mass * masses[i] < self.least:
                    break
                self.others.append((*self.taken, i))
                left -= masses[i]
            self.lost += self.mass * max(left, 0.0)
        self.taken.append(chosen)
        self.mass *= masses[chosen]
        return values[chosen]


class _Choices(Entropy):
    """What a mechanism gets for entropy: its sources are the path that is being tried."""

    __slots__ = ("path",)

    def __init__(self, path: _Path) -> None:
        super().__init__(bytes(32), secure=False)
        self.path = path

    def words(self, stream: str, start: int, count: int) -> Any:
        raise AssertionError(f"words of the stream {stream!r} are drawn past the exact samplers")

    def source(self, stream: str) -> Any:
        return self.path


@lru_cache(maxsize=256)
def _noise(weights: Callable[[int], float]) -> tuple[list[int], list[float]]:
    reach = 0
    while weights(reach) > 1e-9:
        reach += 1
    values = sorted(range(-reach, reach + 1), key=abs)
    masses = [weights(abs(z)) for z in values]
    total = sum(masses)
    return values, [mass / total for mass in masses]


@lru_cache(maxsize=256)
def laplace_law(scale: float) -> tuple[list[int], list[float]]:
    return _noise(lambda z: math.exp(-z / scale))


@lru_cache(maxsize=256)
def gaussian_law(variance: float) -> tuple[list[int], list[float]]:
    return _noise(lambda z: math.exp(-(z * z) / (2 * variance)))


def _shares(scores: Any, rate: float, weights: Any = None) -> tuple[list[int], list[float]]:
    logs = np.array([int(s) for s in scores], dtype=np.float64) * rate
    if weights is not None:
        logs += [math.log(Fraction(w)) for w in weights]
    masses = np.exp(logs - logs.max())
    masses /= masses.sum()
    order = np.argsort(-masses, kind="stable")
    return order.tolist(), masses[order].tolist()


def samplers(thinner: int) -> dict[str, tuple[Any, Any]]:
    """By name: the real sampler, and one that chooses; noise is thinner by that factor."""

    def vector(law: tuple[list[int], list[float]], size: int, path: _Path) -> Any:
        return np.array([path.choose(*law) for _ in range(size)], dtype=np.int64)

    def laplace(scale: Fraction, size: int, source: _Path) -> Any:
        return vector(laplace_law(float(scale) / thinner), size, source)

    def laplace_each(numerators: Any, denominator: int, source: _Path) -> Any:
        scales = [n / denominator / thinner for n in numerators.tolist()]
        return np.array([source.choose(*laplace_law(scale)) for scale in scales], dtype=np.int64)

    def gaussian(variance: Fraction, size: int, source: _Path) -> Any:
        return vector(gaussian_law(float(variance) / thinner**2), size, source)

    def uniform(bound: int, size: int, source: _Path) -> Any:
        assert bound <= 64, f"{bound} values are too many to try"
        return vector((list(range(bound)), [1 / bound] * bound), size, source)

    def choice(scores: Any, rate: Fraction, source: _Path, weights: Any = None) -> int:
        return int(source.choose(*_shares(scores, float(rate) * thinner, weights)))

    def peeling(scores: Any, rate: Fraction, draws: int, source: _Path) -> Any:
        left, chosen = list(range(len(scores))), []
        for _ in range(draws):
            at = source.choose(*_shares([scores[i] for i in left], float(rate) * thinner))
            chosen.append(left.pop(at))
        return np.array(chosen, dtype=np.int64)

    def flip(scores: Any, rate: Fraction, source: _Path) -> int:
        heads = [math.exp(float(rate) * thinner * int(s - max(scores))) for s in scores]
        masses = [0.0] * len(heads)
        orders = list(permutations(range(len(heads))))
        for order in orders:
            tails = 1 / len(orders)
            for i in order:
                masses[i] += tails * heads[i]
                tails *= 1 - heads[i]
        order = sorted(range(len(heads)), key=lambda i: -masses[i])
        return int(source.choose(order, [masses[i] for i in order]))

    return {
        "discrete_laplace": (noise.discrete_laplace, laplace),
        "discrete_laplace_each": (noise.discrete_laplace_each, laplace_each),
        "discrete_gaussian": (noise.discrete_gaussian, gaussian),
        "uniform_below": (noise.uniform_below, uniform),
        "exponential_choice": (exponential_choice.exponential_choice, choice),
        "exponential_peeling": (exponential_choice.exponential_peeling, peeling),
        "permute_and_flip": (exponential_choice.permute_and_flip, flip),
    }


def replace_samplers(monkeypatch: pytest.MonkeyPatch, thinner: int = 1) -> None:
    """Let every module draw by choosing."""
    choosers = samplers(thinner)
    for module in [m for name, m in sys.modules.items() if name.startswith("labelveil.common.")]:
        for name, (real, chooser) in choosers.items():
            if getattr(module, name, None) is real:
                monkeypatch.setattr(module, name, chooser)


def law(draw: Callable[[Entropy], Hashable], least: float = LEAST) -> Law:
    """The law of what a run returns."""
    masses: defaultdict[Hashable, float] = defaultdict(float)
    lost, pending = 0.0, [()]
    while pending:
        path = _Path(pending.pop(), least)
        masses[draw(_Choices(path))] += path.mass
        lost += path.lost
        pending += path.others
    assert abs(sum(masses.values()) + lost - 1) < 1e-6, "a run is not a function of its choices"
    return Law(masses, lost + 1e-9)


def broken(guarantee: Guarantee, one: Law, other: Law) -> str | None:
    """Why two neighbours' laws break a guarantee, or None; looked at in both directions."""
    return _one_way(guarantee, one, other) or _one_way(guarantee, other, one)


def _one_way(guarantee: Guarantee, p: Law, q: Law) -> str | None:
    most = {z: q.masses.get(z, 0.0) + q.lost for z in p.masses}
    logs = {z: math.log(mass / most[z]) if most[z] else math.inf for z, mass in p.masses.items()}
    epsilon = getattr(guarantee, "epsilon", math.inf)
    if isinstance(guarantee, PureDP | BoundedRange) and max(logs.values()) > epsilon + 1e-9:
        return f"a ratio of e^{max(logs.values()):.4f} above e^{epsilon:.4f}"
    if isinstance(guarantee, BoundedRange) and sum(n for _, n in guarantee.ranges) == 1:
        least = {z: math.log(m / (p.masses.get(z, 0.0) + p.lost)) for z, m in q.masses.items()}
        if max(logs.values()) + max(least.values()) > epsilon + 1e-9:
            return f"a range of {max(logs.values()) + max(least.values()):.4f} above {epsilon:.4f}"
    points, orders = _numbers(guarantee)
    for alpha, bound in orders:
        powers = (p.masses[z] * math.exp((alpha - 1) * logs[z]) for z in p.masses)
        divergence = math.log(sum(powers)) / (alpha - 1)
        if divergence > bound + 1e-9:
            return f"a divergence of {divergence:.4f} above {bound:.4f} at order {alpha:g}"
    for e, delta in points:
        grow = math.exp(min(e, 700.0))
        gap = sum(max(0.0, m - grow * q.masses.get(z, 0.0)) for z, m in p.masses.items())
        if gap - grow * q.lost > delta * (1 + 1e-9) + 1e-13:
            return f"a delta of {gap:.6f} above {delta:g} at epsilon {e:.4f}"
    return None


Numbers = tuple[list[tuple[float, float]], list[tuple[float, float]]]
_known: dict[int, tuple[Guarantee, Numbers]] = {}  # hashing fractions takes longer than comparing


def _numbers(guarantee: Guarantee) -> Numbers:
    """Some (ε, δ), and without a failure probability some (α, ε(α)), that a guarantee states."""
    if id(guarantee) not in _known:
        _known[id(guarantee)] = guarantee, _found(guarantee)
    return _known[id(guarantee)][1]


def _found(guarantee: Guarantee) -> Numbers:
    failure = Fraction(getattr(guarantee, "exact_delta", 0))
    if isinstance(guarantee, ApproximateDP):
        return [(guarantee.epsilon, float(failure))], []
    points = [
        (to_approximate(guarantee, failure + Fraction(delta)).epsilon, float(failure) + delta)
        for delta in DELTAS
    ]
    if failure:
        return points, []
    curve = to_renyi(guarantee)
    orders = [order for order in curve.orders if order <= 8][:: max(1, len(curve.orders) // 24)]
    return points, [(float(order), float(curve.at(order))) for order in orders]
