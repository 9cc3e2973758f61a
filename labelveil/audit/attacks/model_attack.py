"""Label inference from a trained model: guess canaries' secret bits from its predictions.

A model that learnt an event's randomized label by heart predicts it back. The attack looks at an
event's prediction, and at how far it lies from what a smooth function of the features would
predict; which of both, and from where on to guess, is learnt on a pilot share of the canaries.

An attack that finds nothing may simply be weak. So the same guess is made from a memorising
*positive control*: one nearest neighbour over the same release and features, asked at the events it
was made from. If it is near the ceiling, the attack has power, and silence of the model means
something; ridge regression in its place would show 0 whatever the privacy is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from common.arrays import Booleans, Floats, Integers
from common.entropy import seeded_entropy
from common.errors import present
from labelveil.audit.attacks.canaries import Canaries
from labelveil.audit.attacks.one_run import OneRun, Secrets, learn_guesser, score
from labelveil.audit.bounds import guess_probability

PILOT = 0.2
FOURIER = 256
_RIDGE = 1e-3
_KEY_SCALE = 1e-6


@dataclass(frozen=True)
class Attack:
    """What the attack found.

    Attributes
    ----------
    result
        Bounds and counts.
    looked_at
        Which view of the predictions the pilot chose.
    curve
        Share of canaries guessed and share of right guesses, the surest first.
    """

    result: OneRun
    looked_at: str
    curve: dict[str, list[float]]


class NearestNeighbour:
    """The memorising control: an event's output is that of the nearest event, itself included.

    Events with equal features are distinguished by their row, at a scale that no feature difference
    reaches: the features party holds their keys.
    """

    def __init__(self, features: Floats, codes: NDArray[np.integer]) -> None:
        self._tree = scipy.spatial.cKDTree(_with_row(features))
        self._codes = np.asarray(codes)

    def predict(self, features: Floats, rows: Integers) -> NDArray[np.integer]:
        """(m,) outputs remembered for some of the events."""
        _, nearest = self._tree.query(_with_row(features)[rows], k=1)
        return self._codes[nearest]


def attack_predictions(
    predictions: Mapping[str, Floats], features: Floats | None, canaries: Canaries
) -> Attack:
    """Guess secrets from a model's predictions.

    Parameters
    ----------
    predictions
        (n,) for every event, by the label's name; of several labels the best sum is looked at too.
    features
        (n, r) standardised features, where they are at hand.
    canaries
        Events among the n that the model was trained on.
    """
    views = dict(predictions)
    if features is not None:
        for name, values in predictions.items():
            views[f"{name} less a smooth fit"] = values - smooth_fit(features, values)
    secrets, rows = canaries.secrets, canaries.rows
    start = max(1, round(PILOT * rows.size))
    if len(predictions) > 1:
        views["all labels"] = _best_sum([*views.values()], rows[:start], secrets[:start])
    best: tuple[float, str, Floats, Any] | None = None
    for name, values in views.items():
        pilot = values[rows[:start]]
        guesser = learn_guesser(pilot, secrets[:start], 2, rows.size - start)
        reached = score(guesser(pilot), secrets[:start]).shown
        if best is None or reached > best[0]:
            best = (reached, name, values, guesser)
    _, name, values, guesser = present(best)
    found = score(guesser(values[rows[start:]]), secrets[start:])
    return Attack(found, name, _score_curve(values[rows], secrets, start))


def attack_control(
    codes: NDArray[np.integer], features: Floats | None, canaries: Canaries, epsilon: float
) -> Attack:
    """Guess secrets from what the memorising control predicts: the output it remembers.

    The channel is public, so no pilot is needed: an output that is likelier under one of both
    secrets speaks for it, and the surest outputs are those whose ratio is near e^ε.
    """
    remembered = codes[canaries.rows]
    if features is not None:
        remembered = NearestNeighbour(features, codes).predict(features, canaries.rows)
    ratio = np.log(canaries.laws[1]) - np.log(canaries.laws[0])
    revealed = ratio[remembered]
    guesses = np.where(
        np.abs(revealed) >= 0.9 * min(epsilon, np.abs(ratio).max()), revealed > 0, -1
    )
    found = score(guesses.astype(np.int64), canaries.secrets)
    order = np.argsort(-np.abs(revealed), kind="stable")
    right = (revealed > 0).astype(np.int64) == canaries.secrets
    return Attack(found, "remembered output", _curve(right[order]))


def _best_sum(views: Sequence[Floats], pilot: Integers, secrets: Secrets) -> Floats:
    """(n,) the sum of views, weighted, that lies nearest to the pilot's secrets."""
    columns = np.column_stack([*views, np.ones_like(views[0])])
    return np.asarray(columns @ np.linalg.lstsq(columns[pilot], secrets, rcond=None)[0])


def smooth_fit(features: Floats, values: Floats) -> Floats:
    """(n,) ridge regression of values on random Fourier features: what has no memory of events.

    Source: Rahimi and Recht, *Random Features for Large-Scale Kernel Machines*, NIPS 2007. The
    directions are drawn from a seeded stream: the fit is no secret.
    """
    size = features.shape[1]
    words = seeded_entropy(0).words("directions", 0, (size + 1) * FOURIER)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    normal = scipy.special.ndtri(uniform[: size * FOURIER])
    directions = normal.reshape(size, FOURIER) / math.sqrt(size)
    shifts = 2 * math.pi * uniform[size * FOURIER :]
    gram = np.zeros((FOURIER + 1, FOURIER + 1))
    target = np.zeros(FOURIER + 1)
    parts = [slice(start, start + (1 << 14)) for start in range(0, values.size, 1 << 14)]

    def basis(part: slice) -> Floats:
        waves = np.cos(features[part] @ directions + shifts)
        return np.concatenate([np.ones((waves.shape[0], 1)), waves], axis=1)

    for part in parts:
        columns = basis(part)
        gram += columns.T @ columns
        target += columns.T @ values[part]
    weights = np.linalg.solve(gram + _RIDGE * values.size * np.eye(FOURIER + 1), target)
    return np.concatenate([basis(part) @ weights for part in parts])


def ceiling(epsilon: float) -> float:
    """The largest share of right guesses under ε."""
    return guess_probability(epsilon)


def _with_row(features: Floats) -> Floats:
    row = np.arange(features.shape[0])[:, None] * (_KEY_SCALE / max(features.shape[0], 1))
    return np.concatenate([features, row], axis=1)


def _score_curve(values: Floats, secrets: Secrets, start: int) -> dict[str, list[float]]:
    """Guess by the side of the pilot's median, the farthest first, in the pilot's direction."""
    pilot, rest = values[:start], values[start:]
    middle = float(np.median(pilot))
    upwards = np.corrcoef(pilot, secrets[:start])[0, 1] if np.ptp(pilot) > 0 else 1.0
    guess = (rest > middle) == (upwards >= 0)
    order = np.argsort(-np.abs(rest - middle), kind="stable")
    return _curve((guess.astype(np.int64) == secrets[start:])[order])


def _curve(right: Booleans) -> dict[str, list[float]]:
    at = np.unique(np.linspace(min(200, right.size), right.size, 60).round().astype(int))
    at = at[at > 0]
    total = np.cumsum(right)
    return {
        "share": (at / max(right.size, 1)).tolist(),
        "right": (total[at - 1] / at).tolist(),
    }
