"""Label inference from a trained model: guess canaries' secret bits from its predictions.

Canaries are events whose label is a uniform secret bit: *planted* where the auditor replaces labels
of some events by one of two values, by the toss of a coin, before the labels party sees them (of
several labels of an event, all at once), or *found* in a finished run (:func:`find_canaries`).

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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from labelveil.audit.attacks.one_run import OneRun, bound_guesses, learn_guesser, uniform
from labelveil.audit.power import expected_one_run_bound, guess_probability
from labelveil.audit.settings import RunFiles
from labelveil.audit.verdict import GATE, SHOWN, Check, Power, Probes, Verdict, verdict_of
from labelveil.common.arrays import Booleans, Floats, Indices, Integers
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import not_none
from labelveil.common.randomizers.message.codebooks import Codebook

POWER = 0.9
"""Share of the ceiling's bound that the positive control must reach for the attack to count."""

PILOT = 0.2
FOURIER = 256
_RIDGE = 1e-3
_KEY_SCALE = 1e-6

_CELLS = 1 << 22  # probabilities of events' outputs that are looked at together


@dataclass(frozen=True, eq=False)
class SecretBits:
    """Events with a secret bit: which of two labels, or of two sets of all labels of an event."""

    rows: Integers  # (m,) where they are
    secrets: Integers  # (m,) their bits
    laws: Floats  # (2, d) stated probabilities of their codes, for either secret
    planted: bool  # whether the labels themselves were the secrets


def find_canaries(
    codebook: Codebook, labels: Floats, codes: NDArray[np.integer], laws: Floats
) -> SecretBits:
    """Find canaries in a finished run, from (n, m) true labels and the (n,) codes sent of them.

    Event i's output z has law P_i = K[y_i, ·]. Accept it with probability M(z) / (C P_i(z)), where
    M = (K[a, ·] + K[b, ·]) / 2 and C is the largest ratio, and then toss a bit with
    P(s = b | z) = K[b, z] / (K[a, z] + K[b, z]). An accepted event's (s, z) is distributed exactly
    as if its label had been a uniform secret among a and b that was then randomized; everything
    that came after depends on the secret through z alone, so a guess is right with probability at
    most e^ε / (e^ε + 1). This takes the channel for granted (certificate, `mechanism` and `party`
    look at that) and asks what is made of its outputs.
    """
    mixture = laws.mean(axis=0)
    coins, bits = uniform(codes.size), uniform(codes.size)
    accepted = np.zeros(codes.size, dtype=np.bool_)
    step = max(_CELLS // mixture.size, 1)
    for start in range(0, codes.size, step):
        part = slice(start, start + step)
        own = codebook.laws(labels[part])
        largest = (mixture / own).max(axis=1)
        sent = own[np.arange(len(own)), codes[part]]
        accepted[part] = coins[part] < mixture[codes[part]] / (largest * sent)
    rows = np.flatnonzero(accepted)
    towards = laws[1] / laws.sum(axis=0)
    secrets = (bits[rows] < towards[codes[rows]]).astype(np.int64)
    return SecretBits(rows, secrets, laws, planted=False)


@dataclass(frozen=True, eq=False)
class Attack:
    """What the attack found by the view of the predictions that the pilot chose.

    ``curve`` has the share of canaries guessed and the share of right guesses, the surest first.
    """

    result: OneRun
    view: str
    curve: dict[str, list[float]]


def attack_predictions(
    predictions: Mapping[str, Floats], features: Floats | None, canaries: SecretBits
) -> Attack:
    """Guess secrets of some of n events from a model's predictions, where it was trained on them.

    There are (n,) predictions by the label's name, of several labels their best sum is looked at
    too, and (n, r) standardised features, where they are at hand.
    """
    views = dict(predictions)
    if features is not None:
        for name, values in predictions.items():
            views[f"{name} less a smooth fit"] = values - smooth_fit(features, values)
    secrets, rows = canaries.secrets, canaries.rows
    views = {name: values[rows] for name, values in views.items()}
    start = max(1, round(PILOT * rows.size))
    if len(predictions) > 1:
        # the sum of all, weighted, that lies nearest to the pilot's secrets
        columns = np.column_stack([*views.values(), np.ones(rows.size)])
        weights = np.linalg.lstsq(columns[:start], secrets[:start], rcond=None)[0]
        views["all labels"] = np.asarray(columns @ weights)
    guessers = {
        name: learn_guesser(values[:start], secrets[:start], rows.size - start)
        for name, values in views.items()
    }
    name = max(guessers, key=lambda name: guessers[name].expected)
    pilot, rest = views[name][:start], views[name][start:]
    # the curve guesses by the side of the pilot's median, the farthest first
    middle = float(np.median(pilot))
    upwards = np.corrcoef(pilot, secrets[:start])[0, 1] >= 0 if np.ptp(pilot) > 0 else True
    right = ((rest > middle) == upwards) == secrets[start:]
    order = np.argsort(-np.abs(rest - middle), kind="stable")
    return Attack(bound_guesses(guessers[name](rest), secrets[start:]), name, _curve(right[order]))


def attack_control(
    codes: NDArray[np.integer], features: Floats | None, canaries: SecretBits, epsilon: float
) -> Attack:
    """Guess secrets from what the memorising control predicts: the output of the nearest event.

    The channel is public, so no pilot is needed: an output that is likelier under one of both
    secrets speaks for it, and the surest outputs are those whose ratio is near e^ε.
    """
    nearest = canaries.rows
    if features is not None:
        # events with equal features are distinguished by their row, at a scale that no difference
        # of features reaches: the features party holds their keys
        row = np.arange(codes.size) * (_KEY_SCALE / codes.size)
        points = np.column_stack([features, row])
        nearest = np.asarray(scipy.spatial.cKDTree(points).query(points[nearest])[1])
    remembered = codes[nearest]
    ratio = np.log(canaries.laws[1]) - np.log(canaries.laws[0])
    revealed = ratio[remembered]
    guesses = np.where(
        np.abs(revealed) >= 0.9 * min(epsilon, np.abs(ratio).max()), revealed > 0, -1
    )
    order = np.argsort(-np.abs(revealed), kind="stable")
    right = (revealed > 0) == canaries.secrets
    measured = bound_guesses(guesses.astype(np.int64), canaries.secrets)
    return Attack(measured, "remembered output", _curve(right[order]))


def smooth_fit(features: Floats, values: Floats) -> Floats:
    """(n,) ridge regression of values on random Fourier features: what has no memory of events.

    Source: Rahimi and Recht, *Random Features for Large-Scale Kernel Machines*, NIPS 2007. The
    directions are drawn from a seeded stream: the fit is no secret.
    """
    size = features.shape[1]
    words = seeded_entropy(0).words("directions", 0, (size + 1) * FOURIER)
    # 53 bits, moved off 0 by half a step, where the normal quantile is infinite
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


def _curve(right: Booleans) -> dict[str, list[float]]:
    at = np.unique(np.linspace(min(200, right.size), right.size, 60).round().astype(int))
    at = at[at > 0]
    total = np.cumsum(right)
    return {"share": (at / max(right.size, 1)).tolist(), "right": (total[at - 1] / at).tolist()}


@dataclass(frozen=True, eq=False)
class Run:
    """A run's events in one order."""

    codes: Integers  # (n,) outputs
    labels: Floats  # (n, m) true labels, NaN if unknown
    predictions: dict[str, Floats]  # (n,) of each label, by its column
    trained: Booleans  # (n,) whether the model was trained on the event
    features: Floats | None  # (n, r) standardised features, or None
    planted: Integers | None
    """(n,) secret bits of planted canaries, -1 for other events, and for canaries with another
    secret than the first two; None if nothing was planted."""


def worst_pair(codebook: Codebook) -> Indices:
    """(2, m) grid indices of two events' labels: every channel's pair of rows that are farthest
    apart in total variation."""
    pair = np.zeros((2, len(codebook.names)), dtype=np.int64)
    for group, channel in zip(codebook.groups, codebook.channels, strict=True):
        rows = channel.probabilities
        apart = [np.abs(rows - row).sum(axis=1) for row in rows]
        low = int(np.argmax([distances.max() for distances in apart]))
        pair[:, group.labels] = group.cells.indices(np.array([low, int(apart[low].argmax())]))
    return pair


def choose_canaries(run: Run, codebook: Codebook) -> SecretBits | None:
    """Planted canaries if there are any, else those that are found among the events trained on."""
    if run.planted is not None:
        rows = np.flatnonzero((run.planted >= 0) & run.trained)
        return SecretBits(rows, run.planted[rows], codebook.at_the_ends, planted=True)
    known = np.flatnonzero(~np.isnan(run.labels).any(axis=1) & run.trained)
    if not known.size:
        return None
    laws = codebook.likelihood_of(worst_pair(codebook))
    canaries = find_canaries(codebook, run.labels[known], run.codes[known], laws)
    return replace(canaries, rows=known[canaries.rows])


@dataclass(frozen=True, eq=False)
class Attacked:
    """A run, and the events whose labels are guessed from it."""

    files: RunFiles
    run: Run | None
    canaries: SecretBits | None
    claimed: float  # of the whole release
    epsilon: float  # of an event's labels

    @property
    def possible(self) -> bool:
        return self.run is not None and self.canaries is not None

    @cached_property
    def model(self) -> Attack:
        """By what the model predicts; only where it is possible, as the next."""
        run = not_none(self.run)
        return attack_predictions(run.predictions, run.features, not_none(self.canaries))

    @cached_property
    def control(self) -> Attack:
        """By what a model that memorises would predict."""
        run, canaries = not_none(self.run), not_none(self.canaries)
        return attack_control(run.codes, run.features, canaries, self.epsilon)

    @property
    def curves(self) -> dict[str, Any]:
        """Both, for the report, and the share of right guesses that the claim allows."""
        ceiling = guess_probability(self.claimed)
        return {"ceiling": ceiling, "model": self.model.curve, "control": self.control.curve}


MODEL = Probes[Attacked]()


@MODEL.add("label inference from the model", "Does the trained model remember labels?")
def model_check(attacked: Attacked) -> Check:
    if not attacked.possible:
        return _nothing_to_attack(attacked)
    attack, claimed, canaries = attacked.model, attacked.claimed, not_none(attacked.canaries)
    result, origin = attack.result, "planted" if canaries.planted else "found"
    return result.check(
        claim=f"From the model a canary's secret bit is guessed with probability at most"
        f" {guess_probability(claimed):.4f}.",
        tried=f"{canaries.rows.size:,} {origin} canaries that the model was trained on were guessed"
        f" from its predictions ({attack.view}): {result.correct:,} of {result.guesses:,} guesses"
        " were right.",
        claimed=claimed,
        details={"correct": result.correct, "guesses": result.guesses, "view": attack.view},
        power=(Power("excess of ε in what is predicted", result.excess(claimed)),),
    )


@MODEL.add(
    "positive control",
    "Would this attack see a model that learns labels by heart?",
    fits=lambda attacked: attacked.possible,
)
def control_check(attacked: Attacked) -> Check:
    epsilon, result = attacked.epsilon, attacked.control.result
    reach = expected_one_run_bound(epsilon, max(result.guesses, 1), SHOWN)
    strong = result.shown >= POWER * reach
    return Check(
        verdict=verdict_of(result.bound <= epsilon) if strong else Verdict.NOT_CHECKABLE,
        claim="A model that memorises is seen by this attack, and even it gives away no more than"
        f" ε₂ = {epsilon:.4g}.",
        tried="The same canaries were guessed from one nearest neighbour over the same release and"
        f" features: {result.correct:,} of {result.guesses:,} guesses were right.",
        found=f"It shows ε ≥ {result.shown:.3f} at 95%, of {reach:.3f} that can be reached with as"
        f" many guesses: the attack {'has' if strong else 'lacks'} power"
        + ("." if strong else ", and silence of the model would prove nothing."),
        claimed=epsilon,
        bound=result.bound,
        shown=result.shown,
        confidence=1 - GATE,
        details={"reach": reach, "correct": result.correct, "guesses": result.guesses},
        power=(Power("excess of ε in what is remembered", result.excess(epsilon)),),
    )


def _nothing_to_attack(attacked: Attacked) -> Check:
    if attacked.run is None:
        tried = f"Looked for {attacked.files.predictions} and {attacked.files.secret}."
        remedy = "There are no predictions to attack; name a folder of `labelveil simulate`."
    else:
        tried = (
            "Looked for planted canaries, and for true labels among which canaries can be found."
        )
        remedy = "There are neither; plant canaries with --canaries, or run on a simulation."
    claim = "The trained model gives away no more than the message."
    return Check(Verdict.NOT_CHECKABLE, tried, remedy, claim=claim)
